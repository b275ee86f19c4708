"""Runs that wait for others, and the first good answers of many, on Ray: in sync code, in async code and for a client, under a kill."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.actors import Agent, RunContext, RunFailed, Runtime, all_of, any_of, exposed
from perdure.ledger import BadRequest, UnknownRun
from perdure.policies import Limits

pytestmark = [pytest.mark.shared_ray, pytest.mark.thorough]

PATIENCE_S = 60.0


def is_there(file: str) -> bool:
    return Path(file).exists()


class Source(Agent):
    """Reaches a milestone, works until its file is there, and returns a padded answer."""

    async def run(self, input: dict[str, Any], run: RunContext) -> dict[str, Any]:
        await run.report_progress(milestone="sources", data=input["n"])
        while not is_there(input["file"]):
            await asyncio.sleep(0.05)
        if input.get("fails"):
            raise ValueError("no sources")
        return {"n": input["n"], "padding": "x" * 5_000}


class Writer(Agent):
    """Sync code that says what it was given."""

    def run(self, input: str, run: RunContext) -> list[Any]:
        return [each.output["n"] if hasattr(each, "output") else each for each in run.joined]


class Editor(Agent):
    """Sync and async code that has articles written."""

    @exposed
    def write(self, file: str) -> list[Any]:
        handles = [
            self.run_agent_tool(Source, {"n": n, "file": file}, run_id=f"sync-{n}", detached=True) for n in (1, 2)
        ]
        after = all_of(handles[0].milestone("sources"), handles[1].end)
        result: Any = self.run_agent_tool(Writer, "x", run_id="sync-w", after=after, losers="cancel")
        return list(result.output)

    @exposed
    def race(self, file: str) -> list[int]:
        """One can never end, and one fails."""
        files = [file, "/nowhere", file, file]
        requests = [(Source, {"n": n, "file": each, "fails": n == 0}) for n, each in enumerate(files)]
        results: Any = self.first_ok(2, requests)
        return sorted(result.output["n"] for result in results)

    @exposed
    async def fail(self, file: str) -> str:
        requests = [(Source, {"n": n, "file": each, "fails": True}) for n, each in enumerate([file, "/nowhere"])]
        try:
            await self.first_ok(2, requests)
        except RunFailed as failed:
            return failed.error
        return ""


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    with Runtime(tmp_path_factory.mktemp("joins"), limits=Limits(idle_ms=1_000)) as opened:
        yield opened


def until(look: Callable[[], Any]) -> Any:
    end_s = time.monotonic() + PATIENCE_S
    while not (found := look()):
        assert time.monotonic() < end_s
        time.sleep(0.05)
    return found


def test_what_waits_outlives_the_supervisor_and_takes_no_host_and_is_given_large_results(
    runtime: Runtime, tmp_path: Path
) -> None:
    file = tmp_path / "go"
    a = runtime.start(Source, {"n": 1, "file": str(file)}, run_id="a")
    b = runtime.start(Source, {"n": 2, "file": str(file)}, run_id="b")
    waiting = runtime.start(Writer, "x", run_id="w", after=all_of(a, b.milestone("sources"), b.end))
    lost = runtime.start(Writer, "x", run_id="lost", after=any_of(a.milestone("never"), b.milestone("never")))
    (line,) = [each for each in runtime.ps()["live"] if each["run_id"] == "w"]
    assert (line["host"], line["waits_for"]) == ("", "all of: the end of a, milestone 'sources' of b, the end of b")
    assert any("It waits for 1 of: milestone 'never' of a" in words for words in runtime.explain("lost"))
    os.kill(until(lambda: runtime.cluster.processes().get("supervisor")).pid, signal.SIGKILL)
    assert until(lambda: runtime.ps()["supervisor"]["longest_turn_ms"])
    file.touch()
    assert waiting.result().output == [1, 2, 2]
    assert "run a has completed without milestone 'never'" in lost.result().error


def test_sync_code_waits_for_what_it_asked_for_and_races(runtime: Runtime, tmp_path: Path) -> None:
    file = tmp_path / "go"
    file.touch()
    editor = runtime.agent(Editor, "home")
    assert editor.write(str(file)) == [1, 2]
    assert editor.race(str(file)) == [2, 3]
    assert "can never complete" in editor.fail(str(file))
    aborted = [run for run in runtime.list(status=["aborted"]) if run["agent_type"].endswith("Source")]
    assert len(aborted) == 2
    assert not [run for run in runtime.ps()["live"] if run["agent_type"].endswith("Source")]


def test_what_makes_no_sense_is_refused_to_a_client(runtime: Runtime) -> None:
    with pytest.raises(UnknownRun, match="no run 'nobody' of a client is known"):
        runtime.start(Writer, "x", after="nobody")
    with pytest.raises(BadRequest, match="would wait for itself"):
        runtime.run(Writer, "x", run_id="me", after="me")
    with pytest.raises(BadRequest, match="none of leave, cancel"):
        runtime.run(Writer, "x", after="a", losers="drop")
