"""Retries inside one process, by tenacity: on the clock of the running loop, with pauses that the caller draws.

What has to survive the process is not counted here. The tries of a post, of a callback and of a fiber are counted in durable rows, and
`policies` decides after each of them what follows; this module does it again if that was decided. A storage conflict needs no pause: the
one that was overtaken sees at once what the other did.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    retry_if_result,
    stop_after_attempt,
)

from perdure.ledger import StorageConflict

T = TypeVar("T")
CONFLICTS_MAX = 20


async def until(is_done: Callable[[T], bool], request: Callable[[], Awaitable[T]], pause_s: Callable[[], float]) -> T:
    """Make a request until its answer is the last one. `pause_s` is asked before each repetition."""
    again = AsyncRetrying(
        retry=retry_if_result(lambda answer: not is_done(answer)), wait=lambda _: pause_s(), sleep=asyncio.sleep
    )
    return await again(request)


def despite_conflicts(transaction: Callable[[], T]) -> T:
    """Do one transaction, again while it is overtaken, at most `CONFLICTS_MAX` times more. Raises the last `StorageConflict`."""
    try:
        return transaction()
    except StorageConflict:
        return _AGAIN_AFTER_CONFLICT(transaction)


async def despite_more_conflicts(transaction: Callable[[], Awaitable[Exception | None]]) -> Exception | None:
    """Do a transaction that was overtaken once, and that returns its error, at most `CONFLICTS_MAX` times with that one."""
    again = AsyncRetrying(
        retry=retry_if_result(lambda problem: isinstance(problem, StorageConflict)),
        stop=stop_after_attempt(CONFLICTS_MAX - 1),
        sleep=_no_pause,
        retry_error_callback=_last_answer,
    )
    return await again(transaction)


async def _no_pause(_seconds: float) -> None:
    """No other task gets a turn of the loop in between."""


def _last_answer(state: RetryCallState) -> object:
    assert state.outcome is not None
    return state.outcome.result()


_AGAIN_AFTER_CONFLICT = Retrying(
    retry=retry_if_exception_type(StorageConflict),
    stop=stop_after_attempt(CONFLICTS_MAX),
    sleep=lambda _: None,
    reraise=True,
)
