"""A bucket as the place of record on real Ray: whatever is killed and deleted on the machine, the next one goes on from the bucket."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from secrets import token_hex

import pytest
from typer.testing import CliRunner

from perdure import Agent, BadRequest, NoLongerServed, RunContext, Runtime, exposed
from perdure.actors.ray_world.os_processes import kill
from perdure.ledger.bucket_cache import cache_of
from perdure.ledger.slots import names
from perdure.ledger.store.bucket import Bucket
from perdure.policies import Limits
from perdure.scenarios.bench.measuring import process_of
from perdure.scenarios.cli import app
from tests import named_bucket
from tests.s3_server import in_process

pytestmark = pytest.mark.thorough

STEPS = 8
PROGRAM = """
import sys
from perdure import Runtime

with Runtime(sys.argv[1]) as runtime:
    print("joined", runtime.cluster.address)
"""


class Note(Agent):
    """Counts in its state."""

    @exposed
    def add(self, by: int) -> int:
        self.state["n"] = self.state.get("n", 0) + by
        return int(self.state["n"])

    @exposed(repeatable=True)
    def show(self) -> int:
        return int(self.state.get("n", 0))


class Diary(Agent):
    """Counts in a table."""

    @exposed
    def write(self, line: str) -> int:
        self.sql("CREATE TABLE IF NOT EXISTS lines (line VARCHAR)")
        self.sql("INSERT INTO lines VALUES ($1)", [line])
        return self.lines()

    @exposed
    def copy_to(self, name: str) -> None:
        self.storage.fork(name)  # in sync code it waits

    @exposed(repeatable=True)
    def lines(self) -> int:
        return int(self.sql("SELECT count(*) FROM lines")[0][0])


class Stepper(Agent):
    """Does one step after the other, and says in which attempt."""

    async def run(self, n: int, run: RunContext) -> list[int]:
        async def work() -> int:
            await asyncio.sleep(0.2)
            return run.attempt

        return [await run.step(f"step {at}", work) for at in range(n)]


def test_commands_and_programs_find_the_supervisor_through_the_bucket_and_who_is_connected_learns_of_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file://{tmp_path}/bucket"

    def python(*words: str, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        return done.stdout + done.stderr

    def said(*words: str, **environment: str) -> str:
        return python("-m", "perdure.scenarios.cli", *words, "--data", url, **environment)

    monkeypatch.setenv("PERDURE_CACHE", str(tmp_path / "cache"))
    with Runtime(url, limits=Limits(hosts_max=1)) as runtime:
        assert runtime.agent(Note, "n").add(5) == 5
        runtime.start(Stepper, 1_000, run_id="steps")
        note = json.loads(said("inspect", f"n@{__name__}:Note", "--json"))
        assert note["state"] == {"n": 5}
        fibers = json.loads(said("fibers", "--json"))
        assert fibers["supervisor"]["pid"]
        assert fibers["storages"] >= 1
        other = str(tmp_path / "other")  # as if a machine of the cluster had not opened it yet
        assert "Run steps is aborted." in said("cancel", "steps", PERDURE_CACHE=other)
        joined = python("-c", PROGRAM, url, PERDURE_CACHE=str(tmp_path / "third"))
        assert f"joined {runtime.cluster.address}" in joined, joined
        assert f"Stopped what served {url}" in said("stop", "--timeout", "0s", PERDURE_CACHE=other)
        with pytest.raises(NoLongerServed, match="was stopped"):
            runtime.agent(Note, "n").add(1)
        stopped = said("stop", PERDURE_CACHE=str(tmp_path / "fourth"))
        assert "was stopped, and nobody has followed" in stopped, stopped


def test_what_was_acknowledged_is_there_whatever_is_killed_and_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_CACHE", str(tmp_path / "cache"))
    with in_process() as s3:
        for name, value in s3.environment.items():
            monkeypatch.setenv(name, value)
        url, limits = s3.url("prefix"), Limits(hosts_max=2, idle_ms=500)
        runtime = Runtime(url, limits=limits)
        runtime.open()
        notes = [runtime.agent(Note, f"n{at}") for at in range(3)]
        assert [note.add(5) for note in notes] == [5, 5, 5]
        assert [runtime.agent(Diary, "d").write(line) for line in "ab"] == [1, 2]
        runtime.start(Stepper, STEPS, run_id="steps")
        time.sleep(0.5)  # for its first steps
        for key in [key for key in runtime._session.cluster.processes() if key != "supervisor"]:  # type: ignore[union-attr] # noqa: SLF001
            kill([process_of(runtime, key)])
        assert [note.show() for note in notes] == [5, 5, 5]
        assert runtime.agent(Diary, "d").lines() == 2
        kill([process_of(runtime, "supervisor")])
        assert (
            runtime.agent(Diary, "d").lines() == 2
        )  # of a call that may not be repeated it could be unknown what became
        assert runtime.agent(Diary, "d").write("c") == 3
        steps = runtime.run(Stepper, STEPS, run_id="steps").output
        assert len(steps) == STEPS
        runtime.agent(Diary, "d").copy_to("copy")
        with pytest.raises(BadRequest, match="has a storage already"):
            runtime.agent(Diary, "d").copy_to("copy")
        runtime.kill_everything()
        shutil.rmtree(tmp_path / "cache")

        with Runtime(url, limits=limits) as again:
            assert [again.agent(Note, f"n{at}").show() for at in range(3)] == [5, 5, 5]
            assert again.agent(Diary, "d").write("d") == 4
            assert again.agent(Diary, "copy").lines() == 3
            assert again.run(Stepper, STEPS, run_id="steps").output == steps
            assert again.audit()["balanced"]
        doors = Bucket(url).run(names("life/", "life/~"))
        assert [each.rpartition("/")[2] for each in doors] == ["gone"], (
            "what was killed was not asked, and the other one says so"
        )
        shutil.rmtree(cache_of(url))
        told = CliRunner().invoke(app, ["audit", "--json", "--data", url])
        assert json.loads(told.stdout)["balanced"], told.output


def test_a_directory_that_is_followed_is_brought_back_from_its_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with in_process() as s3:
        for name, value in s3.environment.items():
            monkeypatch.setenv(name, value)
        url, limits, data = s3.url("replica"), Limits(hosts_max=2, idle_ms=500), tmp_path / "data"
        runtime = Runtime(data, limits=limits, replica=url, lag_ms=100)
        runtime.open()
        notes = [runtime.agent(Note, f"n{at}") for at in range(3)]
        assert [note.add(5) for note in notes] == [5, 5, 5]
        assert [runtime.agent(Diary, "d").write(line) for line in "ab"] == [1, 2]
        steps = runtime.run(Stepper, 2, run_id="steps").output
        kill([process_of(runtime, "supervisor")])
        assert runtime.agent(Diary, "d").lines() == 2
        assert runtime.agent(Diary, "d").write("c") == 3
        with pytest.raises(BadRequest, match="`perdure stop` it first"), Runtime(data, replica=s3.url("other")):
            """It is followed as it was told."""
        deadline_s = time.monotonic() + 60
        while (told := runtime.ps()["supervisor"]["replica"])["behind_ms"] or not told["filled"]:
            assert time.monotonic() < deadline_s, told
            time.sleep(0.1)
        time.sleep(1)  # what agents write behind their answers is looked at a moment later
        runtime.kill_everything()
        shutil.rmtree(data)

        back = CliRunner().invoke(app, ["restore", url, str(tmp_path / "back")])
        assert back.exit_code == 0, back.output
        with Runtime(tmp_path / "back", limits=limits) as again:
            assert [again.agent(Note, f"n{at}").show() for at in range(3)] == [5, 5, 5]
            assert again.agent(Diary, "d").write("d") == 4
            assert again.run(Stepper, 2, run_id="steps").output == steps
            assert again.audit()["balanced"]
            assert "replica" not in again.ps()["supervisor"]


@pytest.mark.skipif(not named_bucket.NAMED, reason=f"{named_bucket.VARIABLE} names no bucket")
def test_a_named_bucket_keeps_what_happens_and_is_audited_backed_up_and_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_CACHE", str(tmp_path / "cache"))
    limits = Limits(hosts_max=2, idle_ms=500)

    def said(*words: str) -> str:
        told = CliRunner().invoke(app, list(words))
        assert told.exit_code == 0, told.output + str(told.exception)
        return told.stdout

    with named_bucket.fresh_prefix() as url, named_bucket.fresh_prefix() as other:
        with Runtime(url, limits=limits) as runtime:
            assert runtime.agent(Note, "n").add(5) == 5
            assert runtime.agent(Diary, "d").write(token_hex(300_000)) == 1  # restored, it is read by signed URLs
            steps = runtime.run(Stepper, 3, run_id="steps").output
        shutil.rmtree(tmp_path / "cache")
        with Runtime(url, limits=limits) as again:
            assert again.agent(Note, "n").show() == 5
            assert again.agent(Diary, "d").write("b") == 2
            assert again.run(Stepper, 3, run_id="steps").output == steps
        shutil.rmtree(tmp_path / "cache")
        for words in (("ps",), ("audit",), ("doctor", "--deep"), ("inspect", f"d@{__name__}:Diary")):
            said(*words, "--data", url)
        assert "monday" in said("backup", url, "--name", "monday")
        said("restore", url, other, "--backup", "monday")
        said("restore", url, str(tmp_path / "copy"))
        assert "monday" in said("backup", url, "--delete", "monday")
        for data in (other, str(tmp_path / "copy")):
            with Runtime(data, limits=limits) as restored:
                assert restored.agent(Diary, "d").lines() == 2
                assert restored.audit()["balanced"]
