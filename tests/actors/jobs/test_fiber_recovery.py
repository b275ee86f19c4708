"""Recovery of fibers: outside of the start, a few at a time, with limits for hooks that hang, raise or kill; and work without a record."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from perdure.actors import FiberResult, KillPoint
from perdure.actors.events.observability import subscribe
from perdure.actors.sim_world.simulation import EPOCH_MS
from perdure.ledger import BadRequest
from tests.actors.fiber_cast import Jobs, Recovering, Slowly
from tests.actors.jobs.test_fiber_deaths import Strike
from tests.actors.supervisor.test_deaths import at
from tests.kit import ROOMY, Stage, address, play, staged


@pytest.fixture(autouse=True)
def _nothing_happened_yet() -> None:
    for each in (Jobs.effects, Jobs.seen, Recovering.asked, Recovering.verdicts):
        each.clear()
    Recovering.nap_s = 0
    Slowly.hung.clear()


async def killed(stage: Stage, kind: type[Jobs] = Recovering, after_s: float = 1) -> None:
    await asyncio.sleep(after_s)
    stage.kill_host_of(address(kind, "p"))


# work without a record


@pytest.mark.shows(chat_recovery="C-1318 C-1319 C-1320 C-1343", fibers="F1 F2 F3 F26")
async def test_unmanaged_work_gives_what_it_gives_and_leaves_nothing(stage: Stage) -> None:
    assert await stage.call(Jobs, "run_one", "work") == "worked"
    with pytest.raises(Exception, match="broken"):
        await stage.call(Jobs, "run_one", "broken")
    assert await stage.call(Jobs, "rows") == {}


@pytest.mark.shows(chat_recovery="C-1321 C-1342", fibers="F4 F25")
@staged(limits=replace(ROOMY, idle_ms=500))
async def test_unmanaged_work_that_nobody_waits_for_keeps_its_agent_awake(stage: Stage) -> None:
    await stage.call(Jobs, "forget_about", 3)
    await stage.until(lambda: Jobs.effects["work"] == 9)
    await asyncio.sleep(2)
    assert await stage.call(Jobs, "rows") == {}


@pytest.mark.shows(chat_recovery="C-1322 C-1323 C-1324 C-1328", fibers="F5 F6 F7 F11")
async def test_a_stash_goes_to_the_fiber_that_the_code_belongs_to(stage: Stage) -> None:
    assert await stage.call(Jobs, "stash_in_two") == ["a", "b"]
    with pytest.raises(BadRequest, match="outside of a fiber"):
        await stage.call(Jobs, "stash_outside")


@pytest.mark.shows(chat_recovery="C-0940 C-1330 C-1331 C-1332 C-1334 C-1335", fibers="F13 F14 F15 F17 F18 F24 F51 W3")
async def test_unmanaged_work_that_died_is_told_to_the_hook_once_with_what_it_stashed(stage: Stage) -> None:
    begun_ms = int(EPOCH_MS + stage.laboratory.simulation.now_ms())
    await stage.call(Recovering, "forget_about", 1, 1)
    await killed(stage, after_s=0.5)
    died_ms = EPOCH_MS + stage.laboratory.simulation.now_ms()
    await stage.until(lambda: len(Recovering.asked) == 2)
    await stage.until(lambda: not stage.host_of(address(Recovering, "p")))
    assert not stage.view.alarmed, "nothing is left to be woken for"
    assert await stage.call(Recovering, "rows") == {}
    stage.kill_host_of(address(Recovering, "p"))
    await asyncio.sleep(60)
    assert sorted((each["managed"], repr(each["snapshot"]), each["recoveries"]) for each in Recovering.asked) == [
        (False, "0", 1),
        (False, "None", 1),
    ]
    assert [(each["name"], each["reason"]) for each in Recovering.asked] == [("unmanaged", "interrupted")] * 2
    assert len({each["id"] for each in Recovering.asked}) == 2
    assert all(begun_ms <= each["created_at_ms"] <= died_ms for each in Recovering.asked)


def test_of_five_fibers_that_died_together_each_is_told_to_the_hook_once() -> None:
    """Three without a record and two with one; those with one end as the hook says."""
    Recovering.verdicts.append(FiberResult("completed"))

    async def story(stage: Stage) -> None:
        for name in ("first", "second"):
            await stage.call(Recovering, "start", "forever", None, {"fiber_id": name})
        await stage.call(Recovering, "forget_about", 3)
        await killed(stage, after_s=0.5)
        await stage.until(lambda: len(Recovering.asked) == 5)
        await asyncio.sleep(60)
        assert len({each["id"] for each in Recovering.asked}) == len(Recovering.asked) == 5
        assert sorted(each["managed"] for each in Recovering.asked) == [False] * 3 + [True] * 2
        for name in ("first", "second"):
            assert (await stage.call(Recovering, "inspect", name))["status"] == "completed"
        assert "fiber_open" not in await stage.call(Recovering, "rows")

    play(story)


@pytest.mark.shows(chat_recovery="C-1337", fibers="F20 F61")
def test_unmanaged_work_is_forgotten_when_nobody_takes_it_up() -> None:
    limits = replace(ROOMY, fiber_recoveries_max=3)
    Recovering.verdicts.append(ValueError("not today"))

    async def story(stage: Stage) -> None:
        for kind in (Jobs, Recovering):
            await stage.call(kind, "forget_about", 1)
            await killed(stage, kind)
            await asyncio.sleep(60)
            assert await stage.call(kind, "rows") == {}
        assert len(Recovering.asked) == 3

    play(story, limits=limits)


# hooks


@pytest.mark.shows(chat_recovery="C-1336 C-1364", fibers="F19 F47")
def test_a_hook_that_fails_is_called_again_and_then_the_fiber_stays_interrupted() -> None:
    Recovering.verdicts.append(ValueError("not today"))

    async def story(stage: Stage) -> None:
        await stage.call(Recovering, "start", "forever", None, {"fiber_id": "f"})
        await killed(stage)
        await stage.until(lambda: bool(Recovering.asked))
        told = await stage.call(Recovering, "inspect", "f")
        assert (told["is_recovering"], told["recoveries"]) == (True, 1)
        assert "hook failed" in told["error"]
        assert told["next_try_at_ms"]
        told = await stage.call(Recovering, "wait", "f")
        assert (told["status"], told["snapshot"]) == ("interrupted", "here")
        assert "in 3 tries" in told["error"]
        assert len(Recovering.asked) == 3

    play(story, limits=replace(ROOMY, fiber_recoveries_max=3))


@pytest.mark.shows(chat_recovery="C-1338 C-1340 C-1341", fibers="F21 F23 F62 weakness-8")
def test_a_hook_that_fails_at_first_may_succeed_later_also_after_the_agent_slept() -> None:
    Recovering.verdicts[:] = [ValueError("not today")] * 6 + [FiberResult("completed")]

    async def story(stage: Stage) -> None:
        await stage.call(Recovering, "start", "forever", None, {"fiber_id": "f"})
        await killed(stage)
        await stage.until(lambda: len(Recovering.asked) == 6)
        await stage.until(lambda: not stage.host_of(address(Recovering, "p")))
        await stage.until(lambda: len(Recovering.asked) == 7)
        await asyncio.sleep(1)
        told = await stage.call(Recovering, "inspect", "f")
        assert (told["status"], told["error"]) == ("completed", None)

    play(story)


@pytest.mark.shows(fibers="weakness-4 weakness-5 case-3")
@pytest.mark.parametrize("stubborn", [False, True])
def test_a_hook_that_hangs_is_cancelled_and_holds_up_nobody(stubborn: bool) -> None:
    """§13.7, 3: neither the start of the agent, nor a call, nor the recovery of the others."""
    limits = replace(ROOMY, fiber_recoveries_at_once_max=2, fiber_recovery_timeout_ms=10_000)

    async def story(stage: Stage) -> None:
        for name in ("hangs", "hangs too", "quick"):
            options = {"fiber_id": name, "metadata": {"hangs": name != "quick", "stubborn": stubborn}}
            await stage.call(Slowly, "start", "forever", None, options)
        await killed(stage, Slowly)
        asked_s = asyncio.get_running_loop().time()
        await stage.call(Slowly, "inspect", "quick")
        assert asyncio.get_running_loop().time() - asked_s < 5, "calls do not wait"
        told = await stage.call(Slowly, "wait", "quick")
        assert told["status"] == "completed"
        assert asyncio.get_running_loop().time() - asked_s < 15, "the others wait for its time at most"
        told = await stage.call(Slowly, "inspect", "hangs")
        assert told["is_recovering"]
        await stage.until(lambda: Slowly.hung["hangs"] == 2)
        assert Slowly.effects["hook cancelled"] >= 2
        assert await stage.call(Slowly, "cancel", "hangs")
        assert await stage.call(Slowly, "cancel", "hangs too")

    play(story, limits=limits)


@pytest.mark.shows(fibers="F60 F63 weakness-6 case-4")
def test_many_are_recovered_a_few_at_a_time_the_oldest_first() -> None:
    """§13.7, 4."""
    limits = replace(ROOMY, fiber_recoveries_at_once_max=3)
    Recovering.verdicts.append(FiberResult("completed"))
    Recovering.nap_s = 2

    async def story(stage: Stage) -> None:
        assert await stage.call(Recovering, "start_many", 12, "forever") == 12
        await killed(stage)
        await stage.until(lambda: len(Recovering.asked) == 12)
        assert [each["key"] for each in Recovering.asked] == [f"k{number}" for number in range(12)]
        began = [each["at_s"] for each in Recovering.asked]
        assert max(sum(start <= at_s < start + 1.9 for at_s in began) for start in began) == 3

    play(story, limits=limits)


@pytest.mark.shows(fibers="weakness-16")
def test_no_recovery_begins_before_the_agent_has_come_up() -> None:
    Recovering.verdicts.append(FiberResult("completed"))
    Slowly.start_s = 20

    async def story(stage: Stage) -> None:
        await stage.call(Slowly, "start", "forever", None, {"fiber_id": "f"})
        await killed(stage, Slowly)
        told = await stage.call(Slowly, "wait", "f")
        assert told["status"] == "completed"
        assert Slowly.seen == ["up", "up", "asked"]

    try:
        play(story)
    finally:
        Slowly.start_s = 0


def test_a_fiber_that_is_started_while_the_agent_comes_up_begins_afterwards() -> None:
    async def story(stage: Stage) -> None:
        Slowly.on_start_fiber = "early"
        assert await stage.call(Slowly, "inspect", "early") is not None
        await stage.until(lambda: Slowly.effects["quick"] == 1)
        assert (await stage.call(Slowly, "wait", "early"))["attempt"] == 1

    try:
        play(story)
    finally:
        Slowly.on_start_fiber = ""


async def test_a_fiber_may_name_its_own_hook_which_decides_by_what_was_stashed(stage: Stage) -> None:
    await stage.call(Recovering, "start", "slow", None, {"fiber_id": "f", "on_recovered": "own_hook"})
    await killed(stage, after_s=1.5)
    told = await stage.call(Recovering, "wait", "f")
    assert (told["status"], told["snapshot"]) == ("completed", {"after": {"done": 1}})
    assert Recovering.asked == []


@pytest.mark.shows(fibers="W11")
async def test_a_hook_may_resolve_the_fiber_itself_and_start_another(stage: Stage) -> None:
    await stage.call(Recovering, "start", "forever", None, {"fiber_id": "f", "on_recovered": "hands_on"})
    await killed(stage)
    told = await stage.call(Recovering, "wait", "f")
    assert (told["status"], told["snapshot"]) == ("completed", "handed on")
    assert (await stage.call(Recovering, "wait", "f, continued"))["status"] == "completed"
    assert Jobs.effects["quick"] == 1


# bodies


async def test_a_body_that_raises_is_entered_again_if_it_may(stage: Stage) -> None:
    told = await stage.call(Jobs, "start", "flaky", 2, {"retry": 3, "wait_for_completion": True})
    assert (told["status"], told["attempt"], told["error"]) == ("completed", 3, None)
    told = await stage.call(Jobs, "start", "flaky", 3, {"retry": 3, "wait_for_completion": True})
    assert (told["status"], told["attempt"], told["error"]) == ("error", 3, "ValueError: attempt 3")


async def test_a_pause_between_attempts_keeps_nobody_awake_and_ends_in_time(stage: Stage) -> None:
    options = {"fiber_id": "f", "retry": {"attempts_max": 2, "first_ms": 600_000, "most_ms": 600_000}}
    await stage.call(Jobs, "start", "flaky", 1, options)
    await asyncio.sleep(1)
    told = await stage.call(Jobs, "inspect", "f")
    assert (told["status"], told["attempt"], told["error"]) == ("pending", 1, "ValueError: attempt 1")
    await stage.until(lambda: not stage.host_of(address(Jobs, "p")))
    await stage.until(lambda: Jobs.effects["flaky"] == 2, timeout_ms=700_000)
    now_ms = stage.simulation.loop.time()
    assert 300 <= now_ms <= 610


def test_a_body_that_kills_its_process_uses_up_its_attempts() -> None:
    async def story(stage: Stage) -> None:
        await stage.call(Jobs, "start", "slow", None, {"fiber_id": "f", "retry": 3})
        told = await stage.call(Jobs, "wait", "f")
        assert (told["status"], told["attempt"], told["is_recovering"]) == ("interrupted", 3, False)
        assert "3 attempts" in told["error"]

    play(story, kill_when=Strike(at(KillPoint.BEFORE_RUN, about="fiber f"), times=10))


@staged(limits=replace(ROOMY, fibers_at_once_max=1))
async def test_fibers_that_wait_for_others_lend_their_places(stage: Stage) -> None:
    for number in range(3):
        await stage.call(Jobs, "start", "waits", f"inner {number}", {"fiber_id": f"outer {number}"})
    for number in range(3):
        told = await stage.call(Jobs, "wait", f"outer {number}")
        assert (told["status"], told["snapshot"]) == ("completed", "completed")


@pytest.mark.shows(fibers="case-7")
async def test_an_agent_that_is_stopped_in_the_middle_goes_on_with_its_fibers(stage: Stage) -> None:
    """A run of it is cancelled: what it does for itself is not."""
    await stage.client.start(Jobs, None, run_id="p")
    await stage.until(lambda: Jobs.effects["slow 1"] == 1)
    await stage.client.ask("cancel", "p", None, "enough")
    await stage.until(lambda: Jobs.effects["slow 2"] == 1)
    assert (await stage.call(Jobs, "wait", "own"))["status"] == "completed"
    assert Jobs.effects["slow 0"] == 1


async def test_an_agent_that_cannot_come_up_is_tried_again_while_its_fibers_wait(stage: Stage) -> None:
    await stage.call(Slowly, "start", "slow", None, {"fiber_id": "f", "retry": True})
    Slowly.start_failures = 3
    await killed(stage, Slowly)
    await stage.until(lambda: "asked" in Slowly.seen)
    assert Slowly.start_failures == 0
    assert (await stage.call(Slowly, "wait", "f"))["status"] == "completed"


@pytest.mark.shows(chat_recovery="C-1365", fibers="F48")
def test_those_who_observe_are_told_what_happens_to_fibers() -> None:
    seen: list[tuple[str, Any]] = []
    leave = subscribe("fiber", lambda event: seen.append((event.type, event.payload["fiber_id"])))
    Recovering.verdicts[:] = [ValueError("not today"), FiberResult("completed")]

    async def story(stage: Stage) -> None:
        await stage.call(Recovering, "start", "quick", 1, {"fiber_id": "q", "wait_for_completion": True})
        await stage.call(Recovering, "start", "failing", "no", {"fiber_id": "b", "wait_for_completion": True})
        await stage.call(Recovering, "start", "forever", None, {"fiber_id": "f"})
        await killed(stage)
        await stage.call(Recovering, "wait", "f")

    try:
        play(story)
    finally:
        leave()
    assert seen == [
        *[("fiber:run:started", "q"), ("fiber:run:completed", "q")],
        *[("fiber:run:started", "b"), ("fiber:run:failed", "b")],
        ("fiber:run:started", "f"),
        *[("fiber:run:interrupted", "f"), ("fiber:recovery:detected", "f")],
        *[("fiber:recovery:attempt", "f"), ("fiber:recovery:failed", "f")],
        *[("fiber:recovery:attempt", "f"), ("fiber:recovery:handled", "f")],
    ]


@pytest.mark.parametrize(
    ("verdict", "status", "error"),
    [
        ("completed", "completed", None),
        ("aborted", "aborted", None),
        ({"status": "error", "error": "it was half done"}, "error", "it was half done"),
        ({"status": "completed", "snapshot": 7}, "completed", None),
    ],
)
def test_a_hook_may_say_a_verdict_plainly(verdict: Any, status: str, error: str | None) -> None:
    Recovering.verdicts.append(verdict)

    async def story(stage: Stage) -> None:
        await stage.call(Recovering, "start", "slow", None, {"fiber_id": "f"})
        await killed(stage)
        told = await stage.call(Recovering, "wait", "f", 60_000)
        assert (told["status"], told["error"]) == (status, error)
        assert len(Recovering.asked) == 1

    play(story)


@pytest.mark.parametrize(
    "verdict", [7, "nonsense", {"status": "done"}, {"state": "completed"}, FiberResult("completed", snapshot={object})]
)
def test_what_is_no_verdict_is_an_error_at_once_and_a_person_decides(verdict: Any) -> None:
    Recovering.verdicts.append(verdict)

    async def story(stage: Stage) -> None:
        await stage.call(Recovering, "start", "slow", None, {"fiber_id": "f"})
        await killed(stage)
        told = await stage.call(Recovering, "wait", "f", 60_000)
        assert told["status"] == "interrupted"
        assert told["error"].startswith("its recovery hook returned what is no verdict: ")
        assert len(Recovering.asked) == 1
        assert await stage.call(Recovering, "resolve", "f", "completed")

    play(story)
