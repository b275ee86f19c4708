"""The chat agents of the tests of `@cloudflare/ai-chat` over real sockets."""

from __future__ import annotations

from typing import Any

from starlette.requests import HTTPConnection

from perdure.actors import agent_tool, client_tool, exposed, tool
from perdure.actors.gateway.rate_limits import GatewayLimits
from perdure.actors.gateway.security import Principal
from perdure.scenarios.provider.faults import Pace
from perdure.scenarios.provider.script import Round, Script, ScriptedCall, ScriptedQuestion
from tests.actors.chat.desk import SUM, WORDS, Adder, Outside

COLOUR = ScriptedCall(name="ask_colour", arguments={"about": "it"})
RISK = ScriptedCall(name="risky", arguments={"what": "it"})
CHILD = ScriptedCall(name="helper", arguments={"message": "words"})


def script(first_ms: float = 0, between_ms: float = 0) -> None:
    """Give the provider the script, at this pace."""
    rounds = {"colour": COLOUR, "risk": RISK, "child": CHILD}
    asked = [
        ScriptedQuestion(asks=asks, rounds=(Round(says="Wait. ", calls=(each,)),), concludes="Answered")
        for asks, each in rounds.items()
    ]
    Outside.begin(Script(questions=(*asked, SUM, WORDS)), pace=Pace(first_ms=first_ms, between_ms=between_ms))


class Talker(Adder):
    """A chat agent with tools, over the scripted provider."""


class Archive(Adder):
    """Has a long past."""

    @exposed
    async def fill(self, count: int, chars: int) -> None:
        """Add so many messages of so many characters."""
        for first in range(0, count, 500):
            await self.add_messages(
                [
                    {
                        "id": f"m{at:05}",
                        "role": "user" if at % 2 else "assistant",
                        "parts": [{"type": "text", "text": "x" * chars}],
                    }
                    for at in range(first, min(first + 500, count))
                ]
            )


def doorkeeper(connection: HTTPConnection) -> Principal | None:
    """Let everybody in, but not with a token that nobody knows; one of the known may do nothing."""
    query = connection.query_params
    if query.get("token") == "blind":
        return Principal("blind", frozenset())
    return Principal() if query.get("token", "t") in ("t", "old", "new") else None


LIMITS = GatewayLimits(ping_s=3)


class Helper(Adder):
    """A child that is a chat."""

    stands_alone = False


@tool(needs_approval=True)
async def risky(what: str) -> str:
    """Do something that somebody has to allow."""
    return f"did {what}"


class Asker(Adder):
    """Asks the client, asks for approval, and asks a child."""

    def tools(self) -> list[Any]:
        """One of each."""
        schema = {"type": "object", "properties": {"about": {"type": "string"}}}
        return [
            client_tool("ask_colour", description="Ask for a colour.", parameters=schema),
            risky,
            agent_tool(Helper, description="Have a helper do it."),
        ]
