"""The hosts: started ahead of demand, watched for death, ended when they are beyond help, retired when they are worn or their node drains.

The pool sees hosts and reports what it sees as stimuli; whom a host's death concerns is decided by the ledger.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Final

from perdure.actors.events.observability import Channel, EventType
from perdure.actors.link.messages import HostNeeds, Passivate, Ping, Refused, RetireHost
from perdure.actors.link.wire import error_to_plain
from perdure.actors.ports import STOPPED, Clock, Fleet, PoolSpec, Pulse, World
from perdure.actors.supervisor.publisher import Publisher
from perdure.actors.supervisor.sessions import Sessions
from perdure.actors.tasks import Pending, Tasks
from perdure.actors.upkeep import upkeep_pause, upkeep_s
from perdure.ledger import (
    HostLost,
    HostUnavailable,
    HostView,
    NoSuchNode,
    PoolTrouble,
    Run,
    Stimulus,
    Unhosted,
    View,
    Wants,
    hindrance,
    hosts_wanted,
    is_at_fault,
    is_exclusive,
    pool_key,
    wants_of,
    with_package,
)
from perdure.policies import (
    COMING,
    MUTE,
    DrainStep,
    Limits,
    Silence,
    backoff_ms,
    drain_step,
    is_noteworthy,
    is_unbearable,
    moves_at_ms,
    silence_after,
    spare_hosts,
    was_late,
)

COMING_MAX = 2
AGAIN_S: Final = 2.0  # until hosts that do not come up are tried again for what has come to wait since
LOOK_MAX: Final = 1_000  # of what waits for such hosts
UNWANTED = "nothing waited for it any more"
WHILE_UNSERVED = "it ended while no supervisor served the directory"
log = logging.getLogger("perdure.supervisor")

# ---------------------------------------------------------------- heartbeat
# The heartbeat: which hosts are silent, why, and which of them must be ended for it (`policies.liveness`).
#
# A host that has spoken since the last look is well. Any other is asked for its pulse, which is told beside its event loop. So a host
# that is merely slow is never ended, and one whose loop is blocked is known with the agent that blocks it. The supervisor watches itself
# in the same way: when it was late, no silence until then counts, neither of hosts nor of children (`View.awake_at_ms`).


class Heartbeat:
    """The looks at the hosts of one supervisor life.

    Args:
        end: kills a host, and tells why it is lost.
    """

    def __init__(
        self,
        tasks: Tasks,
        fleet: Fleet,
        view: View,
        sessions: Sessions,
        limits: Limits,
        publisher: Publisher,
        end: Callable[[str, str], Pending[None]],
    ) -> None:
        self._tasks, self._fleet, self._end = tasks, fleet, end
        self._view, self._sessions, self._limits, self._publisher = view, sessions, limits, publisher
        self._silences: dict[str, Silence] = {}
        self._told = ("", 0)  # the host and the piece of work that was told last
        self._forgiven = 0
        self._due_s = math.inf  # when the loop must have come round again

    async def serve(self) -> None:
        period_s = self._limits.heartbeat_ms / 1000
        while True:
            looked_s = upkeep_s()
            self._due_s = looked_s + period_s
            await upkeep_pause(period_s)
            self.notice_lateness()
            for session in self._sessions.by_peer.values():
                if session.is_host:
                    session.say(Ping())
            self._sessions.flush()
            await self._look(looked_s)

    def notice_lateness(self) -> None:
        now_s = upkeep_s()
        late_ms = (now_s - self._due_s) * 1000
        if self.lost(late_ms):
            self._due_s = now_s

    # The supervisor lost this time, to its loop or to the disk. True if it is so much that no silence until now counts.
    def lost(self, late_ms: float) -> bool:
        if not was_late(late_ms, self._limits):
            return False
        log.info("the supervisor was %.1f s late; nobody's silence until now counts", late_ms / 1000)
        self._forgiven += 1
        self._silences.clear()
        self._view.awake_at_ms = self._publisher.now_ms()
        return True

    async def _look(self, since_s: float) -> None:
        silent = []
        for host in self._view.hosts.values():
            session = self._sessions.by_peer.get(host.host_id)
            if session is not None and session.seen_s >= since_s:
                self._is_well(host)
            else:
                silent.append(host)
        forgiven, period_s = self._forgiven, self._limits.heartbeat_ms / 1000
        self._due_s = upkeep_s() + period_s
        pulses = await asyncio.gather(*(self._pulse(host, period_s) for host in silent))
        self.notice_lateness()
        if self._forgiven == forgiven:
            for host, pulse in zip(silent, pulses, strict=True):
                self._judge(host, pulse)

    async def _pulse(self, host: HostView, timeout_s: float) -> Pulse | None:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._fleet.pulse(host.host_id)
        except TimeoutError:
            return None

    def _is_well(self, host: HostView) -> None:
        self._silences.pop(host.host_id, None)
        host.blocked = ""

    def _judge(self, host: HostView, pulse: Pulse | None) -> None:
        if pulse is not None and not pulse.step:
            self._is_well(host)
            return
        sign = str(pulse.step) if pulse is not None else MUTE if host.up else COMING
        silence = self._silences[host.host_id] = silence_after(self._silences.get(host.host_id), sign)
        host.late_at_ms = self._publisher.now_ms()
        if pulse is not None:
            self._blocked(host, pulse, silence)
        if is_unbearable(silence, self._limits):
            self._tasks.start(self._end(host.host_id, _cause(host, silence, self._limits)))

    def _blocked(self, host: HostView, pulse: Pulse, silence: Silence) -> None:
        where = f"{pulse.method} of {pulse.agent}" if pulse.agent else pulse.method
        host.room = 0
        host.blocked = f"its event loop stands in {where}"
        if not is_noteworthy(silence, self._limits) or self._told == (host.host_id, pulse.step):
            return
        self._told = host.host_id, pulse.step
        if pulse.agent:
            self._view.blocks(pulse.agent)  # it is placed alone from now on
        about = {"host_id": host.host_id, "about": [pulse.agent]}
        log.warning("host %s: %s\n%s", host.host_id, host.blocked, pulse.stack, extra=about)
        told = {"host_id": host.host_id, "method": pulse.method, "stack": pulse.stack}
        self._publisher.happened(Channel.SUPERVISOR, EventType.SUPERVISOR_HOST_BLOCKED, pulse.agent, told)


def _cause(host: HostView, silence: Silence, limits: Limits) -> str:
    if silence.sign == COMING:
        return "it did not come up"
    if silence.sign == MUTE:
        return f"it neither answered nor computed at {silence.looks} heartbeats in a row"
    return f"{host.blocked}, and had not turned for {limits.blocked_max_ms} ms"


# ---------------------------------------------------------------- pool


def spec_of(plain: HostNeeds) -> PoolSpec:
    return PoolSpec() if plain is None else PoolSpec.of(*plain[:3], *plain[4:])


def plain_spec(spec: PoolSpec) -> HostNeeds:
    if spec == PoolSpec():
        return None
    num_cpus, resources, runtime_env, labels = spec
    plain = [num_cpus, [list(pair) for pair in resources], runtime_env, False]
    return [*plain, [list(pair) for pair in labels]] if labels else plain


class Pool:
    """All hosts of one supervisor life."""

    def __init__(
        self,
        world: World,
        tasks: Tasks,
        fleet: Fleet,
        view: View,
        sessions: Sessions,
        limits: Limits,
        report: Callable[[Stimulus], None],
        publisher: Publisher,
    ) -> None:
        self._world, self._tasks, self._fleet, self._view, self._limits = world, tasks, fleet, view, limits
        self._sessions, self._report, self._publisher = sessions, report, publisher
        view.elsewhere = fleet.elsewhere
        self.heartbeat = Heartbeat(tasks, fleet, view, sessions, limits, publisher, self._end)
        self.refuse_calls: Callable[[str, HostUnavailable], None] = lambda _pool, _problem: None
        self.awaits_call: Callable[[str], bool] = lambda _pool: False
        self._failed_s: dict[str, float] = {}  # when the last host of a pool failed to come up
        self._not_before_s: dict[str, float] = {}
        self._untold: dict[str, None] = {}  # pools with a failure of which those that wait have not been told
        self._warned: dict[str, str] = {}
        self._idle_since_s: dict[str, float] = {}
        self._ended: dict[
            str, tuple[str, bool]
        ] = {}  # why we ended a host, and whether for nothing that was at work there

    # What was placed on a host that is no survivor is lost.
    async def adopt(self) -> None:
        excused, survivors = self._view.stopped, await self._fleet.survivors()
        for activation in self._view.agents.values():
            if activation.host_id:
                host = self._view.hosts.setdefault(activation.host_id, HostView(activation.host_id, None))
                host.tenants[activation.agent_id] = None
                host.load += 0 if self._view.awaiting.get(activation.agent_id) else 1
        for host_id, spec in survivors.items():
            plain = plain_spec(spec)
            host = self._view.hosts.setdefault(host_id, HostView(host_id, plain))
            host.spec = plain
            host.found = True
            self._tasks.start(self._watch(host_id))
        for host_id, host in self._view.hosts.items():
            host.exclusive = is_exclusive(self._view, host, self._limits)
            if host_id not in survivors:
                self._lost(host_id, STOPPED if excused else WHILE_UNSERVED, is_usual=not survivors, excused=excused)

    # Start the hosts that are wanted now, a few at a time. A pool whose hosts do not come up is tried ever more seldom.
    def ensure(self) -> None:
        self._tell_hindered()
        wants = self._wants()
        self._withdraw(wants)
        now_s = asyncio.get_running_loop().time()
        # Those that wait for nodes are as many as are wanted: an autoscaler brings a node for each at once, not for two at a time. Whether
        # one that was found waits is not known.
        coming = sum(not (host.up or host.waits or host.found) for host in self._view.hosts.values())
        for spec in hosts_wanted(wants):
            if coming >= COMING_MAX:
                return
            if now_s < self._not_before_s.get(pool_key(spec), 0.0) and not self._is_wanted_anew(pool_key(spec), now_s):
                continue
            coming += 1
            host_id = self._world.dice.token()[:12]
            self._view.hosts[host_id] = HostView(host_id, spec)
            told = {"host_id": host_id, "pool": pool_key(spec)}
            self._publisher.happened(Channel.SUPERVISOR, EventType.SUPERVISOR_HOST_SPAWNED, "", told)
            self._tasks.start(self._start(host_id, spec))

    def _wants(self) -> dict[str, Wants]:
        return wants_of(self._view, self._limits, warm=self._sessions.are_attended)

    # Or else an autoscaler brings nodes that nobody needs.
    def _withdraw(self, wants: Mapping[str, Wants]) -> None:
        waiting: dict[str, list[HostView]] = {}
        for host in self._view.hosts.values():
            if host.waits and not (host.up or host.draining or host.tenants):
                waiting.setdefault(pool_key(host.spec), []).append(host)
        for key, hosts in waiting.items():
            kept = max(0, len(hosts) + wants[key].missing)
            for host in hosts[kept:]:
                host.draining = True
                self._tasks.start(self._end(host.host_id, UNWANTED))
            if not (kept or wants[key].waiting):
                self._view.troubles.pop(key, None)

    async def _start(self, host_id: str, spec: HostNeeds) -> None:
        try:
            waits_for = await self._fleet.spawn(host_id, spec_of(spec))
        except HostUnavailable as problem:
            self._failed(host_id, spec, str(problem), is_lack=isinstance(problem, NoSuchNode))
            self._lost(host_id, str(problem))
            return
        host = self._view.hosts.get(host_id)
        if waits_for and host is not None and not host.up:  # it is on its way, so nothing is refused
            host.waits = True
            self._sessions.arrived.set()  # others may be started meanwhile
            self._doubt(spec, PoolTrouble(spec, waits_for, 0, self._publisher.now_ms(), is_lack=True))
        await self._watch(host_id)

    async def _watch(self, host_id: str) -> None:
        is_lack = False
        try:
            cause = await self._fleet.death(host_id)
        except NoSuchNode as problem:
            cause, is_lack = str(problem), True
        cause, excused = self._ended.pop(host_id, (cause, False))
        host = self._view.hosts.get(host_id)
        if host is not None and not host.up and cause != UNWANTED:
            self._failed(host_id, host.spec, cause, is_lack=is_lack)
        self._sessions.drop(host_id)
        self._lost(host_id, cause, excused=excused)

    # hosts that do not come up

    def _failed(self, host_id: str, spec: HostNeeds, cause: str, *, is_lack: bool = False) -> None:
        key, cause = pool_key(spec), cause.replace(host_id, "it").rstrip(".")
        before = self._view.troubles.get(key)
        starts, since_ms = (before.starts, before.since_at_ms) if before is not None else (0, self._publisher.now_ms())
        trouble = PoolTrouble(spec, cause, starts + 1, since_ms, is_lack)
        if before is None:
            self._warned.pop(key, None)
        self._doubt(spec, trouble)
        now_s = asyncio.get_running_loop().time()
        pause_ms = backoff_ms(trouble.starts, self._limits.retry_first_ms, self._limits.retry_most_ms)
        self._failed_s[key], self._not_before_s[key] = now_s, now_s + pause_ms / 1000
        self._untold[key] = None
        asyncio.get_running_loop().call_later(pause_ms / 1000, self._sessions.arrived.set)  # no turn may come by itself
        self._report(Unhosted(key))

    def _doubt(self, spec: HostNeeds, trouble: PoolTrouble) -> None:
        key = pool_key(spec)
        self._view.troubles[key] = trouble
        if trouble.is_plain and self._warned.get(key) != trouble.cause:
            self._warned[key] = trouble.cause
            log.warning("%s", trouble)

    def _tell_hindered(self) -> None:
        # Runs go on when a host comes up. An agent that waits for a run goes on waiting, as its own caller may, unless
        # nothing but another node could help.
        untold, self._untold = self._untold, {}
        for key in untold:
            trouble = hindrance(self._view, key)
            if trouble is None:
                continue
            kind = NoSuchNode if trouble.is_lack else HostUnavailable
            self.refuse_calls(key, kind(f"{trouble}. The call was not made"))
            for run in list(self._hindered(key, trouble)):
                words = f"{trouble}. Run {run.run_id} is kept, and goes on when one can be had; `perdure explain` tells more"
                self._refuse(run, kind(words), also_hosts=trouble.is_lack and not run.attempt)

    def _hindered(self, key: str, trouble: PoolTrouble) -> Iterator[Run]:
        at_fault = is_at_fault(self._view, key)
        for run_id in islice(self._sessions.waiters, LOOK_MAX):
            run = self._view.runs.get(run_id)
            if (
                run is None
                or not run.is_live
                or run.is_placed
                or run.parked
                or run.is_put_off
                or pool_key(run.options.get("pool")) != key
            ):
                continue
            if not (at_fault and run.attempt == run.begun_after):  # such a run is about to fail
                yield run

    def _refuse(self, run: Run, problem: HostUnavailable, *, also_hosts: bool) -> None:
        waiting = self._sessions.waiters.get(run.run_id, {})
        content = [run.agent_type, run.parent, run.digest, True]
        for peer_id in list(waiting):
            session = self._sessions.by_peer.get(peer_id)
            if session is not None and (also_hosts or not session.is_host):
                session.say(Refused(run.run_id, error_to_plain(problem), content))
                del waiting[peer_id]
        if not waiting:
            self._sessions.waiters.pop(run.run_id, None)

    def _is_wanted_anew(self, key: str, now_s: float) -> bool:
        # Something has come to wait since the last failure, and the cause may be mended.
        if key not in self._view.troubles or now_s < self._failed_s.get(key, 0.0) + AGAIN_S:
            return False
        waits = any(
            not session.is_host
            for run in self._hindered(key, self._view.troubles[key])
            for peer_id in self._sessions.waiters.get(run.run_id, ())
            if (session := self._sessions.by_peer.get(peer_id)) is not None
        )
        return waits or self.awaits_call(key)

    async def _end(self, host_id: str, cause: str) -> None:
        self._ended[host_id] = cause, False
        await self._fleet.kill(host_id)

    # Have a host end by itself, with what is at work there.
    def give_up(self, host_id: str, cause: str) -> None:
        self._ended[host_id] = cause, True
        self._sessions.by_peer[host_id].say(RetireHost())

    def _lost(self, host_id: str, cause: str, *, is_usual: bool = False, excused: bool = False) -> None:
        host = self._view.hosts.get(host_id)
        tenants = list(host.tenants) if host is not None else []
        about = {"host_id": host_id, "about": tenants}
        level = logging.WARNING if tenants and not is_usual else logging.INFO
        log.log(level, "host %s has ended: %s", host_id, cause, extra=about)
        told = {"host_id": host_id, "tenants": len(tenants), "cause": cause}
        self._publisher.happened(Channel.SUPERVISOR, EventType.SUPERVISOR_HOST_LOST, "", told)
        self._report(HostLost(host_id, cause, excused))

    @property
    def has_spare(self) -> bool:
        """Whether a host is to leave when it has been empty for long."""
        return bool(self._idle_since_s)

    def retire_worn(self) -> None:
        """Ask an empty host to leave when it has served too many agents, holds too much memory, or has been empty for long.

        Of the pool that is kept warm the last is only for those beyond its number. Others come and go with the code that they serve. What
        is empty stays if another one would be started for it.
        """
        now_s = asyncio.get_running_loop().time()
        self._idle_since_s = {host_id: self._idle_since_s.get(host_id, now_s) for host_id in self._idle()}
        for host in self._view.hosts.values():
            worn = host.worn or host.tenancies >= self._limits.tenancies_max or host.rss_mb >= self._limits.rss_mb_max
            worn &= host.tenancies > 0 or host.found  # or else the next one is no better
            worn |= now_s - self._idle_since_s.get(host.host_id, now_s) >= self._limits.host_idle_ms / 1000
            session = self._sessions.by_peer.get(host.host_id)
            if worn and host.up and not host.draining and not host.tenants and session is not None:
                host.draining = True
                session.say(RetireHost())

    def _idle(self) -> Iterator[str]:
        key = pool_key(with_package(None, self._view.code.warm))
        for name, want in self._wants().items():
            hosts = [host for host in self._view.hosts.values() if pool_key(host.spec) == name]
            spare = spare_hosts(hosts, self._limits) if name == key else [host for host in hosts if not host.tenants]
            yield from islice((host.host_id for host in spare if not host.draining), max(0, -want.missing))


# ---------------------------------------------------------------- nodes that drain
# Nothing of it is durable: what a life has not done its next one does, and what is done twice does no harm. A node that ends sooner than
# it said takes its hosts with it, as every death of a node does.


class NodeDrains:
    """Leaves the nodes of a cluster that drain, step by step (`policies.nodes`).

    Args:
        give_up: ends a host with what is at work there, given the cause.
        move: ends this life, so that the next one begins on another node.
    """

    def __init__(
        self,
        fleet: Fleet,
        view: View,
        sessions: Sessions,
        clock: Clock,
        give_up: Callable[[str, str], None],
        move: Callable[[], None],
    ) -> None:
        view.draining = fleet.draining
        self._fleet, self._view, self._sessions, self._clock = fleet, view, sessions, clock
        self._give_up, self._move = give_up, move
        self._moves_at_ms: dict[tuple[str, int], float] = {}
        self._said: dict[str, DrainStep] = {}  # the last step with each host

    # The supervisor leaves its own node when its hosts have been told.
    def look(self) -> None:
        now_ms, draining = self._clock.now_ms(), dict(self._fleet.draining)
        for node, drain in draining.items():
            key = node, drain.until_ms
            if key not in self._moves_at_ms:
                self._moves_at_ms[key] = moves_at_ms(now_ms, drain.until_ms)
                log.info("node %s drains: %d hosts leave it", node, len(drain.hosts))
            for host in [self._view.hosts[each] for each in drain.hosts if each in self._view.hosts]:
                self._leave(host, node, is_late=now_ms >= self._moves_at_ms[key])
        self._sessions.flush()
        if any(drain.is_here for drain in draining.values()):
            self._move()

    def _leave(self, host: HostView, node: str, *, is_late: bool) -> None:
        host.draining = True
        session, said = self._sessions.by_peer.get(host.host_id), self._said.get(host.host_id)
        if session is None:  # it is told when it has come up
            return
        step = drain_step(is_up=host.up, is_told=said is not None, has_tenants=bool(host.tenants), is_late=is_late)
        if step in (DrainStep.WAIT, said):
            return
        self._said[host.host_id] = step
        match step:
            case DrainStep.LEAVE:
                session.say(Passivate(list(host.tenants)))
            case DrainStep.RETIRE:
                session.say(RetireHost())
            case DrainStep.MOVE:
                self._give_up(host.host_id, f"node {node} is about to end")
