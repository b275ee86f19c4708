"""Perdure's own records in an agent's storage: the rows of `perdure.records`, folded.

The records are a log. A row is never updated: a new value of a state key, of a result or of a step is a new row with a higher
number, a deletion of a state key is a row without a body, and rows that nothing needs any more are *garbage*, deleted many at
once by the storage's next sweep. So the framework's part of a commit is one `INSERT` whatever happened in it (measured: three
state keys 0.8 ms, against 1.7 ms as an upsert), and the number of a key's latest row is at the same time the key's version, by
which a conflict is found. `clock` is the next number; it also counts commits that wrote no row, and it never goes back. The next life
finds a clock of `durable` at least, unless the storage has lost something.

What was forgotten (settled mail, flushed outbox rows, finished runs) is named by a `gone` row that rides in the next commit.
A crash before that commit brings it back. That is harmless: the ledger has settled it, and forgetting is repeated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final, NamedTuple

from perdure.ledger.codec import pack, unpack
from perdure.ledger.errors import StaleIncarnation, StorageError

SCHEMA_VERSION: Final = 1

STATE, INBOX, OUTBOX, RESULT, STEP, GONE = "state", "inbox", "outbox", "result", "step", "gone"
MESSAGE, TURN, OPEN, KEY, CHUNKS, CALL, GUARD = "message", "turn", "open", "key", "chunks", "call", "guard"
FEED, SUMMARY = "feed", "summary"
FIBER, FIBER_OPEN, FIBER_KEY, FIBER_INPUT, FIBER_STASH, FIBER_STEP, FIBER_CARE, FIBER_EVENT, FIBER_HEARD = (
    "fiber",
    "fiber_open",
    "fiber_key",
    "fiber_input",
    "fiber_stash",
    "fiber_step",
    "fiber_care",
    "fiber_event",
    "fiber_heard",
)
SCHEDULE, SCHEDULE_HISTORY, QUEUED = "schedule", "schedule_history", "queued"
HEARD, REPLY, POST, SHELF = "heard", "reply", "post", "shelf"
SUB_AGENT, VERSION = "sub-agent", "version"

Key = tuple[str, str]
KEYS: Key = ("keys", "")  # stands for the set of all state keys: who iterated depends on it


class Row(NamedTuple):
    """One record. `key` is a state key, a mail id, a run id, a document's name, or for a step the run id and the name (`step_key`)."""

    kind: str
    key: str
    body: bytes | None


def refuse_newer(agent_id: str, version: int) -> None:
    if version > SCHEMA_VERSION:
        raise StorageError(agent_id, f"a newer Perdure wrote it (schema {version}, this one knows {SCHEMA_VERSION})")


# Whose a storage is stands in a database's `meta` and in a log's head.
def refuse_stranger(agent_id: str, incarnation: int, *, owner: str, latest: int, version: int) -> None:
    refuse_newer(agent_id, version)
    if owner != agent_id:
        raise StorageError(agent_id, f"the file in its place is the storage of {owner!r}; put each back under its name")
    if latest > incarnation:
        raise StaleIncarnation(agent_id, f"incarnation {latest} has taken over from {incarnation}")


def step_key(run_id: str, name: str) -> str:
    # A run id contains no NUL, so the first one ends it.
    return f"{run_id}\0{name}"


class Records:
    """The fold of the rows. Guarded by the storage's commit lock; a single look-up needs no lock."""

    def __init__(self, clock: int = 1) -> None:
        self.clock = self.durable = clock
        self.state: dict[str, bytes] = {}
        self.outbox: dict[int, bytes] = {}
        self.garbage: list[int] = []
        self._numbers: defaultdict[str, dict[str, int]] = defaultdict(dict)
        self._forgotten: list[int] = []
        self._tombstones: set[Key] = set()

    def load(self, stored: Iterable[tuple[int, Row]]) -> None:
        # The rows come in the order of their numbers.
        rows = list(stored)
        gone = {number for _, row in rows if row.kind == GONE for number in unpack(row.body or b"\x90")}
        for number, row in rows:
            self.clock = max(self.clock, number + 1)
            if number in gone:
                self.garbage.append(number)
            else:
                self._fold(number, row)
        self.durable = self.clock
        self.purge()

    def claim(self, rows: list[Row]) -> list[Row]:
        # One more row makes earlier forgetting durable. The rows are numbered from `clock` on.
        return [*rows, Row(GONE, "", pack(self._forgotten))] if self._forgotten else rows

    def committed(self, rows: list[Row]) -> None:
        # The clock counts a commit even if it had no rows.
        for number, row in enumerate(rows, self.clock):
            self._fold(number, row)
        if rows and rows[-1].kind == GONE:
            self._forgotten.clear()
        self.durable = self.clock + len(rows) if rows else self.durable
        self.clock += len(rows) + 1

    @property
    def has_forgotten(self) -> bool:
        return bool(self._forgotten)

    def version(self, key: Key) -> int:
        """The number of the latest row under this key; 0 if there is none."""
        return self._numbers[key[0]].get(key[1], 0)

    def keys(self, kind: str) -> list[str]:
        # oldest first
        return list(self._numbers[kind])

    def versions(self, kind: str) -> dict[str, int]:
        return dict(self._numbers[kind])

    def forget(self, keys: Iterable[Key]) -> None:
        for number in filter(None, [self._numbers[kind].pop(key, 0) for kind, key in keys]):
            self._discard(number)

    def forget_outbox(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if self.outbox.pop(number, None) is not None:
                self._discard(number)

    def swept(self, numbers: list[int]) -> None:
        # These first rows of the garbage are no longer in the file.
        del self.garbage[: len(numbers)]
        self.durable = self.clock
        done = set(numbers)
        self._forgotten = [number for number in self._forgotten if number not in done]

    def purge(self) -> None:
        # The versions of deleted state keys go. Only when no transaction is open that might have seen them.
        for kind, key in self._tombstones:
            del self._numbers[kind][key]
        self._tombstones.clear()

    def _discard(self, number: int) -> None:
        self.garbage.append(number)
        self._forgotten.append(number)

    def _fold(self, number: int, row: Row) -> None:
        if row.kind == GONE:
            self.garbage.append(number)
        elif row.kind == OUTBOX:
            self.outbox[number] = row.body or b""
        else:
            numbers = self._numbers[row.kind]
            if row.key in numbers:
                self.garbage.append(numbers[row.key])
            numbers[row.key] = number
            if row.kind == STATE:
                self._fold_state(number, row)
            elif row.body is None:  # a document is deleted
                self.garbage.append(number)
                del numbers[row.key]

    def _fold_state(self, number: int, row: Row) -> None:
        key = (row.kind, row.key)
        if (row.key in self.state) != (row.body is not None):
            self._numbers[KEYS[0]][KEYS[1]] = number
        if row.body is None:
            self.state.pop(row.key, None)
            self.garbage.append(number)
            self._tombstones.add(key)
        else:
            self.state[row.key] = row.body
            self._tombstones.discard(key)
