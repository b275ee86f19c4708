"""Ended runs are cleared by themselves when they are old, or too many: a few at each sweep, while nothing waits for it.

Candidates come from the snapshot, oldest end first. Which of them are still needed is decided in the next turn (`ledger.protocol`), and
these are looked at again only after all others. Nothing of this is durable but the tombstones: a death costs a look.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from perdure.actors.ports import World
from perdure.actors.supervisor.checkpoints import Checkpoints
from perdure.actors.supervisor.snapshot_loader import SnapshotLoader
from perdure.ledger import HARD, ExpireRuns, Record, Stimulus, Store, View, activation_from, counts, run_from
from perdure.policies import Due, Limits, is_retention_on, retention_due

SLICE: Final = 100
SCAN: Final = 2_000
PAUSE_S: Final = 30.0
"""Before the oldest are looked at again, when all were looked at."""
FAMILIES_MAX: Final = 10_000
_BEGINNING: Final = (-1, "")


class RunExpiry:
    """Of one supervisor life."""

    def __init__(
        self, world: World, view: View, store: Store, limits: Limits, snapshot_loader: SnapshotLoader, checkpoints: Checkpoints,
        now_ms: Callable[[], int], report: Callable[[Stimulus], None],
    ) -> None:  # fmt: skip
        self._world, self._view, self._store, self._limits = world, view, store, limits
        self._snapshot_loader, self._checkpoints, self._now_ms, self._report = (
            snapshot_loader,
            checkpoints,
            now_ms,
            report,
        )
        self._candidates: deque[Record] = deque()
        self._after = _BEGINNING
        self._not_before_s = float("-inf")

    async def sweep(self) -> None:
        """Take the next few, if the last ones are gone."""
        taken = self._checkpoints.quiet
        if not is_retention_on(self._limits) or self._view.cleared or taken is None:
            return
        tally = counts(self._view)
        due = retention_due(self._now_ms(), sum(tally[status] for status in HARD), self._limits)
        if not due.any or asyncio.get_running_loop().time() < self._not_before_s:
            return
        if not self._candidates:
            search = partial(self._store.settled_before, float("inf"), self._after, SCAN)
            self._candidates.extend(await self._world.threads.archive(search))
            if not self._candidates:
                self._begin_anew()
        slice_ = self._next(due)
        families = await self._families(slice_)
        called = await self._called(families)
        if slice_ and self._checkpoints.quiet == taken:  # else some of them may have been deleted meanwhile
            self._snapshot_loader.remember(families)
            self._report(ExpireRuns([record.key for record in slice_], called))

    def _next(self, due: Due) -> list[Record]:
        # If the next candidate is not due, none after it is.
        chosen: list[Record] = []
        while self._candidates and len(chosen) < SLICE:
            record = self._candidates[0]
            ended_at_ms = run_from(record).ended_at_ms
            if not due.has(ended_at_ms, len(chosen)):
                self._begin_anew()
                break
            chosen.append(self._candidates.popleft())
            self._after = (ended_at_ms, record.key)
        return chosen

    def _begin_anew(self) -> None:
        self._candidates.clear()
        self._after = _BEGINNING
        self._not_before_s = asyncio.get_running_loop().time() + PAUSE_S

    async def _families(self, records: list[Record]) -> list[Record]:
        found = due = records
        while due and len(found) < FAMILIES_MAX:
            children = [run_from(record).child for record in due]
            due = await self._world.threads.archive(partial(self._store.runs_of, children, FAMILIES_MAX))
            found = [*found, *due]
        return found

    async def _called(self, records: list[Record]) -> list[str]:
        children = [run_from(record).child for record in records]
        rows = await self._world.threads.archive(partial(self._store.records, "agents", children)) if children else []
        return [row.key for row in rows if row.body and activation_from(row).called]
