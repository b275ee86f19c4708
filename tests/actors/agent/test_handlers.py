"""Completion handlers: exactly once in effect, tried again, parked, never in each other's way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from perdure.actors import KillPoint
from perdure.actors.sim_world.simulation import Weather
from tests.actors.cast import Boss
from tests.actors.crew import BadHook, Clumsy
from tests.actors.stories import Told, settled, told_by
from tests.kit import ROOMY, Death, Stage, address, play, staged


@pytest.fixture(autouse=True)
def _nothing_fails() -> Iterator[None]:
    yield
    Clumsy.failures = BadHook.failures = 0


async def detach(stage: Stage, handler: str, run_id: str = "s", parent: type[Boss] = Clumsy, **more: Any) -> None:
    await stage.call(parent, "detach", "Sleeper", 10, run_id, {"on_finish": handler, **more})


@staged(limits=replace(ROOMY, inbox_max=3))
async def test_mail_that_the_ledger_knows_to_be_handled_is_forgotten_by_its_parent(stage: Stage) -> None:
    """Or the inbox of a parent that lives for years would grow for ever."""
    await asyncio.gather(*(detach(stage, "on_done", f"s{n}") for n in range(20)))
    assert len(await settled(stage, Clumsy, 20)) == 20
    await detach(stage, "on_done", "last")
    assert len(await settled(stage, Clumsy, 21)) == 21
    forgotten = stage.laboratory.disk.forgotten[address(Clumsy, "p")]
    assert {mail_id for mail_id, _ in forgotten} >= {stage.run(f"s{n}").mail_id("finish") for n in range(18)}


@pytest.mark.shows(agent_tools="7 W-05", chat_recovery="C-1417")
async def test_a_handler_that_raises_leaves_nothing_behind_and_is_called_again(stage: Stage) -> None:
    Clumsy.failures = 3
    await detach(stage, "on_flaky")
    assert await settled(stage, Clumsy, 1) == [Told("flaky", "s", "completed")]
    assert Clumsy.failures == 0


@pytest.mark.shows(agent_tools="W-27")
async def test_a_poisonous_handler_is_parked_after_its_attempts_and_can_be_tried_again(stage: Stage) -> None:
    Clumsy.failures = 1
    await detach(stage, "on_poison")
    await stage.until(lambda: stage.deliveries()["parked"] == 1)
    (parked,) = (await stage.client.ask("audit"))["parked_mail"]
    assert parked["mail_id"] == stage.run("s").mail_id("finish")
    assert parked["error"] == "RuntimeError: never"
    assert await told_by(stage, Clumsy) == []
    Clumsy.failures = 0
    await stage.client.ask("retry", parked["mail_id"])
    assert await settled(stage, Clumsy, 1) == [Told("poison", "s", "completed")]


@pytest.mark.shows(agent_tools="W-42")
async def test_one_poisonous_mail_costs_the_others_of_its_group_nothing(stage: Stage) -> None:
    Clumsy.failures = 1
    await asyncio.gather(*(detach(stage, "on_done", f"s{n}") for n in range(5)), detach(stage, "on_poison", "bad"))
    told = await settled(stage, Clumsy, 5, quiet_s=5)
    assert sorted(row.run_id for row in told) == [f"s{n}" for n in range(5)]


@staged(limits=replace(ROOMY, handler_timeout_ms=5000))
async def test_a_handler_that_hangs_is_cut_off_and_called_again(stage: Stage) -> None:
    Clumsy.failures = 1
    await detach(stage, "on_hang")
    assert await settled(stage, Clumsy, 1) == [Told("hang", "s", "completed")]


async def test_a_handler_that_is_gone_parks_its_mail_instead_of_dropping_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.call(Clumsy, "detach", "Sleeper", 5_000, "s", {"on_finish": "on_flaky"})
    monkeypatch.delattr(Clumsy, "on_flaky")
    await stage.until(lambda: stage.deliveries()["parked"] == 1)
    (parked,) = (await stage.client.ask("audit"))["parked_mail"]
    assert "no method 'on_flaky'" in parked["error"]


async def test_a_missing_handler_costs_the_other_mail_of_its_agent_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.call(Clumsy, "detach", "Sleeper", 5_000, "bad", {"on_finish": "on_flaky"})
    await stage.call(Clumsy, "detach", "Sleeper", 5_000, "good")
    monkeypatch.delattr(Clumsy, "on_flaky")
    await stage.until(lambda: stage.deliveries()["parked"] == 1)
    assert await settled(stage, Clumsy, 1) == [Told("done", "good", "completed")]


async def test_a_run_may_not_be_awaited_inside_a_handler(stage: Stage) -> None:
    await detach(stage, "on_waiting")
    await stage.until(lambda: stage.deliveries()["parked"] == 1)
    (parked,) = (await stage.client.ask("audit"))["parked_mail"]
    assert "AwaitedInsideHandler: detached: a run cannot be waited for" in parked["error"]
    assert stage.record("inside") is None


@pytest.mark.shows(agent_tools="W-26")
@pytest.mark.parametrize(
    "point", [KillPoint.MID_HANDLER, KillPoint.BEFORE_HANDLER_COMMIT, KillPoint.AFTER_HANDLER_COMMIT]
)
def test_what_a_handler_asks_for_is_asked_for_once_whenever_it_is_killed(point: KillPoint) -> None:
    async def story(stage: Stage) -> None:
        await detach(stage, "on_chain")
        told = await settled(stage, Clumsy, 2)
        assert [(row.what, row.status) for row in told] == [("chain", "completed"), ("done", "completed")]
        assert len(stage.view.runs) == 2

    play(story, kill_when=Death(point, of="s!finish*", times=2))


async def test_a_handler_that_meets_other_work_of_its_agent_loses_no_update(stage: Stage) -> None:
    await asyncio.gather(*(detach(stage, "on_count", f"s{n}") for n in range(10)))
    for _ in range(50):
        if await stage.call(Clumsy, "count_too") == 10:
            break
        await asyncio.sleep(0.2)
    assert await stage.call(Clumsy, "count_too") == 10


@pytest.mark.shows(agent_tools="W-04")
async def test_a_long_call_neither_delays_nor_doubles_a_delivery(stage: Stage) -> None:
    busy = asyncio.create_task(stage.call(Clumsy, "busy", 300_000))
    await detach(stage, "on_done")
    assert await settled(stage, Clumsy, 1, quiet_s=120) == [Told("done", "s", "completed")]
    assert not busy.done()
    assert await busy == "done"


@pytest.mark.shows(agent_tools="144", chat_recovery="C-0916")
async def test_a_hook_that_raises_is_tried_again_with_its_handler_and_takes_nothing_from_others(stage: Stage) -> None:
    BadHook.failures = 2
    await detach(stage, "on_done", "a", BadHook)
    await detach(stage, "on_done", "b", BadHook)
    told = await settled(stage, BadHook, 4)
    assert sorted(told) == sorted(Told(what, run_id, "completed") for what in ("done", "hook") for run_id in ("a", "b"))


@pytest.mark.shows(agent_tools="2", chat_recovery="C-1412")
def test_a_lost_acknowledgement_does_not_deliver_twice() -> None:
    weather = replace(Weather.calm(), lost=0.4, doubled=0.4, late=0.3)

    async def story(stage: Stage) -> None:
        await asyncio.gather(*(detach(stage, "on_done", f"s{n}") for n in range(5)))
        told = await settled(stage, Clumsy, 5)
        assert sorted(row.run_id for row in told) == [f"s{n}" for n in range(5)]
        assert stage.deliveries()["delivered"] == 5

    for seed in range(5):
        play(story, seed=seed, weather=weather)


def test_a_kill_while_twenty_handlers_run_repeats_none_and_delivers_within_a_second_of_the_parents_return() -> None:
    killed_at = 0.0

    def rule(stage: Stage, _process: str, at: KillPoint, detail: str) -> bool:
        nonlocal killed_at
        if at is KillPoint.MID_HANDLER and not killed_at:
            killed_at = stage.simulation.now_ms()
            return True
        return False

    async def story(stage: Stage) -> None:
        await asyncio.gather(*(detach(stage, "on_done", f"s{n}") for n in range(20)))
        await stage.until(lambda: bool(killed_at) and bool(stage.host_of(address(Clumsy, "p"))))
        back_ms = stage.simulation.now_ms()
        await stage.until(lambda: stage.deliveries()["delivered"] == 20)
        assert stage.simulation.now_ms() - back_ms < 1_000
        assert len(await settled(stage, Clumsy, 20)) == 20

    play(story, kill_when=rule)
