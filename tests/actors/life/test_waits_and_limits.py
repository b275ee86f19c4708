"""What becomes of runs when whoever waits for them is cancelled, when one of many is refused, and when a step is awaited or not."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from perdure.actors import Agent, FiberContext, KillPoint, RunContext, RunHandle, exposed
from perdure.ledger import BadRequest
from tests.actors.cast import Sleeper
from tests.actors.crew import Narrow
from tests.kit import Stage, play


class Impatient(Agent):
    """Waits for a limited time."""

    stands_alone = True

    @exposed
    async def hurry(self, ways: list[str], **options: Any) -> str:
        try:
            async with asyncio.timeout(1):
                for way in ways:
                    await self._wait(way, options)
        except TimeoutError:
            return "too late"
        return "in time"

    async def _wait(self, way: str, options: dict[str, Any]) -> None:
        if way == "one":
            await self.run_agent_tool(Sleeper, 5_000, run_id="one", **options)  # type: ignore[arg-type]
        elif way == "many":
            asked = [{"agent_class": Sleeper, "input": ms, "run_id": f"m{ms}", **options} for ms in (1, 5_000)]
            await self.run_agent_tools(asked)
        else:
            asked = [{"agent_class": Sleeper, "input": ms, "run_id": f"c{ms}", **options} for ms in (1, 5_000)]
            async for _ in self.as_completed(asked):
                pass

    async def fiber(self, fiber: FiberContext) -> None:
        await self.run_agent_tool(Sleeper, 5_000, run_id="one")  # type: ignore[arg-type]

    @exposed
    def begin(self) -> None:
        self.start_fiber("f", self.fiber, fiber_id="f", retry=True)

    @exposed
    def stop(self) -> None:
        self.cancel_fiber("f")

    async def run(self, input: str, run: RunContext) -> str:
        return await self.hurry(["one"])


@pytest.mark.parametrize(
    ("way", "slow", "quick"), [("one", "one", ""), ("many", "m5000", "m1"), ("each", "c5000", "c1")]
)
@pytest.mark.parametrize("on_cancel", ["cancel", "leave"])
async def test_a_deadline_cancels_what_was_waited_for_or_leaves_it_as_the_author_says(
    stage: Stage, way: str, slow: str, quick: str, on_cancel: str
) -> None:
    given = {} if on_cancel == "cancel" else {"on_cancel": on_cancel}  # the former is the default
    assert await stage.call(Impatient, "hurry", [way], **given) == "too late"
    run = await stage.ended(slow)
    assert run.status == ("aborted" if on_cancel == "cancel" else "completed")
    assert ("the code that waited for it was cancelled" in run.error) is (on_cancel == "cancel")
    assert not quick or stage.status(quick) == "completed"


def test_a_run_with_a_deadline_comes_to_the_same_after_a_death() -> None:
    """The entered-again code waits for the aborted run and gets its end."""
    deaths: list[str] = []

    def rule(_stage: Stage, _process: str, point: KillPoint, detail: str) -> bool:
        if point is KillPoint.BEFORE_REPORT and detail == "r" and not deaths:
            deaths.append(detail)
            return True
        return False

    async def story(stage: Stage) -> None:
        assert (await stage.client.run(Impatient, "x", run_id="r")).output in ("too late", "in time")
        assert stage.status("one") == "aborted"
        assert deaths

    play(story, kill_when=rule)


async def test_a_death_of_the_one_who_waits_cancels_nothing_and_a_cancelled_fiber_does(stage: Stage) -> None:
    await stage.call(Impatient, "begin")
    await stage.until(lambda: stage.status("one") == "running")
    stage.kill_host_of(next(each for each in stage.view.agents if each.startswith("p@")))
    await asyncio.sleep(2)
    assert stage.status("one") == "running"
    await stage.call(Impatient, "stop")
    assert (await stage.ended("one")).status == "aborted"


@pytest.mark.parametrize(
    ("options", "why"),
    [({"on_cancel": "keep"}, "is none of cancel, leave"), ({"on_cancel": "leave", "detached": True}, "nobody waits")],
)
async def test_a_wrong_on_cancel_is_refused(stage: Stage, options: dict[str, Any], why: str) -> None:
    with pytest.raises(BadRequest, match=why) as refused:
        await stage.call(Impatient, "hurry", ["one"], **options)
    assert refused.value.field == "on_cancel"
    assert stage.record("one") is None


# one of many is refused


class Choosy(Narrow):
    """Allows two at a time, and refuses more."""

    @exposed
    async def batch(self, way: str) -> list[list[Any]]:
        asked = [{"agent_class": Sleeper, "input": 100 + n, "run_id": f"s{n}", "on_limit": "reject"} for n in range(3)]
        if way == "detached":
            handles = await self.run_agent_tools(asked, detached=True)
            return [[each.run_id, each.status] for each in handles if isinstance(each, RunHandle)]
        if way == "each":
            results = [result async for result in self.as_completed(asked)]
        else:
            results = await self.run_agent_tools(asked)
        return [[r.run_id, r.status, r.reason, None if r.ok else r.failure.retryable] for r in results]


def test_the_refusal_of_one_of_many_is_its_result_and_the_others_have_theirs() -> None:
    refused = ["s2", "error", "max_concurrent_agent_tools", True]
    done = [["s0", "completed", None, None], ["s1", "completed", None, None]]

    async def story(stage: Stage) -> None:
        assert await stage.call(Choosy, "batch", "all") == [*done, refused]
        assert stage.record("s2") is None, "its id is free"

    async def in_any_order(stage: Stage) -> None:
        assert await stage.call(Choosy, "batch", "each") == [refused, *done]

    async def detached(stage: Stage) -> None:
        assert await stage.call(Choosy, "batch", "detached") == [
            ["s0", "running"],
            ["s1", "running"],
            ["s2", "refused"],
        ]

    for each in (story, in_any_order, detached):
        play(each)


# steps


class Stepper(Agent):
    """Awaits steps of sync jobs, or does not."""

    async def run(self, input: int, run: RunContext) -> list[Any]:
        found = [await run.step("sync", lambda: input + 1)]  # type: ignore[misc]
        found.append(run.step("plain", lambda: input + 2))
        found.append(await run.step("async", self.three))
        if run.attempt == 1:
            run.stash("once")
            await asyncio.sleep(3_600)
        return found

    async def three(self) -> int:
        return 3


async def test_a_step_of_sync_code_may_be_awaited_in_every_attempt(stage: Stage) -> None:
    task = asyncio.create_task(stage.client.run(Stepper, 0, run_id="r"))
    await stage.until(lambda: stage.status("r") == "running")
    await asyncio.sleep(1)
    stage.kill_host_of(stage.run("r").child)
    assert (await task).output == [1, 2, 3]
    assert stage.run("r").attempt == 2


class Through(Agent):
    """Has functions of its own between the await and the step, or hands on what they gave."""

    async def run(self, input: str, run: RunContext) -> list[Any]:
        def traced(name: str) -> Any:
            return run.step(name, self.seven)

        def next_of(name: str) -> Any:
            value = traced(name)
            return self.same(value + 1)

        also: Any = lambda name: (lambda: traced(name))()  # noqa: E731, PLC3002
        step: Any = run.step
        stash: Any = run.stash
        emit: Any = run.emit
        if input:
            wrong = {
                "gather": lambda: asyncio.gather(step("w", self.seven), step("x", self.seven)),
                "wait_for": lambda: asyncio.wait_for(step("w", self.seven), 5),
                "create_task": lambda: asyncio.create_task(step("w", self.seven)),
                "later": lambda: self.later(step("w", self.seven)),
                "other": lambda: self.later(self.seven()),
            }
            await wrong[input]()
        found = [await traced("a"), await also("b"), traced("c"), [*map(traced, "d")]]
        found.append(await self.same(*map(traced, "ef")))
        found += await next_of("g")
        found += [await stash(input), stash(input), await emit(1), emit(1)]
        return [*found, *await self.run_fiber("stashing", self.stashing)]

    async def stashing(self, fiber: FiberContext) -> list[Any]:
        stash: Any = fiber.stash
        return [await stash(1), stash(2), fiber.snapshot]

    async def same(self, *values: Any) -> Any:
        return list(values)

    async def later(self, value: Any) -> Any:
        return await value

    def seven(self) -> int:
        return 7


async def test_a_sync_step_may_be_awaited_through_functions_and_so_may_what_a_context_keeps(stage: Stage) -> None:
    ended = await stage.client.run(Through, "")
    assert (ended.error, ended.output) == ("", [7, 7, 7, [7], [7, 7], 8, None, None, None, None, True, True, 2])


@pytest.mark.parametrize("way", ["gather", "wait_for", "create_task", "later"])
async def test_who_has_the_value_of_a_sync_step_awaited_elsewhere_is_told_what_to_do(stage: Stage, way: str) -> None:
    error = (await stage.client.run(Through, way)).error
    assert "is sync, so that gave its value, which is remembered: await the call itself" in error
    assert error.startswith("TypeError: ")


async def test_an_error_of_a_run_without_such_a_step_says_nothing_of_steps(stage: Stage) -> None:
    error = (await stage.client.run(Through, "other")).error
    assert error.startswith("TypeError: ")
    assert "step" not in error


class Hasty(Agent):
    """Gives a step what the job gives, and not the job."""

    async def run(self, input: int, run: RunContext) -> list[Any]:
        with pytest.raises(BadRequest, match="job: 1 is no function") as refused:
            run.step("s", input)  # type: ignore[call-overload]
        step: Any = run.step
        for args, named, words in (
            (("x",), {}, "job: a step calls it without arguments; bind them: `functools.partial"),
            ((), {"args": ["x"]}, "args: is no argument of step; bind what it takes by `functools.partial`"),
            ((), {"retries": 3}, "retries: is no argument of step; did you mean 'retry'?"),
        ):
            with pytest.raises(BadRequest, match=re.escape(words)):
                step("s", lambda *_, **__: pytest.fail("it was called"), *args, **named)
        return [refused.value.field, run.step("s", lambda: input + 1)]


async def test_a_step_without_a_job_or_with_arguments_for_it_is_refused_before_it_is_remembered(stage: Stage) -> None:
    assert (await stage.client.run(Hasty, 1)).output == ["job", 2]
