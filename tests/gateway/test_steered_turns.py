"""Steering over the wire of each front end: the message stands in the answer that every tab is told, or is a message of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from perdure.actors.rest import models
from perdure.scenarios.provider.faults import Pace
from perdure.scenarios.testing.laboratory import Laboratory
from tests.actors.chat.desk import SCRIPT, WHOLE, Outside
from tests.gateway.cast import Counter
from tests.gateway.clerk import Clerk
from tests.gateway.clerk import script as clerk_script
from tests.gateway.door import Door, events
from tests.gateway.tabs import Tab, chunks, stored, tab
from tests.gateway.test_ag_ui import accepted, ask, of_kind
from tests.gateway.test_ag_ui import body as ag_ui_body
from tests.gateway.test_ag_ui import text_of as said_in
from tests.gateway.test_ai_sdk import CHAT, Talker, body, play, said, text_of, transcript, until_text
from tests.gateway.test_rest_reading import fits
from tests.gateway.world import visit
from tests.kit import played

SLOW = Pace(first_ms=200, between_ms=50)
WORDS = "hurry up please"
ANSWER = "Only words: 0 results.\nThat is all. ∎"


def steered(parts: list[dict[str, Any]]) -> list[Any]:
    """The data of the messages that stand in an answer, or in its chunks."""
    return [each["data"] for each in parts if isinstance(each, dict) and each["type"] == "data-steered"]


async def read(pieces: AsyncGenerator[bytes, None], before: bytes = b"") -> bytes:
    """A stream to its end."""
    return before + b"".join([piece async for piece in pieces])


@played(lambda story: play(story, pace=SLOW))
async def test_an_ai_sdk_client_is_told_by_a_part_that_stays_in_the_message(
    door: Door, laboratory: Laboratory, /
) -> None:
    """Whoever asked, and whoever resumes; the message is known by its id."""
    async with door.stream("POST", CHAT, json_body=body(said("sum"))) as (_, pieces):
        seen = await until_text(pieces, "Let me")
        told = [await door.post(f"{CHAT}/ann/steer", {"message": said(WORDS, "m2")}) for _ in range(2)]
        first, again = [each.json() for each in told]
        assert (first["message_id"], first["accepted"], again["accepted"]) == ("m2", True, False)
        assert first["steered"] == again["steered"] is not None
        async with door.stream("GET", f"{CHAT}/ann/stream?ai=7") as (resumed, others):
            assert resumed.status == 200
            other = await read(others)
        seen = await read(pieces, seen)
    data = {"id": first["request_id"], "messageId": "m2", "text": WORDS}
    assert steered(events(seen)) == steered(events(other)) == [data]
    assert text_of(seen) == WHOLE
    kept = await transcript(door)
    assert (len(kept), steered(kept[1]["parts"])) == (2, [data])
    types = [each["type"] for each in events(seen) if isinstance(each, dict)]
    at = types.index("data-steered")
    assert (types[at - 1], types[at + 1]) == ("tool-output-available", "start-step")
    after = await door.post(CHAT, body(said("sum"), kept[1], said("words", "m3")))
    assert text_of(after.body).startswith("Only words"), "a client that sends it back is understood"


@played(lambda story: play(story, pace=SLOW))
async def test_after_the_end_it_is_a_turn_that_a_client_can_resume(door: Door, laboratory: Laboratory, /) -> None:
    """And what is no message is refused in plain words."""
    await door.post(CHAT, body(said("sum")))
    told = (await door.post(f"{CHAT}/ann/steer", {"message": "words"})).json()
    assert (told["steered"], told["accepted"]) == (None, True)
    assert text_of((await door.get(f"{CHAT}/ann/stream")).body).startswith("Only words")
    assert [each["role"] for each in await transcript(door)] == ["user", "assistant"] * 2
    for wrong, words in (
        ({}, b"message"),
        ({"message": ""}, b"blank"),
        ({"message": 7}, b"neither a text nor a message"),
        ({"message": "a", "to": "b"}, b"to"),
        ({"message": {"role": "assistant", "parts": []}}, b"role"),
    ):
        refused = await door.post(f"{CHAT}/ann/steer", wrong)
        assert (refused.status, words in refused.body) == (400, True), refused
    assert (await door.post("/chat/nobody/ann/steer", {"message": "a"})).status == 404
    assert len(await transcript(door)) == 4


def test_an_ag_ui_client_is_told_a_message_of_the_user() -> None:
    """Between what was said before and after; the conversation has it there, and a client that sends it back says nothing new."""

    async def story(door: Door, _: Laboratory) -> None:
        asking = asyncio.ensure_future(door.post("/ag-ui/clerk", ag_ui_body("sum")))
        while len(Outside.provider.log()) < 1:
            await asyncio.sleep(0.05)
        message = {"id": "u-more", "role": "user", "content": WORDS}
        receipt = (await door.post("/ag-ui/clerk/t1/steer", {"message": message})).json()
        assert (receipt["message_id"], receipt["accepted"]) == ("u-more", True)
        told = accepted(await asking)
        (start,) = [each for each in of_kind(told, "TEXT_MESSAGE_START") if each["role"] == "user"]
        at = told.index(start)
        assert [each["type"] for each in told[at : at + 3]] == [
            f"TEXT_MESSAGE_{e}" for e in ("START", "CONTENT", "END")
        ]
        assert (start["messageId"], told[at + 1]["delta"]) == ("u-more", WORDS)
        assert told[at - 1]["type"] != "STEP_STARTED"
        assert said_in(told).replace(WORDS, "") == WHOLE
        shown = of_kind(await ask(door, ag_ui_body(run_id="r2")), "MESSAGES_SNAPSHOT")[-1]["messages"]
        roles = [each["role"] for each in shown if each["role"] in ("user", "assistant")]
        assert roles[:3] == ["user", "assistant", "user"]
        asked = {"id": "u-next", "role": "user", "content": "words"}
        more = await ask(door, ag_ui_body(run_id="r3", messages=[*ag_ui_body("sum")["messages"], message, asked]))
        assert said_in(more).startswith("Only words")
        said_last = [str(each["content"]) for each in Outside.provider.log()[-1].body["messages"]]
        assert sum(WORDS in each for each in said_last) == 1
        anew = await ask(door, ag_ui_body(run_id="r4", messages=[*ag_ui_body("sum")["messages"], message]))
        assert said_in(anew).replace(WORDS, "") == WHOLE, "another answer in place of the one that it stands in"
        for wrong in ({}, {"message": {"content": 7}}, {"message": ""}, {"message": "a", "run": "b"}):
            assert (await door.post("/ag-ui/clerk/t1/steer", wrong)).status == 400

    clerk_script(first_ms=200, between_ms=50)
    visit([Clerk], story)


async def _until_over(watching: Tab, wire: str) -> list[dict[str, Any]]:
    found = await watching.until(id=wire, done=True)
    return [each for each in found if each["type"] != "agent-tool-event"]


def test_tabs_of_cloudflares_client_see_it_in_the_answer_and_only_there() -> None:
    """It is said by a call of the agent, which every such client can make; a tab that comes in between shows the same."""

    async def story(door: Door, _: Laboratory) -> None:
        async with tab(door) as left, tab(door) as right:
            left.say("r1", "sum")
            await left.until_chunk("text-delta")
            right.send("rpc", id="c1", method="steer", args=[WORDS])
            receipt = (await right.until(type="rpc", id="c1"))[-1]
            assert receipt["success"], receipt
            assert receipt["result"]["steered"] == "r1"
            async with tab(door) as late:
                resuming = (await late.until(type="cf_agent_stream_resuming"))[-1]
                late.acknowledge(resuming["id"])
                shown = await _until_over(late, "r1")
                assert [each["text"] for each in steered(chunks(shown))] == [WORDS]
            told = await _until_over(left, "r1")
            seen = await _until_over(right, "r1")
            for frames in (told, seen):
                assert [each["text"] for each in steered(chunks(frames))] == [WORDS]
            messages = await stored(door)
            assert [each["role"] for each in messages] == ["user", "assistant"]
            assert [each["text"] for each in steered(messages[1]["parts"])] == [WORDS]
            assert [each["id"] for each in left.messages] == [each["id"] for each in messages]

    Outside.begin(SCRIPT, pace=SLOW)
    visit([Talker], story)


def test_tabs_of_cloudflares_client_show_it_as_a_message_when_it_begins_a_turn() -> None:
    """Said while the last answer is written: no tab shows it before, and all do then."""

    async def story(door: Door, _: Laboratory) -> None:
        async with tab(door) as left, tab(door) as right:
            left.say("r1", "words")
            await left.until_chunk("text-delta")
            right.send("rpc", id="c1", method="steer", args=["words at last"])
            (receipt,) = [each["result"] for each in await right.until(type="rpc", id="c1") if each["type"] == "rpc"]
            assert receipt["steered"] == "r1"
            for each in (left, right):
                await each.until(id=receipt["request_id"], done=True)
                await each.until_it_shows(["words", ANSWER, "words at last", ANSWER])

    Outside.begin(SCRIPT, pace=SLOW)
    visit([Talker], story)


def test_rest_steers_chats_and_nothing_else() -> None:
    """With the fields of its description."""

    async def story(door: Door, _: Laboratory) -> None:
        asking = asyncio.ensure_future(door.post(CHAT, body(said("sum"))))
        while len(Outside.provider.log()) < 1:
            await asyncio.sleep(0.05)
        told = await door.post("/api/agents/talker/ann/steer", {"message": said(WORDS, "m2")})
        fits(models.Steered, told.json())
        assert told.json()["steered"] is not None
        assert [each["text"] for each in steered(events((await asking).body))] == [WORDS]
        again = await door.post("/api/agents/talker/ann/steer", {"message": said(WORDS, "m2")})
        assert again.json() == {**told.json(), "accepted": False}
        other = await door.post("/api/agents/talker/ann/steer", {"message": said("other words", "m2")})
        assert (other.status, other.json()["error"]["type"]) == (409, "ConflictingRequest")
        for path, wrong, status in (
            ("talker/ann", {"message": ""}, 400),
            ("talker/ann", {"message": ["a"]}, 400),
            ("talker/ann", {}, 400),
            ("talker/ann", {"message": "a", "more": 1}, 400),
            ("counter/one", {"message": "a"}, 404),
            ("nobody/one", {"message": "a"}, 404),
        ):
            assert (await door.post(f"/api/agents/{path}/steer", wrong)).status == status, (path, wrong)

    Outside.begin(SCRIPT, pace=SLOW)
    visit([Talker, Counter], story)
