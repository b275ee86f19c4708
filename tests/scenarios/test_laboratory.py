"""What a laboratory promises to the tests of authors: when its time begins, how long it rests, and what it finds in the end."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, cast
from zoneinfo import ZoneInfo

import pytest

from perdure.actors import (
    Agent,
    Client,
    Detached,
    FiberContext,
    Occurrence,
    RunContext,
    RunInfo,
    RunResult,
    awaiting,
    exposed,
)
from perdure.actors.sim_world.virtual_loop import Overdue
from perdure.ledger import BadRequest, HostUnavailable, OutcomeUnknown
from perdure.scenarios.swarm.explorer import explore
from perdure.scenarios.swarm.runner import swarm
from perdure.scenarios.testing.laboratory import Laboratory, Story, Violation
from tests.actors.cast import Sleeper

NEW_YEAR = datetime(2031, 1, 1, 5, 59, tzinfo=ZoneInfo("Europe/Berlin"))
MINUTE_MS = 60_000


class Clerk(Agent):
    """Plans its mornings, and notes when they were, and when its children worked."""

    stands_alone = True

    @exposed
    async def plan(self) -> None:
        self.schedule("0 6 * * *", "rise", time_zone="Europe/Berlin")

    async def rise(self, payload: None, occurrence: Occurrence) -> None:
        self.state["rose"] = [*self.state.get("rose", []), occurrence.scheduled_at_ms]

    @exposed
    def order(self, run_id: str) -> None:
        self.run_agent_tool(Errand, None, run_id=run_id, detached=Detached(on_finish="done"))

    async def done(self, run: RunInfo, result: RunResult[None]) -> None:
        self.state["done"] = [run.started_at_ms, run.completed_at_ms]

    @exposed
    def retire(self) -> None:
        self.start_fiber("nap", "nap")

    async def nap(self, fiber: FiberContext) -> None:
        await fiber.sleep(3_600)
        self.state["woke"] = [1]

    @exposed
    def stamp(self) -> None:
        self.sql("CREATE TABLE IF NOT EXISTS stamps(at_ms BIGINT)")

    @exposed
    async def told(self, name: str) -> list[int]:
        return cast("list[int]", self.state.get(name, []))


class Errand(Agent):
    """Takes an hour."""

    async def run(self, input: None, run: RunContext) -> None:
        await run.sleep(3_600)


def test_its_clocks_begin_when_it_is_said_and_schedules_and_stamps_follow() -> None:
    begins_ms = NEW_YEAR.timestamp() * 1000
    with Laboratory(1, begins=NEW_YEAR) as laboratory:
        clerk = laboratory.agent(Clerk, "c")
        clerk.plan()
        clerk.order("one")
        laboratory.rest()
        (rose_ms,), (started_ms, completed_ms) = clerk.told("rose"), clerk.told("done")
        assert rose_ms == begins_ms + MINUTE_MS
        assert begins_ms <= started_ms < begins_ms + MINUTE_MS
        assert 60 * MINUTE_MS <= completed_ms - started_ms < 61 * MINUTE_MS
        laboratory.settle()


def test_a_node_that_drains_ends_when_it_was_said_by_such_a_clock() -> None:
    async def story(client: Client) -> None:
        run = await client.start(Sleeper, 20_000, run_id="one")
        await asyncio.sleep(5)
        laboratory.simulation.drain_node("n", MINUTE_MS, [*laboratory.hosts])
        assert (await run.result()).output == 1, "there was time enough for its first attempt"

    with Laboratory(1, begins=NEW_YEAR) as laboratory:
        laboratory.play(story)


def test_without_it_they_begin_in_june_2025_in_every_laboratory_alike() -> None:
    digests = set()
    for begins in (None, datetime(2025, 6, 15, 15, 6, 40, tzinfo=UTC)):
        with Laboratory(1, begins=begins) as laboratory:
            laboratory.agent(Clerk, "c").order("one")
            laboratory.settle()
            digests.add(laboratory.simulation.digest())
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("begins", "words"),
    [
        (datetime(2031, 1, 1), "has no time zone"),  # noqa: DTZ001 - on purpose
        ("2031-01-01", "is str; give `datetime"),
        (1_750_000_000_000, "is int; give `datetime"),
        (NEW_YEAR.date(), "is date; give `datetime"),
        (datetime(1970, 1, 1, tzinfo=UTC) - timedelta(days=1), "before 1970"),
    ],
)
def test_a_beginning_that_is_no_instant_is_refused(begins: Any, words: str) -> None:
    with pytest.raises(BadRequest, match=f"^begins: .*{words}"):
        Laboratory(1, begins=begins)


class Fragile(Agent):
    """Its handlers always fail."""

    @exposed
    def order(self) -> None:
        self.run_agent_tool(Sleeper, 1, run_id="one", detached=Detached(on_finish="done"))

    def done(self, run: RunInfo, result: RunResult[int]) -> None:
        raise LookupError(f"no place for {result.output}")

    @exposed
    def later(self, how: str) -> None:
        asked = partial(self.schedule, 10) if how == "schedule" else self.queue
        asked("count", how, retry={"attempts_max": 3})

    def count(self, payload: str, _occurrence: Occurrence) -> None:
        raise LookupError(f"no number for {payload}")


def test_a_handler_that_fails_for_good_is_told_when_all_is_checked_unless_that_is_meant() -> None:
    for parked in (False, True):
        with Laboratory(1, parked=parked) as laboratory:
            laboratory.agent(Fragile, "f").order()
            laboratory.rest()
            with (
                nullcontext()
                if parked
                else pytest.raises(
                    Violation,
                    match=r"of run one is parked, for f@.*Fragile.done .* 8 times: LookupError: no place for 1",
                )
            ):
                laboratory.settle()


@pytest.mark.parametrize(("how", "row"), [("schedule", "delayed"), ("queue", "queued")])
def test_a_callback_that_fails_for_good_is_told_when_all_is_checked_unless_that_is_meant(how: str, row: str) -> None:
    for parked in (False, True):
        with Laboratory(1, parked=parked) as laboratory:
            laboratory.agent(Fragile, "f").later(how)
            laboratory.play(lambda _client: asyncio.sleep(600))
            problem = (
                f"the {row} callback .* is parked, for .*Fragile.*.count .* 3 times: LookupError: no number for {how}"
            )
            with nullcontext() if parked else pytest.raises(Violation, match=problem):
                laboratory.settle()


async def orders(client: Client) -> None:
    with suppress(OutcomeUnknown, HostUnavailable):
        await awaiting(client.agent(Fragile, "f").order())
    await client.run(Sleeper, 1, run_id="two")


def test_a_swarm_and_the_explorer_find_such_a_handler_too() -> None:
    found = swarm(1, story=orders).failures[0]
    assert "Fragile.done" in found.problem
    meant = swarm(1, story=orders, parked=True)
    assert meant.ok, meant.failures
    deaths = explore(orders, stride=50, parked=True)
    assert deaths.ok, deaths.failures
    with pytest.raises(Violation, match=r"Fragile.done"):
        explore(orders)


async def never() -> None:
    await asyncio.Event().wait()


def test_of_a_story_that_cannot_end_it_is_told_where_it_waits() -> None:
    async def story(_client: Client) -> None:
        await never()

    with (
        Laboratory(1) as laboratory,
        pytest.raises(Overdue, match=r"; the story waits at .*test_laboratory.py:\d+, in never;"),
    ):
        laboratory.play(story, 60_000)


def test_a_limit_of_its_own_is_refused_to_a_run_within_a_story() -> None:
    async def story(_client: Client) -> int:
        with pytest.raises(BadRequest, match=r"^timeout_ms: a story has the limit of its play"):
            laboratory.run(Sleeper, 10, timeout_ms=5_000)
        pending: Any = laboratory.run(Sleeper, 10)
        return cast("int", (await pending).output)

    with Laboratory(1) as laboratory:
        assert laboratory.play(story, timeout_ms=5_000) == 1


def test_a_call_that_a_death_interrupts_is_no_failure_of_the_explorer_and_in_calm_it_is_one() -> None:
    outcomes: list[str] = []

    def story(times: int) -> Story:
        async def interrupted(client: Client) -> None:
            try:
                await awaiting(client.agent(Clerk, "c").stamp())
            except OutcomeUnknown:
                outcomes.append("unknown")
                raise
            if outcomes and len(outcomes) < times:
                outcomes.append("again")
                raise OutcomeUnknown("c", "stamp", "killed")

        outcomes.clear()
        return interrupted

    deaths = explore(story(1), "host")
    assert deaths.ok, deaths.failures
    assert "unknown" in outcomes
    assert "OutcomeUnknown" in explore(story(2), "host").failures[0].problem


def test_a_fiber_that_sleeps_and_a_schedule_do_not_keep_it_from_rest_and_a_story_waits_for_them() -> None:
    with Laboratory(1) as laboratory:
        clerk = laboratory.agent(Clerk, "c")
        clerk.plan()
        clerk.retire()
        laboratory.rest()
        assert laboratory.simulation.now_ms() < MINUTE_MS
        assert not clerk.told("woke")
        laboratory.play(lambda _: asyncio.sleep(3_600))
        assert clerk.told("woke")
        laboratory.settle()
