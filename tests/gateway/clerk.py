"""A chat agent whose turns have everything that a front end may meet: children, approvals, questions to the client, state."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import HTTPConnection

from perdure.actors import Agent, Approval, RunContext, agent_tool, client_tool, tool
from perdure.actors.gateway.security import Principal
from perdure.scenarios.provider.faults import Pace
from perdure.scenarios.provider.script import Round, Script, ScriptedCall, ScriptedQuestion
from tests.actors.chat.desk import SCRIPT, Adder, Outside

NOTHING = {"type": "object", "properties": {}}
ANSWERED = {
    "risk": (ScriptedCall(name="risky", arguments={"a": 1}),),
    "user": (ScriptedCall(name="ask_user", arguments={}),),
    "front": (ScriptedCall(name="paint", arguments={"colour": "red"}),),
    "walk": (ScriptedCall(name="walker", arguments={"input": 3}),),
    "talk": (ScriptedCall(name="speaker", arguments={"message": "words"}),),
    "pay": (ScriptedCall(name="pay", arguments={"amount": 4}),),
    "inquire": (ScriptedCall(name="asker", arguments={"input": "Open the gate?"}),),
    "note": (ScriptedCall(name="note", arguments={"text": "milk"}),),
}
CLERK = Script(
    questions=(
        *SCRIPT.questions,
        *(
            ScriptedQuestion(asks=f"please {asks}", rounds=(Round(thinks="Hm.", says=f"I {asks}. ", calls=calls),))
            for asks, calls in ANSWERED.items()
        ),
        ScriptedQuestion(
            asks="please both",
            rounds=(Round(says="Two. ", calls=(*ANSWERED["risk"], *ANSWERED["user"])),),
        ),
    )
)


def script(first_ms: float = 0, between_ms: float = 0) -> None:
    """Give the provider this script, at this pace."""
    Outside.begin(CLERK, pace=Pace(first_ms=first_ms, between_ms=between_ms))


def everybody_but_wrong(connection: HTTPConnection) -> Principal | None:
    """Let in whoever has no wrong token."""
    return None if connection.headers.get("authorization") == "Bearer wrong" else Principal()


@tool(needs_approval=True)
async def risky(a: int) -> str:
    """Do something that a person has to allow."""
    Outside.effects["risky", a] += 1
    return "done"


@tool(needs_approval=Approval(to="board"))
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


class Strider(Agent):
    """Reports each step."""

    async def run(self, input: int) -> str:
        for step in range(input):
            await self.report_progress(fraction=(step + 1) / input, message=f"step {step}")
            await asyncio.sleep(0.05)
        await self.report_progress(milestone="there")
        return "arrived"


class Asker(Agent):
    """Asks people before it does what it is told."""

    async def run(self, input: str, run: RunContext) -> str:
        answer = await run.ask(input, to="ops", args={"gate": 1})
        return f"{answer.value} by {answer.who}"


class Speaker(Adder):
    """A chat that is asked by another one."""


class Clerk(Adder):
    """Has tools of all kinds."""

    def tools(self) -> list[Any]:
        """Its tools, beside its own methods."""
        return [
            *super().tools(),
            risky,
            pay,
            client_tool("ask_user", "Ask the user.", NOTHING),
            agent_tool(Strider, name="walker", description="Walk."),
            agent_tool(Speaker, name="speaker", description="Talk."),
            agent_tool(Asker, name="asker", description="Ask people."),
        ]

    @tool
    async def note(self, text: str) -> str:
        """Remember something."""
        self.state["notes"] = [*self.state.get("notes", []), text]
        return "noted"
