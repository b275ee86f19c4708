"""Steps: what a run or a fiber does once, although it may be entered again after a death.

A step is found again by its name and its occurrence: the first call under a name in an attempt, the second, and so on, in the order of the
calls. A call that came to nothing, and is made again with the same job, is the same occurrence. So a loop that tries again after a failure
meets the same values in the next attempt, and so does one that goes on with the next job.
"""

from __future__ import annotations

import dis
import inspect
import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import chain, pairwise
from threading import Lock
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple, TypeVar, overload

from perdure.actors.code.annotations import content
from perdure.actors.life.life import Life
from perdure.actors.tasks import Pending
from perdure.ledger import BadRequest, Kept, check_id, pack, pack_value, taken_out, unpack

T = TypeVar("T")

_COMPARED: Final = (bool, bytes, float, int, str)  # as values; whatever else is compared by identity


class _Called(NamedTuple):
    """One call of `step`: the key under which its value is kept, and what its job is made of."""

    key: str
    job: tuple[object, ...]

    def repeats(self, job: tuple[object, ...]) -> bool:
        return len(job) == len(self.job) and all(map(_is_same, job, self.job))


class RemembersSteps:
    """One attempt at what can be entered again. A subclass keeps the bodies of the steps, durably."""

    _life: Life

    def __init__(self) -> None:
        self._lock = Lock()  # sync code may call from several threads
        self._called: dict[str, int] = {}
        self._undone: dict[str, dict[str, _Called]] = {}
        self.last_step = ""

    @overload
    def step(self, name: str, job: Callable[[], Pending[T]]) -> Pending[T]: ...

    @overload
    def step(self, name: str, job: Callable[[], T]) -> T: ...

    def step(self, name: str, job: Callable[[], object]) -> object:
        """Do something once: a later attempt takes the remembered value instead. The value must be plain data.

        A name may be used again, in a loop for example. The calls under one name are told apart by their order, so that is to be the same
        in each attempt; under `asyncio.gather` it is the order in which `step` is called. A step that raised is not remembered.
        When `job` gives an awaitable, so does `step`, in every attempt: `await run.step("fetch", fetch)`. Otherwise it gives the value,
        which may be awaited at once all the same: `await run.step("size", lambda: len(text))`.
        Between the end of `job` and the return there is a moment in which a death repeats it; effects outside of the agent's
        storage want the id of the run or the fiber, and `name`, as their idempotency key.
        """
        self._boundary()
        if not callable(job):
            raise BadRequest("job", f"{job!r:.200} is no function that does the step; write `lambda: …`")
        awaits = _awaits(inspect.currentframe())
        called = self._call(check_id("name", name, self._life.limits.id_max), job)
        known = self._remembered(called.key)
        if known is not None:
            self.last_step = name
            was_awaitable, kept = unpack(known)
            value = taken_out(kept)
            return _given(value) if was_awaitable or awaits else value
        with self._noted(name, called):
            outcome = job()
            if inspect.isawaitable(outcome):
                return self._finish_step(name, called, outcome)
            self._finish(name, called, pack([False, Kept(plain(f"step {name!r}", outcome))]))
        if awaits:
            return self._given_durably(outcome)
        self._life.wait_durable()
        return outcome

    async def _given_durably(self, value: T) -> T:
        await self._life.services.until_durable()
        return value

    async def _finish_step(self, name: str, called: _Called, pending: Awaitable[T]) -> T:
        with self._noted(name, called):
            value = await pending
            body = pack([True, Kept(plain(f"step {name!r}", value))])
            await self._life.written(partial(self._finish, name, called, body))
        return await self._given_durably(value)

    def _call(self, name: str, job: Callable[[], object]) -> _Called:
        made_of = _made_of(job)
        with self._lock:
            undone = self._undone.get(name, {})
            for each in undone.values():
                if each.repeats(made_of) and self._remembered(each.key) is None:
                    return undone.pop(each.key)
            nth = self._called[name] = self._called.get(name, 0) + 1
        return _Called(name if nth == 1 else f"{name}\0{nth}", made_of)  # an author's name has no NUL

    @contextmanager
    def _noted(self, name: str, called: _Called) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._note(name, called)
            raise

    def _finish(self, name: str, called: _Called, body: bytes) -> None:
        # A transaction that comes to nothing makes the call undone again.
        self._remember(called.key, body)
        self.last_step = name
        transaction = self._life.transaction
        if transaction is not None:
            self._note(name, called)
            transaction.then(partial(self._done, name, called))

    def _done(self, name: str, called: _Called) -> None:
        self._undone[name].pop(called.key, None)

    def _note(self, name: str, called: _Called) -> None:
        with self._lock:
            self._undone.setdefault(name, {})[called.key] = called

    def _occurrence(self, name: str) -> str:
        """The key of the next call under a name of ours."""
        with self._lock:
            nth = self._called[name] = self._called.get(name, 0) + 1
        return f"{name}\0{nth}"

    def _boundary(self) -> None:
        """A place at which the work may be left, to be entered again later."""

    def _remembered(self, name: str) -> bytes | None:
        raise NotImplementedError

    def _remember(self, name: str, body: bytes) -> None:
        raise NotImplementedError


def step_name(key: str) -> str:
    return key.partition("\0")[0]


def _made_of(job: Any) -> tuple[object, ...]:
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


async def _given(value: T) -> T:
    return value


def _awaits(frame: FrameType | None) -> bool:
    # Whether the caller of this frame's function awaits what it returns, in the same expression.
    caller = None if frame is None else frame.f_back
    return caller is not None and caller.f_lasti in _awaited_calls(caller.f_code)


@lru_cache(maxsize=1024)
def _awaited_calls(code: CodeType) -> frozenset[int]:
    # The inline caches of a call count as its place too.
    pairs = pairwise(dis.get_instructions(code))
    awaited = (range(each.offset, then.offset) for each, then in pairs if then.opname == "GET_AWAITABLE")
    return frozenset(chain.from_iterable(awaited))


def plain(field: str, value: object, bytes_max: int | None = None) -> bytes:
    """Plain data as it is kept. Raises `BadRequest` or `TooLarge`, naming the field."""
    return pack_value(field, value, math.inf if bytes_max is None else bytes_max)
