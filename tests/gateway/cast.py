"""The agents of the gateway's tests."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from perdure.actors import Agent, ChatAgent, RunContext, exposed
from perdure.actors.gateway.security import Principal, Scope, bearer
from perdure.scenarios.provider.faults import Pace
from tests.actors.chat.desk import SCRIPT, Adder, Outside
from tests.actors.chat.test_people_waited_for import ASK


def script(first_ms: float = 0, between_ms: float = 0) -> None:
    """Give the provider the script of the chat agents' tests, at this pace."""
    Outside.begin(SCRIPT, pace=Pace(first_ms=first_ms, between_ms=between_ms))


def script_of_asker() -> None:
    """Give the provider the script of the chat agent whose calls wait for people."""
    Outside.begin(ASK)


class Talker(Adder):
    """A chat agent with tools, over the scripted provider."""


class Counter(Agent):
    """Counts, and tells everybody who watches its state."""

    @exposed
    def add(self, amount: int) -> int:
        """Add an amount, and return the sum."""
        self.state["count"] = self.state.get("count", 0) + amount
        return int(self.state["count"])

    @exposed
    def fail(self) -> None:
        """Raise."""
        raise ValueError("as asked")


class Gated(Agent):
    """Gets half of the way, and the rest when a file is there."""

    async def run(self, input: str) -> str:
        await self.report_progress(fraction=0.5, message="at the gate")
        while not await asyncio.to_thread(Path(input).exists):
            await asyncio.sleep(0.05)
        return "there"


class Booker(Agent):
    """Books, waits, and gives the booking up when it is cancelled, as soon as a file is there."""

    async def run(self, input: str, run: RunContext) -> None:
        await run.step("book", lambda: input, undo=self.give_up)
        await asyncio.sleep(600)

    async def give_up(self, gate: str) -> None:
        while not await asyncio.to_thread(Path(gate).exists):
            await asyncio.sleep(0.05)


class Walker(Agent):
    """Reports each step."""

    async def run(self, input: int) -> str:
        for step in range(input):
            await self.report_progress(fraction=(step + 1) / input, message=f"step {step}")
            await asyncio.sleep(1)
        return "there"


class Shipping(BaseModel):
    """A form with a field of each kind."""

    carrier: Literal["post", "courier"]
    boxes: int
    weight: float | None = None
    insured: bool = False
    label: str = ""


KINDS: dict[str, Any] = {
    "yes": bool,
    "choice": Literal["red", "green <b>", 3],
    "many": [f"choice {number}" for number in range(30)],
    "text": str,
    "form": Shipping,
    "anything": dict[str, list[int]],
}


class Asker(Agent):
    """Asks people what its input says, and returns what it was answered."""

    async def run(self, input: dict[str, Any], run: RunContext) -> list[Any]:
        kind, count = KINDS[input.pop("kind", "yes")], input.pop("count", 1)
        given: list[Any] = []
        for number in range(count):
            question = f"{input['question']} ({number + 1})" if count > 1 else input["question"]
            given.append(await run.ask(**{**input, "question": question}, schema=kind))
        last = given[-1]
        value = last.value.model_dump() if isinstance(last.value, BaseModel) else last.value
        return [value, last.who, last.channel, last.args]


class Crowd(Agent):
    """Asks many questions at once."""

    async def run(self, input: int, run: RunContext) -> int:
        said = await asyncio.gather(*(run.ask(f"Question {number}?") for number in range(input)))
        return sum(each.value for each in said)


BY_TOKEN = bearer(
    {
        "a": Principal("ada", frozenset({Scope.READ, Scope.CHAT, Scope.OPERATE}), frozenset({"ops"})),
        "l": Principal("lea", frozenset({Scope.READ})),
    }
)


async def strike_nobody(_name: str, _pid: int) -> str:
    """Says that a process was killed."""
    return "SIGKILL"


CHAT: type[ChatAgent[Any]] = Talker
