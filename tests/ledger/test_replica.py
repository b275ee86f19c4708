"""A directory that is followed into a bucket: what is there is the directory as it was at a cut, whatever happens on the way."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import duckdb
import pytest

from perdure.ledger.block_guard import BlockGuard
from perdure.ledger.errors import BadRequest, LedgerDamaged, LedgerError, StorageError
from perdure.ledger.maintenance import storage_changes
from perdure.ledger.maintenance.copies import copy_storage
from perdure.ledger.maintenance.replicated_store import Follower, ReplicatedStore
from perdure.ledger.maintenance.storage_changes import StorageChanges
from perdure.ledger.replica_settings import ReplicaSettings, checked_replica, keep_replica, replica_of
from perdure.ledger.storage.agent_storages import AgentStorages, FileDisk
from perdure.ledger.storage.file_disk import place_of
from perdure.ledger.store.bucket import BucketRefused
from perdure.ledger.store.bucket_store import BucketStore
from perdure.ledger.store.duckdb_store import DuckDBStore
from tests.kit import some
from tests.ledger.test_bucket_store import Cloud, fact, found, opened

AGENTS = [f"agent{at}@m:T" for at in range(5)]
Files = dict[str, bytes]


class Directory:
    """A directory at work: agents that write, and a ledger that is followed."""

    def __init__(self, data: Path, cloud: Cloud, scratch: Path) -> None:
        self.data, self.cloud, self.scratch = data, cloud, scratch
        self.facts = 0
        self.lives = 0
        self.disk = FileDisk(data / "agents")
        self.agents = AgentStorages(self.disk)
        self.store = self.life()

    def life(self) -> ReplicatedStore:
        follower = Follower(self.data / "replica" / "ledger", self.cloud, "this directory")
        return ReplicatedStore(self.data, follower, ReplicaSettings("memory:///"))

    def begin(self) -> None:
        self.store = self.life()
        self.store.boot()

    def commit(self) -> None:
        self.facts += 1
        self.store.append([fact(self.facts)], [])

    def checkpoint(self) -> None:
        self.store.checkpoint(b"m", self.facts, [], [])

    def write(self, agent: str, value: object, *, tables: bool = False) -> None:
        self.lives += 1
        storage = self.agents.open(agent, self.lives)
        if tables:
            storage.sql("CREATE TABLE IF NOT EXISTS t (i INTEGER)")
            storage.sql("INSERT INTO t SELECT range FROM range(5000)")
        storage.state["value"] = value
        storage.close()

    def delete(self, agent: str) -> None:
        self.agents.forget_family(agent)

    def follow(self) -> tuple[int, dict[str, Files]]:
        """What the bucket should have when this has returned."""
        self.store.prepare(AGENTS)
        self.store.cut(AGENTS)
        expected = self.facts, self.files()
        self.store.put()
        self.store.tidy()
        return expected

    def files(self) -> dict[str, Files]:
        kept = {}
        for agent in AGENTS:
            copy = self.scratch / "copy.db"
            if copy_storage(self.disk.path_of(agent), copy) is not None:
                parts = {ending: copy.with_name(copy.name + ending) for ending in ("", ".wal")}
                kept[agent] = {ending: part.read_bytes() for ending, part in parts.items() if part.exists()}
        return kept

    def close(self) -> None:
        self.agents.close()
        self.disk.close()
        self.store.close()

    def kill(self) -> None:
        self.store._release()  # noqa: SLF001 - as if its process had died
        self.store._follower._release()  # noqa: SLF001


@pytest.fixture
def cloud() -> Cloud:
    return Cloud()


@pytest.fixture
def directory(tmp_path: Path, cloud: Cloud) -> Iterator[Directory]:
    made = Directory(tmp_path / "data", cloud, tmp_path)
    made.begin()
    yield made
    with suppress(LedgerError):
        made.close()


@contextmanager
def looked_at(path: Path, cloud: Cloud) -> Iterator[BucketStore]:
    rmtree(path, ignore_errors=True)
    store = BucketStore(path, cloud, looks=True)
    store.boot()
    with closing(store):
        yield store


def there(path: Path, cloud: Cloud) -> tuple[int, dict[str, Files]]:
    with looked_at(path, cloud) as store:
        facts = found(store)
        assert facts == list(range(1, len(facts) + 1))
        images = {agent: image.files for agent in AGENTS if (image := store.storage(agent)) is not None}
        return len(facts), images


@pytest.mark.parametrize("seed", some(1, range(3)))
def test_the_bucket_has_the_directory_as_it_was_at_the_last_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    die = random.Random(seed)
    if seed % 2:
        monkeypatch.setattr(storage_changes, "_SEEN_MAX", 1)
    cloud = Cloud(seed, loss=0.05)
    directory = Directory(tmp_path / "data", cloud, tmp_path)
    directory.begin()
    expected = directory.follow()
    for _ in range(40):
        match die.choice(
            ["commit", "commit", "write", "write", "delete", "follow", "checkpoint", "root", "die", "end"]
        ):
            case "commit":
                directory.commit()
            case "write":
                directory.write(die.choice(AGENTS), die.randbytes(die.choice([3, 9_000])), tables=die.random() < 0.2)
            case "delete":
                directory.delete(die.choice(AGENTS))
            case "follow":
                expected = directory.follow()
                assert there(tmp_path / "look", cloud) == expected
            case "checkpoint":
                directory.checkpoint()
            case "root":
                directory.store._follower.root_s = die.choice([0, 600])  # noqa: SLF001
            case "die":
                directory.kill()
                assert there(tmp_path / "look", cloud) == expected, "what was not put is undone everywhere"
                directory.begin()
                expected = there(tmp_path / "look", cloud)  # a life may bring it there at its begin
            case "end":
                directory.store.close()
                expected = directory.facts, directory.files()
                assert there(tmp_path / "look", cloud) == expected
                directory.begin()
    expected = directory.follow()
    directory.store.close()
    directory.agents.close()
    directory.disk.close()
    assert there(tmp_path / "look", cloud) == expected


def test_a_directory_that_has_lived_is_brought_there_as_a_whole(tmp_path: Path, cloud: Cloud) -> None:
    alone = DuckDBStore(tmp_path / "data" / "ledger", fsync=False)
    alone.boot()
    for seq in range(1, 40):
        alone.append([fact(seq)], [])
    alone.checkpoint(b"m", 39, [], [])
    alone.close()
    directory = Directory(tmp_path / "data", cloud, tmp_path)
    directory.facts = 39
    directory.write(AGENTS[0], "before")
    (tmp_path / "data" / "code").mkdir()
    (tmp_path / "data" / "code" / "cell.py").write_text("x = 1\n")
    directory.begin()
    with closing(directory):
        assert there(tmp_path / "look", cloud) == (39, directory.files())
        with looked_at(tmp_path / "look", cloud) as store:
            code = store.storage("code")
            assert code is not None
            assert code.files == {"cell.py": b"x = 1\n"}


def test_what_the_journal_does_not_have_any_more_comes_with_the_database(directory: Directory, tmp_path: Path) -> None:
    directory.commit()
    expected = directory.follow()
    for _ in range(3):
        directory.commit()
    directory.checkpoint()  # the bucket has not heard of it
    directory.kill()
    assert there(tmp_path / "look", directory.cloud) == expected
    directory.begin()
    assert there(tmp_path / "look", directory.cloud) == (4, {})


def test_the_journal_is_kept_until_the_bucket_has_it(directory: Directory, tmp_path: Path) -> None:
    directory.follow()
    for _ in range(3):
        directory.commit()
    with directory.store._archived() as con:  # noqa: SLF001
        directory.store._fold(con)  # noqa: SLF001
    directory.kill()
    roots = directory.cloud.names("root/")
    directory.begin()
    assert directory.cloud.names("root/") == roots, "nothing was brought there as a whole"
    assert directory.follow()[0] == 3
    assert there(tmp_path / "look", directory.cloud)[0] == 3


def test_a_bucket_that_knows_more_than_the_directory_is_not_overwritten(
    directory: Directory, tmp_path: Path, cloud: Cloud
) -> None:
    directory.commit()
    directory.store.close()
    copytree(tmp_path / "data", tmp_path / "older")
    directory.begin()
    directory.commit()
    expected = directory.follow()
    directory.close()
    older = Directory(tmp_path / "older", cloud, tmp_path)
    with pytest.raises(LedgerError, match=r"has 2 facts of this directory, which has 1: it is older than its replica"):
        older.begin()
    assert there(tmp_path / "look", cloud) == expected


def test_a_copy_of_the_directory_takes_the_replica_and_the_first_one_is_told_at_every_cut(
    directory: Directory, cloud: Cloud, tmp_path: Path
) -> None:
    directory.commit()
    directory.follow()
    copytree(directory.data, tmp_path / "copy")
    other = Directory(tmp_path / "copy", cloud, tmp_path / "scratch")
    (tmp_path / "scratch").mkdir()
    other.facts = directory.facts
    other.begin()
    directory.commit()
    for _ in range(2):
        with pytest.raises(LedgerError, match="a copy of this one"):
            directory.follow()
    directory.commit()
    other.write(AGENTS[0], 1)
    expected = other.follow()
    other.close()
    assert there(tmp_path / "look", cloud) == expected
    directory.close()
    assert directory.facts == 3, "which the directory itself has taken"


def test_what_a_replica_has_lost_is_brought_there_again_by_the_next_life(
    directory: Directory, cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BucketStore, "root_s", 0.0)
    for agent in AGENTS[:2]:
        directory.write(agent, "x" * 2000)
    directory.commit()
    directory.follow()
    for name in cloud.names("storage"):
        cloud.remove(name)
    directory.write(AGENTS[0], "y")
    directory.commit()
    directory.follow()
    directory.close()
    directory.begin()
    expected = directory.follow()[0], directory.files()
    with looked_at(tmp_path / "look", cloud) as store:
        again = store.storage(AGENTS[0])
        assert again is not None
        assert (len(found(store)), again.files) == (expected[0], expected[1][AGENTS[0]])
        with pytest.raises(LedgerDamaged, match="is missing"):  # nothing has told that it is lost
            store.storage(AGENTS[1])


def test_a_prefix_is_the_replica_of_one_directory_or_the_place_of_record(
    directory: Directory, tmp_path: Path, cloud: Cloud
) -> None:
    other = ReplicatedStore(
        tmp_path / "other", Follower(tmp_path / "other" / "replica", cloud, "another"), ReplicaSettings("memory:///")
    )
    with pytest.raises(BucketRefused, match="it is the replica of another directory"):
        other.boot()
    with pytest.raises(BucketRefused, match="it is the replica of a directory"):
        opened(tmp_path / "record", cloud)
    record = Cloud()
    opened(tmp_path / "record", record).close()
    with pytest.raises(BucketRefused, match="it is the replica of no directory"):
        Follower(tmp_path / "follower", record, "this directory").boot()


def test_how_far_the_bucket_is_behind_is_told(tmp_path: Path, cloud: Cloud) -> None:
    now_s = [0.0]
    store = ReplicatedStore(
        tmp_path / "data",
        Follower(tmp_path / "data" / "replica" / "ledger", cloud, "this directory"),
        ReplicaSettings("memory:///"),
        now_s=lambda: now_s[0],
    )
    store.boot()
    assert (store.behind_ms(), store.has_news) == (0.0, False)
    store.append([fact(1)], [])
    now_s[0] = 1.5
    store.append([fact(2)], [])
    assert (store.behind_ms(), store.has_news) == (1_500.0, True)
    store.prepare([])
    store.cut([])
    assert store.behind_ms() == 1_500.0, "it is not there before it is"
    store.put()
    assert (store.behind_ms(), store.has_news) == (0.0, False)
    store.close()


def test_what_agents_have_written_counts_from_the_look_before_it_was_found(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, store = [0.0], directory.store
    monkeypatch.setattr(store, "_now_s", lambda: now_s[0])

    def look_at(at_s: float, *, agents: list[str] = AGENTS) -> float:
        now_s[0] = at_s
        store.prepare(agents)
        return store.behind_ms()

    directory.follow()
    assert look_at(1.0) == 0.0
    directory.write(AGENTS[0], 1)
    assert look_at(2.0) == 1_000.0, "it may have been written just after the last look"
    directory.write(AGENTS[1], 1)
    assert look_at(3.0) == 2_000.0
    directory.commit()
    now_s[0] = 4.0
    store.cut(AGENTS)
    directory.write(AGENTS[2], 1)
    now_s[0] = 8.0
    assert store.behind_ms() == 7_000.0, "it is not there before it is"
    store.put()
    assert store.behind_ms() == 4_000.0, "agents may have written since the cut"
    assert look_at(9.0) == 5_000.0, "and one has"
    directory.follow()
    assert store.behind_ms() == 0.0
    assert look_at(10.0) == 0.0


def test_what_nobody_was_able_to_write_needs_no_look_and_a_look_that_fails_counts_as_none(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, store = [0.0], directory.store
    monkeypatch.setattr(store, "_now_s", lambda: now_s[0])
    directory.follow()
    now_s[0] = 50.0
    store.nothing_written()
    assert store.behind_ms() == 0.0
    directory.write(AGENTS[0], 1)
    now_s[0] = 51.0
    with monkeypatch.context() as patch:
        patch.setattr(StorageChanges, "look", fails)
        with pytest.raises(StorageError):
            store.prepare(AGENTS)
        now_s[0] = 52.0
        with pytest.raises(StorageError):
            store.prepare(AGENTS)
        assert store.behind_ms() == 2_000.0
    store.prepare(AGENTS)
    assert store.behind_ms() == 2_000.0
    store.nothing_written()
    assert store.behind_ms() == 2_000.0, "what was found is not there yet"
    directory.follow()
    assert store.behind_ms() == 0.0


def fails(*_: object) -> None:
    raise StorageError(AGENTS[0], "it changed during each of 200 tries to copy it; try again later")


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (("s3://bucket/p", 0, 2_000), "lag_ms"),
        (("s3://bucket/p", float("nan"), 2_000), "lag_ms"),
        (("s3://bucket/p", True, 2_000), "lag_ms"),
        (("s3://bucket/p", 500, 100), "lag_max_ms"),
        (("s3://bucket/p", 500, "soon"), "lag_max_ms"),
        (("./directory", 500, 2_000), "replica"),
        (("s3://key:secret@bucket/p", 500, 2_000), "replica"),
        ((None, 500, 2_000), "replica"),
    ],
)
def test_settings_that_cannot_be_used_are_refused_by_name(given: tuple[str, float, float], field: str) -> None:
    with pytest.raises(BadRequest) as refused:
        checked_replica(*given)
    assert refused.value.field == field


def test_the_directory_says_where_it_is_followed_to(tmp_path: Path) -> None:
    assert replica_of(tmp_path) is None
    settings = checked_replica("s3://bucket/p/", 100, 900)
    keep_replica(tmp_path, settings)
    assert replica_of(tmp_path) == ReplicaSettings("s3://bucket/p", 100, 900)
    (tmp_path / "replica" / "settings").write_bytes(b"\xff")
    with pytest.raises(LedgerDamaged, match="name the bucket again"):
        replica_of(tmp_path)
    keep_replica(tmp_path, checked_replica(""))
    assert replica_of(tmp_path) is None


def test_a_storage_of_some_other_agent_is_carried_under_its_own_name(directory: Directory, tmp_path: Path) -> None:
    directory.write("stranger@m:T", 1)
    directory.store.prepare(None)
    directory.store.cut([])
    directory.store.put()
    with looked_at(tmp_path / "look", directory.cloud) as store:
        image = store.storage("stranger@m:T")
        assert image is not None
        assert image.files[""] == (directory.data / "agents" / place_of("stranger@m:T")).read_bytes()


def test_a_storage_that_the_disk_does_not_give_keeps_no_other_from_the_bucket(
    directory: Directory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = directory.disk.path_of(AGENTS[0])
    directory.write(AGENTS[0], 1)
    directory.write(AGENTS[1], 1)
    read = StorageChanges._read  # noqa: SLF001

    def refused(changes: StorageChanges, path: Path) -> Any:
        if path == bad:
            raise OSError(errno.EIO, "Input/output error")
        return read(changes, path)

    monkeypatch.setattr(StorageChanges, "_read", refused)
    directory.follow()
    assert sorted(there(tmp_path / "look", directory.cloud)[1]) == [AGENTS[1]]
    assert directory.store.unreadable == f"{bad} cannot be read: Input/output error"
    monkeypatch.undo()
    directory.store.prepare([])
    directory.store.cut([])
    directory.store.put()
    assert there(tmp_path / "look", directory.cloud)[1] == directory.files()
    assert not directory.store.unreadable


def test_what_a_checkpoint_that_did_not_end_has_torn_is_mended_in_the_bucket(
    directory: Directory, tmp_path: Path
) -> None:
    directory.write(AGENTS[0], "kept", tables=True)
    path = directory.disk.path_of(AGENTS[0])
    guard = BlockGuard(path, fsync=False)
    with closing(duckdb.connect(":memory:")) as con:
        con.execute(f"ATTACH '{path}' AS torn (TYPE duckdb)")
        with suppress(InterruptedError), guard.around(con, "torn"):
            raise InterruptedError
    guard.close()
    assert guard.saved.exists()
    directory.follow()
    with looked_at(tmp_path / "look", directory.cloud) as store:
        image = store.storage(AGENTS[0])
        assert image is not None
        assert set(image.files) <= {"", ".wal"}
