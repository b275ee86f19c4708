"""A directory, or a part of it, that is deleted or moved while in use: nothing more is acknowledged, and nothing made there again."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from perdure.actors.ray_world.deployment import Deployment
from perdure.ledger.errors import DirectoryElsewhere, StorageError
from perdure.ledger.in_place import OpenFile, what_became
from perdure.ledger.storage.agent_storages import AgentStorages, FileDisk
from perdure.ledger.storage.carried_disk import CarriedDisk
from perdure.ledger.store.duckdb_store import DuckDBStore
from perdure.policies import Limits
from tests.actors.one_process import SMALL, OneProcess
from tests.ledger.wrecks import commit

AGENT, OTHER = "home@m:T", "away@m:T"


def moved(path: Path) -> None:
    path.rename(path.with_name(f"{path.name}-moved"))


def replaced(path: Path) -> None:
    moved(path)
    shutil.copytree(path.with_name(f"{path.name}-moved"), path)


LOSSES = pytest.mark.parametrize("lose", [shutil.rmtree, moved, replaced])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def store(data: Path) -> Iterator[DuckDBStore]:
    with closing(DuckDBStore(data / "ledger", fsync=False)) as made:
        made.boot()
        made.append(*commit(1, 1))
        yield made


@pytest.fixture
def storages(data: Path) -> Iterator[AgentStorages]:
    with closing(FileDisk(data / "agents")) as disk, closing(AgentStorages(disk)) as made:
        yield made


@pytest.mark.parametrize(
    ("found", "told"),
    [((1, 2), ""), (None, "deleted or moved"), ((1, 3), "replaced by another"), ((2, 2), "replaced by another")],
)
def test_a_file_is_in_its_place_if_it_has_its_number_on_its_device(found: tuple[int, int] | None, told: str) -> None:
    became = what_became(OpenFile("f", 1, 2), found)
    assert (became == "") if not told else (told in became)


@LOSSES
@pytest.mark.parametrize("place", [".", "ledger"])
def test_a_ledger_that_was_deleted_or_moved_acknowledges_no_commit_and_goes_on_where_it_is(
    store: DuckDBStore, data: Path, lose: Callable[[Path], None], place: str
) -> None:
    lose(data / place)
    with pytest.raises(
        DirectoryElsewhere, match=r"while it was in use — put the directory back at this path, or open it where"
    ):
        store.append(*commit(2, 2))
    with pytest.raises(DirectoryElsewhere):
        store.append(*commit(3, 3))
    store.close()
    left = Path(f"{data / place}-moved") / ("ledger" if place == "." else "")
    if left.exists():
        with closing(DuckDBStore(left)) as again:
            assert [row.seq for row in again.boot().rows][:1] == [1]


@pytest.mark.parametrize("name", ["ledger.journal.1", "ledger.lock", "ledger.db"])
def test_nor_does_one_that_lacks_a_file_which_it_has_open(store: DuckDBStore, data: Path, name: str) -> None:
    store.look()
    (data / "ledger" / name).unlink()
    with pytest.raises(DirectoryElsewhere, match=f"{name} was deleted"):
        store.look()
    with pytest.raises(DirectoryElsewhere):
        store.append(*commit(2, 2))


def test_a_supervisor_to_which_nothing_comes_notices_that_its_directory_is_gone(data: Path) -> None:
    async def story() -> None:
        with closing(DuckDBStore(data / "ledger", fsync=False)) as store:
            life = asyncio.create_task(OneProcess(SMALL, store).supervisor.serve())
            while not (data / "ledger" / "ledger.journal.1").exists():
                await asyncio.sleep(0.01)
            shutil.rmtree(data)
            async with asyncio.timeout(30):
                await life

    with pytest.raises(ExceptionGroup) as ended:
        asyncio.run(story())
    assert ended.group_contains(DirectoryElsewhere)


@LOSSES
@pytest.mark.parametrize("place", [".", "agents"])
@pytest.mark.parametrize("is_database", [False, True])
def test_a_storage_that_was_deleted_or_moved_acknowledges_nothing_and_none_is_made_in_its_place(
    storages: AgentStorages, data: Path, lose: Callable[[Path], None], place: str, *, is_database: bool
) -> None:
    storage, other = storages.open(AGENT, 1), storages.open(OTHER, 1)
    storage.state["n"] = 1
    if is_database:
        storage.sql("CREATE TABLE t (n INTEGER)")
        storage.sql("INSERT INTO t VALUES (1)")
    lose(data / place)
    is_there = (data / "agents").exists()
    with pytest.raises(StorageError, match="while it was in use"):
        storage.state["n"] = 2
    with pytest.raises(StorageError, match="while it was in use"):
        other.state["n"] = 1
    with pytest.raises(StorageError, match="while it was in use"):
        storages.open("third@m:T", 1).sql("CREATE TABLE t (n INTEGER)")
    assert (data / "agents").exists() == is_there
    assert not list((data / "agents").rglob("*third*"))


@LOSSES
def test_nor_do_storages_that_commit_together(
    storages: AgentStorages, data: Path, lose: Callable[[Path], None]
) -> None:
    opened = [storages.open(name, 1) for name in (AGENT, OTHER)]
    for each in opened:
        each.state["n"] = 1
    with storages.disk.group_commit() as begin:
        parts = []
        for each in opened:
            parts.append(begin())
            each.state["n"] = 2
        lose(data)
    assert ["while it was in use" in str(part.problem) for part in parts] == [True, True]


@pytest.mark.parametrize("name", [".db", ".db.wal"])
def test_nor_does_a_storage_that_lacks_one_of_its_two_files(storages: AgentStorages, data: Path, name: str) -> None:
    storage = storages.open(AGENT, 1)
    storage.sql("CREATE TABLE t (n INTEGER)")
    for number in range(3):  # the first one after a checkpoint makes the log
        storage.sql("INSERT INTO t VALUES ($1)", [number])
    next(data.rglob(f"*{name}")).unlink()
    with pytest.raises(StorageError, match=f"{name} was deleted"):
        storage.sql("INSERT INTO t VALUES (3)")


def test_a_storage_that_became_a_database_or_was_written_anew_is_in_its_place(storages: AgentStorages) -> None:
    storage = storages.open(AGENT, 1)
    for number in range(100):
        storage.state["n"] = os.urandom(10_000)
        storage.forget_inbox([str(number)])
    storage.checkpoint()
    storage.sql("CREATE TABLE t (n INTEGER)")
    storage.checkpoint()
    storage.sql("INSERT INTO t VALUES (1)")
    storage.checkpoint()
    storage.state["n"] = 1


def test_what_a_host_cannot_read_again_to_carry_it_is_not_acknowledged(data: Path) -> None:
    with closing(CarriedDisk(data / "agents")) as disk, closing(AgentStorages(disk)) as storages:
        disk.hold(AGENT, None)
        storage = storages.open(AGENT, 1)
        storage.sql("CREATE TABLE t (n INTEGER)")
        storage.sql("INSERT INTO t VALUES (1)")
        disk.take_patches()
        shutil.rmtree(data)
        with pytest.raises(StorageError, match="deleted or moved"):
            storage.sql("INSERT INTO t VALUES (2)")
        assert disk.take_patches() == []
        disk.hold(OTHER, None)
        storages.open(OTHER, 1).state["n"] = 1
        assert len(disk.take_patches()) == 1, "a cache is made again"


def test_no_storages_are_begun_at_a_path_where_another_directory_lies(data: Path) -> None:
    storages = Deployment(data, Limits(), identity="of another one").agent_storages()
    with closing(storages.disk), pytest.raises(DirectoryElsewhere, match="put it back at this path"):
        storages.open(AGENT, 1).state["n"] = 1
    assert list(data.iterdir()) == []
