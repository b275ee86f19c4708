"""A chat agent whose answer stands still in its middle until a file is there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from perdure.actors import client_tool, tool
from perdure.scenarios.provider.script import Round, Script, ScriptedCall, ScriptedQuestion
from tests.actors.chat.desk import SCRIPT, Adder, Outside
from tests.actors.chat.talk import NOTHING

BEFORE = "Let me wait. "
AFTER = "That is all. ∎"


@tool(effect="idempotent")
async def wait(path: str) -> str:
    """Wait until the file is there."""
    while not await asyncio.to_thread(Path(path).exists):
        await asyncio.sleep(0.05)
    return "open"


class Waiter(Adder):
    """Waits in its answer to a question about the gate, and asks back when it is asked for a color."""

    def tools(self) -> list[Any]:
        return [*super().tools(), wait, client_tool("ask_user", "Ask the user.", NOTHING)]


def begin(gate: str) -> None:
    """Give the provider its script, with a file to wait for."""
    rounds = (Round(says=BEFORE, calls=(ScriptedCall(name="wait", arguments={"path": gate}),)),)
    gates = ScriptedQuestion(asks="gate", rounds=rounds)
    color = ScriptedQuestion(asks="color", rounds=(Round(says="Which one? ", calls=(ScriptedCall(name="ask_user"),)),))
    Outside.begin(Script(questions=(gates, color, *SCRIPT.questions)))
