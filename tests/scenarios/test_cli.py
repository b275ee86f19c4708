"""The `perdure` command: what it prints, what it refuses, and what it does with a directory that nobody serves."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, fields
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from perdure.actors import Runtime
from perdure.actors.link.questions import QUESTIONS
from perdure.actors.ray_world.deployment import Deployment
from perdure.ledger import (
    FORMAT,
    BadRequest,
    EventRefused,
    LedgerTooNew,
    LedgerTooOld,
    LedgerUnwritable,
    PauseRefused,
    PerdureError,
    Request,
    RetryRefused,
    SupervisorStarted,
    UnknownRun,
    View,
    apply_fact,
    check_format,
    decide,
    digest_of,
    dirty_records,
    meta_of,
    pack,
    record_fact,
    restore,
)
from perdure.ledger.directory_format import MIGRATIONS
from perdure.ledger.errors import LedgerLocked
from perdure.ledger.facts import (
    AskOpened,
    AttemptStarted,
    MailFailed,
    MailPosted,
    RunAborted,
    RunErrored,
    RunRequested,
    RunWaiting,
    UndoPromised,
)
from perdure.ledger.maintenance.backup import Backup
from perdure.ledger.maintenance.cold_view import ColdSteward
from perdure.ledger.maintenance.target import BackupTarget
from perdure.ledger.status import Status
from perdure.ledger.storage.agent_storages import AgentStorages, FileDisk
from perdure.ledger.storage.file_disk import log_of, place_of
from perdure.ledger.store.duckdb_store import DuckDBStore
from perdure.policies import Limits
from perdure.scenarios.cli import Commands, main
from perdure.scenarios.commands.catalog import CATALOG
from perdure.scenarios.commands.opening import ColdLedger
from perdure.scenarios.commands.shown import print_runs, print_table
from perdure.scenarios.exits import Terminated
from perdure.scenarios.stories import fan_out
from perdure.scenarios.stories.engine import playing
from perdure.scenarios.stories.fan_out import FanOutProgress, Order
from perdure.scenarios.stories.stage import RayStage
from perdure.scenarios.swarm.play_context import PlayContext
from perdure.scenarios.swarm.stories import STORIES
from tests.ledger.directories import formatted, lived, recorded
from tests.scenarios.command import perdure, perdure_json
from tests.tidy import IMPORT_PATH


def perdure_at(words: list[str], data: Path) -> None:
    """Have the command do this to a directory. What it refuses is raised."""
    where = [data, data / "backups"] if words == ["backup"] else ["--data", data]
    done = perdure(*words, *where)
    if words == ["doctor"]:
        assert (done.exit_code, done.stdout.split()[0]) == (2, "refused")
        check_format(data)
    if done.exception is not None:
        raise done.exception


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory whose ledger knows one run that waits for a place."""
    data = tmp_path_factory.mktemp("whole")
    store, view = DuckDBStore(formatted(data) / "ledger", fsync=False), View()
    store.boot()
    body = pack({"topic": "HTTP/3"})
    asked = Request("one", "Reader", "", "", digest_of(body), body, {}, 0, wait=False)
    rows = [record_fact(view, SupervisorStarted(1, asdict(Limits(hosts_max=16))), 1_000)]
    rows += apply_fact(view, decide(view, asked, 2_000, Limits()), 2_000)
    store.append(rows, [])
    shutil.copytree(data / "ledger", data / "killed", ignore=shutil.ignore_patterns("*.lock"))
    store.close()
    return data


@pytest.fixture
def data(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path, dirs_exist_ok=True)


def test_a_simulated_fan_out_prints_one_object() -> None:
    told = perdure_json("run", "fan-out", "--world", "sim", "--children", 5, "--kills", 1)
    assert told["verified"]
    assert told["runs"]["completed"] == 5
    assert told["world"] == "sim"


def test_a_simulated_fan_out_tells_its_story_in_lines() -> None:
    result = perdure("run", "fan-out", "--world", "sim", "--children", 5, "--kills", 1)
    assert result.exit_code == 0
    assert "kill " in result.stdout
    assert "Verified" in result.stdout


def test_kills_that_could_not_be_made_are_named() -> None:
    """A child that does not rest is done long before nine processes can be killed."""
    words = ["run", "fan-out", "--world", "sim", "--children", 1, "--kills", 9, "--pace", 0, "--seed", 1]
    left_out = perdure_json(*words)["kills_left_out"]
    assert left_out
    said = perdure(*words).stdout
    assert "Not killed, although asked for: " + ", ".join(f"{n} × {kind}" for kind, n in left_out.items()) in said


COMMANDS = ["run", *Commands.entries]


def test_the_help_names_every_command_the_units_and_the_exit_codes() -> None:
    help_ = perdure("--help").stdout
    units = ("30s, 90m, 12h or 7d", "_ms", "UTC", "Exit codes: 0")
    for word in (*COMMANDS, "perdure run fan-out", "./perdure-data", *units):
        assert word in help_


@pytest.mark.parametrize("command", [*Commands.entries, *(f"run {each.name}" for each in CATALOG)])
def test_the_help_of_each_command_has_an_example_of_it(command: str) -> None:
    help_ = perdure(*command.split(), "--help").stdout
    assert help_.count(f"perdure {command}") >= 1
    assert "Example" in help_


def test_the_help_shows_no_width_that_a_terminal_has_not() -> None:
    assert max(map(len, perdure("--help").stdout.splitlines())) <= 80


def test_list_names_the_scenarios() -> None:
    assert "fan-out" in perdure("list").stdout
    assert perdure_json("list")[0]["name"] == "fan-out"


def test_a_cold_directory_tells_of_its_runs(data: Path) -> None:
    told = perdure_json("ps", "--data", data)
    assert told["supervisor"] is None
    assert [row["run_id"] for row in told["live"]] == ["one"]
    assert "no supervisor serves it" in perdure("ps", "--data", data).stdout
    assert perdure_json("show", "one", "--data", data)["status"] == "starting"
    assert "waits for a place" in perdure("explain", "one", "--data", data).stdout
    assert perdure("audit", "--data", data).exit_code == 0
    assert perdure("doctor", "--data", data).exit_code == 0


LOOKS = {
    "ps": ["ps"],
    "show": ["show", "one"],
    "explain": ["explain", "one"],
    "logs": ["logs", "one"],
    "inspect": ["inspect", "one@Reader"],
    "fibers": ["fibers"],
    "schedules": ["schedules"],
    "turns": ["turns"],
    "upgrade": ["upgrade"],
    "audit": ["audit"],
    "doctor": ["doctor"],
}
OTHERS = (
    "run list serve mcp unschedule asks answer cancel send pause resume retry kill clear forget stop backup restore replica chaos swarm"
    " replay explore soak bench"
).split()


def test_each_command_is_known_to_look_or_not() -> None:
    assert sorted([*LOOKS, *OTHERS]) == sorted(COMMANDS)


LOOKING = """
import sys
from perdure.scenarios.cli import app
for words in {!r}:
    print("==", words[0], file=sys.stderr, flush=True)
    app([*words, "--data", {!r}], standalone_mode=False)
    assert "ray" not in sys.modules
"""


def test_a_look_at_a_directory_that_nobody_serves_decides_nothing_loads_no_ray_and_says_so(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address in the environment is where a *new* supervisor would be started; a look does not go there."""
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    asked = [sys.executable, "-c", LOOKING.format([*LOOKS.values()], str(data))]
    before = sorted(data.rglob("*"))
    done = subprocess.run(
        asked, env={**os.environ, "PYTHONPATH": IMPORT_PATH}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert sorted(data.rglob("*")) == before
    said = dict(each.split("\n", 1) for each in done.stderr.split("== ")[1:])
    assert {name for name in LOOKS if "No supervisor serves" not in said[name]} == {"doctor", "logs"}
    with closing(DuckDBStore(data / "ledger")) as store:
        assert restore(store.boot()).seq == 2


DOORS: dict[str, Callable[[Path], object]] = {
    **{name: partial(perdure_at, words) for name, words in LOOKS.items()},
    "cancel": partial(perdure_at, ["cancel", "one"]),
    "retry": partial(perdure_at, ["retry", "one"]),
    "clear": partial(perdure_at, ["clear", "one", "--yes"]),
    "forget": partial(perdure_at, ["forget", "one@m:Reader", "--yes"]),
    "backup": partial(perdure_at, ["backup"]),
    "run": partial(perdure_at, ["run", "fan-out", "--children", "1"]),
    "a runtime that starts": lambda data: Runtime(data).open(),
    "a runtime that looks": lambda data: Runtime(data, may_start=False).open(),
    "a supervisor": lambda data: Deployment(data, Limits()).check_ledger(),
}


@pytest.mark.parametrize("age", [-1, 1])
@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
def test_every_door_refuses_a_directory_of_another_format_in_words(
    data: Path, door: Callable[[Path], object], age: int
) -> None:
    formatted(data, FORMAT + age)
    before = contents(data)
    with pytest.raises(LedgerTooOld if age < 0 else LedgerTooNew) as refused:
        door(data)
    for words in (f"its format is {FORMAT + age}", f"this Perdure reads format {FORMAT}", "begin a new directory"):
        assert words in str(refused.value)
    assert contents(data) == before


def contents(data: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in data.rglob("*") if path.is_file() and path.suffix != ".lock"}


def test_a_start_migrates_an_older_directory_before_it_opens_it(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def migrate(_: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setitem(MIGRATIONS, FORMAT - 1, migrate)
    formatted(data, FORMAT - 1)
    with pytest.raises(LedgerUnwritable, match=r"cannot be brought from one format to the next.*No space left"):
        Runtime(data).open()
    with pytest.raises(LedgerTooOld, match="which brings it up to date"):
        perdure_at(["ps"], data)


@pytest.mark.parametrize("age", [-1, 1])
def test_a_backup_of_another_format_is_not_restored(data: Path, tmp_path: Path, age: int) -> None:
    backups, into = tmp_path.with_name(f"{tmp_path.name} backups"), tmp_path / "restored"
    with ColdSteward(formatted(data, FORMAT + age)) as steward:
        Backup(data, BackupTarget(str(backups)), steward, print).make(0)
    said = str(perdure("restore", backups, into).exception)
    assert (
        f"backup 00000001: {'an older' if age < 0 else 'a newer'} Perdure wrote it: its format is {FORMAT + age}"
        in said
    )
    assert "restore it with the Perdure that made it" in said
    assert not into.exists()


def test_show_without_a_run_tells_of_the_directory_and_the_limits(data: Path) -> None:
    told = perdure_json("show", "--data", data)
    assert told["directory"] == str(data)
    assert (told["hosts_max"], told["pack_max"]) == (16, Limits().pack_max), "those of the last supervisor"
    assert told["cluster"] == "none"
    assert told["logs"].startswith(str(data / "logs"))


def test_what_is_cancelled_and_cleared_on_a_cold_directory_stays_so(data: Path) -> None:
    assert "aborted" in perdure("cancel", "one", "--data", data).stdout
    assert perdure_json("show", "one", "--data", data)["status"] == "aborted"
    assert perdure("clear", "--status", "aborted", "--yes", "--data", data).stdout == "1 run was cleared.\n"
    assert isinstance(perdure("show", "one", "--data", data).exception, PerdureError)


@pytest.fixture(scope="module")
def archived(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, and seven ended runs that no boot reads: `e1` failed, and the even ones were asked for by an agent."""
    data = shutil.copytree(whole, tmp_path_factory.mktemp("archived"), dirs_exist_ok=True)
    with closing(DuckDBStore(data / "ledger", fsync=False)) as store:
        view = restore(store.boot())
        for number in range(1, 8):
            run_id, parent, at_ms = f"e{number}", "" if number % 2 else "p@m:P", 60_000 * number
            asked = RunRequested(run_id, "Reader", parent, "", "digest", b"\x01", {}, 0)
            end = RunErrored(run_id, 0, "it\nbroke", True) if number == 1 else RunAborted(run_id, "x" * 80)
            store.append([record_fact(view, asked, at_ms), record_fact(view, end, at_ms + 1_500)], [])
        store.checkpoint(meta_of(view), view.seq, dirty_records(view), [])
    return data


@pytest.fixture
def archive(archived: Path, tmp_path: Path) -> Path:
    return shutil.copytree(archived, tmp_path, dirs_exist_ok=True)


ASKED: dict[str, list[Any]] = {
    "asks": [],
    "inspect": ["e1"], "show": ["e1"], "explain": ["e1"], "receipt": ["e1", "event!1"], "frames": ["e1", -1], "kept": [["e1", "one"]],
    "list": [None, None, None, 2], "page": [[], 2], "chosen": ["clear", [], 5, 2], "at_stake": [["e1", "e2"]], "agent": ["p@m:P"],
    "ps": [], "audit": [], "limits": [], "upgrade": [],
}  # fmt: skip


def test_a_directory_that_is_not_served_answers_all_but_what_only_a_supervisor_can(archive: Path) -> None:
    with ColdLedger(archive) as ledger:
        told = {name: ledger.ask(name, *given) for name, given in ASKED.items()}
        live = {
            "wind_down": [], "keep": ["hold", []], "changed": [None, 1], "log_machines": [], "logs_of": ["m", [], 1, None, 0],
        }  # fmt: skip
        for name, given in live.items():
            with pytest.raises(BadRequest, match=f"only a supervisor answers '{name}'"):
                ledger.ask(name, *given)
        with pytest.raises(BadRequest, match="'weather' is not one"):
            ledger.ask("weather")
    steering = {
        "answer",
        "answers_to",
        "ask",
        "asks_below",
        "call_ask",
        "cancel",
        "clear",
        "forget",
        "pause",
        "retry",
        "send",
        "steer",
        "tell",
    }
    assert {*ASKED, *live, *steering} == {*QUESTIONS}
    assert told["receipt"]["status"] == "withdrawn"
    assert (told["inspect"]["error"], told["show"]["status"]) == ("it\nbroke", "error")
    assert (told["frames"][-1]["event"]["kind"], told["kept"]) == ("error", [told["frames"], None])
    assert [row["run_id"] for row in told["list"]] == ["one", "e1"]
    assert [row["run_id"] for row in told["page"]["runs"]] == ["e7", "e6"]
    assert (told["chosen"]["statuses"], len(told["chosen"]["runs"])) == ({"aborted": 5}, 2)
    assert told["at_stake"] == {"runs": 2, "live": 0, "sub_agents": 0, "mail": 0}
    assert (told["ps"]["supervisor"], told["ps"]["runs"]["aborted"], told["agent"]["host"]) == (None, 6, None)


@pytest.fixture
def asking(data: Path) -> Path:
    """A directory with runs that ask something: in several lines, with what a terminal would obey, and with many choices."""
    with closing(DuckDBStore(data / "ledger", fsync=False)) as store:
        view = restore(store.boot())
        schemas: list[dict[str, Any]] = [
            {"type": "boolean"},
            {"type": "boolean"},
            {"enum": [f"choice {n}" for n in range(30)]},
        ]
        for number, schema in enumerate(schemas):
            run_id, digest = f"it's-{number}", f"digest-{number}"
            asked = AskOpened(run_id, 1, digest, "Ship?\n\x1b[31mNow?", pack(schema), None, [], 0, 2, True, "", 0, None)
            begun = RunRequested(run_id, "Reader", "", "", "digest", b"\x01", {}, 0)
            store.append([record_fact(view, begun, 1_000), record_fact(view, asked, 2_000)], [])
        store.checkpoint(meta_of(view), view.seq, dirty_records(view), [])
    return data


def test_words_of_agents_are_shown_without_what_a_terminal_would_obey(data: Path) -> None:
    """By each command; and an id is in one row, and can be read."""
    with closing(DuckDBStore(data / "ledger", fsync=False)) as store:
        view = restore(store.boot())
        facts = [
            RunRequested("tab\tbed", "Reader", "", "", "digest", b"\x01", {}, 0),
            RunErrored("tab\tbed", 0, "red \x1b[31m\x07 flag\r\n of \u202elatin 👩\u200d🚀", True),
        ]
        store.append([record_fact(view, fact, 3_000) for fact in facts], [])
    told = [
        perdure(*words, "--data", data).stdout
        for words in (["ps", "--all"], ["explain", "tab\tbed"], ["show", "tab\tbed"])
    ]
    for each in told:
        assert not [letter for letter in ("\x1b", "\x07", "\u202e") if letter in each]
        assert "red �[31m� flag" in each
        assert "of �latin 👩\u200d🚀" in each
    (row,) = [line for line in told[0].splitlines() if line.startswith("tab")]
    assert row.startswith(r"tab\tbed  Reader")
    assert "\x1b" in perdure_json("show", "tab\tbed", "--data", data)["error"]


def test_what_runs_ask_is_listed_a_line_each_and_without_what_a_terminal_would_obey(asking: Path) -> None:
    listed = perdure("asks", "--data", asking).stdout
    rows = [line.split("  ")[0] for line in listed.splitlines() if line.startswith("it's")]
    assert rows == ["it's-0:1", "it's-1:1", "it's-2:1"]
    assert "Ship? �[31mNow?" in listed
    assert max(map(len, listed.splitlines())) < 200, "many choices are cut"
    assert f"`perdure answer {shlex.quote(rows[0])} VALUE`" in listed
    assert "There are more" not in listed
    assert "There are more than these 2" in perdure("asks", "--limit", "2", "--data", asking).stdout
    assert len(perdure_json("asks", "--limit", "2", "--data", asking)) == 2
    shown = perdure("answer", "it's-0:1", "--data", asking).stdout
    assert "\x1b" not in shown
    assert "Ship?\n�[31mNow?" in shown
    first = perdure("answer", "it's-0:1", "yes", "--as", "ada", "--data", asking)
    assert first.stdout == "it's-0:1 has 1 answer; 2 people have to agree.\n"
    assert "again" not in listed


def test_an_answer_is_not_said_to_be_taken_before_its_run_has_read_it_and_why_it_was_not_is_listed(data: Path) -> None:
    note = "ada answered 2, which does not fit: an odd number \x1b[31m is wanted"
    with closing(DuckDBStore(data / "ledger", fsync=False)) as store:
        view = restore(store.boot())
        asked = AskOpened(
            "odd", 1, "d", "How many?", pack({"type": "integer"}), None, [], 0, 1, True, "", 0, None, note
        )
        begun = RunRequested("odd", "Reader", "", "", "digest", b"\x01", {}, 0)
        store.append([record_fact(view, begun, 1_000), record_fact(view, asked, 2_000)], [])
    again = "odd:1 is asked again: ada answered 2, which does not fit: an odd number �[31m is wanted."
    assert again in perdure("asks", "--data", data).stdout
    said = perdure("answer", "odd:1", "4", "--data", data).stdout
    assert said.startswith("odd:1 is answered, and its run goes on, or asks again if that does not fit its type")
    assert again not in perdure("asks", "--all", "--data", data).stdout


@pytest.mark.parametrize("columns", [30, 70, 300])
def test_a_narrow_terminal_cuts_other_columns_than_the_ids(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.scenarios.commands.shown.PIPE_COLUMNS", columns)
    print_table(("id", "what", "of"), [("a-long-id:1", "word " * 20, "me"), ("b:1", "日本" * 20, "you")])
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert [line.split()[0] for line in lines] == ["id", "a-long-id:1", "b:1"]
    assert [line.split()[-1] for line in lines] == ["of", "me", "you"]
    assert max(map(cell_len, lines)) <= columns


def test_a_narrow_terminal_shows_when_each_run_was_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime.now(UTC)
    run = {
        "run_id": "import-2026-11-27-0001", "agent_type": "shop.imports:Importer", "status": "completed", "attempt": 1,
        "completed_at_ms": 0, "outcome": {"summary": "a long summary of what was imported " * 3}, "progress": None,
    }  # fmt: skip
    runs = [run | {"started_at_ms": at.timestamp() * 1000} for at in (now, now - timedelta(days=3))]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    print_runs(runs)
    lines = [re.sub(r"\x1b\[\d+m", "", line).rstrip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert max(map(cell_len, lines)) <= 80
    assert f"{now:%H:%M:%S} UTC" in lines[1]
    assert f"{now - timedelta(days=3):%Y-%m-%d %H:%M}" in lines[2]


def listed(*words: str | Path) -> list[str]:
    return [row["run_id"] for row in perdure_json("ps", *words)["listed"]]


def test_runs_that_have_ended_are_listed_newest_first_and_by_pages(archive: Path) -> None:
    assert listed("--all", "--data", archive) == ["e7", "e6", "e5", "e4", "e3", "e2", "e1", "one"]
    pages = [listed("--all", "--limit", "3", "--page", page, "--data", archive) for page in "1234"]
    assert pages == [["e7", "e6", "e5"], ["e4", "e3", "e2"], ["e1", "one"], []]
    said = perdure("ps", "--all", "--limit", 3, "--data", archive).stdout
    assert "e7" in said
    assert "There are older ones: --page 2." in said
    assert "older ones" not in perdure("ps", "--all", "--limit", 3, "--page", 3, "--data", archive).stdout
    assert "There is no page 4." in perdure("ps", "--all", "--limit", 3, "--page", 4, "--data", archive).stdout


def test_runs_are_listed_by_status_and_by_parent(archive: Path) -> None:
    assert listed("--status", "error", "--status", "starting", "--data", archive) == ["e1", "one"]
    assert listed("--parent", "p@m:P", "--data", archive) == ["e6", "e4", "e2"]
    assert "There is no such run." in perdure("ps", "--status", "completed", "--data", archive).stdout


def test_a_listed_run_tells_when_it_was_asked_for_how_long_it_took_and_what_came_of_it(archive: Path) -> None:
    (row,) = (line.split() for line in perdure("ps", "--status", "error", "--data", archive).stdout.splitlines()[2:])
    assert row == "e1 Reader error 0 1970-01-01 00:01:00 UTC 1.5 s it broke".split()
    assert "x" * 59 + "…" in perdure("ps", "--status", "aborted", "--data", archive).stdout


def test_runs_that_only_the_snapshot_has_are_counted(archive: Path) -> None:
    assert "runs   1 starting, 1 error, 6 aborted\n" in perdure("ps", "--data", archive).stdout


def test_where_there_are_no_runs_none_are_counted(tmp_path: Path) -> None:
    recorded(tmp_path)
    assert "runs   none\n" in perdure("ps", "--data", tmp_path).stdout


def test_long_ids_are_shown_whole(data: Path) -> None:
    long = "r" * 256
    with closing(DuckDBStore(data / "ledger", fsync=False)) as store:
        view = restore(store.boot())
        store.append([record_fact(view, RunRequested(long, "Reader", "", "", "digest", b"\x01", {}, 0), 3_000)], [])
    assert long in perdure("ps", "--data", data).stdout
    assert long in perdure("ps", "--all", "--data", data).stdout


def test_names_and_values_stand_apart_and_durations_are_said_in_words(data: Path) -> None:
    lines = perdure("show", "--data", data).stdout.splitlines()
    names = [line.split()[0] for line in lines]
    assert {field.name for field in fields(Limits)} <= set(names)
    told = dict(line.split(maxsplit=1) for line in lines)
    assert told["detached_no_progress_budget_ms"] == "3600000 (1 h)"
    assert told["reattach_window_ms"] == "without end"


def test_what_is_printed_as_json_is_json_for_every_reader(data: Path) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    told = json.loads(perdure("show", "--json", "--data", data).stdout, parse_constant=refuse)
    assert told["reattach_window_ms"] is None


def test_named_runs_are_cleared_with_what_they_had_asked_for(data: Path) -> None:
    """Also when both are in the snapshot alone, and no boot would read them."""
    with closing(DuckDBStore(data / "ledger", fsync=False)) as store:
        view = restore(store.boot())
        for run_id, parent in (("two", view.runs["one"].child), ("three", "")):
            fact = RunRequested(run_id, "Reader", parent, "", "digest", b"\x01", {}, 0)
            store.append([record_fact(view, each, 3_000) for each in (fact, RunAborted(run_id, "enough"))], [])
        store.append([record_fact(view, RunAborted("one", "enough"), 3_000)], [])
        store.checkpoint(meta_of(view), view.seq, dirty_records(view), [])
    assert isinstance(perdure("clear", "one", "four", "--data", data).exception, PerdureError)
    assert isinstance(perdure("clear", "one", "--status", "error", "--data", data).exception, PerdureError)
    refused = str(perdure("clear", "one", "--data", data).exception)
    assert "1 run would be cleared, and with it 1 run, and nobody is there to be asked; say --yes" in refused
    assert perdure("show", "two", "--data", data).exit_code == 0
    assert perdure("clear", "one", "--yes", "--data", data).stdout == "2 runs were cleared.\n"
    for run_id in ("one", "two"):
        assert isinstance(perdure("show", run_id, "--data", data).exception, UnknownRun)
    assert perdure("show", "three", "--data", data).exit_code == 0


def test_parked_mail_is_listed_as_retry_wants_it_and_can_be_tried_again(data: Path) -> None:
    with closing(DuckDBStore(data / "ledger", fsync=False)) as store:
        view = restore(store.boot())
        asked = RunRequested("a b", "Reader", "p@m:P", "", "d", b"\x01", {"detached": True, "on_finish": "on_read"}, 0)
        facts = [asked, RunAborted("a b", "enough"), MailFailed("a b!finish", "KeyError: 'x'", None)]
        store.append([record_fact(view, fact, 3_000) for fact in facts], [])
    said = perdure("audit", "--data", data).stdout
    assert "parked: 'a b!finish' for p@m:P.on_read: KeyError: 'x'" in said
    mail_id = shlex.split(said.partition("parked: ")[2])[0]
    assert "`perdure retry 'a b!finish'`" in perdure("explain", "a b", "--data", data).stdout
    assert "will be tried again" in perdure("retry", mail_id, "--data", data).stdout
    assert "1 pending" in perdure("audit", "--data", data).stdout
    assert isinstance(perdure("retry", mail_id, "--data", data).exception, RetryRefused), "it is not parked any more"


def test_a_run_that_waits_is_sent_an_event_paused_and_let_go_on_where_nobody_serves_it(data: Path) -> None:
    with closing(DuckDBStore(data / "ledger", fsync=False)) as store:
        view = restore(store.boot())
        facts = [
            RunRequested("w", "m:Editor", "", "", "d", b"\x01", {}, 0),
            AttemptStarted("w", 1, view.incarnation + 1, "h1"),
            RunWaiting("w", 1, ["go to press"], 1_900_000_000_000, True, 1_900_000_000_000, released=True),
        ]
        store.append([record_fact(view, fact, 3_000) for fact in facts], [])
    assert "waits for go to press or until 2030-03-17" in perdure("ps", "--data", data).stdout
    told = perdure("explain", "w", "--data", data).stdout
    assert "It waits for event 'go to press' or until its time comes, " in told
    assert "`perdure send w 'go to press' VALUE` sends it the event." in told
    assert "until one is started: by `perdure serve`, or by a program that opens a Runtime" in told
    assert "Run w is paused. `perdure resume` lets it go on." in perdure("pause", "w", "--data", data).stdout
    for value in ('{"by": "Ada"}', "no JSON"):
        sent = perdure("send", "w", "go to press", value, "--id", "1", "--data", data).stdout
        assert "It is paused, and takes it when it is resumed." in sent
    assert "1 pending" in perdure("audit", "--data", data).stdout
    told = perdure("explain", "w", "--data", data).stdout
    assert "Event 'go to press' has come, and is taken when it is resumed." in told
    assert "sends it the event" not in told, "it need not be sent again"
    assert "It is paused, and on no host, until `perdure resume w`." in told
    assert "Run w goes on." in perdure("resume", "w", "--data", data).stdout
    assert "was not paused" in perdure("resume", "w", "--data", data).stdout
    assert isinstance(perdure("send", "nobody", "go", "--data", data).exception, UnknownRun)
    assert isinstance(perdure("send", "w", " ", "--data", data).exception, BadRequest)
    perdure("cancel", "w", "--data", data)
    assert isinstance(perdure("send", "w", "go", "--data", data).exception, EventRefused)
    assert isinstance(perdure("pause", "w", "--data", data).exception, PauseRefused)
    assert "1 suppressed" in perdure("audit", "--data", data).stdout
    assert (
        "suppressed (its run was cleared or its agent deleted, or the run ended without taking the event)"
        in " ".join(perdure("audit", "--help").stdout.split())
    )


def test_an_agent_is_deleted_on_a_cold_directory_by_the_next_supervisor_and_its_runs_with_it(data: Path) -> None:
    with closing(DuckDBStore(data / "ledger", fsync=False)) as store:
        view = restore(store.boot())
        asked = Request("two", "m:Reader", "p@m:P", "", "d", b"", {}, 1, wait=False)
        store.append(apply_fact(view, decide(view, asked, 3_000, Limits()), 3_000), [])
    assert "p@m:P is being deleted" in perdure("forget", "p@m:P", "--yes", "--data", data).stdout
    assert isinstance(perdure("show", "two", "--data", data).exception, UnknownRun)
    with closing(DuckDBStore(data / "ledger", fsync=False)) as store:
        assert list(restore(store.boot()).doomed) == ["p@m:P"]
    for typo in ("p", "@m:P", "p@m", "q@m:P", "p@m:Q"):
        assert isinstance(perdure("forget", typo, "--data", data).exception, BadRequest)


@pytest.mark.parametrize("tables", [False, True], ids=["log", "database"])
def test_the_doctor_names_what_is_wrong_with_the_logs_of_agents_and_what_was_cut_off_them(
    data: Path, *, tables: bool
) -> None:
    def told() -> list[str]:
        result = perdure("doctor", "--data", data)
        assert result.exit_code == any(line.startswith("damage") for line in result.stdout.splitlines())
        return [line for line in result.stdout.splitlines() if "agents" in line]

    recorded(data, *lived("p@m:P", 2, 1))
    files = FileDisk(data / "agents")
    agent_storages = AgentStorages(files)
    storage = agent_storages.open("p@m:P", 1)
    if tables:
        storage.sql("CREATE TABLE t (i INTEGER)")
    for n in range(3):
        storage.state["n"] = n
    agent_storages.crash()
    assert told() == ["ok       the logs of 1 agents are whole to their last commit"]
    file = files.path_of("p@m:P")
    log = log_of(file) if tables else file
    whole = log.read_bytes()
    middle = len(whole) // 2
    log.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    assert {line.split()[0] for line in told()} == {"damage"}
    log.write_bytes(whole[:-9])
    assert [line.split()[0] for line in told()] == ["warning", "ok"]
    AgentStorages(files).open("p@m:P", 2).close()
    assert [f"{file.name}.cut-1" in line for line in told()] == [True, False]
    harmed = slice(4_096, 12_288) if tables else slice(8, 12)
    body = bytearray(file.read_bytes())
    body[harmed] = bytes(len(body[harmed]))
    file.write_bytes(body)
    words = "no whole header" if tables else "is damaged at byte 0"
    assert any(words in line for line in told())
    files.close()


def test_the_doctor_counts_what_is_there_also_before_the_first_snapshot(data: Path) -> None:
    assert "ok       1 run and 2 facts in the database tell the same story" in perdure("doctor", "--data", data).stdout


def test_the_doctors_exit_code_tells_damage_from_a_ledger_that_could_not_be_looked_at(data: Path) -> None:
    assert perdure("doctor", "--data", data).exit_code == 0
    absent = perdure("doctor", "--data", data / "nowhere")
    assert (absent.exit_code, absent.stdout.split()[0]) == (2, "refused")
    with closing(DuckDBStore(data / "ledger", fsync=False)) as store:
        store.boot()
        for words in (["doctor"], ["doctor", "--repair"]):
            used = perdure(*words, "--data", data)
            assert used.exit_code == 2
            assert "is using this ledger" in used.stdout
    (data / "ledger" / "ledger.db").write_bytes(b"nonsense" * 5_000)
    assert perdure("doctor", "--data", data).exit_code == 1


def test_a_damaged_file_is_repaired_from_a_journal_that_has_everything(data: Path) -> None:
    """As a person does it: ask, be told of the damage, ask the doctor, follow its advice."""
    shutil.rmtree(data / "ledger")
    (data / "killed").rename(data / "ledger")
    file = data / "ledger" / "ledger.db"
    content = bytearray(file.read_bytes())
    content[4_096 + 5] ^= 0xFF
    content[8_192 + 5] ^= 0xFF
    file.write_bytes(content)
    refusal = perdure("ps", "--data", data).exception
    assert "perdure doctor" in str(refusal)
    told = perdure("doctor", "--data", data)
    assert (told.exit_code, told.stdout.split()[0]) == (1, "damage")
    assert "perdure doctor --repair" in told.stdout
    mended = perdure("doctor", "--repair", "--data", data)
    assert mended.exit_code == 0
    assert "it has the facts 1 to 2" in mended.stdout
    assert "one" in perdure("ps", "--data", data).stdout


def test_mail_that_is_on_its_way_is_not_tried_again_by_hand(data: Path) -> None:
    with closing(DuckDBStore(data / "ledger", fsync=False)) as store:
        view = restore(store.boot())
        asked = RunRequested("two", "Reader", "p@m:P", "", "d", b"\x01", {"detached": True, "on_finish": "on_read"}, 0)
        store.append([record_fact(view, fact, 3_000) for fact in (asked, RunAborted("two", "enough"))], [])
    assert "'two!finish' is pending" in str(perdure("retry", "two!finish", "--data", data).exception)
    assert "`perdure audit` the parked mail" in str(perdure("retry", "two!give-up", "--data", data).exception)


def test_cancelling_what_has_ended_says_so(data: Path) -> None:
    perdure("cancel", "one", "--data", data)
    again = perdure("cancel", "one", "--data", data)
    assert again.stdout == "Run one had ended before (aborted), and stays as it is.\n"


def test_cancelling_what_is_undone_first_says_so(data: Path) -> None:
    with closing(DuckDBStore(data / "ledger", fsync=False)) as store:
        view = restore(store.boot())
        begun = [
            RunRequested("two", "Reader", "p@m:P", "", "d", b"\x01", {}, 0),
            AttemptStarted("two", 1, 1, "h1"),
            UndoPromised("two", 1),
        ]
        store.append([record_fact(view, fact, 3_000) for fact in begun], [])
    told = perdure("cancel", "two", "--data", data)
    assert "Run two is running, and is aborted when its steps are undone" in told.stdout
    assert "its steps are being undone: cancelled by an operator" in perdure("explain", "two", "--data", data).stdout
    row = next(line for line in perdure("ps", "--data", data).stdout.splitlines() if line.startswith("two"))
    assert "running" in row
    assert "undoing: cancelled by an operator" in row
    told = perdure_json("show", "two", "--data", data)
    assert (told["status"], told["undoing"], told["error"]) == ("running", True, "cancelled by an operator")
    assert not perdure_json("show", "one", "--data", data)["undoing"]
    assert listed("--undoing", "--data", data) == ["two"]
    assert "undoing: cancelled" in perdure("ps", "--undoing", "--data", data).stdout
    counted = perdure_json("cancel", "--undoing", "--dry-run", "--data", data)
    assert (counted["found"], counted["sample"]) == (1, ["two"])


def test_a_command_that_only_looks_begins_no_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where there is a folder of that name, nor where no directory was named."""
    (tmp_path / "ledger").mkdir()
    monkeypatch.chdir(tmp_path)
    for words in (["ps"], ["show"], ["audit"], ["doctor"], ["clear", "--all", "--yes"], ["cancel", "one"]):
        for data in (".", tmp_path, ""):
            assert perdure(*words, "--data", data).exit_code != 0
    assert list((tmp_path / "ledger").iterdir()) == []


def _family(data: Path) -> str:
    """An agent with a live run, one that has ended, what the child of that had asked for, a mail, and two sub-agents that sleep; and one
    that sleeps alone."""
    agent, folder = "p@m:P", data / "agents"
    with closing(DuckDBStore(data / "ledger", fsync=False)) as store:
        view = restore(store.boot())
        asked = [("live", agent), ("ended", agent), ("below", "ended@Reader")]
        facts: list[Any] = [RunRequested(key, "Reader", parent, "", "d", b"\x01", {}, 0) for key, parent in asked]
        facts += [RunAborted("ended", "enough"), RunAborted("below", "enough")]
        facts += [MailPosted("letter", agent, "", "hear", b"\x01", None)]
        for each in facts:
            store.append([record_fact(view, each, 3_000)], [])
        store.checkpoint(meta_of(view), view.seq, dirty_records(view), [])
    for each in ("p@m:P>a@m:Q", "p@m:P>a@m:Q>b@m:Q", "alone@m:P"):
        place = folder / place_of(each)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    return agent


def test_an_agent_is_forgotten_with_what_belongs_to_it_only_when_that_is_meant(data: Path) -> None:
    agent = _family(data)
    refused = str(perdure("forget", agent, "--data", data).exception)
    assert (
        f"agent {agent} would be deleted, and with it 3 runs, 1 of them live; 2 sub-agents; 1 mail on the way"
        in refused
    )
    assert "say --yes" in refused
    assert perdure_json("show", "live", "--data", data)["status"] == "starting"
    assert "is being deleted" in perdure("forget", agent, "--yes", "--data", data).stdout
    for run_id in ("live", "ended", "below"):
        assert isinstance(perdure("show", run_id, "--data", data).exception, UnknownRun)
    assert "is being deleted" in perdure("forget", "alone@m:P", "--data", data).stdout, (
        "nothing but itself: no question"
    )
    with pytest.raises(BadRequest, match="other@m:P is asleep or unknown"):
        perdure_at(["forget", "other@m:P"], data)


def answered(answer: str, *words: str) -> str:
    """What the command says on a terminal, where this is answered."""
    ours, theirs = os.openpty()
    command = [sys.executable, "-c", "from perdure.cli import main; main()", *words]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL) as process:
        os.write(ours, f"{answer}\n".encode())
        assert process.wait(60) == (0 if answer == "y" else 1)
    said = os.read(ours, 100_000).decode()
    os.close(ours)
    os.close(theirs)
    return " ".join(said.split())


@pytest.mark.parametrize("answer", ["n", "y"])
def test_on_a_terminal_it_is_asked_before_more_is_deleted_than_was_named(data: Path, answer: str) -> None:
    assert "and with it 3 runs, 1 of them live" in answered(answer, "forget", _family(data), "--data", str(data))
    assert isinstance(perdure("show", "live", "--data", data).exception, UnknownRun) == (answer == "y")


def test_without_a_terminal_nothing_is_cleared_unasked(data: Path) -> None:
    assert "say --yes" in str(perdure("clear", "--all", "--data", data).exception)
    assert "or say --all" in str(perdure("clear", "--yes", "--data", data).exception)
    assert perdure("show", "one", "--data", data).exit_code == 0
    assert perdure("clear", "--all", "--yes", "--data", data).stdout == "1 run was cleared.\n"


def test_a_list_and_the_verbs_have_the_same_filters(archive: Path) -> None:
    """The ended runs of the archive are decades old, and each was asked for a minute after the one before."""
    chosen = {
        ("--error", "BROKE"): ["e1"],
        ("--error", "xxx"): ["e7", "e6", "e5", "e4", "e3", "e2"],
        ("--prefix", "e", "--status", "error"): ["e1"],
        ("--match", "P@M", "--type", "Reader"): ["e6", "e4", "e2"],
        ("--parent", "p@m:P", "--ended-older-than", "7d"): ["e6", "e4", "e2"],
        ("--newer-than", "1h"): [],
        ("--ended-newer-than", "1h", "--older-than", "1s"): [],
        ("--parked",): [],
        ("--status", "starting", "--older-than", "1d"): ["one"],
    }
    for words, ids in chosen.items():
        assert listed(*words, "--data", archive) == ids, words
        told = perdure_json("clear", *words, "--dry-run", "--data", archive)
        assert (told["found"], told["sample"], told["dry_run"], told["hit"]) == (len(ids), ids, True, 0), words
    assert len(listed("--all", "--data", archive)) == 8, "nothing was done"


def test_runs_are_cleared_by_a_filter_when_that_is_meant_and_the_same_command_finds_nothing_more(archive: Path) -> None:
    words = ["clear", "--parent", "p@m:P", "--data", archive]
    assert perdure(*words, "--dry-run").stdout == (
        "3 runs would be cleared (3 aborted), with what their children requested: e6, e4, e2.\n"
    )
    refused = str(perdure(*words).exception)
    assert "3 runs would be cleared (3 aborted)" in refused
    assert "say --yes" in refused
    assert perdure(*words, "--yes").stdout == "3 runs were cleared.\n"
    again = perdure(*words)
    assert (again.exit_code, again.stdout) == (0, "there is no run that would be cleared.\n")
    assert listed("--all", "--data", archive) == ["e7", "e5", "e3", "e1", "one"]


def test_runs_are_cancelled_and_tried_again_by_a_filter_and_the_report_is_an_object(archive: Path) -> None:
    told = perdure_json("cancel", "--all", "--yes", "--data", archive)
    assert (told["found"], told["hit"], told["refused"], told["whole"]) == (1, 1, {}, True)
    assert perdure_json("show", "one", "--data", archive)["error"] == "cancelled by an operator"
    assert perdure("retry", "--error", "broke", "--yes", "--data", archive).stdout == "1 run was tried again.\n"
    assert perdure_json("show", "e1", "--data", archive)["retries"] == 1
    for words in (["cancel", "--yes"], ["ps", "--status", "error"]):
        refused = perdure(*words, "--type", "m:Reader", "--json", "--data", archive)
        assert (refused.stdout, str(refused.exception)) == (
            "",
            "type: no run of 'm:Reader' is known; there are runs of Reader",
        )
    assert perdure("retry", "--all", "--dry-run", "--data", archive).stdout == (
        "there is no run that would be tried again.\n"
    )


def test_a_refusal_of_some_runs_is_told_and_is_the_exit_code(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ColdLedger.ask

    def ask(self: ColdLedger, name: str, *args: Any) -> Any:
        if name == "steer":
            self._view.runs["one"].status = Status.COMPLETED  # it is quicker than the command
        return real(self, name, *args)

    monkeypatch.setattr(ColdLedger, "ask", ask)
    done = perdure("cancel", "--all", "--yes", "--data", archive)
    assert (done.exit_code, done.stdout) == (
        1,
        "0 runs were cancelled.\n1 run was refused: it has ended (completed).\n",
    )


def test_what_is_cut_off_says_how_far_it_came_and_how_to_go_on(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.actors.runtime.bulk.GROUP_MAX", 2)
    real, groups = ColdLedger.ask, count(1)

    def ask(self: ColdLedger, name: str, *args: Any) -> Any:
        if name == "steer" and next(groups) == 3:
            raise KeyboardInterrupt
        return real(self, name, *args)

    monkeypatch.setattr(ColdLedger, "ask", ask)
    done = perdure("clear", "--status", "aborted", "--yes", "--data", archive)
    assert done.exit_code == 130
    assert done.stdout.startswith("4 runs were cleared.")
    assert "the same command goes on with them" in done.stderr
    monkeypatch.undo()
    assert perdure("clear", "--status", "aborted", "--yes", "--data", archive).stdout == "2 runs were cleared.\n"


@pytest.mark.parametrize("answer", ["n", "y"])
def test_on_a_terminal_it_is_asked_with_the_count_and_some_ids(archive: Path, answer: str) -> None:
    said = answered(answer, "clear", "--status", "error", "--status", "aborted", "--data", str(archive))
    assert "7 runs would be cleared (6 aborted, 1 error), with what their children requested: e7, e6, e5" in said
    assert len(listed("--all", "--data", archive)) == (1 if answer == "y" else 8)


def test_what_nothing_serves_need_not_be_stopped(data: Path) -> None:
    told = perdure("stop", "--data", data)
    assert (told.exit_code, told.stdout) == (0, f"Nothing serves {data}.\n")
    assert perdure_json("stop", "--data", data) == {"served": False}
    with closing(DuckDBStore(data / "ledger", fsync=False)) as store:
        store.boot()
        assert isinstance(perdure("stop", "--data", data).exception, LedgerLocked), "somebody out of reach serves it"


def test_the_version_is_told() -> None:
    assert perdure("--version").stdout.startswith("perdure")


def test_what_was_stopped_before_it_began_is_not_said_to_carry_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a fan-out that was interrupted earlier can still be resumed: the one that did not come about has not taken its place."""

    def interrupted(_stage: RayStage) -> RayStage:
        raise stop

    monkeypatch.setattr(RayStage, "__enter__", interrupted)
    for stop, code in ((KeyboardInterrupt(), 130), (Terminated(), 143)):  # noqa: B007 - it is raised above
        first = perdure("run", "fan-out", "--children", 3, "--data", tmp_path / str(code))
        assert (first.exit_code, first.stderr) == (code, "\nStopped before it began.\n")
    interrupted_before = fan_out.begin_book(tmp_path, Order(children=7), None)
    second = perdure("run", "fan-out", "--children", 3, "--data", tmp_path)
    assert f"perdure run fan-out --resume --data {tmp_path}" in second.stderr
    assert fan_out.read_book(tmp_path) == interrupted_before


def test_a_swarm_that_is_stopped_says_how_far_it_came_what_failed_and_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each seed plays twice: the second one fails, and the third one is stopped under fire."""
    for stop, number in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        plays = count(1)

        async def part(context: PlayContext, plays: Iterator[int] = plays, stop: int = stop) -> None:
            play = next(plays)
            context.expect(play != 4, "as it was told")
            if play == 5:
                signal.raise_signal(stop)

        monkeypatch.setitem(STORIES, "twins", (part,))
        told = perdure("swarm", "--story", "twins", "--seeds", 9, "--first-seed", 10, "--processes", 1)
        assert told.exit_code == number
        assert told.stdout.startswith("2 seeds, 0 kills")
        assert told.stdout.endswith(" 1 failures.\n")
        assert "perdure replay 11 --story twins" in told.stderr
        assert "perdure swarm --first-seed 12 --seeds 7 --story twins --processes 1\n" in told.stderr


def test_a_ledger_that_cannot_go_on_ends_the_command_and_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_stage: RayStage) -> RayStage:
        raise LedgerUnwritable(str(tmp_path), "the disk is full", "free some space and start again")

    monkeypatch.setattr(RayStage, "__enter__", full)
    fan_out.begin_book(tmp_path, Order(children=7), None)
    result = perdure("run", "fan-out", "--resume", "--data", tmp_path)
    assert isinstance(result.exception, LedgerUnwritable)
    assert "--resume" in result.stderr


@pytest.mark.parametrize("refuses", ["os.fsync", "os.pwrite"])
def test_a_disk_without_space_is_named_with_what_helps(
    refuses: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a scenario writes down what it does, and where it says that it plays."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(refuses, full)
    with pytest.raises(LedgerUnwritable, match="free some space"), playing(tmp_path):
        fan_out.begin_book(tmp_path, Order(children=7), None)


def test_a_directory_that_may_not_be_looked_at_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(_path: Path, **_: object) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "exists", forbidden)
    refused = perdure("ps", "--data", "secret")
    assert refused.exit_code == 2
    assert "'secret' cannot be looked at: Permission denied" in refused.stderr


def test_retry_shows_ids_as_they_are() -> None:
    help_ = perdure("retry", "--help").stdout
    assert "perdure retry '3f0c9a1e!finish!112'" in help_
    assert "/finish" not in help_


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ps", "--data", "nowhere"], "there is no ledger"),
        (["clear", "--older-than", "soon"], "older-than"),
        (["clear", "--yes"], "run: nothing says what is to be cleared"),
        (["cancel"], "or say --all"),
        (["retry", "--all", "--error", "x"], "filter: all runs are meant, and some are chosen"),
        (
            ["cancel", "--older-than", "2h", "--newer-than", "1h"],
            "newer-than: nothing is at least 2h old and at most 1h",
        ),
        (["cancel", "--older-than", "-5m"], "older-than: '-5m' is not a duration"),
        (["ps", "--ended-older-than", "1d", "--ended-newer-than", "1d"], "ended-newer-than"),
        (["cancel", "--status", "completed"], "status: a run that is completed has ended"),
        (["retry", "--status", "aborted"], "status: a run that has completed or was cancelled (aborted) is not"),
        (["clear", "--parked", "--status", "error"], "parked: a run that is parked"),
        (["cancel", "--undoing", "--ended-older-than", "1d"], "undoing: a run that is undoing has not ended"),
        (["clear", "--error", ""], "error: is empty"),
        (["cancel", "one", "--all"], "run: name what is meant, or choose runs by options"),
        (["retry", "one", "--dry-run"], "dry-run: it counts runs that options choose, and here it is named"),
        (["ps", "--parent", "desk"], "parent: 'desk' is no address of an agent; one is name@module:Class"),
        (["cancel", "--parent", "desk@Desk", "--yes"], "parent: 'desk@Desk' is no address"),
        (["ps", "--page", "2"], "page: only lists have pages; say --all"),
        (["replica", "--data", "nowhere"], "data: there is no directory nowhere"),
        (["clear", "one", "--status", "error"], "run: name what is meant"),
        (["replay", "1", "--story", "none"], "story"),
        (["run", "fan-out", "--world", "sim", "--resume"], "resume"),
        (["run", "fan-out", "--cold-restart", "--address", "127.0.0.1:1"], "cold-restart"),
        (["run", "fan-out", "--address", " "], "address: is blank"),
        (["stop", "--data", "nowhere"], "there is no directory"),
        (["logs", "--data", "nowhere"], "there is no directory"),
        (["logs", "--data", ".", "--since", "soon"], "since: 'soon' is not a duration"),
        (["stop", "--timeout", "2h"], "timeout: '2h' is longer than 1 h"),
        (["clear", "--older-than", "99999999999999999999d"], "longer than"),
    ],
)
def test_what_is_wrong_is_said_in_one_paragraph(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["perdure", *words])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith("perdure: ")
    assert said in told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    "words",
    [
        "run fan-out --children 0",
        "run fan-out --children 999999999",
        "run fan-out --kills -1",
        "run fan-out --kills 999999999",
        "run fan-out --world moon",
        "run fan-out --world sim --pace inf",
        "run fan-out --world sim --pace nan",
        "clear --status dead",
        "cancel --statuss error",
        "ps --page 0",
        "ps --page 99999999999999999999",
        "ps --limit 0",
        "ps --data README.md",
    ],
)
def test_options_that_make_no_sense_are_refused(words: str) -> None:
    assert perdure(*words.split()).exit_code == 2


def test_a_directory_remembers_what_was_interrupted(tmp_path: Path) -> None:
    book = fan_out.begin_book(tmp_path, Order(children=7, kills=2, seed=9), None)
    book.progress.struck.append("child")
    book.save()
    known = fan_out.read_book(tmp_path)
    assert known == book
    assert known is not None
    assert known.progress == FanOutProgress(struck=["child"])
    assert fan_out.begin_book(tmp_path, Order(children=7), known).order.number == 2


def test_two_scenarios_do_not_play_on_one_directory(tmp_path: Path) -> None:
    with playing(tmp_path), pytest.raises(PerdureError, match="playing on"), playing(tmp_path):
        pass
    with playing(tmp_path):
        pass


def test_a_record_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / fan_out.RECORD).write_text("{", encoding="utf-8")
    with pytest.raises(PerdureError, match=r"scenario\.json"):
        fan_out.read_book(tmp_path)


@pytest.mark.parametrize("command", ["ps", "audit", "doctor", "cancel r", "retry r"])
def test_a_directory_with_storages_and_no_ledger_is_refused_by_every_command(command: str, tmp_path: Path) -> None:
    storage = tmp_path / "agents" / "3f" / "Till-01.db"
    storage.parent.mkdir(parents=True)
    storage.touch()
    result = perdure(*command.split(), "--data", tmp_path)
    assert result.exit_code != 0
    told = result.output + str(result.exception)
    assert "but its ledger" in told
    assert "perdure restore" in told
    assert not (tmp_path / "ledger").exists()
