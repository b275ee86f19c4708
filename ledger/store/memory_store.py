"""The ledger in memory: the store of the simulator and of tests.

It belongs to the simulated world, so it outlives a simulated death of the supervisor: `close` and `boot` only shut and open it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NoReturn

from perdure.ledger.errors import LedgerError
from perdure.ledger.ids import is_within
from perdure.ledger.status import HARD, RETRIABLE, Status
from perdure.ledger.storage.patches import Patch, StorageImage, image_after
from perdure.ledger.storage.signed_storage import SignedStorage
from perdure.ledger.store.batches import changed_by, expand_rows
from perdure.ledger.store.store import Boot, FactRow, First, Payload, Record, Row, Wanted

TABLES = ("runs", "agents", "mail")


class MemoryStore:
    """A `Store` that keeps everything in dictionaries, and refuses what `DuckDBStore` refuses."""

    cache_dir = ""

    is_followed = False

    def __init__(self, *, carries_storages: bool = False) -> None:
        self.carries_storages = carries_storages
        self._storages: dict[str, StorageImage] = {}
        self._open = True
        self._meta: bytes | None = None
        self._snapshot_seq = 0
        self._facts: dict[str, list[FactRow]] = {}
        self._recent: list[Row] = []
        self._payloads: dict[tuple[str, str], tuple[int, bytes]] = {}
        self._records: dict[str, dict[str, Record]] = {table: {} for table in TABLES}
        self._last_seq = 0

    def boot(self) -> Boot:
        self._open = True
        rows = list(self._recent)
        touched = changed_by(rows)
        called_for = {str(mail.columns[2]) for mail in self._records["mail"].values() if mail.live}
        records = []
        for table in TABLES:
            wanted = touched | called_for if table == "runs" else touched
            chosen = [record for record in self._records[table].values() if record.live or record.key in wanted]
            records += sorted(chosen, key=boot_order)
        ended = Counter(str(run.columns[0]) for run in self._records["runs"].values() if not run.live)
        return Boot(self._meta, records, rows, [], dict(ended))

    def append(self, rows: Sequence[Row], payloads: list[Payload], patches: Sequence[Patch] = ()) -> None:
        self._check()
        for patch in patches:
            image = image_after(self._storages.pop(patch.agent_id, None), [patch])
            if image is not None:
                self._storages[patch.agent_id] = image
        facts = expand_rows(rows)
        if not facts and not payloads:
            return
        numbers = [fact.seq for fact in facts]
        if not facts or numbers != list(range(self._last_seq + 1, self._last_seq + 1 + len(facts))):
            raise AssertionError(f"a commit after fact {self._last_seq} has the numbers {numbers[:10]}")
        self._last_seq = facts[-1].seq
        self._recent += rows
        for fact in facts:
            self._facts.setdefault(fact.subject, []).append(fact)
        home = {fact.subject: fact.seq for fact in facts} if payloads else {}
        for payload in payloads:
            self._payloads[payload.run_id, payload.part] = (home.get(payload.run_id, self._last_seq), payload.body)

    def attend(self) -> None: ...

    def depart(self) -> None: ...

    def unreachable(self) -> None:
        return None

    def storage(self, agent_id: str) -> StorageImage | None:
        return self._storages.get(agent_id)

    def storage_for_host(self, agent_id: str, inline_max: float) -> StorageImage | SignedStorage | None:
        return self.storage(agent_id)

    def may_have_storage(self, agent_id: str) -> bool:
        return agent_id in self._storages

    def patches_of(self, agent_id: str) -> int:
        image = self._storages.get(agent_id)
        return 0 if image is None else image.number

    def storages_of(self, agent_id: str) -> list[str]:
        return [each for each in self._storages if not agent_id or is_within(each, agent_id)]

    def look(self) -> None: ...

    def follow(self) -> None:
        self._check()

    def checkpoint(self, meta: bytes, upto_seq: int, records: list[Record], forgotten: list[str]) -> None:
        self._check()
        if not self._snapshot_seq <= upto_seq <= self._last_seq:
            raise AssertionError(f"a snapshot up to {upto_seq} between {self._snapshot_seq} and {self._last_seq}")
        self._forget(forget_bounds(upto_seq, records, forgotten))
        for record in records:
            if record.live or record.body:
                self._records[record.table][record.key] = record
            else:
                self._records[record.table].pop(record.key, None)
        self._meta, self._snapshot_seq = meta, upto_seq
        self._recent = [row for row in self._recent if row.seq > upto_seq]

    def records(self, table: str, keys: list[str]) -> list[Record]:
        self._check()
        kept = self._records[table]
        return [kept[key] for key in dict.fromkeys(keys) if key in kept]

    def known_among(self, keys: Iterable[str]) -> list[str]:
        self._check()
        return [key for key in keys if key in self._records["runs"] or key in self._records["agents"]]

    def wanted_runs(self, wanted: Wanted, limit: int, first: First = "newest") -> list[Record]:
        """The snapshot's runs that are wanted and not live, by their requests."""
        self._check()

        def first_seq(record: Record) -> int:
            return int(record.columns[5] or 0)

        def is_wanted(record: Record) -> bool:
            status, its_type, its_parent, requested_ms, ended_ms, *_ = record.columns
            return (
                not record.live
                and not wanted.is_of_live
                and wanted.parent in (None, its_parent)
                and wanted.agent_type in (None, its_type)
                and (wanted.statuses is None or status in wanted.statuses)
                and any(wanted.words.lower() in str(each).lower() for each in (record.key, its_type, its_parent))
                and (wanted.before is None or first_seq(record) < wanted.before)
                and (wanted.run_ids is None or record.key in wanted.run_ids)
                and record.key.startswith(wanted.prefix)
                and _is_within(requested_ms, wanted.since_ms, wanted.until_ms)
                and _is_within(ended_ms, wanted.ended_since_ms, wanted.ended_until_ms)
                and not (wanted.error and status == Status.COMPLETED)
                and not (wanted.retriable and status not in RETRIABLE)
            )

        return sorted(filter(is_wanted, self._records["runs"].values()), key=first_seq, reverse=first == "newest")[
            :limit
        ]

    def family_runs(self, agent: str, limit: int) -> list[Record]:
        self._check()
        runs = self._records["runs"].values()
        return sorted((run for run in runs if not run.live and is_within(str(run.columns[2]), agent)), key=_age)[:limit]

    def settled_before(self, before_ms: float, after: tuple[int, str], limit: int) -> list[Record]:
        self._check()
        found = ((each.columns[4], key, each) for key, each in self._records["runs"].items() if each.columns[0] in HARD)
        ended = [(at, key, each) for at, key, each in found if isinstance(at, int) and not each.live]
        ordered = sorted((at, key) for at, key, _ in ended if at < before_ms and (at, key) > after)
        return [self._records["runs"][key] for _, key in ordered[:limit]]

    def runs_of(self, agents: list[str], limit: int) -> list[Record]:
        self._check()
        roots, runs = set(agents), self._records["runs"].values()
        theirs = (run for run in runs if not run.live and str(run.columns[2]).partition(">")[0] in roots)
        return sorted(theirs, key=_age)[:limit]

    def agents(self, after: str, limit: int) -> list[Record]:
        self._check()
        return [record for key, record in sorted(self._records["agents"].items()) if key > after][:limit]

    def facts(
        self, subject: str, after_frame: int = -1, *, frames_only: bool = False, limit: int = 100_000
    ) -> list[FactRow]:
        self._check()
        rows = self._facts.get(subject, [])
        if frames_only:
            rows = [row for row in rows if row.frame is not None and row.frame > after_frame]
        return rows[:limit]

    def frames(self, subjects: list[str], first_seq: int, last_seq: int) -> list[FactRow]:
        found = [row for subject in set(subjects) for row in self.facts(subject, frames_only=True)]
        return sorted(row for row in found if first_seq <= row.seq <= last_seq)

    def payload(self, run_id: str, part: str) -> bytes | None:
        self._check()
        return self._payloads.get((run_id, part), (0, None))[1]

    def rows(self, query: str, parameters: list[object]) -> NoReturn:
        # a ledger in memory has no SQL
        raise LedgerError("memory", f"a ledger in memory answers no SQL ({query[:40]!r}, {len(parameters)} parameters)")

    def close(self) -> None:
        self._open = False

    def _check(self) -> None:
        if not self._open:
            raise LedgerError("memory", "the ledger is closed")

    def _forget(self, bounds: dict[str, int]) -> None:
        if not bounds:
            return
        for table in TABLES:
            kept = self._records[table]
            theirs = {each.key for each in kept.values() if table == "mail" and each.columns[2] in bounds}
            for key in theirs | bounds.keys():
                kept.pop(key, None)
        for key, bound in bounds.items():
            rows = [row for row in self._facts.pop(key, ()) if row.seq >= bound]
            if rows:
                self._facts[key] = rows
        for place, (seq, _) in list(self._payloads.items()):
            if seq < bounds.get(place[0], 0):
                del self._payloads[place]


def _is_within(at_ms: object, since_ms: float | None, until_ms: float | None) -> bool:
    if since_ms is None and until_ms is None:
        return True
    if not isinstance(at_ms, int):
        return False
    return (since_ms is None or at_ms >= since_ms) and (until_ms is None or at_ms < until_ms)


def forget_bounds(upto_seq: int, records: list[Record], forgotten: list[str]) -> dict[str, int]:
    # The id of a forgotten run may belong to a new run already, which stays.
    if not forgotten:
        return {}
    begins = {each.key: each.columns[5] for each in records if each.table == "runs"}
    return {key: begin if isinstance(begin := begins.get(key), int) else upto_seq + 1 for key in forgotten}


def boot_order(record: Record) -> tuple[int, str]:
    # Runs in the order of their requests, everything else by key, so that each boot from the same ledger is the same.
    first = record.columns[5] if record.table == "runs" else 0
    return (first if isinstance(first, int) else 0, record.key)


def _age(record: Record) -> tuple[int, int, str]:
    requested_at_ms, first_seq = record.columns[3], record.columns[5]
    return (
        requested_at_ms if isinstance(requested_at_ms, int) else 0,
        first_seq if isinstance(first_seq, int) else 0,
        record.key,
    )
