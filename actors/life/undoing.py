"""Undoing the steps of a run that fails for good or was cancelled: in reverse, each once in effect, whatever dies meanwhile.

That the run is being undone is durable in its child's storage before the first undo: an attempt after that does not enter `run`, and
goes on with what is left. A step that is undone is forgotten, in one commit with its record: so it is not undone twice, and a run that is
tried again does it anew. What undoes a step is kept by name, because the code that gave it is not entered again.

| the job of the step | what happens |
|---|---|
| gave a value | the undo is called with it |
| raised | nothing: it did nothing |
| had begun when a death, a cancellation or its time limit came; with a probe that says False | nothing |
| the same, with a probe that gives a value | the undo is called with that |
| the same, with a probe that says None, or raises | the probe is asked again after a pause |
| the same, without a probe | the undo is called with None: it must bear to be called for what never happened |

An undo (or its probe) that raises, or does not return within `Limits.handler_timeout_ms`, is called again after a pause; the tries and
the next instant are remembered. After the last of them the run is parked, with the error; a person's `perdure retry` tries again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Any, Final, NamedTuple

from perdure.actors.code.author_call import in_words, name_of_method, tried
from perdure.actors.code.naming import load_function
from perdure.actors.life.activity import ACTIVITY, Activity
from perdure.actors.life.life import Life
from perdure.actors.life.run_context import RunContext
from perdure.actors.life.steps import RECORD, step_name
from perdure.actors.ports import KillPoint
from perdure.ledger import pack, taken_out, unpack
from perdure.policies import StepRecord, StepVerdict, default_retries, full_jitter_ms, look_at_step

UNDOING: Final = "\0undoing"
UNDO: Final = "\0undo\0"  # before the key of a step: the tries of its undo


class UndoFailed(NamedTuple):
    """What could not be undone, and why, as a person reads it."""

    words: str


def kept_undoing(life: Life, run_id: str) -> list[Any] | None:
    """Why an earlier attempt began to undo, as the error and its traceback."""
    body = life.steps(run_id).get(UNDOING)
    return unpack(body) if body else None


def has_undos(run: RunContext) -> bool:
    return any(record.undo is not None for _, record in run.records())


async def undo_steps(life: Life, run: RunContext, why: list[Any], outcome: bytes) -> UndoFailed | None:
    """Undo what the steps of a run have done, and remember then how it ends. Returns what could not be undone."""
    if kept_undoing(life, run.run_id) is None:
        await life.written(partial(_save, life, run.run_id, {UNDOING: pack(why)}))
        await life.services.until_durable()
    life.faults.at(KillPoint.MID_RUN, "undoing")
    steps = [(record.number, key, record) for key, record in run.records() if record.undo is not None]
    for _, key, record in sorted(steps, reverse=True):
        failed = await _undo_step(life, run, key, record)
        if failed is not None:
            return failed
    await life.written(partial(_end, life, run.run_id, outcome))
    return None


def _end(life: Life, run_id: str, outcome: bytes) -> None:
    with life.storage.transaction() as transaction:
        transaction.save_result(run_id, outcome)
        _save(life, run_id, {UNDOING: b""})


async def _undo_step(life: Life, run: RunContext, key: str, record: StepRecord) -> UndoFailed | None:
    retries = default_retries(life.limits)
    tries = run.counted(UNDO + key)
    while True:
        verdict = look_at_step(tries, life.now_ms(), retries.attempts_max, has_probe=False)
        if verdict is StepVerdict.FAILED:
            what = f"the undo of step {step_name(key)!r} failed in {tries.failures} tries, and the steps before it are not undone"
            return UndoFailed(f"{what}: {tries.error}")
        if verdict is StepVerdict.PAUSE:
            await asyncio.sleep((tries.next_try_ms - life.now_ms()) / 1000)
            continue
        ACTIVITY.set(Activity(f"{run.run_id}/undo/{key}".replace("\0", "/"), run_id=run.run_id, run=run))
        life.faults.at(KillPoint.MID_RUN, f"undo {step_name(key)}")
        _, problem = await tried(_in_time(life, _undone(life, run, key, record)))
        life.faults.at(KillPoint.MID_RUN, f"undo {step_name(key)} done")
        if problem is None:
            forgotten = {key: b"", RECORD + key: b"", UNDO + key: b""}
            await life.written(partial(_save, life, run.run_id, forgotten))
            return None
        life.log("run", f"undoing step {step_name(key)!r} of run {run.run_id}", problem, run.run_id)
        failures = tries.failures + 1
        pause_ms = full_jitter_ms(failures, retries.first_ms or 0, retries.most_ms or 0, life.dice.roll())
        error = in_words(problem, life.limits.error_chars_max)
        tries = tries._replace(failures=failures, next_try_ms=life.now_ms() + pause_ms, error=error)
        await life.written(partial(_save, life, run.run_id, {UNDO + key: pack(list(tries))}))


async def _in_time(life: Life, undone: Awaitable[None]) -> None:
    most_ms = life.limits.handler_timeout_ms
    bound = asyncio.timeout(most_ms / 1000)
    try:
        async with bound:
            await undone
    except TimeoutError:
        if not bound.expired():
            raise  # its own
        raise TimeoutError(f"it did not return within {most_ms} ms (handler_timeout_ms)") from None


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


def _found(life: Life, field: str, reference: list[Any]) -> Any:
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
