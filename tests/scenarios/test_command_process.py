"""The `perdure` command as a process: its rights, the text that it is given, and where its output goes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from perdure.scenarios.cli import main
from perdure.scenarios.commands.opening import ColdLedger
from perdure.scenarios.exits import TERMINATED, Terminated, heed_no_more, heed_sigterm
from tests.kit import some
from tests.scenarios.test_cli import data, perdure, whole  # noqa: F401 - two are fixtures

MAIN = "from perdure.cli import main; main()"
ODD = os.fsdecode(b"odd \xff")
# root obeys no permissions unless it gives up its capabilities
OBEYING = [] if os.getuid() else ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
obeys = pytest.mark.skipif(bool(OBEYING) and shutil.which("setpriv") is None, reason="root needs setpriv")


EACH = """
import os, sys
from pathlib import Path
from perdure.cli import main
data, backups, *parts = map(Path, sys.argv[1:])
for part in parts:
    part.chmod(0)
    for words in (["ps", "--data", data], ["doctor", "--data", data], ["backup", data, backups]):
        sys.argv = ["perdure", *map(str, words)]
        try:
            main()
        except SystemExit as end:
            print(part.name, words[0], end.code)
    part.chmod(0o700)
"""


def shell(script: str, data: Path, **variables: str) -> subprocess.CompletedProcess[str]:  # noqa: F811
    words = ["bash", "-c", f'set -o pipefail; perdure() {{ "$PY" -c "$MAIN" "$@"; }}; {script}']
    told = {**os.environ, "PY": sys.executable, "MAIN": MAIN, "D": str(data), **variables}
    return subprocess.run(words, env=told, capture_output=True, text=True, check=False, timeout=60)


@obeys
def test_what_one_may_not_enter_or_read_is_refused_in_words(data: Path) -> None:  # noqa: F811
    """By each command that needs it. And doctor does not call it damage."""
    parts = [data, data / "ledger", data / "ledger" / "ledger.lock", data / "bucket", data / "code"]
    parts[-2].touch()
    parts[-1].mkdir()
    command = [*OBEYING, sys.executable, "-c", EACH, data, data.with_name("backups"), *parts]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    said = told.stdout + told.stderr
    ends = [line.split() for line in told.stdout.splitlines() if line.endswith((" 0", " 1", " 2", " None"))]
    assert [end for end in ends if end[2] != "2"] == [["code", "backup", "0"]], "it has no need of what is not there"
    assert said.count("check its path, owner and permissions") == len(ends) - 1 == 14


@obeys
def test_a_program_is_refused_a_directory_that_it_may_not_enter_by_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "bucket").touch()
    script = """
import sys
from pathlib import Path
from perdure.actors import Runtime
from perdure.ledger import BadRequest, LedgerUnwritable, bucket_of
place = Path(sys.argv[1])
for mode, kind, ask in ((0, BadRequest, Runtime), (0, LedgerUnwritable, bucket_of)):
    (place / "bucket" if ask is bucket_of else place).chmod(mode)
    try:
        ask(place)
    except kind as refusal:
        print(refusal)
    place.chmod(0o700)
"""
    told = subprocess.run(
        [*OBEYING, sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=True
    )
    assert told.stdout.count("check its path, owner and permissions") == 2


@pytest.mark.thorough
def test_a_text_that_the_encoding_of_the_terminal_lacks_is_shown_by_its_number(data: Path) -> None:  # noqa: F811
    perdure("cancel", "one", "--reason", "tired 🙂", "--data", data)
    for variables in ({"PYTHONIOENCODING": "latin-1"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}):
        for command in ("ps --all", "show one", "explain one"):
            told = shell(f'perdure {command} --data "$D"', data, **variables)
            assert (told.returncode, "Traceback" in told.stderr) == (0, False)
            assert r"tired \U0001f642" in told.stdout


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("run_id", ["show", ODD]),
        ("event", ["send", "one", ODD]),
        ("reason", ["cancel", "one", "--reason", ODD]),
        ("ask", ["answer", ODD]),
        ("match", ["ps", "--match", ODD]),
        ("targets", ["serve", "module", ODD]),
    ],
)
def test_an_argument_that_is_no_utf_8_is_refused_by_its_name(
    name: str, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["perdure", *words])
    with pytest.raises(SystemExit) as end:
        main()
    assert (end.value.code, capsys.readouterr().err) == (2, f"perdure: {name}: 'odd \\udcff' is no UTF-8\n")


@pytest.mark.parametrize("buffered", some(1, ["", "1"]))
def test_a_reader_that_has_gone_ends_a_command_quietly_and_a_full_disk_in_a_sentence(
    data: Path,  # noqa: F811
    buffered: str,
) -> None:
    quiet = {"PYTHONUNBUFFERED": buffered}
    for command in ("ps --help", 'ps --all --data "$D"'):
        told = shell(f"{{ sleep 0.1; perdure {command}; }} 2>/dev/null | true", data, **quiet)
        assert (told.returncode, told.stderr) == (141, ""), command
        told = shell(f"perdure {command} >/dev/full", data, **quiet)
        assert told.returncode == 1
        assert "No space left on device — free some space" in told.stderr
        assert "Traceback" not in told.stderr


def test_a_command_without_standard_files_asks_nobody_and_says_what_it_can(data: Path) -> None:  # noqa: F811
    told = shell('perdure cancel --all --data "$D" <&-', data)
    assert told.returncode == 2
    assert "nobody is there to be asked" in told.stderr
    assert shell('perdure ps --all --data "$D" <&- >&- 2>&-', data).returncode == 1, "nobody can have read it"
    for options in ("", "--json"):
        told = shell(f'perdure ps --all {options} --data "$D" >&-', data)
        assert (told.returncode, "what is printed" in told.stderr) == (1, True), told.stderr
        assert "Traceback" not in told.stderr


@pytest.fixture
def own_signals() -> Iterator[None]:
    """What the command does with signals is undone. No `nohup` of this process is in its way."""
    before = {each: signal.signal(each, signal.SIG_DFL) for each in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.mark.usefixtures("own_signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_terminated_ends_once_and_by_its_own_exit_code(
    data: Path,  # noqa: F811
    number: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def terminated(ledger: ColdLedger, *_: object) -> None:
        try:
            signal.raise_signal(number)
        finally:
            signal.raise_signal(number)  # which does not hinder the end
            done.append(ledger)

    done: list[ColdLedger] = []
    monkeypatch.setattr(ColdLedger, "ask", terminated)
    monkeypatch.setattr("sys.argv", ["perdure", "ps", "--data", str(data)])
    with pytest.raises(SystemExit) as end:
        main()
    assert (end.value.code, len(done)) == (TERMINATED, 1)


@pytest.mark.usefixtures("own_signals")
@pytest.mark.parametrize("heed", [heed_sigterm, heed_no_more])
def test_a_process_that_is_forked_from_a_command_is_ended_as_any_other(heed: Callable[[], None]) -> None:
    heed()
    child = os.fork()
    if child == 0:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM


@pytest.mark.usefixtures("own_signals")
def test_a_command_below_nohup_outlives_its_terminal() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    heed_sigterm()
    signal.raise_signal(signal.SIGHUP)
    with pytest.raises(Terminated):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("module", ["perdure", "perdure.cli"])
def test_the_command_is_a_module_too_and_has_its_own_name(module: str, data: Path) -> None:  # noqa: F811
    def told(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", module, *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert told("--help").stdout.split()[:3] == ["Usage:", "perdure", "[OPTIONS]"]
    assert "Try 'perdure --help'" in told("nonsense").stderr
    assert told("ps", "--data", str(data)).returncode == 0


@pytest.mark.usefixtures("own_signals")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 143), (signal.SIGINT, 130)])
def test_a_command_that_is_stopped_while_duckdb_reads_ends_by_its_code(
    number: signal.Signals, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reads(prog_name: str) -> None:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(number)
        raise RuntimeError("Query interrupted")  # as DuckDB does

    monkeypatch.setattr("perdure.scenarios.cli.app", reads)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == code


@pytest.mark.usefixtures("own_signals")
def test_any_other_error_of_that_kind_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def reads(prog_name: str) -> None:
        raise RuntimeError(f"{prog_name} fails")

    monkeypatch.setattr("perdure.scenarios.cli.app", reads)
    with pytest.raises(RuntimeError, match="perdure fails"):
        main()
