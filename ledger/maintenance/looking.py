"""What lies in the storages of agents, read from copies of their files in a directory, or of what a bucket has of them: an agent that
sleeps is not woken, one at work is not held up.

What is found is what was durable at that moment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import duckdb

from perdure.ledger.duckdb_format import is_damage
from perdure.ledger.errors import WAY_OUT, BadRequest, LedgerDamaged, StorageError, StorageLost
from perdure.ledger.maintenance.copies import CopyReader, QueryResult, copy_storage, read_records
from perdure.ledger.maintenance.listing import list_storages
from perdure.ledger.storage.after_power_cut import redo
from perdure.ledger.storage.file_disk import is_log_at, place_of, stored_below
from perdure.ledger.storage.patches import MAIN
from perdure.ledger.storage.this_machine import boot_id
from perdure.policies import INFINITY

if TYPE_CHECKING:
    from perdure.ledger.store.bucket_store import BucketStore  # which brings what reaches buckets with it

ROWS_MAX = 1_000  # of an answer to a query
_RECORDS = "SELECT number, kind, key, body FROM {0}.perdure.records WHERE kind IN ({1})"
_TABLES = """SELECT table_name, string_agg(column_name || ' ' || data_type, ', ' ORDER BY column_index) FROM duckdb_columns()
    WHERE database_name = $1 AND schema_name = 'main' GROUP BY table_name ORDER BY table_name"""


class DirectorySource:
    """The storages of a ledger whose files lie in a directory. Each has a place, which is a word for it."""

    def __init__(self, directory: Path) -> None:
        self.name = str(directory)
        self._directory = directory

    def places(self, bytes_max: float = INFINITY) -> list[str]:
        # Those that are not larger. Those that were written last come first.
        if not self._directory.is_dir():
            return []
        found = list_storages(self._directory).storages
        stamps = {place: [stamp for stamp in each if stamp is not None] for place, each in found.items()}
        small = [place for place, each in stamps.items() if sum(size for _, size, _ in each) <= bytes_max]
        return sorted(small, key=lambda place: -max(written_ns for _, _, written_ns in stamps[place]))

    def place_of(self, agent_id: str) -> str:
        redo(self._directory, boot_id())
        return place_of(agent_id)

    def below(self, agent_id: str) -> int:
        # How many storages there are of what descends from an agent.
        return stored_below(self._directory, agent_id)

    def has(self, agent_id: str) -> bool:
        """Whether an agent, or what descends from it, has a storage, which may be damaged."""
        return (self._directory / self.place_of(agent_id)).exists() or self.below(agent_id) > 0

    def copy(self, place: str, target: Path) -> bool:
        """Copy a storage to `target`, and what belongs to it beside it. Returns whether there is one. Raises `StorageError`, `OSError`."""
        return copy_storage(self._directory / place, target) is not None


class BucketSource:
    """The same of a ledger in a bucket, which has been opened; the places are the addresses of the agents."""

    def __init__(self, store: BucketStore) -> None:
        self.name = store.url
        self._store = store

    def places(self, bytes_max: float = INFINITY) -> list[str]:
        return [agent for agent, size in self._store.newest_storages().items() if size <= bytes_max]

    def place_of(self, agent_id: str) -> str:
        return agent_id

    def below(self, agent_id: str) -> int:
        return sum(each != agent_id for each in self._store.storages_of(agent_id))

    def has(self, agent_id: str) -> bool:
        return bool(self._store.storages_of(agent_id))

    def copy(self, place: str, target: Path) -> bool:
        try:
            image = self._store.storage(place)
        except LedgerDamaged as damage:
            raise StorageLost(place, f"{damage.path}: {damage.problem}. {damage.advice}") from damage
        if image is None or MAIN not in image.files:
            return False
        for old in target.parent.glob(f"{target.name}*"):
            old.unlink()
        for ending, content in image.files.items():
            target.with_name(target.name + ending).write_bytes(content)
        return True


StorageSource: TypeAlias = DirectorySource | BucketSource


class Looked(NamedTuple):
    """A storage: whose it is (empty if nothing was committed yet), the agent's last life, and the records of the kinds that were asked for,
    by kind and key, in the order in which they were written. `problem` says why it cannot be read."""

    place: str
    agent_id: str
    incarnation: int
    records: dict[str, dict[str, bytes]]
    problem: str = ""


class Table(NamedTuple):
    name: str
    columns: str
    rows: int


def look(source: StorageSource, places: Collection[str], kinds: Collection[str]) -> Iterator[Looked]:
    # A storage that is deleted meanwhile is left out.
    with TemporaryDirectory(prefix="perdure-look-") as folder, CopyReader() as reader:
        copy = Path(folder) / "copy.db"
        for place in places:
            found = _copied(reader, source, place, copy, kinds)
            if found is not None:
                yield found


def _copied(reader: CopyReader, source: StorageSource, place: str, copy: Path, kinds: Collection[str]) -> Looked | None:
    try:
        if not source.copy(place, copy):
            return None
        if is_log_at(copy):
            reading, rows = read_records(copy)
            agent = "" if reading.head is None else reading.head.agent_id
            found = (row for _, row in rows if row.kind in kinds)
            return Looked(place, agent, reading.incarnation, _folded(found, kinds))
        with reader.attached(copy) as name:
            return _looked(reader, name, place, kinds)
    except (StorageError, OSError, duckdb.Error) as problem:
        return Looked(place, "", 0, {}, str(problem).partition("\n")[0])


def _looked(reader: CopyReader, name: str, place: str, kinds: Collection[str]) -> Looked:
    owner = reader.ask(f"SELECT agent_id, incarnation FROM {name}.perdure.meta").rows
    agent, incarnation = owner[0] if owner else ("", 0)
    rows = reader.ask(_RECORDS.format(name, ", ".join("?" * len(kinds))), *kinds).rows
    return Looked(place, agent, incarnation, _folded((row[1:] for row in sorted(rows, key=itemgetter(0))), kinds))


def _folded(rows: Iterable[tuple[Any, ...]], kinds: Collection[str]) -> dict[str, dict[str, bytes]]:
    found: dict[str, dict[str, bytes]] = {kind: {} for kind in kinds}
    for kind, key, body in rows:
        found[kind].pop(key, None)
        if body is not None:  # else it is deleted
            found[kind][key] = body
    return found


class OneStorage:
    """A copy of one storage, with what its author keeps in it."""

    def __init__(self, reader: CopyReader, name: str, place: str) -> None:
        self._reader, self._name, self._place = reader, name, place

    def look(self, kinds: Collection[str]) -> Looked:
        return _looked(self._reader, self._name, self._place, kinds)

    def tables(self) -> list[Table]:
        found = self._reader.ask(_TABLES, self._name).rows
        counts = (self._reader.ask(f'SELECT count(*) FROM {self._name}.main."{name}"').rows for name, _ in found)
        return [Table(name, columns, count[0][0]) for (name, columns), count in zip(found, counts, strict=True)]

    def ask(self, query: str) -> QueryResult:
        """Ask by SQL, which can change nothing and reads no other file. Raises `BadRequest`."""
        try:
            if not duckdb.extract_statements(query):
                raise BadRequest("sql", "it asks nothing; write a statement, such as SELECT * FROM a_table LIMIT 10")
            self._reader.ask(f"USE {self._name}")
            self._reader.ask("SET enable_external_access = false")
            answer = self._reader.ask(query)
        except duckdb.Error as problem:
            if is_damage(problem):
                raise StorageLost(self._place, f"it is damaged ({problem}). {WAY_OUT}") from problem
            raise BadRequest("sql", str(problem)) from problem
        return answer._replace(rows=answer.rows[:ROWS_MAX])


@contextmanager
def opened_copy(source: StorageSource, agent_id: str) -> Iterator[OneStorage | None]:
    """A copy of the storage of an agent; None if it has none. Raises `StorageError` if it cannot be read."""
    place = source.place_of(agent_id)
    with TemporaryDirectory(prefix="perdure-look-") as folder, CopyReader() as reader:
        copy = Path(folder) / "copy.db"
        try:
            if not source.copy(place, copy):
                yield None
                return
            with reader.attached(copy) as name:
                yield OneStorage(reader, name, place)
        except (OSError, duckdb.Error) as problem:
            raise StorageError(agent_id, f"{source.name}/{place} cannot be read: {problem}") from problem
