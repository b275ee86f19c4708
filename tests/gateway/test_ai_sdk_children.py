"""Agents that a call has started, as clients of the AI SDK are told of them while they work."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.actors.events.message_parts import apply_chunk
from perdure.scenarios.testing.laboratory import Laboratory
from tests.gateway.clerk import Clerk, script
from tests.gateway.door import Door, events
from tests.gateway.test_ai_sdk import body, said, text_of
from tests.gateway.world import visit


def outputs(told: list[Any]) -> list[dict[str, Any]]:
    """The chunks that give a call an output."""
    return [each for each in told if isinstance(each, dict) and each["type"] == "tool-output-available"]


@pytest.mark.shows(clients="P-182")
def test_a_child_is_told_as_outputs_that_are_not_final_and_then_by_its_result() -> None:
    """P-182: its text, its progress and milestones, live and to who comes later; nothing of them stays in the message."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        told = events((await door.post("/chat/clerk", body(said("please talk")))).body)
        *early, last = outputs(told)
        assert early
        assert all(each["preliminary"] is True for each in early)
        assert "preliminary" not in last
        assert {each["toolCallId"] for each in early} == {last["toolCallId"]}
        texts = [text_of(each["output"]["message"]["parts"]) for each in early]
        assert texts == sorted(texts, key=len), "each is further than the one before"
        assert {each["output"]["agentType"] for each in early} == {"Speaker"}
        parts: list[Any] = []
        for chunk in told:
            parts = apply_chunk(parts, chunk) if isinstance(chunk, dict) and chunk["type"] != "start" else parts
        (stored,) = [
            each for each in (await door.get("/chat/clerk/ann/messages")).json() if each["role"] == "assistant"
        ]
        calls = [[part.get("output") for part in each if "toolCallId" in part] for each in (parts, stored["parts"])]
        assert calls[0] == calls[1] == [last["output"]]

        told = events((await door.post("/chat/clerk", body(said("please walk", "m2")))).body)
        *early, last = outputs(told)
        assert last["output"] == "arrived"
        seen = [each["output"] for each in early]
        assert all(0 < each["progress"]["fraction"] <= 1 for each in seen if "progress" in each)

    script(between_ms=100)
    visit([Clerk], story)


def test_who_comes_in_mid_turn_is_told_of_the_child_from_there_on() -> None:
    async def story(door: Door, laboratory: Laboratory) -> None:
        async with door.stream("POST", "/chat/clerk", json_body=body(said("please talk"))) as (_, pieces):
            async for piece in pieces:
                if b"preliminary" in piece:
                    break
        told = events((await door.get("/chat/clerk/ann/stream")).body)
        *early, last = outputs(told)
        assert early
        assert "preliminary" not in last
        assert text_of(told).endswith("∎")

    script(between_ms=200)
    visit([Clerk], story)
