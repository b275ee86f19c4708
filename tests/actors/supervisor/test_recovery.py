"""Whoever dies at whatever moment, every run ends as the design says; and each of the seven reasons for which a parent stops waiting."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from perdure.actors import KillPoint
from perdure.actors.code.naming import load_type, type_as_claimed, type_name
from perdure.actors.sim_world.simulation import Weather
from perdure.ledger import HostUnavailable
from tests.actors import cast
from tests.actors.cast import (
    Boss,
    Impatient,
    Once,
    Patient,
    Sleeper,
    Stubborn,
    Talker,
    Vanishing,
    Wedged,
    Windowed,
    Worker,
)
from tests.kit import ROOMY, Stage, address, play, staged

HOUR_MS = 3_600_000


async def waiting_parent(stage: Stage, parent: type[Boss], kind: str, value: Any) -> asyncio.Task[Any]:
    """A parent, itself a run, waits for the child `c`; then the parent's host dies."""
    task = asyncio.create_task(stage.client.run(parent, {"wait": [kind, value, "c"]}, run_id="p"))
    await stage.until(lambda: stage.status("c") == "running")
    stage.kill_host_of(address(parent, "p"))
    return task


# ---------------------------------------------------------------- the seven reasons


@pytest.mark.shows(agent_tools="90 136", chat_recovery="C-0883 C-0908")
async def test_no_progress_a_re_attached_parent_gives_up_on_silence_and_leaves_the_child_alone(stage: Stage) -> None:
    task = await waiting_parent(stage, Boss, "Sleeper", HOUR_MS)
    outcome = (await task).output
    assert (outcome["status"], outcome["reason"], outcome["still"]) == ("interrupted", "no-progress", True)
    assert stage.host_of(address(Sleeper, "c")), "the child runs on"


@pytest.mark.shows(agent_tools="5", chat_recovery="C-1415")
async def test_no_progress_a_silent_detached_child_is_torn_down_after_its_window(stage: Stage) -> None:
    signals = [{"fraction": 0.1}, {"after_ms": HOUR_MS, "fraction": 0.2}]
    await stage.call(Boss, "detach", "Talker", signals, "c", {"no_progress_budget_ms": 1_000})
    run = await stage.ended("c", "interrupted")
    assert (run.reason, run.child_still_running) == ("no-progress", False)
    assert not stage.host_of(address(Talker, "c"))


@pytest.mark.shows(agent_tools="91", chat_recovery="C-0884")
async def test_window_exceeded_a_hard_window_ends_the_wait_and_the_child(stage: Stage) -> None:
    task = await waiting_parent(stage, Windowed, "Sleeper", HOUR_MS)
    outcome = (await task).output
    assert (outcome["status"], outcome["reason"], outcome["still"]) == ("interrupted", "window-exceeded", False)
    assert not stage.host_of(address(Sleeper, "c"))


async def test_budget_exceeded_the_absolute_budget_of_a_detached_run_ends_it(stage: Stage) -> None:
    await stage.call(Boss, "detach", "Sleeper", HOUR_MS, "c", {"max_budget_ms": 2_000})
    run = await stage.ended("c", "interrupted")
    assert (run.reason, run.child_still_running) == ("budget-exceeded", False)
    assert run.ended_at_ms - run.requested_at_ms < 2_500


@pytest.mark.shows(agent_tools="99 138", chat_recovery="C-0892 C-0910")
async def test_inspect_timeout_an_agent_that_never_comes_up_is_given_up(stage: Stage) -> None:
    result = await stage.client.run(Wedged, None, run_id="c")
    assert (result.status, result.reason, result.child_still_running) == ("interrupted", "inspect-timeout", False)
    assert not stage.host_of(address(Wedged, "c"))


def take_away(monkeypatch: pytest.MonkeyPatch, holder: object, name: str) -> None:
    """The author removes code while nobody looks."""
    monkeypatch.delattr(holder, name)
    type_as_claimed.cache_clear()


async def vanishing_story(stage: Stage, monkeypatch: pytest.MonkeyPatch, holder: object, name: str) -> Any:
    kind = Vanishing
    task = asyncio.create_task(stage.client.run(kind, HOUR_MS, run_id="c"))
    await stage.until(lambda: stage.status("c") == "running")
    child = address(kind, "c")
    take_away(monkeypatch, holder, name)
    stage.kill_host_of(child)
    return await task


@pytest.mark.shows(agent_tools="137", chat_recovery="C-0909")
def test_inspect_failed_a_class_that_is_gone_after_a_death_interrupts_softly(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(stage: Stage) -> None:
        result = await vanishing_story(stage, monkeypatch, cast, "Vanishing")
        assert (result.status, result.reason, result.child_still_running) == ("interrupted", "inspect-failed", None)
        assert "Vanishing" in result.error

    play(story)
    type_as_claimed.cache_clear()


@pytest.mark.shows(agent_tools="95", chat_recovery="C-0888")
async def test_not_tailable_a_class_that_can_no_longer_run_interrupts_softly(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = await vanishing_story(stage, monkeypatch, Vanishing, "run")
    assert (result.status, result.reason, result.child_still_running) == ("interrupted", "not-tailable", None)


@staged(limits=replace(ROOMY, recovery_deadline_ms=20000))
async def test_recovery_deadline_a_lost_run_that_finds_no_place_is_interrupted(stage: Stage) -> None:
    task = asyncio.create_task(stage.client.run(Sleeper, HOUR_MS, run_id="c"))
    await stage.until(lambda: stage.status("c") == "running")
    stage.simulation.change_weather(replace(Weather.calm(), spawn_refused=1.0))
    for host in stage.simulation.live_hosts():
        stage.simulation.kill(host)
    with pytest.raises(HostUnavailable, match="no host comes up, after 4 tries: no room for it"):
        await task
    run = await stage.ended("c", "interrupted")
    assert (run.reason, run.child_still_running) == ("recovery-deadline", None)


# ---------------------------------------------------------------- re-attachment


@pytest.mark.shows(agent_tools="94", chat_recovery="C-0887")
async def test_a_parent_that_never_gives_up_on_silence_is_ended_by_the_window_alone(stage: Stage) -> None:
    task = await waiting_parent(stage, Patient, "Sleeper", HOUR_MS)
    assert (await task).output["reason"] == "window-exceeded"


async def test_a_parent_that_does_not_wait_gives_up_at_once_when_it_has_to_re_attach(stage: Stage) -> None:
    at_ms = stage.simulation.now_ms()
    task = await waiting_parent(stage, Impatient, "Sleeper", HOUR_MS)
    assert (await task).output["reason"] == "no-progress"
    assert stage.simulation.now_ms() - at_ms < 10_000


@pytest.mark.shows(agent_tools="88 171 173", chat_recovery="C-0881")
async def test_a_parent_that_was_killed_takes_the_result_of_the_same_child(stage: Stage) -> None:
    task = await waiting_parent(stage, Boss, "Worker", {"steps": 30, "pause_ms": 1_000})
    outcome = (await task).output
    assert outcome["output"] == {"steps": list(range(30)), "attempt": 1}
    run = stage.record("p")
    assert run is not None
    assert run.attempt == 2


@pytest.mark.shows(agent_tools="89 135 170", chat_recovery="C-0882 C-0907")
async def test_progress_keeps_a_re_attached_run_alive_longer_than_the_window_of_silence(stage: Stage) -> None:
    task = await waiting_parent(stage, Boss, "Worker", {"steps": 10, "pause_ms": 100_000})
    assert (await task).output["status"] == "completed"


@pytest.mark.shows(agent_tools="93", chat_recovery="C-0886")
async def test_silence_after_earlier_progress_still_ends_the_wait(stage: Stage) -> None:
    signals = [{"fraction": 0.1}, {"after_ms": HOUR_MS, "fraction": 1.0}]
    task = await waiting_parent(stage, Boss, "Talker", signals)
    assert (await task).output["reason"] == "no-progress"


@pytest.mark.shows(agent_tools="97 W-36", chat_recovery="C-0890")
async def test_a_hung_child_does_not_starve_its_sibling(stage: Stage) -> None:
    hung = asyncio.create_task(stage.client.run(Boss, {"wait": ["Sleeper", HOUR_MS, "hung"]}, run_id="p1"))
    fine = asyncio.create_task(stage.client.run(Boss, {"wait": ["Sleeper", 60_000, "fine"]}, run_id="p2"))
    await stage.until(lambda: stage.status("hung") == stage.status("fine") == "running")
    for parent in ("p1", "p2"):
        if stage.host_of(address(Boss, parent)):
            stage.kill_host_of(address(Boss, parent))
    assert (await fine).output["status"] == "completed"
    assert (await hung).output["reason"] == "no-progress"


@pytest.mark.shows(agent_tools="W-37")
async def test_an_interrupted_run_is_repaired_by_the_late_result_and_by_asking_again(stage: Stage) -> None:
    task = await waiting_parent(stage, Impatient, "Sleeper", 60_000)
    assert (await task).output["status"] == "interrupted"
    run = await stage.ended("c", "completed")
    assert (run.reason, run.child_still_running, run.error) == ("", None, "")


@pytest.mark.shows(agent_tools="98", chat_recovery="C-0891")
async def test_asking_again_for_an_interrupted_run_re_attaches_and_takes_its_result(stage: Stage) -> None:
    await stage.call(Boss, "detach", "Stubborn", 60_000, "d", {"max_budget_ms": 1_000})
    soft = await stage.ended("d", "interrupted")
    assert soft.child_still_running is True
    assert await stage.call(Boss, "detach", "Stubborn", 60_000, "d", {"max_budget_ms": 1_000}) == "interrupted"
    assert (await stage.ended("d", "completed")).attempt == 1
    assert not stage.host_of(address(Stubborn, "d"))


# ---------------------------------------------------------------- attempts


@pytest.mark.shows(agent_tools="104 158 W-09", chat_recovery="C-0897 C-0930")
def test_a_child_that_was_killed_goes_on_after_its_last_step_and_repeats_none() -> None:
    async def story(stage: Stage) -> dict[str, Any]:
        task = asyncio.create_task(stage.client.run(Worker, {"steps": 5, "pause_ms": 1_000}, run_id="c"))
        for _ in range(3):
            await asyncio.sleep(1.3)
            await stage.until(lambda: bool(stage.host_of(address(Worker, "c"))) and stage.status("c") == "running")
            stage.kill_host_of(address(Worker, "c"))
        output: dict[str, Any] = (await task).output
        return output

    assert play(story) == {"steps": [0, 1, 2, 3, 4], "attempt": 4}


@pytest.mark.shows(agent_tools="W-24")
async def test_a_run_with_one_attempt_is_at_most_once(stage: Stage) -> None:
    task = asyncio.create_task(stage.client.run(Once, 60_000, run_id="c"))
    await stage.until(lambda: stage.status("c") == "running")
    stage.kill_host_of(address(Once, "c"))
    result = await task
    assert result.status == "error"
    assert "left no result" in result.error


@pytest.mark.shows(agent_tools="105 159", chat_recovery="C-0898 C-0931")
def test_a_run_with_one_attempt_that_had_committed_its_result_is_not_lost() -> None:
    def at_the_report(stage: Stage, _process: str, point: KillPoint, detail: str) -> bool:
        run = stage.record("c")
        return point is KillPoint.AFTER_RESULT_COMMIT and run is not None and run.attempt == 1

    async def story(stage: Stage) -> None:
        result = await stage.client.run(Once, 100, run_id="c")
        assert (result.status, result.output) == ("completed", 1)

    play(story, kill_when=at_the_report)


def test_a_run_that_kills_every_host_ends_after_its_attempts_with_the_reason() -> None:
    def always(stage: Stage, _process: str, point: KillPoint, detail: str) -> bool:
        return point is KillPoint.BEFORE_RUN and detail == "poison"

    async def story(stage: Stage) -> None:
        poison = await stage.client.run(Sleeper, 10, run_id="poison")
        assert poison.status == "error"
        assert "lost in every attempt" in poison.error
        assert "the last time: its host died" in poison.error
        run = stage.record("poison")
        assert run is not None
        assert run.attempt == 6, "five attempts and one that may only collect"

    play(story, kill_when=always)


def test_type_names_of_the_cast_can_be_found_again() -> None:
    assert load_type(type_name(Worker)) is Worker
