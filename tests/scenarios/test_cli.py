"""The `perdure` command: what it prints, what it refuses, and what it does with a directory that nobody serves."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ledger import (
    PerdureError,
    Request,
    SupervisorStarted,
    UnknownRun,
    View,
    decide,
    digest_of,
    dirty_records,
    meta_of,
    pack,
    restore,
)
from ledger.duckdb_store import DuckDBStore
from ledger.facts import RunAborted, RunRequested
from policies import Limits
from scenarios import logbook
from scenarios.cli import app, main
from scenarios.fan_out import Order, Progress


def perdure(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory whose ledger knows one run that waits for a place."""
    store, view = DuckDBStore(tmp_path / "ledger", fsync=False), View()
    store.boot()
    body = pack({"topic": "HTTP/3"})
    asked = Request("one", "Reader", "", "", digest_of(body), body, {}, 0, wait=False)
    rows = [view.record(SupervisorStarted(1), 1_000)]
    rows += [view.record(fact, 2_000) for fact in decide(view, asked, 2_000, Limits())]
    store.append(rows, [])
    store.close()
    return tmp_path


def test_a_simulated_fan_out_prints_one_object() -> None:
    result = perdure("run", "fan-out", "--world", "sim", "--children", 5, "--kills", 1, "--json")
    assert result.exit_code == 0
    told = json.loads(result.stdout)
    assert told["verified"]
    assert told["runs"]["completed"] == 5
    assert told["world"] == "sim"


def test_a_simulated_fan_out_tells_its_story_in_lines() -> None:
    result = perdure("run", "fan-out", "--world", "sim", "--children", 5, "--kills", 1)
    assert result.exit_code == 0
    assert "kill " in result.stdout
    assert "Verified" in result.stdout


def test_list_names_the_scenarios() -> None:
    assert "fan-out" in perdure("list").stdout
    assert json.loads(perdure("list", "--json").stdout)[0]["name"] == "fan-out"


def test_a_cold_directory_tells_of_its_runs(data: Path) -> None:
    told = json.loads(perdure("ps", "--data", data, "--json").stdout)
    assert told["supervisor"] is None
    assert [row["run_id"] for row in told["live"]] == ["one"]
    assert "no supervisor serves it" in perdure("ps", "--data", data).stdout
    assert json.loads(perdure("show", "one", "--data", data, "--json").stdout)["status"] == "starting"
    assert "waits for a place" in perdure("explain", "one", "--data", data).stdout
    assert perdure("audit", "--data", data).exit_code == 0
    assert perdure("doctor", "--data", data).exit_code == 0


def test_show_without_a_run_tells_of_the_directory_and_the_limits(data: Path) -> None:
    told = json.loads(perdure("show", "--data", data, "--json").stdout)
    assert told["directory"] == str(data)
    assert told["hosts_max"] == Limits().hosts_max
    assert told["cluster"] == "none"


def test_what_is_cancelled_and_cleared_on_a_cold_directory_stays_so(data: Path) -> None:
    assert "aborted" in perdure("cancel", "one", "--data", data).stdout
    assert json.loads(perdure("show", "one", "--data", data, "--json").stdout)["status"] == "aborted"
    assert perdure("clear", "--status", "aborted", "--data", data).stdout == "1 run was cleared.\n"
    assert isinstance(perdure("show", "one", "--data", data).exception, PerdureError)


def test_named_runs_are_cleared_with_what_they_had_asked_for(data: Path) -> None:
    """Also when both are in the snapshot alone, and no boot would read them."""
    with closing(DuckDBStore(data / "ledger", fsync=False)) as store:
        view = restore(store.boot())
        for run_id, parent in (("two", view.runs["one"].child), ("three", "")):
            fact = RunRequested(run_id, "Reader", parent, "", "digest", b"\x01", {}, 0)
            store.append([view.record(each, 3_000) for each in (fact, RunAborted(run_id, "enough"))], [])
        store.append([view.record(RunAborted("one", "enough"), 3_000)], [])
        store.checkpoint(meta_of(view), view.seq, dirty_records(view), [])
    assert isinstance(perdure("clear", "one", "four", "--data", data).exception, PerdureError)
    assert isinstance(perdure("clear", "one", "--status", "error", "--data", data).exception, PerdureError)
    assert perdure("clear", "one", "--data", data).stdout == "1 run was cleared.\n"
    for run_id in ("one", "two"):
        assert isinstance(perdure("show", run_id, "--data", data).exception, UnknownRun)
    assert perdure("show", "three", "--data", data).exit_code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ps", "--data", "nowhere"], "there is no ledger"),
        (["clear", "--older-than", "soon"], "older-than"),
        (["replay", "1", "--story", "none"], "story"),
        (["run", "fan-out", "--world", "sim", "--resume"], "resume"),
        (["run", "fan-out", "--cold-restart", "--address", "127.0.0.1:1"], "cold-restart"),
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
    "words", ["run fan-out --children 0", "run fan-out --kills -1", "run fan-out --world moon", "clear --status dead"]
)
def test_options_that_make_no_sense_are_refused(words: str) -> None:
    assert perdure(*words.split()).exit_code == 2


def test_a_directory_remembers_what_was_interrupted(tmp_path: Path) -> None:
    book = logbook.begin(tmp_path, Order(children=7, kills=2, seed=9), None)
    book.progress.struck.append("child")
    book.save()
    known = logbook.read(tmp_path)
    assert known == book
    assert known is not None
    assert known.progress == Progress(struck=["child"])
    assert logbook.begin(tmp_path, Order(children=7), known).order.number == 2


def test_two_scenarios_do_not_play_on_one_directory(tmp_path: Path) -> None:
    with logbook.playing(tmp_path), pytest.raises(PerdureError, match="playing on"), logbook.playing(tmp_path):
        pass
    with logbook.playing(tmp_path):
        pass


def test_a_record_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / logbook.RECORD).write_text("{", encoding="utf-8")
    with pytest.raises(PerdureError, match=r"scenario\.json"):
        logbook.read(tmp_path)
