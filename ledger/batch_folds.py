"""How the view changes by a batch: each record by the fact for which it stands there, as `folds` does it, and each index once for all.

What comes of a batch is what would come of its members one after the other, now and at a boot; tests compare the two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from perdure.ledger.codec import encode
from perdure.ledger.run import Run, begin_all, complete_all
from perdure.ledger.store.batches import AttemptsStarted, Batch, RunsCompleted, RunsRequested, batch_of
from perdure.ledger.store.store import BatchRow
from perdure.ledger.view import View


def record_batch(view: View, batch: Batch, at_ms: int) -> BatchRow:
    first = view.seq + 1
    _fold(view, batch, first, at_ms)
    return BatchRow(first, at_ms, len(batch.run_ids), *encode(batch))


def fold_batch(view: View, row: BatchRow) -> None:
    _fold(view, batch_of(row), row.seq, row.at_ms)


def _fold(view: View, batch: Batch, first: int, at_ms: int) -> None:
    _FOLDS[type(batch)](view, batch, first, at_ms)
    view.seq, view.at_ms = first + len(batch.run_ids) - 1, max(view.at_ms, at_ms)


def _runs_requested(view: View, batch: RunsRequested, first: int, at_ms: int) -> None:
    about = batch.agent_type, batch.parent, batch.parent_run
    options, life = batch.options, batch.life
    columns = zip(batch.run_ids, batch.digests, batch.inputs, strict=True)
    view.open_all(
        [
            Run(run_id, *about, digest, body, options, life, at_ms, seq, seq, frames=1, mark=seq)
            for seq, (run_id, digest, body) in enumerate(columns, first)
        ]
    )


def _attempts_started(view: View, batch: AttemptsStarted, first: int, at_ms: int) -> None:
    runs = [view.runs[run_id] for run_id in batch.run_ids]
    begin_all(runs, batch.incarnation, batch.host_id, first, at_ms)
    view.seat_all(runs, batch.host_id)


def _runs_completed(view: View, batch: RunsCompleted, first: int, at_ms: int) -> None:
    runs = [view.runs[run_id] for run_id in batch.run_ids]
    before = Counter(run.status for run in runs)
    complete_all(runs, batch.outputs, batch.summaries, first, at_ms)
    view.tallied.subtract(before)
    view.end_all(runs)
    if runs[0].wants_mail:
        view.post_ends(runs, first, at_ms)


_FOLDS: dict[type[Batch], Callable[[View, Any, int, int], None]] = {
    RunsRequested: _runs_requested,
    AttemptsStarted: _attempts_started,
    RunsCompleted: _runs_completed,
}
