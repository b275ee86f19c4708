"""Several restores into one directory, each in a process of its own, and what a killed one leaves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import typer

from perdure.ledger import BadRequest
from perdure.ledger.errors import LedgerLocked
from perdure.ledger.maintenance.backup import Backup
from perdure.ledger.maintenance.cold_view import ColdSteward
from perdure.ledger.maintenance.restoration import restore_backup
from perdure.ledger.maintenance.restore_part import left_beside
from perdure.ledger.maintenance.target import BackupTarget
from perdure.scenarios.commands.keep import diagnosis, doctor
from tests.kit import some
from tests.ledger.directories import lived, recorded, written
from tests.ledger.wrecks import ROOT

ANNA = "anna@m:T"
SCRIPT = """
import sys
from pathlib import Path
from perdure.ledger import PerdureError
from perdure.ledger.maintenance.restoration import restore_backup
from perdure.ledger.maintenance.target import BackupTarget
where, data, place, replace = sys.argv[1:]
class Slow(BackupTarget):
    pieces = 0
    def get_piece(self, name):
        self.pieces += 1
        if place == "amid" and self.pieces == 2:
            print("amid", flush=True)
            sys.stdin.readline()
        return super().get_piece(name)
if place == "before":
    print("before", flush=True)
    sys.stdin.readline()
try:
    restore_backup(Slow(where), Path(data), replace=replace == "True")
    print("restored")
except PerdureError as problem:
    print(type(problem).__name__, problem)
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def backups(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    recorded(data, *lived(ANNA, 1, written(data, ANNA, 1, "a", "b")), snapshot=True)
    with ColdSteward(data) as steward:
        Backup(data, BackupTarget(str(tmp_path / "backups")), steward, print).make(1)
    return tmp_path / "backups"


@pytest.fixture
def start(backups: Path) -> Iterator[Start]:
    """A process that restores: it waits for a line `before` it begins, or `amid` the pieces."""
    with ExitStack() as stack:

        def begin(into: Path, place: str, *, replace: bool = False) -> subprocess.Popen[str]:
            words = [sys.executable, "-c", SCRIPT, str(backups), str(into), place, str(replace)]
            env = {"PYTHONPATH": str(ROOT / ".src")}
            process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
            stack.enter_context(process)
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline().strip() == place
            return process

        yield begin


def beside(directory: Path) -> list[str]:
    return sorted(each.name for each in directory.parent.iterdir() if each.name.startswith(directory.name))


@pytest.mark.parametrize("replace", some(1, [False, True]))
def test_of_restores_at_the_same_moment_one_wins_and_the_others_leave_nothing(
    tmp_path: Path, start: Start, *, replace: bool
) -> None:
    into = tmp_path / "copy"
    if replace:
        into.mkdir()
        (into / "mine").touch()
    processes = [start(into, "before", replace=replace) for _ in range(6)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    said = [process.communicate()[0].strip() for process in processes]
    wins = said.count("restored")
    assert wins >= 1
    others = [words for words in said if words != "restored"]
    refusals = ["under way", "not empty", "meanwhile"]
    if replace:
        refusals.append("is using this ledger")  # the winner has given the directory its name, and has not ended yet
    assert [words for words in others if not any(each in words for each in refusals)] == []
    if replace:  # one that began after another had ended has replaced that one's
        assert beside(into) == ["copy", *(f"copy.replaced-{n + 1}" for n in range(wins))]
        assert (tmp_path / "copy.replaced-1" / "mine").exists()
    else:
        assert wins == 1
        assert beside(into) == ["copy"]
    assert {each.severity for each in diagnosis(into, deep=True)} == {"ok"}


def test_a_restore_is_refused_while_another_is_under_way_and_does_not_disturb_it(
    tmp_path: Path, backups: Path, start: Start
) -> None:
    into = tmp_path / "copy"
    first = start(into, "amid")
    with pytest.raises(LedgerLocked, match=r"another restore into it is under way \(in .*copy.restoring-1\)"):
        restore_backup(BackupTarget(str(backups)), into)
    assert beside(into) == ["copy.restoring-1"]
    assert left_beside(into) == [], "it is not left, but at work"
    assert first.communicate("\n")[0].strip() == "restored"
    assert beside(into) == ["copy"]
    assert {each.severity for each in diagnosis(into, deep=True)} == {"ok"}


def test_what_a_killed_restore_has_left_is_told_and_the_next_one_takes_it_away(
    tmp_path: Path, backups: Path, start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    into = tmp_path / "copy"
    killed = start(into, "amid")
    killed.kill()
    killed.wait()
    (tmp_path / "copy.restoring-notes").mkdir()  # somebody's own
    with pytest.raises(typer.Exit):
        doctor(data=into)
    said = capsys.readouterr().out
    assert f"warning  {into}.restoring-1 was left by a restore that was killed – delete it; the next restore" in said
    restore_backup(BackupTarget(str(backups)), into)
    assert beside(into) == ["copy", "copy.restoring-notes"]


def test_what_came_meanwhile_stays_and_the_restore_is_told(tmp_path: Path, start: Start) -> None:
    into = tmp_path / "copy"
    late = start(into, "amid")
    into.mkdir()
    (into / "mine").touch()
    said = late.communicate("\n")[0]
    assert f"BadRequest dir: something else was put in {into} meanwhile; it stays" in said
    assert beside(into) == ["copy"]
    assert [each.name for each in into.iterdir()] == ["mine"]


def test_a_directory_that_is_being_replaced_cannot_be_used_meanwhile(tmp_path: Path, start: Start) -> None:
    data = tmp_path / "data"
    late = start(data, "amid", replace=True)
    with pytest.raises(LedgerLocked, match="is using this ledger"), ColdSteward(data):
        pass
    assert late.communicate("\n")[0].strip() == "restored"
    assert beside(data) == ["data", "data.replaced-1"]


def test_a_mounted_file_system_is_not_replaced(backups: Path) -> None:
    with pytest.raises(BadRequest, match="is where a file system is mounted; choose a directory in it"):
        restore_backup(BackupTarget(str(backups)), Path("/proc"), replace=True)
