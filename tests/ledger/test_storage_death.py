"""What is left of an agent's storage when its process, its disk or its file dies."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import duckdb
import pytest

from perdure.ledger.duckdb_format import BLOCKS_AT
from perdure.ledger.errors import StaleIncarnation, StorageConflict, StorageError, StorageLost
from perdure.ledger.known_agent import KnownAgent, KnownAgents
from perdure.ledger.maintenance.examination import examine_storages
from perdure.ledger.storage.agent_storages import AgentStorages, Disk, FileDisk, MemoryDisk, Storage, StorageLocked
from tests.tidy import IMPORT_PATH

AGENT = "census@scenarios.fan_out:Census"


class Killed(BaseException):
    """The simulated process is gone."""


@pytest.fixture(params=["files", "memory"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    made: Disk = FileDisk(tmp_path) if request.param == "files" else MemoryDisk()
    yield made
    made.close()


@pytest.fixture
def files(tmp_path: Path) -> Iterator[FileDisk]:
    made = FileDisk(tmp_path)
    yield made
    made.close()


def started(code: str, *arguments: str) -> subprocess.Popen[str]:
    """Another process with our code on its path."""
    environment = {**os.environ, "PYTHONPATH": IMPORT_PATH}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stdin=subprocess.PIPE)


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def ended(process: subprocess.Popen[str]) -> str:
    """What it still said. `communicate` would drop the lines that `readline` has read ahead."""
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        process.stdin.close()
        rest = process.stdout.read()
    process.wait(timeout=30)
    return rest


def test_no_line_of_a_process_is_dropped_between_the_first_and_the_last() -> None:
    process = started("print('one'); print('two'); print('three')")
    assert said(process) == "one"
    assert ended(process).split() == ["two", "three"]


# ------------------------------------------------------------------ kill -9


WRITER = """
import sys
from pathlib import Path
from perdure.ledger.storage.agent_storages import AgentStorages, FileDisk
storage = AgentStorages(FileDisk(Path(sys.argv[1]))).open(sys.argv[2], 1)
storage.sql("CREATE TABLE t (i INTEGER PRIMARY KEY, half INTEGER)")
for n in range(1, 100_000):
    with storage.transaction() as transaction:
        storage.sql("INSERT INTO t VALUES ($1, 1)", [2 * n])
        storage.state["n"] = n
        transaction.record_inbox([f"m{n}"])
        transaction.add_outbox(b"%d" % n)
        storage.sql("INSERT INTO t VALUES ($1, 2)", [2 * n + 1])
    print(n, flush=True)
"""


@pytest.mark.parametrize("enough", [1, 7, 60])
def test_kill_9_keeps_every_acknowledged_transaction_and_no_half_one(files: FileDisk, enough: int) -> None:
    writer = started(WRITER, str(files.directory), AGENT)
    acknowledged = 0
    while acknowledged < enough:
        acknowledged = int(said(writer))
    writer.send_signal(signal.SIGKILL)
    acknowledged = max([acknowledged, *map(int, ended(writer).split())])
    storage = AgentStorages(files).open(AGENT, 2)
    n = storage.state["n"]
    assert acknowledged <= n <= acknowledged + 1
    assert storage.sql("SELECT count(*), max(i) FROM t") == [(2 * n, 2 * n + 1)]
    assert list(storage.inbox()) == [f"m{i}" for i in range(1, n + 1)]
    assert [int(body) for _, body in storage.outbox()] == list(range(1, n + 1))


def test_a_file_that_another_process_has_open_is_locked_until_it_dies(files: FileDisk) -> None:
    writer = started(WRITER, str(files.directory), AGENT)
    said(writer)
    agent_storages = AgentStorages(files)
    with pytest.raises(StorageLocked, match=rf"PID {writer.pid}\b.*try again"):
        agent_storages.open(AGENT, 2)
    with pytest.raises(StorageLocked):
        agent_storages.forget(AGENT)
    writer.kill()
    ended(writer)
    assert agent_storages.open(AGENT, 2).state["n"] >= 1


FULL = """
import resource, sys
from pathlib import Path
from perdure.ledger.errors import StorageConflict, StorageError
from perdure.ledger.storage.agent_storages import AgentStorages, FileDisk
agent_storages = AgentStorages(FileDisk(Path(sys.argv[1])))
storage, other = agent_storages.open("full@m:T", 1), agent_storages.open("other@m:T", 1)
storage.state["n"] = other.state["n"] = 0
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
try:
    for n in range(1, 1000):
        storage.state.update({"n": n, f"ballast {n}": b"x" * 10_000})
except StorageError as error:
    assert not isinstance(error, StorageConflict), error
    print(n - 1, flush=True)
    print(error, flush=True)
for attempt in (lambda: storage.sql("SELECT 1"), lambda: storage.state["n"], storage.inbox):
    try:
        attempt()
    except StorageError as error:
        print(type(error).__name__, flush=True)
other.state["n"] = 1
"""


def test_a_full_disk_ends_the_handle_and_loses_nothing_that_was_acknowledged(files: FileDisk) -> None:
    process = started(FULL, str(files.directory))
    acknowledged, words, *after = ended(process).splitlines()
    assert process.returncode == 0
    assert "could not be written" in words
    assert after == ["StorageError"] * 3
    agent_storages = AgentStorages(files)
    assert agent_storages.open("full@m:T", 2).state["n"] == int(acknowledged)
    assert agent_storages.open("other@m:T", 2).state["n"] == 1


CROWDED = """
import os, resource, sys
from pathlib import Path
from perdure.ledger.storage.agent_storages import AgentStorages, FileDisk
class Told(FileDisk):
    def secure(self, agent_id, database):
        try:
            super().secure(agent_id, database)
        except Exception as error:
            print(type(error).__name__)
            raise
storage = AgentStorages(Told(Path(sys.argv[1]))).open("full@m:T", 1)
storage.sql("CREATE TABLE t (n INTEGER)")
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
for n in range(2):
    storage.state[f"ballast {n}"] = os.urandom(140_000)
storage.sql("CREATE TABLE more (n INTEGER)")  # is brought into the database at once
storage.state["n"] = 7
print(storage.state["n"], storage.sql("SELECT count(*) FROM more")[0][0], len(storage.state["ballast 1"]), flush=True)
"""


def test_a_checkpoint_for_which_there_is_no_room_fails_neither_the_commit_before_it_nor_what_is_read_next(
    files: FileDisk,
) -> None:
    process = started(CROWDED, str(files.directory))
    assert ended(process).splitlines() == ["IOException", "7 0 140000"]
    assert process.returncode == 0
    storage = AgentStorages(files).open("full@m:T", 2)
    assert (storage.state["n"], storage.sql("SELECT * FROM t")) == (7, [])


class Crowded(FileDisk):
    """Has no room until it is told to have some."""

    is_full = True

    def has_room(self, agent_id: str) -> bool:
        return not self.is_full and super().has_room(agent_id)


def test_a_checkpoint_is_put_off_until_there_is_room(tmp_path: Path) -> None:
    with closing(Crowded(tmp_path)) as disk, closing(AgentStorages(disk)) as storages:
        storage = storages.open(AGENT, 1)
        storage.sql("CREATE TABLE t (n INTEGER)")
        storage.sql("INSERT INTO t VALUES (1)")
        assert disk.log_bytes(AGENT) > 0
        disk.is_full = False
        storage.sql("INSERT INTO t VALUES (2)")
        assert disk.log_bytes(AGENT) == 0
        assert storage.sql("SELECT sum(n) FROM t") == [(3,)]


# ------------------------------------------------------------------ simulated kills


def live(agent_storages: AgentStorages) -> Iterator[int]:
    """A small life. It yields how many transactions were acknowledged."""
    storage = agent_storages.open(AGENT, 1)
    for n in range(1, 4):
        with storage.transaction() as transaction:
            storage.sql("CREATE TABLE IF NOT EXISTS t (i INTEGER)")
            storage.sql("INSERT INTO t VALUES ($1)", [n])
            storage.state["n"] = n
            storage.state[f"k{n}"] = n
            transaction.record_inbox([f"m{n}"])
            transaction.add_outbox(b"%d" % n)
        yield n
        storage.forget_outbox([number for number, body in storage.outbox() if int(body) < n])
    storage.checkpoint()
    agent_storages.close()


def killed_at(disk: Disk, write: int, *, by_raising: bool) -> tuple[int, bool]:
    """Kill the life at its n-th kill point. How much was acknowledged, and whether it came so far."""
    points = 0

    def die_at(_label: str) -> None:
        nonlocal points
        points += 1
        if points == write and by_raising:
            raise Killed
        if points == write:
            agent_storages.crash()

    agent_storages, acknowledged = AgentStorages(disk, die_at), 0
    try:
        for done in live(agent_storages):
            acknowledged = done
    except (Killed, StaleIncarnation):
        return acknowledged, True
    finally:
        agent_storages.crash()
    return acknowledged, points >= write


@pytest.mark.shows(transport_recovery="A15")
@pytest.mark.parametrize("by_raising", [True, False])
def test_a_kill_at_any_durable_write_leaves_whole_transactions(disk: Disk, by_raising: bool) -> None:
    for write in range(1, 100):
        acknowledged, died = killed_at(disk, write, by_raising=by_raising)
        agent_storages = AgentStorages(disk)
        storage = agent_storages.open(AGENT, 2)
        n = storage.state.get("n", 0)
        assert acknowledged <= n <= acknowledged + 1
        assert sorted(storage.state) == sorted([*(["n"] if n else []), *(f"k{i}" for i in range(1, n + 1))])
        assert list(storage.inbox()) == [f"m{i}" for i in range(1, n + 1)]
        assert n == 0 or storage.sql("SELECT i FROM t ORDER BY i") == [(i,) for i in range(1, n + 1)]
        assert [int(body) for _, body in storage.outbox()][-1:] == ([n] if n else [])
        agent_storages.forget(AGENT)
        agent_storages.close()
        if not died:
            break
    assert write > 8


def test_a_crash_rolls_back_and_shuts_every_handle(disk: Disk) -> None:
    agent_storages = AgentStorages(disk)
    storage = agent_storages.open(AGENT, 1)
    storage.sql("CREATE TABLE t (i INTEGER)")
    transaction = storage.begin()
    transaction.sql("INSERT INTO t VALUES (1)")
    agent_storages.crash()
    zombie: list[Callable[[], object]] = [
        transaction.commit,
        lambda: transaction.sql("INSERT INTO t VALUES (2)"),
        lambda: storage.sql("INSERT INTO t VALUES (3)"),
        lambda: storage.state.update(a=1),
        lambda: agent_storages.open("another@m:T", 1),
    ]
    for act in zombie:
        with pytest.raises(StaleIncarnation):
            act()
    assert AgentStorages(disk).open(AGENT, 2).sql("SELECT * FROM t") == []


def test_a_zombie_in_the_middle_of_a_long_statement_is_interrupted(disk: Disk) -> None:
    agent_storages = AgentStorages(disk)
    storage = agent_storages.open(AGENT, 1)
    storage.sql("CREATE TABLE t (i BIGINT)")
    caught: list[BaseException] = []
    inside = threading.Event()

    def work() -> None:
        try:
            with storage.transaction():
                storage.sql("INSERT INTO t VALUES (1)")
                inside.set()
                storage.sql("SELECT count(*) FROM range(1000000) a, range(1000000) b")
        except StorageError as error:
            caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait()
    agent_storages.crash()
    heir = AgentStorages(disk).open(AGENT, 2)
    assert heir.sql("SELECT * FROM t") == []
    thread.join()
    assert [type(error) for error in caught] == [StaleIncarnation]


def test_a_process_that_is_not_dead_keeps_the_next_one_out(disk: Disk) -> None:
    zombie = AgentStorages(disk)
    storage = zombie.open(AGENT, 1)
    storage.state["a"] = 1
    heir = AgentStorages(disk)
    with pytest.raises(StorageLocked, match="try again"):
        heir.open(AGENT, 2)
    with pytest.raises(StorageLocked):
        heir.forget(AGENT)
    zombie.crash()
    assert heir.open(AGENT, 2).state["a"] == 1


def test_two_disks_on_one_folder_do_not_open_a_file_twice(tmp_path: Path) -> None:
    one, two = FileDisk(tmp_path), FileDisk(tmp_path)
    owner = AgentStorages(one).open(AGENT, 1)
    owner.state["a"] = 1
    with pytest.raises(StorageLocked):
        AgentStorages(two).open(AGENT, 2)
    owner.close()
    assert AgentStorages(two).open(AGENT, 2).state["a"] == 1, "it let go of it"
    one.close()
    two.close()


def test_who_creates_the_storage_second_has_to_look_again(disk: Disk) -> None:
    one, two = AgentStorages(disk), AgentStorages(disk)
    late = one.open(AGENT, 1)
    assert late.state.get("a") is None
    two.open(AGENT, 1).state["a"] = 1
    two.close()
    with pytest.raises(StorageError, match="another process created"), late.transaction():
        late.state["a"] = late.state.get("a", 0) + 1
    with late.transaction():
        late.state["a"] = late.state.get("a", 0) + 1
    assert late.state["a"] == 2


def test_who_creates_the_storage_second_and_is_older_is_refused(disk: Disk) -> None:
    old, young = AgentStorages(disk), AgentStorages(disk)
    storage = old.open(AGENT, 1)
    young.open(AGENT, 2).state["a"] = 1
    with pytest.raises(StorageLocked):
        storage.state["a"] = 2
    young.close()
    with pytest.raises(StaleIncarnation):
        storage.state["a"] = 2


# ------------------------------------------------------------------ files


def written(files: FileDisk, notes: int = 3) -> Path:
    """The closed file of an agent that wrote a little."""
    agent_storages = AgentStorages(files)
    storage = agent_storages.open(AGENT, 1)
    storage.sql("CREATE TABLE notes (n BIGINT, words VARCHAR)")
    for n in range(notes):
        storage.sql("INSERT INTO notes VALUES ($1, $2)", [n, f"note {n}"])
    storage.state.update(n=notes, title="notes", tags=["a", "b"])
    agent_storages.close()
    return files.path_of(AGENT)


@pytest.mark.parametrize("notes", [1, 200, 700])
def test_a_small_agent_takes_less_than_100_kb_with_its_log_which_is_short(files: FileDisk, notes: int) -> None:
    path = written(files, notes)
    sizes = {each.name.removeprefix(path.name): each.stat().st_size for each in path.parent.iterdir()}
    assert sum(sizes.values()) < 100_000
    assert set(sizes) == ({"", ".wal"} if notes < 700 else {""})
    assert sizes.get(".wal", 0) <= 32 << 10


def test_no_flipped_byte_in_what_sleeps_is_taken_for_the_truth(files: FileDisk) -> None:
    whole = written(files).read_bytes()
    for at in range(0, len(whole), len(whole) // 40):
        damaged = FileDisk(files.directory.with_name(f"flip-{at}"))
        place = damaged.path_of(AGENT)
        place.parent.mkdir(parents=True)
        place.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        with suppress(StorageError), closing(AgentStorages(damaged)) as agent_storages:
            assert dict(agent_storages.open(AGENT, 3).state) == {"n": 3, "title": "notes", "tags": ["a", "b"]}


def test_a_checkpoint_that_did_not_end_leaves_a_storage_that_can_be_opened(files: FileDisk) -> None:
    path = written(files)
    agent_storages = AgentStorages(files)
    storage = agent_storages.open(AGENT, 2)
    storage.state["n"] = 7
    storage.begin().sql("INSERT INTO notes VALUES (8, 'open')")
    storage.checkpoint()  # is put off, because a transaction is open
    agent_storages.crash()
    saved = path.with_name(path.name + ".blocks")
    assert saved.exists()
    for at in range(BLOCKS_AT, path.stat().st_size, 16_384):
        if path.read_bytes()[at : at + 16_384] in saved.read_bytes():
            flip(path, at + 600)
    assert AgentStorages(files).open(AGENT, 3).state["n"] == 7
    assert not saved.exists()


def test_no_checkpoint_is_made_that_is_not_guarded(files: FileDisk) -> None:
    """Neither at the end of a process nor after a large commit; but a log does not grow for ever."""
    agent_storages = AgentStorages(files)
    agent_storages.open(AGENT, 1).state["a"] = 1
    asleep = files.path_of(AGENT).read_bytes()
    files.close()
    assert files.path_of(AGENT).read_bytes() == asleep
    storage = AgentStorages(files).open(AGENT, 2)
    with storage.transaction():
        storage.state["ballast"] = os.urandom(17 << 20)
        storage.sql("SELECT 1")
    assert files.path_of(AGENT).stat().st_size > 17 << 20
    assert list(files.path_of(AGENT).parent.glob("*.wal")) == []


def test_a_new_table_is_in_the_database_at_once_for_replaying_definitions_is_what_fails(files: FileDisk) -> None:
    agent_storages = AgentStorages(files)
    agent_storages.open(AGENT, 1).sql("CREATE TABLE notes (n BIGINT)")
    agent_storages.crash()
    for log in files.path_of(AGENT).parent.glob("*.wal"):
        log.unlink()
    assert AgentStorages(files).open(AGENT, 2).sql("SELECT * FROM notes") == []


def test_the_room_of_settled_mail_is_used_again(files: FileDisk) -> None:
    agent_storages = AgentStorages(files)
    storage = agent_storages.open(AGENT, 1)
    sizes = []
    for group in range(24):
        mails = [f"{group}/{n}!finish" for n in range(256)]
        with storage.transaction() as transaction:
            transaction.record_inbox(mails)
            storage.state["group"] = group
        storage.forget_inbox(mails)
        storage.checkpoint()
        sizes.append(files.path_of(AGENT).stat().st_size)
    agent_storages.close()
    assert sizes[-1] <= sizes[5] < 100_000


def foreign(path: Path) -> None:
    path.unlink()
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE t (i INTEGER)")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: path.write_bytes(b"garbage " * 9999), "damaged.*restore a snapshot"),
        (lambda path: path.write_bytes(path.read_bytes()[:20000]), "damaged.*restore a snapshot"),
        (lambda path: flip(path, 15000), "damaged.*restore a snapshot"),
        (lambda path: (path.unlink(), path.mkdir(), (path / "x").write_bytes(b"x" * 9999)), "storage of"),
        (foreign, "no storage of an agent"),
        (lambda path: alter(path, "UPDATE perdure.meta SET schema_version = 99"), "newer Perdure"),
        (lambda path: alter(path, "UPDATE perdure.meta SET agent_id = 'x@m:T'"), "storage of 'x@m:T'"),
    ],
)
def test_a_file_that_cannot_be_trusted_is_refused_with_words(
    files: FileDisk, damage: Callable[[Path], object], words: str
) -> None:
    damage(written(files))
    agent_storages = AgentStorages(files)
    for _ in range(2):
        with pytest.raises(StorageError, match=words) as refusal:
            agent_storages.open(AGENT, 2)
        assert not isinstance(refusal.value, StorageLocked | StaleIncarnation)
    assert agent_storages.open("healthy@m:T", 1).sql("SELECT 1") == [(1,)]


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 255
    path.write_bytes(content)


def alter(path: Path, text: str) -> None:
    with duckdb.connect(str(path)) as connection:
        connection.execute(text)


def test_a_damaged_storage_can_be_forgotten(files: FileDisk) -> None:
    path = written(files)
    path.write_bytes(b"garbage " * 9999)
    agent_storages = AgentStorages(files)
    agent_storages.forget(AGENT)
    assert dict(agent_storages.open(AGENT, 1).state) == {}


def test_a_death_while_the_file_was_made_leaves_no_storage(files: FileDisk) -> None:
    path = files.path_of(AGENT)
    path.parent.mkdir(parents=True)
    part = path.with_name(f"{path.name}.123.new")
    part.write_bytes(b"half of it")
    agent_storages = AgentStorages(files)
    assert not agent_storages.exists(AGENT)
    storage = agent_storages.open(AGENT, 2)
    assert dict(storage.state) == {}
    storage.state["a"] = 1
    agent_storages.close()
    agent_storages = AgentStorages(files)
    assert agent_storages.open(AGENT, 3).state["a"] == 1
    agent_storages.forget(AGENT)
    assert list(path.parent.iterdir()) == []


def test_a_storage_that_has_no_owner_yet_is_taken_by_its_next_life(files: FileDisk) -> None:
    files.detach(AGENT, files.attach(AGENT, object()), checkpoint=False)
    assert files.has(AGENT)
    AgentStorages(files).fork(AGENT, "copy@m:T")
    storage = AgentStorages(files).open(AGENT, 1)
    assert dict(storage.state) == {}
    storage.state["a"] = 1
    storage.close()
    assert AgentStorages(files).open(AGENT, 2).state["a"] == 1
    assert dict(AgentStorages(files).open("copy@m:T", 1).state) == {}


def test_a_database_of_somebody_else_is_refused_and_stays_as_it_is(files: FileDisk) -> None:
    path = files.path_of(AGENT)
    path.parent.mkdir(parents=True)
    with duckdb.connect(str(path)) as other:
        other.execute("CREATE TABLE things (name VARCHAR)")
    before = path.read_bytes()
    with pytest.raises(StorageError, match="no storage of an agent"):
        AgentStorages(files).open(AGENT, 1)
    assert path.read_bytes() == before


def test_of_two_processes_that_create_a_storage_one_is_refused_and_leaves_nothing(files: FileDisk) -> None:
    class Late(FileDisk):
        def has(self, agent_id: str) -> bool:
            return False

    path = written(files)
    before = sorted(path.parent.iterdir())
    with pytest.raises(StorageConflict):
        Late(files.directory).attach(AGENT, object())
    assert sorted(path.parent.iterdir()) == before


def test_a_log_without_its_database_is_not_replayed_into_a_new_one(files: FileDisk) -> None:
    agent_storages = AgentStorages(files)
    agent_storages.open(AGENT, 1).state["old"] = 1
    agent_storages.crash()
    files.path_of(AGENT).unlink()
    storage = AgentStorages(files).open(AGENT, 1)
    storage.state["new"] = 1
    assert dict(storage.state) == {"new": 1}


IDS = [
    "a/../../b@m:T",
    "x" * 5000 + "@m:T",
    "日本 \n@m:T",
    "A@m:T",
    "a@m:T",
    "a@m:t",
    "'; DROP--@m:T",
    "no type",
    "\ud800@m:T",
]


def test_any_id_has_a_file_of_its_own_inside_the_folder(files: FileDisk, tmp_path: Path) -> None:
    agent_storages = AgentStorages(files)
    for agent_id in IDS[:-1]:
        agent_storages.open(agent_id, 1).state["id"] = agent_id
    agent_storages.close()
    paths = {files.path_of(agent_id) for agent_id in IDS}
    assert len(paths) == len(IDS)
    assert all(path.parent.parent == tmp_path for path in paths)
    again = AgentStorages(files)
    assert [again.open(agent_id, 2).state["id"] for agent_id in IDS[:-1]] == IDS[:-1]


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    disk = FileDisk(tmp_path / "file")
    with pytest.raises(StorageError, match="cannot be made"):
        AgentStorages(disk).open(AGENT, 1).state.update(a=1)
    disk.close()


def test_a_locked_storage_survives_pickling() -> None:
    error = StorageLocked("a@m:T", "busy")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.args, str(copy)) == (StorageLocked, error.args, str(error))


def test_a_life_can_be_closed_in_the_middle_of_a_transaction(disk: Disk) -> None:
    agent_storages = AgentStorages(disk)
    storage: Storage = agent_storages.open(AGENT, 1)
    storage.sql("CREATE TABLE t (i INTEGER)")

    def half() -> None:
        with storage.transaction():
            storage.sql("INSERT INTO t VALUES (1)")
            storage.close()
            storage.sql("INSERT INTO t VALUES (2)")

    with pytest.raises(StaleIncarnation):
        half()
    assert AgentStorages(disk).open(AGENT, 2).sql("SELECT * FROM t") == []


# ------------------------------------------------------------------ damaged blocks


def with_tables(directory: Path) -> Path:
    """A storage whose author has a table with keys and an index, all of it in blocks. Returns its file."""
    with closing(FileDisk(directory)) as disk, closing(AgentStorages(disk)) as agent_storages:
        storage = agent_storages.open(AGENT, 1)
        storage.sql("CREATE TABLE t (i INTEGER PRIMARY KEY, x VARCHAR)")
        with storage.transaction():
            storage.sql("INSERT INTO t SELECT i, repeat(md5(i::VARCHAR), 5) FROM range(1500) r(i)")
            storage.state["k"] = "v" * 9_000
        storage.sql("CREATE INDEX by_x ON t(x)")
        storage.checkpoint()
    (file,) = directory.rglob("*.db")
    return file


def in_transaction(storage: Storage, query: str) -> object:
    with storage.transaction():
        return storage.sql(query)


USES: list[Callable[[Storage], object]] = [
    lambda storage: in_transaction(storage, "SELECT max(x) FROM t WHERE i < 900"),
    lambda storage: storage.sql("SELECT count(*), max(x) FROM t"),
    lambda storage: storage.sql("SELECT x FROM t WHERE i = 1200"),
    lambda storage: storage.sql("SELECT i FROM t WHERE x = 'no'"),
    lambda storage: storage.state["k"],
    lambda storage: storage.sql("INSERT INTO t VALUES (99999, 'new')"),
    lambda storage: storage.sql("UPDATE t SET x = 'other' WHERE i = 3"),
    lambda storage: storage.sql("DELETE FROM t WHERE i < 700"),
    lambda storage: storage.state.update({"q": 1}),
    lambda storage: storage.checkpoint(),
]


@pytest.mark.parametrize("harm", ["flipped", "cut off"])
def test_damaged_blocks_are_told_as_a_lost_storage_and_never_as_a_mistake_in_the_author_s_sql(
    tmp_path: Path, harm: str
) -> None:
    whole = (file := with_tables(tmp_path)).read_bytes()
    places = [100, *range(BLOCKS_AT + 100, len(whole), 3 * 16_384)]
    told: list[str] = []
    for place in places:
        file.write_bytes(whole[:place] + (bytes([whole[place] ^ 4]) + whole[place + 1 :]) * (harm == "flipped"))
        for left in tmp_path.rglob("*.db.*"):
            left.unlink()
        with closing(FileDisk(tmp_path)) as disk, closing(AgentStorages(disk)) as agent_storages:
            for life, use in enumerate(USES, 2):
                try:
                    use(agent_storages.open(AGENT, life))
                except StorageLost as lost:
                    told.append(str(lost))
                    agent_storages.crash()
                    disk.close()
                    break
    assert len(told) > len(places) / 3
    assert all("damaged" in each and "perdure forget" in each for each in told)


def test_the_doctor_reads_every_block_of_the_author_s_tables(tmp_path: Path) -> None:
    file = with_tables(tmp_path)
    whole, known = file.read_bytes(), KnownAgents({AGENT: KnownAgent(1, 1)}, {AGENT})
    assert {finding.severity for finding in examine_storages(tmp_path, known)} == {"ok"}
    with duckdb.connect(file, read_only=True) as con:
        ((block,),) = con.execute(
            "SELECT max(block_id) FROM pragma_storage_info('t') WHERE column_name = 'x'"
        ).fetchall()
    place = BLOCKS_AT + block * 16_384 + 100
    file.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
    (finding,) = [each for each in examine_storages(tmp_path, known) if each.severity != "ok"]
    assert finding.severity == "damage"
    assert "cannot be read: Corrupt database file" in finding.what
