"""What is deleted is gone, whatever it was doing, and nothing of it comes back."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from perdure.actors.link.questions import WhichExist
from perdure.ledger import BadRequest, OutcomeUnknown, PerdureError, is_within
from tests.actors.family_cast import Elder, Kid, ask, kid
from tests.kit import ROOMY, Stage, address, staged


def is_gone(stage: Stage, agent: str) -> bool:
    """Neither the ledger nor the disk knows anything of the agent and its descendants."""
    stored = [each for each in (agent, kid("a"), kid("a", "b"), kid("a", "b", "c")) if is_within(each, agent)]
    return (
        not stage.view.doomed
        and not any(is_within(each, agent) for each in (*stage.view.agents, *stage.view.mailbox))
        and not any(stage.laboratory.disk.has(each) for each in stored)
    )


async def gone(stage: Stage, agent: str) -> None:
    """Let time pass until it is gone, and a while more, in which nothing may bring it back."""
    await stage.until(lambda: is_gone(stage, agent))
    await asyncio.sleep(200)
    assert is_gone(stage, agent)


async def test_who_calls_what_is_being_deleted_is_told_and_who_asks_for_it_again_gets_a_new_one(stage: Stage) -> None:
    await ask(stage, ["a"], "note", "old")
    call = asyncio.ensure_future(ask(stage, ["a"], "hang"))
    await asyncio.sleep(1)
    await stage.call(Elder, "drop", "a")
    with pytest.raises(OutcomeUnknown):
        await call
    assert await ask(stage, ["a"], "note", "new") == ["new"]


async def test_a_name_that_is_asked_for_in_the_same_breath_as_its_deletion_is_a_new_sub_agent(stage: Stage) -> None:
    for _ in range(3):
        await ask(stage, ["a"], "note", "old")
        assert await stage.call(Elder, "drop_and_note", "a", "new") == ["new"]
    await stage.call(Elder, "drop_and_tell", "a", "told")
    await asyncio.sleep(10)
    assert await ask(stage, ["a"], "notes") == ["told"]
    assert await stage.call(Elder, "kids") == ["a"]


@pytest.mark.shows(sub_agents="R76")
async def test_an_old_handle_brings_nobody_back(stage: Stage) -> None:
    await ask(stage, ["a"], "note", "old")
    with pytest.raises(BadRequest, match="no longer exists"):
        await stage.call(Elder, "use_old_handle", "a")
    await gone(stage, kid("a"))
    assert await stage.call(Elder, "kids") == []


async def test_what_a_descendant_was_about_to_do_when_it_was_deleted_makes_no_orphan(stage: Stage) -> None:
    await ask(stage, ["a", "b"], "note", "x")
    call = asyncio.ensure_future(ask(stage, ["a", "b", "c"], "hang"))
    await asyncio.sleep(1)
    stage.kill_host_of(kid("a", "b", "c"))
    again = asyncio.ensure_future(ask(stage, ["a", "b"], "parents_name"))
    deeper = asyncio.ensure_future(ask(stage, ["a", "b", "c"], "way"))
    await stage.call(Elder, "drop", "a")
    await asyncio.gather(call, again, deeper, return_exceptions=True)
    await gone(stage, kid("a"))


@pytest.mark.shows(sub_agents="G31 G33 G39 G42 G46 G57 G58")
async def test_schedules_queue_and_fibers_of_what_was_deleted_never_come_again(stage: Stage) -> None:
    Kid.effects.clear()
    for names in (["a"], ["a", "b"]):
        await ask(stage, names, "plan", 50, "once")
        await ask(stage, names, "plan_every", 20, "often")
        await ask(stage, names, "plan_cron", "* * * * *", "cron")
        await ask(stage, names, "begin", 50, 10)
        await ask(stage, names, "line_up", "x", "y")
    await asyncio.sleep(15)
    before = dict(Kid.effects)
    await stage.call(Elder, "drop", "a")
    await gone(stage, kid("a"))
    assert dict(Kid.effects) == before
    assert await ask(stage, ["a"], "plans") == []
    assert await ask(stage, ["a"], "fiber_status") == ""
    assert await ask(stage, ["a", "b"], "plans") == []


async def test_a_parent_may_sleep_or_die_as_soon_as_it_has_asked(stage: Stage) -> None:
    await ask(stage, ["a", "b"], "plan_every", 3600, "often")
    await stage.call(Elder, "drop", "a")
    if stage.host_of(address(Elder, "p")):
        stage.kill_host_of(address(Elder, "p"))
    await gone(stage, kid("a"))


@pytest.mark.shows(sub_agents="G41 G43 G44")
@pytest.mark.parametrize("method", ["plan_end", "begin_end", "go"])
async def test_an_agent_may_end_itself_in_whatever_it_does(stage: Stage, method: str) -> None:
    await ask(stage, ["a"], "note", "x")
    await ask(stage, ["a", "b"], "note", "x")
    Kid.effects.clear()
    try:
        await ask(stage, ["a"], method, *([1] if method == "plan_end" else []))
    except PerdureError:
        assert method == "go", "its life ends with it"
    await gone(stage, kid("a"))
    assert await stage.call(Elder, "kids") == []
    assert max(Kid.effects.values(), default=1) == 1
    assert await ask(stage, ["a"], "note", "new") == ["new"]


@pytest.mark.parametrize("method", ["plan_end", "begin_end", "go"])
async def test_a_root_may_end_itself_with_its_whole_family(stage: Stage, method: str) -> None:
    await ask(stage, ["a", "b"], "plan_every", 60, "often")
    try:
        await ask(stage, [], method, *([1] if method == "plan_end" else []))
    except PerdureError:
        assert method == "go"
    await gone(stage, address(Elder, "p"))
    assert await stage.call(Elder, "kids") == []


async def test_runs_of_what_is_deleted_are_cancelled_and_forgotten(stage: Stage) -> None:
    await ask(stage, ["a", "b"], "start_run", "r", 120)
    await stage.until(lambda: stage.status("r") == "running")
    await stage.call(Elder, "drop", "a")
    await gone(stage, kid("a"))
    assert stage.record("r") is None
    assert not any("Slow" in each for each in stage.view.agents)
    await ask(stage, ["a", "b"], "start_run", "r")
    assert (await stage.ended("r")).status == "completed"


async def test_what_is_told_to_somebody_who_is_deleted_meanwhile_blocks_nobody_else(stage: Stage) -> None:
    await ask(stage, ["a"], "note", "old")
    await stage.call(Elder, "tell_kid", "a", "x", "y", "z")
    await stage.call(Elder, "drop", "a")
    await stage.call(Elder, "tell_kid", "b", "x", "y")
    await gone(stage, kid("a"))
    assert await ask(stage, ["b"], "notes") == ["x", "y"]
    assert await stage.call(Elder, "kids") == ["b"]
    assert stage.deliveries()["pending"] == 0


@staged(limits=replace(ROOMY, retained_in_memory=1))
async def test_runs_that_ended_long_ago_and_are_in_memory_no_more_go_too(stage: Stage) -> None:
    for number in range(4):
        await ask(stage, ["a", "b"][: 1 + number % 2], "start_run", f"r{number}")
        await stage.ended(f"r{number}")
    await ask(stage, ["c"], "start_run", "kept")
    await stage.ended("kept")
    await asyncio.sleep(60)
    assert sum(stage.record(f"r{number}") is not None for number in range(4)) < 4, "some are on disk only"
    await stage.call(Elder, "drop", "a")
    await gone(stage, kid("a"))
    everything = WhichExist([*(f"r{number}" for number in range(4)), "kept"])
    assert await stage.client.supervisor.ask(everything) == ["kept"]
