"""One attempt at a run, from the moment a host is given it to what is reported of it.

What a death at each line costs. Before the result is committed: the attempt, and what was not stepped, stashed or written. After it:
nothing, because the next life finds the result and reports it without running again. A child that never wrote anything has no storage; its
report itself makes its result durable, and until then it has not finished.
"""

from __future__ import annotations

import asyncio
import inspect
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from perdure.actors.code.author_call import in_words, sendable, traced, tried, tried_now
from perdure.actors.code.signatures import run_shapes
from perdure.actors.life.activity import ACTIVITY, Activity
from perdure.actors.life.life import Life, Ready
from perdure.actors.life.run_context import RunContext
from perdure.actors.life.undoing import has_undos, kept_undoing, undo_steps
from perdure.actors.life.waits import entering
from perdure.actors.ports import KillPoint
from perdure.actors.tasks import RANK, self_cancelled
from perdure.ledger import (
    COLLECTED_NOTHING,
    NOT_RUNNABLE,
    START_FAILED,
    STORAGE_LOST,
    UNDO_FAILED,
    UNFIT,
    UNIMPORTABLE,
    Ended,
    MigrationFailed,
    StaleIncarnation,
    StorageLost,
    StorageTooNew,
    Undo,
    Undoing,
    UnknownAgentType,
    Unstarted,
    Up,
    Waiting,
    pack,
    unpack,
)
from perdure.policies import Rank, run_span


class StoredOutcome(NamedTuple):
    """What `run` came to, as its storage keeps it."""

    output: bytes | None
    summary: str
    error: str | None
    trace: str = ""
    attempt: int = 0


async def carry(
    life: Life, ready: Ready, run: RunContext, body: bytes, after: int, undo: list[str] | None = None, *, collect: bool
) -> Ended | Unstarted | Waiting | None:
    """Carry one attempt to its end, or take the result that an earlier one left. None if it counts for nothing: it was told to stop.
    `Waiting` if all that it does waits.

    What an attempt up to `after` failed with does not count: the run was tried again since. With `undo` the run is over, and its steps
    are undone; it says how the run ends then, and why.
    """
    kept, problem = await tried(_kept(life, run.run_id)) if run.attempt > 1 else (None, None)
    if problem is not None:
        return _stopped_by(life, run, problem)
    counts = kept is not None and (kept.attempt > after or not after)
    is_true = kept is not None and kept.error is None and (undo is None or undo[0] == Undo.ERROR)
    if kept is not None and (counts or is_true):
        return _ended(life, run, kept)
    begun = kept_undoing(life, run.run_id) if run.attempt > 1 else None
    if begun is not None or undo is not None:
        return await _undo(life, ready, run, begun or [undo[1] if undo else "", ""])
    if collect:
        why = "its child was lost in every attempt that it may have, and left no result"
        return Unstarted(run.run_id, life.incarnation, COLLECTED_NOTHING, why)
    _, problem = await tried(ready())
    if problem is not None:
        return _stopped_by(life, run, problem)
    agent_class = type(life.agent)
    if not callable(getattr(life.agent, "run", None)):
        return Unstarted(run.run_id, life.incarnation, NOT_RUNNABLE, f"{agent_class.__name__} has no `run` method")
    value, problem = tried_now(partial(run_shapes(agent_class).decode, body))
    if problem is not None:  # newer code takes something else: no failure of the run
        why = f"its stored input does not fit what `run` of {agent_class.__name__} takes now: {in_words(problem)}"
        return Unstarted(run.run_id, life.incarnation, UNFIT, why)
    return await _run(life, run, value)


async def _undo(life: Life, ready: Ready, run: RunContext, why: list[str]) -> Ended | Unstarted | None:
    _, problem = await tried(ready())
    if problem is not None:
        return _stopped_by(life, run, problem)
    life.services.soon_up(Up(run.run_id, life.incarnation))
    RANK.set(Rank.WORK)
    report = await _undo_and_end(life, run, StoredOutcome(None, "", why[0], why[1], run.attempt))
    run.close()
    return report


async def _undo_and_end(life: Life, run: RunContext, outcome: StoredOutcome) -> Ended | Unstarted | None:
    """Undo what the steps have done, and only then have the run end. One that cannot be undone is for a person."""
    if not life.has_storage:  # no step was begun
        return _ended(life, run, outcome)
    failed, problem = await tried(undo_steps(life, run, [outcome.error, outcome.trace], pack(outcome)))
    if life.is_leaving or isinstance(problem, StaleIncarnation):
        return None
    if isinstance(problem, StorageLost):
        return _stopped_by(life, run, problem)
    if failed is not None or problem is not None:
        words = failed.words if failed is not None else in_words(problem or RuntimeError())
        return Unstarted(run.run_id, life.incarnation, UNDO_FAILED, words)
    life.faults.at(KillPoint.AFTER_RESULT_COMMIT, run.run_id)
    return _ended(life, run, outcome)


async def _kept(life: Life, run_id: str) -> StoredOutcome | None:
    kept = await life.written(lambda: life.storage.result(run_id)) if life.has_storage else None
    return None if kept is None else StoredOutcome(*unpack(kept))


def _stopped_by(life: Life, run: RunContext, problem: Exception) -> Unstarted:
    # its code cannot be imported, its `on_start` or `migrate` raised, or its storage is lost, which may be found out while it works
    life.log("run", f"coming up for attempt {run.attempt} at run {run.run_id}", problem, run.run_id)
    return Unstarted(run.run_id, life.incarnation, _cause(problem), in_words(problem))


def _cause(problem: Exception) -> str:
    if isinstance(problem, UnknownAgentType):
        return UNIMPORTABLE
    if isinstance(problem, MigrationFailed | StorageTooNew):
        return UNFIT
    return STORAGE_LOST if isinstance(problem, StorageLost) else START_FAILED


async def _run(life: Life, run: RunContext, value: object) -> Ended | Unstarted | Waiting | None:
    life.services.soon_up(Up(run.run_id, life.incarnation))
    RANK.set(Rank.WORK)
    ACTIVITY.set(Activity(run.run_id, run_id=run.run_id, run=run))
    telemetry = life.services.world.telemetry
    if telemetry.is_on:
        telemetry.enter(run_span(run.above, run.run_id, run.attempt))
    life.faults.at(KillPoint.BEFORE_RUN, run.run_id)
    run.begin()
    outcome = await _execute(life, run, value)
    waiting = run.awaited
    run.close()  # before the end is reported: progress that came after it would be of no run
    if life.is_leaving and (outcome.error is not None or not life.has_place):
        return None  # it was told to stop; only a true result still counts (spec W-55), and only in the life that has the place
    if waiting is not None:
        return waiting
    if outcome.error is not None and life.is_storage_open and has_undos(run):
        life.push(Undoing(run.run_id, life.incarnation, outcome.error, outcome.trace))
        return await _undo_and_end(life, run, outcome._replace(attempt=run.attempt))
    problem: Exception | None = None
    if life.is_storage_open:  # otherwise its report makes the result durable
        _, problem = tried_now(life.storage.check)
        if not isinstance(problem, StorageLost):
            _, problem = await tried(_keep(life, run.run_id, outcome._replace(attempt=run.attempt)))
    if isinstance(problem, StaleIncarnation):
        return None
    if isinstance(problem, StorageLost):
        return _stopped_by(life, run, problem)
    if problem is not None:
        words = f"its result could not be stored: {in_words(problem)}"
        if life.is_storage_open and run.has_promised:  # nor could an undo be; a person decides
            return Unstarted(run.run_id, life.incarnation, UNDO_FAILED, words)
        outcome = StoredOutcome(None, "", words)
    return _ended(life, run, outcome)


async def _keep(life: Life, run_id: str, outcome: StoredOutcome) -> None:
    # Once it is durable, a death costs nothing. A chat remembers its result by its turn, if it may be asked again.
    if life.agent._perdure_recalls_results and life.may_enter_again:
        return
    if life.storage.exists:
        with suppress(asyncio.CancelledError):  # it is durable, so it counts although this life was told to stop
            await life.written(partial(life.storage.save_result, run_id, pack(outcome)))
        life.faults.at(KillPoint.AFTER_RESULT_COMMIT, run_id)


async def _execute(life: Life, run: RunContext, value: object) -> StoredOutcome:
    try:
        done, problem = await tried(_work(life, run, value))
    except asyncio.CancelledError:
        if life.is_leaving:
            raise
        done, problem = None, self_cancelled()
    if problem is None:
        assert done is not None
        return done
    if run.awaited is not None:
        return StoredOutcome(None, "", None)
    life.log("run", f"attempt {run.attempt} at run {run.run_id}", problem, run.run_id)
    most = life.limits.error_chars_max
    return StoredOutcome(None, "", in_words(problem, most), traced(problem, most))


async def _work(life: Life, run: RunContext, value: object) -> StoredOutcome:
    agent = life.agent
    entered = run_shapes(type(agent))
    arguments = entered.arguments(value, run)
    output = await life.call(entering(agent.run, run), *arguments.args, **arguments.kwargs)
    body = entered.gives.encode("output", output, life.limits.output_bytes_max)
    summary = agent.get_agent_tool_summary(output, run)
    if type(summary) is not str:
        summary = str(await summary if inspect.isawaitable(summary) else summary)
    return StoredOutcome(body, sendable(summary), None)


def _ended(life: Life, run: RunContext, outcome: StoredOutcome) -> Ended:
    life.faults.at(KillPoint.BEFORE_REPORT, run.run_id)
    return Ended(run.run_id, life.incarnation, *outcome[:3], trace=outcome.trace)
