"""Callbacks that are known to be quick are called together: one transaction for many rows that are due, instead of one for each.

A commit takes longer than most callbacks do, and what is due at the full hour comes in crowds. So the rows of a round whose callbacks have
been quick on this host of late are called one after the other in one transaction, each with its own occurrence, history and end, as if each
had its own: what one cancels is not called after it. If anything goes wrong, nothing of it was, and each is called by itself. So one that
raises, or an async one that turns out to be slow, costs its neighbours a little time once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import groupby
from typing import Any

from perdure.actors.code.author_call import is_async
from perdure.actors.jobs.callback_rows import Row
from perdure.actors.jobs.callbacks import LATE_MS, Book, Callbacks
from perdure.actors.life.activity import Activity
from perdure.actors.life.life import Life
from perdure.actors.life.one_transaction import Piece, Step, done_in_one
from perdure.actors.life.outbox import Outbox
from perdure.ledger.storage.cabinet import Transaction

PATIENCE_MS = 1_000


def rounds(life: Life, rows: Sequence[Row], now_ms: int, late_ms: float = LATE_MS) -> Iterator[list[Row]]:
    """Rows that are due, in order: those that are called together, and each of the others by itself; so too what is later than that."""

    def kind(row: Row) -> int | str:
        method: Any = getattr(life.agent, row.callback, None)
        is_plain = not row.attempt and not row.losses and now_ms - row.due_at_ms <= late_ms
        if is_plain and callable(method) and life.premises.paces.is_quick(life.agent_id, row.callback):
            return "async" if is_async(method) else "sync"
        return row.number

    for _, group in groupby(rows, kind):
        yield list(group)


async def called_together(
    life: Life, outbox: Outbox, book: Book, rows: Sequence[Row], turn: AbstractAsyncContextManager[None]
) -> bool:
    """Call the callbacks of these rows in one transaction; False if nothing came of it, and each must be called by itself."""
    callings = [Callbacks(life, outbox, book, row.id) for row in rows]
    waits = is_async(getattr(life.agent, rows[0].callback))  # like all of the same round

    def steps(transaction: Transaction) -> list[Step]:
        activity = Activity(origin=rows[0].delivery_id)
        return [(each.whole_async if waits else each.whole, (transaction,), activity) for each in callings]

    piece = Piece(rows[0].id, steps, lambda _: None, PATIENCE_MS)
    return await done_in_one(life, outbox, piece, turn) is None
