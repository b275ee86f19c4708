"""Cancel and clear: durable, repeatable, all the way down, and nothing cleared comes back."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from perdure.ledger import UnknownRun
from tests.actors.cast import Boss, Hooked, Sleeper, Stubborn, Worker
from tests.actors.stories import Told, settled, told_by
from tests.kit import ROOMY, Stage, address, staged

HOUR_MS = 3_600_000


async def kinds_of(stage: Stage, run_id: str) -> list[str]:
    return [frame["event"]["kind"] for frame in await stage.client.ask("frames", run_id, -1)]


@pytest.mark.shows(agent_tools="11 157", chat_recovery="C-0929")
async def test_a_cancelled_run_is_aborted_its_child_stopped_and_its_parent_told_once(stage: Stage) -> None:
    await stage.call(Boss, "detach", "Sleeper", HOUR_MS, "s")
    await stage.until(lambda: stage.status("s") == "running")
    await stage.call(Boss, "cancel", "s", "not wanted any more")
    assert await settled(stage, Boss, 1) == [Told("done", "s", "aborted")]
    run = stage.record("s")
    assert run is not None
    assert (run.status, run.error) == ("aborted", "not wanted any more")
    assert not stage.host_of(address(Sleeper, "s"))
    assert (await kinds_of(stage, "s")).count("aborted") == 1


@pytest.mark.shows(agent_tools="9")
async def test_who_waits_for_a_cancelled_run_is_given_the_abort_and_no_mail_is_sent(stage: Stage) -> None:
    waiting = asyncio.create_task(stage.call(Boss, "wait_for", "Sleeper", HOUR_MS, "s"))
    await stage.until(lambda: stage.status("s") == "running")
    await stage.call(Boss, "cancel", "s", "enough")
    told = await waiting
    assert (told["status"], told["error"]) == ("aborted", "enough")
    assert stage.deliveries()["enqueued"] == 0


async def test_a_cancelled_awaited_run_calls_the_finish_hook_once(stage: Stage) -> None:
    waiting = asyncio.create_task(stage.call(Hooked, "wait_for", "Sleeper", HOUR_MS, "s"))
    await stage.until(lambda: stage.status("s") == "running")
    await stage.call(Hooked, "cancel", "s")
    assert (await waiting)["status"] == "aborted"
    assert [row for row in await settled(stage, Hooked, 2) if row.what == "hook"] == [Told("hook", "s", "aborted")]


@pytest.mark.shows(agent_tools="79 W-23", chat_recovery="C-0872")
async def test_a_cancel_can_be_repeated_and_a_late_result_does_not_change_it(stage: Stage) -> None:
    await stage.call(Boss, "detach", "Stubborn", 20_000, "s")
    await stage.until(lambda: stage.status("s") == "running")
    for _ in range(3):
        await stage.call(Boss, "cancel", "s", "enough")
    assert await settled(stage, Boss, 1) == [Told("done", "s", "aborted")]
    assert stage.status("s") == "aborted"
    assert not stage.host_of(address(Stubborn, "s"))


async def test_a_cancel_of_a_run_that_has_ended_changes_nothing(stage: Stage) -> None:
    await stage.call(Boss, "detach", "Sleeper", 10, "s")
    await settled(stage, Boss, 1, quiet_s=1)
    await stage.call(Boss, "cancel", "s")
    assert await settled(stage, Boss, 1) == [Told("done", "s", "completed")]


@pytest.mark.shows(agent_tools="W-13")
@staged(limits=replace(ROOMY, hosts_max=1, hosts_warm=1, pack_max=1))
async def test_a_run_that_was_cancelled_before_it_had_a_place_never_starts(stage: Stage) -> None:
    await stage.call(Boss, "detach", "Worker", {"steps": 1}, "w")
    await stage.call(Boss, "cancel", "w")
    await asyncio.sleep(60)
    run = stage.record("w")
    assert run is not None
    assert run.status == "aborted"
    assert not stage.laboratory.disk.has(address(Worker, "w"))


@pytest.mark.shows(agent_tools="153", chat_recovery="C-0925")
async def test_a_cancel_goes_down_to_whatever_is_waited_for(stage: Stage) -> None:
    await stage.call(Boss, "detach", "Boss", {"wait": ["Boss", {"wait": ["Sleeper", HOUR_MS, "low"]}, "mid"]}, "top")
    await stage.until(lambda: stage.status("low") == "running")
    await stage.call(Boss, "cancel", "top")
    await stage.until(lambda: not any(stage.host_of(a) for a in (address(Boss, "mid"), address(Sleeper, "low"))))
    assert [stage.status(run_id) for run_id in ("top", "mid", "low")] == ["aborted"] * 3


@pytest.mark.shows(agent_tools="107 160", chat_recovery="C-0900 C-0932")
async def test_a_cancel_ends_the_attempt_that_followed_a_death(stage: Stage) -> None:
    await stage.call(Boss, "detach", "Sleeper", HOUR_MS, "s")
    await stage.until(lambda: stage.status("s") == "running")
    stage.kill_host_of(address(Sleeper, "s"))
    await stage.until(lambda: bool((run := stage.record("s")) and run.attempt == 2 and run.confirmed))
    await stage.call(Boss, "cancel", "s")
    assert await settled(stage, Boss, 1) == [Told("done", "s", "aborted")]
    assert not stage.host_of(address(Sleeper, "s"))


async def test_a_cancel_after_a_give_up_makes_it_final(stage: Stage) -> None:
    await stage.call(Boss, "detach", "Sleeper", HOUR_MS, "s", {"max_budget_ms": 500})
    await settled(stage, Boss, 1, quiet_s=1)
    await stage.call(Boss, "cancel", "s")
    assert [row.status for row in await settled(stage, Boss, 2)] == ["interrupted", "aborted"]


@pytest.mark.parametrize("name", ["p", "somebody else"])
async def test_a_cancel_of_an_unknown_or_a_foreign_run_names_the_run(stage: Stage, name: str) -> None:
    await stage.call(Boss, "detach", "Sleeper", 10, "s", name="owner")
    for run_id in ("s", "nobody"):
        with pytest.raises(UnknownRun) as refused:
            await stage.call(Boss, "cancel", run_id, name=name)
        assert refused.value.field == "run_id"


@pytest.mark.shows(agent_tools="177 183")
async def test_a_clear_forgets_runs_their_events_and_their_storage_for_ever(stage: Stage) -> None:
    for number in range(3):
        await stage.call(Boss, "wait_for", "Worker", {"steps": 1}, f"w{number}")
    assert await stage.call(Boss, "clear") == 3
    await stage.until(lambda: not stage.view.runs)
    assert not stage.laboratory.disk.has(address(Worker, "w0"))
    assert await stage.call(Boss, "inspect", "w0") is None
    assert not await stage.call(Boss, "has", "Worker", "w0")
    with pytest.raises(UnknownRun):
        await stage.client.ask("frames", "w0", -1)
    stage.simulation.kill("supervisor")
    await asyncio.sleep(5)
    assert await stage.client.ask("list", None, None, None, 10) == []


async def test_how_much_would_be_deleted_is_told_and_nothing_is(stage: Stage) -> None:
    for number in range(3):
        await stage.call(Boss, "wait_for", "Worker", {"steps": 1}, f"w{number}")
    boss = stage.run("w0").parent
    assert await stage.client.ask("at_stake", ["w0"]) == {"runs": 1, "live": 0, "sub_agents": 0, "mail": 0}
    assert await stage.client.ask("at_stake", [], boss) == {"runs": 3, "live": 0, "sub_agents": 0, "mail": 0}
    with pytest.raises(UnknownRun):
        await stage.client.ask("at_stake", ["w0", "unknown"])
    assert len(await stage.client.ask("list", boss, None, None, 10)) == 3


async def test_a_cleared_id_can_be_used_again_for_something_else(stage: Stage) -> None:
    await stage.call(Boss, "wait_for", "Doubler", {"n": 1}, "x")
    await stage.call(Boss, "clear")
    await stage.until(lambda: stage.record("x") is None)
    assert (await stage.call(Boss, "wait_for", "Doubler", {"n": 5}, "x"))["output"] == 10


@pytest.mark.shows(agent_tools="W-39")
async def test_a_clear_cancels_what_is_live_tells_no_handler_and_sends_a_last_event(stage: Stage) -> None:
    await stage.call(Boss, "detach", "Sleeper", HOUR_MS, "s")
    await stage.until(lambda: stage.status("s") == "running")
    heard: list[str] = []

    async def listen() -> None:
        heard.extend([frame["event"]["kind"] async for frame in stage.client.follow("s")])

    listening = asyncio.create_task(listen())
    await asyncio.sleep(1)
    assert await stage.call(Boss, "clear") == 1
    await listening
    assert heard[-1] in ("aborted", "cleared")
    await asyncio.sleep(30)
    assert await told_by(stage, Boss) == []
    assert not stage.host_of(address(Sleeper, "s"))
    assert stage.deliveries()["suppressed"] == 1


async def test_who_waits_for_a_run_that_is_cleared_is_told_that_it_was_aborted(stage: Stage) -> None:
    waiting = asyncio.create_task(stage.call(Boss, "wait_for", "Sleeper", HOUR_MS, "s"))
    await stage.until(lambda: stage.status("s") == "running")
    await stage.call(Boss, "clear")
    told = await waiting
    assert (told["status"], told["error"]) == ("aborted", "cleared")


async def test_a_clear_can_be_limited_to_some_statuses_and_to_what_is_old(stage: Stage) -> None:
    await stage.call(Boss, "wait_for", "Doubler", {"n": 1}, "old")
    await stage.call(Boss, "wait_for", "Failing", "x", "bad")
    await asyncio.sleep(10)
    await stage.call(Boss, "wait_for", "Doubler", {"n": 1}, "new")
    run = stage.record("new")
    assert run is not None
    assert await stage.call(Boss, "clear", ["error"]) == 1
    assert await stage.call(Boss, "clear", None, run.requested_at_ms) == 1
    await stage.until(lambda: set(stage.view.runs) == {"new"})


async def test_a_clear_concerns_the_runs_of_its_own_agent_only(stage: Stage) -> None:
    await stage.call(Boss, "wait_for", "Doubler", {"n": 1}, "mine")
    await stage.call(Boss, "wait_for", "Doubler", {"n": 1}, "theirs", name="q")
    assert await stage.call(Boss, "clear") == 1
    await stage.until(lambda: set(stage.view.runs) == {"theirs"})


async def test_a_clear_takes_the_runs_of_the_cleared_children_along(stage: Stage) -> None:
    await stage.call(Boss, "wait_for", "Boss", {"wait": ["Worker", {"steps": 1}, "low"]}, "mid")
    assert await stage.call(Boss, "clear") == 1
    await stage.until(lambda: not stage.view.runs)
    assert not stage.laboratory.disk.has(address(Worker, "low"))
