"""Callbacks that are known to be quick are called together: one transaction for many rows that are due, instead of one for each.

A commit takes longer than most callbacks do, and what is due at the full hour comes in crowds. So the rows of a round whose callbacks have
never been slow on this host are called one after the other in one transaction, each with its own occurrence, history and end, as if each
had its own: what one cancels is not called after it. If anything goes wrong, nothing of it was, and each is called by itself. So one that
raises, or an async one that turns out to be slow, costs its neighbours a little time once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import groupby
from typing import TYPE_CHECKING, Any

from actors.activity import Activity
from actors.author import is_async
from actors.jobs.callbacks import LATE_MS, Callbacks
from actors.one_transaction import Piece, Step, done_in_one
from ledger import type_of

if TYPE_CHECKING:
    from actors.jobs.callback_rows import Row
    from actors.jobs.callbacks import Book
    from actors.tenant import Tenant
    from ledger.storage import Transaction

QUICK_MS = 5
PATIENCE_MS = 1_000


class Paces:
    """How long callbacks have taken on one host, at most."""

    def __init__(self) -> None:
        self._slowest_ms: dict[tuple[str, str], int] = {}

    def note(self, agent_id: str, callback: str, took_ms: int) -> None:
        """One call was done."""
        key = type_of(agent_id), callback
        self._slowest_ms[key] = max(took_ms, self._slowest_ms.get(key, 0))

    def is_quick(self, agent_id: str, callback: str) -> bool:
        """Whether it was called here before, and was never slow."""
        return self._slowest_ms.get((type_of(agent_id), callback), QUICK_MS) < QUICK_MS


def rounds(tenant: Tenant, rows: Sequence[Row], now_ms: int, late_ms: float = LATE_MS) -> Iterator[list[Row]]:
    """Rows that are due, in order: those that are called together, and each of the others by itself; so too what is later than that."""

    def kind(row: Row) -> int | str:
        method: Any = getattr(tenant.agent, row.callback, None)
        is_plain = not row.attempt and not row.losses and now_ms - row.due_at_ms <= late_ms
        if is_plain and callable(method) and tenant.host.paces.is_quick(tenant.agent_id, row.callback):
            return "async" if is_async(method) else "sync"
        return row.number

    for _, group in groupby(rows, kind):
        yield list(group)


async def called_together(
    tenant: Tenant, book: Book, rows: Sequence[Row], turn: AbstractAsyncContextManager[None]
) -> bool:
    """Call the callbacks of these rows in one transaction; False if nothing came of it, and each must be called by itself."""
    callings = [Callbacks(tenant, book, row.id) for row in rows]
    waits = is_async(getattr(tenant.agent, rows[0].callback))  # like all of the same round

    def steps(transaction: Transaction) -> list[Step]:
        activity = Activity(origin=rows[0].delivery_id)
        return [(each.whole_async if waits else each.whole, (transaction,), activity) for each in callings]

    piece = Piece(rows[0].id, steps, lambda _: None, PATIENCE_MS)
    return await done_in_one(tenant, piece, turn) is None
