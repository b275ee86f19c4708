"""What keeps a run, or a call, from going on until a person or another node comes, and who waits for it meanwhile.

Nothing of it is recorded: it is read from the view whenever someone is to be told.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from perdure.ledger.activation import pool_key
from perdure.ledger.indexes import LineKey
from perdure.ledger.placements import hindrance, is_at_fault
from perdure.ledger.run import Run, run_of
from perdure.ledger.view import View

HOLD_UPS_MAX: Final = 1_000
"""How many of each kind are looked at together; of those that are parked or paused, the newest."""
_EXPLAINED: Final = "`perdure explain {}` says what can be done"


class HoldUp(NamedTuple):
    """`agent` is where it is: the child of the run or, if there is none, the agent that is called."""

    agent: str
    run: Run | None
    what: str
    why: str
    advice: str

    def told(self, waiting: str, its_run: Run | None) -> str:
        """In words, for those that wait for an agent that is `waiting` for this one, or is this one."""
        subject = _named(self.agent, self.run)
        between = "" if waiting == self.agent else f", for which {_named(waiting, its_run)} waits,"
        why = " ".join(self.why.split()).rstrip(".")  # one line, whatever an error says
        return f"{subject}{between} {self.what}, and you go on waiting: {why}. {self.advice}"


def hold_ups(view: View, awaited: Iterable[str], called: Iterable[str]) -> Iterator[HoldUp]:
    """What is held up among the runs that there are, and those of the `called` agents that are on no host. Of many runs, those that are
    `awaited` are looked at in any case."""
    for run in _these(view, view.parked, awaited):
        yield _of_run(run, "is parked", run.parked, _EXPLAINED)
    for run in _these(view, view.paused, awaited):
        if not run.is_placed:  # otherwise it has yet to come to its next step
            yield _of_run(run, "is paused", "nothing of it goes on meanwhile", "`perdure resume {}` lets it go on")
    troubles = {key: found for key in view.troubles if (found := hindrance(view, key)) is not None}
    for key, trouble in troubles.items():
        for run in _queued(view, key):
            yield _of_run(run, "waits for a host", trouble.told(), _EXPLAINED)
    for agent in called if troubles else ():
        missed = troubles.get(pool_key(view.home_of(agent)))
        if missed is not None:
            yield HoldUp(agent, None, "waits for a host", missed.told(), "`perdure ps` tells more")


def unheeded(view: View, lives: Iterable[tuple[str, int]]) -> Iterator[HoldUp]:
    """What waits for the end of these lives, which were told to stop and go on."""
    for agent, incarnation in lives:
        life, run = view.agents.get(agent), live_run(view, agent)
        if life is not None and life.host_id and life.incarnation == incarnation:
            why = f"it was told to stop on host {life.host_id}, and its code does not let itself be cancelled"
            advice = f"`perdure kill host {life.host_id}` ends all that is at work there"
            yield HoldUp(agent, run, "cannot go on", why, advice)


def _named(agent: str, run: Run | None) -> str:
    return f"agent {agent!r}" if run is None else f"run {run.run_id!r}"


def _these(view: View, held: dict[str, None], awaited: Iterable[str]) -> Iterator[Run]:
    if held:
        found = dict.fromkeys(islice(reversed(held), HOLD_UPS_MAX))
        found.update((run_id, None) for run_id in awaited if run_id in held)
        yield from (view.runs[run_id] for run_id in found)


def _queued(view: View, key: str) -> Iterator[Run]:
    at_fault = is_at_fault(view, key)
    for exclusive in (False, True):
        for run_id in islice(view.queues.all_of(LineKey(key, exclusive)), HOLD_UPS_MAX):
            run = view.runs[run_id]
            if not (at_fault and run.attempt == run.begun_after):  # such a run is about to fail
                yield run


def _of_run(run: Run, what: str, why: str, advice: str) -> HoldUp:
    return HoldUp(run.child, run, what, why, advice.format(shlex.quote(run.run_id)))


def all_waiting(view: View, agent: str, callers: Callable[[str], Iterable[str]]) -> Iterator[str]:
    """The agent, and all agents that wait for it, at first or second hand: that await its run, or whose runs are to begin after that. Of
    one that has no run its `callers` may wait."""
    found = {agent: None}
    line = [agent]
    for each in line:
        yield each
        run = live_run(view, each)
        waiting = callers(each) if run is None else _waiting(view, run)
        more = dict.fromkeys(other for other in waiting if other not in found)
        found.update(more)
        line += more


def live_run(view: View, agent: str) -> Run | None:
    """The live run whose child this agent is."""
    run = run_of(view.runs, agent)
    return run if run is not None and run.is_live else None


def _waiting(view: View, run: Run) -> Iterator[str]:
    if run.parent and run.is_awaited:
        yield run.parent
    for run_id in view.sources.get(run.run_id, ()):
        other = view.runs[run_id]
        if other.waits_for_others:
            yield other.child
