"""How the view changes by a crowd: each record by the fact for which it stands there, as `folds` does it, and each index once for all.

What comes of a crowd is what would come of its members one after the other, now and at a boot; tests compare the two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from perdure.ledger.codec import encode
from perdure.ledger.run import Run, begin_all, complete_all
from perdure.ledger.store.crowds import AttemptsStarted, Crowd, RunsCompleted, RunsRequested, crowd_of
from perdure.ledger.store.store import CrowdRow
from perdure.ledger.view import View


def record_crowd(view: View, crowd: Crowd, at_ms: int) -> CrowdRow:
    """Number the facts of a crowd, fold them, and return their row."""
    first = view.seq + 1
    _fold(view, crowd, first, at_ms)
    return CrowdRow(first, at_ms, len(crowd.run_ids), *encode(crowd))


def fold_crowd(view: View, row: CrowdRow) -> None:
    """Change the view by a crowd that is durable already, and whole."""
    _fold(view, crowd_of(row), row.seq, row.at_ms)


def _fold(view: View, crowd: Crowd, first: int, at_ms: int) -> None:
    _FOLDS[type(crowd)](view, crowd, first, at_ms)
    view.seq, view.at_ms = first + len(crowd.run_ids) - 1, max(view.at_ms, at_ms)


def _runs_requested(view: View, crowd: RunsRequested, first: int, at_ms: int) -> None:
    about = crowd.agent_type, crowd.parent, crowd.parent_run
    options, life = crowd.options, crowd.life
    columns = zip(crowd.run_ids, crowd.digests, crowd.inputs, strict=True)
    view.open_all(
        [
            Run(run_id, *about, digest, body, options, life, at_ms, seq, seq, frames=1, mark=seq)
            for seq, (run_id, digest, body) in enumerate(columns, first)
        ]
    )


def _attempts_started(view: View, crowd: AttemptsStarted, first: int, at_ms: int) -> None:
    runs = [view.runs[run_id] for run_id in crowd.run_ids]
    begin_all(runs, crowd.incarnation, crowd.host_id, first, at_ms)
    view.seat_all(runs, crowd.host_id)


def _runs_completed(view: View, crowd: RunsCompleted, first: int, at_ms: int) -> None:
    runs = [view.runs[run_id] for run_id in crowd.run_ids]
    before = Counter(run.status for run in runs)
    complete_all(runs, crowd.outputs, crowd.summaries, first, at_ms)
    view.tallied.subtract(before)
    view.end_all(runs)
    if runs[0].wants_mail:
        view.post_ends(runs, first, at_ms)


_FOLDS: dict[type[Crowd], Callable[[View, Any, int, int], None]] = {
    RunsRequested: _runs_requested,
    AttemptsStarted: _attempts_started,
    RunsCompleted: _runs_completed,
}
