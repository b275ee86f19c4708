"""The weaknesses of the system that we answer (spec §16), each shown to be absent here: by a story below or by a test that is named."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from perdure.actors.sim_world.world import Span, Weather
from tests.actors.cast import Boss, Hooked, Sleeper, Talker
from tests.actors.crew import BadHook
from tests.actors.stories import Told, settled, told_by
from tests.kit import ROOMY, Stage, address, is_test, play

HOUR_MS = 3_600_000
SHOWN_BY = """
W-01 H test_deaths.py::test_the_end_of_a_detached_run_takes_effect_exactly_once
W-02 H test_progress.py::test_a_milestone_of_a_run_that_is_over_in_no_time_is_told_nevertheless
W-03 H test_agent_tools.py::test_a_start_hook_that_raises_refuses_the_run_and_nothing_has_happened
W-04 H test_handlers.py::test_a_long_call_neither_delays_nor_doubles_a_delivery
W-05 H test_handlers.py::test_a_handler_that_raises_leaves_nothing_behind_and_is_called_again
W-06 M test_agent_tools.py::test_who_follows_from_the_middle_gets_every_event_once_and_the_numbers_go_on_over_a_death
W-07 H test_detached.py::test_a_give_up_is_told_once_and_the_teardown_after_it_is_no_second_end
W-08 M test_detached.py::test_a_child_of_which_nothing_is_heard_any_more_is_not_polled_for_ever
W-09 H test_recovery.py::test_a_child_that_was_killed_goes_on_after_its_last_step_and_repeats_none
W-10 M test_weaknesses.py::test_w10_a_follower_goes_on_hearing_a_detached_run_after_the_supervisor_died
W-11 M test_weaknesses.py::test_w11_a_hook_that_raises_does_not_rewrite_how_the_run_ended
W-12 M test_weaknesses.py::test_w12_whoever_asks_at_the_same_time_the_hook_hears_of_one_end
W-13 M test_cancel_and_clear.py::test_a_run_that_was_cancelled_before_it_had_a_place_never_starts
W-14 M test_weaknesses.py::test_w14_a_parent_that_re_attached_can_still_be_cancelled_with_what_it_waits_for
W-15 M test_weaknesses.py::test_w15_a_cancel_is_final_at_once_also_if_the_child_cannot_be_reached
W-16 M test_weaknesses.py::test_w16_detached_ends_do_not_wait_for_the_recovery_of_awaited_runs
W-17 H test_weaknesses.py::test_w17_one_hung_host_delays_nothing_that_lives_elsewhere
W-18 M test_agent_tools.py::test_over_the_limit_a_run_is_refused_at_once_if_asked_for_and_its_id_can_be_used_later
W-19 M test_agent_tools.py::test_the_same_id_with_other_content_is_a_conflict_that_names_the_field
W-20 M test_detached.py::test_asking_again_tells_the_true_status_and_starts_nothing
W-21 M ../ledger/test_protocol.py::test_a_run_id_with_other_content_is_a_conflict_that_names_the_field
W-23 M test_cancel_and_clear.py::test_a_cancel_can_be_repeated_and_a_late_result_does_not_change_it
W-24 M test_recovery.py::test_a_run_with_one_attempt_is_at_most_once
W-25 M test_detached.py::test_a_handler_is_given_the_typed_output_and_the_id_of_its_mail
W-26 M test_handlers.py::test_what_a_handler_asks_for_is_asked_for_once_whenever_it_is_killed
W-27 M test_handlers.py::test_a_poisonous_handler_is_parked_after_its_attempts_and_can_be_tried_again
W-28 M test_progress.py::test_a_burst_is_coalesced_and_its_last_value_goes_out_at_the_end_of_the_window
W-29 M test_progress.py::test_a_milestone_is_never_coalesced_is_numbered_and_keeps_its_data
W-30 H test_agent_tools.py::test_who_follows_from_the_middle_gets_every_event_once_and_the_numbers_go_on_over_a_death
W-31 M test_agent_tools.py::test_a_follower_that_leaves_takes_nothing_from_the_others
W-32 M test_events_any_order.py::test_a_chunk_that_overtakes_started_waits_for_it
W-33 L test_events.py::test_a_repaired_run_keeps_nothing_of_its_interruption
W-34 M test_weaknesses.py::test_w34_and_w35_the_events_of_old_runs_are_replayed_without_waking_anybody
W-35 M test_weaknesses.py::test_w34_and_w35_the_events_of_old_runs_are_replayed_without_waking_anybody
W-36 M test_recovery.py::test_a_hung_child_does_not_starve_its_sibling
W-37 M test_recovery.py::test_an_interrupted_run_is_repaired_by_the_late_result_and_by_asking_again
W-38 M test_weaknesses.py::test_w16_detached_ends_do_not_wait_for_the_recovery_of_awaited_runs
W-39 M test_cancel_and_clear.py::test_a_clear_cancels_what_is_live_tells_no_handler_and_sends_a_last_event
W-40 L test_weaknesses.py::test_w40_and_w41_every_transition_is_observed_with_its_typed_reason
W-41 L test_weaknesses.py::test_w40_and_w41_every_transition_is_observed_with_its_typed_reason
W-42 M test_handlers.py::test_one_poisonous_mail_costs_the_others_of_its_group_nothing
W-47 L ../ledger/test_protocol.py::test_a_cancel_goes_down_to_awaited_children_and_leaves_detached_ones
W-48 L test_bad_input.py::test_input_and_output_over_their_limits_say_the_limit
W-49 L test_detached.py::test_a_true_end_during_the_teardown_wins_and_no_give_up_is_told
W-50 L test_agent_tools.py::test_the_gate_lets_in_to_runs_that_began_and_by_their_own_class
W-51 L test_bad_input.py::test_a_notification_without_a_chat_is_refused_instead_of_ignored
W-52 L test_weaknesses.py::test_w52_a_clock_that_jumps_gives_nobody_up
W-54 L test_progress.py::test_an_on_progress_that_raises_stops_nothing
W-55 M test_detached.py::test_a_true_end_during_the_teardown_wins_and_no_give_up_is_told
"""
TABLE = [row.split() for row in SHOWN_BY.strip().splitlines()]
GRAVE = {f"W-{n:02}" for n in range(1, 56)} - {
    "W-22", "W-33", "W-40", "W-41", "W-43", "W-44", "W-45", "W-46", "W-47", "W-48", "W-49", "W-50", "W-51", "W-52", "W-53", "W-54",
}  # fmt: skip


@pytest.mark.parametrize(("weakness", "node"), [(row[0], row[2]) for row in TABLE], ids=[row[0] for row in TABLE])
def test_a_weakness_is_shown_absent_by_a_test_that_exists(weakness: str, node: str) -> None:
    path = f"tests/actors/{node}".replace("tests/actors/../", "tests/")
    assert is_test(path), f"{weakness}: {path}"


def test_every_grave_weakness_has_its_test() -> None:
    assert {row[0] for row in TABLE} >= GRAVE


def test_w10_a_follower_goes_on_hearing_a_detached_run_after_the_supervisor_died() -> None:
    signals = [{"chunk": n, "after_ms": 500} for n in range(10)]

    async def story(stage: Stage) -> None:
        await stage.call(Hooked, "detach", "Talker", [*signals, {"fraction": 0.5}], "t")
        following = asyncio.create_task(follow(stage, "t"))
        await asyncio.sleep(2)
        stage.simulation.kill("supervisor")
        heard = await following
        assert [frame["sequence"] for frame in heard] == list(range(len(heard)))
        assert [frame["event"]["body"] for frame in heard if frame["event"]["kind"] == "chunk"] == list(range(10))
        assert Told("progress", "t", "0.5") in await told_by(stage, Hooked)

    play(story)


async def follow(stage: Stage, run_id: str) -> list[dict[str, Any]]:
    return [frame async for frame in stage.client.follow(run_id)]


def test_w11_a_hook_that_raises_does_not_rewrite_how_the_run_ended() -> None:
    async def story(stage: Stage) -> None:
        BadHook.failures = 1_000
        assert (await stage.call(BadHook, "wait_for", "Doubler", {"n": 1}, "d"))["status"] == "completed"
        await stage.until(lambda: stage.deliveries()["parked"] == 1)
        assert stage.status("d") == "completed"
        ends = [frame for frame in await stage.client.ask("frames", "d", -1) if frame["event"]["kind"] != "started"]
        assert [frame["event"]["kind"] for frame in ends] == ["finished"]

    try:
        play(story)
    finally:
        BadHook.failures = 0


def test_w12_whoever_asks_at_the_same_time_the_hook_hears_of_one_end() -> None:
    async def story(stage: Stage) -> None:
        asking = [stage.call(Hooked, "wait_for", "Sleeper", 500, "s") for _ in range(3)]
        assert [told["status"] for told in await asyncio.gather(*asking)] == ["completed"] * 3
        told = await settled(stage, Hooked, 2)
        assert [row.what for row in told] == ["start", "hook"]

    play(story)


def test_w14_a_parent_that_re_attached_can_still_be_cancelled_with_what_it_waits_for() -> None:
    async def story(stage: Stage) -> None:
        waiting = asyncio.create_task(stage.client.run(Boss, {"wait": ["Sleeper", HOUR_MS, "c"]}, run_id="p"))
        await stage.until(lambda: stage.status("c") == "running")
        stage.kill_host_of(address(Boss, "p"))
        await stage.until(lambda: bool((run := stage.record("c")) and run.reattached_at_ms))
        await stage.client.ask("cancel", "p", None, "enough")
        assert (await waiting).status == "aborted"
        assert stage.status("c") == "aborted"
        await stage.until(lambda: not stage.host_of(address(Sleeper, "c")))

    play(story)


def test_w15_a_cancel_is_final_at_once_also_if_the_child_cannot_be_reached() -> None:
    async def story(stage: Stage) -> None:
        await stage.call(Boss, "detach", "Sleeper", 20_000, "s")
        await stage.until(lambda: stage.status("s") == "running")
        stage.simulation.partition(stage.host_of(address(Sleeper, "s")), 30_000)
        at_ms = stage.simulation.now_ms()
        await stage.call(Boss, "cancel", "s")
        assert stage.simulation.now_ms() - at_ms < 1_000
        assert await settled(stage, Boss, 1) == [Told("done", "s", "aborted")]
        assert stage.status("s") == "aborted"

    play(story)


def test_w16_detached_ends_do_not_wait_for_the_recovery_of_awaited_runs() -> None:
    async def story(stage: Stage) -> None:
        asyncio.create_task(stage.client.run(Boss, {"wait": ["Sleeper", HOUR_MS, "slow"]}, run_id="p"))  # noqa: RUF006
        await stage.call(Boss, "detach", "Sleeper", 5_000, "quick", name="q")
        await stage.until(lambda: stage.status("slow") == "running")
        stage.simulation.kill_everything()
        stage.simulation.restart_cluster()
        at_ms = stage.simulation.now_ms()
        await stage.until(lambda: stage.status("quick") == "completed" and stage.deliveries()["delivered"] == 1)
        assert stage.simulation.now_ms() - at_ms < 15_000
        assert stage.status("slow") in ("starting", "running")

    play(story)


def test_w17_one_hung_host_delays_nothing_that_lives_elsewhere() -> None:
    async def story(stage: Stage) -> None:
        await stage.call(Boss, "detach", "Sleeper", HOUR_MS, "hung", {"max_budget_ms": 1_000})
        await stage.until(lambda: stage.status("hung") == "running")
        stage.simulation.hang(stage.host_of(address(Sleeper, "hung")), 60_000)
        at_ms = stage.simulation.now_ms()
        await stage.call(Boss, "detach", "Sleeper", 10, "fine")
        await stage.until(lambda: stage.deliveries()["delivered"] >= 1 and stage.status("fine") == "completed")
        assert stage.simulation.now_ms() - at_ms < 3_000
        rows = await settled(stage, Boss, 2)
        assert {(row.run_id, row.status) for row in rows} == {("fine", "completed"), ("hung", "interrupted")}

    play(story)


def test_w34_and_w35_the_events_of_old_runs_are_replayed_without_waking_anybody() -> None:
    async def story(stage: Stage) -> None:
        for number in range(5):
            await stage.client.run(Talker, [{"chunk": number}], run_id=f"t{number}")
        await asyncio.sleep(1_200)
        assert "t0" not in stage.view.runs, "it has left memory"
        lives = stage.view.incarnation
        frames = await stage.client.ask("frames", "t0", -1)
        assert [frame["event"]["kind"] for frame in frames] == ["started", "chunk", "finished"]
        assert (await stage.client.ask("show", "t0"))["status"] == "completed"
        assert stage.view.incarnation == lives

    play(story, limits=replace(ROOMY, retained_in_memory=1))


def test_w40_and_w41_every_transition_is_observed_with_its_typed_reason() -> None:
    seen: list[tuple[str, Any]] = []

    async def story(stage: Stage) -> None:
        stage.client.subscribe("agent_tool", lambda event: seen.append((event.type, event.payload.get("reason"))))
        await stage.call(Boss, "detach", "Sleeper", HOUR_MS, "s", {"max_budget_ms": 500})
        await settled(stage, Boss, 1, quiet_s=1)
        await stage.call(Boss, "cancel", "s")
        await stage.call(Boss, "clear")
        await asyncio.sleep(5)

    play(story)
    names = [name for name, _ in seen if not name.endswith(("started", "attempt"))]
    assert names == ["agent_tool:dispatched", "agent_tool:gave_up", "agent_tool:cancelled", "agent_tool:cleared"]
    assert ("agent_tool:gave_up", "budget-exceeded") in seen


def test_w52_a_clock_that_is_set_forward_once_gives_nobody_up_and_the_budget_ends_when_it_would_have() -> None:
    async def story(stage: Stage) -> None:
        await stage.call(Boss, "detach", "Sleeper", HOUR_MS, "s", {"max_budget_ms": 60_000})
        await asyncio.sleep(20)
        before_ms = stage.view.at_ms
        stage.simulation.set_clocks(86_400_000)
        await asyncio.sleep(35)
        assert not await stage.call(Boss, "told")
        assert stage.laboratory.supervisors[-1].now_ms() >= before_ms + 86_400_000, "stamps follow the wall clock"
        await asyncio.sleep(10)
        assert await stage.call(Boss, "told")

    play(story)


def test_w52_a_clock_that_jumps_gives_nobody_up() -> None:
    weather = replace(Weather.calm(), clock_jump_every_ms=2_000, clock_jump_ms=Span(-600_000, 600_000))

    async def story(stage: Stage) -> None:
        signals = [{"fraction": 0.1 * n, "after_ms": 3_000} for n in range(8)]
        followed = {"max_budget_ms": 60_000, "no_progress_budget_ms": 20_000}
        await stage.call(Boss, "detach", "Talker", signals, "t", followed)
        assert await settled(stage, Boss, 1) == [Told("done", "t", "completed")]

    for seed in range(3):
        play(story, seed=seed, weather=weather)
