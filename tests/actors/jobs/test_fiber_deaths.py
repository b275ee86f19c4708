"""Fibers whose process dies: the next life takes them up, whatever was going on, and nothing that finished is done again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from perdure.actors import FiberResult, KillPoint
from perdure.actors.jobs.fiber_store import GroupCommit
from perdure.ledger.storage.agent_storages import Transaction
from tests.actors.fiber_cast import Jobs, Recovering
from tests.actors.supervisor.test_deaths import Here, at
from tests.kit import Stage, address, play


@pytest.fixture(autouse=True)
def _nothing_happened_yet() -> None:
    for each in (Jobs.effects, Jobs.seen, Recovering.asked, Recovering.verdicts):
        each.clear()
    Recovering.nap_s = 0


class Strike:
    """Kills the host of the agent when the moment comes, so many times."""

    def __init__(self, here: Here, times: int = 1) -> None:
        self.here, self.left, self.struck = here, times, 0

    def __call__(self, stage: Stage, process: str, point: KillPoint, detail: str) -> bool:
        if not self.left or process in ("client", "supervisor") or not self.here(stage, point, detail):
            return False
        self.left -= 1
        self.struck += 1
        return True


def storage_write(number: int) -> Here:
    """Around the n-th durable write of any host."""
    left = [number]

    def here(_stage: Stage, point: KillPoint, detail: str) -> bool:
        if point is not KillPoint.MID_STORAGE:
            return False
        left[0] -= 1
        return left[0] == 0

    return here


MOMENTS = {
    "before its first line": at(KillPoint.BEFORE_RUN, about="fiber f"),
    "after its last line": at(KillPoint.BEFORE_REPORT, about="fiber f"),
    **{f"around durable write {number}": storage_write(number) for number in range(3, 12)},
}


@pytest.mark.shows(chat_recovery="C-1358", fibers="F41 weakness-9 W1 W2 W6 case-6")
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_fiber_with_retry_comes_to_its_end_whenever_it_is_killed(moment: str) -> None:
    strike = Strike(MOMENTS[moment])

    async def story(stage: Stage) -> None:
        await stage.call(Jobs, "start", "slow", None, {"fiber_id": "f", "retry": True})
        told = await stage.call(Jobs, "wait", "f")
        assert (told["status"], told["snapshot"]) == ("completed", {"done": 2})
        assert all(1 <= Jobs.effects[f"slow {number}"] <= 2 for number in range(3))
        assert sum(Jobs.effects.values()) <= 4, "at most the step in which it died was done twice"
        assert told["attempt"] <= 2

    play(story, kill_when=strike)
    assert strike.struck


@pytest.mark.shows(chat_recovery="C-1363", fibers="F46")
async def test_without_hook_and_retry_it_stays_interrupted_until_somebody_resolves_it(stage: Stage) -> None:
    await stage.call(Jobs, "start", "forever", None, {"fiber_id": "f"})
    waiting = asyncio.ensure_future(stage.call(Jobs, "wait", "f"))
    await asyncio.sleep(1)
    stage.kill_host_of(address(Jobs, "p"))
    told = await waiting
    assert (told["status"], told["is_recovering"], told["snapshot"]) == ("interrupted", False, "here")
    assert "died" in told["error"]
    assert Jobs.effects["forever"] == 1
    assert await stage.call(Jobs, "resolve", "f", "completed", "by hand")
    assert not await stage.call(Jobs, "resolve", "f", "error")
    told = await stage.call(Jobs, "inspect", "f")
    assert (told["status"], told["snapshot"], told["error"]) == ("completed", "by hand", None)


async def test_a_person_may_have_an_interrupted_fiber_entered_again(stage: Stage) -> None:
    await stage.call(Jobs, "start", "slow", None, {"fiber_id": "f"})
    await asyncio.sleep(1.5)
    stage.kill_host_of(address(Jobs, "p"))
    assert (await stage.call(Jobs, "wait", "f"))["status"] == "interrupted"
    assert await stage.call(Jobs, "resolve", "f", "retry")
    told = await stage.call(Jobs, "wait", "f")
    assert (told["status"], told["attempt"]) == ("completed", 2)
    assert Jobs.effects["slow 0"] == 1, "finished steps are remembered"


@pytest.mark.shows(chat_recovery="C-0941 C-1357 C-1359 C-1362", fibers="F40 F42 F45 F52")
@pytest.mark.parametrize("status", ["completed", "error", "aborted", "interrupted"])
def test_the_hook_decides_what_becomes_of_it(status: Any) -> None:
    Recovering.verdicts.append(FiberResult(status, error="because", snapshot={"told": 1}, metadata={"new": True}))

    async def story(stage: Stage) -> None:
        options = {"fiber_id": "f", "idempotency_key": "k", "metadata": {"old": True}, "name": "job"}
        began = await stage.call(Recovering, "start", "forever", None, options)
        waiting = asyncio.ensure_future(stage.call(Recovering, "wait", "f"))
        await asyncio.sleep(1)
        stage.kill_host_of(address(Recovering, "p"))
        told = await waiting
        assert (told["status"], told["error"], told["snapshot"]) == (status, "because", {"told": 1})
        assert (told["metadata"], told["is_recovering"]) == ({"new": True}, False)
        (asked,) = Recovering.asked
        del asked["at_s"]
        assert asked == {
            "id": "f",
            "name": "job",
            "key": "k",
            "metadata": {"old": True},
            "snapshot": "here",
            "attempt": 1,
            "recoveries": 1,
            "managed": True,
            "created_at_ms": began["created_at_ms"],
            "reason": "interrupted",
        }

    play(story)


def test_the_hook_may_have_it_entered_again() -> None:
    Recovering.verdicts.append("retry")

    async def story(stage: Stage) -> None:
        await stage.call(Recovering, "start", "slow", None, {"fiber_id": "f"})
        await asyncio.sleep(1.5)
        stage.kill_host_of(address(Recovering, "p"))
        told = await stage.call(Recovering, "wait", "f")
        assert (told["status"], told["attempt"], len(Recovering.asked)) == ("completed", 2, 1)
        assert Jobs.effects["slow 0"] == 1

    play(story)


@pytest.mark.shows(chat_recovery="C-1360", fibers="F43 weakness-2 W13 case-2")
def test_while_it_is_being_recovered_it_is_not_over_and_whoever_waits_goes_on_waiting() -> None:
    """§13.7, 2: a duplicate that comes during the recovery joins, and the body runs no second time."""
    Recovering.verdicts.append(FiberResult("completed"))
    Recovering.nap_s = 20

    async def story(stage: Stage) -> None:
        await stage.call(Recovering, "start", "forever", None, {"idempotency_key": "k"})
        await asyncio.sleep(1)
        stage.kill_host_of(address(Recovering, "p"))
        await stage.until(lambda: bool(Recovering.asked))
        again = await stage.call(Recovering, "start", "forever", None, {"idempotency_key": "k"})
        assert (again["accepted"], again["status"], again["is_recovering"]) == (False, "interrupted", True)
        assert again["settled_at_ms"] is None
        joined = {"idempotency_key": "k", "wait_for_completion": True}
        told = await stage.call(Recovering, "start", "forever", None, joined)
        assert (told["accepted"], told["status"]) == (False, "completed")
        assert Jobs.effects["forever"] == 1
        assert len(Recovering.asked) == 1

    play(story)


@pytest.mark.shows(chat_recovery="C-1339", fibers="F22 weakness-1 weakness-7 W9 W10 case-1 case-5")
@pytest.mark.parametrize("times", [1, 3])
def test_a_death_in_the_hook_has_it_called_again_after_a_longer_pause_each_time(times: int) -> None:
    """§13.7, 1 and 5: at least once, bounded, and the pause outlives the process."""
    Recovering.verdicts.append(FiberResult("completed"))
    strike = Strike(at(KillPoint.MID_HANDLER, about="recovery of fiber f"), times)

    async def story(stage: Stage) -> None:
        await stage.call(Recovering, "start", "forever", None, {"fiber_id": "f"})
        await asyncio.sleep(1)
        stage.kill_host_of(address(Recovering, "p"))
        told = await stage.call(Recovering, "wait", "f")
        assert told["status"] == "completed"
        assert [each["recoveries"] for each in Recovering.asked] == list(range(1, times + 2))
        began = [each["at_s"] for each in Recovering.asked]
        pauses = [after - before for before, after in pairwise(began)]
        assert all(pause >= 0.5 * 2**place for place, pause in enumerate(pauses)), pauses

    play(story, kill_when=strike)
    assert strike.struck == times


@pytest.mark.shows(fibers="W12")
async def test_a_cancelled_fiber_is_not_recovered(stage: Stage) -> None:
    """W12."""
    await stage.call(Recovering, "start", "stubborn", None, {"fiber_id": "f"})
    await asyncio.sleep(1)
    assert await stage.call(Recovering, "cancel", "f", "no more")
    stage.kill_host_of(address(Recovering, "p"))
    await asyncio.sleep(60)
    told = await stage.call(Recovering, "inspect", "f")
    assert (told["status"], told["error"], Recovering.asked) == ("aborted", "no more", [])


def test_a_cancel_during_the_recovery_ends_it_and_the_hook() -> None:
    Recovering.verdicts.append(FiberResult("completed"))
    Recovering.nap_s = 20

    async def story(stage: Stage) -> None:
        await stage.call(Recovering, "start", "forever", None, {"fiber_id": "f"})
        await asyncio.sleep(1)
        stage.kill_host_of(address(Recovering, "p"))
        await stage.until(lambda: bool(Recovering.asked))
        assert await stage.call(Recovering, "cancel", "f", "enough")
        await asyncio.sleep(60)
        assert (await stage.call(Recovering, "inspect", "f"))["status"] == "aborted"
        assert len(Recovering.asked) == 1

    play(story)


@pytest.mark.parametrize("kind", [Jobs, Recovering], ids=["decided at once", "asked of the hook"])
@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_fiber_that_is_cancelled_while_its_recovery_waits_for_its_commit_stays_aborted(
    kind: type[Jobs], is_cancelled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = GroupCommit.__call__
    cancels: list[Callable[[], bool]] = []

    async def overtaken(self: GroupCommit, job: Callable[[Transaction], object]) -> object:
        if cancels:
            assert cancels.pop()()
        return await commit(self, job)

    async def story(stage: Stage) -> None:
        await stage.call(kind, "start", "forever", None, {"fiber_id": "f", "retry": {"attempts_max": 3}})
        await asyncio.sleep(1)
        if is_cancelled:
            cancels.append(lambda: living(stage, kind).fibers.cancel("f", "no more"))
        stage.kill_host_of(address(kind, "p"))
        await asyncio.sleep(60)
        assert not cancels, "nothing waited for a commit"
        told = await stage.call(kind, "inspect", "f")
        seen = told["status"], len(Recovering.asked), Jobs.effects["forever"]
        asked = kind is Recovering and not is_cancelled
        assert seen == ("aborted", 0, 1) if is_cancelled else ("completed", 1, 1) if asked else ("running", 0, 2)

    Recovering.verdicts.append(FiberResult("completed"))
    monkeypatch.setattr(GroupCommit, "__call__", overtaken)
    play(story)


def living(stage: Stage, kind: type[Jobs]) -> Any:
    """The present life of the agent."""
    agent = address(kind, "p")
    return stage.laboratory.hosts[stage.host_of(agent)].tenants[agent]
