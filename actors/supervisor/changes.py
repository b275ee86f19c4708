"""Which runs have changed since a fact, so that a display of runs asks for those alone.

Nothing is kept for those that ask: the number of a fact is all that they remember. It holds across lives of the supervisor, so a client
that was away asks for what came after it, of whichever life. What happened too long ago, or in an earlier life, is told as a reset: read
everything again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from itertools import takewhile
from typing import Final

from perdure.actors.link.messages import Fields
from perdure.ledger import BatchRow, Row, RunCleared, View, batch_of, line

CHANGED_MAX: Final = 20_000
"""How many changed runs are remembered."""


class Changes:
    """Of one supervisor life."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._last: OrderedDict[str, int] = OrderedDict()  # runs with the fact that changed them last, in their order
        self._cleared: dict[str, None] = {}  # those of them whose last fact is that they were cleared
        self._begin = self._upto = view.seq

    def note(self, rows: Iterable[Row]) -> None:
        """These facts are durable."""
        for row in rows:
            if isinstance(row, BatchRow):
                self._changed_together(batch_of(row).run_ids, row.seq)
                continue
            self._upto = row.seq
            if row.subject in self._view.runs:
                self._changed(row.subject, is_cleared=row.kind == RunCleared.__name__)
        while len(self._last) > CHANGED_MAX:
            run_id, self._begin = self._last.popitem(last=False)
            self._cleared.pop(run_id, None)

    def _changed(self, run_id: str, *, is_cleared: bool) -> None:
        self._last[run_id] = self._upto
        self._last.move_to_end(run_id)
        self._cleared.pop(run_id, None)
        if is_cleared:
            self._cleared[run_id] = None

    def _changed_together(self, run_ids: list[str], seq: int) -> None:
        for run_id in run_ids if self._cleared else ():
            self._cleared.pop(run_id, None)
        last, behind = self._last, self._last.move_to_end
        for self._upto, run_id in enumerate(run_ids, seq):
            last[run_id] = self._upto
            behind(run_id)

    def since(self, after: int | None, limit: int) -> Fields:
        """The runs that have changed after a fact, as lines, in the order of their changes, and the ids of those that are gone.

        `upto` is the fact to ask from the next time, and `more` says that there are more already. Without a fact, after one that is not
        remembered, or when a run has changed and left memory since, it is a `reset`, and nothing is told but `upto`.
        """
        if after is None or not self._begin <= after <= self._upto:
            return self._reset()
        newest_first = takewhile(lambda item: item[1] > after, reversed(self._last.items()))
        changed = list(newest_first)[::-1]
        told = changed[:limit]
        runs = [self._view.runs.get(run_id) for run_id, _ in told]
        if any(run is None and run_id not in self._cleared for (run_id, _), run in zip(told, runs, strict=True)):
            return self._reset()
        return {
            "reset": False,
            "upto": told[-1][1] if len(changed) > limit else self._upto,
            "more": len(changed) > limit,
            "runs": [line(run) for run in runs if run is not None and not run.cleared],
            "gone": [run_id for (run_id, _), run in zip(told, runs, strict=True) if run is None or run.cleared],
        }

    def _reset(self) -> Fields:
        return {"reset": True, "upto": self._upto, "more": False, "runs": [], "gone": []}
