"""Code that takes its cancellation for an error like any other, and goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import pytest

from perdure import Agent, Detached, FiberContext, RunContext, RunInfo, RunResult, exposed
from perdure.ledger import StaleIncarnation
from perdure.policies import Limits
from tests.actors.cast import Doubler
from tests.kit import Stage, address, play

AFTER_S = 12.0  # longer than `teardown_grace_ms`


async def try_each(jobs: Mapping[str, Callable[[], object]], tried: dict[str, str]) -> None:
    """Note of each whether it is refused to code that was told to stop."""
    for what, job in jobs.items():
        try:
            outcome: Any = job()
            if asyncio.iscoroutine(outcome) or asyncio.isfuture(outcome):
                await outcome
            tried[what] = "done"
        except StaleIncarnation:
            tried[what] = "refused"


class Deaf(Agent):
    """Goes on after its cancellation, and tries then what an agent may."""

    stands_alone = True
    tried: ClassVar[dict[str, str]] = {}

    async def run(self, writes_before: bool, run: RunContext) -> str:
        jobs = {
            "step": lambda: run.step("s", lambda: 1),
            "milestone": lambda: run.report_progress(milestone="m"),
            "stash": lambda: run.stash(1),
            "sleep": lambda: run.sleep(1),
        }
        if writes_before:
            self.state["before"] = 1
            jobs["kept state"] = partial(self.state.update, after=1)
        await self.goes_on(jobs)
        return "done"

    async def fiber(self, fiber: FiberContext) -> None:
        self.start_fiber("g", "later", fiber_id="g")
        await self.goes_on({"fiber.stash": lambda: fiber.stash(1)})

    async def later(self) -> None:
        await asyncio.sleep(60)
        self.state["later"] = 1

    @exposed
    async def numbers(self) -> AsyncIterator[int]:
        yield 1
        await self.goes_on({})

    async def goes_on(self, more: dict[str, Callable[[], object]]) -> None:
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            self.tried["cancelled"] = "yes"
        await asyncio.sleep(AFTER_S)
        await try_each({**self.powers(), **more}, self.tried)

    def powers(self) -> dict[str, Callable[[], object]]:
        detached = Detached(on_finish="fin")
        return {
            "state": lambda: self.state.update(after=1),
            "look": lambda: self.state.get("before"),
            "sql": lambda: self.sql("CREATE TABLE t(x INTEGER)"),
            "transaction": self.in_one,
            "schedule": lambda: self.schedule(5, "fin", 1),
            "thread": lambda: asyncio.to_thread(self.state.update, after=1),
            "run": lambda: self.run_agent_tool(Doubler, {"n": 1}, run_id="leaf"),
            "detached": lambda: self.run_agent_tool(Doubler, {"n": 1}, run_id="leaf2", detached=detached),
            "call": lambda: self.sub_agent(Deaf, "other").look(),
        }

    def in_one(self) -> None:
        with self.transaction():
            self.state["after"] = 1

    def fin(self, run: RunInfo, result: RunResult[object]) -> None:
        """Never called."""

    @exposed
    async def look(self) -> dict[str, object]:
        return dict(self.state)

    @exposed
    def begin(self) -> None:
        self.start_fiber("f", "fiber", fiber_id="f")

    @exposed
    def cancel(self) -> None:
        self.cancel_fiber("f")

    @exposed
    def write(self) -> None:
        self.state["after the cancel"] = 1


@pytest.fixture(autouse=True)
def fresh() -> None:
    Deaf.tried = {}


def refused() -> dict[str, str]:
    return {what: how for what, how in Deaf.tried.items() if what != "cancelled"}


@pytest.mark.parametrize("writes_before", [True, False])
def test_a_run_that_goes_on_after_its_cancellation_has_no_powers_after_a_while(
    writes_before: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(stage: Stage) -> dict[str, object]:
        await stage.client.start(Deaf, writes_before, run_id="z")
        await stage.until(lambda: stage.status("z") == "running")
        await asyncio.sleep(1)
        await stage.client.ask("cancel", "z", None, "enough")
        await stage.until(lambda: "cancelled" in Deaf.tried)
        assert "is being stopped" in await told(stage)
        await asyncio.sleep(Limits().teardown_grace_ms / 1000 + 1)
        assert "its code does not let itself be cancelled" in await told(stage)
        await stage.until(lambda: not stage.host_of(address(Deaf, "z")))
        assert "on host" not in await told(stage)
        assert (stage.status("z"), stage.status("leaf"), stage.status("leaf2")) == ("aborted", "", "")
        return dict(await stage.client.call(Deaf, "z", "look", (), {}))

    assert play(story) == ({"before": 1} if writes_before else {})
    assert len(refused()) > 12
    assert set(refused().values()) == {"refused"}
    (said,) = [each.getMessage() for each in caplog.records if "goes on" in each.getMessage()]
    assert "run was told to stop" in said


async def told(stage: Stage) -> str:
    return "\n".join(await stage.client.ask("explain", "z"))


def test_a_fiber_that_goes_on_after_its_cancellation_has_no_powers_and_all_else_goes_on() -> None:
    async def story(stage: Stage) -> dict[str, object]:
        await stage.call(Deaf, "begin")
        await asyncio.sleep(1)
        await stage.call(Deaf, "cancel")
        await stage.until(lambda: "fiber.stash" in Deaf.tried)
        await stage.call(Deaf, "write")
        await asyncio.sleep(60)
        return dict(await stage.call(Deaf, "look"))

    assert play(story) == {"after the cancel": 1, "later": 1}
    assert Deaf.tried.pop("fiber.stash") == "done", "it says that it changed nothing"
    assert set(refused().values()) == {"refused"}


def test_a_generator_that_goes_on_after_its_close_has_no_powers() -> None:
    async def story(stage: Stage) -> None:
        async for _ in stage.client.agent(Deaf, "p").numbers():
            break
        await stage.until(lambda: "call" in Deaf.tried)

    play(story)
    assert set(refused().values()) == {"refused"}


class InOne(Agent):
    """Commits after its cancellation what it had begun before."""

    stands_alone = True

    async def run(self, input: int) -> None:
        with pytest.raises(StaleIncarnation):
            await self.writes()

    async def writes(self) -> None:
        with self.transaction():
            self.state["x"] = 1
            try:
                await asyncio.sleep(3_600)
            except asyncio.CancelledError:
                await asyncio.sleep(AFTER_S)

    @exposed
    def look(self) -> dict[str, object]:
        return dict(self.state)


async def test_a_transaction_that_goes_on_after_its_cancellation_is_not_committed(stage: Stage) -> None:
    await stage.client.start(InOne, 1, run_id="z")
    await stage.until(lambda: stage.status("z") == "running")
    await asyncio.sleep(1)
    await stage.client.ask("cancel", "z", None, "enough")
    await stage.until(lambda: not stage.host_of(address(InOne, "z")))
    assert await stage.client.call(InOne, "z", "look", (), {}) == {}
