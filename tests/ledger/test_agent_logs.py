"""An agent that uses no SQL is a small log: what is in it, what is left of it, and how it becomes a database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.ledger.errors import StaleIncarnation, StorageConflict, StorageError, StorageLost
from perdure.ledger.storage import agent_log, file_disk
from perdure.ledger.storage.agent_log import AgentLog
from perdure.ledger.storage.agent_storages import AgentStorages, Disk, FileDisk, MemoryDisk, Storage
from perdure.ledger.storage.file_disk import is_log_at
from perdure.ledger.storage.log_format import CLAIM, COMMIT, REST, read_log, rows_of
from perdure.ledger.storage.records import Records

AGENT = "a@m:T"
COMMITS = 5


@pytest.fixture
def files(tmp_path: Path) -> Iterator[FileDisk]:
    made = FileDisk(tmp_path / "files")
    yield made
    made.close()


@pytest.fixture(params=["files", "memory"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    made: Disk = FileDisk(tmp_path / "files") if request.param == "files" else MemoryDisk()
    yield made
    made.close()


def commit(storage: Storage, n: int) -> None:
    """One transaction with a row of each kind."""
    with storage.transaction() as transaction:
        storage.state["n"] = n
        transaction.record_inbox([f"m{n}"])
        transaction.add_outbox(b"%d" % n)
        transaction.save_step("r", f"s{n}", b"step %d" % n)


def contents(storage: Storage) -> tuple[Any, ...]:
    """All that a life can see of the records."""
    return dict(storage.state), storage.inbox(), storage.outbox(), storage.steps("r"), storage.sequence


def kinds(path: Path) -> list[int]:
    return [frame.kind for frame in read_log(path.read_bytes()).frames]


def wake(files: FileDisk, incarnation: int = 9) -> tuple[int, str]:
    """How many commits the next life finds, and what it is told."""
    with closing(AgentStorages(files)) as agent_storages:
        storage = agent_storages.open(AGENT, incarnation)
        n = storage.state.get("n", 0)
        assert list(storage.inbox()) == [f"m{i}" for i in range(1, n + 1)]
        assert [body for _, body in storage.outbox()] == [b"%d" % i for i in range(1, n + 1)]
        assert storage.steps("r") == {f"s{i}": b"step %d" % i for i in range(1, n + 1)}
        return n, storage.file.finding


# ------------------------------------------------------------------ what lies on the disk


def test_a_storage_begins_as_a_log_and_stays_one_while_nobody_asks_for_tables(files: FileDisk) -> None:
    agent_storages = AgentStorages(files)
    storage = agent_storages.open(AGENT, 1)
    commit(storage, 1)
    assert storage.sql("SELECT 40 + 2") == [(42,)]
    with storage.transaction():
        assert storage.sql("SELECT $1", ["constant"]) == [("constant",)]
    storage.checkpoint()
    agent_storages.close()
    assert is_log_at(files.path_of(AGENT))
    assert wake(files) == (1, "")


def test_an_agent_with_state_alone_takes_a_block_and_a_life_that_reads_leaves_it_as_small(files: FileDisk) -> None:
    path = files.path_of(AGENT)
    with closing(AgentStorages(files)) as agent_storages:
        agent_storages.open(AGENT, 1).state.update(title="notes", n=3)
    assert path.stat().st_size < 500
    for life in range(2, 40):
        with closing(AgentStorages(files)) as agent_storages:
            assert agent_storages.open(AGENT, life).state["n"] == 3
    assert path.stat().st_size < 500
    assert kinds(path) == [COMMIT, CLAIM]
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_life_that_was_closed_says_that_all_is_on_the_disk_and_one_that_was_killed_does_not(files: FileDisk) -> None:
    path = files.path_of(AGENT)
    agent_storages = AgentStorages(files)
    commit(agent_storages.open(AGENT, 1), 1)
    agent_storages.close()
    assert kinds(path) == [COMMIT, REST]
    agent_storages = AgentStorages(files)
    commit(agent_storages.open(AGENT, 2), 2)
    agent_storages.crash()
    assert kinds(path) == [COMMIT, COMMIT]


def test_a_page_that_a_power_cut_has_taken_from_a_claim_refuses_nobody(files: FileDisk) -> None:
    """A claim and a rest are never synchronised: of one that lies across two pages the disk may have the later one alone."""
    path = files.path_of(AGENT)
    for life in range(1, 6):
        with closing(AgentStorages(files)) as agent_storages:
            storage = agent_storages.open(AGENT, life)
            if life % 2:
                commit(storage, life // 2 + 1)
        whole = path.read_bytes()
        last = read_log(whole).frames[-1]
        assert last.kind in {CLAIM, REST}
        for kept in range(last.start + 1, last.end, 8):
            path.write_bytes(whole[: last.start] + bytes(kept - last.start) + whole[kept:])
            (n, finding), ended = wake(files, 1_000), path.read_bytes()
            assert n == (life + 1) // 2
            assert "no whole commit" in finding
            assert ended != whole
            path.write_bytes(whole)


def test_what_a_rest_says_goes_on_in_what_takes_its_place(disk: Disk) -> None:
    with closing(AgentStorages(disk)) as agent_storages:
        storage = agent_storages.open(AGENT, 1)
        commit(storage, 1)
        commit(storage, 2)
        storage.forget_inbox(["m1"])
    for life in (2, 3):
        agent_storages = AgentStorages(disk)
        assert list(agent_storages.open(AGENT, life).inbox()) == ["m2"]
        agent_storages.crash()
    with closing(AgentStorages(disk)) as agent_storages:
        commit(agent_storages.open(AGENT, 4), 3)
    assert list(AgentStorages(disk).open(AGENT, 5).inbox()) == ["m2", "m3"]


def test_what_was_forgotten_stays_so_after_a_clean_end_and_comes_back_after_a_death(disk: Disk) -> None:
    agent_storages = AgentStorages(disk)
    storage = agent_storages.open(AGENT, 1)
    commit(storage, 1)
    commit(storage, 2)
    storage.forget_inbox(["m1"])
    agent_storages.crash()
    agent_storages = AgentStorages(disk)
    storage = agent_storages.open(AGENT, 2)
    assert list(storage.inbox()) == ["m1", "m2"]
    storage.forget_inbox(["m1"])
    storage.forget_outbox([storage.outbox()[0][0]])
    agent_storages.close()
    storage = AgentStorages(disk).open(AGENT, 3)
    assert (list(storage.inbox()), [body for _, body in storage.outbox()]) == (["m2"], [b"2"])


def test_a_lower_life_is_refused_though_the_higher_one_only_read(disk: Disk) -> None:
    for life in (1, 7):
        with closing(AgentStorages(disk)) as agent_storages:
            agent_storages.open(AGENT, life).state.setdefault("a", 1)
    with pytest.raises(StaleIncarnation, match="incarnation 7"):
        AgentStorages(disk).open(AGENT, 6)


def test_of_two_processes_that_create_a_log_the_second_has_to_look_again(disk: Disk) -> None:
    one, two = AgentStorages(disk), AgentStorages(disk)
    late = one.open(AGENT, 1)
    assert dict(late.state) == {}
    commit(two.open(AGENT, 1), 1)
    two.close()
    with pytest.raises(StorageConflict, match="another process created"):
        commit(late, 2)
    commit(late, 2)
    assert list(late.inbox()) == ["m1", "m2"]


# ------------------------------------------------------------------ damage


@pytest.fixture(scope="module")
def asleep(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small log of two lives; the first was closed, the second was killed."""
    files = FileDisk(tmp_path_factory.mktemp("asleep"))
    for life, upto in ((1, 3), (2, COMMITS)):
        agent_storages = AgentStorages(files)
        storage = agent_storages.open(AGENT, life)
        for n in range(storage.state.get("n", 0) + 1, upto + 1):
            commit(storage, n)
        agent_storages.close() if life == 1 else agent_storages.crash()
    content = files.path_of(AGENT).read_bytes()
    files.close()
    return content


def laid(files: FileDisk, content: bytes) -> Path:
    path = files.path_of(AGENT)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def commits_in(content: bytes) -> int:
    reading = read_log(content)
    return sum(frame.kind == COMMIT for frame in reading.frames)


def test_no_flipped_byte_and_no_cut_of_a_log_is_silent(asleep: bytes, tmp_path: Path) -> None:
    """Every byte of it: either the whole truth is there, or it is said."""
    ends = [frame.end for frame in read_log(asleep).frames]
    begin = read_log(asleep).frames[0].start
    mended = refused = 0
    for number, damaged in enumerate(states(asleep)):
        files = FileDisk(tmp_path / str(number))
        path = laid(files, damaged)
        try:
            n, finding = wake(files)
            assert n == commits_in(damaged)
            if n < COMMITS:
                assert finding or len(damaged) in ends or len(damaged) == begin, f"state {number} is silent"
            if finding:
                assert [each.read_bytes() for each in path.parent.glob("*.cut-*")] == [damaged]
                mended += 1
        except StorageError:
            assert path.read_bytes() == damaged, "what is refused stays as it is"
            refused += 1
        files.close()
    assert mended > 50
    assert refused > len(asleep) / 2


def states(log: bytes) -> Iterator[bytes]:
    for at in range(len(log)):
        yield log[:at] + bytes([log[at] ^ 1 << at % 8]) + log[at + 1 :]
        yield log[:at]


def test_a_commit_that_is_missing_between_two_others_is_found(asleep: bytes, files: FileDisk) -> None:
    frames = [frame for frame in read_log(asleep).frames if frame.kind == COMMIT]
    path = laid(files, asleep[: frames[1].start] + asleep[frames[1].end :])
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(StorageLost, match=r"damaged.*later commits follow"):
            wake(files)
    assert path.read_bytes() == before


@pytest.mark.parametrize("rest", [1, 30, 70])
def test_a_half_written_commit_is_cut_and_kept_and_the_life_goes_on(asleep: bytes, files: FileDisk, rest: int) -> None:
    last = read_log(asleep).frames[-1]
    half = asleep[: last.start + rest]
    path = laid(files, half)
    n, finding = wake(files)
    assert n == COMMITS - 1
    assert f"the last {rest} bytes" in finding
    assert str(path.with_name(path.name + ".cut-1")) in finding
    assert wake(files, 10) == (COMMITS - 1, "")
    AgentStorages(files).forget(AGENT)
    assert list(path.parent.iterdir()) == []


def test_a_log_that_was_cut_below_what_the_agent_had_reported_is_lost(asleep: bytes, files: FileDisk) -> None:
    laid(files, asleep)
    with closing(AgentStorages(files)) as agent_storages:
        storage = agent_storages.open(AGENT, 3)
        commit(storage, COMMITS + 1)
        reported = storage.sequence
    with closing(AgentStorages(files)) as agent_storages:
        assert agent_storages.open(AGENT, 4, reported).state["n"] == COMMITS + 1
    laid(files, asleep)
    with pytest.raises(StorageLost, match=f"it came to {reported}, and"):
        AgentStorages(files).open(AGENT, 5, reported)


def test_a_log_under_the_name_of_another_agent_is_refused(asleep: bytes, files: FileDisk) -> None:
    laid(files, asleep)
    other = files.path_of("b@m:T")
    other.parent.mkdir(parents=True, exist_ok=True)
    files.path_of(AGENT).rename(other)
    with pytest.raises(StorageError, match=f"is the storage of '{AGENT}'"):
        AgentStorages(files).open("b@m:T", 3)


def test_a_row_that_is_damaged_while_the_agent_is_awake_is_not_given_out(asleep: bytes, files: FileDisk) -> None:
    path = laid(files, asleep)
    agent_storages = AgentStorages(files)
    storage = agent_storages.open(AGENT, 3)
    at = asleep.index(b"step 2")
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"STEP")
    with pytest.raises(StorageLost, match=rf"{files.path_of(AGENT)} is damaged"):
        storage.steps("r")
    agent_storages.crash()


# ------------------------------------------------------------------ garbage, and growth


def test_a_log_that_is_mostly_garbage_is_written_anew(files: FileDisk) -> None:
    path = files.path_of(AGENT)
    agent_storages = AgentStorages(files)
    storage = agent_storages.open(AGENT, 1)
    with storage.brief() as transaction:
        transaction.save_step("r", "kept", b"kept")
    for n in range(800):
        storage.state["large"] = f"{n}".rjust(1_000)
        assert path.stat().st_size < 270_000
    before = contents(storage)
    assert storage.steps("r") == {"kept": b"kept"}
    agent_storages.crash()
    again = AgentStorages(files).open(AGENT, 2)
    assert contents(again)[:-1] == before[:-1]
    assert again.sequence >= before[-1], "the numbers go on"
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def written_anew(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How long each log is that is written anew from now on."""
    sizes: list[int] = []
    anew = AgentLog._anew  # noqa: SLF001

    def counted(log: AgentLog, records: Records) -> bytes:
        content = anew(log, records)
        sizes.append(len(content))
        return content

    monkeypatch.setattr(AgentLog, "_anew", counted)
    return sizes


def test_a_log_without_garbage_is_not_looked_through(files: FileDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = written_anew(monkeypatch)
    storage = AgentStorages(files).open(AGENT, 1)
    for n in range(300):
        with storage.brief() as transaction:
            transaction.save_step("r", f"s{n}", b"x" * 1_000)
    assert looked == []
    for n in range(900):
        storage.state["large"] = f"{n}".rjust(1_000)
    assert looked, "more than a half of it was garbage"
    assert files.path_of(AGENT).stat().st_size < 3 * looked[-1]


def test_what_thousands_of_requests_leave_behind_goes_before_the_next_ones_are_written(
    files: FileDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be garbage of a log whose other half was written just now, and all of that would be written once more."""
    written = written_anew(monkeypatch)
    storage = AgentStorages(files).open(AGENT, 1)
    for _ in range(4):
        with storage.transaction() as transaction:
            for n in range(2_000):
                transaction.add_outbox(b"x" * 200 + f"{n}".encode())
        storage.state["n"] = 1
        storage.forget_outbox([number for number, _ in storage.outbox()])
        for n in range(10):
            storage.state["n"] = n
    assert len(written) == 4
    assert max(written) < 10_000, "no request is written twice"


def test_a_long_commit_is_not_read_again_whenever_some_of_its_rows_are_gone(
    files: FileDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    monkeypatch.setattr(AgentLog, "_anew", lambda *_: written.append(1) or b"x" * 10_000_000)
    storage = AgentStorages(files).open(AGENT, 1)
    with storage.transaction() as transaction:
        for n in range(3_000):
            transaction.add_outbox(b"x" * 200 + f"{n}".encode())
    numbers = [number for number, _ in storage.outbox()]
    for n in range(10):
        storage.forget_outbox(numbers[100 * n : 100 * n + 100])
        with storage.brief() as transaction:
            transaction.save_step("r", f"s{n}", b"x" * 50_000)
    assert written == []


def test_a_log_that_only_grows_becomes_a_database_in_time(files: FileDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_log, "_LIVING_BYTES_MAX", 100_000)
    agent_storages = AgentStorages(files)
    storage = agent_storages.open(AGENT, 1)
    for n in range(1, 400):
        with storage.brief() as transaction:
            transaction.save_step("r", f"s{n}", b"x" * 1_000)
    assert not is_log_at(files.path_of(AGENT))
    assert storage.steps("r") == {f"s{n}": b"x" * 1_000 for n in range(1, 400)}
    agent_storages.close()
    assert len(AgentStorages(files).open(AGENT, 2).steps("r")) == 399


def test_a_log_is_written_anew_with_the_numbers_that_its_rows_had(disk: Disk) -> None:
    agent_storages = AgentStorages(disk)
    storage = agent_storages.open(AGENT, 1)
    for n in range(1, 30):
        commit(storage, n)
    storage.forget_inbox([f"m{n}" for n in range(1, 20)])
    before = contents(storage)
    storage.checkpoint()
    assert contents(storage)[:-1] == before[:-1]
    agent_storages.crash()
    storage = AgentStorages(disk).open(AGENT, 2)
    assert contents(storage)[:-1] == before[:-1]
    commit(storage, 30)
    assert max(storage.inbox().values()) > max(before[1].values())


# ------------------------------------------------------------------ a database


WAYS: list[Callable[[AgentStorages, Storage, Path], object]] = [
    lambda _agent_storages, storage, _path: storage.sql("CREATE TABLE t (i INTEGER)"),
    lambda _agent_storages, storage, _path: storage.sql("SELECT count(*) FROM perdure.records"),
    lambda _agent_storages, storage, path: storage.snapshot(path / "snapshot.db"),
    lambda agent_storages, storage, _path: agent_storages.fork(storage.agent_id, "twin@m:T"),
]


@pytest.mark.parametrize("way", WAYS)
def test_a_log_becomes_a_database_with_all_that_is_committed_under_the_same_numbers(
    disk: Disk, tmp_path: Path, way: Callable[[AgentStorages, Storage, Path], object]
) -> None:
    agent_storages = AgentStorages(disk)
    storage = agent_storages.open(AGENT, 1)
    for n in range(1, 4):
        commit(storage, n)
    storage.forget_inbox(["m2"])
    before, versions = contents(storage), storage.records().versions("state")
    way(agent_storages, storage, tmp_path)
    assert storage.file.is_database
    assert contents(storage)[:-1] == before[:-1]
    assert storage.records().versions("state") == versions
    agent_storages.crash()
    storage = AgentStorages(disk).open(AGENT, 2)
    assert storage.file.is_database
    assert contents(storage)[:-1] == before[:-1]
    assert storage.sequence >= before[-1]


def test_the_storage_of_an_agent_that_sleeps_can_be_copied_though_it_is_a_log(disk: Disk) -> None:
    agent_storages = AgentStorages(disk)
    commit(agent_storages.open(AGENT, 1), 1)
    agent_storages.close()
    agent_storages = AgentStorages(disk)
    agent_storages.fork(AGENT, "twin@m:T")
    assert dict(agent_storages.open("twin@m:T", 1).state) == {"n": 1}
    assert list(agent_storages.open(AGENT, 1).inbox()) == ["m1"]


def test_inbox_state_and_tables_of_the_transaction_that_needs_tables_are_one(disk: Disk) -> None:
    agent_storages = AgentStorages(disk)
    storage = agent_storages.open(AGENT, 1)
    commit(storage, 1)

    def handler(*, fails: bool) -> None:
        with storage.transaction() as transaction:
            transaction.record_inbox(["m2"])
            storage.state["n"] = 2
            storage.sql("CREATE TABLE t AS SELECT 2 AS n")
            transaction.add_outbox(b"2")
            if fails:
                raise ZeroDivisionError

    with suppress(ZeroDivisionError):
        handler(fails=True)
    assert (list(storage.inbox()), storage.state["n"], len(storage.outbox())) == (["m1"], 1, 1)
    handler(fails=False)
    agent_storages.crash()
    storage = AgentStorages(disk).open(AGENT, 2)
    assert (list(storage.inbox()), storage.state["n"], len(storage.outbox())) == (["m1", "m2"], 2, 2)
    assert storage.sql("SELECT n FROM t") == [(2,)]


def test_a_transaction_that_was_open_before_goes_on_and_still_finds_its_conflicts(disk: Disk) -> None:
    storage = AgentStorages(disk).open(AGENT, 1)
    commit(storage, 1)
    calm, late = storage.begin(), storage.begin()
    with calm.active():
        storage.state["calm"] = storage.state["n"]
    with late.active():
        storage.state["late"] = storage.state.get("other", 0)
    storage.state["other"] = 1
    storage.sql("CREATE TABLE t (i INTEGER)")
    calm.commit()
    with pytest.raises(StorageConflict):
        late.commit()
    assert dict(storage.state) == {"n": 1, "other": 1, "calm": 1}


def test_a_log_that_cannot_become_a_database_stays_one_and_the_life_goes_on(
    files: FileDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent_storages = AgentStorages(files)
    storage = agent_storages.open(AGENT, 1)
    commit(storage, 1)
    staged = files.path_of(AGENT).with_name(files.path_of(AGENT).name + ".new")
    staged.mkdir()
    with pytest.raises(StorageError, match="cannot be deleted"):
        storage.sql("CREATE TABLE t (i INTEGER)")
    commit(storage, 2)
    staged.rmdir()
    storage.sql("CREATE TABLE t (i INTEGER)")
    assert list(storage.inbox()) == ["m1", "m2"]
    agent_storages.close()


def test_a_life_is_over_when_the_disk_refuses_the_last_step_of_becoming_a_database(
    files: FileDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_folder: Path) -> None:
        raise OSError(5, "Input/output error")

    storage = AgentStorages(files).open(AGENT, 1)
    commit(storage, 1)
    with monkeypatch.context() as patched:
        patched.setattr(file_disk, "synchronise", refuse)
        with pytest.raises(StorageError, match="could not be written"):
            storage.sql("CREATE TABLE t (i INTEGER)")
    with pytest.raises(StorageError, match="could not be written"):
        commit(storage, 2)
    assert wake(files) == (1, "")


# ------------------------------------------------------------------ the same on a log, on a database, and across the move


STEPS = st.one_of(
    st.tuples(st.just("commit"), st.integers(0, 3)),
    st.tuples(st.just("delete"), st.integers(0, 3)),
    st.tuples(st.just("rollback"), st.integers(0, 3)),
    st.tuples(st.just("forget"), st.integers(0, 9)),
    st.tuples(st.just("send"), st.integers(0, 9)),
    st.tuples(st.sampled_from(["crash", "close", "checkpoint"]), st.just(0)),
)


class Life:
    """An agent that does as it is told, on a disk of its own."""

    def __init__(self, tables_at: int) -> None:
        self.disk = MemoryDisk()
        self.agent_storages = AgentStorages(self.disk)
        self.storage = self.agent_storages.open(AGENT, 1)
        self.tables_at = tables_at

    def step(self, number: int, what: str, which: int) -> tuple[Any, ...]:
        storage = self.storage
        if number == self.tables_at:
            storage.sql("CREATE TABLE t (i INTEGER)")
        if what in ("crash", "close"):
            getattr(self.agent_storages, what)()
            self.agent_storages = AgentStorages(self.disk)
            self.storage = storage = self.agent_storages.open(AGENT, number + 2)
        elif what == "forget":
            storage.forget_inbox([f"m{which}"])
        elif what == "send":
            storage.forget_outbox([each for each, body in storage.outbox() if body == b"%d" % which])
        elif what == "checkpoint":
            storage.checkpoint()
        else:
            self.write(number, what, which)
        steps = storage.steps("r")
        return dict(storage.state), list(storage.inbox()), [body for _, body in storage.outbox()], steps

    def write(self, number: int, what: str, which: int) -> None:
        with suppress(ZeroDivisionError), self.storage.transaction() as transaction:
            if what == "delete":
                self.storage.state.pop(f"k{which}", None)
            else:
                self.storage.state[f"k{which}"] = number
                transaction.record_inbox([f"m{number % 10}"])
                transaction.add_outbox(b"%d" % (number % 10))
                transaction.save_step("r", f"s{which}", b"%d" % number)
            if what == "rollback":
                raise ZeroDivisionError


def forgets_nothing_by_a_crash(steps: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """What is forgotten and not committed may come back after a crash, and does so at different times; so a clean end comes first."""
    done: list[tuple[str, int]] = []
    for each in steps:
        done += [("close", 0), each] if each[0] == "crash" else [each]
    return done


@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS, max_size=14), st.integers(0, 14))
def test_any_history_gives_the_same_records_on_a_log_on_a_database_and_across_the_move(
    steps: list[tuple[str, int]], moves_at: int
) -> None:
    lives = [Life(-1), Life(0), Life(moves_at)]
    for number, (what, which) in enumerate(forgets_nothing_by_a_crash(steps)):
        on_a_log, on_a_database, across = [life.step(number, what, which) for life in lives]
        assert on_a_log == on_a_database == across
    for life in lives:
        life.agent_storages.close()
        life.disk.close()


def test_the_rows_of_a_log_are_read_as_they_were_written(asleep: bytes) -> None:
    reading = read_log(asleep)
    rows = [row for frame in reading.frames for _, row in rows_of(asleep, frame)]
    assert [(row.kind, row.key) for row in rows[:4]] == [
        ("state", "n"),
        ("inbox", "m1"),
        ("step", "r\0s1"),
        ("outbox", ""),
    ]
