"""Chat agents under the fire of the swarm: turns with parallel tool calls, lost connections and deaths, and what must come of them.

What is outside of every simulated process, the provider and the effects that tools had, is one `Outside` for each seed. At the end each
effect happened once at most, every request that the provider saw was legal, and whoever asked has the whole answer, unless a call died at
work (then the model says that its outcome is unknown) or the patience of recovery was exhausted.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final

from perdure.actors import ChatAgent, TurnResult, tool
from perdure.policies import ChatRecovery
from perdure.scenarios.provider.faults import Fault, FaultKind, FaultPlan, Rule
from perdure.scenarios.provider.script import Call, Question, Round, Script, conclusion
from perdure.scenarios.provider.sim import SimProvider
from perdure.scenarios.swarm.play_context import OFTEN, PlayContext, persist

TOPICS: Final = 8
UNKNOWN: Final = ("OUTCOME UNKNOWN", "whose outcome is still unknown")  # of a call, or of one that it would repeat
EXHAUSTED: Final = (
    "recovery_exhausted",
    "max_attempts_exceeded",
    "work_budget_exceeded",
    "no_progress_timeout",
)
FAULTS: Final = (
    Fault(kind=FaultKind.RESET, event=4),
    Fault(kind=FaultKind.END, event=6),
    Fault(kind=FaultKind.STALL, event=3),
    Fault(kind=FaultKind.STATUS, status=503),
    Fault(kind=FaultKind.ERROR, event=5),
)


def _question(topic: int) -> Question:
    together = tuple(Call(name="add", arguments={"a": 10 * topic + each, "b": 2}) for each in range(3))
    alone = Call(name="double", arguments={"a": topic})
    return Question(
        asks=f"topic {topic}.",
        rounds=(
            Round(thinks="Three at once.", says="First I add. ", calls=together),
            Round(says="Now twice. ", calls=(alone,)),
        ),
    )


QUESTIONS: Final = tuple(_question(topic) for topic in range(TOPICS))


@dataclass
class Outside:
    """The provider of one seed, and the effects that tools had."""

    provider: SimProvider = field(default_factory=lambda: SimProvider(Script(questions=QUESTIONS)))
    effects: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.model = self.provider.model()

    def complaints(self) -> Iterator[str]:
        """What is wrong in the end."""
        for effect, times in self.effects.items():
            if times > 1:
                yield f"the effect of {effect} happened {times} times"
        if self.provider.counters().illegal:
            yield f"{self.provider.counters().illegal} requests to the model were illegal"


_here: list[Outside] = []


@contextlib.contextmanager
def outside() -> Iterator[Outside]:
    """A new world around the simulated one."""
    _here.append(Outside())
    try:
        yield _here[-1]
    finally:
        _here.pop()


@tool
async def add(a: int, b: int) -> str:
    """Add two numbers, in a run of its own."""
    _here[-1].effects[f"add {a}"] += 1
    await asyncio.sleep(0.4)
    return str(a + b)


class Calculator(ChatAgent):
    """Adds in runs of their own, and doubles in its own process."""

    chat_recovery = ChatRecovery(max_attempts=100, no_progress_timeout_ms=3_600_000)
    chat_stream_stall_timeout_ms = 2_000

    def get_model(self) -> Any:
        """The scripted provider."""
        return _here[-1].model

    def tools(self) -> list[Any]:
        """The function; the method is found by its mark."""
        return [add]

    @tool
    async def double(self, a: int) -> str:
        """Double a number in this very process."""
        _here[-1].effects[f"double {a}"] += 1
        await asyncio.sleep(0.02)
        return str(2 * a)


async def chats(context: PlayContext) -> None:
    """Questions to one or two chat agents, some at the same time, while connections break."""
    die = context.die
    topics = die.sample(range(TOPICS), die.randint(1, 4))
    _here[-1].provider.set_plan(FaultPlan() if context.patient else FaultPlan(rules=_rules(die)))
    _here[-1].provider.open_door()
    await asyncio.gather(*(_chat(context, f"{context.tag}chat-{topic % 2}", topic) for topic in topics))


def _rules(die: Random) -> tuple[Rule, ...]:
    return tuple(Rule(fault=fault, times=die.randint(1, 3)) for fault in FAULTS if die.random() < OFTEN)


async def _chat(context: PlayContext, name: str, topic: int) -> None:
    result = await persist(context, partial(_to_its_end, context, name, topic))
    if result is None or not context.patient:
        return
    errors = [part.get("errorText", "") for part in (result.message or {"parts": []})["parts"]]
    unknown = any(words in error for error in errors for words in UNKNOWN)
    is_excused = unknown or result.reason in EXHAUSTED
    context.expect(result.ok or is_excused, f"the turn about topic {topic} ended {result.status}: {result.error}")
    if result.ok and not unknown:
        whole = conclusion(QUESTIONS[topic], [_result(call) for call in QUESTIONS[topic].calls])
        context.expect(result.text.endswith(whole), f"the answer about topic {topic} is not whole: {result.text}")


async def _to_its_end(context: PlayContext, name: str, topic: int) -> TurnResult:
    """Ask and follow, through every interruption."""
    request_id = f"{name}-{topic}"
    call = partial(context.client.call, Calculator, name)
    result: TurnResult = await call("chat", (f"Please: topic {topic}.",), {"request_id": request_id})
    while result.status == "interrupted":
        result = await call("attach", (request_id,), {"first": result.next_event})
    return result


def _result(call: Call) -> str:
    given = call.arguments
    return str(given["a"] + given["b"]) if call.name == "add" else str(2 * given["a"])
