"""What agents print and log is kept by run, within bounds, up to what the operating system had when the process died."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure.actors import Agent, RunContext, exposed
from perdure.actors.life.activity import Whose
from perdure.actors.ray_world.processes import (
    FILES,
    TEXT_MAX,
    UNFINISHED_MAX,
    LoggedStream,
    ProcessLog,
    RecordFormatter,
)
from perdure.ledger import strike
from tests.kit import Stage, play
from tests.tidy import IMPORT_PATH


def kept(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


class Talker(Agent):
    """Prints a line in pieces, between which others print."""

    stands_alone = True

    async def run(self, input: int, run: RunContext) -> int:
        print("one of", end=" ")  # noqa: T201 - what is tested
        await asyncio.sleep(1)
        print(input)  # noqa: T201
        await asyncio.create_task(self.beside(input))
        logging.getLogger("talk").error("bad %d", input)
        self.start_fiber("job", self.job, input, fiber_id=f"job {input}")
        return input

    async def beside(self, input: int) -> None:
        """In a task that the author started."""
        print("beside", input)  # noqa: T201

    async def job(self, fiber: Any, input: int) -> None:
        """After the run."""
        print("fiber", input)  # noqa: T201

    @exposed
    async def called(self) -> None:
        """Outside of a run."""
        print("called")  # noqa: T201


def test_what_many_agents_of_one_host_print_and_log_is_told_apart_by_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = ProcessLog(tmp_path, "host", 1e9)
    heard = LoggedStream(io.StringIO(), log, "stdout", "INFO")
    handler = logging.StreamHandler(log)  # type: ignore[arg-type]
    handler.setFormatter(RecordFormatter(log))
    monkeypatch.setattr(logging.getLogger("talk"), "handlers", [handler])

    async def story(stage: Stage) -> None:
        monkeypatch.setattr(sys, "stdout", heard)
        await asyncio.gather(*(stage.client.run(Talker, each, run_id=f"r{each}") for each in range(40)))
        await stage.call(Talker, "called", name="t")
        await asyncio.sleep(120)
        monkeypatch.undo()

    play(story)
    records = kept(tmp_path / "host.jsonl")
    for each in range(40):
        mine = [(it["run"], it["text"]) for it in records if it.get("agent", "").startswith(f"r{each}@")]
        run = f"r{each}"
        assert mine == [(run, f"one of {each}"), (run, f"beside {each}"), (run, f"bad {each}"), ("", f"fiber {each}")]
    (call,) = [it for it in records if it["text"] == "called"]
    assert (call["agent"].partition("@")[0], call["run"], call["work"][:5]) == ("t", "", "call/")
    (bad,) = [it for it in records if it["text"] == "bad 7"]
    assert (bad["level"], bad["logger"], bad["host"]) == ("ERROR", "talk", "host")


class Leaf(Agent):
    """Is asked for last."""

    async def run(self, input: str) -> None:
        print("leaf", input)  # noqa: T201


class Middle(Agent):
    """Asks for another."""

    async def run(self, input: str) -> None:
        print("middle", input)  # noqa: T201
        await self.run_agent_tool(Leaf, input)


class Asker(Agent):
    """Asks as a chat's turn does, for a tool call, or by itself."""

    @exposed
    async def ask(self) -> None:
        """Both."""
        await self.run_agent_tool(Middle, "for a call", parent_tool_call_id="call 1")
        await self.run_agent_tool(Middle, "by itself")


def test_what_a_tool_call_has_asked_for_is_logged_on_behalf_of_the_agent_however_deep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = LoggedStream(io.StringIO(), ProcessLog(tmp_path, "host", 1e9), "stdout", "INFO")

    async def story(stage: Stage) -> None:
        monkeypatch.setattr(sys, "stdout", heard)
        await stage.call(Asker, "ask", name="a")
        monkeypatch.undo()

    play(story)
    told = {it["text"]: it.get("behalf") for it in kept(tmp_path / "host.jsonl")}
    caller = [f"a@{__name__}:Asker"]
    assert told == {
        "middle for a call": caller,
        "leaf for a call": caller,
        "middle by itself": None,
        "leaf by itself": None,
    }


IN_THREADS = """
import asyncio, os, signal, sys, threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from perdure.actors.life.activity import ACTIVITY, Activity
from perdure.actors.ray_world.processes import ProcessLog, listen
from perdure.actors.tasks import AGENT, Tasks
from perdure.actors.threads import Crew, inherit_contexts

async def agent(number, crew, pool):
    ACTIVITY.set(Activity(f"r{number}", run_id=f"r{number}"))
    say = partial(print, "agent", number)
    await crew.run(say)
    await asyncio.to_thread(say)
    await asyncio.get_running_loop().run_in_executor(None, say)
    await asyncio.wrap_future(pool.submit(say))
    thread = threading.Thread(target=say)
    thread.start()
    await asyncio.to_thread(thread.join)
    asyncio.get_running_loop().call_soon(say)
    await asyncio.sleep(0)

async def main():
    crew, pool = Crew(2, "perdure"), ThreadPoolExecutor(1)
    jobs = [Tasks(f"{AGENT}a{number}@t:T").start_awaited(agent(number, crew, pool)) for number in range(8)]
    await asyncio.gather(*jobs)
    await crew.run(partial(print, "nobody's"))
    print("not yet whole", end="", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

listen(ProcessLog(Path(sys.argv[1]), "h", 1e9))
inherit_contexts()
asyncio.run(main())
"""


def test_threads_know_whose_they_are_and_a_kill_takes_nothing_that_was_printed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", IN_THREADS, str(tmp_path)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": IMPORT_PATH}, check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    records = kept(tmp_path / "h.jsonl")
    for number in range(8):
        mine = [(it["agent"], it["run"]) for it in records if it["text"] == f"agent {number}"]
        assert mine == [(f"a{number}@t:T", f"r{number}")] * 6
    assert [(it["text"], it.get("agent")) for it in records[-2:]] == [("nobody's", None), ("not yet whole", None)]


def test_the_files_are_bounded_and_the_oldest_go_first(tmp_path: Path) -> None:
    old = tmp_path / "gone.jsonl"
    old.write_text("x" * 10_000)
    os.utime(old, (1, 1))
    log = ProcessLog(tmp_path, "h", FILES * 1_000)
    for number in range(20):
        log.write(log.record(number, "INFO", "stdout", f"{number:>50}"))
    files = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert files.keys() == {"gone.jsonl", "h.jsonl", "h.000001.jsonl", "h.000002.jsonl"}, (
        "there is room for all of them"
    )
    assert max(size for name, size in files.items() if name != "gone.jsonl") < 1_200
    texts = [it["text"].strip() for name in sorted(files.keys() - {"gone.jsonl"}) for it in kept(tmp_path / name)]
    assert texts == [*map(str, range(20))]
    for number in range(1_000):
        log.write(log.record(number, "INFO", "stdout", f"{number:>50}"))
    assert not old.exists()
    held = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert 0.9 < held / (FILES * 1_000) < 1.1, "one process may have all of the room"


def test_a_file_that_was_deleted_is_begun_anew_and_0_keeps_none(tmp_path: Path) -> None:
    log = ProcessLog(tmp_path / "logs", "h", 1e9)
    for text in ("before", "after"):
        log.write(log.record(1, "INFO", "stdout", text))
        assert [it["text"] for it in kept(tmp_path / "logs" / "h.jsonl")] == [text]
        (tmp_path / "logs" / "h.jsonl").unlink()
    none = ProcessLog(tmp_path / "none", "h", 0)
    none.write(none.record(1, "INFO", "stdout", "text"))
    assert not (tmp_path / "none").exists()


def test_a_destructor_that_prints_while_the_file_is_begun_waits_for_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = ProcessLog(tmp_path / "logs", "h1", 1_000_000)
    opened = os.open

    def collect(*args: Any, **options: Any) -> int:
        monkeypatch.undo()
        log.write('{"text":"goodbye"}\n')
        return opened(*args, **options)

    monkeypatch.setattr(os, "open", collect)
    log.write('{"text":"one"}\n')
    log.write('{"text":"two"}\n')
    assert [each["text"] for each in kept(tmp_path / "logs" / "h1.jsonl")] == ["goodbye", "one", "two"]


def test_a_disk_that_refuses_records_stops_nobody_and_is_told(tmp_path: Path) -> None:
    log = ProcessLog(tmp_path / "logs", "h", 1e9)
    (tmp_path / "logs").write_text("a file in the place of the directory")
    for text in ("one", "two"):
        log.write(log.record(1, "INFO", "stdout", text))
    (tmp_path / "logs").unlink()
    log.write(log.record(1, "INFO", "stdout", "three"))
    told, three = kept(tmp_path / "logs" / "h.jsonl")
    assert (told["level"], told["text"], three["text"]) == (
        "WARNING",
        "the disk refused 2 records before this one",
        "three",
    )


def test_secrets_are_struck_out_and_long_texts_lose_their_middle(tmp_path: Path) -> None:
    value = 'sk-"quoted"-value-of-a-log'
    log = ProcessLog(tmp_path, "h", 1e9)
    strike(value)
    log.write(log.record(1, "INFO", "talk", f"key {value}", Whose("a@t:T", "r")))
    log.write(log.record(1, "INFO", "talk", "x" * (2 * TEXT_MAX)))
    body = (tmp_path / "h.jsonl").read_bytes()
    assert value.encode() not in body
    assert json.dumps(value)[1:-1].encode() not in body
    struck, long = kept(tmp_path / "h.jsonl")
    assert struck["text"].startswith("key ****")
    assert len(long["text"]) < TEXT_MAX + 10


def test_a_line_without_an_end_is_kept_when_there_are_too_many_or_the_process_ends(tmp_path: Path) -> None:
    heard = LoggedStream(io.StringIO(), ProcessLog(tmp_path, "h", 1e9), "stdout", "INFO")
    token = Whose("first@t:T")
    heard._unfinished[token] = "of the first"  # noqa: SLF001 - as if another agent had printed it
    heard._unfinished |= {Whose(f"a{each}@t:T"): "…" for each in range(UNFINISHED_MAX - 1)}  # noqa: SLF001
    heard.write("mine")
    assert [(it["agent"], it["text"]) for it in kept(tmp_path / "h.jsonl")] == [("first@t:T", "of the first")]
    heard.finish()
    assert len(kept(tmp_path / "h.jsonl")) == UNFINISHED_MAX + 1
