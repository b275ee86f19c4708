"""Casts between the two ways of calling, which type checkers cannot tell apart."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import TypeVar, cast

from perdure.ledger import BadRequest

T = TypeVar("T")


def blocking(call: Awaitable[T]) -> T:
    """In sync code: give the result of a call that is typed as awaitable its own type. The call has already blocked.

        notes = blocking(self.run_agent_tool(Researcher, topic)).output

    Raises `BadRequest` in async code, where the call must be awaited.
    """
    if isinstance(call, Coroutine):
        call.close()  # nobody will await it
    if isinstance(call, Coroutine) or asyncio.isfuture(call):
        raise BadRequest("call", "this is async code, where the call is to be awaited")
    return cast("T", call)


def awaiting(answer: T) -> Awaitable[T]:
    """In async code: give the answer of a sync method over a handle the type of an awaitable, which it is there.

    total = await awaiting(self.sub_agent(Account, "alice").book(1))
    """
    return cast("Awaitable[T]", answer)
