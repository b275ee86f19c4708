"""The npm packages `agents` and `@cloudflare/ai-chat`, unmodified, under Node, against a gateway that is killed and started again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.actors.chat.desk import WHOLE
from tests.gateway.npm import started
from tests.gateway.real import real_gateway

HERE = Path(__file__).parent
CHAT = "tests.gateway.agents_chat_cast"


def play(data: Path, script: str, agents: list[str], which: str = "", **given: Any) -> dict[str, list[dict[str, Any]]]:
    """What a program observed, by what it tells of. When it asks for that, the gateway is killed and started again."""
    told: dict[str, list[dict[str, Any]]] = {}
    with (
        real_gateway(data, agents, **given) as gateway,
        started(HERE / script, {"url": gateway.url}, which=which) as program,
    ):
        assert program.stdout is not None
        for line in program.stdout:
            seen = json.loads(line)
            told.setdefault(seen.pop("what"), []).append(seen)
            if "kill" in told and len(told["kill"]) == 1 and not seen:
                gateway.kill()
                gateway.start()
        assert program.wait(60) == 0, told
    return told


@pytest.mark.shows(clients="P-001 P-003 P-004 P-005 P-028 P-041 P-045 P-046 P-047 P-048", sub_agents="B141 B145 B149")
@pytest.mark.thorough
def test_agent_client_knows_its_agent_sets_its_state_and_calls_it_across_a_kill(tmp_path: Path) -> None:
    """P-001, P-003, P-004, P-005, P-006, P-019, P-021, P-028, P-030, P-041 to P-048, P-050."""
    cast = "tests.gateway.agents_cast"
    told = play(tmp_path, "agents_client.mjs", [f"{cast}:Counter", f"{cast}:HTTPAgent"])
    assert [(each["agent"], each["name"]) for each in told["identity"]] == [
        ("counter", "room one"), ("counter", "default"), ("counter", "x"), ("h-t-t-p-agent", "y"),
    ]  # fmt: skip
    (states,) = told["states"]
    assert states["left"] == [
        [{"count": 1}, "client"], [{"count": 2}, "server"], [{"count": -1}, "client"], [{"count": 2}, "server"],
    ]  # fmt: skip
    assert states["right"] == [[{"count": 1}, "server"], [{"count": 2}, "server"]]
    assert states["errors"] == ["ValueError: the count is negative"]
    assert told["result"] == [{"value": 2}]
    assert told["add"] == [{"value": 5}]
    assert told["fail"] == [{"error": "ValueError: as asked"}]
    assert told["unknown"] == [{"error": "Method nothing does not exist"}]
    assert told["hidden"] == [{"error": "Method secret is not callable"}]
    assert told["streamed"] == [{"streamed": [0, 1, 2, 3]}]
    assert told["parallel"] == [{"values": list(range(1, 51))}]
    assert "timed out" in told["late"][0]["error"]
    assert told["after"] == [{"value": 2}]
    assert told["eager"] == [{"value": 1}]
    assert [each["code"] for each in told["closed"]] == [4404, 4404]
    assert told["cut"] == [{"error": "Connection closed"}]
    assert told["back"] == [{"value": 3, "state": {"count": 3}}]


@pytest.mark.shows(chat_recovery="C-0320", clients="P-061 P-073 P-074 P-110 P-116 P-147 P-149 P-161 P-170")
@pytest.mark.thorough
def test_the_hooks_hold_a_conversation_across_a_kill(tmp_path: Path) -> None:
    """P-061 to P-063, P-068, P-073, P-074, P-077, P-080, P-110, P-116, P-129, P-135, P-138, P-147, P-149, P-151, P-156, P-161, P-170."""
    told = play(
        tmp_path,
        "agents_react.mjs",
        [f"{CHAT}:Talker", f"{CHAT}:Asker"],
        setup=f"{CHAT}:script",
        setup_options={"between_ms": 20},
    )
    asked = [["user", "sum"], ["assistant", WHOLE]]
    (two,) = told["two"]
    assert two["left"] == two["right"] == asked
    assert two["ends"] == [["completed"], ["completed"]]
    assert {"streaming", "ready"} <= set(two["states"])
    assert set(two["ids"]) == {two["stored"][1]}
    for name in ("late", "regenerated"):
        assert told[name][0]["left"] == told[name][0]["right"] == asked * 2
    assert told["regenerated"][0]["stored"] == 4
    assert told["stopped"] == [{"ends": ["aborted", "aborted"], "status": "ready"}]
    assert told["cleared"] == [{"stored": []}]
    assert told["chat left"][0]["ends"] == ["aborted"]
    assert told["page left"] == [{"ends": ["completed"], "shown": asked}]
    (client_tool,) = told["client tool"]
    assert (client_tool["calls"], client_tool["states"]) == (["ask_colour"], ["output-available"])
    assert [role for role, _ in client_tool["shown"]] == ["user", "assistant"]
    (approval,) = told["approval"]
    assert approval["states"] == ["output-available"]
    (children,) = told["children"]
    assert children["live"] == children["replayed"]
    assert children["bound"] == 1
    (run,) = children["live"]
    assert (run["status"], run["agentType"], run["subAgent"]["name"]) == ("completed", "Helper", run["runId"])
    assert run["parts"][-1]["text"] == run["summary"]
    (child,) = told["drill-in"]
    assert (child["name"], child["agent"]) == (run["runId"], "helper")
    assert child["shown"] == [["user", "words"], ["assistant", run["summary"]]]
    (killed,) = told["killed"]
    assert killed["left"] == killed["right"] == asked
    assert killed["ends"] == [["completed"], ["completed"]]
    assert killed["recovering"] == [False, False]


@pytest.mark.shows(clients="P-130")
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("which", "version"), [("agents_6.0.326", "6.0.326"), ("agents_7.0.97", "7.0.97"), ("", "7.0.173")]
)
def test_each_release_shows_a_continued_answer_as_it_is_stored(tmp_path: Path, which: str, version: str) -> None:
    """P-130: releases merge what continues an answer in different ways."""
    told = play(
        tmp_path,
        "agents_shapes.mjs",
        [f"{CHAT}:Asker"],
        which,
        setup=f"{CHAT}:script",
        setup_options={"between_ms": 20},
    )
    (tool,), (approval,) = told["tool"], told["approval"]
    assert (tool["version"], tool["states"]) == (version, ["output-available"])
    assert (approval["states"], approval["errors"]) == (["output-available"], [None, None])
    assert [role for role, _ in approval["shown"]] == ["user", "assistant"] * 2


@pytest.mark.shows(
    clients=(
        "P-013 P-017 P-027 P-032 P-034 P-035 P-036 P-059 P-060 P-099 P-112 P-114 P-124 P-127 P-139 P-142 P-152 P-159"
    ),
)
@pytest.mark.long
def test_the_clients_come_through_bad_moments(tmp_path: Path) -> None:
    """P-013, P-017, P-027, P-032, P-034, P-035, P-036, P-059, P-060, P-099, P-112, P-114, P-124, P-127, P-139, P-142, P-152, P-159."""
    told = play(
        tmp_path,
        "agents_moments.mjs",
        [f"{CHAT}:Talker", f"{CHAT}:Asker", f"{CHAT}:Archive"],
        setup=f"{CHAT}:script",
        setup_options={"between_ms": 20},
        hooks={"authenticate": f"{CHAT}:doorkeeper", "limits": f"{CHAT}:LIMITS"},
    )
    (closes,) = told["reopened"]
    assert closes["reopened"] == [[code, False, True, True] for code in (1000, 1001, 1011, 1012, 3000)]
    assert closes["queries"] == [["_pk", "token"]] * 6
    assert told["tokens"] == [{"carried": ["old", "new"]}]
    assert told["blind"] == [{"shown": [], "code": 4403, "asked": True}]
    whole = [["user", "sum"], ["assistant", WHOLE]]
    assert told["renamed"] == [{"lines": [0, 1], "shown": whole}]
    (archive,) = told["archive"]
    assert (archive["bytes"] > 10_000_000, archive["last"]) == (True, 5_000)
    assert told["cut before the end"] == [{"shown": whole, "ends": ["completed"]}]
    assert told["offline"] == [{"shown": ["user", "assistant"] * 2, "vanished": False, "stored": 4}]
    assert told["no resume"] == [{"streams": False}]
    (going,) = told["cut continuation"]
    assert (going["cuts"], going["shown"]) == (1, going["stored"])
    (child,) = told["child"]
    assert (child["isSame"], child["text"]) == (True, child["summary"])
    (at_the_end,) = told["killed at the end"]
    assert at_the_end["shown"][0] == at_the_end["shown"][1]
    (before,) = told["killed before a message"]
    assert (before["shown"][4], before["stored"]) == ("words again", 6)
    (in_a_child,) = told["killed in a child"]
    assert in_a_child["texts"] == in_a_child["summaries"]
    assert told["silent"] == [{"shown": whole}]
    assert told["patient"][0]["waited"] >= 2_900
