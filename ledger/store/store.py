"""What a ledger store must do: keep facts in order, and give them back after any crash.

A store does not know what facts mean. It receives encoded *rows*, makes a group of them durable at once, and keeps a *snapshot* (one row
per record), so that a boot reads only what is live. There are two: `MemoryStore` and `DuckDBStore`. One contract test holds for both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from perdure.ledger.errors import BucketUnreachable
    from perdure.ledger.storage.patches import Patch, StorageImage
    from perdure.ledger.storage.signed_storage import SignedStorage

First = Literal["oldest", "newest"]
"""Which end of a list comes first, by the time of the request."""


class FactRow(NamedTuple):
    """One fact as it is stored. `frame` is the run's event number if the fact is also an event of its run's stream, else None."""

    seq: int
    at_ms: int
    subject: str
    frame: int | None
    kind: str
    body: bytes


class BatchRow(NamedTuple):
    """Consecutive facts of runs, from number `seq` on, that were written together (`batches`). `facts` says how many."""

    seq: int
    at_ms: int
    facts: int
    kind: str
    body: bytes


Row: TypeAlias = FactRow | BatchRow
"""What is made durable: a fact, or many at once."""


# A full input or output that is too large to stand in its fact. `part` is `"input"` or `"output"`.
class Payload(NamedTuple):
    run_id: str
    part: str
    body: bytes


class Record(NamedTuple):
    """One record of the snapshot: the folded state of a run, an agent or a mail at the time of a checkpoint.

    `table` is `"runs"`, `"agents"` or `"mail"`; `live` says whether a boot needs it; `columns` are the values that SQL readers
    see beside the opaque `body` (see `schema.sql`): for runs `(status, agent_type, parent, requested_at_ms, ended_at_ms,
    first_seq, last_seq)`, for agents `(host_id, incarnation)`, for mail `(recipient, state, run_id)`.
    """

    table: str
    key: str
    live: bool
    columns: tuple[str | int | None, ...]
    body: bytes


class Boot(NamedTuple):
    """What a supervisor reads when it starts: the live records, the rows of the facts after the snapshot, the records these facts change;
    and how many runs of each status the snapshot holds that are not live."""

    meta: bytes | None
    records: list[Record]
    rows: list[Row]
    findings: list[str]
    ended: Mapping[str, int] = MappingProxyType({})


class Wanted(NamedTuple):
    """Which runs are asked for. None, no words and False stand for any.

    Args:
        words: in their id, type or parent, whatever the case.
        before: only those that a fact before this one requested.
        run_ids: only these.
        prefix: of their ids.
        since_ms, until_ms: when they were requested: from the one instant on, and before the other.
        ended_since_ms, ended_until_ms: the same of their ends; what has not ended is none of them.
        error: words in what went wrong, whatever the case: the error, or why a run was given up or parked. What became of that is decided
            by whoever can read a run's body (`chosen_runs`), so a store gives all that may have such words.
        parked: only runs that are parked.
        retriable: only runs that can be tried again: those that failed, were given up, or are parked.
        undoing: only runs that undo their steps.
    """

    parent: str | None = None
    agent_type: str | None = None
    statuses: list[str] | None = None
    words: str = ""
    before: int | None = None
    run_ids: list[str] | None = None
    prefix: str = ""
    since_ms: float | None = None
    until_ms: float | None = None
    ended_since_ms: float | None = None
    ended_until_ms: float | None = None
    error: str = ""
    parked: bool = False
    retriable: bool = False
    undoing: bool = False

    @property
    def is_of_live(self) -> bool:
        # Only live runs can be meant.
        return self.parked or self.undoing


class Store(Protocol):
    """The durable side of the ledger. Every method blocks. The supervisor calls `append`, `records` and `family_runs` from one thread, and
    the others from a second one, which commits do not wait for; `known_among` from any."""

    carries_storages: bool
    """Whether it is a `CarryingStore`."""
    is_followed: bool
    """Whether it is a `maintenance.replicated_store.ReplicatedStore`."""

    def boot(self) -> Boot:
        """Read what a start needs, and mend what has a second copy. `findings` says what was found and done."""

    def append(self, rows: Sequence[Row], payloads: list[Payload]) -> None:
        """Make a group of facts durable: all of them or none. Any error means that the store must not be used again. A boot gives a
        batch back as it was written, and every other question as its members."""

    def look(self) -> None:
        """Raise `DirectoryElsewhere` if what is written does not lie at its path any more. `append` looks by itself; this waits for
        nothing, so any thread may call it."""

    def follow(self) -> None:
        """Let what answers questions catch up with what is durable. Only the cost of a later question depends on it."""

    def checkpoint(self, meta: bytes, upto_seq: int, records: list[Record], forgotten: list[str]) -> None:
        """Replace these records in the snapshot, which now covers all facts up to `upto_seq`, and remove every trace (record, facts,
        payloads) of the `forgotten` runs."""

    def records(self, table: str, keys: list[str]) -> list[Record]:
        """The snapshot's records under these keys; missing ones are left out."""

    def known_among(self, keys: Iterable[str]) -> list[str]:
        """Those of these keys under which the snapshot may have a run or an agent. It has none under the others. Neither a disk nor a lock
        is waited for, so any thread may ask."""

    def wanted_runs(self, wanted: Wanted, limit: int, first: First = "newest") -> list[Record]:
        """The snapshot's runs that are wanted and not live, newest or oldest request first, by the numbers of the facts that requested
        them."""

    def family_runs(self, agent: str, limit: int) -> list[Record]:
        """The snapshot's runs that are not live and that an agent or its descendants requested, oldest request first."""

    def settled_before(self, before_ms: float, after: tuple[int, str], limit: int) -> list[Record]:
        """The snapshot's runs with a hard end before an instant, by the time of their end and their ids, after such a pair."""

    def runs_of(self, agents: list[str], limit: int) -> list[Record]:
        """The snapshot's runs that are not live, and that these agents or their sub-agents requested."""

    def agents(self, after: str, limit: int) -> list[Record]:
        """The snapshot's agents after this one, by their addresses."""

    def facts(
        self, subject: str, after_frame: int = -1, *, frames_only: bool = False, limit: int = 100_000
    ) -> list[FactRow]:
        """A run's facts in order. With `frames_only`, just its events after number `after_frame`."""

    def frames(self, subjects: list[str], first_seq: int, last_seq: int) -> list[FactRow]:
        """The events of these runs among the facts of these numbers, in order."""

    def payload(self, run_id: str, part: str) -> bytes | None:
        """A large input or output, or None if it was never stored apart."""

    def rows(self, query: str, parameters: list[object]) -> list[tuple[object, ...]]:
        """Answer a read-only SQL query over `runs`, `facts`, `agents` and `mail`. The memory store refuses with `LedgerError`."""

    def close(self) -> None:
        """Release the file. Idempotent."""


class CarryingStore(Store, Protocol):
    """A store that has the agents' storages too, which then lie in no directory that hosts share."""

    cache_dir: str
    """The directory of this machine that is a cache of what is in this store; empty if there is none."""

    def append(self, rows: Sequence[Row], payloads: list[Payload], patches: Sequence[Patch] = ()) -> None:
        """As that of every store; with the facts become durable the patches of storages of which they speak."""

    def storage(self, agent_id: str) -> StorageImage | None:
        """The storage of an agent; None if it has none. Raises `LedgerDamaged` if it cannot be read."""

    def storage_for_host(self, agent_id: str, inline_max: float) -> StorageImage | SignedStorage | None:
        """The same for a host, which reads by itself what it can, if the base has more than `inline_max` bytes."""

    def may_have_storage(self, agent_id: str) -> bool:
        """False if an agent surely has no storage, told from memory. Any thread may ask."""

    def patches_of(self, agent_id: str) -> int:
        """How many patches the storage of an agent has; 0 if there is none."""

    def storages_of(self, agent_id: str) -> list[str]:
        """The agents among this one and its descendants that have storages; of an empty address, all."""

    def attend(self) -> None:
        """Answer those that ask whether this life goes on. To be called every `ATTEND_S`, from one thread, for which nothing waits: it may
        take as long as the store does not answer. Raises a `LedgerError` if another life has begun."""

    def depart(self) -> None:
        """Say that this life is over and no other one follows by itself, so that whoever comes next need not ask. It is closed by then."""

    def unreachable(self) -> BucketUnreachable | None:
        """Why nothing becomes durable now, if it is far away and has not answered for a while. Any thread may ask."""
