"""A room with one chat agent in it: what the tests of turns do to it, and how they look at it. The world comes to rest afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from perdure.actors import ChatAgent, Client
from perdure.ledger import View
from perdure.scenarios.provider.faults import FaultPlan, Pace
from perdure.scenarios.provider.script import Round, Script, ScriptedCall, ScriptedQuestion
from perdure.scenarios.testing.laboratory import Laboratory
from tests.actors.chat.desk import SCRIPT, Listener, Outside
from tests.kit import T, address, played

SLOW = Pace(first_ms=200, between_ms=50)
SLEEP_S = 10
"""Long enough for an idle agent to be put to sleep, so that the next question is to another life of it."""


class Room:
    """One agent, somebody's."""

    def __init__(self, laboratory: Laboratory, client: Client, agent: type[ChatAgent]) -> None:
        self.laboratory, self.client, self.agent = laboratory, client, agent

    @property
    def view(self) -> View:
        """What the supervisor knows."""
        return self.laboratory.supervisors[-1].view

    async def do(self, method: str, *args: Any, **options: Any) -> Any:
        """Call a method of the agent."""
        return await self.client.call(self.agent, "somebody", method, args, options)

    async def follow(self, method: str, *args: Any, **options: Any) -> tuple[Any, Listener]:
        """The same for a method that takes a callback after its arguments; what it gave, and what the callback was told."""
        listener = Listener()
        return await self.do(method, *args, listener, **options), listener

    def soon(self, method: str, *args: Any, **options: Any) -> asyncio.Task[Any]:
        """The same without waiting for it."""
        return asyncio.ensure_future(self.do(method, *args, **options))

    async def until(self, condition: Callable[[], Any]) -> None:
        """Let time pass until something is so; the condition may be a coroutine function."""
        async with asyncio.timeout(300):
            while True:
                found = condition()
                if await found if isinstance(found, Awaitable) else found:
                    return
                await asyncio.sleep(0.05)

    async def is_(self, status: str, request_id: str = "asked") -> bool:
        """Whether a turn has this status."""
        told = await self.do("inspect_turn", request_id)
        return told is not None and told["status"] == status

    async def roles(self) -> str:
        """The transcript as one letter for each message."""
        return "".join(message["role"][0] for message in await self.do("get_messages"))

    def kill(self, name: str = "somebody") -> None:
        """Kill the process in which the agent lives."""
        activation = self.view.agents[address(self.agent, name)]
        self.laboratory.simulation.kill(activation.host_id)

    async def sleep(self) -> None:
        """Let the agent fall asleep; what it is asked next, its next life is asked."""
        await asyncio.sleep(SLEEP_S)
        activation = self.view.agents.get(address(self.agent, "somebody"))
        assert activation is None or not activation.host_id


Story = Callable[[Room], Awaitable[Any]]


def visit(
    agent: type[ChatAgent],
    story: Story,
    script: Script = SCRIPT,
    plan: FaultPlan | None = None,
    pace: Pace | None = None,
    timeout_ms: float = 600_000,
    **simulation: Any,
) -> Any:
    """Play a story with one agent. The world must come to rest, and no request to the model may have been illegal."""
    Outside.begin(script, plan, pace)
    with Laboratory(3, **simulation) as laboratory:
        result = laboratory.play(lambda client: story(Room(laboratory, client, agent)), timeout_ms)
        laboratory.settle()
        laboratory.simulation.raise_errors()
    assert Outside.provider.counters().illegal == 0, Outside.provider.log()
    return result


def visiting(agent: type[ChatAgent], *given: Any, **options: Any) -> Callable[[T], T]:
    """The test is a story of one agent, with these options of `visit`."""
    return played(lambda story: visit(agent, story, *given, **options))


def calls(asks: str, *wanted: ScriptedCall) -> ScriptedQuestion:
    """A question that the model answers with these calls at once."""
    return ScriptedQuestion(asks=asks, rounds=(Round(calls=wanted),))


def texts(message: dict[str, Any]) -> list[str]:
    """The texts of a message."""
    return [part["text"] for part in message["parts"] if part["type"] == "text"]


def outcomes(message: dict[str, Any]) -> list[tuple[str, Any]]:
    """The calls of a message: each one's state, with its output or the words of its error."""
    found = [part for part in message["parts"] if "toolCallId" in part]
    return [(part["state"], part.get("output", part.get("errorText"))) for part in found]
