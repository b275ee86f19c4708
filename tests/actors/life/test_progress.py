"""Progress and milestones: coalesced but never losing the last word, durable where promised, told once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.actors import Agent, KillPoint, exposed
from perdure.actors.events.reducer import AgentToolEvents
from tests.actors.cast import Boss, Failing, Hooked, Talker
from tests.actors.crew import BadHook, Mute
from tests.actors.stories import Told, settled, told_by
from tests.kit import Stage, address, play

STONES = {"on_milestones": ["half", "most"], "on_milestone": "on_stone"}


async def talk(stage: Stage, *signals: dict[str, Any]) -> list[dict[str, Any]]:
    """Let a child say this, and return the events of its run."""
    result = await stage.client.run(Talker, list(signals), run_id="t")
    assert result.ok, result.error
    return [frame["event"] for frame in await stage.client.ask("frames", "t", -1)]


def fractions(events: list[dict[str, Any]]) -> list[float]:
    return [event["fraction"] for event in events if event["kind"] == "progress"]


@pytest.mark.shows(agent_tools="48")
async def test_outside_of_a_run_progress_is_a_no_op_with_a_warning(stage: Stage) -> None:
    with pytest.warns(RuntimeWarning, match="outside of a run"):
        await stage.call(Mute, "report")


@pytest.mark.shows(agent_tools="49")
async def test_a_signal_is_an_event_and_the_latest_one_can_be_inspected(stage: Stage) -> None:
    events = await talk(stage, {"fraction": 0.25, "message": "a quarter", "phase": "reading"})
    (event,) = [event for event in events if event["kind"] == "progress"]
    assert (event["fraction"], event["message"], event["phase"]) == (0.25, "a quarter", "reading")
    told = await stage.client.ask("inspect", "t")
    assert told["progress"]["fraction"] == 0.25
    assert told["progress"]["at_ms"] == event["at_ms"]


@pytest.mark.shows(agent_tools="W-28")
async def test_a_burst_is_coalesced_and_its_last_value_goes_out_at_the_end_of_the_window(stage: Stage) -> None:
    burst = [{"fraction": n / 100} for n in range(91)]
    assert fractions(await talk(stage, *burst, {"after_ms": 1_000})) == [0.0, 0.9]


@pytest.mark.shows(agent_tools="51")
async def test_done_goes_out_at_once_and_in_no_window(stage: Stage) -> None:
    events = await talk(stage, {"fraction": 0.1}, {"fraction": 0.2}, {"fraction": 1.0}, {"fraction": 1.0})
    assert fractions(events)[-2:] == [1.0, 1.0]
    assert fractions(events)[0] == 0.1


async def test_what_was_coalesced_goes_out_before_the_run_ends(stage: Stage) -> None:
    events = await talk(stage, {"fraction": 0.1}, {"fraction": 0.9})
    assert fractions(events) == [0.1, 0.9]
    assert events[-1]["kind"] == "finished"


@pytest.mark.shows(agent_tools="50")
async def test_data_is_live_only_unless_it_shall_be_kept(stage: Stage) -> None:
    signals = [
        {"fraction": 0.1, "data": {"n": 1}},
        {"after_ms": 500, "fraction": 0.2, "data": {"n": 2}, "persist": True},
    ]
    await stage.call(Hooked, "wait_for", "Talker", signals[:1], "t1")
    assert "data" not in (await stage.client.ask("inspect", "t1"))["progress"]
    await stage.call(Hooked, "wait_for", "Talker", signals, "t2")
    assert (await stage.client.ask("inspect", "t2"))["progress"]["data"] == {"n": 2}


@pytest.mark.shows(agent_tools="83 131", chat_recovery="C-0876 C-0903")
async def test_live_data_reaches_whoever_follows_and_is_neither_replayed_nor_inspected(stage: Stage) -> None:
    follower = asyncio.create_task(first_progress(stage))
    events = await talk(stage, {"after_ms": 1_000, "fraction": 0.1, "data": {"n": 1}})
    assert (await follower)["data"] == {"n": 1}
    assert not [event for event in events if {"data", "live_data"} & set(event)]
    progress = (await stage.client.ask("inspect", "t"))["progress"]
    assert "data" not in progress
    assert "live_data" not in progress


async def first_progress(stage: Stage) -> dict[str, Any]:
    await stage.until(lambda: stage.record("t") is not None)
    async for frame in stage.client.follow("t"):
        if frame["event"]["kind"] == "progress":
            return dict(frame["event"])
    return {}


@pytest.mark.shows(agent_tools="52 W-29")
async def test_a_milestone_is_never_coalesced_is_numbered_and_keeps_its_data(stage: Stage) -> None:
    signals = [
        {"fraction": 0.1},
        {"milestone": "half", "data": {"n": 5}},
        {"milestone": "most"},
        {"milestone": "half"},
    ]
    events = await talk(stage, *signals)
    stones = [event for event in events if event["kind"] == "milestone"]
    assert [(stone["name"], stone["milestone_sequence"]) for stone in stones] == [
        ("half", 0),
        ("most", 1),
        ("half", 2),
    ]
    assert stones[0]["data"] == {"n": 5}
    told = await stage.client.ask("inspect", "t")
    assert [stone["name"] for stone in told["milestones"]] == ["half", "most", "half"]


async def test_progress_that_waits_goes_out_before_the_milestone_after_it(stage: Stage) -> None:
    events = await talk(stage, {"fraction": 0.1}, {"fraction": 0.4}, {"milestone": "half"})
    kinds = [event["kind"] for event in events]
    assert kinds == ["started", "progress", "progress", "milestone", "finished"]


def test_a_milestone_is_durable_when_it_returns() -> None:
    struck = False

    def rule(stage: Stage, _process: str, point: KillPoint, detail: str) -> bool:
        nonlocal struck
        if point is KillPoint.MID_RUN and detail == "milestone half" and not struck:
            struck = True
            run = stage.record("t")
            assert run is not None
            assert [stone[1] for stone in run.milestones] == ["half"]
            return True
        return False

    async def story(stage: Stage) -> None:
        events = await talk(stage, {"milestone": "half"}, {"milestone": "most"})
        names = [event["name"] for event in events if event["kind"] == "milestone"]
        assert names == ["half", "most"], "the second attempt reaches the same milestone, which is not a second one"

    play(story, kill_when=rule)
    assert struck


async def test_a_listed_milestone_is_told_once_per_name_and_others_are_not(stage: Stage) -> None:
    signals = [{"milestone": name} for name in ("half", "other", "half", "most")]
    await stage.call(Boss, "detach", "Talker", signals, "t", STONES)
    assert await settled(stage, Boss, 3) == [
        Told("stone", "t", "half"),
        Told("stone", "t", "most"),
        Told("done", "t", "completed"),
    ]


async def test_a_listed_milestone_is_told_while_the_child_goes_on(stage: Stage) -> None:
    signals = [{"milestone": "half"}, {"after_ms": 60_000}]
    await stage.call(Boss, "detach", "Talker", signals, "t", STONES)
    await stage.until(lambda: stage.deliveries()["delivered"] == 1)
    assert await told_by(stage, Boss) == [Told("stone", "t", "half")]
    assert stage.status("t") == "running"


@pytest.mark.shows(agent_tools="W-02")
async def test_a_milestone_of_a_run_that_is_over_in_no_time_is_told_nevertheless(stage: Stage) -> None:
    await stage.call(Boss, "detach", "Talker", [{"milestone": "half"}], "t", STONES)
    assert (await settled(stage, Boss, 2))[0] == Told("stone", "t", "half")


@pytest.mark.parametrize("mode", ["narrate", "react"])
async def test_milestones_may_be_given_with_their_mode(stage: Stage, mode: str) -> None:
    stones = {"on_milestones": {"names": ["half"], "mode": mode}, "on_milestone": "on_stone"}
    await stage.call(Boss, "detach", "Talker", [{"milestone": "half"}], "t", stones)
    assert (await settled(stage, Boss, 2))[0] == Told("stone", "t", "half")
    run = stage.record("t")
    assert run is not None
    assert run.options["milestones"]["mode"] == mode


async def test_on_progress_hears_signals_and_milestones_of_awaited_and_of_detached_runs(stage: Stage) -> None:
    signals = [{"fraction": 0.5}, {"after_ms": 300, "milestone": "half"}, {"after_ms": 300}]
    await stage.call(Hooked, "wait_for", "Talker", signals, "a")
    await stage.call(Hooked, "detach", "Talker", signals, "d")
    told = await settled(stage, Hooked, 9)
    for run_id in ("a", "d"):
        assert [row.status for row in told if row.what == "progress" and row.run_id == run_id] == ["0.5", "half"]


@pytest.mark.shows(agent_tools="W-54")
async def test_an_on_progress_that_raises_stops_nothing(stage: Stage) -> None:
    signals = [{"fraction": 0.1 * n, "after_ms": 300} for n in range(4)]
    assert (await stage.call(BadHook, "wait_for", "Talker", signals, "t"))["status"] == "completed"


async def test_signals_after_the_end_are_dropped(stage: Stage) -> None:
    await stage.client.run(Mute, None, run_id="m")
    await asyncio.sleep(5)
    kinds = [frame["event"]["kind"] for frame in await stage.client.ask("frames", "m", -1)]
    assert kinds == ["started", "finished"]
    assert not stage.host_of(address(Mute, "m"))


@pytest.mark.parametrize(
    ("signal", "field"),
    [
        ({"fraction": "half"}, "fraction"),
        ({"fraction": "NaN"}, "fraction"),
        ({"fraction": True}, "fraction"),
        ({"milestone": ""}, "milestone"),
        ({"milestone": 7}, "milestone"),
        ({"fraction": 0.1, "data": "x" * 70_000}, "data"),
    ],
)
async def test_a_signal_that_is_none_fails_the_child_with_words_that_name_the_field(
    stage: Stage, signal: dict[str, Any], field: str
) -> None:
    result = await stage.client.run(Talker, [signal])
    assert result.status == "error"
    assert f"{field}: " in result.error


class Pair(Agent):
    """Has two children for one tool call; the second one in their order ends first, and fails."""

    @exposed
    async def ask(self, signals: list[dict[str, Any]]) -> list[str]:
        one: dict[str, Any] = {"agent_class": Talker, "input": signals, "run_id": "one", "display_order": 0}
        two: dict[str, Any] = {"agent_class": Failing, "input": "no", "run_id": "two", "display_order": 1}
        asked = [{**each, "parent_tool_call_id": "call"} for each in (two, one)]
        return [result.status for result in await self.run_agent_tools(asked)]


@pytest.mark.shows(chat_recovery="C-0476")
async def test_what_two_children_say_is_shown_below_their_call_as_it_was_said(stage: Stage) -> None:
    """Grouped, in order, each with its own end; what is text grows, what is progress is shown and not kept as text (C-0476)."""
    words = [{"chunk": {"type": "text-delta", "delta": each}} for each in ("It ", "grows")]
    burst = [{"fraction": n / 100} for n in range(91)]
    stone = {"milestone": "half", "data": {"n": 1}}
    assert await stage.call(Pair, "ask", [*words, *burst, stone, {"fraction": 1.0}]) == ["error", "completed"]
    shown = AgentToolEvents()
    for _ in range(2):  # who comes again is told everything again
        for run_id in ("two", "one"):
            for frame in await stage.client.ask("frames", run_id, -1):
                shown.apply(frame)
    one, two = shown.runs_for_tool_call("call")
    assert (one.run_id, one.status, two.run_id, two.status) == ("one", "completed", "two", "error")
    assert "no" in str(two.error)
    assert [(part["type"], part["text"]) for part in one.parts] == [("text", "It grows")]
    assert [(each["name"], each["milestone_sequence"], each["data"]) for each in one.milestones] == [
        ("half", 0, {"n": 1})
    ]
    assert one.progress is not None
    assert one.progress["fraction"] == 1.0
    told = [each["event"] for each in await stage.client.ask("frames", "one", -1)]
    assert fractions(told) == [0.0, 0.9, 1.0], (
        "a burst is one frame, and the end of it and the last word are never left out"
    )
