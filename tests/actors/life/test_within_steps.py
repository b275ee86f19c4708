"""What the job of a step asks for: the next attempt leaves the job out, and finds everything beside it again all the same."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from perdure.actors import Agent, Client, FiberContext, RunContext, exposed, tell
from perdure.policies import Answerer, Retries
from perdure.testing import Laboratory, explore

LONG_S = 60  # in which no process keeps what waits


class Account(Agent):
    """Is told amounts."""

    @exposed
    def book(self, amount: int) -> None:
        with self.transaction():
            self.state["sum"] = self.state.get("sum", 0) + amount

    @exposed(repeatable=True)
    def sum(self) -> int:
        return int(self.state.get("sum", 0))


class Draft(Agent):
    """Gives something else each time."""

    async def run(self, topic: str, run: RunContext) -> str:
        return f"{topic} {run.run_id}"


class Mixed(Agent):
    """Does the same thing in a step, beside it, and after a wait that ends the attempt."""

    async def run(self, what: str, run: RunContext) -> list[Any]:
        do = partial(getattr(self, what), run)
        first = await run.step("first", partial(do, "first"))
        second = await do("second")
        await run.sleep(LONG_S)
        return [first, second, await do("third")]

    async def told(self, run: RunContext, at: str) -> str:
        await tell(self.agent(Account, "a").book, 100)
        return at

    async def child(self, run: RunContext, at: str) -> str:
        return str((await self.run_agent_tool(Draft, "one topic")).output)

    async def event(self, run: RunContext, at: str) -> Any:
        return await run.wait_for("paid")

    async def slept(self, run: RunContext, at: str) -> str:
        await run.sleep(LONG_S)
        return at

    async def nested(self, run: RunContext, at: str) -> str:
        return str(await run.step("pick", lambda: at))

    async def milestone(self, run: RunContext, at: str) -> str:
        await run.report_progress(milestone="here")
        return at

    async def answer(self, run: RunContext, at: str) -> Any:
        return (await run.ask(f"{at}?", str, expires=timedelta(days=9))).value

    async def completed(self, run: RunContext, at: str) -> list[Any]:
        return [result.output async for result in self.as_completed([(Draft, "one topic"), (Draft, "another topic")])]


class Retried(Agent):
    """Tries a step again, and each try has children of its own."""

    async def run(self, nap_s: float, run: RunContext) -> list[str]:
        drafts = list[str]()

        async def pick() -> str:
            drafts.append(str((await self.run_agent_tool(Draft, "one topic")).output))
            if len(drafts) < 3:
                raise OSError("not good enough")
            return drafts[-1]

        await run.step("pick", pick, retry=Retries(attempts_max=5, first_ms=1))
        return [*drafts, str((await self.run_agent_tool(Draft, "one topic")).output)]


class Courier(Agent):
    """Has a fiber that is entered again."""

    @exposed(repeatable=True)
    def order(self) -> str:
        return str(self.start_fiber("order", self.ship, None, idempotency_key="one", retry=True).fiber_id)

    async def ship(self, fiber: FiberContext, input: None) -> None:
        account = self.agent(Account, "a")
        await tell(account.book, 1)
        with self.transaction():
            tell(account.book, 10)
        await fiber.step("booked", lambda: tell(account.book, 100))
        await fiber.sleep(LONG_S)
        await tell(account.book, 1)
        with self.transaction():
            fiber.step("posted", partial(self.post, account))

    def post(self, account: Any) -> None:
        tell(account.book, 1_000)
        self.state["posted"] = self.state.get("posted", 0) + 1

    @exposed(repeatable=True)
    def posted(self) -> int:
        return int(self.state.get("posted", 0))


class Collector(Agent):
    """Takes a step with each result as it comes."""

    async def run(self, count: int, run: RunContext) -> dict[int, str]:
        saved = {}
        async for result in self.as_completed([(Late, [number, count]) for number in range(count)]):
            saved[result.output] = await run.step("save", partial("row of {}".format, result.output))
        await run.sleep(LONG_S)
        return saved


class Late(Agent):
    """The first one is the last to end."""

    async def run(self, input: list[int]) -> int:
        number, count = input
        await asyncio.sleep(count - number)
        return number


async def told(client: Client) -> None:
    await client.run(Mixed, "told", run_id="m")
    while await client.agent(Account, "a").sum() < 300:
        await asyncio.sleep(1)
    await asyncio.sleep(LONG_S)
    assert await client.agent(Account, "a").sum() == 300


async def children(client: Client) -> None:
    drafts = (await client.run(Mixed, "child", run_id="m")).output
    assert len({*drafts}) == 3


async def events(client: Client) -> None:
    run = await client.start(Mixed, "event", run_id="m")
    for number in range(3):
        await client.send("m", "paid", number, event_id=str(number))
    assert (await run.result()).output == [0, 1, 2]


async def steps(client: Client) -> None:
    assert (await client.run(Mixed, "nested", run_id="m")).output == ["first", "second", "third"]


async def fiber(client: Client) -> None:
    await client.agent(Courier, "c").order()
    await asyncio.sleep(3 * LONG_S)
    assert await client.agent(Account, "a").sum() == 1_112
    assert await client.agent(Courier, "c").posted() == 1


async def collected(client: Client) -> None:
    saved = (await client.run(Collector, 3, run_id="c")).output
    assert saved == {number: f"row of {number}" for number in range(3)}


@pytest.mark.thorough
def test_what_a_step_has_done_is_counted_apart_wherever_somebody_dies() -> None:
    for story in (told, children, events, steps):
        report = explore(story, stride=3)
        assert report.ok, (story.__name__, report.failures)
        assert report.visits


@pytest.mark.thorough
def test_a_fiber_that_is_entered_again_tells_nothing_twice_wherever_somebody_dies() -> None:
    report = explore(fiber, stride=2)
    assert report.ok, report.failures


@pytest.mark.thorough
def test_results_come_in_the_order_of_before_wherever_somebody_dies() -> None:
    report = explore(collected, stride=2)
    assert report.ok, report.failures


def test_waits_milestones_and_questions_of_a_step_are_none_of_those_beside_it() -> None:
    with Laboratory(1) as laboratory:
        assert laboratory.run(Mixed, "slept", run_id="s").output == ["first", "second", "third"]
        assert laboratory.simulation.now_ms() > 4 * LONG_S * 1_000
        assert laboratory.run(Mixed, "milestone", run_id="m").output == ["first", "second", "third"]
        assert len({*laboratory.run(Mixed, "completed", run_id="c").output[0]}) == 2

        async def answered(client: Client) -> Any:
            run = await client.start(Mixed, "answer", run_id="a")
            for expected in ("first", "second", "third"):
                while not (asks := await client.ask("asks")):
                    await asyncio.sleep(1)
                assert asks[0]["question"] == f"{expected}?"
                await client.answer(asks[0]["ask_id"], f"to {expected}", Answerer("ada", is_operator=True), "cli")
            return (await run.result()).output

        assert laboratory.play(answered) == ["to first", "to second", "to third"]
        laboratory.settle()


def test_each_try_of_a_step_has_children_of_its_own_and_so_has_what_comes_after_it() -> None:
    with Laboratory(1) as laboratory:
        drafts = laboratory.run(Retried, 0.0, run_id="r").output
        assert len({*drafts}) == 4
