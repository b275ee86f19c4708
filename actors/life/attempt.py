"""One attempt at a run, from the moment a host is given it to what is reported of it.

What a death at each line costs. Before the result is committed: the attempt, and what was not stepped, stashed or written. After it:
nothing, because the next life finds the result and reports it without running again. A child that never wrote anything has no storage; its
report itself makes its result durable, and until then it has not finished.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from perdure.actors.code.author_call import in_time, in_words, name_of_method, sendable, traced, tried, tried_now
from perdure.actors.code.naming import load_function
from perdure.actors.code.signatures import run_shapes
from perdure.actors.life.activity import ACTIVITY, Activity
from perdure.actors.life.life import Life, Ready
from perdure.actors.life.run_context import RunContext
from perdure.actors.life.steps import RECORD, step_name
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
    taken_out,
    unpack,
)
from perdure.policies import Rank, StepRecord, StepVerdict, default_retries, full_jitter_ms, look_at_step, run_span

_UNDOING: Final = "\0undoing"  # among the steps: why their undoing has begun, as the error and its traceback
_UNDO: Final = "\0undo\0"  # before the key of a step: the tries of its undo


# What `run` came to, as its storage keeps it.
class StoredOutcome(NamedTuple):
    output: bytes | None
    summary: str
    error: str | None
    trace: str = ""
    attempt: int = 0


async def carry(
    life: Life, ready: Ready, run: RunContext, body: bytes, after: int, undo: list[str] | None, *, collect: bool
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
    begun = _kept_undoing(life, run.run_id) if run.attempt > 1 else None
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
    if outcome.error is not None and life.is_storage_open and _has_undos(run):
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
    return StoredOutcome(None, "", run.in_words(problem, most), traced(problem, most))


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


# ---------------------------------------------------------------- undoing
# Undoing the steps of a run that fails for good or was cancelled: in reverse, each once in effect, whatever dies meanwhile.
#
# That the run is being undone is durable in its child's storage before the first undo: an attempt after that does not enter `run`, and
# goes on with what is left. A step that is undone is forgotten, in one commit with its record: so it is not undone twice, and a run that is
# tried again does it anew. What undoes a step is kept by name, because the code that gave it is not entered again.
#
# | the job of the step | what happens |
# |---|---|
# | gave a value | the undo is called with it |
# | raised | nothing: it did nothing |
# | had begun when a death, a cancellation or its time limit came; with a probe that says False | nothing |
# | the same, with a probe that gives a value | the undo is called with that |
# | the same, with a probe that says None, or raises | the probe is asked again after a pause |
# | the same, without a probe | the undo is called with None: it must bear to be called for what never happened |
#
# An undo (or its probe) that raises, or does not return within `Limits.handler_timeout_ms`, is called again after a pause; the tries and
# the next instant are remembered. After the last of them the run is parked, with the error; a person's `perdure retry` tries again.


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
    # One that cannot be undone is for a person.
    if not life.has_storage:  # no step was begun
        return _ended(life, run, outcome)
    failed, problem = await tried(_undo_steps(life, run, [outcome.error, outcome.trace], pack(outcome)))
    if life.is_leaving or isinstance(problem, StaleIncarnation):
        return None
    if isinstance(problem, StorageLost):
        return _stopped_by(life, run, problem)
    if problem is not None:
        failed = in_words(problem)
    if failed:
        return Unstarted(run.run_id, life.incarnation, UNDO_FAILED, failed)
    life.faults.at(KillPoint.AFTER_RESULT_COMMIT, run.run_id)
    return _ended(life, run, outcome)


def _kept_undoing(life: Life, run_id: str) -> list[str] | None:
    body = life.steps(run_id).get(_UNDOING)
    return unpack(body) if body else None


def _has_undos(run: RunContext) -> bool:
    return any(record.undo is not None for _, record in run.records())


async def _undo_steps(life: Life, run: RunContext, why: list[str | None], outcome: bytes) -> str:
    """Undo what the steps of a run have done, and remember then how it ends. Returns what could not be undone, and why, in words."""
    if _kept_undoing(life, run.run_id) is None:
        await life.written(partial(_save, life, run.run_id, {_UNDOING: pack(why)}))
        await life.services.until_durable()
    life.faults.at(KillPoint.MID_RUN, "undoing")
    steps = [(record.number, key, record) for key, record in run.records() if record.undo is not None]
    for _, key, record in sorted(steps, reverse=True):
        failed = await _undo_step(life, run, key, record)
        if failed:
            return failed
    await life.written(partial(_end, life, run.run_id, outcome))
    return ""


def _end(life: Life, run_id: str, outcome: bytes) -> None:
    with life.storage.transaction() as transaction:
        transaction.save_result(run_id, outcome)
        _save(life, run_id, {_UNDOING: b""})


async def _undo_step(life: Life, run: RunContext, key: str, record: StepRecord) -> str:
    retries, most_ms = default_retries(life.limits), life.limits.handler_timeout_ms
    tries = run.counted(_UNDO + key)
    while True:
        verdict = look_at_step(tries, life.now_ms(), retries.attempts_max, has_probe=False)
        if verdict is StepVerdict.FAILED:
            what = f"the undo of step {step_name(key)!r} failed in {tries.failures} tries, and the steps before it are not undone"
            return f"{what}: {tries.error}"
        if verdict is StepVerdict.PAUSE:
            await asyncio.sleep((tries.next_try_ms - life.now_ms()) / 1000)
            continue
        ACTIVITY.set(Activity(f"{run.run_id}/undo/{key}".replace("\0", "/"), run_id=run.run_id, run=run))
        life.faults.at(KillPoint.MID_RUN, f"undo {step_name(key)}")
        late = TimeoutError(f"it did not return within {most_ms} ms (handler_timeout_ms)")
        _, problem = await tried(in_time(life.bounded(_undone(life, run, key, record)), most_ms, late))
        life.faults.at(KillPoint.MID_RUN, f"undo {step_name(key)} done")
        if problem is None:
            forgotten = {key: b"", RECORD + key: b"", _UNDO + key: b""}
            await life.written(partial(_save, life, run.run_id, forgotten))
            return ""
        life.log("run", f"undoing step {step_name(key)!r} of run {run.run_id}", problem, run.run_id)
        failures = tries.failures + 1
        pause_ms = full_jitter_ms(failures, retries.first_ms or 0, retries.most_ms or 0, life.dice.roll())
        error = in_words(problem, life.limits.error_chars_max)
        tries = tries._replace(failures=failures, next_try_ms=life.now_ms() + pause_ms, error=error)
        await life.written(partial(_save, life, run.run_id, {_UNDO + key: pack(list(tries))}))


async def _undone(life: Life, run: RunContext, key: str, record: StepRecord) -> None:
    known = life.steps(run.run_id).get(key)
    value = taken_out(unpack(known)[1]) if known else None
    if not known and not record.began:
        return
    if not known and record.probe is not None:
        value = await life.call(_found(life, "probe", record.probe))
        if value is False:
            return
        if value is None:
            raise RuntimeError("its probe cannot tell whether it took effect")
    assert record.undo is not None
    await life.call(_found(life, "undo", record.undo), value)


def _found(life: Life, field: str, reference: Sequence[object]) -> Callable[..., object]:
    kind, name, bound = reference
    arguments, keywords = taken_out(bound)
    method = name_of_method(life.agent, field, name) if kind == "method" else ""
    function = getattr(life.agent, method) if method else load_function(name, life.code_dir)
    return partial(function, *arguments, **keywords) if arguments or keywords else function


def _save(life: Life, run_id: str, bodies: dict[str, bytes]) -> None:
    with life.storage.transaction() as transaction:
        for name, body in bodies.items():
            transaction.save_step(run_id, name, body)
        transaction.then(lambda: life.steps(run_id).update(bodies))
