"""The records of an agent's fibers: listed by pages, deleted on request or by age.

Questions about many fibers are answered from a catalogue in memory with a few fields of each row. Entries are trusted by the version of
their row, so nothing has to keep them up to date. The catalogue is read in pieces where nobody waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import NamedTuple

from perdure.actors.code.author_call import tried
from perdure.actors.jobs.fiber import FiberPage
from perdure.actors.jobs.fiber_store import FiberStore, GroupCommit
from perdure.actors.jobs.schedule_requests import instant
from perdure.actors.life.documents import Documents
from perdure.actors.life.life import Life
from perdure.ledger import BadRequest, check_whole, check_words
from perdure.ledger.storage.agent_storages import FIBER_CARE, Transaction
from perdure.policies import FIBER_CLEANED, FIBER_SETTLED, FiberStatus, SettledFiber, outlived

LISTED_MAX, DELETED_MAX = 500, 1_000
READ_AT_ONCE = 100
CARE_MS = 86_400_000


class _Entry(NamedTuple):
    version: int
    number: int
    name: str
    status: FiberStatus
    life: int
    settled_at_ms: int
    is_managed: bool
    is_waiting: bool


class FiberRecords:
    """All fibers of one agent, whether they are over or not."""

    def __init__(self, life: Life, store: FiberStore, together: GroupCommit) -> None:
        self._life, self._store, self._together = life, store, together
        self._care_at_ms: Documents[int] = Documents(life, FIBER_CARE)
        self._entries: dict[str, _Entry] = {}
        self._settled: int | None = None
        self._is_caring = False

    # asked by the author

    def page(self, status: str | Sequence[str] | None, name: str | None, limit: int, cursor: str | None) -> FiberPage:
        """Some fibers, the newest first."""
        statuses = check_words("status", status, FiberStatus)
        before = _place(cursor)
        check_whole("limit", limit, most=LISTED_MAX)
        self._read(self._stale())
        found = sorted(
            (entry.number, fiber_id)
            for fiber_id, entry in self._entries.items()
            if entry.is_managed and self._status(entry) in statuses and name in (None, entry.name)
        )
        # One more than is shown tells whether there is another page.
        here = [each for each in reversed(found) if before is None or each < before][: limit + 1]
        rows = self._store.rows.some(each[1] for each in here[:limit])
        shown = tuple(self._store.inspected(rows[fiber_id]) for _, fiber_id in here[:limit] if fiber_id in rows)
        number, last_id = here[limit - 1] if len(here) > limit else (0, "")
        return FiberPage(shown, f"{number}:{last_id}" if last_id else None)

    def delete(self, settled_before: float | datetime | None, status: str | Sequence[str] | None, limit: int) -> int:
        """Delete settled fibers, the longest settled first. Interrupted ones are deleted only if `status` names them."""
        statuses = check_words("status", status, FIBER_SETTLED) if status is not None else frozenset(FIBER_CLEANED)
        before_ms = None if settled_before is None else instant("settled_before", settled_before)
        check_whole("limit", limit, most=DELETED_MAX)
        self._read(self._stale())
        found = sorted(
            (entry.settled_at_ms, fiber_id)
            for fiber_id, entry in self._entries.items()
            if entry.settled_at_ms
            and entry.status in statuses
            and (before_ms is None or entry.settled_at_ms < before_ms)
        )
        return self._drop([fiber_id for _, fiber_id in found[:limit]], statuses)

    def _drop(self, fiber_ids: list[str], statuses: Collection[FiberStatus]) -> int:
        def drop(transaction: Transaction) -> int:
            rows = [self._store.find(fiber_id) for fiber_id in fiber_ids]
            gone = [row for row in rows if row is not None and row.is_settled and row.status in statuses]
            for row in gone:
                self._store.drop(transaction, row)
            return len(gone)

        if not fiber_ids:
            return 0
        dropped = self._store.change(drop)
        self._settled = None
        return dropped

    # the catalogue

    def _status(self, entry: _Entry) -> FiberStatus:
        is_at_work = entry.status == FiberStatus.RUNNING and not entry.is_waiting
        is_cut_off = is_at_work and entry.life != self._life.incarnation
        return FiberStatus.INTERRUPTED if is_cut_off else entry.status

    def _stale(self) -> list[str]:
        """The fibers whose entry is outdated. Entries of deleted fibers are removed."""
        versions, known = self._store.rows.versions(), self._entries
        if len(versions) < len(known):
            known = self._entries = {each: known[each] for each in versions if each in known}
        return [each for each, version in versions.items() if each not in known or known[each].version != version]

    def _read(self, fiber_ids: list[str]) -> None:
        if not fiber_ids:
            return
        stored = self._store.rows
        with self._life.storage.committing:
            found = {
                fiber_id: _Entry(
                    stored.version(fiber_id),
                    row.number,
                    row.name,
                    row.status,
                    row.life,
                    row.settled_at_ms,
                    row.is_managed,
                    row.is_waiting,
                )
                for fiber_id, row in stored.some(fiber_ids).items()
            }
        for fiber_id in fiber_ids:
            self._entries.pop(fiber_id, None)
        self._entries |= found

    # retention

    def woken(self) -> None:
        """Delete old records once a day."""
        if not self._store.rows.keys():
            return
        at_ms = self._care_at_ms.get("")
        if at_ms is None:
            self._store.change(self._care_later)
        elif not 0 < at_ms - self._life.now_ms() <= CARE_MS:  # it is due, or the clock was set back since
            self._care_soon()

    def _care_later(self, transaction: Transaction) -> None:
        interval_ms = min(CARE_MS, self._life.limits.fibers_kept_ms)
        self._care_at_ms.put(transaction, "", int(self._life.now_ms() + interval_ms))

    def settled(self) -> None:
        """One more fiber is over. The limit has some slack, so that not every end brings a deletion."""
        if self._settled is None:
            self._settled = len(self._store.rows.keys()) - len(self._store.open_ids())
        else:
            self._settled += 1
        kept_max = self._life.limits.fibers_kept_max
        if self._settled > kept_max + max(10, kept_max // 10):
            self._care_soon()

    def _care_soon(self) -> None:
        if not self._is_caring:
            self._is_caring = True
            self._life.spawn(self._care())

    async def _care(self) -> None:
        _, problem = await tried(self._prune())
        self._is_caring = False
        if problem is not None and not self._life.is_leaving:
            self._life.trouble("deleting old fibers", problem)

    async def _prune(self) -> None:
        stale = self._stale()
        for first in range(0, len(stale), READ_AT_ONCE):
            self._read(stale[first : first + READ_AT_ONCE])
            await asyncio.sleep(0)
        settled = [
            SettledFiber(fiber_id, entry.status, entry.settled_at_ms)
            for fiber_id, entry in self._entries.items()
            if entry.settled_at_ms
        ]
        old = outlived(settled, self._life.now_ms(), self._life.limits)
        for first in range(0, len(old), READ_AT_ONCE):
            self._drop(old[first : first + READ_AT_ONCE], FIBER_CLEANED)
            await asyncio.sleep(0)
        self._settled = len(settled) - len(old)
        await self._together(self._care_later)


def _place(cursor: str | None) -> tuple[int, str] | None:
    if cursor is None:
        return None
    number, _, fiber_id = cursor.partition(":") if isinstance(cursor, str) else ("", "", "")
    if not number.isdecimal() or not fiber_id:
        raise BadRequest("cursor", f"{cursor!r} is no cursor of a page of fibers")
    return int(number), fiber_id
