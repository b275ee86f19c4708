"""`perdure kill` and `perdure chaos` at the work of another process: it goes on, and everything is accounted for."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest
from typer.testing import CliRunner

from perdure.actors import Agent, Detached, RunContext, RunInfo, RunResult, Runtime, exposed
from perdure.actors.ray_world.named_actors import Handle, StrikeKind, find, strike_actor
from perdure.actors.ray_world.os_processes import ProcessInfo, descendants, is_alive, kill, process_of, wait_until_gone
from perdure.ledger import BadRequest, UnknownRun
from perdure.scenarios.cli import app
from tests.tidy import IMPORT_PATH, ROOT

T = TypeVar("T")
PATIENCE_S = 60.0
PAGES = 4

SCRIPT = """
import sys, threading
from perdure.actors import Runtime
from perdure.policies import Limits
from tests.cluster.test_kills_ray import Book

with Runtime(sys.argv[1], limits=Limits(hosts_max=2)) as runtime:
    runtime.agent(Book, "book").open(sys.argv[1] + "/go")
    print("open", flush=True)
    threading.Event().wait()
"""


class Page(Agent):
    """Waits for a file."""

    attempts_max: ClassVar[int | None] = 100

    async def run(self, input: str, run: RunContext) -> int:
        await run.report_progress(0.5)
        is_there = Path(input).exists
        while not is_there():
            await asyncio.sleep(0.05)
        return run.attempt


class Book(Agent):
    """Has pages read, and writes each down that was."""

    @exposed(repeatable=True)
    def open(self, go: str) -> None:
        """In one transaction, and only once."""
        with self.transaction():
            if "pages" not in self.state:
                self.state["pages"] = 0
                self.run_agent_tools([(Page, go)] * PAGES, detached=Detached(on_finish="on_page"))

    def on_page(self, _run: RunInfo, _result: RunResult) -> None:
        self.state["pages"] += 1

    @exposed(repeatable=True)
    def pages(self) -> int:
        return int(self.state["pages"])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory that a script of another process serves, with a book whose pages wait for `go`."""
    data = tmp_path_factory.mktemp("kills") / "data"
    environment = {**os.environ, "PYTHONPATH": IMPORT_PATH}
    running = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(data)], env=environment, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    process = process_of(running.pid)
    assert process is not None
    try:
        assert running.stdout is not None
        assert running.stdout.readline() == "open\n"
        yield data
    finally:
        running.send_signal(signal.SIGINT)
        family = [*descendants(process), process]
        wait_until_gone(family, PATIENCE_S)
        kill(family)
        running.communicate()


@pytest.fixture(scope="module", autouse=True)
def runtime(data: Path) -> Iterator[Runtime]:
    """One who looks. Commands of this process share its connection, which takes a second to make."""
    with Runtime(data, may_start=False) as runtime:
        yield runtime


def perdure(data: Path, *words: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, [*words, "--json", "--data", str(data)])
    assert done.exit_code == 0, (done.output, done.exception)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def soon(look: Callable[[], T], said: Callable[[], object] = str) -> T:
    until_s = time.monotonic() + PATIENCE_S
    while not (found := look()):
        assert time.monotonic() < until_s, said()
        time.sleep(0.05)
    return found


def at_work(data: Path) -> list[dict[str, Any]]:
    """The live runs, when all are at work, on hosts that the supervisor has heard of."""

    def look() -> list[dict[str, Any]]:
        told = perdure(data, "ps")
        live: list[dict[str, Any]] = told["live"]
        up = {each["host"] for each in told["hosts"] if each["up"]}
        return (
            live if len(live) == PAGES and all(row["status"] == "running" and row["host"] in up for row in live) else []
        )

    return soon(look)


def test_whatever_is_killed_the_work_of_another_process_goes_on(data: Path) -> None:
    wait = ["--wait", f"{PATIENCE_S:.0f}s"]
    epoch = perdure(data, "ps")["epoch"]
    told = perdure(data, "kill", "supervisor", *wait)
    assert [victim["name"] for victim in told["killed"]] == ["supervisor"]
    assert (told["runs"], told["left"], told["recovered_ms"] > 0) == ([], [], True)
    assert perdure(data, "ps")["epoch"] == epoch + 1

    before = {row["run_id"]: row["attempt"] for row in at_work(data)}
    run_id = next(iter(before))
    told = perdure(data, "kill", "run", run_id, *wait)
    assert run_id in told["runs"]
    assert (told["left"], told["killed"][0]["way"]) == ([], "SIGKILL")
    assert f"It is in attempt {before[run_id] + 1}." in told["explain"][run_id]
    assert any("The attempt before was lost: its host died" in each for each in told["explain"][run_id])

    host = at_work(data)[-1]["host"]
    process = next(each["pid"] for each in perdure(data, "ps")["hosts"] if each["host"] == host)
    told = perdure(data, "kill", "host", host, *wait)
    assert [(victim["name"], victim["pid"]) for victim in told["killed"]] == [(host, process)]
    assert told["runs"]
    assert told["left"] == []

    up = [each["host"] for each in perdure(data, "ps")["hosts"] if each["up"]]
    told = perdure(data, "kill", "--fraction", "0.4", "--seed", "7", *wait)
    assert 1 <= len(told["killed"]) <= len(up)
    at_work(data)
    told = perdure(data, "kill", "--all-hosts", *wait)
    assert told["left"] == []
    assert len(told["runs"]) == PAGES
    assert perdure(data, "audit")["balanced"]


def test_the_host_of_an_agent_is_killed_by_the_agents_name_and_one_that_sleeps_has_none(
    data: Path, runtime: Runtime
) -> None:
    def wake() -> list[str]:
        runtime.agent(Book, "book").pages()
        return [agent for agent, host, _ in runtime.ps()["agents"] if host and agent.startswith("book@")]

    name = at_work(data)[0]["run_id"]
    told = perdure(data, "kill", "agent", name, "--wait", "60s")
    assert name in told["runs"]
    assert name in [agent.partition("@")[0] for agent in told["agents"]]

    (address,) = soon(wake)
    assert runtime.agent(Book, "book").pages() == 0
    soon(lambda: not any(agent == address for agent, _, _ in runtime.ps()["agents"]))
    assert refused(data, "agent", address) == f"agent: {address} is asleep, so no process carries it"
    assert refused(data, "agent", "nobody").startswith("agent: no agent 'nobody' is awake; those that are: ")
    assert refused(data, "host", "h").startswith("host: no host 'h' is up; those that are: ")
    assert refused(data, "run", "none") == "run_id: no run 'none' is known"


def refused(data: Path, *words: str) -> str:
    done = CliRunner().invoke(app, ["kill", *words, "--data", str(data)])
    assert isinstance(done.exception, (BadRequest, UnknownRun)), done.output
    return str(done.exception)


def test_a_process_elsewhere_kills_itself_if_it_is_the_one_that_is_meant(runtime: Runtime) -> None:
    cluster = runtime.cluster

    def supervisor() -> tuple[Handle, ProcessInfo] | None:
        handle, info = find(cluster.deployment.supervisor), cluster.processes().get("supervisor")
        return (handle, info) if handle is not None and info is not None else None

    handle, here = soon(supervisor)
    elsewhere = here._replace(machine="elsewhere")
    later = elsewhere._replace(process=here.process._replace(started_ms=here.process.started_ms + 1))
    assert strike_actor("supervisor", handle, later) is None
    assert is_alive(here.process)
    struck = strike_actor("supervisor", handle, elsewhere)
    assert struck is not None
    assert struck.way is StrikeKind.ITSELF
    assert wait_until_gone([here.process], PATIENCE_S) == []

    restarted, next_one = soon(supervisor)
    assert restarted == handle, "Ray restarts its actor, so it comes back where no client is there to begin another"
    assert cluster.strike({"supervisor": here.pid}) == [], "another process is the supervisor by now"
    struck = strike_actor("supervisor", handle, None)
    assert struck is not None
    assert struck.way is StrikeKind.RAY
    assert wait_until_gone([next_one.process], PATIENCE_S) == []
    restarted, last = soon(supervisor)
    assert (restarted == handle, last.pid != next_one.pid) == (True, True)


@pytest.mark.long  # once of five times the run was not shown within a minute, beside another test process; why is not known yet
def test_a_watch_on_a_terminal_outlives_the_supervisor_and_leaves_the_terminal_as_it_was(data: Path) -> None:
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 140, 0, 0))
    before, written = termios.tcgetattr(theirs), bytearray()

    def has_written(text: str, since: int = 0) -> bool:
        while select.select([ours], [], [], 0.05)[0]:
            written.extend(os.read(ours, 65_536))
        return text.encode() in written[since:]

    watching = subprocess.Popen(
        [sys.executable, "-m", "perdure.cli", "ps", "--watch", "--data", str(data)],
        env={**os.environ, "PYTHONPATH": IMPORT_PATH, "TERM": "xterm-256color"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    try:
        run_id = at_work(data)[0]["run_id"]
        soon(lambda: has_written(run_id[:14]), lambda: bytes(written[-2_000:]))
        struck = len(written)
        perdure(data, "kill", "supervisor", "--wait", "60s")
        soon(lambda: has_written("the supervisor ", struck))
        epoch = perdure(data, "ps")["epoch"]
        soon(lambda: has_written(f"life {epoch}", struck))
        watching.send_signal(signal.SIGINT)
        soon(lambda: has_written("", 0) and watching.poll() is not None)
        assert watching.returncode == 130, bytes(written[-500:])
        has_written("")
        assert written.rstrip().endswith(b"\x1b[?25h"), "the cursor is shown again, and no traceback follows"
        assert termios.tcgetattr(theirs) == before
    finally:
        watching.kill()
        watching.wait()
        os.close(ours)
        os.close(theirs)


@pytest.mark.thorough
def test_a_watch_in_a_pipe_tells_the_same_in_lines_and_as_objects(data: Path) -> None:
    for options, is_right in (([], lambda line: f"{PAGES} running" in line), (["--json"], _has_all)):
        watching = subprocess.Popen(
            [sys.executable, "-m", "perdure.cli", "ps", "--watch", *options, "--data", str(data)],
            env={**os.environ, "PYTHONPATH": IMPORT_PATH},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert watching.stdout is not None
            assert any(is_right(line) for line in watching.stdout)
            watching.send_signal(signal.SIGTERM)
            assert watching.wait(PATIENCE_S) == 143
        finally:
            watching.kill()
            watching.communicate()


def _has_all(line: str) -> bool:
    told = json.loads(line)
    return bool(told["answered"]) and len(told["overview"]["live"]) == PAGES


@pytest.mark.thorough
def test_a_drill_ends_with_the_account_of_the_work_of_another_process(data: Path, runtime: Runtime) -> None:
    """The last of this module: now the pages are read."""
    words = ["chaos", "--every", "1.5s", "--for", "6s", "--seed", "7", "--settle", f"{PATIENCE_S:.0f}s"]
    drill = subprocess.Popen(
        [sys.executable, "-m", "perdure.cli", *words, "--data", str(data)],
        env={**os.environ, "PYTHONPATH": IMPORT_PATH},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert drill.stdout is not None
        said: list[str] = []
        while "no more strikes" not in "".join(said[-1:]):
            said.append(drill.stdout.readline())
            assert said[-1], (said, drill.stderr)
        (data / "go").touch()
        rest, wrong = drill.communicate(timeout=2 * PATIENCE_S)
    finally:
        drill.kill()
    assert (drill.returncode, wrong) == (0, "")
    assert sum(each.split()[1] == "strike" for each in said) == 4
    assert rest.splitlines()[-1].startswith("Verified: "), rest
    assert f"Ended meanwhile: {PAGES} completed. Live now: 0." in rest
    assert f"{PAGES} enqueued = {PAGES} delivered" in rest
    assert runtime.agent(Book, "book").pages() == PAGES, "each completion took effect once"
