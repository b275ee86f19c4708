"""Whether the caller of a sync function awaits what that gives: then it may give an awaitable, and the plain value otherwise.

Only an `await` of the call itself can be seen, also through functions that return what the call gives. Who hands it on to `gather`, or
keeps it to be awaited later, gets the value, and is told so when the value turns out to be no awaitable (`is_no_awaitable`).
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable
from functools import lru_cache, wraps
from itertools import chain, pairwise
from types import CodeType, FrameType
from typing import Final, NamedTuple, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")

_LATER: Final = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
_SAID: Final = (  # by Python and asyncio, of what was to be awaited
    "can't be used in 'await' expression",
    "can't be awaited",
    "a coroutine was expected",
    "an awaitable is required",
)


class _Calls(NamedTuple):
    awaited: frozenset[int]
    returned: frozenset[int]
    spread: frozenset[int]  # with `*` or `**`: what gives their values may be at work still


def is_awaited(frame: FrameType | None) -> bool:
    """Whether the caller of this frame's function awaits what it returns, in the same expression."""
    caller, is_handed_on = None if frame is None else frame.f_back, False
    while caller is not None:
        calls, at = _calls_in(caller.f_code), caller.f_lasti
        if at in calls.awaited:
            return not (is_handed_on and at in calls.spread)
        if at not in calls.returned:
            return False
        caller, is_handed_on = caller.f_back, True
    return False


@lru_cache(maxsize=1024)
def _calls_in(code: CodeType) -> _Calls:
    # The inline caches of a call count as its place too.
    pairs = [(range(each.offset, then.offset), each, then) for each, then in pairwise(dis.get_instructions(code))]

    def places(wanted: Callable[[dis.Instruction, dis.Instruction], bool]) -> frozenset[int]:
        return frozenset(chain.from_iterable(place for place, each, then in pairs if wanted(each, then)))

    is_plain = not code.co_flags & _LATER  # what others return is awaited as a whole
    return _Calls(
        places(lambda _, then: then.opname == "GET_AWAITABLE"),
        places(lambda _, then: is_plain and then.opname == "RETURN_VALUE"),
        places(lambda each, _: each.opname == "CALL_FUNCTION_EX"),
    )


async def given(value: T) -> T:
    return value


def may_be_awaited(method: Callable[P, T]) -> Callable[P, T]:
    """A sync method that gives its value, and may be awaited at once all the same; no type says so."""

    @wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        value = method(*args, **kwargs)
        return cast("T", given(value)) if is_awaited(inspect.currentframe()) else value

    return called


def is_no_awaitable(words: str) -> bool:
    """Whether an error in words says that something was to be awaited and could not be."""
    return any(said in words for said in _SAID)
