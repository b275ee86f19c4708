"""Writes of several agents on the loop of one host. Those that are due in one turn of the loop become durable together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context

from perdure.ledger import StorageError
from perdure.ledger.storage.agent_storages import CommitPart, Disk


class DueWrite:
    """A write that is due. `failed` is called with the reason if it cannot be made durable."""

    def __init__(self, write: Callable[[], None], failed: Callable[[StorageError], None], context: Context) -> None:
        self._write, self._failed, self._context = write, failed, context
        self._is_cancelled = False

    def cancel(self) -> None:
        self._is_cancelled = True

    def do(self) -> None:
        if not self._is_cancelled:
            self.tried(lambda: self._context.run(self._write))

    def tried(self, step: Callable[[], None]) -> None:
        try:
            step()
        except StorageError as problem:
            self._failed(problem)


class CommitBatcher:
    """The due writes of one host."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._turn = 0
        self._due: dict[int, list[DueWrite]] = {}  # by the turn of the loop

    def soon(
        self, write: Callable[[], None], failed: Callable[[StorageError], None], context: Context, turns: int
    ) -> DueWrite:
        """Write after so many turns of the loop. What follows when it is durable is registered by `Transaction.then`."""
        if not self._due:
            # a copy, because the write enters its context by itself, and none can be entered twice
            asyncio.get_running_loop().call_soon(self._next, context=context.copy())
        due = DueWrite(write, failed, context)
        self._due.setdefault(self._turn + turns, []).append(due)
        return due

    def _next(self) -> None:
        self._turn += 1
        due = self._due.pop(self._turn, None)
        if self._due:
            asyncio.get_running_loop().call_soon(self._next)
        if due is not None:
            self._write(due)

    def _write(self, due: list[DueWrite]) -> None:
        parts: list[CommitPart] = []
        with self._disk.group_commit() as begin:
            for each in due:
                parts.append(begin())
                each.do()
        for each, part in zip(due, parts, strict=True):
            each.tried(part.told)
