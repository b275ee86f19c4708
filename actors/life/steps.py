"""Steps: what a run or a fiber does once, although it may be entered again after a death.

A step is found again by its name and its occurrence: the first call under a name in an attempt, the second, and so on, in the order of the
calls. A call that came to nothing, and is made again with the same job, is the same occurrence. So a loop that tries again after a failure
meets the same values in the next attempt, and so does one that goes on with the next job.

Whatever is found again by its occurrence (runs, messages, waits, milestones, steps) is counted apart within the job of each step, since the
next attempt leaves out the jobs of those that are done. Each remembered try of a step counts anew.

A step may ask for more than to be remembered: `retry`, `timeout`, `undo`, `probe`. For that a record is kept beside its value
(`policies.step_tries`), and `_plan` says what happens, one `_Deed` after the other. Sync code does them on its thread, async code awaits
them.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import Enum
from functools import partial
from hashlib import blake2b
from itertools import count
from threading import Lock
from types import FunctionType
from typing import Final, NamedTuple, TypeAlias, TypeVar, overload

from perdure.actors.code.annotations import content
from perdure.actors.code.author_call import WORDS_MAX, in_words, name_of_method, tried, tried_now
from perdure.actors.code.awaited import given, is_awaited, is_no_awaitable
from perdure.actors.code.naming import function_name
from perdure.actors.code.signatures import check_function_takes, check_options
from perdure.actors.life.class_options import as_retries
from perdure.actors.life.life import Life
from perdure.actors.ports import KillPoint
from perdure.actors.tasks import Pending, close_unawaited
from perdure.actors.threads import has_loop
from perdure.ledger import (
    BadRequest,
    FiberStopped,
    Kept,
    StaleIncarnation,
    StepFailed,
    StepOutcomeUnknown,
    StepTimedOut,
    check_id,
    check_number,
    checked,
    pack,
    pack_value,
    taken_out,
    unpack,
)
from perdure.policies import Retries, StepRecord, StepVerdict, default_retries, full_jitter_ms, look_at_step, seconds

T = TypeVar("T")


@dataclass(slots=True)
class PieceOfWork:
    """A piece of an agent's work. `origin` names it, also when it is done again; `step` is the key of the step whose job it is."""

    origin: str
    step: str = ""
    # how often each thing was asked for; several threads may ask, and each number is taken once
    asked: dict[tuple[str, str], count[int]] = field(default_factory=dict)

    def occurrence(self, what: str) -> int:
        """How often this was asked for before, in this step."""
        key = self.step, what
        return next(self.asked.get(key) or self.asked.setdefault(key, count()))


WORK: ContextVar[PieceOfWork | None] = ContextVar("perdure_work", default=None)


@contextmanager
def in_step(key: str) -> Iterator[None]:
    """What is asked for meanwhile is counted as this step's. Without a key nothing changes."""
    work = WORK.get()
    token = None if work is None or not key else WORK.set(replace(work, step=key))
    try:
        yield
    finally:
        if token is not None:
            with suppress(ValueError):  # a coroutine that is thrown away ends in another context
                WORK.reset(token)


_OPTIONS: Final = ("retry", "timeout", "undo", "probe")
_PLAIN: Final = "the job of step {!r} is sync, so that gave its value, which is remembered: await the call itself, or give an async job"
_COMPARED: Final = (bool, bytes, float, int, str)  # as values; whatever else is compared by identity


# One call of `step`: the key under which its value is kept, and what its job is made of.
class _Called(NamedTuple):
    key: str
    job: tuple[object, ...]
    slot: str  # in which its name is counted

    def repeats(self, job: tuple[object, ...]) -> bool:
        return len(job) == len(self.job) and all(map(_is_same, job, self.job))


# What an author asks of a step besides that it is remembered.
class _Care(NamedTuple):
    retry: Retries | None
    timeout_ms: int | None
    undo: list[object] | None
    probe: Callable[[], object] | None
    kept_probe: list[object] | None


# Something to be done for a step; what it gives is awaited if it can be, until `until_ms` at the latest. `step` is set for its job.
class _Deed(NamedTuple):
    do: Callable[[], object]
    until_ms: int = 0
    step: str = ""


class _Ended(NamedTuple):
    value: object


Outcome: TypeAlias = tuple[object, Exception | None]
_Plan: TypeAlias = Generator[_Deed, Outcome, object]
ORDER: Final = "\0order"  # before the number of a `KeptOrder`
RECORD: Final = "\0record\0"  # before the key of a step: what is remembered beside its value


class KeptOrder:
    """What has come at one place, one after the other, as many at once as were there. It is remembered before whatever is done with it, so
    it need not be waited for."""

    def __init__(
        self, key: str, remembered: Callable[[str], bytes | None], note_down: Callable[[str, bytes], None]
    ) -> None:
        self._key, self._remembered, self._note_down, self._at = key, remembered, note_down, 0

    def next_known(self) -> list[str] | None:
        """What came next when the work was entered before; None from where that ended."""
        body = self._remembered(f"{self._key}\0{self._at}")
        self._at += body is not None
        return None if body is None else list(unpack(body))

    def add(self, what: list[str]) -> None:
        self._note_down(f"{self._key}\0{self._at}", pack(what))
        self._at += 1


class _Answer(Enum):
    NOT_DONE = "not done"


_NOT_DONE: Final = _Answer.NOT_DONE


class _LimitOver(Exception):
    """The time limit came to its end in the middle of an awaited job."""


class RemembersSteps:
    """One attempt at what can be entered again. A subclass keeps the bodies of the steps, durably."""

    _life: Life

    def __init__(self) -> None:
        self._lock = Lock()  # sync code may call from several threads
        self._called: dict[str, int] = {}
        self._undone: dict[str, dict[str, _Called]] = {}
        self.last_step = ""
        self._plain = ""  # the last step that gave its value where nobody awaited it at once

    @overload
    def step(self, name: str, job: Callable[[], Pending[T]]) -> Pending[T]: ...

    @overload
    def step(self, name: str, job: Callable[[], T]) -> T: ...

    @overload
    def step(
        self,
        name: str,
        job: Callable[[], Pending[T]],
        *,
        retry: Retries | None = None,
        timeout: float | timedelta | None = None,
        undo: Callable[..., object] | str | None = None,
        probe: Callable[..., object] | str | None = None,
    ) -> Pending[T]: ...

    @overload
    def step(
        self,
        name: str,
        job: Callable[[], T],
        *,
        retry: Retries | None = None,
        timeout: float | timedelta | None = None,
        undo: Callable[..., object] | str | None = None,
        probe: Callable[..., object] | str | None = None,
    ) -> Pending[T]: ...

    def step(
        self,
        name: str,
        job: Callable[[], object],
        *args: object,
        retry: Retries | None = None,
        timeout: float | timedelta | None = None,
        undo: Callable[..., object] | str | None = None,
        probe: Callable[..., object] | str | None = None,
        **named: object,
    ) -> object:
        """Do something once: a later attempt takes the remembered value instead. The value must be plain data.

        A name may be used again, in a loop for example. The calls under one name are told apart by their order, so that is to be the same
        in each attempt; under `asyncio.gather` it is the order in which `step` is called. A step that raised is not remembered.
        When `job` gives an awaitable, so does `step`, in every attempt: `await run.step("fetch", fetch)`. Otherwise it gives the value:
        `size = run.step("size", lambda: len(text))`. That may be awaited at once all the same, by `await run.step(…)` or through a function
        that returns it, but has no type that says so: where a type checker reads along, give an async job. So too where it is awaited
        later, or by `asyncio.gather`, `wait_for` or `create_task`. A sync job in async code stands on the event loop, where nothing else
        goes on meanwhile: blocking work wants `lambda: asyncio.to_thread(fetch, url)`.
        Between the end of `job` and the return there is a moment in which a death repeats it; effects outside of the agent's
        storage want the id of the run or the fiber, and `name`, as their idempotency key.

        With any of the options a step is awaited in async code whatever its job is, and blocks in sync code. It is refused in an open
        transaction, because what it remembers has to be durable before its job begins.

        Args:
            retry: a job that raises is tried again after pauses. The failures and the time of the next try are remembered, so a death
                neither resets the count nor repeats at once. When the tries are used up, `StepFailed` is raised, in later attempts of the
                run too; a person's `perdure retry` counts anew, and so does a fiber that is entered again. What Perdure refuses
                (`BadRequest`) is not tried again.
            timeout: seconds, or a `timedelta`, for the whole step with its tries, pauses and deaths, from its first beginning on. Then it
                raises `StepTimedOut`, and an async job is cancelled. A sync job cannot be, and in async code holds up the event loop until
                it returns: its value counts although it is late, but no further try begins.
            undo: what undoes it if the run fails for good or is cancelled: a method of the agent or its name, a function at the top level
                of a module, or a `functools.partial` of one with plain data. It is called with the step's value, or with None if nobody
                knows whether the job took effect. The steps are undone in reverse, each at least once, so an undo wants the same
                idempotency key; then the run ends as `error` or `aborted`. An undo that raises is tried again as often as
                `Limits.handler_attempts_max` says, and then the run is parked: `perdure retry` tries it again, and `perdure cancel` gives
                it up. A run that is interrupted is not undone. Runs only.
            probe: says what came of a job that had begun before a death, or was cancelled in its middle: False, it took no effect, so it
                is done; None, nobody knows, so `StepOutcomeUnknown` is raised; anything else is the step's value. Without one such a job is
                done again. With `undo` it must be found again as that is.
        """
        self._boundary()
        if not callable(job):
            raise BadRequest("job", f"{job!r:.200} is no function that does the step; write `lambda: …`")
        check_options("step", named, _OPTIONS)
        if args:
            raise BadRequest("job", "a step calls it without arguments; bind them: `functools.partial(job, …)`")
        awaits = is_awaited(inspect.currentframe())
        care = self._care(retry, timeout, undo, probe)
        called = self._call(check_id("name", name, self._life.limits.id_max), job)
        awaits = awaits or (care is not None and has_loop())
        known = self._remembered(called.key)
        if known is not None:
            self.last_step = name
            was_awaitable, kept = unpack(known)
            value = taken_out(kept)
            if was_awaitable or awaits:
                return given(value)
            self._plain = name
            return value
        if care is not None:
            plan = self._plan(name, called, job, care)
            return self._awaited(plan) if has_loop() else self._at_once(plan)
        with self._noted(called):
            with in_step(called.key):
                outcome = job()
            if inspect.isawaitable(outcome):
                return self._finish_step(name, called, outcome)
            self._finish(name, called, pack([False, Kept(pack_value(f"step {name!r}", outcome))]))
        if awaits:
            return self._given_durably(outcome)
        self._plain = name
        self._life.wait_durable()
        return outcome

    def in_words(self, problem: Exception, chars_max: int = WORDS_MAX) -> str:
        """What the author's code has failed with, and what may lie behind it: it awaits the value of a step."""
        words = in_words(problem, chars_max)
        if not self._plain or not is_no_awaitable(words):
            return words
        return f"{words}; {_PLAIN.format(self._plain)}"[:chars_max]

    # steps that ask for more

    def _care(self, retry: object, timeout: object, undo: object, probe: object) -> _Care | None:
        asked = {"retry": retry, "timeout": timeout, "undo": undo, "probe": probe}
        given = [field for field, value in asked.items() if value is not None]
        if not given:
            return None
        if self._life.transaction is not None:
            words = "a step in a transaction takes effect with that or not at all, and this needs what is durable before; take it outside"
            raise BadRequest(given[0], words)
        if retry is not None and not isinstance(retry, Retries):
            raise BadRequest("retry", f"{retry!r:.200} is no Retries; write `Retries(attempts_max=3)`")
        tries = None if retry is None else checked(lambda: as_retries(retry).over(default_retries(self._life.limits)))
        reference = None if undo is None else self._undo_reference(undo)
        kept_probe = None if probe is None or undo is None else self._reference("probe", probe)
        ask = self._probe(probe)
        return _Care(tries, None if timeout is None else _in_ms(timeout), reference, ask, kept_probe)

    def _probe(self, probe: object) -> Callable[[], object] | None:
        if isinstance(probe, str):
            probe = getattr(self._life.agent, name_of_method(self._life.agent, "probe", probe))
        if probe is None:
            return None
        if not callable(probe):
            raise BadRequest("probe", f"{probe!r:.200} is no function that says what came of the step")
        check_function_takes("probe", probe)
        return probe

    def _undo_reference(self, undo: object) -> list[object]:
        return self._reference("undo", undo, "value")

    def _reference(self, field: str, given: object, *named: str) -> list[object]:
        """How a function is found again after a death: the name of a method or of a function of a module, and what is bound to it."""
        arguments: tuple[object, ...] = ()
        keywords: dict[str, object] = {}
        agent = self._life.agent
        if isinstance(given, partial):
            arguments, keywords = given.args, given.keywords
            given = given.func
        called: Callable[..., object]
        if isinstance(given, str) or getattr(given, "__self__", None) is agent:
            kind, name = "method", name_of_method(agent, field, given)
            called = getattr(agent, name)
        elif isinstance(given, FunctionType) and given.__name__ != "<lambda>":
            if "." in given.__qualname__ and inspect.getattr_static(type(agent), given.__name__, None) is given:
                words = f"{given.__qualname__} is called without its agent; give `self.{given.__name__}`, or its name"
                raise BadRequest(field, words)
            kind, name, called = "function", self._name_of_function(field, given), given
        else:
            what = "a lambda" if isinstance(given, FunctionType) else f"{given!r:.200}"
            words = (
                f"{what} could not be found again after a death; give a method of the agent, a function at the top level of a module, or a "
                "functools.partial of one with plain data"
            )
            raise BadRequest(field, words)
        bound = pack_value(field, [list(arguments), keywords])
        check_function_takes(field, partial(called, *arguments, **keywords), *named)
        return [kind, name, Kept(bound)]

    def _name_of_function(self, field: str, given: FunctionType) -> str:
        try:
            return function_name(given, self._life.code_dir)
        except BadRequest as problem:
            raise BadRequest(field, problem.problem) from None

    def _plan(self, name: str, called: _Called, job: Callable[[], object], care: _Care) -> _Plan:
        """What is done for a step, until it has a value or raises."""
        with self._noted(called):
            record = self._record_of(called.key)
            deadline_ms = record.deadline_ms or self._life.now_ms() + (care.timeout_ms or 0)
            record = record._replace(deadline_ms=0 if care.timeout_ms is None else deadline_ms)
            while True:
                verdict = self._verdict(name, record, care)
                if verdict is StepVerdict.PAUSE:
                    until_ms = min(record.next_try_ms, record.deadline_ms or record.next_try_ms)
                    yield from _done(partial(self._paused, until_ms))
                    continue
                if verdict is StepVerdict.BEGIN:
                    record = yield from self._begin(name, called.key, record, care)
                    nth_try = f"\0try {record.round} {record.failures}" if record.failures else ""
                    value, problem = yield _Deed(job, record.deadline_ms, called.key + nth_try)
                    self._life.faults.at(KillPoint.MID_RUN, f"step {name} done")
                else:
                    value, problem = yield from self._probed(name, record, care)
                if problem is not None:
                    record = yield from self._failed(name, called.key, care, problem, verdict)
                elif value is not _NOT_DONE:
                    break
                record = record._replace(began=record.began and value is not _NOT_DONE)
            body = pack([has_loop(), Kept(pack_value(f"step {name!r}", value))])
            yield from _done(partial(self._written, partial(self._finish, name, called, body)))
            yield from _done(self._until_durable)
            return value

    def _verdict(self, name: str, record: StepRecord, care: _Care) -> StepVerdict:
        most = None if care.retry is None else care.retry.attempts_max
        verdict = look_at_step(record, self._life.now_ms(), most, has_probe=care.probe is not None)
        if verdict is StepVerdict.FAILED:
            raise StepFailed(self._owner, name, record.failures, record.error)
        if verdict is StepVerdict.TIMED_OUT:
            raise StepTimedOut(self._owner, name, care.timeout_ms or 0)
        return verdict

    def _probed(self, name: str, record: StepRecord, care: _Care) -> Generator[_Deed, Outcome, Outcome]:
        assert care.probe is not None
        value, problem = yield _Deed(care.probe, record.deadline_ms)
        if problem is None and value is None:
            problem = StepOutcomeUnknown(self._owner, name)
        return _NOT_DONE if value is False else value, problem

    def _begin(self, name: str, key: str, record: StepRecord, care: _Care) -> Generator[_Deed, Outcome, StepRecord]:
        # What has to be known after a death is durable before the job begins.
        if care.undo is not None:
            yield from _done(self._promise_undo)
            number = record.number or self._next_number()
            record = record._replace(number=number, undo=care.undo, probe=care.kept_probe)
        record = record._replace(began=care.undo is not None or care.probe is not None)
        if _body(record) != self._remembered(RECORD + key) and record != StepRecord(round=record.round):
            yield from self._noting(key, record)
            yield from _done(self._until_durable)
        self._life.faults.at(KillPoint.MID_RUN, f"step {name}")
        return record

    def _failed(
        self, name: str, key: str, care: _Care, problem: Exception, verdict: StepVerdict
    ) -> Generator[_Deed, Outcome, StepRecord]:
        """Remember a failure, for the next try. Raises it if there is none."""
        if isinstance(problem, _LimitOver):
            raise StepTimedOut(self._owner, name, care.timeout_ms or 0) from None
        if isinstance(problem, _FINAL):
            raise problem
        record = self._record_of(key)
        failed = record._replace(began=record.began and verdict is StepVerdict.PROBE)  # a job that raised did nothing
        if care.retry is None:
            if failed != record:
                yield from self._noting(key, failed)
            raise problem
        first_ms, most_ms = care.retry.first_ms or 0, care.retry.most_ms or 0
        pause_ms = full_jitter_ms(record.failures + 1, first_ms, most_ms, self._life.dice.roll())
        error = in_words(problem, self._life.limits.error_chars_max)
        failed = failed._replace(failures=record.failures + 1, next_try_ms=self._life.now_ms() + pause_ms, error=error)
        yield from self._noting(key, failed)
        if failed.failures == care.retry.attempts_max:
            raise StepFailed(self._owner, name, failed.failures, error) from problem
        return failed

    def _at_once(self, plan: _Plan) -> object:
        """Do the plan in sync code. One whose job gives an awaitable goes on where that is awaited."""
        try:
            deed = _next(plan)
            while isinstance(deed, _Deed):
                with in_step(deed.step):
                    outcome = tried_now(deed.do)
                if inspect.isawaitable(outcome[0]):
                    return self._awaited(plan, deed._replace(do=partial(_itself, outcome[0])))
                deed = _next(plan, outcome)
        except BaseException:
            plan.close()
            raise
        return deed.value

    async def _awaited(self, plan: _Plan, first: _Deed | None = None) -> object:
        try:
            deed = first or _next(plan)
            while isinstance(deed, _Deed):
                with in_step(deed.step):
                    outcome = tried_now(deed.do)
                if inspect.isawaitable(outcome[0]):
                    outcome = await self._in_time(outcome[0], deed)
                deed = _next(plan, outcome)
            return deed.value
        finally:
            plan.close()

    async def _in_time(self, pending: Awaitable[object], deed: _Deed) -> Outcome:
        if not deed.until_ms:
            with in_step(deed.step):
                return await tried(pending)
        left_s = max(0, deed.until_ms - self._life.now_ms()) / 1000
        is_ours = self._life.services.is_on_loop  # and no loop of the author's
        job = self._within_step(pending, deed)
        try:
            async with asyncio.timeout(left_s):
                return await tried(self._life.bounded(job) if is_ours else job)
        except TimeoutError:  # what the job raises is in its outcome
            return None, _LimitOver()
        finally:
            close_unawaited(pending)

    async def _within_step(self, pending: Awaitable[object], deed: _Deed) -> object:
        what = f"step {step_name(deed.step)!r}" if deed.step else "the probe of a step"
        with in_step(deed.step), self._life.code.entered(what):
            return await pending

    def _noting(self, key: str, record: StepRecord) -> Generator[_Deed, Outcome, None]:
        yield from _done(partial(self._written, partial(self._note_down, RECORD + key, _body(record))))

    def _written(self, job: Callable[[], None]) -> Awaitable[None] | None:
        if has_loop():
            return self._life.written(job)
        job()
        return None

    def _until_durable(self) -> Awaitable[None] | None:
        if has_loop():
            return self._life.services.until_durable()
        self._life.wait_durable()
        return None

    def _record_of(self, key: str) -> StepRecord:
        body = self._remembered(RECORD + key)
        record = StepRecord() if body is None else StepRecord(*unpack(body))
        return self._counted(record)

    def _counted(self, record: StepRecord) -> StepRecord:
        """The record in this count of the tries."""
        raise NotImplementedError

    def _paused(self, until_ms: int) -> object:
        """Wait for the next try of a step. May give an awaitable."""
        raise NotImplementedError

    @property
    def _owner(self) -> str:
        raise NotImplementedError

    def _promise_undo(self) -> object:
        """Have the ledger know that the run is not over before its steps are undone. May give an awaitable."""
        raise NotImplementedError

    def _next_number(self) -> int:
        raise NotImplementedError

    async def _given_durably(self, value: T) -> T:
        await self._life.services.until_durable()
        return value

    async def _finish_step(self, name: str, called: _Called, pending: Awaitable[T]) -> T:
        with self._noted(called):
            with in_step(called.key):
                value = await pending
            body = pack([True, Kept(pack_value(f"step {name!r}", value))])
            await self._life.written(partial(self._finish, name, called, body))
        return await self._given_durably(value)

    def _call(self, name: str, job: Callable[[], object]) -> _Called:
        made_of, slot = _made_of(job), slot_of(name)
        with self._lock:
            undone = self._undone.get(slot, {})
            for each in undone.values():
                if each.repeats(made_of) and self._remembered(each.key) is None:
                    return undone.pop(each.key)
            nth = self._called[slot] = self._called.get(slot, 0) + 1
        return _Called(name if slot == name and nth == 1 else f"{slot}\0{nth}", made_of, slot)

    @contextmanager
    def _noted(self, called: _Called) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._note(called)
            raise

    def _finish(self, name: str, called: _Called, body: bytes) -> None:
        # A transaction that comes to nothing makes the call undone again.
        self._remember(called.key, body)
        self.last_step = name
        transaction = self._life.transaction
        if transaction is not None:
            self._note(called)
            transaction.then(partial(self._done, called))

    def _done(self, called: _Called) -> None:
        self._undone[called.slot].pop(called.key, None)

    def _note(self, called: _Called) -> None:
        with self._lock:
            self._undone.setdefault(called.slot, {})[called.key] = called

    def _occurrence(self, name: str) -> str:
        """The key of the next call under a name of ours. It ends with a number, which no other call under that name has."""
        slot = slot_of(name)
        with self._lock:
            nth = self._called[slot] = self._called.get(slot, 0) + 1
        return f"{slot}\0{told_apart(nth)}"

    def order(self) -> KeptOrder:
        """The order in which what was begun at this place has come."""
        return KeptOrder(self._occurrence(ORDER), self._remembered, self._note_down)

    def _boundary(self) -> None:
        """A place at which the work may be left, to be entered again later."""

    def _remembered(self, name: str) -> bytes | None:
        raise NotImplementedError

    def _remember(self, name: str, body: bytes) -> None:
        raise NotImplementedError

    def _note_down(self, name: str, body: bytes) -> None:
        """Remember something of a step that is no progress."""
        raise NotImplementedError


_FINAL: Final = (BadRequest, StaleIncarnation, FiberStopped)  # another try would meet the same


# An author's name has no NUL. Of what a step does, the step's key stands behind the name.
def slot_of(name: str) -> str:
    work = WORK.get()
    return name if work is None or not work.step else f"{name}\0\0{work.step}"


def told_apart(nth: int) -> int:
    """A number for the nth of something, which is another one in each step."""
    work = WORK.get()
    if work is None or not work.step:
        return nth
    place = int.from_bytes(blake2b(work.step.encode(), digest_size=5).digest())
    return (place << 10) + nth  # below 2^53, as questions are numbered


def step_name(key: str) -> str:
    return key.removeprefix(RECORD).partition("\0")[0]


def _done(do: Callable[[], object]) -> Generator[_Deed, Outcome, None]:
    _, problem = yield _Deed(do)
    if problem is not None:
        raise problem


def _next(plan: _Plan, told: Outcome | None = None) -> _Deed | _Ended:
    try:
        return next(plan) if told is None else plan.send(told)
    except StopIteration as end:
        return _Ended(end.value)


def _itself(value: T) -> T:
    return value


def _body(record: StepRecord) -> bytes:
    return pack(list(record))


def _in_ms(timeout: object) -> int:
    return math.ceil(check_number("timeout", seconds(timeout), unit="seconds", is_finite=True, above=True) * 1000)


def _made_of(job: object) -> tuple[object, ...]:
    # What tells one job from another: its code, and what is bound to it now.
    if isinstance(job, partial):
        return (*_made_of(job.func), *job.args, *job.keywords, *job.keywords.values())
    function = getattr(job, "__func__", job)
    cells = (content(each) for each in getattr(function, "__closure__", None) or ())
    bound = (getattr(job, "__self__", None), *(getattr(function, "__defaults__", None) or ()))
    code = getattr(function, "__code__", None) or getattr(function, "__qualname__", function)
    return (code, *bound, *cells)


def _is_same(one: object, other: object) -> bool:
    return one is other or (type(one) is type(other) and isinstance(one, _COMPARED) and one == other)
