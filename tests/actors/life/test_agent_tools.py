"""Agents as tools, awaited: what a caller gets back, how an id holds, how limits and nesting work, what events say."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import typing
from typing import Any

import pytest

from perdure.actors import Agent, AgentToolEvents, KillPoint, RunFailed
from perdure.actors.life.results import run_result
from perdure.actors.link.messages import Follow
from perdure.ledger import AdmissionRefused, BadRequest, ConflictingRequest
from perdure.ledger.status import InterruptedReason
from perdure.policies import Limits
from tests.actors.cast import Boss, Doubler, Failing, Hooked, Liar, Number, Sleeper, Talker, Worker
from tests.actors.crew import CrewFanOut, Middle, Mixed, Narrow, Starter, Summariser, Wordy
from tests.kit import ROOMY, Stage, address, play, staged


async def frames_of(stage: Stage, run_id: str) -> list[dict[str, Any]]:
    return list(await stage.client.ask("frames", run_id, -1))


async def listed(stage: Stage) -> list[Any]:
    return list(await stage.client.ask("list", address(Mixed, "p"), None, None, 10))


def kinds(frames: list[dict[str, Any]]) -> list[str]:
    return [frame["event"]["kind"] for frame in frames]


# ---------------------------------------------------------------- results


@pytest.mark.shows(agent_tools="81", chat_recovery="C-0874")
async def test_a_child_returns_its_typed_output_to_the_parent_that_waits(stage: Stage) -> None:
    assert (await stage.client.run(Doubler, Number(n=4))).output == 8
    told = await stage.call(Boss, "wait_for", "Doubler", {"n": 21}, "d")
    assert told == {
        "status": "completed",
        "output": 42,
        "summary": "42",
        "error": "",
        "reason": None,
        "still": None,
    }


async def test_runs_of_a_batch_are_of_their_own_classes(stage: Stage) -> None:
    told = await stage.call(Mixed, "ask")
    assert told == [
        ["Doubler", 8],
        ["Wordy", "four"],
        ["Doubler", 8],
        ["Wordy", "x" * 2_000],
        ["Summariser", [0, 1]],
    ]
    assert len(await listed(stage)) == 5, "the same twice are two runs"


async def test_none_of_a_batch_begins_if_one_is_wrong(stage: Stage) -> None:
    assert await stage.call(Mixed, "ask_wrongly") == "requests[1].input: Input should be a valid string"
    assert await listed(stage) == []


@pytest.mark.shows(agent_tools="66 75", chat_recovery="C-0868")
async def test_text_that_a_child_returns_is_its_summary_and_a_class_may_make_another(stage: Stage) -> None:
    wordy = await stage.client.run(Wordy, "hello")
    assert (wordy.output, wordy.summary) == ("hello", "hello")
    other = await stage.client.run(Summariser, 3)
    assert (other.output, other.summary) == ([0, 1, 2], "3 numbers")


@pytest.mark.shows(agent_tools="76", chat_recovery="C-0869")
async def test_a_child_that_returns_nothing_has_completed_with_an_empty_summary(stage: Stage) -> None:
    result = await stage.client.run(Wordy, None)
    assert (result.status, result.output, result.summary) == ("completed", None, "")


@pytest.mark.shows(agent_tools="40 85 147 151", chat_recovery="C-0465 C-0878 C-0919 C-0923")
async def test_what_a_child_raises_is_the_words_of_an_error(stage: Stage) -> None:
    result = await stage.client.run(Failing, "no such file", run_id="f")
    assert (result.status, result.error) == ("error", "ValueError: no such file")
    frames = await frames_of(stage, "f")
    assert frames[-1]["event"] | {"at_ms": 0} == {"kind": "error", "error": "ValueError: no such file", "at_ms": 0}


@pytest.mark.shows(agent_tools="68")
async def test_a_child_that_returns_what_it_did_not_promise_fails_with_words_about_it(stage: Stage) -> None:
    result = await stage.client.run(Liar, "not a number")
    assert result.status == "error"
    assert "return" in result.error or "output" in result.error
    assert "int" in result.error


@pytest.mark.shows(agent_tools="84 86 148 152", chat_recovery="C-0877 C-0879 C-0920 C-0924")
async def test_children_at_the_same_time_keep_their_ends_apart(stage: Stage) -> None:
    good, bad = await asyncio.gather(stage.client.run(Doubler, {"n": 1}), stage.client.run(Failing, "x"))
    assert (good.status, bad.status) == ("completed", "error")


RESULT = {"run_id": "r", "agent_type": "T"}
FAILURES: list[tuple[dict[str, Any], bool]] = [
    ({"status": "interrupted", "error": "silence", "reason": "no-progress", "child_still_running": True}, True),
    ({"status": "aborted", "error": "not wanted"}, False),
    ({"status": "error", "error": "it broke"}, False),
]


@pytest.mark.shows(agent_tools="63 64 65", chat_recovery="C-1407 C-1408 C-1409")
@pytest.mark.parametrize(("end", "retryable"), FAILURES)
def test_only_an_interruption_may_be_tried_again(end: dict[str, Any], retryable: bool) -> None:
    failure = run_result(output=None, **RESULT, **end).failure
    assert failure is not None
    assert failure.retryable is retryable
    told = {key: value for key, value in dataclasses.asdict(failure).items() if value is not None}
    assert told == {"ok": False, "retryable": retryable, "trace": "", **end}


def test_a_completed_run_has_no_failure() -> None:
    assert run_result(output=None, **RESULT, status="completed").failure is None
    assert run_result(output=None, **RESULT, status="completed").ok


@pytest.mark.shows(agent_tools="70")
def test_there_are_seven_reasons_and_no_others() -> None:
    assert set(InterruptedReason) == {
        "no-progress", "window-exceeded", "not-tailable", "inspect-timeout", "inspect-failed", "recovery-deadline",
        "budget-exceeded",
    }  # fmt: skip


@pytest.mark.shows(agent_tools="71")
def test_reason_and_child_still_running_are_told_apart_from_absent() -> None:
    hints = typing.get_type_hints(RunFailed)
    assert hints["child_still_running"] == bool | None
    result = run_result(output=None, **RESULT, status="interrupted", reason="recovery-deadline")
    assert result.failure is not None
    assert result.failure.child_still_running is None


# ---------------------------------------------------------------- the id


@pytest.mark.shows(agent_tools="77 146", chat_recovery="C-0870 C-0917 C-0918")
async def test_the_same_id_with_the_same_content_gives_the_same_result_and_runs_nothing_again(stage: Stage) -> None:
    first = await stage.client.run(Worker, {"steps": 2}, run_id="w")
    assert first.output == json.loads(first.summary) == {"steps": [0, 1], "attempt": 1}
    assert await stage.client.run(Worker, {"steps": 2}, run_id="w") == first
    assert kinds(await frames_of(stage, "w")).count("started") == 1


@pytest.mark.shows(agent_tools="101 140", chat_recovery="C-0894 C-0912")
async def test_the_same_id_asked_for_at_the_same_time_is_one_run_with_one_end_for_everybody(stage: Stage) -> None:
    asked = [stage.client.run(Worker, {"steps": 2, "pause_ms": 1_000}, run_id="w") for _ in range(5)]
    waiting = asyncio.gather(*asked)
    await stage.until(lambda: stage.status("w") == "running")
    stage.kill_host_of(address(Worker, "w"))
    results = await waiting
    assert len({str(result) for result in results}) == 1
    assert results[0].output == {"steps": [0, 1], "attempt": 2}, "it is recovered once, for all of them"
    assert kinds(await frames_of(stage, "w")).count("finished") == 1


@pytest.mark.shows(agent_tools="145 W-19")
async def test_the_same_id_with_other_content_is_a_conflict_that_names_the_field(stage: Stage) -> None:
    await stage.client.run(Doubler, {"n": 1}, run_id="d")
    for field, again in (
        ("input", stage.client.run(Doubler, {"n": 2}, run_id="d")),
        ("agent_type", stage.client.run(Worker, {"steps": 1}, run_id="d")),
    ):
        with pytest.raises(ConflictingRequest) as refused:
            await again
        assert refused.value.field == field


@pytest.mark.shows(agent_tools="69")
async def test_an_id_that_was_not_given_follows_from_where_and_what_is_asked_so_a_killed_parent_finds_its_children(
    stage: Stage,
) -> None:
    task = asyncio.create_task(stage.client.run(CrewFanOut, 3, run_id="p"))
    await stage.until(lambda: len(stage.view.runs) == 4)
    children = set(stage.view.runs)
    stage.kill_host_of(address(CrewFanOut, "p"))
    assert (await task).output == [0, 2, 4]
    assert set(stage.view.runs) == children


async def test_equal_requests_without_an_id_are_different_runs(stage: Stage) -> None:
    assert (await stage.client.run(CrewFanOut, 0, run_id="p")).output == []
    assert sorted(await stage.call(Starter, "twice")) == [2, 2]
    assert len([run for run in stage.view.runs.values() if run.agent_type.endswith("Doubler")]) == 2


# ---------------------------------------------------------------- limits and nesting


def test_a_batch_is_decided_a_few_at_a_time_also_when_the_supervisor_dies_amid() -> None:
    accepted: list[int] = []

    def rule(stage: Stage, process: str, point: KillPoint, _detail: str) -> bool:
        if process.startswith("supervisor") and point is KillPoint.AFTER_COMMIT:
            accepted.append(len(stage.view.runs))
            return len(accepted) == 8
        return False

    async def story(stage: Stage) -> None:
        result = await stage.client.run(CrewFanOut, 12, run_id="batch")
        assert result.output == [2 * number for number in range(12)]
        assert {run.attempt for run in stage.view.runs.values()} == {1}

    play(story, limits=dataclasses.replace(ROOMY, turn_max=3), kill_when=rule)
    assert {count for count in accepted if 1 < count < 13}, "no commit saw a part of the batch alone"


def test_over_the_limit_runs_wait_for_their_turn() -> None:
    most = 0

    async def story(stage: Stage) -> None:
        nonlocal most
        task = asyncio.create_task(stage.call(Narrow, "fan_out", 6))
        while not task.done():
            most = max(most, sum(run.is_placed for run in stage.view.runs.values()))
            await asyncio.sleep(0.01)
        assert await task == ["completed"] * 6

    play(story)
    assert most == 2


@pytest.mark.shows(agent_tools="113 114 W-18")
async def test_over_the_limit_a_run_is_refused_at_once_if_asked_for_and_its_id_can_be_used_later(stage: Stage) -> None:
    tasks = [asyncio.create_task(stage.call(Narrow, "sleep", 5_000, f"s{n}")) for n in range(2)]
    await stage.until(lambda: stage.status("s0") == stage.status("s1") == "running")
    with pytest.raises(AdmissionRefused) as refused:
        await stage.call(Narrow, "sleep", 10, "s2", "reject")
    assert refused.value.field == "max_concurrent_agent_tools"
    assert "limit is 2" in refused.value.problem
    assert await asyncio.gather(*tasks) == ["completed"] * 2
    assert await stage.call(Narrow, "sleep", 10, "s2", "reject") == "completed"


@pytest.mark.shows(agent_tools="115")
async def test_without_a_limit_everything_is_at_work_at_once(stage: Stage) -> None:
    runs = [asyncio.create_task(stage.client.run(Sleeper, 60_000, run_id=f"s{n}")) for n in range(30)]
    await stage.until(lambda: sum(run.status == "running" for run in stage.view.runs.values()) == 30)
    assert {result.status for result in await asyncio.gather(*runs)} == {"completed"}


@pytest.mark.shows(agent_tools="118 120", chat_recovery="C-0942")
async def test_each_level_of_a_chain_completes_and_has_its_own_limit(stage: Stage) -> None:
    assert (await stage.client.run(Middle, 3, run_id="m")).output == ["completed"] * 3
    below = [run for run in stage.view.runs.values() if run.parent == address(Middle, "m")]
    assert {run.status for run in below} == {"completed"}


@staged(limits=Limits(hosts_max=1, hosts_warm=1, pack_max=2))
async def test_nested_waiting_never_deadlocks_on_one_crowded_host(stage: Stage) -> None:
    results = await asyncio.gather(*(stage.client.run(Middle, 2, run_id=f"m{n}") for n in range(8)))
    assert {str(result.output) for result in results} == {"['completed', 'completed']"}


@pytest.mark.shows(agent_tools="119")
async def test_a_follower_of_the_top_hears_of_the_middle_only(stage: Stage) -> None:
    heard: list[str] = []
    stage.client._frames.setdefault(address(Boss, "p"), []).append(lambda frame: heard.append(frame["run_id"]))  # noqa: SLF001
    await stage.client.peer.durable(Follow(address(Boss, "p"), wanted=True))
    assert (await stage.call(Boss, "wait_for", "Boss", {"wait": ["Doubler", {"n": 1}, "below"]}, "middle"))["output"]
    assert set(heard) == {"middle"}


# ---------------------------------------------------------------- events


@pytest.mark.shows(agent_tools="38 39 129", chat_recovery="C-0463 C-0464 C-0901")
async def test_the_events_of_a_run_are_numbered_and_replayed_from_any_number(stage: Stage) -> None:
    signals = [{"chunk": {"type": "text-delta", "delta": str(n)}} for n in range(5)]
    await stage.client.run(Talker, signals, run_id="t")
    frames = await frames_of(stage, "t")
    assert kinds(frames) == ["started", *["chunk"] * 5, "finished"]
    assert [frame["sequence"] for frame in frames] == list(range(7))
    assert await stage.client.ask("frames", "t", 4) == frames[5:]


@pytest.mark.shows(agent_tools="82 92 130 132 W-06 W-30", chat_recovery="C-0875 C-0885 C-0902 C-0904")
async def test_who_follows_from_the_middle_gets_every_event_once_and_the_numbers_go_on_over_a_death(
    stage: Stage,
) -> None:
    signals = [{"chunk": n, "after_ms": 300} for n in range(10)]
    asyncio.create_task(stage.client.run(Talker, signals, run_id="t"))  # noqa: RUF006
    await asyncio.sleep(2)
    stage.kill_host_of(address(Talker, "t"))
    heard = [frame async for frame in stage.client.follow("t")]
    assert [frame["sequence"] for frame in heard] == list(range(len(heard)))
    assert "attempt" in kinds(heard)
    assert [{**frame, "replay": True} for frame in heard] == await frames_of(stage, "t")


@pytest.mark.shows(agent_tools="133 W-31", chat_recovery="C-0905")
async def test_a_follower_that_leaves_takes_nothing_from_the_others(stage: Stage) -> None:
    signals = [{"chunk": n, "after_ms": 300} for n in range(5)]
    run = asyncio.create_task(stage.client.run(Talker, signals, run_id="t"))
    await stage.until(lambda: stage.status("t") == "running")
    leaving = stage.client.follow("t")
    assert (await anext(leaving))["sequence"] == 0
    staying = asyncio.create_task(collect(stage, "t"))
    await asyncio.sleep(0.1)
    await leaving.aclose()
    assert kinds(await staying) == ["started", *["chunk"] * 5, "finished"]
    assert (await run).ok


async def collect(stage: Stage, run_id: str) -> list[dict[str, Any]]:
    return [frame async for frame in stage.client.follow(run_id)]


@pytest.mark.shows(agent_tools="179 182")
async def test_a_page_that_is_opened_later_shows_the_same_runs_in_their_order_under_one_tool_call(stage: Stage) -> None:
    assert await stage.call(Starter, "compare", "call-1") == ["completed", "completed"]
    events = AgentToolEvents()
    for run_id in ("second", "first"):
        for frame in await frames_of(stage, run_id):
            events.apply(frame)
    assert [run.run_id for run in events.runs_for_tool_call("call-1")] == ["first", "second"]
    assert {run.status for run in events.runs_for_tool_call("call-1")} == {"completed"}


# ---------------------------------------------------------------- hooks and questions


@pytest.mark.shows(agent_tools="134", chat_recovery="C-0906")
async def test_the_start_hook_is_called_before_the_run_and_not_again_for_the_same_id(stage: Stage) -> None:
    await stage.call(Hooked, "wait_for", "Doubler", {"n": 1}, "d")
    told = await stage.call(Hooked, "told")
    assert told[0] == ["start", "d", "starting", None]


@pytest.mark.shows(agent_tools="W-03")
async def test_a_start_hook_that_raises_refuses_the_run_and_nothing_has_happened(stage: Stage) -> None:
    with pytest.raises(Exception, match="not today"):
        await stage.call(Starter, "refused")
    assert stage.record("never") is None


@pytest.mark.shows(agent_tools="175")
async def test_a_run_can_be_listed_inspected_and_is_not_known_to_others(stage: Stage) -> None:
    await stage.call(Boss, "wait_for", "Doubler", {"n": 1}, "d")
    told = await stage.call(Boss, "inspect", "d")
    assert (told["status"], told["output"]) == ("completed", 2)
    assert await stage.call(Boss, "inspect", "nobody") is None
    assert await stage.call(Boss, "inspect", "d", name="somebody else") is None
    assert [run["run_id"] for run in await stage.client.ask("list", address(Boss, "p"), None, None, 10)] == ["d"]


@pytest.mark.shows(agent_tools="W-50")
async def test_the_gate_lets_in_to_runs_that_began_and_by_their_own_class(stage: Stage) -> None:
    await stage.call(Boss, "wait_for", "Doubler", {"n": 1}, "d")
    assert await stage.call(Boss, "has", "Doubler", "d")
    assert not await stage.call(Boss, "has", "Worker", "d")
    assert not await stage.call(Boss, "has", "Doubler", "nobody")
    doubler = address(Doubler, "d").partition("@")[2]
    assert await stage.call(Boss, "gate", doubler, "d")
    assert not await stage.call(Boss, "gate", doubler, "nobody")
    assert not await stage.call(Boss, "gate", address(Worker, "d").partition("@")[2], "d")


@pytest.mark.shows(agent_tools="80", chat_recovery="C-0873")
async def test_nothing_is_left_on_the_hosts_when_all_is_done(stage: Stage) -> None:
    await asyncio.gather(*(stage.client.run(Worker, {"steps": 1}, run_id=f"w{n}") for n in range(5)))
    await stage.until(lambda: not any(host.tenants for host in stage.view.hosts.values()))
    assert not stage.view.agents
    assert not stage.view.placed


@pytest.mark.shows(agent_tools="72")
@pytest.mark.parametrize(
    "attribute", ["agent_tool_reattach_no_progress_timeout_ms", "agent_tool_reattach_max_window_ms"]
)
@pytest.mark.parametrize("value", ["soon", -1, float("nan"), True])
def test_a_static_option_that_is_no_duration_is_refused_by_its_name(attribute: str, value: object) -> None:
    with pytest.raises(BadRequest) as refused:
        type("Odd", (Agent,), {attribute: value})
    assert refused.value.field == attribute


@pytest.mark.shows(agent_tools="72")
@pytest.mark.parametrize("value", [0, 2_500, float("inf")])
def test_the_static_options_of_a_wait_are_durations_and_infinity_is_one(value: float) -> None:
    from perdure.actors.life.class_options import class_options  # noqa: PLC0415

    names = ("agent_tool_reattach_no_progress_timeout_ms", "agent_tool_reattach_max_window_ms")
    patient = type("Patient", (Agent,), dict.fromkeys(names, value))
    told = class_options(Doubler, patient())
    assert (told["reattach_no_progress_ms"], told["reattach_window_ms"]) == (value, value)
