"""`perdure logs`: which records are shown, in which order, and that a reader follows files that are renamed meanwhile."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from perdure.actors import LogFiles, WantedLogs
from perdure.actors.life.activity import Whose
from perdure.actors.ray_world.processes import FILES, ProcessLog
from tests.scenarios.command import perdure

CHILD = Whose("r1@desk:Clerk", "r1", "r1")


def shown(data: Path, *words: str) -> list[str]:
    done = perdure("logs", *words, "--data", data, "--json")
    assert done.exit_code == 0, done.output
    return [json.loads(line)["text"] for line in done.stdout.splitlines()]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two hosts and the supervisor."""
    now = time.time()
    one, two, supervisor = (ProcessLog(tmp_path / "logs", name, 1e9) for name in ("h1", "h2", "supervisor"))
    one.write(one.record(now - 7_200, "INFO", "stdout", "first", CHILD))
    one.write(one.record(now - 50, "WARNING", "desk", "mail", Whose("r1@desk:Clerk", "", "r1!finish")))
    two.write(two.record(now - 60, "ERROR", "desk", "second\nof two lines", CHILD))
    two.write(two.record(now - 40, "NOTICE", "desk", "own level", Whose("anna@desk:Clerk")))
    supervisor.write(
        supervisor.record(now - 30, "WARNING", "perdure.supervisor", "h2 ended", None, ["h2", "r1@desk:Clerk"])
    )
    with (tmp_path / "logs" / "h1.jsonl").open("a") as file:
        file.write('{"torn by a full disk')
    return tmp_path


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        ([], ["first", "second\nof two lines", "mail", "own level", "h2 ended"]),
        (["r1"], ["first", "second\nof two lines", "mail", "h2 ended"]),
        (["r1@desk:Clerk"], ["first", "second\nof two lines", "mail", "h2 ended"]),
        (["anna"], ["own level"]),
        (["h2"], ["second\nof two lines", "own level", "h2 ended"]),
        (["--level", "error"], ["second\nof two lines", "own level"]),
        (["r1", "--since", "1h", "--level", "warning"], ["second\nof two lines", "mail", "h2 ended"]),
        (["--last", "2"], ["own level", "h2 ended"]),
        (["r"], []),
    ],
)
def test_records_are_chosen_by_run_agent_host_level_and_age_and_told_in_their_order(
    data: Path, words: list[str], texts: list[str]
) -> None:
    assert shown(data, *words) == texts


def test_what_an_agent_s_tools_do_is_its_own_unless_that_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    log = ProcessLog(tmp_path / "logs", "h1", 1e9)
    tool = Whose("r1@perdure.tools:ToolRun", "r1", "r1", ("alice@shop:Shop", "bob@shop:Boss"))
    log.write(log.record(1, "INFO", "stdout", "tool", tool))
    log.write(log.record(2, "INFO", "stdout", "alice", Whose("alice@shop:Shop")))
    for name in ("alice", "alice@shop:Shop"):
        assert shown(tmp_path, name) == ["tool", "alice"]
        assert shown(tmp_path, name, "--own") == ["alice"]
    assert shown(tmp_path, "bob") == shown(tmp_path, "r1", "--own") == ["tool"]


def test_a_line_says_when_how_grave_where_whose_and_by_which_logger(data: Path) -> None:
    lines = perdure("logs", "h2", "--data", data).stdout.splitlines()
    assert lines[0].split()[2:] == ["ERROR", "h2", "r1", "desk:", "second"]
    assert lines[1] == "of two lines"
    assert lines[2].split()[2:5] == ["NOTICE", "h2", "anna@desk:Clerk"]
    nothing = perdure("logs", "nobody", "--data", data)
    assert "There is no such record" in nothing.stderr


def test_who_follows_sees_each_record_once_across_new_hosts_full_files_and_half_written_lines(tmp_path: Path) -> None:
    log = ProcessLog(tmp_path, "h1", FILES * 300)
    files, seen = LogFiles(tmp_path), []
    for number in range(20):
        log.write(log.record(number, "INFO", "stdout", str(number), CHILD))
        seen += [record["text"] for record in files.look(WantedLogs("r1"))]
    assert seen == [str(number) for number in range(20)]
    other = tmp_path / "h2.jsonl"
    whole = log.record(21, "INFO", "stdout", "whole", CHILD)
    other.write_text(whole[:30])
    assert list(files.look(WantedLogs())) == []
    other.write_text(whole)
    assert [record["text"] for record in files.look(WantedLogs())] == ["whole"]
    other.write_text(log.record(22, "INFO", "stdout", "new", None))
    assert [record["text"] for record in files.look(WantedLogs())] == ["new"], "a shorter file is another one"


def test_what_an_agent_prints_moves_no_cursor_and_colours_nothing(tmp_path: Path) -> None:
    log = ProcessLog(tmp_path / "logs", "h1", 1e9)
    log.write(log.record(time.time(), "INFO", "stdout", "red \x1b[31m flag\n\tof \x07 two lines", CHILD))
    told = perdure("logs", "--data", tmp_path).stdout
    assert told.endswith("stdout: red �[31m flag\n\tof � two lines\n")
    assert shown(tmp_path) == ["red \x1b[31m flag\n\tof \x07 two lines"], "a program has it as it is"
