"""`perdure ps --watch`: runs keep their lines, whatever happens is said once, and a silent supervisor changes nothing that is shown."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from perdure.ledger import BadRequest
from perdure.scenarios.commands.overview import LINES_AROUND, ROWS_MIN, LiveOverview
from perdure.scenarios.live_view import PipeScreen, TerminalScreen
from tests.scenarios.command import perdure


def run(run_id: str, *, attempt: int = 1, host: str = "h1", at_ms: int = 0, **changed: Any) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "agent_type": "desk:Child",
        "parent": "p@desk:Parent",
        "attempt": attempt,
        "host": host,
        "status": "running",
        "started_at_ms": at_ms,
        "progress": {"fraction": 0.5, "phase": "reading", "message": "page 7"},
        "milestones": ["sources-gathered"],
        **changed,
    }


def overview(*live: dict[str, Any], hosts: tuple[str, ...] = ("h1",), **changed: Any) -> dict[str, Any]:
    runs = {"starting": 0, "running": len(live), "completed": 0, "error": 0, "aborted": 0, "interrupted": 0}
    mail = dict.fromkeys(("enqueued", "delivered", "superseded", "suppressed", "parked", "pending"), 0)
    return {
        "epoch": 3,
        "supervisor": {"pid": 42, "node": "box"},
        "hosts": [{"host": host, "pid": 7, "node": "box", "up": True, "tenants": 2, "rss_mb": 90} for host in hosts],
        "live": list(live),
        "agents": [],
        "waiting": 0,
        "runs": runs | changed.pop("runs", {}),
        "audit": mail | changed.pop("audit", {}),
        **changed,
    }


def shown(live: LiveOverview, height: int = 24, width: int = 120) -> list[str]:
    """The lines of a picture, as a terminal of this size gets them."""
    console = Console(file=io.StringIO(), record=True, width=width, height=height, force_terminal=True)
    console.print(live.picture(height))
    return [line.rstrip() for line in console.export_text().splitlines()]


def lines_of(live: LiveOverview, height: int = 24) -> list[str]:
    """The runs, line by line; an empty text for a free line."""
    lines = shown(live, height)
    first = next(place for place, line in enumerate(lines) if line.startswith("run ")) + 1
    last = next(place for place, line in enumerate(lines) if line.startswith("hosts "))
    return [line.split(" ")[0] for line in lines[first : last - 1]]


def test_a_run_is_shown_with_its_bar_phase_message_milestones_attempt_and_host() -> None:
    live = LiveOverview("./data")
    assert shown(live) == ["./data: looking for what serves it"]
    assert live.see(overview(run("import-7", attempt=2)), 0.0) == []
    lines = shown(live)
    assert lines[0].split() == "served by process 42 on box, life 3: ./data".split()
    assert lines[1].split()[:3] == ["runs", "1", "running,"]
    row = next(line for line in lines if line.startswith("import-7"))
    for word in (" 2 ", "━━━━━━━━", "reading  page 7", "sources-gathered", "h1", "Child"):
        assert word in row
    assert lines[-1] == "hosts  h1: 2 agents, 90 MB"


def test_runs_keep_their_lines_and_a_free_one_goes_to_the_next_run() -> None:
    live = LiveOverview("data")
    live.see(overview(*[run(name, at_ms=number) for number, name in enumerate("abc")]), 0.0)
    assert lines_of(live) == ["a", "b", "c"]
    live.see(overview(run("c"), run("a")), 1.0)
    assert lines_of(live) == ["a", "", "c"]
    live.see(overview(run("e", at_ms=9), run("d", at_ms=8), run("c"), run("a")), 2.0)
    assert lines_of(live) == ["a", "d", "c", "e"]
    live.see(overview(run("a")), 3.0)
    assert lines_of(live) == ["a"]


@pytest.mark.parametrize("height", [5, 14, 40])
def test_the_picture_is_no_higher_than_the_terminal_and_says_how_many_runs_it_leaves_out(height: int) -> None:
    live = LiveOverview("data")
    live.see(overview(*[run(f"r{number:02}", at_ms=number) for number in range(60)]), 0.0)
    rows = max(ROWS_MIN, height - LINES_AROUND)
    assert lines_of(live, height=height) == [f"r{number:02}" for number in range(rows)]
    lines = shown(live, height)
    assert f"… and {60 - rows} more" in "\n".join(lines)
    assert len(lines) <= max(height, ROWS_MIN + LINES_AROUND)
    assert all(len(line) <= 40 for line in shown(live, height, width=40))


def test_a_long_name_of_a_directory_hides_neither_the_labels_nor_the_life() -> None:
    live = LiveOverview("/" + "directory/" * 30)
    live.see(overview(run("a")), 0.0)
    lines = shown(live)
    assert lines[0].split()[:8] == "served by process 42 on box, life 3:".split()
    assert [line.split()[0] for line in lines[:3]] == ["served", "runs", "mail"]
    assert "h1: 2 agents, 90 MB" in lines[-1]


def test_those_at_work_are_shown_before_those_that_wait() -> None:
    live = LiveOverview("data")
    waits = run("waits", status="starting", host="", at_ms=1, progress=None, milestones=[])
    live.see(overview(waits, run("works", at_ms=2)), 0.0)
    assert lines_of(live) == ["works", "waits"]


def test_a_silent_supervisor_is_said_once_and_the_picture_stays() -> None:
    live = LiveOverview("data")
    live.see(overview(run("a")), 10.0)
    assert live.miss("the supervisor of data does not answer", 12.0) == ["the supervisor of data does not answer"]
    assert live.miss("the supervisor of data does not answer", 14.0) == []
    assert not live.is_answered
    lines = shown(live)
    assert "silent for 4 s; what is shown was so then: the supervisor of data does not answer" in lines[0]
    assert lines_of(live) == ["a"]
    assert live.line() == lines[0].removeprefix("served").strip()
    said = live.see(overview(run("a"), epoch=4), 14.5)
    assert said == ["the supervisor answers after 4.5 s, in life 4, with 1 live run"]
    assert live.is_answered
    assert "life 4" in shown(live)[0]


def test_a_supervisor_that_was_back_before_anybody_missed_it_is_said_too() -> None:
    live = LiveOverview("data")
    live.see(overview(), 0.0)
    assert live.see(overview(epoch=4), 0.3) == ["the supervisor was started again: this is life 4, with 0 live runs"]
    assert live.see(overview(epoch=4), 0.6) == []


def test_a_directory_that_nobody_serves_yet_is_waited_for() -> None:
    live = LiveOverview("data")
    assert live.miss("nothing serves data", 1.0) == ["nothing serves data"]
    assert live.miss("nothing serves data", 3.0) == []
    assert shown(live) == ["silent for 2 s; this waits until it is served: nothing serves data"]
    assert live.see(overview(), 4.0) == ["the supervisor answers after 3.0 s, in life 3, with 0 live runs"]


def test_a_host_that_is_gone_and_the_recovery_of_what_was_on_it_are_said() -> None:
    live = LiveOverview("data")
    live.see(overview(run("a"), run("b", host="h2"), hosts=("h1", "h2")), 0.0)
    gone = overview(run("a", host="", status="starting"), run("b", host="h2"), hosts=("h2",))
    assert live.see(gone, 0.25) == ["host h1 (process 7) is gone: 1 run was on it"]
    assert live.see(gone, 0.5) == []
    again = overview(run("a", attempt=2, host="h3"), run("b", host="h2"), hosts=("h2", "h3"))
    assert live.see(again, 0.75) == ["what was on host h1 is at work again, or has ended, within 750 ms"]
    assert live.see(again, 1.0) == []


def test_a_host_that_leaves_with_nobody_on_it_is_not_worth_a_word() -> None:
    live = LiveOverview("data")
    before = overview()
    before["hosts"][0]["tenants"] = 0
    live.see(before, 0.0)
    assert live.see(overview(hosts=()), 1.0) == []
    assert shown(live)[-1] == "hosts  none yet"


def test_failures_and_parked_completions_are_said_with_the_command_that_tells_more() -> None:
    live = LiveOverview("data")
    live.see(overview(runs={"error": 1}), 0.0)
    assert live.see(overview(runs={"error": 3}, audit={"parked": 1}), 1.0) == [
        "2 runs have failed (`perdure ps --status error`)",
        "1 completion is parked (`perdure audit`)",
    ]


def test_the_rate_is_that_of_the_last_ten_seconds() -> None:
    live = LiveOverview("data")
    for second in range(31):
        live.see(overview(runs={"completed": 2 * min(second, 20)}), float(second))
        if second == 20:
            assert live.line().endswith("2 ended/s")
    assert live.line().endswith("0 ended/s")
    assert "0 starting  0 running  40 ended  0 failed  0 in the mail  1 hosts" in live.line()


def test_a_terminal_has_its_cursor_back_when_the_watch_ends() -> None:
    console = Console(file=io.StringIO(), width=80, height=20, force_terminal=True)
    live = LiveOverview("data")
    live.see(overview(run("a")), 0.0)

    def watched() -> None:
        with TerminalScreen(console=console) as screen:
            screen.show(live)
            screen.say("host h1 is gone")
            live.see(overview(run("z")), 1.0)
            screen.show(live)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watched()
    written = console.file.getvalue()  # type: ignore[attr-defined]
    assert written.count("\x1b[?25l") == written.count("\x1b[?25h") == 1
    assert written.index("host h1 is gone") < written.rindex("\nz ") < written.rindex("\x1b[?25h")


def test_a_pipe_gets_a_line_when_something_has_changed_and_each_event(capsys: pytest.CaptureFixture[str]) -> None:
    live, screen = LiveOverview("data"), PipeScreen(lambda: "now ")
    for _ in range(3):
        screen.show(live)
    screen.say("host h1 is gone")
    assert capsys.readouterr().out == "now data: looking for what serves it\nnow host h1 is gone\n"


@pytest.mark.parametrize("words", [["--all"], ["--status", "error"], ["--parent", "p@m:P"], ["--page", "2"], ["p@m:P"]])
def test_what_is_shown_once_is_not_watched(words: list[str], tmp_path: Path) -> None:
    done = perdure("ps", "--watch", *words, "--data", tmp_path)
    assert isinstance(done.exception, BadRequest)
    assert done.exception.field == "watch"


def test_a_directory_that_is_not_there_is_not_waited_for(tmp_path: Path) -> None:
    done = perdure("ps", "--watch", "--data", tmp_path / "none")
    assert str(done.exception) == f"data: there is no directory {tmp_path / 'none'}"
