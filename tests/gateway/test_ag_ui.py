"""AG-UI over the gateway: whole runs, deaths, people's answers, children, state, and runs that are asked for again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

import pytest

from perdure.ledger import TooLarge
from perdure.scenarios.testing.laboratory import Laboratory
from tests.actors.chat.desk import WHOLE, Outside
from tests.gateway.ag_ui_rules import verify
from tests.gateway.clerk import Clerk, script
from tests.gateway.deciding import said
from tests.gateway.door import Answer, Door, events
from tests.gateway.world import visit
from tests.kit import played

Told = list[dict[str, Any]]


def body(text: str = "", run_id: str = "r1", **more: Any) -> dict[str, Any]:
    """A request as the client makes it."""
    messages = [{"id": f"u-{run_id}", "role": "user", "content": text}] if text else []
    empty = {"state": {}, "tools": [], "context": [], "forwardedProps": {}}
    return {"threadId": "t1", "runId": run_id, "messages": messages, **empty, **more}


async def ask(door: Door, given: dict[str, Any]) -> Told:
    """A whole run, which the client would accept."""
    answer = await door.post("/ag-ui/clerk", given)
    assert answer.status == 200, answer.body
    return accepted(answer)


def accepted(answer: Answer) -> Told:
    """The events of an answer, verified."""
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert b"\r" not in answer.body
    found = events(answer.body)
    verify(found)
    return found


def text_of(told: Told, **of: Any) -> str:
    """What was said, without what children said."""
    deltas = [each for each in told if each["type"] == "TEXT_MESSAGE_CONTENT"]
    return "".join(each["delta"] for each in deltas if each.get("subagentRunId") == of.get("subagent"))


def kinds(told: Told) -> list[str]:
    return [each["type"] for each in told]


def of_kind(told: Told, kind: str) -> Told:
    return [each for each in told if each["type"] == kind]


def play(story: Callable[[Door, Laboratory], Awaitable[Any]], **more: Any) -> Any:
    script()
    return visit([Clerk], story, **more)


@played(play)
async def test_a_run_begins_with_the_state_and_ends_with_its_tokens(door: Door, laboratory: Laboratory, /) -> None:
    told = await ask(door, body("sum"))
    assert kinds(told)[:2] == ["RUN_STARTED", "STATE_SNAPSHOT"]
    assert told[-1]["usage"][0]["outputTokens"] > 0
    results, arguments = (of_kind(told, f"TOOL_CALL_{kind}") for kind in ("RESULT", "ARGS"))
    assert {each["toolCallId"] for each in arguments} == {each["toolCallId"] for each in results}
    handle: Any = laboratory._client.agent(Clerk, "t1")  # noqa: SLF001 - the story's own
    assert (await handle.get_messages())[0]["id"] == "u-r1"


@pytest.mark.shows(clients="P-190")
@pytest.mark.parametrize("allowed", [True, False])
@played(play)
async def test_an_approval_is_an_interrupt_and_its_answer_goes_on_with_the_turn(
    door: Door, laboratory: Laboratory, /, allowed: bool
) -> None:
    told = await ask(door, body("please risk"))
    (question,) = told[-1]["outcome"]["interrupts"]
    assert (question["reason"], question["metadata"]["toolName"]) == ("tool_call", "risky")
    assert question["toolCallId"] in {each["toolCallId"] for each in of_kind(told, "TOOL_CALL_END")}
    wrong = await ask(door, body(run_id="r2", resume=[{"interruptId": "x/y", "status": "resolved"}]))
    assert wrong[-1]["type"] == "RUN_ERROR"
    none = await ask(door, body(run_id="r2", resume=[{"interruptId": "xy", "status": "cancelled"}]))
    assert (none[-1]["type"], none[-1]["code"]) == ("RUN_ERROR", "BadRequest")
    entry = {"interruptId": question["id"], "status": "resolved" if allowed else "cancelled"}
    payload = {"payload": {"approved": True}} if allowed else {}
    answer = body(run_id="r2", resume=[entry | payload])
    rest = await ask(door, answer)
    assert [each["content"] for each in of_kind(rest, "TOOL_CALL_RESULT")] == [
        "done" if allowed else "A person did not allow this call."
    ]
    assert rest[-1]["outcome"] == {"type": "success"}
    assert text_of(rest).startswith("Done")
    assert Outside.effects["risky", 1] == int(allowed)
    again = await ask(door, answer)
    assert text_of(again) == text_of(rest)


@played(play)
async def test_every_open_interrupt_has_to_be_answered(door: Door, laboratory: Laboratory, /) -> None:
    told = await ask(door, body("please both"))
    questions = told[-1]["outcome"]["interrupts"]
    assert [each["reason"] for each in questions] == ["tool_call", "client_tool"]
    entries = [{"interruptId": each["id"], "status": "resolved"} for each in questions]
    half = await ask(door, body(run_id="r2", resume=entries[:1]))
    assert half[-1]["type"] == "RUN_ERROR"
    assert Outside.effects["risky", 1] == 0
    entries[1]["payload"] = {"said": "blue"}
    rest = await ask(door, body(run_id="r3", resume=entries))
    assert {each["content"] for each in of_kind(rest, "TOOL_CALL_RESULT")} == {"done", '{"said": "blue"}'}
    assert rest[-1]["outcome"] == {"type": "success"}


@played(play)
async def test_a_tool_of_the_front_end_ends_the_run_and_its_result_begins_the_next(
    door: Door, laboratory: Laboratory, /
) -> None:
    tools = [{"name": "paint", "description": "Paint.", "parameters": {"type": "object", "properties": {}}}]
    told = await ask(door, body("please front", tools=tools))
    (call,) = of_kind(told, "TOOL_CALL_START")
    assert told[-1]["outcome"] == {"type": "success", "pendingToolCallIds": [call["toolCallId"]]}
    assert not of_kind(told, "TOOL_CALL_RESULT")
    result = {"id": "m9", "role": "tool", "toolCallId": call["toolCallId"], "content": '{"painted":true}'}
    next_run = body(run_id="r2", tools=tools, messages=[*body("please front")["messages"], result])
    rest = await ask(door, next_run)
    assert text_of(rest).startswith("Done")
    assert rest[-1]["outcome"] == {"type": "success"}
    assert [of_kind(each, "TOOL_CALL_RESULT") for each in (told, rest)] == [[], []], "the client has it"
    shown = of_kind(await ask(door, body(run_id="r3")), "MESSAGES_SNAPSHOT")[-1]["messages"]
    assert [each["content"] for each in shown if each["role"] == "tool"] == ['{"painted": true}']


@played(play)
async def test_the_result_of_a_call_in_an_imported_message_begins_a_turn_that_goes_on_with_it(
    door: Door, laboratory: Laboratory, /
) -> None:
    handle: Any = laboratory._client.agent(Clerk, "t1")  # noqa: SLF001 - the story's own
    asked = {"type": "tool-ask_user", "toolName": "ask_user", "toolCallId": "c1", "state": "input-available"}
    await handle.add_messages(["words", said("leaf", "assistant", {**asked, "input": {}})])
    (snapshot,) = of_kind(await ask(door, body(run_id="r1")), "MESSAGES_SNAPSHOT")
    result = {"id": "m9", "role": "tool", "toolCallId": "c1", "content": "blue"}
    given = body(run_id="r2", messages=[*snapshot["messages"], result])
    told = await ask(door, given)
    assert text_of(told)
    assert told[-1]["outcome"] == {"type": "success"}
    assert text_of(await ask(door, given)) == text_of(told), "the same request is the same turn"
    _, leaf = await handle.get_messages()
    assert [part["output"] for part in leaf["parts"] if part.get("toolCallId") == "c1"] == ["blue"]
    assert len(await handle.list_turns()) == 1


@played(play)
async def test_a_result_that_another_client_gave_first_takes_the_place_of_the_later_one(
    door: Door, laboratory: Laboratory, /
) -> None:
    """The first answer counts. Whoever gave another one is told all messages, with one result of the call."""
    tools = [{"name": "paint", "description": "Paint.", "parameters": {"type": "object", "properties": {}}}]
    told = await ask(door, body("please front", tools=tools))
    (call,) = of_kind(told, "TOOL_CALL_START")
    handle: Any = laboratory._client.agent(Clerk, "t1")  # noqa: SLF001 - the story's own
    assert await handle.resolve_tool_call(call["toolCallId"], "red")
    result = {"id": "m9", "role": "tool", "toolCallId": call["toolCallId"], "content": "blue"}
    given = [*body("please front")["messages"], result]
    rest = await ask(door, body(run_id="r2", tools=tools, messages=given))
    assert not of_kind(rest, "TOOL_CALL_RESULT")
    shown = of_kind(rest, "MESSAGES_SNAPSHOT")[-1]["messages"]
    assert [(each["id"], each["content"]) for each in shown if each["role"] == "tool"] == [("m9", "red")]


@played(play)
async def test_children_are_subagents_with_their_words_and_their_progress(
    door: Door, laboratory: Laboratory, /
) -> None:
    told = await ask(door, body("please talk"))
    (started,) = of_kind(told, "SUBAGENT_STARTED")
    (call,) = [each for each in of_kind(told, "TOOL_CALL_START") if "subagentRunId" not in each]
    assert (started["name"], started["parentToolCallId"]) == ("Speaker", call["toolCallId"])
    (ended,) = of_kind(told, "SUBAGENT_FINISHED")
    assert ended["result"] == text_of(told, subagent=started["subagentRunId"])
    assert kinds(told).index("SUBAGENT_FINISHED") < kinds(told).index("TOOL_CALL_RESULT")
    walked = await ask(door, body("please walk", "r2"))
    (strider,) = of_kind(walked, "SUBAGENT_STARTED")
    shown = of_kind(walked, "ACTIVITY_SNAPSHOT")
    assert [each["subagentRunId"] for each in shown] == [strider["subagentRunId"]] * len(shown)
    assert shown[-1]["content"]["milestones"][0]["name"] == "there"
    assert of_kind(walked, "SUBAGENT_FINISHED")[0]["result"] == "arrived"


@pytest.mark.shows(clients="P-189")
@played(play)
async def test_another_attempt_of_a_child_is_another_subagent(door: Door, laboratory: Laboratory, /) -> None:
    async with door.stream("POST", "/ag-ui/clerk", json_body=body("please walk")) as (_, pieces):
        told = b""
        killed = False
        async for piece in pieces:
            told += piece
            if b"ACTIVITY_SNAPSHOT" in told and not killed:
                killed = True
                for host in list(laboratory.hosts):
                    laboratory.simulation.kill(host)
    found = events(told)
    verify(found)
    tags = [each["subagentRunId"] for each in of_kind(found, "SUBAGENT_STARTED")]
    assert len(tags) == len(set(tags)) == 2
    assert [each["subagentRunId"] for each in of_kind(found, "SUBAGENT_ERROR")] == tags[:1]
    assert found[-1]["outcome"] == {"type": "success"}


@pytest.mark.shows(clients="P-191")
@played(play)
async def test_the_state_is_told_whole_and_then_its_changes(door: Door, laboratory: Laboratory, /) -> None:
    told = await ask(door, body("please note"))
    assert of_kind(told, "STATE_SNAPSHOT")[0]["snapshot"] == {}
    assert of_kind(told, "STATE_DELTA")[0]["delta"] == [{"op": "add", "path": "/notes", "value": ["milk"]}]
    again = await ask(door, body("please note", "r2"))
    assert of_kind(again, "STATE_SNAPSHOT")[0]["snapshot"] == {"notes": ["milk"]}
    assert of_kind(again, "STATE_DELTA")[0]["delta"][0]["op"] == "replace"


@pytest.mark.shows(clients="P-188")
@played(play)
async def test_a_cancelled_run_ends_as_cancelled_with_all_that_was_open_closed(
    door: Door, laboratory: Laboratory, /
) -> None:
    async with door.stream("POST", "/ag-ui/clerk", json_body=body("please walk")) as (_, pieces):
        told = b""
        async for piece in pieces:
            if b"SUBAGENT_STARTED" in piece:
                said = await door.post("/ag-ui/clerk/t1/r1/cancel")
                assert said.json() == {"cancelled": True}
            told += piece
    found = events(told)
    verify(found)
    assert of_kind(found, "SUBAGENT_ERROR")
    assert found[-1]["outcome"] == {"type": "cancelled"}
    late = await door.post("/ag-ui/clerk/t1/r1/cancel")
    assert late.json() == {"cancelled": False}


@pytest.mark.parametrize("name", ["a/b", "a/r1/cancel", "x/steer", "ü %2F?#"])
@played(play)
async def test_a_thread_and_a_run_are_steered_and_cancelled_by_their_ids_whatever_is_in_them(
    door: Door, laboratory: Laboratory, /, name: str
) -> None:
    thread, run = quote(name, safe=""), quote(f"{name}/r", safe="")
    asked = body("please walk", f"{name}/r", threadId=name)
    async with door.stream("POST", "/ag-ui/clerk", json_body=asked) as (_, pieces):
        while b"SUBAGENT_STARTED" not in await anext(pieces):
            """It has not begun."""
        word = {"message": {"id": "s1", "role": "user", "content": "and back"}}
        assert (await door.post(f"/ag-ui/clerk/{thread}/steer", word)).json()["steered"] is not None
        assert (await door.post(f"/ag-ui/clerk/{thread}/other/cancel")).json() == {"cancelled": False}
        assert (await door.post(f"/ag-ui/clerk/{thread}/{run}/cancel")).json() == {"cancelled": True}
        told = b"".join([each async for each in pieces])
    assert b'"cancelled"' in told


@played(play)
async def test_a_client_that_asks_for_nothing_gets_the_conversation_and_the_turn_under_way(
    door: Door, laboratory: Laboratory, /
) -> None:
    told = await ask(door, body("words"))
    shown = await ask(door, body(run_id="r2"))
    (snapshot,) = of_kind(shown, "MESSAGES_SNAPSHOT")
    assert [each["role"] for each in snapshot["messages"]] == ["user", "assistant"]
    assert snapshot["messages"][1]["content"] == text_of(told)
    assert snapshot["messages"][1]["id"] == of_kind(told, "TEXT_MESSAGE_START")[0]["messageId"]
    async with door.stream("POST", "/ag-ui/clerk", json_body=body("sum", "r3")) as (_, pieces):
        await anext(pieces)
        await anext(pieces)
        await anext(pieces)
        joined = await ask(door, body(run_id="r4"))
    assert text_of(joined) == WHOLE


@played(play)
async def test_what_cannot_be_read_is_refused_before_a_run_begins(door: Door, laboratory: Laboratory, /) -> None:
    assert (await door.post("/ag-ui/nobody", body("words"))).status == 404
    bad = await door.post("/ag-ui/clerk", {"threadId": "t1"})
    assert (bad.status, bad.json()["error"]["field"]) == (400, "runId")
    assert (await door.post("/ag-ui/clerk", body=b"{")).status == 400


@played(play)
async def test_a_conversation_that_is_too_large_for_one_answer_is_shown_and_goes_on(
    door: Door, laboratory: Laboratory, /
) -> None:
    handle: Any = laboratory._client.agent(Clerk, "t1")  # noqa: SLF001 - the story's own
    for number in range(3):
        await handle.add_messages([said(f"m{number}", "user", {"type": "text", "text": "x" * 1_500_000})])
    with pytest.raises(TooLarge):
        await handle.get_messages()
    (snapshot,) = of_kind(await ask(door, body(run_id="r2")), "MESSAGES_SNAPSHOT")
    assert [each["id"] for each in snapshot["messages"]] == ["m0", "m1", "m2"]
    assert (await ask(door, body("words", "r3")))[-1]["outcome"] == {"type": "success"}
