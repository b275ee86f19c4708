"""Decisions about what hosts report, and about hosts that are gone.

Every report carries the incarnation of its agent. A report of an earlier life changes nothing (invariant 9). Nothing is lost by that:
results and inboxes lie in the agent's storage, so the next life reports them again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from perdure.ledger.activation import Activation, HostSpec
from perdure.ledger.errors import StaleIncarnation
from perdure.ledger.facts import (
    AgentLost,
    AgentReleased,
    AlarmSet,
    AttemptLost,
    CallsAsked,
    ChunkEmitted,
    EventTaken,
    Fact,
    MailDelivered,
    MailFailed,
    MilestoneReached,
    ProgressReported,
    RunAborted,
    RunErrored,
    RunInterrupted,
    RunParked,
    RunStarted,
    RunSucceeded,
    RunWaiting,
    UndoBegan,
    UndoPromised,
)
from perdure.ledger.mail import MailEvent
from perdure.ledger.mail import permits as mail_permits
from perdure.ledger.notes import Note, agent_seen, host_gone, host_seen, tenant_seen
from perdure.ledger.requests import abort_awaited, begin_undo, clear
from perdure.ledger.run import Run, run_of
from perdure.ledger.status import InterruptedReason, Undo
from perdure.ledger.stimulus import (
    COLLECTED_NOTHING,
    NOT_RUNNABLE,
    STORAGE_LOST,
    UNDO_FAILED,
    UNFIT,
    UNIMPORTABLE,
    Alarm,
    AskCalls,
    Awake,
    Chunk,
    Clear,
    Ended,
    Handled,
    HostLost,
    HostUp,
    Milestone,
    Progress,
    PromiseUndo,
    Released,
    Took,
    Undoing,
    Unstarted,
    Up,
    Waiting,
)
from perdure.ledger.transitions import permits
from perdure.ledger.view import View
from perdure.policies import Evidence, Fail, Limits, RetryAfter, Seal, backoff_ms, judge


def current(view: View, run_id: str, incarnation: int) -> Run | None:
    """The run, if the report comes from its child's present life."""
    run = view.runs.get(run_id)
    return run if run is not None and _present(view, run.child, incarnation) is not None else None


def at_work(view: View, run_id: str, incarnation: int) -> Run | None:
    run = current(view, run_id, incarnation)
    # One that was tried again has no attempt until it is placed.
    return run if run is not None and run.is_placed else None


def _present(view: View, agent: str, incarnation: int) -> Activation | None:
    life = view.agents.get(agent)
    return life if life is not None and life.incarnation == incarnation and life.host_id else None


def up(view: View, said: Up) -> Iterator[Fact]:
    run = at_work(view, said.run_id, said.incarnation)
    if run is not None and permits(run.status, RunStarted):
        yield RunStarted(run.run_id, run.attempt)


def progress(view: View, said: Progress) -> Iterator[Fact]:
    run = at_work(view, said.run_id, said.incarnation)
    if run is None or not permits(run.status, ProgressReported):
        return
    yield ProgressReported(run.run_id, run.attempt, said.body, said.sequence)
    caller = _caller(view, run)
    if caller is not None and permits(caller.status, ProgressReported):
        yield ProgressReported(caller.run_id, caller.attempt, said.body, relayed=True)


def milestone(view: View, said: Milestone) -> Iterator[Fact]:
    # One that an earlier attempt, or an earlier execution of the same call, has reached is an echo.
    run = at_work(view, said.run_id, said.incarnation)
    if run is None or not permits(run.status, MilestoneReached):
        return
    told = said.name, said.occurrence, said.body, said.sequence, said.source
    if any(
        (name, by) == (said.name, said.source) and nth >= said.occurrence for _, name, nth, _, _, by in run.milestones
    ):
        return
    yield MilestoneReached(run.run_id, run.attempt, len(run.milestones), *told)
    caller = _caller(view, run)
    if caller is not None and permits(caller.status, MilestoneReached):
        number, told = len(caller.milestones), (said.name, said.occurrence, said.body, 0, run.run_id)
        yield MilestoneReached(caller.run_id, caller.attempt, number, *told, relayed=True)


def _caller(view: View, run: Run) -> Run | None:
    # The run whose child called this tool. What the tool reports, from a host of its own, the child reports too (seed 003), whatever has
    # become of the child's process meanwhile: the tool's own life is fenced.
    caller = view.runs.get(run.parent_run) if run.options.get("relays") else None
    return caller if caller is not None and caller.child == run.parent else None


def chunk(view: View, said: Chunk) -> Iterator[Fact]:
    run = at_work(view, said.run_id, said.incarnation)
    if run is not None and permits(run.status, ChunkEmitted) and (run.attempt, said.number) > run.chunk:  # else an echo
        yield ChunkEmitted(run.run_id, run.attempt, said.number, said.body)


def promise_undo(view: View, said: PromiseUndo) -> Iterator[Fact]:
    # The step begins only if the run is not over, and not being undone: else nobody would undo it.
    run = at_work(view, said.run_id, said.incarnation)
    if run is None or run.is_undoing or not permits(run.status, UndoPromised):
        raise StaleIncarnation(
            said.run_id, "the run is over, or this attempt at it is, so it begins no step that has an undo"
        )
    if not run.undo:
        yield UndoPromised(run.run_id, run.attempt)


def undoing(view: View, said: Undoing) -> Iterator[Fact]:
    # The child undoes its steps in the same life: this attempt is the first that undoes.
    run = at_work(view, said.run_id, said.incarnation)
    if run is None or run.undo != Undo.PROMISED or not permits(run.status, UndoBegan):
        return
    yield UndoBegan(run.run_id, run.attempt - 1, Undo.ERROR, said.error, said.trace)
    yield from abort_awaited(view, run)


def ended(view: View, said: Ended, limits: Limits) -> Iterator[Fact]:
    """A child returned or raised: the hard end of its run, unless the run has one. One that was told to stop, so that its steps are undone,
    has lost its say."""
    run = current(view, said.run_id, said.incarnation)
    if run is None:
        return
    if run.stops_to_undo:
        if said.released:
            yield AttemptLost(run.run_id, run.attempt, "it was told to stop", view.at_ms)
        return
    has_lost_its_say = said.error is not None and not run.is_placed  # the run was tried again meanwhile
    if has_lost_its_say or not permits(run.status, RunSucceeded):
        if said.released:
            yield AgentReleased(run.child, said.incarnation, said.sequence)
        return
    if run.is_undoing and run.undo != Undo.ERROR:
        yield from _undone(view, run, said)
        return
    if said.error is not None:
        yield RunErrored(run.run_id, run.attempt, said.error, said.released, said.trace, said.sequence)
    else:
        large = said.output is not None and len(said.output) > limits.inline_bytes_max
        output = None if large else said.output
        yield RunSucceeded(run.run_id, run.attempt, output, said.summary, said.released, large, said.sequence)
    yield from abort_awaited(view, run)


def _undone(view: View, run: Run, said: Ended) -> Iterator[Fact]:
    is_cleared = run.undo == Undo.CLEARED
    yield RunAborted(run.run_id, run.error)
    if said.released:
        yield AgentReleased(run.child, said.incarnation, said.sequence)
    yield from abort_awaited(view, run)
    if is_cleared:
        yield from clear(view, Clear([run.run_id]))


def unstarted(view: View, said: Unstarted, at_ms: int, limits: Limits) -> Iterator[Fact]:
    """A host could not start an attempt. If the class has vanished since the first attempt, or the storage has lost
    something, the run is interrupted: it may come back. If the run cannot be entered as it stands, or its steps cannot be undone, it is
    parked."""
    run = current(view, said.run_id, said.incarnation)
    if run is None:
        return
    if not run.is_live or not run.is_placed:
        yield AgentReleased(run.child, said.incarnation)
    elif run.stops_to_undo:
        yield from lose(view, view.agents[run.child], "it was told to stop", at_ms, limits, is_clean=True)
    elif said.cause in (UNFIT, UNDO_FAILED) or (run.is_undoing and said.cause in (UNIMPORTABLE, NOT_RUNNABLE)):
        yield RunParked(run.run_id, run.attempt, said.error)
    elif said.cause == COLLECTED_NOTHING:
        error = f"{said.error}; the last time: {run.cause}"
        if run.undo:
            yield AttemptLost(run.run_id, run.attempt, run.cause, at_ms)
            yield from begin_undo(view, run, Undo.ERROR, error)
        else:
            yield RunErrored(run.run_id, run.attempt, error, released=True)
            yield from abort_awaited(view, run)
    elif said.cause in (UNIMPORTABLE, NOT_RUNNABLE) and run.attempt == 1:
        yield RunErrored(run.run_id, run.attempt, said.error, released=True)
    elif said.cause in (UNIMPORTABLE, NOT_RUNNABLE, STORAGE_LOST):
        reason = InterruptedReason.NOT_TAILABLE if said.cause == NOT_RUNNABLE else InterruptedReason.INSPECT_FAILED
        yield AttemptLost(run.run_id, run.attempt, said.error, at_ms)
        yield RunInterrupted(run.run_id, reason, None, said.error)
    else:
        yield from lose(view, view.agents[run.child], said.error, at_ms, limits, is_clean=True)


def waiting(view: View, said: Waiting, at_ms: int, limits: Limits) -> Iterator[Fact]:
    # The run gives up its place, and is entered again when a wait is over.
    run = current(view, said.run_id, said.incarnation)
    if run is None:
        return
    is_at_work = run.is_placed and not (run.teardown or run.is_undoing) and run.attempt == said.attempt
    if is_at_work and permits(run.status, RunWaiting):
        until_ms = said.deadline_ms if said.by_wall else at_ms + max(said.after_ms, 0)
        until_ms = until_ms if math.isinf(until_ms) else math.ceil(until_ms)
        yield RunWaiting(
            run.run_id, run.attempt, said.events, until_ms, said.by_wall, said.deadline_ms, said.released, said.sequence
        )
    elif said.released:
        yield from released(view, Released(run.child, said.incarnation, said.sequence), at_ms, limits)


def took(view: View, said: Took) -> Iterator[Fact]:
    run, mail = current(view, said.run_id, said.incarnation), view.mail.get(said.mail_id)
    if run is None or mail is None or mail.run_id != run.run_id or not permits(run.status, EventTaken):
        return
    yield EventTaken(run.run_id, run.attempt, said.mail_id, said.after, said.sequence)


def released(view: View, said: Released, at_ms: int, limits: Limits) -> Iterator[Fact]:
    # If its run was being torn down, the give-up has waited for this.
    activation = _present(view, said.agent_id, said.incarnation)
    if activation is None:
        return
    run = view.runs.get(activation.run_id)
    if run is not None and run.is_live and run.is_placed and not run.teardown:
        cause = "it was told to stop" if run.stops_to_undo else "its host let go of it"
        yield from lose(view, activation, cause, at_ms, limits, is_clean=True)
        return
    yield AgentReleased(said.agent_id, said.incarnation, said.sequence)
    if run is not None and run.is_live and run.teardown:
        yield from seal(view, run, still_running=False)


def seal(view: View, run: Run, *, still_running: bool) -> Iterator[Fact]:
    yield RunInterrupted(run.run_id, run.teardown, still_running, f"the parent gave up: {run.teardown}")
    yield from abort_awaited(view, run)


def alarm(view: View, said: Alarm) -> Iterator[Fact]:
    # An agent says so before its goodbye on the same link, so no alarm is lost when it sleeps.
    activation = _that_stays(view, said)
    if activation is not None and (said.at_ms != activation.alarm_at_ms or activation.owes):
        yield AlarmSet(said.agent_id, said.at_ms, _home(view, said), said.sequence)


def ask_calls(view: View, said: AskCalls) -> Iterator[Fact]:
    # A chat says it again in each of its lives, so a report that was lost comes again.
    activation = _that_stays(view, said)
    if activation is not None and said.calls != (activation.calls or {}):
        yield CallsAsked(said.agent_id, said.calls, _home(view, said), said.sequence)


def _that_stays(view: View, said: Alarm | AskCalls) -> Activation | None:
    # The life that says so, if it is the present one of an agent that is not being deleted.
    own = run_of(view.runs, said.agent_id)
    if view.doomed_by(said.agent_id) or (own is not None and own.cleared):
        return None
    return _present(view, said.agent_id, said.incarnation)


def _home(view: View, said: Alarm | AskCalls) -> HostSpec | None:
    own = run_of(view.runs, said.agent_id)
    return said.home if said.home is not None or own is None else own.options.get("pool")


def handled(view: View, said: Handled, at_ms: int, limits: Limits) -> Iterator[Fact]:
    """A recipient's handlers committed their effects, or raised."""
    activation = view.agents.get(said.agent_id)
    if activation is None or activation.incarnation != said.incarnation:
        return
    known = [key for key in said.mail_ids if key in view.mail and view.mail[key].recipient == said.agent_id]
    if known:
        yield MailDelivered(said.agent_id, known, said.sequence)
    for key, error, park in said.failures:
        mail = view.mail.get(key)
        if mail is None or not mail_permits(mail.state, MailEvent.FAILED):
            continue
        last = park or mail.attempts + 1 >= limits.handler_attempts_max
        pause = backoff_ms(mail.attempts + 1, limits.retry_first_ms, limits.retry_most_ms)
        yield MailFailed(key, error[: limits.error_chars_max], None if last else at_ms + pause)


def awake(view: View, said: Awake) -> Iterator[Note]:
    activation = view.agents.get(said.agent_id)
    if activation is not None and activation.incarnation == said.incarnation:
        yield agent_seen(said.agent_id)


def host_up(view: View, said: HostUp, at_ms: int, limits: Limits) -> Iterator[Fact | Note]:
    # An agent that the host had and no longer knows is lost; one that it never began is started again.
    host = view.hosts.get(said.host_id)
    if host is None:
        return
    yield host_seen(said.host_id)
    lives = dict(said.tenants)
    for agent in list(host.tenants):
        activation = view.agents[agent]
        run = view.runs.get(activation.run_id)
        here = lives.get(agent) == activation.incarnation or activation.incarnation in said.farewells
        yield tenant_seen(agent)
        if not here and (run.confirmed if run is not None else activation.confirmed):
            yield from lose(view, activation, "its host does not know it", at_ms, limits)


def host_lost(view: View, said: HostLost, at_ms: int, limits: Limits) -> Iterator[Fact | Note]:
    host = view.hosts.get(said.host_id)
    if host is None:
        return
    cause = f"its host {'was stopped' if said.excused else 'died'} ({said.cause})"
    for agent in list(host.tenants):
        yield from lose(view, view.agents[agent], cause, at_ms, limits, excused=said.excused)
    yield host_gone(said.host_id, at_ms)


def lose(
    view: View,
    activation: Activation,
    cause: str,
    at_ms: int,
    limits: Limits,
    *,
    is_clean: bool = False,
    excused: bool = False,
) -> Iterator[Fact]:
    """An agent is gone in the middle of its work. The table in `policies.recovery` decides about its run. If no attempt follows, the agent
    is woken, because it may owe other work; not so after a goodbye (`is_clean`), which tells what it owes."""
    run = view.runs.get(activation.run_id)
    if run is not None and run.cleared:  # it is being deleted, so it owes nothing
        yield AgentReleased(activation.agent_id, activation.incarnation)
        return
    if run is None or not run.is_live or not run.is_placed:
        pause = backoff_ms(activation.losses, limits.retry_first_ms, limits.retry_most_ms) if activation.losses else 0
        if run is not None:
            yield AgentReleased(activation.agent_id, activation.incarnation)
        yield AgentLost(activation.agent_id, activation.incarnation, at_ms + pause, cause, excused)
        return
    verdict = judge(_evidence(run, limits, excused=excused), limits)
    pause = verdict.after_ms if isinstance(verdict, RetryAfter) else 0
    yield AttemptLost(run.run_id, run.attempt, cause, at_ms + pause, excused)
    if isinstance(verdict, Fail) and run.is_undoing:
        yield RunParked(
            run.run_id, run.attempt, f"its steps could not be undone: {verdict.why}; the last time: {cause}"
        )
    elif isinstance(verdict, Fail) and run.undo:
        yield from begin_undo(view, run, Undo.ERROR, f"{verdict.why}; the last time: {cause}")
        return
    elif isinstance(verdict, Fail):
        yield RunErrored(run.run_id, run.attempt, f"{verdict.why}; the last time: {cause}", released=True)
        yield from abort_awaited(view, run)
    elif isinstance(verdict, Seal):
        yield from seal(view, run, still_running=False)
    if not is_clean and not isinstance(verdict, RetryAfter):
        yield AgentLost(run.child, run.incarnation, at_ms, cause, excused)


def _evidence(run: Run, limits: Limits, *, excused: bool) -> Evidence:
    return Evidence(
        torn_down=bool(run.teardown),
        attempt=run.counted_attempts,
        attempts=run.attempts(limits.attempts_max),
        losses=0 if excused else run.losses + 1,
        collected=(run.collect or run.is_undoing) and not excused,
    )
