"""Spans of runs come from the facts of the ledger: they are whole, linked and ended, whichever process dies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from perdure.actors import Agent, KillPoint, RunContext
from perdure.actors.telemetry.telemetry import TRACE
from perdure.ledger import agent_id
from perdure.policies import context_of, trace_of
from perdure.scenarios.testing.laboratory import Laboratory
from tests.actors.cast import Boss, Failing, Impatient, Once, Sleeper
from tests.actors.traces import Recorder, tree
from tests.kit import ROOMY, Death, Stage

FAMILY = {"wait": ["Boss", {"wait": ["Sleeper", 4_000, "s"]}, "c"]}
ABOVE = f"00-{'ab' * 16}-{'cd' * 8}-01"
WHOLE = [("invoke_agent Boss", [("invoke_agent Boss", ["invoke_agent Sleeper"])])]


def traced(story: Callable[[Stage], Awaitable[Any]], **simulation: Any) -> Recorder:
    """Play a story to its rest; the spans that were told."""
    recorder = Recorder()
    with Laboratory(1, limits=ROOMY, telemetry=recorder, **simulation) as laboratory:
        stage = Stage(laboratory)

        async def main(client: Any) -> None:
            stage.client = client
            await story(stage)

        laboratory.play(main)
        laboratory.heal()
        laboratory.rest()
        laboratory.play(lambda _client: asyncio.sleep(1))  # a span is told a moment after its fact is durable
        laboratory.verify()
        laboratory.simulation.raise_errors()
    return recorder


async def family(stage: Stage) -> None:
    assert (await stage.client.run(Boss, FAMILY, run_id="b")).ok


def test_a_child_stands_below_the_attempt_that_asked_for_it() -> None:
    recorder = traced(family)
    assert tree(recorder.spans) == WHOLE
    sleeper = recorder.one("invoke_agent Sleeper")
    assert {span.context.trace_id for span in recorder.spans} == {trace_of("run", "b")}
    assert sleeper.attributes["perdure.run.id"] == "s"
    assert sleeper.attributes["perdure.run.status"] == "completed"
    assert sleeper.attributes["gen_ai.agent.id"] == agent_id("tests.actors.cast:Sleeper", "s")
    assert sleeper.attributes["gen_ai.operation.name"] == "invoke_agent"
    assert sleeper.attributes["perdure.host.id"]
    assert sleeper.end_ms - sleeper.start_ms >= 4_000
    assert not any(span.error for span in recorder.spans)


@pytest.mark.parametrize("victim", ["s", "c", "b"])
def test_an_attempt_whose_host_dies_is_ended_and_the_next_one_has_a_link_to_it(victim: str) -> None:
    kind = Sleeper if victim == "s" else Boss

    async def story(stage: Stage) -> None:
        waiting = asyncio.ensure_future(family(stage))
        await stage.until(lambda: stage.status("s") == "running")
        stage.simulation.kill(stage.run(victim).host_id)
        await waiting

    recorder = traced(story)
    tree(recorder.spans)
    mine = [
        span for span in recorder.named(f"invoke_agent {kind.__name__}") if span.attributes["perdure.run.id"] == victim
    ]
    assert [span.attributes["perdure.run.attempt"] for span in mine] == [1, 2]
    assert [(span.error, span.attributes["perdure.run.status"]) for span in mine] == [
        ("host_lost", "lost"),
        ("", "completed"),
    ]
    assert mine[0].parent == mine[1].parent
    assert mine[1].links == (mine[0].context,)
    assert mine[0].end_ms <= mine[1].start_ms


class Waiting(Agent):
    """Sleeps without a process."""

    async def run(self, run: RunContext) -> int:
        await run.sleep(60)
        return run.attempt


def test_an_attempt_ends_where_the_run_begins_to_wait_and_the_wait_belongs_to_none() -> None:
    async def story(stage: Stage) -> None:
        assert (await stage.client.run(Waiting, run_id="w")).output == 2

    first, second = traced(story).named("invoke_agent Waiting")
    assert [span.attributes["perdure.run.status"] for span in (first, second)] == ["waiting", "completed"]
    assert (first.error, second.links) == ("", (first.context,))
    assert second.start_ms - first.end_ms > 55_000


def test_the_death_of_the_supervisor_leaves_no_gap_and_no_double() -> None:
    async def story(stage: Stage) -> None:
        waiting = asyncio.ensure_future(family(stage))
        await stage.until(lambda: stage.status("s") == "running")
        stage.simulation.kill("supervisor")
        await waiting

    assert tree(traced(story).spans) == WHOLE


@pytest.mark.parametrize("nth", range(1, 12))  # after the eleventh a child has ended whose span nobody told
def test_a_supervisor_that_dies_after_a_commit_has_its_spans_told_by_the_next_one(nth: int) -> None:
    death = Death(KillPoint.AFTER_COMMIT, who="supervisor", visit=nth)
    recorder = traced(family, kill_when=death)
    assert death.victims
    tree(recorder.spans)
    ended = [span for span in recorder.spans if span.attributes["perdure.run.status"] == "completed"]
    assert tree(ended) == WHOLE


def test_an_error_is_told_by_its_type_and_not_by_its_words() -> None:
    async def story(stage: Stage) -> None:
        assert not (await stage.client.run(Failing, "my password is hunter2", run_id="f")).ok

    span = traced(story).one("invoke_agent Failing")
    assert span.error == "ValueError"
    assert "hunter2" not in str(span)


def test_a_run_that_is_lost_for_good_and_one_that_is_cancelled_have_one_span_for_each_attempt() -> None:
    async def story(stage: Stage) -> None:
        client = stage.client
        await client.start(Once, 60_000, run_id="o")
        await client.start(Sleeper, 60_000, run_id="x")
        await stage.until(lambda: stage.status("o") == stage.status("x") == "running")
        stage.simulation.kill(stage.run("o").host_id)
        await stage.ended("o", "error")
        await stage.until(lambda: stage.status("x") == "running")
        await client.ask("cancel", "x", None, "enough")
        await stage.ended("x", "aborted")

    recorder = traced(story)
    once = recorder.named("invoke_agent Once")
    assert [(span.attributes["perdure.run.attempt"], span.error) for span in once] == [(1, "host_lost"), (2, "failed")]
    assert once[1].links == (once[0].context,)
    cancelled = recorder.named("invoke_agent Sleeper")[-1]
    assert (cancelled.error, cancelled.attributes["perdure.run.status"]) == ("cancelled", "aborted")


def test_what_happens_after_a_parent_has_given_up_is_told_with_a_link() -> None:
    async def story(stage: Stage) -> None:
        waits = {"wait": ["Sleeper", 8_000, "s"]}
        waiting = asyncio.ensure_future(stage.client.run(Impatient, waits, run_id="i"))
        await stage.until(lambda: stage.status("s") == "running")
        stage.simulation.kill(stage.run("i").host_id)
        assert (await waiting).output["status"] == "interrupted"
        await stage.ended("s", "completed")

    recorder = traced(story)
    given_up, late = recorder.named("invoke_agent Sleeper")
    assert given_up.attributes["perdure.run.status"] == "interrupted"
    assert (late.attributes["perdure.run.status"], late.error) == ("completed", "")
    assert late.links == (given_up.context,)
    assert (late.parent, late.start_ms) == (given_up.parent, given_up.end_ms)
    tree(recorder.spans)


def test_a_run_belongs_to_the_trace_that_its_request_carries() -> None:
    async def story(stage: Stage) -> None:
        TRACE.set(context_of(ABOVE))
        await family(stage)

    recorder = traced(story)
    assert {span.context.trace_id for span in recorder.spans} == {"ab" * 16}
    assert recorder.named("invoke_agent Boss")[0].parent == "cd" * 8


def test_what_a_call_asks_for_stands_where_its_caller_does() -> None:
    async def story(stage: Stage) -> None:
        assert (await stage.call(Boss, "wait_for", "Sleeper", 10, "alone"))["status"] == "completed"
        TRACE.set(context_of(ABOVE))
        assert (await stage.call(Boss, "wait_for", "Sleeper", 20, "below"))["status"] == "completed"

    alone, below = traced(story).named("invoke_agent Sleeper")
    assert (alone.context.trace_id, alone.parent) == (trace_of("run", "alone"), "")
    assert (below.context.trace_id, below.parent) == ("ab" * 16, "cd" * 8)


def test_a_run_that_is_tried_again_goes_on_with_its_attempts() -> None:
    async def story(stage: Stage) -> None:
        await stage.client.run(Failing, "no", run_id="f")
        await stage.client.ask("retry", "f")
        await stage.until(lambda: stage.run("f").has_ended and stage.run("f").attempt == 2)

    first, second = traced(story).named("invoke_agent Failing")
    assert [span.attributes["perdure.run.attempt"] for span in (first, second)] == [1, 2]
    assert second.links == (first.context,)
