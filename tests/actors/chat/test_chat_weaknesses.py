"""The weaknesses of the chat recovery that we answer (spec §13), each shown to be absent: by a story below or by a test that is named."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from perdure.actors import KillPoint, client_tool, tool
from perdure.scenarios.provider.faults import Fault, FaultKind, FaultPlan
from perdure.scenarios.provider.script import Call, Question, Round, Script
from tests.actors.chat.desk import SCRIPT, WHOLE, Adder, Listener, Outside
from tests.actors.chat.room import SLOW, Room, calls, outcomes, visit
from tests.kit import is_test

SHOWN_BY = """
W-01 S1 test_rescue.py::test_a_death_before_the_first_word_is_a_retry
W-02 S1 test_rescue.py::test_a_stall_before_the_first_word_is_a_retry_too
W-03 S1 test_chat_weaknesses.py::test_w03_and_w04_a_stall_of_a_recovery_ends_neither_a_submission_nor_a_run
W-04 S1 test_chat_weaknesses.py::test_w03_and_w04_a_stall_of_a_recovery_ends_neither_a_submission_nor_a_run
W-05 S1 test_rescue.py::test_a_stall_before_the_first_word_is_a_retry_too
W-06 S1 test_submissions.py::test_submissions_outlive_the_process_and_keep_their_order
W-07 S1 test_chat_runs.py::test_a_child_that_dies_ends_the_same_run_and_its_parts_are_whole_again
W-08 S1 test_patience.py::test_a_turn_that_people_have_gone_on_without_is_not_recovered
W-09 S1 test_stability.py::test_a_parked_turn_outlives_any_number_of_deaths_and_knows_its_clients_tools
W-10 S1 test_message_order.py::test_a_turn_that_is_being_recovered_makes_nobody_wait_outside
W-11 S1 test_tool_answers.py::test_an_answer_that_comes_while_the_model_speaks_waits_for_its_end
W-12 S1 test_stability.py::test_a_parked_turn_outlives_any_number_of_deaths_and_knows_its_clients_tools
W-13 S1 test_deaths_of_turns.py::test_nothing_is_lost_or_done_twice_wherever_a_process_dies
W-14 S1 ../../ledger/test_storage.py::test_a_higher_incarnation_takes_over_and_the_old_handle_refuses
W-15 S1 test_chat_weaknesses.py::test_w15_what_was_allowed_is_done_once_although_the_process_dies_at_the_word
W-16 S1 test_deaths_of_turns.py::test_nothing_is_lost_or_done_twice_wherever_a_process_dies
W-17 S1 test_deaths_of_turns.py::test_nothing_is_lost_or_done_twice_wherever_a_process_dies
W-18 S1 test_chat_weaknesses.py::test_w18_a_second_death_in_the_middle_of_a_recovery_loses_no_answer
W-19 S2 test_chat_weaknesses.py::test_w19_w20_and_w44_a_slow_recovery_is_asked_about_once_and_delays_no_call
W-20 S2 test_chat_weaknesses.py::test_w19_w20_and_w44_a_slow_recovery_is_asked_about_once_and_delays_no_call
W-21 S2 test_cancelled_turns.py::test_every_caller_of_a_cancelled_queue_is_told_once
W-22 S2 test_chat_weaknesses.py::test_w22_an_interruption_says_what_comes_next_and_where_to_go_on
W-23 S2 test_chat_agent.py::test_a_callback_that_raises_or_hangs_stops_nothing
W-24 S2 test_chat_agent.py::test_a_callback_that_raises_or_hangs_stops_nothing
W-25 S2 ../../policies/test_chat_recovery.py::test_w_25_a_sealed_incident_is_final_whatever_progress_is_made
W-26 S2 ../../policies/test_chat_recovery.py::test_w_26_progress_before_the_turn_was_cut_off_is_no_work_of_its_recovery
W-27 S2 ../../policies/test_chat_recovery.py::test_w_27_a_loop_that_is_faster_than_the_window_uses_up_its_attempts_all_the_same
W-28 S2 test_chat_weaknesses.py::test_w28_a_person_may_be_given_so_much_time_and_no_more
W-29 S2 test_chat_agent.py::test_another_turn_may_pass_one_that_waits
W-30 S2 ../../policies/test_repair.py::test_w_30_a_repair_that_would_be_lost_on_its_way_to_the_model_is_replaced_by_the_default
W-31 S2 ../test_parts.py::test_interleaved_texts_find_their_parts_by_id
W-32 S2 test_people_waited_for.py::test_the_other_turn_of_two_goes_on_with_its_own_answer
W-33 S2 test_rescue.py::test_a_provider_that_always_stalls_exhausts_the_turn_once
W-34 S2 test_chat_runs.py::test_a_child_that_dies_ends_the_same_run_and_its_parts_are_whole_again
W-35 S2 test_cancelled_turns.py::test_a_conversation_that_is_cleared_stops_its_turn_wherever_it_is
W-36 S2 test_continuations.py::test_a_continuation_that_is_interrupted_is_recovered
W-37 S2 test_chat_weaknesses.py::test_w37_a_turn_that_was_healthy_for_long_is_recovered_like_any_other
W-38 S2 test_message_order.py::test_a_turn_that_is_being_recovered_makes_nobody_wait_outside
W-39 S2 test_rescue.py::test_hooks_that_raise_stop_nothing
W-40 S2 test_cancelled_turns.py::test_a_cancel_that_a_death_cut_short_still_stops_the_tools
W-41 S2 test_chat_agent.py::test_bad_requests_name_the_field_and_leave_nothing
W-42 S3 test_recovered_requests.py::test_a_provider_that_never_begins_has_a_limit_of_its_own
W-43 S3 test_streams_kept.py::test_what_is_very_long_is_cut_where_it_comes_in_and_nothing_breaks_of_it
W-44 S3 test_chat_weaknesses.py::test_w19_w20_and_w44_a_slow_recovery_is_asked_about_once_and_delays_no_call
W-45 S3 test_continuations.py::test_an_answer_that_broke_off_is_gone_on_with_in_the_same_message
W-46 S3 test_rescue.py::test_the_hook_is_told_what_the_seed_lists
W-47 S3 test_chat_agent.py::test_a_turn_can_be_submitted_and_asked_about
W-48 S3 test_recovered_requests.py::test_a_turn_that_recovers_is_told_of_by_event_after_event
W-49 S3 ../../ledger/test_storage.py::test_a_lower_incarnation_is_refused_after_the_higher_one_has_left
"""
TABLE = [row.split() for row in SHOWN_BY.strip().splitlines()]


@pytest.mark.parametrize(("weakness", "node"), [(row[0], row[2]) for row in TABLE], ids=[row[0] for row in TABLE])
def test_a_weakness_is_shown_absent_by_a_test_that_exists(weakness: str, node: str) -> None:
    """Wherever it stands."""
    path = f"tests/actors/chat/{node}".replace("actors/chat/../../", "").replace("chat/../", "")
    assert is_test(path), f"{weakness}: {path}"


def test_every_weakness_has_its_test() -> None:
    """W-01 to W-49, the grave ones and the others."""
    assert [row[0] for row in TABLE] == [f"W-{number:02}" for number in range(1, 50)]


STALL = Fault(kind=FaultKind.STALL, event=2)


class Slow(Adder):
    """Its hook takes ten seconds, and a person may take twenty."""

    asked: ClassVar[list[Any]] = []
    chat_recovery: ClassVar[Any] = {"parked_deadline_ms": 20_000}

    def tools(self) -> list[Any]:
        """A question, an act that has to be allowed, and the sum."""
        question = client_tool("ask_user", "Ask.", {"type": "object", "properties": {}})
        return [question, risky, *super().tools()]

    async def on_chat_recovery(self, context: Any) -> dict[str, bool] | None:
        """Think about it."""
        self.asked.append(context)
        await asyncio.sleep(10)
        return None

    @tool
    async def ponder(self) -> str:
        """Think for longer than anybody may be silent in a recovery."""
        await asyncio.sleep(400)
        return "pondered"


@tool(needs_approval=True)
async def risky(what: str) -> str:
    """Do something that somebody has to allow."""
    Outside.effects["risky", what] += 1
    return f"did {what}"


MORE = Script(
    questions=(
        calls("risk", Call(name="risky", arguments={"what": "it"})),
        calls("ask", Call(name="ask_user")),
        calls("ponder", Call(name="ponder")),
        Question(asks="words", concludes="Only words"),
    )
)


async def _parked(room: Room, question: str) -> str:
    await room.do("submit_messages", question, request_id="asked")
    await room.until(lambda: room.is_("parked"))
    parts = (await room.do("get_messages"))[-1]["parts"]
    return str(next(part["toolCallId"] for part in parts if "toolCallId" in part))


def test_w03_and_w04_a_stall_of_a_recovery_ends_neither_a_submission_nor_a_run() -> None:
    """The row goes on being the turn's, through stall after stall, and its incident is gone with its end."""

    async def story(room: Room) -> None:
        await room.do("submit_messages", "sum", request_id="asked")
        run = await room.client.run(Adder, "sum", run_id="one")
        assert run.output == WHOLE
        await room.until(lambda: room.is_("completed"))
        told = await room.do("inspect_turn", "asked")
        assert (told["incident"], told["error"], told["attempt"] > 1) == (None, "", True)

    visit(Adder, story, SCRIPT, plan=FaultPlan.at({1: STALL, 2: STALL, 3: STALL}))
    assert set(Outside.effects.values()) == {2}


def test_w15_what_was_allowed_is_done_once_although_the_process_dies_at_the_word() -> None:
    """The permission is durable before it is acknowledged, and it stays until the act is done."""

    async def story(room: Room) -> None:
        call_id = await _parked(room, "risk")
        assert await room.do("respond_to_approval", call_id, True) is True
        room.kill()
        assert await room.do("respond_to_approval", call_id, False) is False
        await asyncio.sleep(11)
        await room.until(lambda: room.is_("completed"))
        result = await room.do("attach", "asked")
        assert outcomes(result.message) == [("output-available", "did it")]

    visit(Slow, story, MORE)
    assert Outside.effects["risky", "it"] == 1


def test_w18_a_second_death_in_the_middle_of_a_recovery_loses_no_answer() -> None:
    """Nor a third: what a recovery has begun is taken up by the next one."""
    deaths: list[str] = []

    def again(_process: str, point: KillPoint, what: str) -> bool:
        if point is KillPoint.MID_STREAM and what == "request" and len(deaths) < 3:
            deaths.append(what)
            return True
        return False

    async def story(room: Room) -> None:
        await room.do("submit_messages", "sum", request_id="asked")
        await room.until(lambda: room.is_("completed"))
        assert (await room.do("attach", "asked")).text == WHOLE
        assert (await room.do("inspect_turn", "asked"))["attempt"] == 4

    visit(Adder, story, kill_when=again)
    assert set(Outside.effects.values()) == {1}


def test_w19_w20_and_w44_a_slow_recovery_is_asked_about_once_and_delays_no_call() -> None:
    """The agent is up and answers while its hook still thinks; the hook is called once for each death."""
    Slow.asked.clear()

    async def story(room: Room) -> None:
        await room.do("submit_messages", "words", request_id="asked")
        await room.until(lambda: room.is_("running"))
        room.kill()
        await asyncio.sleep(5)
        at_ms = room.laboratory.simulation.now_ms()
        assert await room.is_("running")
        assert await room.roles() == "u"
        assert room.laboratory.simulation.now_ms() - at_ms < 500
        assert len(Slow.asked) == 1
        await asyncio.sleep(5)
        await room.until(lambda: room.is_("completed"))

    visit(Slow, story, MORE, pace=SLOW)
    assert len(Slow.asked) == 1


def test_w22_an_interruption_says_what_comes_next_and_where_to_go_on() -> None:
    """Its cause, its incident, its message, and the number from which the rest is followed without a hole."""

    async def story(room: Room) -> None:
        listener = Listener()
        asking = room.soon("chat", "words", listener, request_id="asked")
        await room.until(lambda: "text-delta" in listener.types)
        room.kill()
        result = await asking
        info = listener.heard[-1][1]
        assert (info.request_id, info.outcome, info.cause, info.attempt) == ("asked", "scheduled", "process_lost", 1)
        assert (info.message_id, bool(info.incident_id)) == ("asked-answer", True)
        assert info.text == result.text != ""
        rest = Listener()
        whole = await room.do("attach", "asked", rest, first=info.next_event)
        assert whole.ok
        assert whole.text.startswith(info.text)
        assert info.next_event + len(rest.types) + 1 == whole.next_event

    visit(Adder, story, pace=SLOW)


@pytest.mark.parametrize("is_awake", [True, False])
def test_w28_a_person_may_be_given_so_much_time_and_no_more(is_awake: bool) -> None:
    """Twenty seconds here: then the turn ends in words, whether the agent was awake or asleep, and an answer comes too late."""

    async def story(room: Room) -> None:
        call_id = await _parked(room, "ask")
        for _ in range(13 if is_awake else 1):
            await asyncio.sleep(1.5)
            assert await room.do("has_pending_interaction")
        await asyncio.sleep(1 if is_awake else 20)
        assert await room.do("resolve_tool_call", call_id, "blue") is False
        result = await room.do("attach", "asked")
        assert (result.status, result.reason) == ("error", "awaiting_client_deadline")
        assert "Nobody has answered" in result.error
        assert [state for state, _ in outcomes(result.message)] == ["output-error"]
        assert await room.do("wait_until_stable", 1_000) is True
        assert (await room.do("chat", "words")).ok

    visit(Slow, story, MORE)


@pytest.mark.parametrize("is_answered", [True, False])
def test_w28_each_question_of_a_turn_has_a_time_of_its_own(is_answered: bool) -> None:
    """Twenty seconds from when it was asked: what was left of the time for the question before it is over says nothing."""

    async def story(room: Room) -> None:
        first = await _parked(room, "twice")
        for _ in range(10):
            await asyncio.sleep(1.5)
            assert await room.do("has_pending_interaction")
        assert await room.do("resolve_tool_call", first, "blue") is True
        await room.until(lambda: room.is_("parked"))
        for _ in range(12 if is_answered else 14):
            await asyncio.sleep(1.5)
            await room.do("has_pending_interaction")
        second = (await room.do("get_messages"))[-1]["parts"][-1]["toolCallId"]
        assert await room.do("resolve_tool_call", second, "large") is is_answered
        result = await room.do("attach", "asked")
        assert result.ok is is_answered
        assert outcomes(result.message)[0] == ("output-available", "blue")
        assert is_answered or result.reason == "awaiting_client_deadline"

    ask_twice = Question(
        asks="twice", rounds=tuple(Round(calls=(Call(name="ask_user", arguments={"n": n}),)) for n in (1, 2))
    )
    visit(Slow, story, Script(questions=(ask_twice,)))


def test_w37_a_turn_that_was_healthy_for_long_is_recovered_like_any_other() -> None:
    """How long ago it was accepted says nothing: a death after many minutes costs what a death costs."""

    async def story(room: Room) -> None:
        await room.do("submit_messages", "ponder", request_id="asked")
        await room.until(lambda: len(Outside.provider.log()) == 1)
        await asyncio.sleep(400)
        await room.until(lambda: len(Outside.provider.log()) == 2)
        room.kill()
        await asyncio.sleep(11)
        await room.until(lambda: room.is_("completed"))
        told = await room.do("inspect_turn", "asked")
        assert told["attempt"] == 2
        assert told["ended_at_ms"] - told["accepted_at_ms"] > 400_000

    visit(Slow, story, MORE, pace=SLOW)
