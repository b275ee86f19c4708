"""Backups of a directory that nothing serves: what is copied, what a half one is worth, and what comes back."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fsspec import register_implementation
from fsspec.implementations.memory import MemoryFileSystem
from typer.testing import CliRunner

from perdure.ledger import BadRequest, LedgerError
from perdure.ledger.errors import LedgerLocked
from perdure.ledger.maintenance.backup import Backup, BackupSummary, prune
from perdure.ledger.maintenance.cold_view import ColdSteward
from perdure.ledger.maintenance.copies import copy_storage
from perdure.ledger.maintenance.listing import stamps_of
from perdure.ledger.maintenance.manifest import backups_in, latest_in
from perdure.ledger.maintenance.restoration import restore_backup
from perdure.ledger.maintenance.target import PIECES, BackupTarget
from perdure.ledger.storage.agent_storages import AgentStorages, FileDisk
from perdure.ledger.store.lock import Lock
from perdure.scenarios.cli import app
from perdure.scenarios.commands.keep import diagnosis
from tests.ledger.directories import file_of, lived, recorded, written
from tests.ledger.wrecks import ROOT

ANNA, BERT = "anna@m:T", "bert@m:T"


@pytest.fixture(scope="module", params=["logs", "databases"])
def whole(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A directory with two agents that have written."""
    data, tables = tmp_path_factory.mktemp("whole"), request.param == "databases"
    anna, bert = written(data, ANNA, 1, "a", "b", tables=tables), written(data, BERT, 2, "c", tables=tables)
    facts = [*lived(ANNA, 1, anna), *lived(BERT, 2, bert)]
    recorded(data, *facts, snapshot=True)
    (data / "code").mkdir()
    (data / "code" / "notes.txt").write_text("x = 1\n")
    (data / "cluster.json").write_text("{}")
    return data


@pytest.fixture
def data(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "data")


@pytest.fixture(params=["memory", "file"])
def target(tmp_path: Path, request: pytest.FixtureRequest) -> BackupTarget:
    """An object store, and a directory."""
    return BackupTarget(f"memory://{uuid4().hex}" if request.param == "memory" else str(tmp_path / "target"))


def backed_up(data: Path, target: BackupTarget) -> BackupSummary:
    with ColdSteward(data) as steward:
        return Backup(data, target, steward, print).make(1_700_000_000_000)


def value_of(data: Path, agent: str) -> object:
    disk = FileDisk(data / "agents")
    agent_storages = AgentStorages(disk)
    value = agent_storages.open(agent, 99).state["value"]
    agent_storages.close()
    disk.close()
    return value


def test_what_is_restored_is_what_was_backed_up(data: Path, target: BackupTarget, tmp_path: Path) -> None:
    made = backed_up(data, target)
    assert (made.storages, made.seq, made.findings) == (2, 4, [])
    copy = tmp_path / "copy"
    assert restore_backup(target, copy).name == made.name
    assert {each.severity for each in diagnosis(copy, deep=True)} == {"ok"}
    assert (value_of(copy, ANNA), value_of(copy, BERT)) == ("b", "c")
    assert (copy / "code" / "notes.txt").read_text() == "x = 1\n"
    assert not (copy / "cluster.json").exists(), "that is where the Ray of the other directory is"
    assert not (data / "backup.stage").exists()


def test_only_what_has_changed_is_copied_again(data: Path, target: BackupTarget, tmp_path: Path) -> None:
    first = backed_up(data, target)
    assert first.copied == first.size - 2, "the two files of the format are one piece"
    assert backed_up(data, target).copied == 0
    recorded(data, *lived(ANNA, 3, written(data, ANNA, 3, "later")))
    third = backed_up(data, target)
    assert 0 < third.copied < third.size
    for name, value in (("", "later"), (first.name, "b")):
        restore_backup(target, tmp_path / f"copy {name}", name)
        assert value_of(tmp_path / f"copy {name}", ANNA) == value


def test_what_was_copied_and_has_changed_before_the_cut_does_not_count(data: Path, target: BackupTarget) -> None:
    class Late(ColdSteward):
        def cut(self) -> object:
            written(data, ANNA, 2, "late" * 200)
            return super().cut()

    with Late(data, None) as steward:
        made = Backup(data, target, steward, print).make(1)
    assert 0 < made.copied <= made.size


def test_an_interrupted_backup_is_none_and_the_next_one_uses_what_it_copied(
    data: Path, target: BackupTarget, tmp_path: Path
) -> None:
    class Interrupted(ColdSteward):
        def cut(self) -> object:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Interrupted(data) as steward:
        Backup(data, target, steward, print).make(1)
    with pytest.raises(BadRequest, match="no whole backup"):
        restore_backup(target, tmp_path / "copy")
    again = BackupTarget(target.url)  # another process, which remembers nothing
    made = backed_up(data, again)
    journal = sum(file.stat().st_size for file in (data / "ledger").glob("ledger.journal.*"))
    assert 0 < made.copied <= journal, "the rest was there"
    restore_backup(again, tmp_path / "copy")


def test_a_manifest_that_is_not_whole_is_passed_over(data: Path, target: BackupTarget) -> None:
    whole = backed_up(data, target)
    recorded(data, *lived(ANNA, 3, written(data, ANNA, 3, "later")))
    half = f"backups/{backed_up(data, target).name}.jsonl.gz"
    body = target.read(half)
    for harmed in (body[:-9], b"", body[:40] + b"\0" + body[41:]):
        target.write(half, harmed)
        found = latest_in(target)
        assert found is not None
        assert found.name == whole.name
    assert backed_up(data, target).name == "00000003", "its name is not used again"


def test_a_piece_that_is_damaged_or_gone_is_refused_and_the_directory_does_not_appear(
    data: Path, target: BackupTarget, tmp_path: Path
) -> None:
    backed_up(data, target)
    piece = target.names(PIECES)[0]
    body = target.get_piece(piece)
    target.write(f"{PIECES}/{piece[:2]}/{piece}", body[:-1] + bytes([body[-1] ^ 1]))
    with pytest.raises(LedgerError, match="is damaged"):
        restore_backup(target, tmp_path / "copy")
    target.remove([f"{PIECES}/{piece[:2]}/{piece}"])
    with pytest.raises(LedgerError, match="cannot be read"):
        restore_backup(target, tmp_path / "copy")
    assert not list(tmp_path.glob("copy*"))


def test_a_backup_of_a_directory_that_nothing_serves_writes_nothing_into_it(data: Path, tmp_path: Path) -> None:
    """So it can be made when the disk of the directory is full, or when that is not ours to write."""
    with ColdSteward(data):
        before = {path: path.stat().st_mtime_ns for path in data.rglob("*") if path.is_file()}
    arguments = ["backup", str(data), str(tmp_path / "target")]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    after = {path: path.stat().st_mtime_ns for path in data.rglob("*") if path.is_file()}
    lock = data / "ledger" / "ledger.lock"  # which names its owner
    assert {**after, lock: 0} == {**before, lock: 0}
    assert not (tmp_path / "target" / "backup.stage").exists()


def test_a_backup_without_room_for_what_it_stages_says_so_and_leaves_none_of_it(data: Path) -> None:
    script = """
import resource, sys
from pathlib import Path
from perdure.ledger import LedgerUnwritable
from perdure.ledger.maintenance.backup import Backup
from perdure.ledger.maintenance.cold_view import ColdSteward
from perdure.ledger.maintenance.target import BackupTarget
data = Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    with ColdSteward(data) as steward:
        Backup(data, BackupTarget("memory://room"), steward, print).make(1)
except LedgerUnwritable as problem:
    print(problem)
"""
    command = [sys.executable, "-c", script, str(data)]
    said = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(ROOT / ".src")})
    assert "backup.stage: the disk is full" in said.stdout
    assert "free some space" in said.stdout
    assert not (data / "backup.stage").exists()


def test_a_target_in_the_directory_itself_or_among_other_files_is_refused(data: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(data)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one.jpg").touch()
    (tmp_path / "disk" / "lost+found").mkdir(parents=True)
    for place in (data, data / "sub", tmp_path / "link" / "sub"):
        with pytest.raises(BadRequest, match="is in the directory itself, and would be lost with it"):
            backed_up(data, BackupTarget(str(place)))
    with pytest.raises(BadRequest, match="is not empty, and has no backups; choose another"):
        backed_up(data, BackupTarget(str(tmp_path / "photos")))
    with pytest.raises(BadRequest, match="is no directory"):
        backed_up(data, BackupTarget(str(tmp_path / "photos" / "one.jpg")))
    for _ in range(2):
        backed_up(data, BackupTarget(str(tmp_path / "disk")))


def test_nothing_is_restored_into_the_place_where_backups_lie(data: Path, tmp_path: Path) -> None:
    target = BackupTarget(str(tmp_path / "target"))
    backed_up(data, target)
    for place in (tmp_path / "target", tmp_path / "target" / "copy"):
        with pytest.raises(BadRequest, match="is where the backups lie; choose a directory beside"):
            restore_backup(target, place, replace=True)


def test_a_restore_without_room_says_so_and_leaves_nothing(data: Path, tmp_path: Path) -> None:
    backed_up(data, BackupTarget(str(tmp_path / "target")))
    script = """
import resource, sys
from pathlib import Path
from perdure.ledger import LedgerUnwritable
from perdure.ledger.maintenance.restoration import restore_backup
from perdure.ledger.maintenance.target import BackupTarget
resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, 2_000))
try:
    restore_backup(BackupTarget(sys.argv[1]), Path(sys.argv[2]))
except LedgerUnwritable as problem:
    print(problem)
"""
    command = [sys.executable, "-c", script, str(tmp_path / "target"), str(tmp_path / "copy")]
    said = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(ROOT / ".src")})
    assert "cannot be written (File too large)" in said.stdout
    assert "make room" in said.stdout
    assert not list(tmp_path.glob("copy*"))


def test_a_restore_refuses_what_is_in_use_or_not_empty_and_replaces_nothing_for_good(
    data: Path, target: BackupTarget, tmp_path: Path
) -> None:
    backed_up(data, target)
    with pytest.raises(BadRequest, match="is not empty"):
        restore_backup(target, data)
    lock = Lock(data / "ledger")
    with pytest.raises(LedgerLocked):
        restore_backup(target, data, replace=True)
    lock.release()
    written(data, ANNA, 3, "later")
    restore_backup(target, data, replace=True)
    assert value_of(data, ANNA) == "b"
    assert value_of(data.with_name("data.replaced-1"), ANNA) == "later"
    (tmp_path / "empty").mkdir()
    restore_backup(target, tmp_path / "empty")
    with pytest.raises(BadRequest, match="has no backup '7'; it has 00000001"):
        restore_backup(target, tmp_path / "other", "7")


def test_older_backups_are_deleted_with_what_only_they_needed(data: Path, target: BackupTarget, tmp_path: Path) -> None:
    for number in range(3, 6):
        recorded(data, *lived(ANNA, number, written(data, ANNA, number, f"value {number}")))
        backed_up(data, target)
    before = len(target.names(PIECES))
    assert prune(target, 1)[0] == 2
    assert backups_in(target) == ["00000003"]
    assert len(target.names(PIECES)) < before
    restore_backup(target, tmp_path / "copy")
    assert value_of(tmp_path / "copy", ANNA) == "value 5"
    assert backed_up(data, target).copied == 0


def test_a_target_has_the_backups_of_one_directory(data: Path, target: BackupTarget, tmp_path: Path) -> None:
    backed_up(data, target)
    restore_backup(target, tmp_path / "copy")
    with pytest.raises(BadRequest, match="has backups of"):
        backed_up(tmp_path / "copy", target)


def test_what_is_wrong_with_the_directory_is_told_and_the_rest_is_backed_up(data: Path, target: BackupTarget) -> None:
    file_of(data, ANNA).unlink()
    file_of(data, BERT).write_bytes(b"nonsense" * 4_096)
    made = backed_up(data, target)
    assert [each for each in made.findings if f"{ANNA} is missing, and it had reported" in each]
    assert [each for each in made.findings if "cannot be read, and was copied as it is" in each]


@pytest.mark.parametrize("tables", [False, True], ids=["log", "database"])
def test_a_storage_is_copied_with_whole_commits_while_its_agent_is_at_work(tmp_path: Path, *, tables: bool) -> None:
    disk = FileDisk(tmp_path / "agents")
    agent_storages = AgentStorages(disk)
    storage = agent_storages.open(ANNA, 1)
    storage.state["value"] = 0
    if tables:
        storage.sql("CREATE TABLE t (i INTEGER)")
    for value in range(1, 6):
        storage.state["value"] = value
        if value == 3:
            storage.checkpoint()
        file = disk.path_of(ANNA)
        before = stamps_of(file)
        other = FileDisk(tmp_path / str(value))
        assert copy_storage(file, other.path_of(ANNA)) == before
        with other.path_of(ANNA).with_suffix(".db.wal" if tables else ".db").open("ab") as log:
            log.write(b"half a commit")
        again = tmp_path / f"again {value}"
        copy_storage(other.path_of(ANNA), FileDisk(again / "agents").path_of(ANNA))
        other.close()
        assert value_of(again, ANNA) == value
    agent_storages.close()
    disk.close()


def test_a_log_that_becomes_a_database_while_it_is_copied_is_copied_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FileDisk(tmp_path / "agents")
    agent_storages = AgentStorages(disk)
    storage = agent_storages.open(ANNA, 1)
    storage.state["value"] = 7
    true = shutil.copyfile

    def slow(source: Path, target: Path) -> None:
        true(source, target)
        if not storage.file.is_database:
            storage.sql("CREATE TABLE t AS SELECT 8 AS i")

    monkeypatch.setattr(shutil, "copyfile", slow)
    copy = FileDisk(tmp_path / "copy" / "agents")
    copy_storage(disk.path_of(ANNA), copy.path_of(ANNA))
    assert AgentStorages(copy).open(ANNA, 2).sql("SELECT i FROM t") == [(8,)]
    for each in (agent_storages, copy, disk):
        each.close()


class Fickle(MemoryFileSystem):
    """An object store that is out of reach after so many requests. Its client has errors of its own."""

    protocol = "fickle"
    requests_left = 0

    def _request(self) -> None:
        Fickle.requests_left -= 1
        if Fickle.requests_left < 0:
            raise RuntimeError("the endpoint of fickle://someone:pa55word@store\ndoes not answer")

    def find(self, *given: Any, **named: Any) -> Any:
        self._request()
        return super().find(*given, **named)

    def info(self, *given: Any, **named: Any) -> Any:
        self._request()
        return super().info(*given, **named)

    def cat_file(self, *given: Any, **named: Any) -> Any:
        self._request()
        return super().cat_file(*given, **named)

    def pipe_file(self, *given: Any, **named: Any) -> Any:
        self._request()
        return super().pipe_file(*given, **named)


def test_a_target_that_has_lost_a_slash_is_no_directory() -> None:
    for url in ("s3:/bucket/backups", "GS:bucket", "https:/host/backups"):
        with pytest.raises(BadRequest, match=r"^target: .*two slashes"):
            BackupTarget(url)


def test_whatever_a_store_raises_is_told_without_its_password_and_the_next_backup_goes_on(
    data: Path, tmp_path: Path
) -> None:
    register_implementation("fickle", Fickle, clobber=True)
    url, told = f"fickle://someone:pa55word@store/{uuid4().hex}", []
    for requests in range(400):
        Fickle.requests_left = requests
        try:
            backed_up(data, BackupTarget(url))
        except LedgerError as problem:
            told.append(str(problem))
        else:
            break
    assert len(told) > 5, "it was out of reach in each request"
    for words in told:
        assert words.startswith("fickle://someone:***@store/")
        assert "the endpoint of fickle://someone:***@store does not answer" in words
        assert "pa55word" not in words
    Fickle.requests_left = 3
    with pytest.raises(LedgerError, match="does not answer"):
        restore_backup(BackupTarget(url), tmp_path / "copy")
    assert not list(tmp_path.glob("copy*"))
    Fickle.requests_left = 1_000
    restore_backup(BackupTarget(url), tmp_path / "copy")
    assert value_of(tmp_path / "copy", ANNA) == "b"


def test_the_commands_say_what_was_done(data: Path, tmp_path: Path) -> None:
    def perdure(*words: object) -> tuple[int, str]:
        done = CliRunner().invoke(app, [str(word) for word in words])
        return done.exit_code, done.output

    target = f"memory://{uuid4().hex}"
    code, said = perdure("backup", data, target, "--keep", 2)
    assert code == 0
    assert "Backup 00000001: 2 storages and the ledger up to fact 4" in said
    code, said = perdure("backup", data, target, "--json")
    assert json.loads(said)["copied"] == 0
    code, said = perdure("restore", target, tmp_path / "copy")
    assert code == 0, said
    assert "Backup 00000002 of " in said
    assert "2 storages have come as far as the ledger says" in said
    assert isinstance(CliRunner().invoke(app, ["backup", str(tmp_path), target]).exception, BadRequest)
    assert isinstance(CliRunner().invoke(app, ["backup", str(data), "nosuch://x"]).exception, BadRequest)
    MemoryFileSystem.store.clear()
