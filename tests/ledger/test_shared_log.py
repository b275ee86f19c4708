"""Commits of several agents at once: one write to the disk for all, and a power cut takes none of them (`ledger.storage.shared_log`)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perdure.ledger.errors import StorageError, StorageLost
from perdure.ledger.known_agent import KnownAgents
from perdure.ledger.maintenance.examination import examine_storages
from perdure.ledger.maintenance.listing import list_storages
from perdure.ledger.storage.agent_storages import AgentStorages, CommitPart, FileDisk, Storage
from perdure.ledger.storage.log_format import COMMIT, frame_of
from perdure.ledger.storage.shared_log import SharedLog
from perdure.ledger.storage.shared_segment import LogPiece, Segment, boot_of, read_segment
from perdure.ledger.storage.this_machine import boot_id, is_local

NAMES = [f"{each}@m:T" for each in "abc"]
Events = list[tuple[str, str]]


def at_once(job: Callable[[], None]) -> None:
    job()


class Process:
    """One process with three agents, whose storages have one commit each. A copy of its folder is what it leaves when it is killed."""

    def __init__(self, folder: Path, *, boot: str = "one", room: int = 1 << 16, names: Sequence[str] = NAMES) -> None:
        self.disk = FileDisk(folder, SharedLog(folder, boot=boot, room=room, beside=at_once))
        self.agent_storages = AgentStorages(self.disk)
        self.storages = [self.agent_storages.open(name, 1) for name in names]
        for storage in self.storages:
            storage.state["n"] = 0

    def commit(self, n: int, *storages: Storage) -> list[CommitPart]:
        """Have these agents commit together, or all of them."""
        parts = []
        with self.disk.group_commit() as begin:
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
    with closing(disk), closing(AgentStorages(disk)) as agent_storages:
        return {name: agent_storages.open(name, 9).state.get("n") for name in NAMES}


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
    with process.disk.group_commit() as begin:
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
    process.agent_storages.forget(deleted.agent_id)
    anew.state["n"] = 3
    anew.checkpoint()
    tables.sql("CREATE TABLE t (i INTEGER)")
    cut = power_cut(process, {}, tmp_path / "cut")
    assert found(cut) == dict(zip(NAMES, (None, 3, 2), strict=True))


def test_a_piece_of_another_history_is_not_put_back(process: Process, tmp_path: Path) -> None:
    """The agent was deleted, and made again: its log is as long as the one before was."""
    process.commit(1)
    process.commit(2)
    process.agent_storages.forget(NAMES[0])
    again = process.agent_storages.open(NAMES[0], 7)
    again.state["n"] = 0
    again.state["n"] = 5
    cut = power_cut(process, {}, tmp_path / "cut")
    assert found(cut) == dict(zip(NAMES, (5, 2, 2), strict=True))


def test_a_life_on_a_log_of_an_earlier_one_commits_alone_before_it_shares(tmp_path: Path, events: Events) -> None:
    """What an earlier life has written last, and the claim of this one, may not be on the disk."""
    folder = tmp_path / "agents"
    first = Process(folder)
    first.commit(1)
    first.agent_storages.close()
    second = AgentStorages(first.disk)
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
        starts = [piece.start for piece in read_segment(each.read_bytes()).sure]
        assert starts == sorted(starts), "what is left of an earlier generation does not count"
        assert starts
    assert found(power_cut(process, {}, tmp_path / "cut")) == dict.fromkeys(NAMES, 183)
    process.disk.close()


def test_what_is_too_long_for_a_segment_is_synchronised_by_itself(tmp_path: Path, events: Events) -> None:
    process = Process(tmp_path / "agents", room=4 << 10)
    process.commit(1)
    events.clear()
    with process.disk.group_commit() as begin:
        for storage in process.storages:
            begin()
            storage.state["long"] = "x" * 4096
    assert events == [("fdatasync", ".db")] * 3


def test_an_orderly_end_leaves_no_segments(process: Process) -> None:
    process.commit(1)
    process.commit(2)
    assert len(segments(process.disk.directory)) == 2
    process.agent_storages.close()
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
        each.agent_storages.close()
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
    with process.disk.group_commit() as begin:
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
    with process.disk.group_commit() as begin:
        for n in (2, 3):
            parts.append(begin())
            process.storages[0].state["n"] = n
    for part in parts:
        with pytest.raises(StorageError):
            part.told()


def test_a_log_that_is_shut_before_it_is_durable_is_synchronised_then(process: Process, events: Events) -> None:
    process.commit(1)
    events.clear()
    with process.disk.group_commit() as begin:
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


def damaged(process: Process, folder: Path, before: dict[str, bytes], damage: Callable[[bytearray], None]) -> Path:
    """The directory after a power cut that has kept this of the agents' logs, and a segment that was damaged so."""
    cut = power_cut(process, before, folder)
    (file,) = [each for each in segments(cut) if read_segment(each.read_bytes()).sure]
    content = bytearray(file.read_bytes())
    damage(content)
    file.write_bytes(content)
    return cut


def seen(folder: Path) -> dict[str, Any]:
    """What the next life of each agent finds, or that it is refused."""
    states: dict[str, Any] = {}
    disk = FileDisk(folder, SharedLog(folder, boot="two", beside=at_once))
    with closing(disk), closing(AgentStorages(disk)) as agent_storages:
        for name in NAMES:
            try:
                states[name] = agent_storages.open(name, 9).state.get("n")
            except StorageLost:
                states[name] = "refused"
    return states


def entry(content: bytes | bytearray, number: int, of: int = 3) -> int:
    """Where an entry of so many pieces begins."""
    at = -1
    for _ in range(of * number + 1):
        at = content.index(b"\xc5shr", at + 1)
    return at


def test_a_damaged_byte_takes_nothing_that_another_piece_does_not_need(process: Process, tmp_path: Path) -> None:
    """Any byte of an entry but the last: who has lost a commit is refused, and all others have all of theirs."""
    process.commit(1)
    before = process.files()
    for n in (2, 3, 4):
        process.commit(n)
    content = max(
        (each.read_bytes() for each in segments(process.disk.directory)), key=lambda each: len(read_segment(each).sure)
    )
    begin, end = entry(content, 1), content.index(b"\xc5nam", entry(content, 1))
    for at in range(begin, end, 7):
        cut = damaged(process, tmp_path / f"{at}", before, lambda raw, at=at: raw.__setitem__(at, raw[at] ^ 4))  # type: ignore[misc]
        states = seen(cut)
        assert sorted(states.values(), key=str) == [4, 4, "refused"], at
        assert [each.name for each in cut.glob("shared/*.damaged-1")], "the segment is kept"
        assert seen(cut) == states, "and so it stays"
        shutil.rmtree(cut)


def test_entries_that_are_gone_refuse_whoever_had_a_commit_in_them(
    process: Process, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    process.commit(1)
    before = process.files()
    process.commit(2)
    process.commit(3, *process.storages[:2])
    process.commit(4, *process.storages[:2])

    def zeroed(raw: bytearray) -> None:
        begin, end = entry(raw, 2), raw.index(b"\xc5shr", raw.index(b"\xc5shr", entry(raw, 2) + 1) + 1)
        raw[begin:end] = bytes(end - begin)
        raw[raw.rindex(b"\xc5nam") + 20] ^= 1  # and who had one in them is not known from the next entry

    cut = damaged(process, tmp_path / "cut", before, zeroed)
    assert seen(cut) == dict(zip(NAMES, ("refused", "refused", 2), strict=True))


def test_who_has_lost_the_last_commit_is_known_from_the_next_entry(
    process: Process, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    process.commit(1)
    before = process.files()
    process.commit(2)
    process.commit(3, *process.storages[:2])

    def zeroed(raw: bytearray) -> None:
        begin, end = entry(raw, 1), entry(raw, 2)
        raw[begin:end] = bytes(end - begin)

    cut = damaged(process, tmp_path / "cut", before, zeroed)
    assert seen(cut) == dict.fromkeys(NAMES, "refused")
    assert "1 of its entries are damaged or written over, from number 2 on, and later ones follow" in caplog.text


def test_a_last_entry_that_is_not_whole_is_kept_and_told(
    process: Process, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It was promised to nobody, or is damaged. What is whole in it is put back."""
    process.commit(1)
    before = process.files()
    process.commit(2)
    process.commit(3)
    cut = damaged(process, tmp_path / "cut", before, lambda raw: raw.__setitem__(entry(raw, 2) + 70, 0))
    assert seen(cut) == dict(zip(NAMES, (2, 3, 3), strict=True))
    assert "its last entry is not whole. It is kept as" in caplog.text
    (kept,) = cut.glob("shared/*.damaged-1")
    findings = examine_storages(cut, KnownAgents({}))
    (told,) = [each for each in findings if kept.name in each.what]
    assert told.severity == "warning"
    assert "its last entry is not whole" in told.what


@pytest.mark.parametrize("generations", [1, 2])
def test_a_last_entry_of_which_only_the_end_is_left_is_told(tmp_path: Path, generations: int) -> None:
    """Nothing follows it, and without its pieces only that end shows that it was there."""
    segment = Segment(tmp_path / "1.shared", "boot", 6_000)
    pieces = [LogPiece(f"{'ab' * 16}.db", 0, frame_of(COMMIT, [], n, 1, bytes(16))[0]) for n in range(2)]
    for generation in range(generations):
        if generation:
            segment.renew()
        for _ in range(3):
            begin = segment._end  # noqa: SLF001
            entry = segment.entry(pieces)
            assert entry is not None
            segment.append(entry)
    raw = bytearray(segment.path.read_bytes())
    whole = read_segment(bytes(raw))
    assert (len(whole.sure), whole.problem) == (6, "")
    raw[begin : raw.rindex(b"\xc5nam")] = bytes(raw.rindex(b"\xc5nam") - begin)
    found = read_segment(bytes(raw))
    assert (len(found.sure), found.last, found.problem) == (4, [], "its last entry is not whole")
    segment.close(remove=True)


def test_a_damaged_head_of_a_segment_loses_nothing(process: Process, tmp_path: Path) -> None:
    process.commit(1)
    before = process.files()
    process.commit(2)
    cut = damaged(process, tmp_path / "cut", before, lambda raw: raw.__setitem__(12, raw[12] ^ 1))
    assert seen(cut) == dict.fromkeys(NAMES, 2)


def test_a_segment_whose_beginning_is_gone_with_its_only_entry_is_kept_and_told(
    process: Process, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    process.commit(1)
    process.commit(2)
    cut = damaged(process, tmp_path / "cut", {}, lambda raw: raw.__setitem__(slice(0, len(raw)), bytes(len(raw))))
    assert seen(cut) == dict.fromkeys(NAMES, 2), "which the agents' logs have here"
    assert "its head is not whole. It is kept as" in caplog.text
    assert list(cut.glob("shared/*.damaged-1"))


def test_a_power_cut_in_the_first_entry_of_a_generation_refuses_nobody(tmp_path: Path) -> None:
    """What it is written over is of the generation before, and not needed any more."""
    process = Process(tmp_path / "agents", room=4 << 10)
    for n in range(60):
        process.commit(n)
    written = max(segments(tmp_path / "agents"), key=lambda each: each.stat().st_mtime_ns)
    raw = written.read_bytes()
    for keep in (100, 300, 500):
        cut = power_cut(process, {}, tmp_path / f"cut-{keep}")
        other = next(each for each in segments(cut) if each.name != written.name).read_bytes()
        (cut / "shared" / written.name).write_bytes(raw[:keep] + other[keep:])
        assert seen(cut) == dict.fromkeys(NAMES, 59), keep
    process.disk.close()


def test_who_has_lost_a_commit_and_reported_it_is_refused(process: Process, tmp_path: Path) -> None:
    process.commit(1)
    before = process.files()
    process.commit(2)
    sequence = process.storages[0].sequence
    cut = damaged(process, tmp_path / "cut", before, lambda raw: raw.__setitem__(entry(raw, 1) + 60, 0))
    with (
        closing(AgentStorages(FileDisk(cut))) as agent_storages,
        pytest.raises(StorageError, match=f"it came to {sequence}"),
    ):
        agent_storages.open(NAMES[0], 10, reported=sequence)


@pytest.mark.parametrize("call", ["fdatasync", "syncfs"])
def test_after_a_failed_synchronisation_nobody_takes_the_segments_away(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk may have lost what earlier commits had left to it, and says so once. Until the next boot the segments have it."""
    process = Process(tmp_path / "agents", room=4 << 10)
    process.commit(1)
    before = process.files()
    process.commit(2)
    true = os.fdatasync

    def refusing(file: int) -> None:
        if Path(f"/proc/self/fd/{file}").readlink().suffix == ".db":
            raise OSError(5, "Input/output error")
        true(file)

    def failing(_file: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        if call == "fdatasync":
            patched.setattr(os, "fdatasync", refusing)
            with pytest.raises(StorageError):
                process.storages[0].state["n"] = 3
        else:
            patched.setattr("perdure.ledger.storage.shared_log.synchronise_file_system", failing)
            for n in range(3, 99):
                process.commit(n, *process.storages[1:])
    for n in range(100, 200):
        process.commit(n, *process.storages[1:])
    process.agent_storages.close()
    process.disk.close()
    heir = Process(tmp_path / "agents", names=["d@m:T", "e@m:T"])
    heir.commit(1)
    heir.commit(2)
    heir.disk.close()
    kept = segments(tmp_path / "agents")
    assert [each.name.endswith(".kept.shared") for each in kept] == [True, True]
    first = NAMES[0]
    assert found(power_cut(process, {first: before[first]}, tmp_path / "cut"))[first] == 2


def test_a_segment_that_was_never_whole_was_promised_to_nobody(tmp_path: Path) -> None:
    folder = tmp_path / "agents" / "shared"
    folder.mkdir(parents=True)
    half = folder / "1-1.shared"
    half.write_bytes(b"perdureT")
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
