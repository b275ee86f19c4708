"""Spans of fibers, schedules and the queue: below what asked for them, linked from attempt to attempt, and told once across deaths."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.actors import Agent, FiberContext, FiberRecovery, KillPoint, Occurrence, RunContext, exposed
from perdure.policies import context_of
from tests.actors.cast import Doubler
from tests.actors.telemetry.test_run_spans import ABOVE, traced
from tests.actors.traces import Recorder, tree
from tests.kit import Death, Stage, address


class Foreman(Agent):
    """Has work done in every way that is no run."""

    stands_alone = True
    fails = 0  # how often `ring` raises, in this process; a test sets it

    async def run(self, input: list[str], run: RunContext) -> None:
        self.ask(input)

    @exposed(repeatable=True)
    async def ask_for(self, wanted: list[str]) -> None:
        self.ask(wanted)

    def ask(self, wanted: list[str]) -> None:
        """Ask for each of these, once."""
        for each in wanted:
            if each == "schedule":
                self.schedule(2, "ring", key="once")
            elif each == "every":
                self.schedule_every(10, "ring", schedule_id="every")
            elif each == "queue":
                self.queue("ring", key="queued")
            else:
                self.start_fiber(each, each, fiber_id=each, retry=3)

    def ring(self, payload: Any, it: Occurrence) -> None:
        if type(self).fails:
            type(self).fails -= 1
            raise ValueError("not yet")
        self.start_fiber("rung", "brief", fiber_id=it.delivery_id)

    async def brief(self, fiber: FiberContext) -> None:
        await asyncio.sleep(0.5)

    async def family(self, fiber: FiberContext) -> None:
        await self.run_agent_tool(Doubler, {"n": 1}, run_id="child")

    async def flaky(self, fiber: FiberContext) -> None:
        if fiber.attempt < 3:
            raise ValueError("not this time")

    async def naps(self, fiber: FiberContext) -> None:
        await fiber.sleep(300)

    async def endless(self, fiber: FiberContext) -> None:
        await asyncio.sleep(3_600)

    async def on_fiber_recovered(self, fiber: FiberRecovery) -> str:
        await asyncio.sleep(0.5)
        return "retry" if fiber.attempt == 1 else "completed"

    @exposed(repeatable=True)
    async def wait(self, fiber_id: str) -> str:
        return str((await self.fibers.wait(fiber_id)).status)

    @exposed
    async def stop(self, fiber_id: str) -> bool:
        return self.cancel_fiber(fiber_id, "enough")

    @exposed
    async def stop_schedule(self, schedule_id: str) -> bool:
        return self.schedules.cancel(schedule_id)

    @exposed
    async def unmanaged(self, error: str) -> None:
        def work(fiber: FiberContext) -> None:
            if error:
                raise ValueError(error)

        await self.run_fiber("unmanaged", work)


@pytest.fixture(autouse=True)
def _nothing_fails() -> None:
    Foreman.fails = 0


def asking(*wanted: str, then: float = 60) -> Any:
    """A run that asks for these, and time for them."""

    async def story(stage: Stage) -> None:
        assert (await stage.client.run(Foreman, list(wanted), run_id="r")).ok
        await asyncio.sleep(then)

    return story


def test_what_a_run_asks_for_stands_below_it() -> None:
    recorder = traced(asking("family", "queue", "schedule"))
    assert tree(recorder.spans) == [
        (
            "invoke_agent Foreman",
            [
                ("queue ring", ["fiber rung"]),
                ("fiber family", ["invoke_agent Doubler"]),
                ("schedule ring", ["fiber rung"]),
            ],
        )
    ]
    fiber, call = recorder.one("fiber family"), recorder.one("schedule ring")
    home = {"perdure.agent.id": fiber.attributes["perdure.agent.id"]}
    assert dict(fiber.attributes) == home | {
        "perdure.fiber.id": "family",
        "perdure.fiber.name": "family",
        "perdure.fiber.attempt": 1,
        "perdure.fiber.status": "completed",
    }
    assert call.attributes["perdure.schedule.callback"] == "ring"
    assert call.attributes["perdure.schedule.outcome"] == "completed"
    assert not any(span.error for span in recorder.spans)


def test_each_attempt_at_a_fiber_that_fails_is_told_and_linked_to_the_one_before() -> None:
    first, second, third = traced(asking("flaky")).named("fiber flaky")
    assert [each.error for each in (first, second, third)] == ["ValueError", "ValueError", ""]
    assert [each.attributes["perdure.fiber.status"] for each in (first, second, third)] == [
        "retry",
        "retry",
        "completed",
    ]
    assert (first.links, second.links, third.links) == ((), (first.context,), (second.context,))
    assert first.end_ms <= second.start_ms


def test_an_attempt_that_ends_in_a_wait_has_its_span_there_and_the_wait_has_none() -> None:
    first, second = traced(asking("naps", then=400)).named("fiber naps")
    assert [each.error for each in (first, second)] == ["", ""]
    assert [each.attributes["perdure.fiber.status"] for each in (first, second)] == ["waiting", "completed"]
    assert second.links == (first.context,)
    assert first.end_ms - first.start_ms < 10_000
    assert second.start_ms - first.end_ms > 290_000


def killed(fiber_id: str, times: int = 1) -> Any:
    """An agent that dies while it is at a fiber, so many times."""

    async def story(stage: Stage) -> None:
        home = address(Foreman, "f")
        await stage.call(Foreman, "ask_for", [fiber_id], name="f")
        for _ in range(times):
            await asyncio.sleep(0.2)
            stage.simulation.kill(stage.view.agents[home].host_id)
            await asyncio.sleep(5)
        await stage.call(Foreman, "wait", fiber_id, name="f")

    return story


def test_an_attempt_that_dies_is_told_by_the_next_life() -> None:
    first, second = traced(killed("brief")).named("fiber brief")
    assert (first.error, first.attributes["perdure.fiber.status"]) == ("process_lost", "interrupted")
    assert (second.error, second.links) == ("", (first.context,))
    assert first.end_ms <= second.start_ms
    assert first.context.trace_id == second.context.trace_id


def test_a_fiber_that_its_hook_completes_has_only_attempts_that_were_lost() -> None:
    first, second = traced(killed("endless", times=2)).named("fiber endless")
    assert [each.error for each in (first, second)] == ["process_lost"] * 2
    assert second.links == (first.context,)


@pytest.mark.parametrize("point", [KillPoint.BEFORE_RUN, KillPoint.BEFORE_REPORT])
def test_a_death_at_the_begin_or_at_the_end_of_a_body_tells_nothing_twice(point: KillPoint) -> None:
    death = Death(point, of="fiber brief")
    recorder = traced(asking("brief"), kill_when=death)
    assert death.victims
    assert [each.error for each in recorder.named("fiber brief")] == ["process_lost", ""]
    tree(recorder.spans)


def test_a_fiber_that_is_cancelled_says_so() -> None:
    async def story(stage: Stage) -> None:
        await stage.call(Foreman, "ask_for", ["endless"], name="f")
        await asyncio.sleep(1)
        assert await stage.call(Foreman, "stop", "endless", name="f")

    span = traced(story).one("fiber endless")
    assert (span.error, span.attributes["perdure.fiber.status"]) == ("cancelled", "aborted")


@pytest.mark.parametrize("error", ["", "no"])
def test_an_unmanaged_fiber_is_told_too(error: str) -> None:
    async def story(stage: Stage) -> None:
        await asyncio.gather(stage.call(Foreman, "unmanaged", error, name="f"), return_exceptions=True)

    assert traced(story).one("fiber unmanaged").error == ("ValueError" if error else "")


def test_each_try_of_a_callback_is_told_and_linked_to_the_one_before() -> None:
    Foreman.fails = 2
    recorder = traced(asking("schedule"))
    first, second, third = recorder.named("schedule ring")
    assert [each.error for each in (first, second, third)] == ["ValueError", "ValueError", ""]
    assert [each.attributes["perdure.schedule.attempt"] for each in (first, second, third)] == [1, 2, 3]
    assert (second.links, third.links) == ((first.context,), (second.context,))
    assert recorder.one("fiber rung").parent == third.context.span_id


def test_occurrences_of_a_recurring_schedule_begin_traces_with_a_link_to_who_asked() -> None:
    async def story(stage: Stage) -> None:
        await asking("every", then=25)(stage)
        assert await stage.call(Foreman, "stop_schedule", "every", name="r")

    recorder = traced(story)
    run, calls = recorder.one("invoke_agent Foreman"), recorder.named("schedule ring")
    assert len(calls) == 2
    assert [each.links for each in calls] == [(run.context,)] * 2
    assert len({each.context.trace_id for each in (run, *calls)}) == 3
    rung = recorder.named("fiber rung")
    assert [each.parent for each in rung] == [each.context.span_id for each in calls]


@pytest.mark.parametrize("point", [KillPoint.BEFORE_HANDLER_COMMIT, KillPoint.AFTER_HANDLER_COMMIT])
def test_a_callback_that_dies_is_told_at_most_once(point: KillPoint) -> None:
    death = Death(point, of="key-*")
    recorder = traced(asking("schedule"), kill_when=death)
    assert death.victims
    assert len(recorder.named("schedule ring")) == 1
    assert len(recorder.named("fiber rung")) == 1
    tree(recorder.spans)


def test_what_a_caller_carries_is_above_the_fiber() -> None:
    async def story(stage: Stage) -> None:
        above = context_of(ABOVE)
        assert above is not None
        with Recorder().entered(above):
            await stage.call(Foreman, "ask_for", ["brief"], name="f")
        await stage.call(Foreman, "wait", "brief", name="f")

    span = traced(story).one("fiber brief")
    assert (span.context.trace_id, span.parent) == ("ab" * 16, "cd" * 8)
