"""The watch beside an event loop: what it says of one that turns, and of one that stands."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest

from perdure.actors.ports import Pulse
from perdure.actors.ray_world.processes import LoopWatch
from perdure.actors.tasks import AGENT, Tasks

A = "a@m:A"
WAIT_S = 60.0


class Life:
    """What an agent's object has of its life."""

    agent_id = "b@m:B"


class Author:
    """Code that keeps the loop until it is let go."""

    def __init__(self) -> None:
        self._perdure = Life()
        self._entered, self.go_on = threading.Event(), threading.Event()

    async def run(self) -> None:
        self._entered.set()
        assert self.go_on.wait(WAIT_S)

    def entered(self) -> None:
        assert self._entered.wait(WAIT_S)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.actors.ray_world.processes.ANSWER_S", 0.02)


def watched(
    begin: Callable[[], Coroutine[Any, Any, None]], look: Callable[[LoopWatch], Coroutine[Any, Any, None]]
) -> None:
    """Run a loop with this on a thread, and look at it from another one."""
    made: list[LoopWatch] = []
    ready = threading.Event()

    async def serve() -> None:
        made.append(LoopWatch())
        ready.set()
        await begin()

    with ThreadPoolExecutor(1) as thread:
        served = thread.submit(asyncio.run, serve())
        assert ready.wait(WAIT_S), served
        try:
            asyncio.run(look(made[0]))
        finally:
            served.result(2 * WAIT_S)


def test_a_loop_that_turns_has_a_pulse() -> None:
    over = asyncio.Event()

    async def look(watch: LoopWatch) -> None:
        found = [await watch.pulse() for _ in range(3)]
        watch._loop.call_soon_threadsafe(over.set)  # noqa: SLF001
        assert Pulse() in found

    async def begin() -> None:
        await over.wait()

    watched(begin, look)


def test_a_blocked_loop_is_told_with_the_agent_the_method_and_the_stack() -> None:
    author = Author()

    async def begin() -> None:
        tasks = Tasks(AGENT + A)
        await tasks.start_awaited(author.run())

    async def look(watch: LoopWatch) -> None:
        author.entered()
        try:
            first, second = await watch.pulse(), await watch.pulse()
        finally:
            author.go_on.set()
        assert first.agent == A
        assert first.step == second.step > 0, "it is the same piece of work"
        assert "Author.run" in first.stack or "in run" in first.stack
        assert "go_on.wait" in first.stack

    watched(begin, look)


def test_an_agent_is_found_also_in_a_task_that_its_author_has_started() -> None:
    author = Author()

    async def begin() -> None:
        await asyncio.gather(author.run())

    async def look(watch: LoopWatch) -> None:
        author.entered()
        try:
            assert (await watch.pulse()).agent == Life.agent_id
        finally:
            author.go_on.set()

    watched(begin, look)


def test_the_next_piece_of_work_is_another_one() -> None:
    first, second = Author(), Author()

    async def begin() -> None:
        await asyncio.gather(first.run(), second.run())

    async def look(watch: LoopWatch) -> None:
        steps = []
        for author in (first, second):
            author.entered()
            steps.append((await watch.pulse()).step)
            author.go_on.set()
        assert steps[0] != steps[1]

    watched(begin, look)


@pytest.mark.parametrize("collects", [True, False])
def test_no_collection_begins_while_the_stacks_are_taken(collects: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    author = Author()
    taken: list[bool] = []
    stacks = sys._current_frames  # noqa: SLF001

    def look_on() -> dict[int, FrameType]:
        taken.append(gc.isenabled())
        return stacks()

    async def look(watch: LoopWatch) -> None:
        author.entered()
        try:
            await watch.pulse()
        finally:
            author.go_on.set()

    monkeypatch.setattr(sys, "_current_frames", look_on)
    before = gc.isenabled()
    (gc.enable if collects else gc.disable)()
    try:
        watched(author.run, look)
        assert (taken, gc.isenabled()) == ([False], collects)
    finally:
        (gc.enable if before else gc.disable)()
