"""Steps that are tried again and undone, under real kills: by the agents of a real Ray, which note what they do outside in a file."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from perdure.actors import Agent, RunContext, Runtime, blocking
from perdure.policies import Limits, Retries

pytestmark = pytest.mark.thorough

PATIENCE_S = 90.0
BRIEF = Retries(attempts_max=3, first_ms=50, most_ms=100)


def note(file: str, *words: object) -> int:
    """Write a line; how often it is there by now."""
    line = " ".join(map(str, words))
    with Path(file).open("a") as lines:
        lines.write(f"{line}\n")
    return Path(file).read_text().splitlines().count(line)


def take_back(file: str, value: Any) -> None:
    """An undo that is no method; its first call kills its process."""
    if note(file, "undo of", value) == 1:
        os.kill(os.getpid(), signal.SIGKILL)


class Shopper(Agent):
    """Buys two things, of which the second is had at the second try, and goes on as it is told."""

    async def run(self, input: list[str], run: RunContext) -> str:
        file, way = input
        note(file, "entered")
        await run.step("first", partial(self.buy, file, "first"), undo=partial(take_back, file))
        await run.step("second", partial(self.flaky, file), retry=BRIEF, timeout=60, undo=partial(self.give_back, file))
        if way == "fail":
            raise OSError("no money")
        note(file, "waits")
        await asyncio.sleep(3_600)
        return ""

    async def buy(self, file: str, what: str) -> str:
        note(file, "bought", what)
        return what

    async def flaky(self, file: str) -> str:
        if note(file, "tried") == 1:
            raise OSError("sold out")
        return await self.buy(file, "second")

    async def give_back(self, file: str, what: str | None) -> None:
        if note(file, "undo of", what) < 3:
            raise OSError("closed")


class SyncShopper(Shopper):
    def run(self, input: list[str], run: RunContext) -> str:  # type: ignore[override]
        blocking(run.step("first", lambda: note(input[0], "bought"), retry=BRIEF, undo=self.return_it))
        raise OSError("no money")

    def return_it(self, value: int) -> None:
        self.state["returned"] = value


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    with Runtime(
        tmp_path_factory.mktemp("undo"), limits=Limits(hosts_max=2, retry_first_ms=50, retry_most_ms=200)
    ) as opened:
        yield opened


def until_noted(file: str, line: str) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not Path(file).exists() or line not in Path(file).read_text().splitlines():
        assert time.monotonic() < end_s
        time.sleep(0.05)


@pytest.mark.parametrize("way", ["fail", "cancel"])
def test_what_was_bought_is_given_back_in_reverse_although_undoing_kills_its_process(
    runtime: Runtime, tmp_path: Path, way: str
) -> None:
    file = str(tmp_path / "notes")
    handle = runtime.start(Shopper, [file, way], run_id=f"shop {way}")
    if way == "cancel":
        until_noted(file, "waits")
        runtime.cancel(handle.run_id, "enough")
    ended = handle.result()
    assert (ended.status, ended.error) == (("error", "OSError: no money") if way == "fail" else ("aborted", "enough"))
    lines = Path(file).read_text().splitlines()
    bought = ["entered", "bought first", "tried", "tried", "bought second"]
    undone = ["undo of second"] * 3 + ["undo of first"] * 2
    assert [line for line in lines if line != "waits"] == [*bought, *undone]


def test_sync_code_is_undone_too(runtime: Runtime, tmp_path: Path) -> None:
    ended = runtime.run(SyncShopper, [str(tmp_path / "notes"), "fail"], run_id="sync")
    assert (ended.status, ended.error) == ("error", "OSError: no money")
    assert "is being undone" not in " ".join(runtime.explain("sync"))
