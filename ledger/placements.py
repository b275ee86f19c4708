"""Decisions about placements: which waiting agent goes to which host, and how many hosts are wanted.

Agents that are woken for mail, calls or an unclean end go before runs, so that a parent never queues behind its own children. Runs and
agents under which too many hosts died get a host to themselves; their losses are compared with those of all that wait for the same pool. So
does an agent that was seen to block the event loop of its host. So does a run for its last attempt, and waits for that, unless no
other host comes: among those that lose their hosts together nothing tells who is at fault, and no run ends by what another one did. The
run of a tool is never placed on the host of the agent that asked for it, because it has to outlive that agent.

Where no host of a pool comes up (`PoolTrouble`), those that are there take all that wait. If there is none, runs wait, and go on when one
comes. But if hosts of other pools come up, what is asked of this one is at fault: a run that has never begun fails when as many hosts have
failed to start as it has attempts. One that has begun waits until its `recovery_deadline_ms`. What no node has may come with a node, so
no run fails for that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from typing import NamedTuple

from perdure.ledger.activation import (
    STARTS_MAX,
    HostSpec,
    HostView,
    PoolTrouble,
    pool_key,
    wants_to_be_alone,
    with_package,
)
from perdure.ledger.batch_decisions import seat_together
from perdure.ledger.facts import AgentActivated, AttemptStarted, Fact, RunErrored
from perdure.ledger.indexes import LOOK_MAX, LineKey, line_for
from perdure.ledger.join_decisions import decide_joins
from perdure.ledger.notes import Note, agent_due, host_reserved, run_held, wake_put_off
from perdure.ledger.requests import abort_awaited
from perdure.ledger.run import Run, run_of
from perdure.ledger.stimulus import Unhosted
from perdure.ledger.store.batches import BATCH_MIN, Batch
from perdure.ledger.view import View
from perdure.policies import Limits, blamed_from, choose, has_room_alone, wanted_hosts


def assign_hosts(view: View, at_ms: int, limits: Limits) -> Iterator[Fact | Batch | Note]:
    yield from decide_joins(view, limits)
    blame = _Blame(view, limits)
    for line in view.wakes.keys:
        yield from _wake_agents(view, line, at_ms, limits, blame)
    for line in view.queues.keys:
        yield from _seat_runs(view, line, at_ms, limits, blame)


def _wake_agents(view: View, line: LineKey, at_ms: int, limits: Limits, blame: _Blame) -> Iterator[Fact | Note]:
    hosts, is_dry = pool(view, line.pool), is_dry_pool(view, line.pool)
    for agent in view.wakes.walk(line):
        activation = view.agents.get(agent)
        if (activation is not None and activation.wake_at_ms > at_ms) or _begins_soon(view, agent):
            yield wake_put_off(agent)
            continue
        if view.doomed_by(agent):
            yield wake_put_off(agent)  # its callers wait until its name is free
            continue
        home = view.home_of(agent)
        if line_for(home) != line:  # code has come since
            yield agent_due(agent)
            continue
        alone = blame.isolates(agent, home)
        place = partial(choose, hosts, view.wakes.length(line), limits, alone=alone, urgent=True, is_dry=is_dry)
        shunned = _hosts_of_tools(view, agent)
        host = place(again=_deaths_of(view, agent) > 0, apart_from=shunned or ())
        if host is None and shunned:  # it is rather with its tools than nowhere, but waits for a host that is coming
            host = place()
        if host is None:
            if alone and not line.exclusive:
                continue
            return
        if alone and not host.exclusive:
            yield host_reserved(host.host_id)
        yield AgentActivated(agent, view.incarnation + 1, host.host_id, home)


def _seat_runs(view: View, line: LineKey, at_ms: int, limits: Limits, blame: _Blame) -> Iterator[Fact | Batch | Note]:
    hosts, is_dry = pool(view, line.pool), is_dry_pool(view, line.pool)
    if view.queues.length(line) >= BATCH_MIN:
        yield from seat_together(view, line, hosts, blame[line.pool], limits)
    for run_id in view.queues.walk(line):
        run = view.runs[run_id]
        activation = view.agents.get(run.child)
        is_awake = activation is not None and bool(activation.host_id)
        if is_awake and run.wait is None:
            continue  # it is awake for other work, and is asked to leave (`outstanding`)
        if run_id in view.begins_anew and at_ms < view.code_due_ms:
            continue  # a person who mends the code of a run and has it tried again means the mended code
        most = run.options.get("limit")
        if most is not None and view.placed.get(run.parent, 0) >= most:
            yield run_held(run_id)
            continue
        if activation is not None and is_awake:  # a run that has waited goes on beside the other work
            if activation.confirmed and not activation.stopping:
                yield AttemptStarted(run_id, run.attempt + 1, activation.incarnation, activation.host_id)
            continue
        alone = is_run_alone(view, run, blame[line.pool], limits)
        shunned = askers_host(view, run)
        waiting, has_lost = view.queues.length(line), run.losses > 0
        host = choose(hosts, waiting, limits, alone=alone, lost=has_lost, apart_from=shunned, is_dry=is_dry)
        if host is None:
            if shunned or (alone and not line.exclusive):
                continue
            return
        if alone and not host.exclusive:
            yield host_reserved(host.host_id)
        collect = run.attempts(limits.attempts_max).are_used_up and not run.is_undoing
        yield AttemptStarted(run_id, run.attempt + 1, view.incarnation + 1, host.host_id, collect)


def unhosted(view: View, said: Unhosted, limits: Limits) -> Iterator[Fact]:
    # Runs that wait for a host of this pool may have waited enough.
    trouble = view.troubles.get(said.pool)
    if trouble is None or not is_at_fault(view, said.pool):
        return
    for exclusive in (False, True):
        for run_id in list(view.queues.all_of(LineKey(said.pool, exclusive=exclusive))):
            run = view.runs[run_id]
            starts_max = max(STARTS_MAX, run.attempts(limits.attempts_max).most)
            if run.attempt == run.begun_after and not run.is_undoing and trouble.starts >= starts_max:
                error = f"{trouble}. It was never begun; `perdure retry` tries it again"
                yield RunErrored(run_id, run.attempt, error, released=True)
                yield from abort_awaited(view, run)


def hindrance(view: View, key: str) -> PoolTrouble | None:
    """Why no host of this pool is to be expected; None if hosts are there, or are still being tried for the first times."""
    trouble = view.troubles.get(key)
    if trouble is None or not trouble.is_plain or any(host.up for host in pool(view, key)):
        return None
    return trouble


def is_at_fault(view: View, key: str) -> bool:
    trouble = hindrance(view, key)
    # Hosts of other pools come up, so it is not the machine.
    return trouble is not None and not trouble.is_lack and any(host.up for host in view.hosts.values())


def askers_host(view: View, run: Run) -> tuple[str, ...]:
    asker = view.agents.get(run.parent) if run.options.get("apart") else None  # a tool's run must outlive its parent
    return (asker.host_id,) if asker is not None and asker.host_id else ()


def _hosts_of_tools(view: View, agent: str) -> set[str]:
    if not view.placed.get(agent):
        return set()
    runs = [view.runs[run_id] for run_id in islice(view.children.get(agent, ()), LOOK_MAX) if run_id in view.runs]
    at_work = [view.agents.get(run.child) for run in runs if run.is_live and run.is_placed and run.options.get("apart")]
    return {each.host_id for each in at_work if each is not None and each.host_id}


def _begins_soon(view: View, agent: str) -> bool:
    # The attempt of a run that waits for a place wakes its child, so nothing else may.
    run = run_of(view.runs, agent)
    if run is None or run.run_id in view.waiting:
        return False
    return run.is_live and not run.is_placed and not run.parked


def is_alone(view: View, agent: str, spec: HostSpec | None, losses: int, blamed: int) -> bool:
    return wants_to_be_alone(spec) or agent in view.blockers or losses >= blamed


def is_run_alone(view: View, run: Run, blamed: int, limits: Limits) -> bool:
    if is_alone(view, run.child, run.options.get("pool"), run.losses, blamed):
        return True
    key = pool_key(run.options.get("pool"))  # where no other host comes, it might wait for ever
    return run.has_a_last_chance(limits.attempts_max) and not (
        is_dry_pool(view, key) or any(host.waits for host in pool(view, key))
    )


def blamed_in(view: View, key: str, limits: Limits) -> int:
    lines = [LineKey(key, exclusive=exclusive) for exclusive in (False, True)]
    runs = [view.runs[run_id].losses for line in lines for run_id in view.queues.first(line)]
    agents = [_deaths_of(view, agent) for line in lines for agent in view.wakes.first(line)]
    return blamed_from([*runs, *agents], limits)


def _deaths_of(view: View, agent: str) -> int:
    activation = view.agents.get(agent)
    return activation.deaths if activation is not None else 0


def is_dry_pool(view: View, key: str) -> bool:
    trouble = view.troubles.get(key)
    return trouble is not None and trouble.is_plain


# After how many losses a run or an agent must be alone, by pool. One value holds for all that are placed at the same time.
class _Blame(dict[str, int]):
    def __init__(self, view: View, limits: Limits) -> None:
        self._view, self._limits = view, limits

    def __missing__(self, key: str) -> int:
        self[key] = blamed_in(self._view, key, self._limits)
        return self[key]

    def isolates(self, agent: str, home: HostSpec | None) -> bool:
        if wants_to_be_alone(home):
            return True
        blamed = max(self._limits.alone_after_losses, self[pool_key(home)])
        if not is_alone(self._view, agent, home, _deaths_of(self._view, agent), blamed):
            return False
        # One that is only suspected is packed with others where no more hosts may be had for single agents: it might wait for ever.
        return has_room_alone(pool(self._view, pool_key(home)), self._limits)


def is_exclusive(view: View, host: HostView, limits: Limits) -> bool:
    # Asked at a boot, because the ledger does not keep hosts.
    if len(host.tenants) != 1:
        return False
    activation = view.agents[next(iter(host.tenants))]
    run = view.runs.get(activation.run_id)
    if run is not None:
        return is_run_alone(view, run, limits.alone_after_losses, limits)
    return is_alone(view, activation.agent_id, activation.home, activation.deaths, limits.alone_after_losses)


def pool(view: View, key: str) -> list[HostView]:
    return [host for host in view.hosts.values() if pool_key(host.spec) == key]


class Wants(NamedTuple):
    """What a pool wants: so many agents and runs wait, and so many hosts are `missing`, or can be done without if it is below 0."""

    spec: HostSpec | None
    waiting: int
    missing: int


def hosts_wanted(wants: Mapping[str, Wants]) -> list[HostSpec | None]:
    """The hosts to start now, one spec for each."""
    return [each.spec for each in wants.values() for _ in range(each.missing)]


def wants_of(view: View, limits: Limits, *, warm: bool = True) -> dict[str, Wants]:
    """What each pool wants that has hosts, or for which somebody waits. The one with the newest code is kept warm; others exist on demand.

    Hosts are started and let go by this alone: two answers would undo each other's hosts for ever.
    """
    ahead = with_package(None, view.code.warm)
    specs: dict[str, HostSpec | None] = {pool_key(ahead): ahead} if warm else {}
    demand: Counter[str] = Counter()
    alone: Counter[str] = Counter()
    apart: set[str] = set()
    blame = _Blame(view, limits)
    for line in view.queues.keys:
        first = [view.runs[run_id] for run_id in view.queues.first(line)]
        specs[line.pool] = first[0].options.get("pool")
        demand[line.pool] += view.queues.length(line)
        blamed = blame[line.pool]
        alone[line.pool] += sum(is_run_alone(view, run, blamed, limits) for run in first)
        if any(askers_host(view, run) for run in first):
            apart.add(line.pool)
    for line in view.wakes.keys:
        look = view.wakes.first(line)
        homes = [
            (agent, view.home_of(agent)) for agent in look if not (_begins_soon(view, agent) or view.doomed_by(agent))
        ]
        if homes:
            specs[line.pool] = homes[0][1]
        demand[line.pool] += view.wakes.length(line) - len(look) + len(homes)
        alone[line.pool] += sum(blame.isolates(agent, home) for agent, home in homes)
    hosts: dict[str, list[HostView]] = {}
    for host in view.hosts.values():
        hosts.setdefault(pool_key(host.spec), []).append(host)
        specs.setdefault(pool_key(host.spec), host.spec)
    wants = {}
    for key, spec in specs.items():
        # Any other host may hold a GPU, so it is started for a run and not ahead of one.
        is_warm = key == pool_key(ahead) and (warm or demand[key] > 0)
        there, is_apart = hosts.get(key, []), key in apart
        missing = wanted_hosts(there, demand[key], alone[key], limits, is_apart=is_apart, is_warm=is_warm)
        wants[key] = Wants(spec, demand[key], missing)
    return wants
