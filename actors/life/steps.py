"""Steps: what a run or a fiber does once, although it may be entered again after a death."""

from __future__ import annotations

import dis
import inspect
import math
from collections.abc import Awaitable, Callable
from functools import lru_cache, partial
from itertools import chain, pairwise
from types import CodeType, FrameType
from typing import TypeVar, overload

from perdure.actors.life.life import Life
from perdure.actors.tasks import Pending
from perdure.ledger import BadRequest, pack_value, unpack

T = TypeVar("T")


class RemembersSteps:
    """What can be entered again. A subclass keeps the bodies of the steps, durably."""

    _life: Life

    @overload
    def step(self, name: str, job: Callable[[], Pending[T]]) -> Pending[T]: ...

    @overload
    def step(self, name: str, job: Callable[[], T]) -> T: ...

    def step(self, name: str, job: Callable[[], object]) -> object:
        """Do something once: a later attempt takes the remembered value instead. The value must be plain data.

        When `job` gives an awaitable, so does `step`, in every attempt: `await run.step("fetch", fetch)`. Otherwise it gives the value,
        which may be awaited at once all the same: `await run.step("size", lambda: len(text))`.
        Between the end of `job` and the return there is a moment in which a death repeats it; effects outside of the agent's
        storage want the id of the run or the fiber, and `name`, as their idempotency key.
        """
        if not callable(job):
            raise BadRequest("job", f"{job!r:.200} is no function that does the step; write `lambda: …`")
        awaits = _awaits(inspect.currentframe())
        known = self._remembered(name)
        if known is not None:
            was_awaitable, value = unpack(known)
            return _given(value) if was_awaitable or awaits else value
        outcome = job()
        if inspect.isawaitable(outcome):
            return self._finish_step(name, outcome)
        self._remember(name, plain(f"step {name!r}", [False, outcome]))
        return _given(outcome) if awaits else outcome

    async def _finish_step(self, name: str, pending: Awaitable[T]) -> T:
        value = await pending
        body = plain(f"step {name!r}", [True, value])
        await self._life.written(partial(self._remember, name, body))
        return value

    def _remembered(self, name: str) -> bytes | None:
        """The body of a finished step."""
        raise NotImplementedError

    def _remember(self, name: str, body: bytes) -> None:
        """Keep the body of a step; durable on return."""
        raise NotImplementedError


async def _given(value: T) -> T:
    return value


def _awaits(frame: FrameType | None) -> bool:
    """Whether the caller of this frame's function awaits what it returns, in the same expression."""
    caller = None if frame is None else frame.f_back
    return caller is not None and caller.f_lasti in _awaited_calls(caller.f_code)


@lru_cache(maxsize=1024)
def _awaited_calls(code: CodeType) -> frozenset[int]:
    """Where in this code a call is that is awaited at once, its inline caches included."""
    pairs = pairwise(dis.get_instructions(code))
    awaited = (range(each.offset, then.offset) for each, then in pairs if then.opname == "GET_AWAITABLE")
    return frozenset(chain.from_iterable(awaited))


def plain(field: str, value: object, bytes_max: int | None = None) -> bytes:
    """Plain data as it is kept. Raises `BadRequest` or `TooLarge`, naming the field."""
    return pack_value(field, value, math.inf if bytes_max is None else bytes_max)
