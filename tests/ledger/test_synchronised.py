"""What must be on the disk before what: synchronisations are promises, so they are recorded and put in order.

What is recorded is what Perdure itself asks of the system. DuckDB synchronises its own files.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from perdure.ledger.block_guard import BlockGuard
from perdure.ledger.storage.agent_storages import AgentStorages, FileDisk, Storage
from perdure.ledger.storage.log_format import CLAIM, read_log
from perdure.ledger.whole_files import add_line, keep_whole, lines_of
from tests.tidy import IMPORT_PATH

AGENT = "a@tests.toys:Agent"
Log = list[tuple[str, str]]


WATCHED = {
    "fsync": 0,
    "fdatasync": 0,
    "link": 1,
    "rename": 1,
    "replace": 1,
    "unlink": 0,
    "truncate": 0,
    "ftruncate": 0,
    "pwrite": 0,
}
"""Calls of the system, and which of their arguments is the file."""


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    """The synchronisations and the changes of names, in their order, each with the name of its file or folder."""
    events: Log = []

    def watched(call: str, at: int) -> Callable[..., Any]:
        true = getattr(os, call)

        def recorded(*args: Any, **options: Any) -> Any:
            where = args[at]
            path = Path(f"/proc/self/fd/{where}").readlink() if isinstance(where, int) else Path(where)
            outcome = true(*args, **options)
            events.append(("sync" if call.endswith("sync") else call, path.name))
            return outcome

        return recorded

    for call, at in WATCHED.items():
        monkeypatch.setattr(os, call, watched(call, at))
    return events


def in_order(log: Log, *wanted: tuple[str, str]) -> bool:
    """Whether these events are among those of the log, in this order."""
    rest = iter(log)
    return all(any(event == each for event in rest) for each in wanted)


def opened(tmp_path: Path, life: int = 1) -> tuple[FileDisk, AgentStorages, Storage]:
    disk = FileDisk(tmp_path / "agents")
    agent_storages = AgentStorages(disk)
    return disk, agent_storages, agent_storages.open(AGENT, life)


def test_a_new_storage_has_its_name_when_it_is_whole_and_both_outlive_a_power_cut(tmp_path: Path, log: Log) -> None:
    disk, agent_storages, made = opened(tmp_path)
    made.state["k"] = 1
    path = disk.path_of(AGENT)
    part, folder = f"{path.name}.{os.getpid()}.new", path.parent.name
    assert in_order(log, ("sync", part), ("link", path.name), ("sync", folder)), log
    assert in_order(log, ("sync", "agents"), ("link", path.name)), "the name of its folder"
    agent_storages.close()
    disk.close()


def test_the_folders_above_a_sub_agent_are_on_the_disk_before_its_storage(tmp_path: Path, log: Log) -> None:
    disk = FileDisk(tmp_path / "agents")
    agent_storages = AgentStorages(disk)
    child = f"{AGENT}>c@tests.toys:Agent"
    agent_storages.open(child, 1).state["k"] = 1
    family = disk.path_of(AGENT).with_suffix("")
    assert disk.path_of(child).parent == family
    assert in_order(log, ("sync", "agents"), ("sync", family.parent.name), ("link", disk.path_of(child).name)), log
    agent_storages.close()
    disk.close()


def test_the_folders_that_other_processes_made_are_brought_to_the_disk_together(tmp_path: Path, log: Log) -> None:
    disks = [FileDisk(tmp_path / "agents") for _ in range(2)]
    agent_storages = [AgentStorages(disk) for disk in disks]
    for number in range(40):
        agent_storages[0].open(f"{number}@tests.toys:Agent", 1).state["k"] = 1
    log.clear()
    for number in range(40, 44):
        folder = disks[0].path_of(f"{number - 40}@tests.toys:Agent").parent
        name = next(each for each in _names(number) if disks[1].path_of(each).parent == folder)
        agent_storages[1].open(name, 1).state["k"] = 1
    assert log.count(("sync", "agents")) == 1, "one for all of them"
    for each in agent_storages:
        each.close()
    for disk in disks:
        disk.close()


def _names(number: int) -> Iterator[str]:
    return (f"{number}-{at}@tests.toys:Agent" for at in count())


def test_a_copy_has_its_name_when_it_is_whole_and_the_name_outlives_a_power_cut(tmp_path: Path, log: Log) -> None:
    disk, agent_storages, made = opened(tmp_path)
    made.state["k"] = 1
    other = "b@tests.toys:Agent"
    agent_storages.fork(AGENT, other)
    name, folder = disk.path_of(other).name, disk.path_of(other).parent.name
    assert in_order(log, ("link", name), ("sync", folder)), log
    agent_storages.close()
    disk.close()


def test_what_a_checkpoint_writes_over_is_saved_before_it_begins(tmp_path: Path, log: Log) -> None:
    disk, agent_storages, made = opened(tmp_path)
    made.sql("CREATE TABLE t AS SELECT 1 AS x")
    log.clear()
    made.sql("INSERT INTO t VALUES (2)")
    made.checkpoint()
    path = disk.path_of(AGENT)
    saved = f"{path.name}.blocks"
    assert in_order(log, ("sync", saved), ("sync", path.parent.name), ("unlink", saved)), log
    agent_storages.close()
    disk.close()


def test_what_is_put_back_is_on_the_disk_before_what_was_saved_is_removed(tmp_path: Path, log: Log) -> None:
    disk, agent_storages, made = opened(tmp_path)
    made.sql("CREATE TABLE t AS SELECT 1 AS x")
    agent_storages.close()
    disk.close()
    path = disk.path_of(AGENT)
    whole = path.read_bytes()
    guard = BlockGuard(path)
    with suppress(ZeroDivisionError), guard.around(Blocks(), "a"):  # type: ignore[arg-type]
        torn = bytearray(whole)
        torn[12 * 1024 + 4096 + 100] ^= 1
        path.write_bytes(torn)
        raise ZeroDivisionError
    guard.close()
    log.clear()
    again = BlockGuard(path)
    again.mend()
    again.close()
    assert path.read_bytes() == whole
    assert in_order(log, ("pwrite", path.name), ("sync", path.name), ("unlink", f"{path.name}.blocks")), log


class Blocks:
    """A connection whose first blocks hold metadata."""

    def execute(self, _query: str, _names: list[str]) -> Blocks:
        return self

    def fetchall(self) -> list[tuple[int]]:
        return [(0,)]


@pytest.mark.parametrize("tables", [False, True], ids=["log", "database"])
def test_what_is_cut_off_a_log_is_kept_on_the_disk_before_it_is_cut(tmp_path: Path, log: Log, *, tables: bool) -> None:
    disk, agent_storages, made = opened(tmp_path)
    if tables:
        made.sql("CREATE TABLE t AS SELECT 1 AS x")
    made.state["k"] = 1
    agent_storages.crash()
    disk.close()
    path = disk.path_of(AGENT)
    left = path.with_name(path.name + ".wal") if tables else path
    left.write_bytes(left.read_bytes()[:-3])
    log.clear()
    disk, agent_storages, _ = opened(tmp_path, 2)
    kept = f"{path.name}.cut-1"
    cut = ("truncate" if tables else "ftruncate", left.name)
    assert in_order(log, ("sync", kept), ("sync", path.parent.name), cut), log
    agent_storages.close()
    disk.close()


def test_a_commit_is_one_write_and_one_synchronisation(tmp_path: Path, log: Log) -> None:
    disk, agent_storages, made = opened(tmp_path)
    made.state["k"] = 1
    name = disk.path_of(AGENT).name
    log.clear()
    made.state.update(k=2, j=3)
    assert log == [("pwrite", name), ("sync", name)]
    agent_storages.close()
    disk.close()


def test_a_life_after_a_death_brings_the_last_commit_to_the_disk_and_one_after_a_clean_end_need_not(
    tmp_path: Path, log: Log
) -> None:
    disk, agent_storages, made = opened(tmp_path)
    made.state["k"] = 1
    path = disk.path_of(AGENT)
    agent_storages.crash()
    log.clear()
    disk, agent_storages, _ = opened(tmp_path, 2)
    assert in_order(log, ("pwrite", path.name), ("sync", path.name), ("sync", path.parent.name)), log
    agent_storages.close()
    assert read_log(path.read_bytes()).frames[-1].kind == CLAIM, "it wrote nothing, so it has no end to tell"
    disk, agent_storages, made = opened(tmp_path, 3)
    made.state["k"] = 2
    agent_storages.close()
    log.clear()
    disk, agent_storages, made = opened(tmp_path, 4)
    assert made.state["k"] == 2
    assert log == [("pwrite", path.name)], "the claim"
    agent_storages.close()
    disk.close()


def test_a_log_that_is_written_anew_has_the_name_when_it_is_whole_and_keeps_it(tmp_path: Path, log: Log) -> None:
    disk, agent_storages, made = opened(tmp_path)
    made.state["k"] = 1
    made.state["k"] = 2
    path = disk.path_of(AGENT)
    log.clear()
    made.checkpoint()
    assert log == [("sync", f"{path.name}.new"), ("replace", path.name), ("sync", path.parent.name)]
    log.clear()
    made.state["k"] = 3
    assert log == [("pwrite", path.name), ("sync", path.name)]
    agent_storages.close()
    disk.close()


def test_a_database_that_takes_the_place_of_a_log_keeps_it(tmp_path: Path, log: Log) -> None:
    disk, agent_storages, made = opened(tmp_path)
    made.state["k"] = 1
    path = disk.path_of(AGENT)
    log.clear()
    made.sql("SELECT count(*) FROM perdure.records")
    assert in_order(log, ("replace", path.name), ("sync", path.parent.name)), log
    agent_storages.close()
    disk.close()


# ------------------------------------------------------------------ small files


@pytest.mark.parametrize("before", [None, b"", b"as it was", b"as it has to be with something added"])
def test_a_small_file_is_whole_on_the_disk_before_it_has_its_name(
    log: Log, tmp_path: Path, before: bytes | None
) -> None:
    file = tmp_path / "code" / "0123.py"
    if before is not None:
        file.parent.mkdir()
        file.write_bytes(before)
    keep_whole(file, b"as it has to be")
    assert file.read_bytes() == b"as it has to be"
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    (draft, *after) = log[-4:]
    assert draft[0] == "sync"
    assert draft[1].startswith("0123.py.")
    assert after == [("replace", "0123.py"), ("sync", "code"), ("sync", tmp_path.name)]


def test_a_small_file_that_is_there_already_has_its_name_on_the_disk(log: Log, tmp_path: Path) -> None:
    file = tmp_path / "note"
    file.write_bytes(b"same")
    keep_whole(file, b"same")
    assert log[-2:] == [("sync", tmp_path.name), ("sync", tmp_path.parent.name)]
    assert "replace" not in {call for call, _ in log}


def test_a_disk_that_refuses_leaves_the_former_file_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_file: int) -> None:
        raise OSError("the disk is full")

    (tmp_path / "note").write_bytes(b"former")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="full"):
        keep_whole(tmp_path / "note", b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"note": b"former"}


def test_a_line_is_on_the_disk_when_it_is_added_and_does_not_go_on_with_a_torn_one(log: Log, tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    add_line(file, "one")
    assert log[-3:] == [("sync", "lines.txt"), ("sync", tmp_path.name), ("sync", tmp_path.parent.name)]
    file.write_bytes(b"one\ntw\xff")
    add_line(file, "three")
    assert lines_of(file) == ["one", "three"]


def test_a_line_of_which_the_disk_takes_a_part_is_refused_and_does_not_spoil_the_next_one(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text("first\n")
    add_beyond = (
        "import resource, sys; from pathlib import Path; from perdure.ledger.whole_files import add_line; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10)); add_line(Path(sys.argv[1]), 'second, which is long')"
    )
    environment = {**os.environ, "PYTHONPATH": IMPORT_PATH}
    command = [sys.executable, "-c", add_beyond, str(file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "No space left on device" in done.stderr
    assert file.read_text() == "first\nseco"
    add_line(file, "third")
    assert lines_of(file)[-1] == "third"
