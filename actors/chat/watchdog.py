"""The stall watchdog: a provider that says nothing for too long has hung up without telling.

The clock runs only while the next event is awaited: not while events are stored, shown, or tools work. The first event has a limit of its
own, because a model may think before it speaks (spec W-42). Only events count: keep-alive comments of a connection are not progress.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TypeVar, cast

T = TypeVar("T")


class Stalled(Exception):
    """No event came in time; `waited_ms` says how long was waited."""

    def __init__(self, waited_ms: float) -> None:
        super().__init__(waited_ms)
        self.waited_ms = waited_ms

    def __str__(self) -> str:
        return f"the model's stream said nothing for {self.waited_ms:g} ms"


async def watched(source: AsyncIterator[T], first_ms: float, between_ms: float) -> AsyncIterator[T]:
    """The events of a source, each within its limit; 0 is no limit. The source is closed at the end, whatever happens."""
    limit_ms = first_ms
    try:
        while True:
            event = await _next(source, limit_ms)
            if event is None:
                return
            yield event
            limit_ms = between_ms
    finally:
        await cast("AsyncGenerator[T]", source).aclose()


async def _next(source: AsyncIterator[T], limit_ms: float) -> T | None:
    try:
        async with asyncio.timeout(limit_ms / 1000 if limit_ms else None):
            return await anext(source, None)
    except TimeoutError as problem:
        raise Stalled(limit_ms) from problem
