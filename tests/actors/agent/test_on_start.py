"""`on_start` that does not return, or raises: whoever waits is told why, nothing is lost, and the agent comes up when it can."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from perdure.actors import Agent, Occurrence, RunContext, exposed, tell
from perdure.actors.link.wire import RemoteError
from perdure.ledger import StartTimedOut
from tests.kit import ROOMY, Stage, address, play, staged

LIMITS = replace(ROOMY, on_start_timeout_ms=20_000)
TOLD = r"on_start of p@.* did not return within 20000 ms \(on_start_timeout_ms\)"


class Follower(Agent):
    """Asks the one to which it belongs."""

    @exposed
    async def ask_back(self) -> int:
        return int(await self.parent.counted())


class Leader(Agent):
    """Waits in `on_start` for one who waits for it, so many times; or raises."""

    stands_alone = True

    hangs: ClassVar[int] = 0  # of this process; a test sets it
    raises: ClassVar[Exception | None] = None
    lives: ClassVar[int] = 0
    troubles: ClassVar[list[str]] = []

    async def on_start(self) -> None:
        type(self).lives += 1
        if type(self).hangs:
            type(self).hangs -= 1
            await self.sub_agent(Follower, "f").ask_back()  # type: ignore[misc]
        if type(self).raises is not None:
            raise type(self).raises

    async def on_error(self, error: Exception, doing: str) -> None:
        self.troubles.append(f"{doing}: {error}")

    async def run(self, input: str, run: RunContext) -> int:
        return run.attempt

    @exposed(repeatable=True)
    def counted(self) -> int:
        return int(self.state.get("count", 0))

    @exposed
    def count(self) -> None:
        self.state["count"] = self.state.get("count", 0) + 1

    @exposed
    def plan(self, seconds: float) -> None:
        self.schedule(seconds, "on_time")

    def on_time(self, payload: Any, occurrence: Occurrence) -> None:
        self.state["count"] = self.state.get("count", 0) + 1


@pytest.fixture(autouse=True)
def _nothing_hangs_yet() -> Any:
    Leader.hangs, Leader.raises, Leader.lives = 0, None, 0
    Leader.troubles.clear()


def test_two_that_wait_for_each_other_as_one_comes_up_are_both_told_and_the_next_life_comes_up() -> None:
    async def story(stage: Stage) -> float:
        Leader.hangs = 1
        began = asyncio.get_running_loop().time()
        calls = [asyncio.ensure_future(stage.call(Leader, "counted")) for _ in range(3)]
        for call in calls:
            with pytest.raises(StartTimedOut, match=TOLD) as told:
                await call
            assert (told.value.agent_id, told.value.timeout_ms) == (address(Leader, "p"), 20_000)
        took_s = asyncio.get_running_loop().time() - began
        assert await stage.call(Leader, "counted") == 0
        assert Leader.lives == 2
        (trouble,) = Leader.troubles
        assert trouble.startswith("on_start: on_start of p@")
        return took_s

    assert 20 <= play(story, limits=LIMITS) < 21


@staged(limits=LIMITS)
async def test_a_run_whose_child_does_not_come_up_gets_its_next_attempt(stage: Stage) -> None:
    Leader.hangs = 2
    result = await stage.client.run(Leader, "x", run_id="p")
    assert (result.output, Leader.lives) == (3, 3)
    assert "StartTimedOut: on_start of p@" in stage.run("p").cause


@staged(limits=LIMITS)
async def test_what_was_planned_is_done_by_a_later_life(stage: Stage) -> None:
    await stage.call(Leader, "plan", 60)
    await asyncio.sleep(30)
    assert not stage.host_of(address(Leader, "p"))
    Leader.hangs = 2
    await asyncio.sleep(300)
    assert await stage.call(Leader, "counted") == 1


@staged(limits=LIMITS)
async def test_its_own_timeout_is_what_it_raises(stage: Stage) -> None:
    Leader.raises = TimeoutError("the printer does not answer")
    with pytest.raises(RemoteError, match="TimeoutError: the printer does not answer"):
        await stage.call(Leader, "counted")


@pytest.mark.parametrize("problem", [ValueError("not today"), None])
@staged(limits=LIMITS)
async def test_mail_for_an_agent_that_does_not_come_up_is_tried_with_pauses_then_parked_and_never_lost(
    stage: Stage, problem: Exception | None
) -> None:
    leader: Any = stage.client.agent(Leader, "p")
    await tell(leader.count)
    await stage.until(lambda: stage.deliveries()["delivered"] == 1 and not stage.host_of(address(Leader, "p")))
    Leader.raises, Leader.hangs, Leader.lives = problem, 0 if problem else 1_000, 0
    await tell(leader.count)
    await stage.until(lambda: stage.deliveries()["parked"] == 1)
    assert Leader.lives == LIMITS.handler_attempts_max
    (parked,) = (await stage.client.ask("audit"))["parked_mail"]
    assert parked["error"].startswith("the agent could not come up: ")
    assert ("not today" if problem else "did not return within") in parked["error"]
    Leader.raises, Leader.hangs = None, 0
    await stage.client.ask("retry", parked["mail_id"])
    await stage.until(lambda: stage.deliveries()["delivered"] == 2)
    assert await stage.call(Leader, "counted") == 2
