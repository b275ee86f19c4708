"""Following a turn from anywhere: live, after a death, and after its end; and what its messages become."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.actors import Client
from perdure.actors.chat.turn_recovery import TurnOutcome
from perdure.policies import TurnEvent
from perdure.scenarios.provider.faults import Fault, FaultKind, FaultPlan, Pace
from tests.actors.chat.desk import WHOLE, Adder, Listener, Outside, ask, in_third_answer
from tests.actors.chat.talk import call, status_of, tell
from tests.kit import played

REFUSED = Fault(kind=FaultKind.STATUS, status=401, type="invalid_request_error", message="Wrong key")


def events_of(listener: Listener) -> list[dict[str, Any]]:
    """What a listener was told of the stream."""
    return [each[1] for each in listener.heard if each[0] == "on_event"]


@pytest.mark.shows(chat_recovery="C-0335 C-0340 C-0380")
@played(lambda story: tell(story, pace=Pace(first_ms=300)))
async def test_who_comes_later_is_told_all_of_it_and_adds_nothing(client: Client, /) -> None:
    """C-0335, C-0340: from the beginning or from any number on, live or when it is over; the end is told once, and stored once."""
    first, second, third = Listener(), Listener(), Listener()
    asking = asyncio.ensure_future(call(client, Adder, "chat", "sum", first, request_id="asked", metadata={"page": 7}))
    while len(first.types) < 5:
        await asyncio.sleep(0.05)
    assert await status_of(client, Adder) == "running"
    assert [each["role"] for each in await call(client, Adder, "get_messages")] == ["user"]
    assert (await call(client, Adder, "attach", "asked", second)).text == WHOLE
    assert (await asking).text == WHOLE
    assert events_of(second) == events_of(first)
    result = await call(client, Adder, "attach", "asked", third, first=5)
    assert events_of(third) == events_of(first)[5:]
    assert [each.ends for each in (first, second, third)] == [["on_done"]] * 3
    assert first.heard[-1] == ("on_done",), "and nothing comes after it"
    messages = await call(client, Adder, "get_messages")
    assert [each["id"] for each in messages] == ["asked-0", "asked-answer"]
    assert messages[1]["metadata"] == {"turn": {"page": 7}}
    assert result.message == messages[1]
    reasons = [each["finishReason"] for each in events_of(first) if each["type"] == "finish-step"]
    assert reasons == ["tool_call", "tool_call", "stop"]
    plain = await call(client, Adder, "chat", "words")
    assert "metadata" not in plain.message


def test_who_goes_on_after_an_interruption_misses_nothing_and_hears_nothing_twice() -> None:
    plan = FaultPlan.at({1: Fault(kind=FaultKind.STALL, event=4), 2: Fault(kind=FaultKind.STALL, event=4)})

    async def story(client: Client) -> None:
        result, listeners = await ask(client, Adder, "sum")
        assert (result.text, [each.ends for each in listeners]) == (
            WHOLE,
            [["on_interrupted"], ["on_interrupted"], ["on_done"]],
        )
        whole = Listener()
        await call(client, Adder, "attach", "asked", whole)
        told = [event for event in events_of(whole) if event["type"] != "data-interrupted"]
        assert [event for each in listeners for event in events_of(each)] == told

    tell(story, plan=plan, pace=Pace(first_ms=300, between_ms=50))


@pytest.mark.shows(chat_recovery="C-0334")
def test_who_comes_to_an_orphan_is_told_all_of_it_and_it_goes_on() -> None:
    """C-0334: the life that streamed it is dead; what it had made durable is told again, and the rest follows in the same message."""
    death = in_third_answer()

    async def story(client: Client) -> None:
        await call(client, Adder, "submit_messages", "sum", request_id="asked")
        while not death.victims:
            await asyncio.sleep(0.05)
        late = Listener()
        result = await call(client, Adder, "attach", "asked", late)
        assert result.text == WHOLE
        assert late.ends == ["on_done"], "the attempt that was over is history"
        assert [each["data"]["attempt"] for each in events_of(late) if each["type"] == "data-attempt"] == [2]
        again = Listener()
        await call(client, Adder, "attach", "asked", again)
        assert events_of(again) == events_of(late)
        assert [each["id"] for each in await call(client, Adder, "get_messages")] == ["asked-0", "asked-answer"]

    tell(story, kill_when=death)
    assert set(Outside.effects.values()) == {1}


@pytest.mark.shows(chat_recovery="C-0337 C-0384")
@played(lambda story: tell(story, plan=FaultPlan.at({2: REFUSED})))
async def test_who_comes_to_a_turn_that_failed_is_told_what_it_said_and_then_why(client: Client, /) -> None:
    """C-0337, C-0384: the chunks first, the error last and once, for each who asks; it is an event, and no part of the message."""
    failed, (listener,) = await ask(client, Adder, "sum")
    assert failed.status == "error"
    for _ in range(2):
        late = Listener()
        assert await call(client, Adder, "attach", "asked", late) == failed
        assert late.heard == listener.heard
        assert late.heard[-1] == ("on_error", failed.error)
    told = await client.call(Adder, "somebody", "_perdure_follow_turn", ("asked", 0), {})
    assert told["events"][-1] == {"type": "error", "errorText": failed.error}
    assert "error" not in {part["type"] for part in failed.message["parts"]}


@pytest.mark.shows(chat_recovery="C-0381 C-0385")
def test_an_end_without_words_of_its_own_has_some() -> None:
    """C-0380, C-0381, C-0385: each end is one event that says which it is."""
    assert TurnOutcome(TurnEvent.COMPLETED).last_event == {"type": "finish"}
    assert TurnOutcome(TurnEvent.ABORTED, "enough").last_event == {"type": "abort", "reason": "enough"}
    assert TurnOutcome(TurnEvent.FAILED).last_event == {
        "type": "error",
        "errorText": "The turn failed for an unknown reason.",
    }


@pytest.mark.shows(chat_recovery="C-0393 C-0394 C-0395 C-0396 C-0397 C-0398 C-0402")
def test_a_message_is_added_behind_the_others_or_takes_the_place_of_its_elder() -> None:
    """C-0393 to C-0398, C-0402: whatever comes, the others stay as they are, and who has read them is left with what they read."""
    texts = {"a": "one", "b": "two"}

    def said(message_id: str, words: str) -> dict[str, Any]:
        return {"id": message_id, "role": "user", "parts": [{"type": "text", "text": words}]}

    async def story(client: Client) -> None:
        assert (await call(client, Adder, "continue_last_turn")).status == "skipped", "there is nothing to go on with"
        assert await call(client, Adder, "get_messages") == []
        assert await call(client, Adder, "add_messages", [said(*each) for each in texts.items()]) == 2
        before = await call(client, Adder, "get_messages")
        assert await call(client, Adder, "add_messages", [said("a", "changed"), said("c", "three")]) == 2
        after = await call(client, Adder, "get_messages")
        assert [each["id"] for each in after] == ["a", "b", "c"]
        assert [each["parts"][0]["text"] for each in after] == ["changed", "two", "three"]
        assert before[0]["parts"][0]["text"] == "one"
        assert after[1] == before[1]
        answered = await call(client, Adder, "chat", "words", request_id="first")
        more = await call(client, Adder, "continue_last_turn", request_id="more")
        assert more.message["id"] == answered.message["id"] == "first-answer"
        assert [each["id"] for each in await call(client, Adder, "get_messages")][-2:] == ["first-0", "first-answer"]

    tell(story)
