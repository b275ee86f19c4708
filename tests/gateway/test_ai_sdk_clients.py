"""Unmodified clients of the AI SDK, under Node, in front of a real gateway."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.actors.chat.desk import WHOLE
from tests.gateway.npm import play, started
from tests.gateway.real import RealGateway, real_gateway
from tests.kit import some

CAST = "tests.gateway.ai_sdk_cast"
OUTPUTS = ("2", "3", "4", "14")
WHOLE_ANSWER: dict[str, Any] = {"status": "ready", "roles": ["user", "assistant"], "text": WHOLE}
PROGRAM = Path(__file__).with_suffix(".mjs")
IN_BOTH = "plain stopped reloaded cut away asked inquiry cancelled edited asking approving".split()
IN_SEVEN = "held refused together socket".split()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealGateway]:
    """A gateway for all stories but those that kill it."""
    hooks = {"may_address": f"{CAST}:may_address", "authenticate": f"{CAST}:reader"}
    with serving(tmp_path_factory.mktemp("data"), hooks=hooks) as found:
        yield found


def serving(data: Path, **given: Any) -> Any:
    agents = [f"{CAST}:Talker", f"{CAST}:Dropper"]
    return real_gateway(data, agents, setup=f"{CAST}:begin", setup_options={"between_ms": 30}, **given)


@pytest.mark.shows(clients="P-176 P-177 P-179 P-183")
@pytest.mark.parametrize("which", some(1, ["", "six"]))
def test_unmodified_clients_hold_conversations(gateway: RealGateway, which: str) -> None:
    stories = IN_BOTH if which else [*IN_BOTH, *IN_SEVEN]
    given = {"url": gateway.url, "query": "" if which else "?ai=7", "stories": stories, "prefix": f"{which}-"}
    seen = {each.pop("story"): each for each in play(PROGRAM, given, which=which)}
    check_answers(seen)
    check_answered_calls(seen)
    check_absences(seen)
    inquiry = seen["inquiry"]
    assert (inquiry["opened"], inquiry["told"]) == ("open", [[True, "answered", "ada"]]), "one part, opened and closed"
    assert (inquiry["status"], inquiry["output"], inquiry["again"]) == ("ready", "True by ada", True)
    assert (seen["cancelled"]["status"], seen["cancelled"]["finishes"][0]) == (
        "ready",
        "other" if which else "interrupted",
    )
    if not which:
        check_refusals(seen)
        check_socket(seen)
        assert WHOLE_ANSWER.items() <= seen["held"].items()
        assert seen["together"]["one"]["text"].startswith("Only words")
        assert seen["together"]["two"]["text"] == WHOLE
        assert sorted(seen["together"]["kept"][::2]) == ["sum", "words"]


def check_answers(seen: dict[str, Any]) -> None:
    """Every answer is whole in the end, once, whatever its client went through."""
    for story in "plain resumed idle reloaded mended regenerated edited again".split():
        assert WHOLE_ANSWER.items() <= seen[story].items(), story
    assert (seen["plain"]["finishes"], seen["plain"]["errors"]) == (["stop"], [])
    assert seen["plain"]["kept"] == ["sum", WHOLE]
    assert {tuple(each[1:]) for each in seen["tools"]["tools"]} == {("output-available", each) for each in OUTPUTS}
    assert seen["stopped"]["status"] == "ready"
    assert len(seen["stopped"]["text"]) < len(WHOLE)
    assert all(seen[story]["isSame"] for story in ("resumed", "reloaded", "mended"))
    assert (seen["cut"]["status"], seen["cut"]["finishes"]) == ("error", ["error"])
    assert seen["edited"]["kept"] == ["sum", WHOLE]
    assert seen["again"]["isNew"]


def check_absences(seen: dict[str, Any]) -> None:
    """Whose line is down when the answer ends has all of it afterwards, once, and so has a page that is loaded then."""
    for story in ("away", "away again", "away reloaded"):
        assert WHOLE_ANSWER.items() <= seen[story].items(), story
    assert seen["away"]["isSame"]
    assert len(seen["away"]["half"]) < len(WHOLE)
    assert (seen["asked"]["status"], seen["asked"]["made"]) == ("ready", ["ask_user"])
    reloaded = seen["asked reloaded"]
    assert (reloaded["roles"], reloaded["text"]) == (["user", "assistant"], reloaded["whole"])
    assert (reloaded["made"], reloaded["output"]) == ([], "blue"), "what was done is not done again"


def check_socket(seen: dict[str, Any]) -> None:
    """The client's own WebSocket transport does the same."""
    assert seen["socket idle"]["status"] == "ready"
    assert WHOLE_ANSWER.items() <= seen["socket"].items()
    assert seen["socket"]["finishes"] == ["stop"]
    assert seen["socket resumed"]["text"] == WHOLE
    assert seen["socket resumed"]["roles"] == ["user", "assistant"] * 2
    assert seen["socket refused"]["status"] == "error"
    assert "client_tools" in seen["socket refused"]["errors"][0]
    assert (seen["socket away"]["text"], seen["socket away"]["roles"]) == (WHOLE, ["user", "assistant"] * 3)


def check_answered_calls(seen: dict[str, Any]) -> None:
    """Results and approvals reach the agent, and the answer goes on in the same message."""
    states = {"asking": None, "approving-true": "output-available", "approving-false": "output-denied"}
    for story, state in states.items():
        told = seen[story]
        assert (told["roles"], told["finishes"], told["errors"]) == (["user", "assistant"], ["tool-calls", "stop"], [])
        assert told["text"].endswith("That is all. ∎")
        assert told["kept"][1] == told["text"]
        assert told.get("tool") == state


def check_refusals(seen: dict[str, Any]) -> None:
    """The words of a refusal reach the person."""
    words = {
        "nobody": "it has no valid token",
        "reader": "reader has not the scope 'chat'",
        "other": "nothing is addressed as",
        "missing": "/chat/talker, /chat/dropper",
        "large": "are the most that is taken",
        "metadata": "the limit is 65536",
        "major": "known are 6, 7",
        "meanwhile": "takes no messages meanwhile",
    }
    for name, expected in words.items():
        told = seen[f"refused {name}"]
        assert told["status"] == "error", name
        assert expected in told["errors"][0], name


@pytest.mark.thorough
@pytest.mark.shows(clients="P-180")
def test_a_gateway_that_is_killed_in_an_answer_tells_it_whole_when_it_is_back(tmp_path: Path) -> None:
    with serving(tmp_path) as gateway:
        given = {"url": gateway.url, "query": "?ai=7", "stories": ["killed"], "prefix": ""}
        with started(PROGRAM, given) as program:
            assert program.stdin is not None
            assert program.stdout is not None
            assert json.loads(program.stdout.readline()) == {"story": "streaming"}
            gateway.kill()
            killed = json.loads(program.stdout.readline())
            gateway.start()
            program.stdin.write("again\n")
            program.stdin.flush()
            revived = json.loads(program.stdout.readline())
    assert (killed["status"], killed["finishes"]) == ("error", ["error"])
    assert len(killed["text"]) < len(WHOLE)
    assert (revived["status"], revived["roles"], revived["text"]) == ("ready", ["user", "assistant"], WHOLE)
    assert revived["isSame"]
    assert revived["kept"] == ["sum", WHOLE]
