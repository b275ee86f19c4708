"""The unmodified `@ag-ui/client` under Node, on a real gateway; and its verifier's verdicts beside those of our checker."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.actors.chat.desk import WHOLE
from tests.gateway.ag_ui_rules import Broken, verify
from tests.gateway.npm import play
from tests.gateway.real import client, real_gateway
from tests.gateway.test_ag_ui_rules import BAD

KINDS: list[dict[str, Any]] = [
    {"type": "TEXT_MESSAGE_START", "messageId": "m", "role": "assistant"},
    {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "a"},
    {"type": "TEXT_MESSAGE_END", "messageId": "m"},
    {"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "t"},
    {"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": "{}"},
    {"type": "TOOL_CALL_END", "toolCallId": "c"},
    {"type": "REASONING_START", "messageId": "r"},
    {"type": "REASONING_MESSAGE_START", "messageId": "r", "role": "reasoning"},
    {"type": "REASONING_MESSAGE_END", "messageId": "r"},
    {"type": "REASONING_END", "messageId": "r"},
    {"type": "STEP_STARTED", "stepName": "s"},
    {"type": "STEP_FINISHED", "stepName": "s"},
    {"type": "SUBAGENT_STARTED", "subagentRunId": "k", "name": "n"},
    {"type": "SUBAGENT_FINISHED", "subagentRunId": "k"},
]


def random_streams(count: int) -> list[list[dict[str, Any]]]:
    """Runs of a few events each, mostly wrong."""
    die = random.Random(7)
    begun, done = ({"type": kind, "threadId": "given", "runId": "r"} for kind in ("RUN_STARTED", "RUN_FINISHED"))
    return [[begun, *die.choices(KINDS, k=die.randrange(4)), done] for _ in range(count)]


def is_broken(stream: list[dict[str, Any]]) -> bool:
    try:
        verify(stream)
    except Broken:
        return True
    return False


@pytest.mark.shows(clients="P-186 P-192")
@pytest.mark.thorough
def test_the_real_client_accepts_whole_runs_and_agrees_with_the_checker(tmp_path: Path) -> None:
    full = {"threadId": "given", "runId": "r"}
    runs = {
        "RUN_STARTED": full,
        "RUN_FINISHED": full,
        "RUN_ERROR": {"message": "m"},
        "CUSTOM": {"name": "n", "value": 1},
    }
    given = [[{**runs.get(each["type"], {}), **each} for each in stream] for rule, stream in BAD if rule != "null"]
    streams = given + random_streams(150)
    options = {
        "setup": "tests.gateway.clerk:script",
        "hooks": {"authenticate": "tests.gateway.clerk:everybody_but_wrong"},
    }
    with real_gateway(tmp_path, ["tests.gateway.clerk:Clerk"], **options) as gateway:
        seen = {
            each.pop("name"): each for each in play(Path(__file__).with_name("ag_ui_client.mjs"), gateway.url, streams)
        }
    whole = seen["whole"]
    assert (whole["end"], whole["text"], whole["shown"]) == ({"type": "success"}, WHOLE, WHOLE)
    assert whole["roles"].count("tool") == 4
    approval = seen["approval"]
    assert "rejected" in approval["refused"]
    assert (approval["rest"]["end"], approval["results"]) == ({"type": "success"}, ["done"])
    assert seen["front"]["rest"]["end"] == {"type": "success"}
    assert "paint" in seen["front"]["text"]
    assert seen["front"]["results"] == ["red"], "once"
    children = seen["children"]
    assert children["seen"]["end"] == children["walked"]["end"] == {"type": "success"}
    assert "Only words" in children["said"]
    assert children["activities"][-1]["milestones"][0]["name"] == "there"
    assert seen["questions"] == {"told": [[True, "open"], [True, "answered"]], "results": ["True by ada"]}
    assert seen["state"]["state"] == {"notes": ["milk"]}
    assert (seen["aborted"]["end"], seen["aborted"]["text"]) == ({"type": "success"}, WHOLE)
    assert seen["foreign"]["missing"].startswith("HTTP 404")
    assert seen["foreign"]["nobody"].startswith("HTTP 401")
    verdicts = [each is not None for each in seen["verdicts"]["seen"]]
    assert verdicts == [is_broken(each) for each in streams]
    assert True in verdicts
    assert False in verdicts


@pytest.mark.thorough
def test_a_gateway_that_was_killed_tells_the_run_again(tmp_path: Path) -> None:
    asked = {"threadId": "t", "runId": "r", "messages": [{"id": "u", "role": "user", "content": "sum"}]}
    asked |= {"tools": [], "context": [], "state": {}, "forwardedProps": {}}
    options = {"setup": "tests.gateway.clerk:script", "setup_options": {"between_ms": 30}}
    with real_gateway(tmp_path, ["tests.gateway.clerk:Clerk"], **options) as gateway:
        with client(gateway) as first, first.stream("POST", "/ag-ui/clerk", json=asked) as answer:
            for line in answer.iter_lines():
                if "TEXT_MESSAGE_CONTENT" in line:
                    break
            gateway.kill()
        gateway.start()
        with client(gateway) as second:
            told = second.post("/ag-ui/clerk", json=asked).text
            turns = second.post("/ag-ui/clerk", json={**asked, "runId": "look", "messages": []}).text
    assert '"outcome":{"type":"success"}' in told
    assert turns.count('"role":"user"') == 1
    assert "That is all. ∎" in turns
