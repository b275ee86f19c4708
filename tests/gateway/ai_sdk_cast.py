"""The chat agents that real clients of the AI SDK talk with."""

from __future__ import annotations

from typing import Any

from perdure.actors import agent_tool, client_tool
from perdure.actors.gateway.security import Principal, Scope
from perdure.scenarios.provider.faults import Pace
from perdure.scenarios.provider.script import Round, Script, ScriptedCall, ScriptedQuestion
from tests.actors.chat.desk import SCRIPT, Adder, Outside
from tests.actors.chat.talk import NOTHING, risky
from tests.gateway.clerk import Asker


class Talker(Adder):
    """A chat agent with tools. It has one that needs approval, and one of the client's."""

    def tools(self) -> list[Any]:
        ask_user = client_tool("ask_user", "Ask the user.", NOTHING)
        return [*super().tools(), risky, ask_user, agent_tool(Asker, name="asker", description="Ask people.")]


class Dropper(Talker):
    """Takes no messages while a turn is under way."""

    message_concurrency = "drop"


def begin(between_ms: float) -> None:
    """Give the provider its script, at this pace."""
    color = ScriptedQuestion(asks="color", rounds=(Round(says="Which one? ", calls=(ScriptedCall(name="ask_user"),)),))
    wish = ScriptedQuestion(
        asks="wish", rounds=(Round(says="May I? ", calls=(ScriptedCall(name="risky", arguments={"what": "it"}),)),)
    )
    asking = ScriptedCall(name="asker", arguments={"input": "Open the gate?"})
    inquire = ScriptedQuestion(asks="inquire", rounds=(Round(says="I ask. ", calls=(asking,)),))
    Outside.begin(Script(questions=(color, wish, inquire, *SCRIPT.questions)), pace=Pace(between_ms=between_ms))


def may_address(_who: Principal, _kind: type, name: str) -> bool:
    """Nobody may address what is somebody else's."""
    return not name.startswith("other")


def reader(connection: Any) -> Principal | None:
    """Whoever sends `x-reader` may only read; whoever sends `x-nobody` is nobody."""
    if "x-nobody" in connection.headers:
        return None
    return Principal("reader", frozenset({Scope.READ})) if "x-reader" in connection.headers else Principal()
