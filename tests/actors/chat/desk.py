"""What the tests of chat agents share: an agent with real tools, a scripted provider, and a callback that remembers."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, ClassVar

from perdure.actors import ChatAgent, Client, KillPoint, tool
from perdure.scenarios.provider.faults import FaultPlan, Pace
from perdure.scenarios.provider.script import Round, Script, ScriptedCall, ScriptedQuestion
from perdure.scenarios.provider.sim import SimProvider
from perdure.scenarios.testing.laboratory import Laboratory
from tests.kit import Death

ENDS = ("on_done", "on_error", "on_interrupted")


class Outside:
    """What lies outside of every simulated process: the provider, and the effects that tools had."""

    provider = SimProvider()
    model: Any = None
    effects: ClassVar[Counter[tuple[Any, ...]]] = Counter()

    @classmethod
    def begin(cls, script: Script, plan: FaultPlan | None = None, pace: Pace | None = None) -> None:
        """A new provider, and no effects."""
        cls.provider = SimProvider(script, plan, pace)
        cls.effects = Counter()
        cls.model = cls.provider.model()


ADD = tuple(ScriptedCall(name="add", arguments={"a": number, "b": 2}) for number in range(3))
SUM = ScriptedQuestion(
    asks="sum",
    rounds=(
        Round(thinks="Three at once.", says="Let me add first. ", calls=ADD),
        Round(says="And then double it. ", calls=(ScriptedCall(name="double", arguments={"a": 7}),)),
    ),
)
WORDS = ScriptedQuestion(asks="words", rounds=(), concludes="Only words")
SCRIPT = Script(questions=(SUM, WORDS))
WHOLE = (
    "Let me add first. And then double it. Done: 4 results.\n"
    '1. add {"a":0,"b":2} → d4735e3a265e\n'
    '2. add {"a":1,"b":2} → 4e07408562be\n'
    '3. add {"a":2,"b":2} → 4b227777d4dd\n'
    '4. double {"a":7} → 8527a891e224\n'
    "That is all. ∎"
)


@tool
async def add(a: int, b: int) -> str:
    """Add two numbers; a run of its own."""
    Outside.effects["add", a] += 1
    await asyncio.sleep(0.05)
    return str(a + b)


class Adder(ChatAgent):
    """Adds in runs of their own, and doubles in its own process."""

    chat_stream_stall_timeout_ms = 5_000

    def get_model(self) -> Any:
        """The scripted provider, over the library's own client."""
        return Outside.model

    def tools(self) -> list[Any]:
        """The function; the method is found by its mark."""
        return [add]

    @tool
    async def double(self, a: int) -> str:
        """Double a number in this very process."""
        Outside.effects["double", a] += 1
        await asyncio.sleep(0.02)
        return str(2 * a)


class Listener:
    """A callback that remembers what it was told."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    def on_start(self, told: Any) -> None:
        """The turn is accepted."""
        self.heard.append(("on_start", told))

    def on_event(self, event: Any) -> None:
        """An event of the stream."""
        self.heard.append(("on_event", event))

    def on_done(self) -> None:
        """The answer is whole."""
        self.heard.append(("on_done",))

    def on_error(self, text: str) -> None:
        """The turn has ended without an answer."""
        self.heard.append(("on_error", text))

    def on_interrupted(self, info: Any) -> None:
        """The attempt is over."""
        self.heard.append(("on_interrupted", info))

    @property
    def ends(self) -> list[str]:
        """The ends that it was told of."""
        return [name for name, *_ in self.heard if name in ENDS]

    @property
    def types(self) -> list[str]:
        """The types of the events that it was told."""
        return [each[1]["type"] for each in self.heard if each[0] == "on_event"]


def in_third_answer() -> Death:
    """Where to kill: once, while the answer to the third request is being written."""
    return Death(KillPoint.MID_STREAM, of="text-delta", when=lambda: len(Outside.provider.log()) == 3)


def strike_at_work() -> Death:
    """Where to kill: once, when the host of an agent writes after its tool has begun."""
    return Death(KillPoint.MID_STORAGE, of="before", when=lambda: Outside.effects["began", "a"] > 0)


async def ask(client: Client, agent: type[ChatAgent], question: str, **options: Any) -> tuple[Any, list[Listener]]:
    """Ask and follow to the true end, through every interruption; the result, and one listener for each attempt."""
    listeners = [Listener()]
    request_id = options.setdefault("request_id", "asked")
    result = await client.call(agent, "somebody", "chat", (question, listeners[0]), options)
    while result.status == "interrupted":
        listeners.append(Listener())
        result = await client.call(
            agent, "somebody", "attach", (request_id, listeners[-1]), {"first": result.next_event}
        )
    return result, listeners


def play(question: str, *, agent: type[ChatAgent] = Adder, **simulation: Any) -> tuple[Any, list[Listener], int]:
    """Ask one question in a world of its own, which must then come to rest with every invariant kept."""
    with Laboratory(1, **simulation) as laboratory:
        result, listeners = laboratory.play(lambda client: ask(client, agent, question))
        laboratory.heal()
        laboratory.settle()
        laboratory.simulation.raise_errors()
        return result, listeners, laboratory.simulation.visit_count
