"""An agent's log that is cut, flipped or half written: nothing of it goes without being told, and what is cut is kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from perdure.ledger.duckdb_format import survey
from perdure.ledger.errors import StorageError, StorageLost
from perdure.ledger.storage.agent_storages import AgentStorages, FileDisk

AGENT = "a@m:T"
COMMITS = 6


@pytest.fixture(scope="module")
def asleep(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes, list[int]]:
    """The file and the log of an agent that was killed, and where each commit in its log ends."""
    files = FileDisk(tmp_path_factory.mktemp("killed"))
    agent_storages = AgentStorages(files)
    storage = agent_storages.open(AGENT, 1)
    path = files.path_of(AGENT)
    log = path.with_name(path.name + ".wal")
    storage.sql("CREATE TABLE notes (n BIGINT)")
    ends = []
    for n in range(COMMITS):
        with storage.transaction():
            storage.state["n"] = n
            storage.sql("INSERT INTO notes VALUES ($1)", [n])
        ends.append(log.stat().st_size)
    agent_storages.crash()
    state = path.read_bytes(), log.read_bytes(), ends
    files.close()
    return state


class Disk:
    """A folder with one agent's file and this log."""

    def __init__(self, folder: Path, database: bytes, log: bytes) -> None:
        folder.mkdir(exist_ok=True)
        self.files = FileDisk(folder)
        self.path = self.files.path_of(AGENT)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_bytes(database)
        self.log = self.path.with_name(self.path.name + ".wal")
        self.log.write_bytes(log)

    def kept(self) -> list[bytes]:
        return [path.read_bytes() for path in sorted(self.path.parent.glob("*.cut-*"))]

    def opened(self) -> tuple[int, str]:
        """How many commits the next life finds, and what it is told."""
        with closing(AgentStorages(self.files)) as agent_storages:
            storage = agent_storages.open(AGENT, 2)
            assert storage.sql("SELECT max(n) FROM notes") == [(storage.state.get("n"),)]
            return storage.state.get("n", -1) + 1, storage.file.finding


def states(asleep: tuple[bytes, bytes, list[int]]) -> Iterator[tuple[str, bytes]]:
    """Logs with one flipped bit, cut logs, and logs whose last part is zeros."""
    _, log, _ = asleep
    for at in range(0, len(log), 71):
        yield f"flip-{at}", log[:at] + bytes([log[at] ^ 1 << at % 8]) + log[at + 1 :]
        yield f"cut-{at}", log[:at]
        yield f"zeros-{at}", log[:at].ljust(len(log), b"\0")


def test_no_loss_in_a_log_is_silent_unless_it_was_cut_between_two_commits(
    asleep: tuple[bytes, bytes, list[int]], tmp_path: Path
) -> None:
    database, log, ends = asleep
    told = 0
    for name, damaged in states(asleep):
        disk = Disk(tmp_path / name, database, damaged)
        with suppress(StorageError):
            commits, finding = disk.opened()
            if commits < COMMITS:
                assert finding or damaged in [log[:end] for end in (0, *ends)], name
                assert disk.kept() == ([damaged] if finding else [])
                told += bool(finding)
        disk.files.close()
    assert told > 25


@pytest.mark.parametrize("rest", [1, 20, 200])
def test_a_half_written_record_is_cut_and_kept_and_the_life_goes_on(
    asleep: tuple[bytes, bytes, list[int]], tmp_path: Path, rest: int
) -> None:
    database, log, ends = asleep
    half = log[: ends[-2] + rest] if ends[-2] + rest < ends[-1] else log[: ends[-1] - 1]
    disk = Disk(tmp_path, database, half)
    commits, finding = disk.opened()
    assert commits == COMMITS - 1
    assert f"{len(half) - ends[-2]} bytes" in finding
    assert disk.kept() == [half]
    assert disk.opened() == (COMMITS - 1, "")
    AgentStorages(disk.files).forget(AGENT)
    assert list(disk.path.parent.iterdir()) == []
    disk.files.close()


def test_a_log_that_is_damaged_before_later_commits_is_refused_and_stays_as_it_is(
    asleep: tuple[bytes, bytes, list[int]], tmp_path: Path
) -> None:
    database, log, ends = asleep
    damaged = log[: ends[1] + 30] + bytes([log[ends[1] + 30] ^ 1]) + log[ends[1] + 31 :]
    disk = Disk(tmp_path, database, damaged)
    for _ in range(2):
        with pytest.raises(StorageLost, match=r"damaged.*later commits"):
            disk.opened()
    assert disk.log.read_bytes() == damaged
    disk.files.close()


def test_a_whole_log_is_left_alone(asleep: tuple[bytes, bytes, list[int]], tmp_path: Path) -> None:
    database, log, ends = asleep
    assert [survey(log[:end]) for end in ends] == [(end, False) for end in ends]
    assert survey(b"") == (0, False)
    disk = Disk(tmp_path, database, log)
    assert disk.opened() == (COMMITS, "")
    assert disk.kept() == []
    disk.files.close()


def test_a_log_of_a_version_that_is_not_known_is_left_to_duckdb(asleep: tuple[bytes, bytes, list[int]]) -> None:
    _, log, _ = asleep
    later = log.replace(b"e\x00\x02", b"e\x00\x03", 1)
    assert survey(later) == (len(log), False)
