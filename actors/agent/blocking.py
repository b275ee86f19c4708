"""Types for the two ways of calling that type checkers cannot tell from each other."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from typing import TypeVar, cast

from perdure.ledger import BadRequest

T = TypeVar("T")


def blocking(call: Awaitable[T]) -> T:
    """In sync code: what a call gave that is typed as awaitable. At run time it is that already, for the call has blocked.

        notes = blocking(self.run_agent_tool(Researcher, topic)).output

    Raises `BadRequest` in async code, where the call is to be awaited.
    """
    if inspect.iscoroutine(call):
        call.close()  # nobody will await it
    if inspect.iscoroutine(call) or asyncio.isfuture(call):
        raise BadRequest("call", "this is async code, where the call is to be awaited")
    return cast("T", call)


def awaiting(answer: T) -> Awaitable[T]:
    """In async code: the answer of a sync method that is called over a handle, which there is an awaitable.

    total = await awaiting(self.sub_agent(Account, "alice").book(1))
    """
    return cast("Awaitable[T]", answer)
