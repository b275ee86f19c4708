"""Commits of several agents at once: one write to the disk for all, and a power cut takes none of them (`ledger.storage.shared_log`)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perdure.ledger.errors import StorageError
from perdure.ledger.keeping.listing import list_storages
from perdure.ledger.storage.cabinet import Cabinet, FileDisk, Part, Storage
from perdure.ledger.storage.shared_log import SharedLog
from perdure.ledger.storage.shared_segment import boot_of, pieces_in
from perdure.ledger.storage.this_machine import boot_id, is_local

NAMES = [f"{each}@m:T" for each in "abc"]
Events = list[tuple[str, str]]


def at_once(job: Callable[[], None]) -> None:
    job()


class Process:
    """One process with three agents, whose storages have one commit each. A copy of its folder is what it leaves when it is killed."""

    def __init__(self, folder: Path, *, boot: str = "one", room: int = 1 << 16, names: Sequence[str] = NAMES) -> None:
        self.disk = FileDisk(folder, SharedLog(folder, boot=boot, room=room, beside=at_once))
        self.cabinet = Cabinet(self.disk)
        self.storages = [self.cabinet.open(name, 1) for name in names]
        for storage in self.storages:
            storage.state["n"] = 0

    def commit(self, n: int, *storages: Storage) -> list[Part]:
        """Have these agents commit together, or all of them."""
        parts = []
        with self.disk.together() as begin:
            for storage in storages or self.storages:
                parts.append(begin())
                storage.state["n"] = n
        return parts

    def files(self) -> dict[str, bytes]:
        """The agents' logs."""
        return {name: self.disk.path_of(name).read_bytes() for name in NAMES}


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    made = Process(tmp_path / "agents")
    yield made
    made.disk.close()


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Events:
    """Synchronisations, each with the kind of its file."""
    seen: Events = []

    def recorded(call: str) -> Callable[[int], None]:
        true: Callable[[int], None] = getattr(os, call)

        def record(file: int) -> None:
            seen.append((call, Path(f"/proc/self/fd/{file}").readlink().suffix))
            true(file)

        return record

    for call in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, call, recorded(call))
    return seen


def found(folder: Path, boot: str = "two") -> dict[str, Any]:
    """What the next life of each agent finds in the next boot of the machine."""
    disk = FileDisk(folder, SharedLog(folder, boot=boot, beside=at_once))
    with closing(disk), closing(Cabinet(disk)) as cabinet:
        return {name: cabinet.open(name, 9).state.get("n") for name in NAMES}


def power_cut(process: Process, kept: dict[str, bytes], folder: Path) -> Path:
    """The directory after a power cut that has kept this much of the agents' logs."""
    shutil.copytree(process.disk.directory, folder)
    for name, content in kept.items():
        FileDisk(folder).path_of(name).write_bytes(content)
    return folder


def segments(folder: Path) -> list[Path]:
    return sorted((folder / "shared").glob("*.shared"))


def test_those_that_commit_together_share_one_write_to_the_disk(process: Process, events: Events) -> None:
    process.commit(1)
    events.clear()
    process.commit(2)
    assert events == [("fdatasync", ".shared")]
    assert [storage.state["n"] for storage in process.storages] == [2, 2, 2]


def test_who_commits_alone_is_synchronised_by_itself(process: Process, events: Events) -> None:
    process.commit(1)
    events.clear()
    process.commit(2, process.storages[0])
    process.storages[1].state["n"] = 2
    assert events == [("fdatasync", ".db")] * 2


def test_what_a_commit_has_to_tell_is_told_when_it_is_durable(process: Process, events: Events) -> None:
    process.commit(1)
    events.clear()
    told: list[int] = []
    parts = []
    with process.disk.together() as begin:
        for storage in process.storages:
            parts.append(begin())
            with storage.transaction() as transaction:
                storage.state["n"] = 2
                transaction.then(lambda: told.append(len(events)))
        assert not told
        assert not events
    assert not told, "each part is told by itself"
    for part in parts:
        part.told()
    assert told == [1, 1, 1], "after the one synchronisation"


def test_a_power_cut_takes_nothing_that_was_committed_together(process: Process, tmp_path: Path) -> None:
    process.commit(1)
    before = process.files()
    for n in (2, 3):
        process.commit(n)
    cut = power_cut(process, before, tmp_path / "cut")
    assert found(cut) == dict.fromkeys(NAMES, 3)
    assert not segments(cut), "what was put back is not needed any more"
    assert found(cut, "three") == dict.fromkeys(NAMES, 3), "and it is in the agents' own logs"


def with_holes(process: Process) -> dict[str, bytes]:
    """The agents' logs after three commits, with zeros where the second one was."""
    process.commit(1)
    before = process.files()
    process.commit(2)
    between = process.files()
    process.commit(3)
    return {
        name: before[name] + bytes(len(between[name]) - len(before[name])) + after[len(between[name]) :]
        for name, after in process.files().items()
    }


def test_holes_that_a_power_cut_leaves_are_filled(process: Process, tmp_path: Path) -> None:
    assert found(power_cut(process, with_holes(process), tmp_path / "cut")) == dict.fromkeys(NAMES, 3)


def test_without_the_shared_log_a_hole_is_told(process: Process, tmp_path: Path) -> None:
    cut = power_cut(process, with_holes(process), tmp_path / "cut")
    shutil.rmtree(cut / "shared")
    with pytest.raises(StorageError, match="damaged"):
        found(cut)


def test_what_was_deleted_or_written_anew_or_has_tables_is_left_as_it_is(process: Process, tmp_path: Path) -> None:
    process.commit(1)
    process.commit(2)
    deleted, anew, tables = process.storages
    process.cabinet.forget(deleted.agent_id)
    anew.state["n"] = 3
    anew.checkpoint()
    tables.sql("CREATE TABLE t (i INTEGER)")
    cut = power_cut(process, {}, tmp_path / "cut")
    assert found(cut) == dict(zip(NAMES, (None, 3, 2), strict=True))


def test_a_piece_of_another_history_is_not_put_back(process: Process, tmp_path: Path) -> None:
    """The agent was deleted, and made again: its log is as long as the one before was."""
    process.commit(1)
    process.commit(2)
    process.cabinet.forget(NAMES[0])
    again = process.cabinet.open(NAMES[0], 7)
    again.state["n"] = 0
    again.state["n"] = 5
    cut = power_cut(process, {}, tmp_path / "cut")
    assert found(cut) == dict(zip(NAMES, (5, 2, 2), strict=True))


def test_a_life_on_a_log_of_an_earlier_one_commits_alone_before_it_shares(tmp_path: Path, events: Events) -> None:
    """What an earlier life has written last, and the claim of this one, may not be on the disk."""
    folder = tmp_path / "agents"
    first = Process(folder)
    first.commit(1)
    first.cabinet.close()
    second = Cabinet(first.disk)
    storages = [second.open(name, 2) for name in NAMES]
    events.clear()
    first.commit(2, *storages)
    assert events == [("fdatasync", ".db")] * 3
    first.commit(3, *storages)
    assert events[3:] == [("fdatasync", ".shared")]


def test_a_full_segment_is_free_again_when_the_agents_logs_are_on_the_disk(tmp_path: Path) -> None:
    process = Process(tmp_path / "agents", room=4 << 10)
    for n in range(184):
        process.commit(n)
    files = segments(tmp_path / "agents")
    assert [each.stat().st_size for each in files] == [4 << 10] * 2
    for each in files:
        starts = [piece.start for piece in pieces_in(each.read_bytes())]
        assert starts == sorted(starts), "what is left of an earlier generation does not count"
        assert starts
    assert found(power_cut(process, {}, tmp_path / "cut")) == dict.fromkeys(NAMES, 183)
    process.disk.close()


def test_what_is_too_long_for_a_segment_is_synchronised_by_itself(tmp_path: Path, events: Events) -> None:
    process = Process(tmp_path / "agents", room=4 << 10)
    process.commit(1)
    events.clear()
    with process.disk.together() as begin:
        for storage in process.storages:
            begin()
            storage.state["long"] = "x" * 4096
    assert events == [("fdatasync", ".db")] * 3


def test_an_orderly_end_leaves_no_segments(process: Process) -> None:
    process.commit(1)
    process.commit(2)
    assert len(segments(process.disk.directory)) == 2
    process.cabinet.close()
    process.disk.close()
    assert segments(process.disk.directory) == []
    assert found(process.disk.directory, "one") == dict.fromkeys(NAMES, 2)


def test_what_a_dead_process_has_left_is_taken_away_by_the_next_one_that_shares(tmp_path: Path) -> None:
    dead = Process(tmp_path / "agents")
    dead.commit(1)
    dead.commit(2)
    folder = power_cut(dead, {}, tmp_path / "killed")
    left = segments(folder)
    assert found(folder, "one") == dict.fromkeys(NAMES, 2)
    assert segments(folder) == left, "nothing of this boot is redone"
    heir = Process(folder, names=["d@m:T", "e@m:T"])
    heir.commit(1)
    now = segments(folder)
    assert len(now) == 2
    assert not set(left) & set(now)
    for each in (heir, dead):
        each.disk.close()


def test_segments_of_a_process_that_lives_stay(tmp_path: Path) -> None:
    folder = tmp_path / "agents"
    one = Process(folder)
    one.commit(1)
    other = Process(folder, names=["d@m:T", "e@m:T"])
    other.commit(1)
    assert len(segments(folder)) == 4
    for each in (other, one):
        each.cabinet.close()
        each.disk.close()
    assert segments(folder) == []


def test_a_disk_that_refuses_the_shared_log_loses_nothing(
    process: Process, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    process.commit(1)
    true = os.fdatasync

    def refusing(file: int) -> None:
        if Path(f"/proc/self/fd/{file}").readlink().suffix == ".shared":
            raise OSError(5, "Input/output error")
        true(file)

    monkeypatch.setattr(os, "fdatasync", refusing)
    for part in process.commit(2):
        part.told()
    assert "cannot be written ([Errno 5] Input/output error). Commits are synchronised one by one" in caplog.text
    assert [storage.state["n"] for storage in process.storages] == [2, 2, 2]


def test_an_agent_whose_commit_is_durable_nowhere_is_told_and_the_others_go_on(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    process.commit(1)
    true, lost = os.fdatasync, process.disk.path_of(NAMES[1])

    def refusing(file: int) -> None:
        if Path(f"/proc/self/fd/{file}").readlink() in (lost, *segments(process.disk.directory)):
            raise OSError(5, "Input/output error")
        true(file)

    monkeypatch.setattr(os, "fdatasync", refusing)
    told: list[str] = []
    parts = []
    with process.disk.together() as begin:
        for storage in process.storages:
            parts.append(begin())
            storage.state["n"] = 2
            process.disk.once_durable(lambda name=storage.agent_id: told.append(name))  # type: ignore[misc]
    parts[0].told()
    with pytest.raises(StorageError, match="could not be written"):
        parts[1].told()
    parts[2].told()
    assert told == [NAMES[0], NAMES[2]]
    with pytest.raises(StorageError, match="could not be written"):
        process.storages[1].state["n"] = 3
    process.storages[2].state["n"] = 3


def test_a_disk_that_refuses_once_has_lost_all_that_waited_for_it(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system tells an error of the disk once. The next synchronisation succeeds, and does not mean that anything is there."""
    process.commit(1)
    true, refused = os.fdatasync, list[int]()  # the agent's log, once

    def refusing(file: int) -> None:
        is_shared = Path(f"/proc/self/fd/{file}").readlink().suffix == ".shared"
        if is_shared or not refused:
            refused.extend([] if is_shared else [file])
            raise OSError(5, "Input/output error")
        true(file)

    monkeypatch.setattr(os, "fdatasync", refusing)
    parts = []
    with process.disk.together() as begin:
        for n in (2, 3):
            parts.append(begin())
            process.storages[0].state["n"] = n
    for part in parts:
        with pytest.raises(StorageError):
            part.told()


def test_a_log_that_is_shut_before_it_is_durable_is_synchronised_then(process: Process, events: Events) -> None:
    process.commit(1)
    events.clear()
    with process.disk.together() as begin:
        part = begin()
        process.storages[0].state["n"] = 2
        process.storages[0].close()
        assert events == [("fdatasync", ".db")]
    part.told()


def test_on_a_file_system_that_machines_share_nothing_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: Events
) -> None:
    monkeypatch.setattr("perdure.ledger.storage.shared_log.is_local", lambda _folder: False)
    process = Process(tmp_path / "agents")
    process.commit(1)
    events.clear()
    process.commit(2)
    assert events == [("fdatasync", ".db")] * 3
    assert segments(process.disk.directory) == []


def test_a_machine_without_the_id_of_its_boot_shares_nothing(tmp_path: Path, events: Events) -> None:
    process = Process(tmp_path / "agents", boot="")
    process.commit(1)
    events.clear()
    process.commit(2)
    assert events == [("fdatasync", ".db")] * 3


def test_a_damaged_entry_is_passed_over_and_its_loss_is_told(process: Process, tmp_path: Path) -> None:
    process.commit(1)
    before = process.files()
    for n in (2, 3):
        process.commit(n)
    sequence = process.storages[0].sequence
    cut = power_cut(process, before, tmp_path / "cut")
    (file,) = [each for each in segments(cut) if pieces_in(each.read_bytes())]
    content = bytearray(file.read_bytes())
    content[content.index(b"\xc5shr", 100) + 60] ^= 1
    file.write_bytes(content)
    assert len(pieces_in(bytes(content))) == 6, "of three entries of three"
    assert found(cut) == dict.fromkeys(NAMES, 1)
    with closing(Cabinet(FileDisk(cut))) as cabinet, pytest.raises(StorageError, match=f"it came to {sequence}"):
        cabinet.open(NAMES[0], 10, reported=sequence)


def test_a_segment_that_was_never_whole_was_promised_to_nobody(tmp_path: Path) -> None:
    folder = tmp_path / "agents" / "shared"
    folder.mkdir(parents=True)
    half = folder / "1-1.shared"
    half.write_bytes(b"perdureS")
    assert boot_of(half) is None
    assert list_storages(tmp_path / "agents").storages == {}
    assert not half.exists()


def test_who_looks_at_the_files_sees_what_a_power_cut_has_taken(process: Process, tmp_path: Path) -> None:
    process.commit(1)
    before = process.files()
    process.commit(2)
    after = process.files()
    cut = power_cut(process, before, tmp_path / "cut")
    assert len(list_storages(cut).storages) == 3
    assert {name: FileDisk(cut).path_of(name).read_bytes() for name in NAMES} == after


def test_a_disk_that_cannot_be_mended_opens_nothing(process: Process, tmp_path: Path) -> None:
    process.commit(1)
    process.commit(2)
    cut = power_cut(process, {}, tmp_path / "cut")
    file = segments(cut)[0]
    file.unlink()
    file.mkdir()
    with pytest.raises(StorageError, match="cannot be put back"):
        found(cut)


def test_this_machine_tells_its_boot_and_which_disks_are_its_own(tmp_path: Path) -> None:
    assert len(boot_id()) == 36
    assert is_local(tmp_path)
    assert not is_local(Path("/proc/self"))
