"""Stories about chat agents: a client that asks, a provider that answers by a script, tools that take their time, and what was observed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from perdure.actors import Agent, Client, client_tool, exposed, tool
from perdure.actors.events.observability import ObservedEvent, subscribe
from perdure.scenarios.provider.events import ArgumentsDelta, CallStart, Done, Finish, Role, Text
from perdure.scenarios.provider.faults import FaultPlan, Pace
from perdure.scenarios.provider.script import Round, Script, ScriptedCall, ScriptedQuestion
from perdure.scenarios.testing.laboratory import Laboratory
from tests.actors.chat.desk import SCRIPT, Adder, Outside

Story = Callable[[Client], Awaitable[Any]]
CALM = Pace()


def tell(
    story: Story, script: Script = SCRIPT, plan: FaultPlan | None = None, pace: Pace = CALM, **simulation: Any
) -> list[ObservedEvent]:
    """Play a story in a quiet world, which must come to rest with every invariant kept; what was told on the channel of chats."""
    Outside.begin(script, plan, pace)
    heard: list[ObservedEvent] = []
    forget = subscribe("chat", heard.append)
    try:
        with Laboratory(3, **simulation) as laboratory:
            laboratory.play(story)
            laboratory.settle()
            laboratory.simulation.raise_errors()
    finally:
        forget()
    assert Outside.provider.counters().illegal == 0, Outside.provider.log()
    return heard


async def call(client: Client, agent: type[Agent], method: str, *args: Any, **options: Any) -> Any:
    """Call a method of the agent `somebody`."""
    return await client.call(agent, "somebody", method, args, options)


async def until(is_so: Callable[[], bool]) -> None:
    """Let time pass until something is so."""
    while not is_so():
        await asyncio.sleep(0.05)


async def status_of(client: Client, agent: type[Agent], request_id: str = "asked") -> str:
    """The status of a turn."""
    told = await call(client, agent, "inspect_turn", request_id)
    return "" if told is None else str(told["status"])


async def until_parked(client: Client, agent: type[Agent], request_id: str = "asked") -> list[str]:
    """Let time pass until a turn waits for a person; the ids of all its calls."""
    while await status_of(client, agent, request_id) != "parked":
        await asyncio.sleep(0.1)
    answer = f"{request_id}-answer"
    (message,) = [each for each in await call(client, agent, "get_messages") if each["id"] == answer]
    return [part["toolCallId"] for part in message["parts"] if "toolCallId" in part]


def values(message: Any, name: str) -> list[Any]:
    """This field of all parts of a message that have it."""
    return [part[name] for part in (message or {"parts": []})["parts"] if name in part]


def bodies() -> list[str]:
    """The requests that the provider was sent, as text."""
    return [str(record.body) for record in Outside.provider.log()]


@tool
async def work(what: str, seconds: float = 60) -> str:
    """Work on something for a while, at most once; a run of its own."""
    Outside.effects["began", what] += 1
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        Outside.effects["stopped", what] += 1
        raise
    Outside.effects["done", what] += 1
    return f"worked on {what}"


@tool
async def fail(what: str) -> str:
    """Fail after a while."""
    Outside.effects["began", what] += 1
    await asyncio.sleep(1)
    raise ValueError(f"{what} cannot be done")


@tool(needs_approval=True)
async def risky(what: str) -> str:
    """Do something that somebody has to allow."""
    Outside.effects["risky", what] += 1
    return f"did {what}"


NOTHING: dict[str, Any] = {"type": "object", "properties": {}}


class Worker(Adder):
    """Has slow tools of every kind."""

    def tools(self) -> list[Any]:
        """Runs of their own, one that needs approval, and a question for the person."""
        return [*super().tools(), work, fail, risky, client_tool("ask_user", "Ask the user.", NOTHING)]

    @exposed
    async def is_stable(self, timeout_ms: float) -> bool:
        """Whether all turns end in time."""
        return await self.wait_until_stable(timeout_ms)

    @tool
    async def brood(self, what: str, seconds: float = 60) -> str:
        """Brood in this very process, at most once."""
        Outside.effects["began", what] += 1
        await asyncio.sleep(seconds)
        return f"brooded on {what}"


def asks_for(*calls: ScriptedCall, asks: str = "go") -> Script:
    """A model that makes these calls at once."""
    return Script(
        questions=(ScriptedQuestion(asks=asks, rounds=(Round(says="On it. ", calls=calls),)), *SCRIPT.questions)
    )


def streams(first: ScriptedCall, second: ScriptedCall, asks: str = "go") -> Script:
    """The same for two calls, event by event: 0 role, 1 text, 2-3 the first call, 4-6 the second one, 7 the end, 8 the sentinel.

    The first call is proven whole, and begins, with event 4; a fault at event 6 cuts the second one in two.
    """
    said = [_json(each) for each in (first, second)]
    half = len(said[1]) // 2
    verbatim = (
        Role(),
        Text(text="On it. "),
        CallStart(index=0, id="call-a", name=first.name),
        ArgumentsDelta(index=0, text=said[0]),
        CallStart(index=1, id="call-b", name=second.name),
        ArgumentsDelta(index=1, text=said[1][:half]),
        ArgumentsDelta(index=1, text=said[1][half:]),
        Finish(reason="tool_calls"),
        Done(),
    )
    question = ScriptedQuestion(asks=asks, rounds=(Round(says="On it. ", calls=(first, second)),), verbatim=(verbatim,))
    return Script(questions=(question, *SCRIPT.questions))


def _json(each: ScriptedCall) -> str:
    return each.key.partition(" ")[2]
