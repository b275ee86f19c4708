"""Each file of a data directory, deleted, torn and damaged: what becomes of it is what the table says, and never a raw traceback."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

import pytest

from perdure.actors import Agent, LogFiles, WantedLogs, exposed, findings_in, read_record
from perdure.actors.code.known_types import known_types
from perdure.actors.code.naming import load_type, remembered_name, type_as_claimed, type_name
from perdure.actors.code.packages import package_file, sources_of, unpacked
from perdure.actors.ray_world.cluster_record import begin_directory, check_directory, startup_lock, write_record
from perdure.actors.ray_world.exit_report import take_exit_report
from perdure.actors.ray_world.identity import identity_of
from perdure.actors.ray_world.processes import ProcessLog
from perdure.actors.runtime.directory_files import FILES, DirectoryFile, Fate
from perdure.actors.runtime.packing import pack_up
from perdure.ledger import PerdureError, ReplicaSettings, keep_replica, open_replicated, replica_of
from perdure.ledger.maintenance.cold_view import cold_view
from perdure.ledger.storage.agent_storages import AgentStorages, FileDisk
from perdure.ledger.store.integrity import Finding
from perdure.scenarios.commands.keep import diagnosis
from perdure.scenarios.commands.opening import ColdLedger
from perdure.scenarios.stories import fan_out
from perdure.scenarios.stories.engine import playing
from tests.actors.runtime.test_backup import Workshop
from tests.kit import address, some
from tests.tidy import IMPORT_PATH

CELL = """
from pathlib import Path
from perdure import Agent
from perdure.actors.code.naming import type_name
class Cell(Agent):
    answer = 42
print(type_name(Cell, Path({!r})))
"""


class Keeper(Agent):
    """Keeps its state in a log."""

    @exposed(repeatable=True)
    def keep(self, word: str) -> None:
        self.state["word"] = word


class Shelf(Agent):
    """Keeps it in a database."""

    @exposed(repeatable=True)
    def keep(self, word: str) -> None:
        self.sql("CREATE TABLE IF NOT EXISTS kept (word VARCHAR)")
        self.sql("INSERT INTO kept VALUES ($1)", [word])
        self.state["word"] = word


KEEPERS = ((Keeper, "log"), (Shelf, "tables"))


class Place:
    """A directory, and what is in it."""

    def __init__(self, data: Path, cell: str, package: str, come: dict[str, int]) -> None:
        self.data, self.code, self.cell, self.package, self.come = data, data / "code", cell, package, come
        self.said: list[Finding] = []

    def uses(self) -> Iterator[Callable[[], object]]:
        """What programs and commands do with a directory, one after the other."""
        yield lambda: check_directory(self.data)
        yield self.diagnose
        yield self.start
        yield self.ask
        yield from (partial(self.look, address(cls, name)) for cls, name in KEEPERS)
        yield self.name
        yield self.load
        yield lambda: unpacked(package_file(self.package, self.code))
        yield lambda: sources_of(self.package, self.code)
        yield lambda: known_types(self.code)
        yield lambda: LogFiles(self.data / "logs").in_order(WantedLogs())
        yield lambda: take_exit_report(self.data / "hosts" / "h1")
        yield lambda: read_record(self.data)
        yield lambda: fan_out.read_book(self.data)
        yield self.follow
        yield self.play

    def use(self) -> list[Exception]:
        """Do all of it. Returns what was refused in words; anything else is raised."""
        refused: list[Exception] = []
        for use in self.uses():
            try:
                use()
            except (PerdureError, OSError) as problem:
                refused.append(problem)
        return refused

    def diagnose(self) -> None:
        self.said = diagnosis(self.data)

    def start(self) -> None:
        with startup_lock(self.data):
            begin_directory(self.data)
            write_record(self.data, "127.0.0.1:1")

    def follow(self) -> None:
        """The start of a supervisor, as far as the ledger goes."""
        settings = replica_of(self.data)
        if settings is not None:
            with closing(open_replicated(self.data, settings, identity_of(self.data))) as store:
                store.boot()

    def follow_to(self, bucket: Path) -> None:
        keep_replica(self.data, ReplicaSettings(f"file://{bucket}"))

    def play(self) -> None:
        with playing(self.data):
            """Nothing happens."""

    def ask(self) -> None:
        with ColdLedger(self.data) as ledger:
            ledger.ask("ps", 10)
            self.said += [Finding("warning", words) for words in ledger.ask("audit")["findings"]]

    def look(self, agent: str) -> None:
        with closing(FileDisk(self.data / "agents")) as disk, closing(AgentStorages(disk)) as agent_storages:
            assert agent_storages.open(agent, 10_000, self.come[agent]).state["word"] == "kept"

    def name(self) -> None:
        remembered_name.cache_clear()
        assert type_name(Keeper, self.code) == f"{Keeper.__module__}:Keeper"

    def load(self) -> None:
        sys.modules.pop(f"perdure_cell_{self.cell.split(':')[1]}", None)
        type_as_claimed.cache_clear()
        assert load_type(self.cell, self.code).answer == 42  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A directory that was served, and whose supervisor then died."""
    root = tmp_path_factory.mktemp("files")
    data, author = root / "data", root / "author.py"
    author.write_text("from perdure import Agent\nclass Author(Agent): ...\n", encoding="utf-8")
    with startup_lock(data):
        begin_directory(data)
        write_record(data, "127.0.0.1:1")

    async def story(client: object) -> None:
        for cls, name in KEEPERS:
            await client.call(cls, name, "keep", ("kept",), {})  # type: ignore[attr-defined]
        await asyncio.sleep(5)

    with Workshop(data) as workshop:
        workshop.play(story)
        workshop.disk.close()
        shutil.copytree(data, root / "dead")  # while the supervisor is at work
    data = root / "dead"
    command = [sys.executable, "-c", CELL.format(str(data / "code"))]
    named = subprocess.run(command, env={"PYTHONPATH": IMPORT_PATH}, capture_output=True, text=True, check=True)
    package = pack_up({"author.py": author}, data / "code")
    (data / "code" / "roots.txt").write_text(f"{root}\n", encoding="utf-8")
    fan_out.begin_book(data, fan_out.Order(children=1), None)
    log = ProcessLog(data / "logs", "h1", 1e6)
    log.write(log.record(1.0, "INFO", "perdure", "said"))
    (data / "hosts").mkdir()
    (data / "hosts" / "h1").write_text("its last words", encoding="utf-8")
    come = {agent: each.reported for agent, each in cold_view(data / "ledger").standing.items()}
    assert all(come[address(cls, name)] for cls, name in KEEPERS)
    place = Place(data, named.stdout.strip(), package, come)
    served = Place(
        root / "served", place.cell, place.package, come
    )  # what follows it begins with a checkpoint, which is no harm
    shutil.copytree(data, served.data)
    served.follow_to(root / "bucket")
    served.follow()
    shutil.copytree(served.data / "replica", data / "replica")
    unpacked(package_file(package, place.code))
    return place


@pytest.fixture
def place(whole: Place, tmp_path: Path) -> Place:
    shutil.copytree(whole.data, tmp_path / "data")
    shutil.copytree(whole.data.with_name("bucket"), tmp_path / "bucket")
    place = Place(tmp_path / "data", whole.cell, whole.package, whole.come)
    place.follow_to(tmp_path / "bucket")
    return place


def file_at(path: str) -> DirectoryFile | None:
    return next((each for each in FILES if fnmatchcase(path, each.path)), None)


def files_of(row: DirectoryFile, data: Path) -> list[Path]:
    names = (file for file in sorted(data.rglob("*")) if file.is_file())
    return [file for file in names if file_at(str(file.relative_to(data))) is row]


def test_every_file_of_a_directory_stands_in_the_table(whole: Place) -> None:
    names = [str(file.relative_to(whole.data)) for file in whole.data.rglob("*") if file.is_file()]
    assert [name for name in names if file_at(name) is None] == []


def test_a_directory_that_nobody_harmed_is_whole(place: Place) -> None:
    assert place.use() == []
    assert [each for each in place.said if each.severity not in ("ok", "warning")] == []


def torn(body: bytes) -> bytes:
    used = len(body.rstrip(b"\0"))
    return body[: used * 2 // 3] if used > 2 else b""


def flipped(body: bytes) -> bytes:
    at = 100 if body[8:12] == b"DUCK" else len(body.rstrip(b"\0")) // 2
    return body[:at] + bytes([body[at] ^ 0x81]) + body[at + 1 :] if body else b"\xff"


def garbage(body: bytes) -> bytes:
    return b"\xff\xfe\0{" * (len(body) // 4 + 1)


HARMS = {"missing": None, "flipped": flipped, "torn": torn, "garbage": garbage}
QUIET = [row for row in FILES if row.missing == row.damaged == "nothing"]
TO_SAY = [row for row in FILES if row not in QUIET]
AS_ITS_LAST_COLUMN_SAYS: dict[tuple[str, str], Fate] = {
    ("format", "torn"): "again",
    ("ledger/format", "torn"): "again",
}


def harmed(row: DirectoryFile, harm: str, data: Path) -> list[Path]:
    """Harm all files of a row; where there are none, a death has left one. Returns them."""
    files, change = files_of(row, data), HARMS[harm]
    if not files:
        files = [data / row.path.replace("[0-9]", "1").replace("*", "1")]
        files[0].parent.mkdir(parents=True, exist_ok=True)
        files[0].write_bytes(b"left")
    for file in files:
        body = file.read_bytes()
        file.unlink()
        if change is not None:
            file.write_bytes(change(body))
    return files


@pytest.mark.parametrize("harm", HARMS)
def test_of_what_nobody_needs_nothing_is_missed(harm: str, place: Place) -> None:
    for row in QUIET:
        harmed(row, harm, place.data)
    assert place.use() == []
    assert [each for each in place.said if each.severity == "damage"] == []


@pytest.mark.parametrize("harm", some(1, HARMS))
@pytest.mark.parametrize("row", TO_SAY, ids=lambda row: row.path)
def test_each_row_of_the_table_is_so(row: DirectoryFile, harm: str, place: Place) -> None:
    files = harmed(row, harm, place.data)
    refused = place.use()
    said = {each.severity for each in place.said}
    fate = AS_ITS_LAST_COLUMN_SAYS.get((row.path, harm), row.missing if harm == "missing" else row.damaged)
    if fate == "refused":
        assert refused
        assert ("warning" if row.path == "scenario.json" else "damage") in said
        return
    assert refused == []
    assert "damage" not in said
    if fate == "told":
        assert "warning" in said
    if fate == "again":
        assert all(file.is_file() for file in files)
        assert place.use() == []
        assert [each for each in findings_in(place.data) if each.severity == "damage"] == []
