"""What is refused names what the asker has written, and what is wrong with it."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from perdure.scenarios.testing.laboratory import Laboratory
from tests.gateway.cast import Counter, Talker, Walker
from tests.gateway.door import Answer, Door
from tests.gateway.world import visiting

CALL = "/api/agents/counter/one/call/add"
CHAT = {"id": "ann", "messages": [{"id": "m1", "role": "user", "parts": [{"type": "text", "text": "words"}]}]}


def error(answer: Answer) -> dict[str, Any]:
    """What it says of its error."""
    found: dict[str, Any] = answer.json()["error"]
    return found


@visiting(Counter, Talker)
async def test_a_method_of_chats_of_an_agent_that_is_none_is_told_to_be_of_those(
    door: Door, laboratory: Laboratory, /
) -> None:
    for name in ("inspect_turn", "cancel_chat"):
        told = error(await door.post(f"/api/agents/counter/x/call/{name}", {"args": ["turn"]}))
        words = f"method: Counter is no chat agent, and {name} is a method of those"
        assert (told["field"], told["message"]) == ("method", words)
    assert "no exposed method 'cancel'" in error(await door.post("/api/agents/counter/x/call/cancel", {}))["message"]
    assert (await door.post("/api/agents/talker/x/call/inspect_turn", {"args": ["turn"]})).json() == {"value": None}


@visiting(Counter, Walker)
async def test_a_class_that_has_no_run_is_refused_by_the_name_that_the_asker_has_written(
    door: Door, laboratory: Laboratory, /
) -> None:
    told = error(await door.post("/api/runs", {"type": "counter"}))
    assert (told["type"], told["field"]) == ("UnknownAgentType", "type")
    assert told["message"].startswith("type: ")
    assert error(await door.post("/api/runs", {"type": "walker", "input": "far"}))["field"] == "input"


@pytest.mark.parametrize(("encoding", "status"), [("gzip", 415), ("br, gzip", 415), ("identity", 200), ("", 200)])
@visiting(Counter, Talker)
async def test_a_body_that_is_encoded_is_refused_by_the_name_of_its_encoding(
    door: Door, laboratory: Laboratory, /, encoding: str, status: int
) -> None:
    headers = {"content-type": "application/json", "content-encoding": encoding}
    for path, body in ((CALL, {"args": [1]}), ("/chat/talker?once=true", CHAT)):
        text = json.dumps(body).encode()
        answer = await door.post(path, body=gzip.compress(text) if status != 200 else text, headers=headers)
        assert answer.status == status, path
        if status != 200:
            told = error(answer)
            assert (told["type"], told["field"]) == ("UnknownEncoding", "content-encoding")
            assert encoding in told["message"]


@visiting(Counter)
async def test_an_integer_of_too_many_digits_is_refused_with_how_many_it_may_have(
    door: Door, laboratory: Laboratory, /
) -> None:
    body = b'{"args": [' + b"9" * 5_000 + b"]}"
    words = error(await door.post(CALL, body=body, headers={"content-type": "application/json"}))["message"]
    assert "4300 digits" in words
    assert "sys." not in words
