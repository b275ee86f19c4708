"""Steps under one name: each call is a step of its own, and the next attempt finds each again."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, ClassVar

import pytest

from perdure.actors import Agent, FiberContext, RunContext, exposed
from perdure.ledger import BadRequest
from tests.kit import Stage, address, play


class Loop(Agent):
    """Does its jobs under one name, in the first attempt up to a point."""

    stands_alone = True
    asked: ClassVar[list[str]] = []
    fails: ClassVar[list[str]] = []

    async def run(self, input: str, run: RunContext) -> list[Any]:
        found: list[Any] = await getattr(self, input)(run)
        if run.attempt == 1:
            await asyncio.sleep(3_600)
        return found

    async def fetch(self, item: str) -> str:
        self.asked.append(item)
        if item in self.fails:
            self.fails.remove(item)
            raise OSError(item)
        await asyncio.sleep(0.001 * (ord("d") - ord(item)))
        return item.upper()

    async def one_by_one(self, run: RunContext) -> list[Any]:
        return [await run.step("fetch", functools.partial(self.fetch, each)) for each in "abc"]

    async def together(self, run: RunContext) -> list[Any]:
        first = await asyncio.gather(*(run.step("fetch", functools.partial(self.fetch, each)) for each in "abc"))
        return [*first, await run.step("fetch", lambda: self.fetch("d"))]

    async def backwards(self, run: RunContext) -> list[Any]:
        calls = [run.step("fetch", lambda each=each: self.fetch(each)) for each in "abc"]  # type: ignore[misc]
        return [await call for call in reversed(calls)][::-1]

    async def again(self, run: RunContext) -> list[Any]:
        """Each job until it succeeds."""
        found = []
        for each in "abc":
            for _ in range(3):
                try:
                    found.append(await run.step("fetch", lambda: self.fetch(each)))  # noqa: B023 - called at once
                    break
                except OSError:
                    continue
        return found

    async def leaving_out(self, run: RunContext) -> list[Any]:
        found: list[Any] = []
        for each in "abc":
            try:
                found.append(await run.step("fetch", functools.partial(self.fetch, each)))
            except OSError:
                found.append(None)
        return found

    async def named(self, run: RunContext) -> list[Any]:
        """A name that looks like another's second occurrence."""
        names = ("f", "f", "f 2", "f2")
        return [
            await run.step(name, functools.partial(self.fetch, each)) for name, each in zip(names, "abcd", strict=True)
        ]


class Threads(Agent):
    def run(self, input: int, run: RunContext) -> list[int]:
        with ThreadPoolExecutor(4) as pool:
            return sorted(pool.map(lambda each: run.step("work", lambda: each), range(input)))


class Jobs(Agent):
    stands_alone = True
    asked: ClassVar[list[int]] = []

    def body(self, fiber: FiberContext, input: int) -> None:
        found = [fiber.step("work", functools.partial(self.work, each)) for each in range(input)]
        self.state["found"] = found
        if fiber.attempt == 1:
            raise OSError

    def work(self, each: int) -> int:
        self.asked.append(each)
        return each

    @exposed
    async def start(self) -> list[Any]:
        await self.start_fiber("job", "body", 3, retry=2, wait_for_completion=True)
        return [self.state["found"], self.asked]


def died_once(way: str, *, fails: str = "") -> list[Any]:
    """The output of a run whose first attempt died after all its steps."""

    async def story(stage: Stage) -> Any:
        Loop.asked.clear()
        Loop.fails[:] = fails
        running = asyncio.create_task(stage.client.run(Loop, way, run_id="r"))
        await stage.until(lambda: len(Loop.asked) >= 3 + (way in ("together", "named", "again")))
        await asyncio.sleep(1)
        stage.kill_host_of(address(Loop, "r"))
        return (await running).output

    found: list[Any] = play(story)
    return found


@pytest.mark.parametrize("way", ["one_by_one", "backwards"])
def test_a_name_that_is_used_again_is_another_step(way: str) -> None:
    assert died_once(way) == ["A", "B", "C"]
    assert sorted(Loop.asked) == ["a", "b", "c"]


def test_under_gather_the_order_of_the_calls_decides() -> None:
    assert died_once("together") == ["A", "B", "C", "D"]
    assert sorted(Loop.asked) == ["a", "b", "c", "d"]


def test_an_occurrence_is_not_taken_for_a_name_of_the_authors() -> None:
    assert died_once("named") == ["A", "B", "C", "D"]
    assert sorted(Loop.asked) == ["a", "b", "c", "d"]


def test_a_job_that_is_tried_again_after_a_failure_is_the_same_step() -> None:
    assert died_once("again", fails="b") == ["A", "B", "C"]
    assert Loop.asked == ["a", "b", "b", "c"], "nothing was done again after the death"


def test_a_job_that_is_left_out_after_a_failure_takes_no_value_of_another() -> None:
    assert died_once("leaving_out", fails="b") == ["A", "B", "C"]
    assert Loop.asked == ["a", "b", "c", "b"], "what had failed is tried anew by the next attempt"


async def test_threads_of_a_sync_run_count_together(stage: Stage) -> None:
    assert (await stage.client.run(Threads, 40)).output == list(range(40))


async def test_a_fiber_counts_as_a_run_does_and_each_attempt_anew(stage: Stage) -> None:
    Jobs.asked.clear()
    assert await stage.call(Jobs, "start") == [[0, 1, 2], [0, 1, 2]]


class Rolling(Agent):
    """Takes steps in transactions, the first of which comes to nothing."""

    def run(self, input: int, run: RunContext) -> list[int]:
        ticks = iter(range(100))
        found = []
        for attempt in range(2):
            with suppress(OSError), self.transaction():
                found = [run.step("tick", ticks.__next__) for _ in range(input)]
                if not attempt:
                    raise OSError
        return [*found, *sorted(int(name.partition("\0")[2] or 1) for name in self._perdure.steps(run.run_id))]


async def test_equal_jobs_in_a_transaction_are_steps_of_their_own_and_count_anew_after_it_was_rolled_back(
    stage: Stage,
) -> None:
    assert (await stage.client.run(Rolling, 3)).output == [3, 4, 5, 1, 2, 3]


class Misnamed(Agent):
    async def run(self, input: Any, run: RunContext) -> str:
        job: Callable[[], int] = lambda: 1  # noqa: E731
        try:
            run.step(input * 300 if input == "n" else input, job)
        except BadRequest as problem:
            return problem.field
        return ""


@pytest.mark.parametrize("name", [None, 3, "", " ", "a\0b", ["a"], "n"])
async def test_a_name_that_is_none_is_refused_by_field(stage: Stage, name: object) -> None:
    assert (await stage.client.run(Misnamed, name)).output == "name"
