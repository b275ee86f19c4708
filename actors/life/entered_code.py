"""The author's code that is under way in a life, and which of it is refused: it was told to stop, and goes on.

Async code is cancelled, and may take its cancellation for an error like any other. When it has had `teardown_grace_ms`, the storage and the
runtime are closed to it (`StaleIncarnation`). To a thread that nobody waits for any more they are at once. Other code of the same life goes
on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from functools import partial
from typing import Final, Self, TypeVar

from perdure.actors.tasks import current_task

T = TypeVar("T")

GOES_ON: Final = "does not let itself be cancelled, and goes on: storage and runtime are closed to it"
STAYS: Final = "goes on, because a thread cannot be interrupted: storage and runtime are closed to it"


class EnteredCode:
    """The calls of authors' methods that are under way in one life.

    Attributes:
        is_over: whether the life is over, so that all of its code is refused.
    """

    def __init__(self) -> None:
        self.is_over = False
        self.under_way: dict[_Call, None] = {}

    def entered(self, method: object) -> _Call:
        """A block in which a method is called, or other code, by its name. Tasks and threads that it starts belong to it."""
        return _Call(self, method)

    def refuse(self, tasks: Iterable[asyncio.Task[object]]) -> list[str]:
        """From now on refuse what the methods ask for that are under way in these tasks. Returns the names of those that were not."""
        meant = set(tasks)
        calls = [call for call in list(self.under_way) if call.task in meant and not call.is_refused]
        for call in calls:
            call.is_refused = True
        inner = {*calls} - {call.around for call in calls}
        return sorted({call.name for call in inner})

    @property
    def is_refused(self) -> bool:
        """Whether the code that asks is code of this life that is refused."""
        call = _ENTERED.get()
        while call is not None and not (call.code is self and (call.is_refused or self.is_over)):
            call = call.around
        return call is not None


class _Call:
    __slots__ = ("around", "code", "is_on_thread", "is_refused", "method", "task")

    def __init__(self, code: EnteredCode, method: object) -> None:
        self.code, self.method = code, method
        self.is_refused = self.is_on_thread = False
        self.task: asyncio.Task[object] | None = None
        self.around: _Call | None = None

    def __enter__(self) -> Self:
        self.task, self.around = current_task(), _ENTERED.get()
        _ENTERED.set(self)
        self.code.under_way[self] = None
        return self

    def __exit__(self, *_: object) -> None:
        self.code.under_way.pop(self, None)
        if _ENTERED.get() is self:  # a coroutine may be closed in whichever context
            _ENTERED.set(self.around)

    async def on_thread(self, run: Callable[[Callable[[], T]], Awaitable[T]], work: Callable[[], T]) -> T:
        """Do sync code of it, which cannot be interrupted: when nobody waits for it any more, it is refused."""

        def done() -> T:
            self.is_on_thread = True
            try:
                return work()
            finally:
                self.is_on_thread = False

        try:
            return await run(done)
        except asyncio.CancelledError:
            self.is_refused = True
            if not self.is_on_thread:
                raise
            raise asyncio.CancelledError(f"{self.name} {STAYS}") from None

    @property
    def name(self) -> str:
        method = self.method
        while isinstance(method, partial):
            method = method.func
        return method if isinstance(method, str) else str(getattr(method, "__name__", "a call"))


_ENTERED: Final[ContextVar[_Call | None]] = ContextVar("perdure_entered", default=None)


def outside_of_calls() -> None:
    """What goes on in this context belongs to no method."""
    _ENTERED.set(None)
