"""Detached runs: told once, given up and repaired, followed by their parent's own words."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from perdure.actors import Detached
from perdure.ledger import about
from perdure.ledger.run import open_run
from tests.actors.cast import Boss, Hooked, Sleeper, Stubborn, Worker
from tests.actors.crew import Batch, Clumsy
from tests.actors.stories import Told, settled, told_by
from tests.kit import ROOMY, Stage, address, asked, play

HOUR_MS = 3_600_000
FOREVER = {"max_budget_ms": float("inf"), "no_progress_budget_ms": 0}


async def test_a_handle_comes_back_as_soon_as_the_run_is_durable(stage: Stage) -> None:
    assert await stage.call(Boss, "detach", "Sleeper", 60_000, "s") == "running"
    assert stage.record("s") is not None
    assert stage.record("s").is_live  # type: ignore[union-attr]


@pytest.mark.shows(agent_tools="1", chat_recovery="C-1411")
async def test_an_end_is_told_to_the_hook_and_then_to_the_handler_once(stage: Stage) -> None:
    await stage.call(Hooked, "detach", "Sleeper", 100, "s")
    assert await settled(stage, Hooked, 3) == [
        Told("start", "s", "starting"),
        Told("hook", "s", "completed"),
        Told("done", "s", "completed"),
    ]


@pytest.mark.parametrize(("kind", "status"), [("Sleeper", "completed"), ("Failing", "error")])
async def test_every_true_end_is_told(stage: Stage, kind: str, status: str) -> None:
    await stage.call(Boss, "detach", kind, 10 if kind == "Sleeper" else "x", "s")
    assert await settled(stage, Boss, 1) == [Told("done", "s", status)]


@pytest.mark.shows(agent_tools="W-25")
async def test_a_handler_is_given_the_typed_output_and_the_id_of_its_mail(stage: Stage) -> None:
    await stage.call(Clumsy, "detach", "Numbers", 7, "s", {"on_finish": "on_output"})
    mail_id = stage.run("s").mail_id("finish")
    assert await settled(stage, Clumsy, 1) == [Told(f"Number {mail_id}", "s", "completed")]


@pytest.mark.shows(agent_tools="4 12 W-07", chat_recovery="C-1414")
async def test_a_give_up_is_told_once_and_the_teardown_after_it_is_no_second_end(stage: Stage) -> None:
    await stage.call(Boss, "detach", "Sleeper", HOUR_MS, "s", {"max_budget_ms": 1_000})
    assert await settled(stage, Boss, 1) == [Told("done", "s", "interrupted", "budget-exceeded")]
    assert stage.status("s") == "interrupted"
    kinds = [frame["event"]["kind"] for frame in await stage.client.ask("frames", "s", -1)]
    assert kinds.count("interrupted") == 1
    assert "aborted" not in kinds


@pytest.mark.shows(agent_tools="3", chat_recovery="C-1413")
async def test_a_give_up_and_a_late_true_end_are_both_told_in_this_order(stage: Stage) -> None:
    followed = {"max_budget_ms": 1_000, "on_give_up": "on_gone"}
    await stage.call(Boss, "detach", "Stubborn", 60_000, "s", followed)
    assert await settled(stage, Boss, 2) == [
        Told("gone", "s", "interrupted", "budget-exceeded"),
        Told("done", "s", "completed"),
    ]
    run = stage.record("s")
    assert run is not None
    assert (run.status, run.reason, run.child_still_running) == ("completed", "", None)


@pytest.mark.shows(agent_tools="W-49 W-55")
async def test_a_true_end_during_the_teardown_wins_and_no_give_up_is_told(stage: Stage) -> None:
    await stage.call(Boss, "detach", "Stubborn", 3_000, "s", {"max_budget_ms": 1_000})
    assert await settled(stage, Boss, 1) == [Told("done", "s", "completed")]


def test_a_finish_that_overtakes_an_undelivered_give_up_supersedes_it() -> None:
    async def story(stage: Stage) -> None:
        await stage.call(Clumsy, "detach", "Stubborn", 15_000, "s", {"max_budget_ms": 3_000, "on_give_up": "on_flaky"})
        Clumsy.failures = 6
        assert await settled(stage, Clumsy, 1) == [Told("done", "s", "completed")]
        assert stage.deliveries()["superseded"] == 1

    try:
        play(story)
    finally:
        Clumsy.failures = 0


@pytest.mark.parametrize("budget", [0, 1, 5_000])
async def test_an_absolute_budget_counts_from_the_request_and_0_gives_up_at_once(stage: Stage, budget: int) -> None:
    await stage.call(Boss, "detach", "Sleeper", HOUR_MS, "s", {"max_budget_ms": budget})
    run = await stage.ended("s", "interrupted")
    assert run.reason == "budget-exceeded"
    assert budget <= run.ended_at_ms - run.requested_at_ms <= budget + 1_000


def test_without_limits_nobody_is_ever_given_up() -> None:
    strict = replace(ROOMY, detached_max_budget_ms=60_000, detached_no_progress_budget_ms=30_000)
    signals = [{"fraction": 0.1}, {"after_ms": HOUR_MS, "fraction": 0.2}]

    async def story(stage: Stage) -> None:
        await stage.call(Boss, "detach", "Talker", signals, "kept", FOREVER)
        await stage.call(Boss, "detach", "Talker", signals, "given up", {})
        await asyncio.sleep(1_800)
        assert stage.status("kept") == "running"
        assert stage.status("given up") == "interrupted"

    play(story, limits=strict)


@pytest.mark.shows(agent_tools="6", chat_recovery="C-1416")
async def test_signals_reset_the_window_of_silence(stage: Stage) -> None:
    signals: list[dict[str, Any]] = [{"fraction": 0.1 * n, "after_ms": 4_000} for n in range(8)]
    await stage.call(Boss, "detach", "Talker", signals, "t", {"no_progress_budget_ms": 5_000})
    assert await settled(stage, Boss, 1) == [Told("done", "t", "completed")]


async def test_who_never_reported_anything_is_not_given_up_for_silence(stage: Stage) -> None:
    await stage.call(Boss, "detach", "Sleeper", 60_000, "s", {"no_progress_budget_ms": 1_000})
    assert await settled(stage, Boss, 1) == [Told("done", "s", "completed")]


@pytest.mark.shows(agent_tools="W-20")
async def test_asking_again_tells_the_true_status_and_starts_nothing(stage: Stage) -> None:
    await stage.call(Boss, "detach", "Failing", "x", "f")
    await settled(stage, Boss, 1)
    assert await stage.call(Boss, "detach", "Failing", "x", "f") == "error"
    assert await settled(stage, Boss, 1) == [Told("done", "f", "error")]


async def test_runs_asked_for_in_a_transaction_begin_together_with_it_or_not_at_all(stage: Stage) -> None:
    with pytest.raises(Exception, match="changed my mind"):
        await stage.call(Batch, "ask_for", 3, True)
    assert await stage.call(Batch, "asked") == 0
    assert not stage.view.runs
    await stage.call(Batch, "ask_for", 3, False)
    await stage.until(lambda: len([run for run in stage.view.runs.values() if run.status == "completed"]) == 3)
    assert await stage.call(Batch, "asked") == 3


async def test_a_run_without_a_handler_sends_no_mail(stage: Stage) -> None:
    await stage.call(Batch, "ask_for", 2, False)
    await stage.until(lambda: len([run for run in stage.view.runs.values() if run.status == "completed"]) == 2)
    assert stage.deliveries()["enqueued"] == 0


async def test_the_end_wakes_a_parent_that_sleeps(stage: Stage) -> None:
    await stage.call(Boss, "detach", "Sleeper", 60_000, "s")
    await stage.until(lambda: not stage.host_of(address(Boss, "p")))
    await stage.ended("s")
    await asyncio.sleep(1)
    assert await told_by(stage, Boss) == [Told("done", "s", "completed")]


async def test_handlers_of_different_runs_all_hear_their_own(stage: Stage) -> None:
    await asyncio.gather(*(stage.call(Boss, "detach", "Worker", {"steps": 1}, f"w{n}") for n in range(20)))
    told = await settled(stage, Boss, 20)
    assert sorted(row.run_id for row in told) == sorted(f"w{n}" for n in range(20))
    assert not stage.host_of(address(Worker, "w0"))


def test_the_source_of_a_notification_travels_with_the_run() -> None:
    options = Detached(notify={"source": "research"}).options(None)
    assert about(open_run(asked(**options), 1, 1))["source"] == "research"


@pytest.mark.shows(agent_tools="W-08")
async def test_a_child_of_which_nothing_is_heard_any_more_is_not_polled_for_ever(stage: Stage) -> None:
    await stage.call(Boss, "detach", "Sleeper", HOUR_MS, "s", {"max_budget_ms": 1_000})
    await settled(stage, Boss, 1)
    await stage.until(lambda: "s" not in stage.view.timers.armed)
    assert not stage.host_of(address(Sleeper, "s"))
    assert not stage.host_of(address(Stubborn, "s"))
