"""Spans of turns: each attempt, each request to a model and each tool, below one another and linked across deaths."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import pytest

from perdure.actors import agent_tool, tool
from perdure.actors.sim_world.weather import Span, Weather
from perdure.policies import EndedSpan, TraceContext, context_of
from perdure.scenarios.provider.faults import Fault, FaultKind, FaultPlan
from perdure.scenarios.provider.script import Round, Script, ScriptedCall, ScriptedQuestion
from tests.actors.chat.desk import SCRIPT, WHOLE, Adder, Outside, in_third_answer
from tests.actors.chat.room import SLOW, Room, visit
from tests.actors.traces import Recorder, tree
from tests.kit import address

ADDS = ["execute_tool add"] * 3


class Head(Adder):
    """Has another chat as a tool."""

    def tools(self) -> list[Any]:
        return [agent_tool(Adder, name="ask_adder", description="Ask another chat.")]


ASKS = ScriptedCall(name="ask_adder", arguments={"message": "sum please"})
FAMILY = Script(questions=(ScriptedQuestion(asks="family", rounds=(Round(calls=(ASKS,)),)), *SCRIPT.questions))


async def _asked(room: Room) -> Any:
    return await room.do("chat", "sum", request_id="asked")


def _turns(recorder: Recorder, agent: str = "Adder") -> list[EndedSpan]:
    return recorder.named(f"invoke_agent {agent}")


def _requests(recorder: Recorder) -> list[EndedSpan]:
    return [span for span in recorder.spans if span.attributes["gen_ai.operation.name"] == "chat"]


def _names(recorder: Recorder) -> list[str]:
    return sorted("chat" if span.name.startswith("chat") else span.name for span in recorder.spans)


def test_a_turn_has_its_requests_and_tools_below_it() -> None:
    recorder = Recorder()
    visit(Adder, _asked, telemetry=recorder)
    ((name, below),) = tree(recorder.spans)
    assert name == "invoke_agent Adder"
    assert all(isinstance(each, str) for each in below)
    assert _names(recorder) == sorted(["invoke_agent Adder", *["chat"] * 3, *ADDS, "execute_tool double"])
    (turn,) = _turns(recorder)
    assert turn.attributes["gen_ai.conversation.id"] == address(Adder, "somebody")
    assert (turn.attributes["perdure.turn.request_id"], turn.attributes["perdure.turn.status"]) == (
        "asked",
        "completed",
    )
    assert {span.context.trace_id for span in recorder.spans} == {turn.context.trace_id}
    assert not any(span.error for span in recorder.spans)


def test_spans_of_a_turn_wait_until_a_bucket_has_what_they_speak_of(tmp_path: Path) -> None:
    recorder = Recorder()

    async def story(room: Room) -> None:
        await room.do("chat", "sum", request_id="first")
        await asyncio.sleep(1)
        told = len(recorder.spans)
        slow = Span(20_000, 20_000)
        room.laboratory.simulation.change_weather(Weather(commit_slow=1, commit_slow_ms=slow))
        second = room.soon("chat", "sum", request_id="second")
        await asyncio.sleep(15)
        assert len(recorder.spans) == told
        room.laboratory.heal()
        await second
        await asyncio.sleep(1)
        assert len(recorder.spans) == 2 * told

    visit(Adder, story, telemetry=recorder, carried=tmp_path)


def test_a_turn_that_is_begun_at_the_host_stands_where_its_caller_does() -> None:
    recorder = Recorder()
    above = context_of("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")

    async def story(room: Room) -> Any:
        await room.do("chat", "sum", request_id="first")
        with recorder.entered(cast("TraceContext", above)):
            return await room.do("chat", "sum", request_id="second")

    visit(Adder, story, telemetry=recorder)
    _, second = _turns(recorder)
    assert (second.context.trace_id, second.parent) == ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")


def test_a_request_tells_its_model_and_its_tokens() -> None:
    recorder = Recorder()
    visit(Adder, _asked, telemetry=recorder)
    for span in _requests(recorder):
        told = span.attributes
        assert span.kind == "client"
        assert told["gen_ai.provider.name"] == Outside.model.system
        assert span.name == f"chat {told['gen_ai.request.model']}"
        assert isinstance(told["gen_ai.usage.input_tokens"], int)
        assert isinstance(told["gen_ai.usage.output_tokens"], int)
        place = urlsplit(Outside.model.base_url)
        assert (told["server.address"], told.get("server.port")) == (place.hostname, place.port)
    reasons = [span.attributes["gen_ai.response.finish_reasons"] for span in _requests(recorder)]
    assert reasons == [["tool_call"], ["tool_call"], ["stop"]]


def test_no_message_argument_or_result_is_told_unless_it_is_asked_for() -> None:
    silent, talkative = Recorder(), Recorder(tells_content=True)
    visit(Adder, _asked, telemetry=silent)
    visit(Adder, _asked, telemetry=talkative)
    for words in ("sum", "Let me add first", '"a"', "Done: 4 results"):
        assert words not in str([span.attributes for span in silent.spans])
    first, *_, last = _requests(talkative)
    assert "sum" in str(first.attributes["gen_ai.input.messages"])
    assert "Let me add first" in str(first.attributes["gen_ai.output.messages"])
    assert "Done: 4 results" in str(last.attributes["gen_ai.output.messages"])
    assert talkative.one("execute_tool double").attributes["gen_ai.tool.call.arguments"] == '{"a": 7}'
    assert talkative.one("execute_tool double").attributes["gen_ai.tool.call.result"] == '"14"'
    results = {str(span.attributes["gen_ai.tool.call.result"]) for span in talkative.named("execute_tool add")}
    assert results == {'"2"', '"3"', '"4"'}


def test_a_turn_that_dies_is_ended_by_the_next_life_and_linked() -> None:
    recorder, death = Recorder(), in_third_answer()
    visit(Adder, _asked, kill_when=death, telemetry=recorder)
    first, second = _turns(recorder)
    assert (first.error, first.attributes["perdure.turn.status"]) == ("process_lost", "interrupted")
    assert (second.error, second.attributes["perdure.turn.status"]) == ("", "completed")
    assert second.links == (first.context,)
    assert first.end_ms <= second.start_ms + 1
    assert first.parent == second.parent == ""
    assert first.context.trace_id == second.context.trace_id
    tree(recorder.spans)


def test_the_request_that_was_under_way_at_a_death_is_ended_too() -> None:
    """Somebody follows the turn, so the row that says that the request was sent is durable at once."""
    recorder, death = Recorder(), in_third_answer()

    async def story(room: Room) -> Any:
        return await room.follow("chat", "sum", request_id="asked", follow=True)

    result, _ = visit(Adder, story, pace=SLOW, kill_when=death, telemetry=recorder)
    assert result.text == WHOLE
    lost = [span for span in _requests(recorder) if span.error == "process_lost"]
    assert [span.parent for span in lost] == [_turns(recorder)[0].context.span_id]


def test_a_stalled_request_ends_its_attempt_in_the_same_life() -> None:
    recorder = Recorder()
    plan = FaultPlan.at({2: Fault(kind=FaultKind.STALL)})
    visit(Adder, _asked, plan=plan, telemetry=recorder)
    first, second = _turns(recorder)
    assert (first.error, second.error, second.links) == ("stall", "", (first.context,))
    assert [span.error for span in _requests(recorder)] == ["", "stalled", "", ""]
    assert [span.parent == first.context.span_id for span in _requests(recorder)] == [True, True, False, False]
    tree(recorder.spans)


def test_a_refused_request_is_told_by_its_kind() -> None:
    recorder = Recorder()
    plan = FaultPlan.at({1: Fault(kind=FaultKind.RESET, event=1)})
    visit(Adder, _asked, plan=plan, telemetry=recorder)
    broken, *others = _requests(recorder)
    assert broken.error
    assert " " not in broken.error
    assert not any(span.error for span in others)


class Redoubling(Adder):
    """Doubles slowly, and may do so again."""

    @tool(effect="idempotent")
    async def double(self, a: int) -> str:
        """Double a number."""
        Outside.effects["double", a] += 1
        await asyncio.sleep(2)
        return str(2 * a)


def test_each_attempt_at_an_inline_call_is_told_and_linked_to_the_one_before() -> None:
    recorder = Recorder()

    async def story(room: Room) -> Any:
        waiting = room.soon("chat", "sum", request_id="asked")
        for times in (1, 2):
            await room.until(lambda times=times: Outside.effects["double", 7] == times)  # type: ignore[misc]
            await asyncio.sleep(0.5)
            room.kill()
        return await waiting

    assert visit(Redoubling, story, telemetry=recorder).text == WHOLE
    calls = recorder.named("execute_tool double")
    assert [each.attributes["perdure.tool.attempt"] for each in calls] == [1, 2, 3]
    assert [each.error for each in calls] == ["process_lost", "process_lost", ""]
    assert [each.links for each in calls] == [(), (calls[0].context,), (calls[1].context,)]
    assert [each.parent for each in calls] == [each.context.span_id for each in _turns(recorder, "Redoubling")]
    tree(recorder.spans)


def test_a_cancelled_turn_and_its_inline_call_are_told_as_such() -> None:
    recorder = Recorder()

    async def story(room: Room) -> Any:
        waiting = room.soon("chat", "sum", request_id="asked", metadata={"from": "me"})
        await room.until(lambda: Outside.effects["double", 7])
        assert await room.do("cancel_chat", "asked")
        return await waiting

    assert visit(Redoubling, story, telemetry=recorder).status == "aborted"
    (turn,) = _turns(recorder, "Redoubling")
    told = {name: turn.attributes[f"perdure.turn.{name}"] for name in ("request_id", "trigger", "attempt", "status")}
    assert told == {"request_id": "asked", "trigger": "chat", "attempt": 1, "status": "aborted"}
    assert (turn.error, turn.links) == ("cancelled", ())
    call = recorder.one("execute_tool double")
    assert (call.error, call.attributes["perdure.tool.attempt"]) == ("cancelled", 1)


@pytest.mark.parametrize("victim", ["nobody", "parent", "child"])
def test_a_chat_that_asks_another_is_one_tree_whoever_dies(victim: str) -> None:
    recorder = Recorder()

    async def story(room: Room) -> Any:
        waiting = room.soon("chat", "family", request_id="asked")
        if victim != "nobody":
            await room.until(lambda: Outside.effects["add", 0])
            activations = room.view.agents
            host = activations[address(Head, "somebody")].host_id
            (run,) = [run for run in room.view.runs.values() if run.agent_type.endswith(":Adder")]
            room.laboratory.simulation.kill(host if victim == "parent" else run.host_id)
        return await waiting

    result = visit(Head, story, FAMILY, telemetry=recorder)
    assert result.ok
    tree(recorder.spans)
    assert len({span.context.trace_id for span in recorder.spans}) == 1
    turns, runs = _turns(recorder, "Head"), _turns(recorder)
    call = recorder.one("execute_tool ask_adder")
    assert call.parent == turns[0].context.span_id
    assert {span.parent for span in runs} == {call.context.span_id}
    assert len(turns) == (2 if victim == "parent" else 1)
    assert len(runs) == (2 if victim == "child" else 1)
    for later in [*turns[1:], *runs[1:]]:
        assert later.links
    adds = recorder.named("execute_tool add")
    assert {span.parent for span in adds} <= {span.context.span_id for span in runs}
