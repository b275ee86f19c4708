"""Chat agents under the fire of the swarm: turns with parallel tool calls, lost connections and deaths, and what must come of them.

At the end each
effect happened once at most, every request that the provider saw was legal, and the caller has the whole answer, unless a call died at
work (then the model says that its outcome is unknown) or the patience of recovery was exhausted.
"""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random
from typing import Any, Final

from perdure.actors import ChatAgent, TurnResult, tool
from perdure.policies import ChatRecovery
from perdure.scenarios.provider.faults import Fault, FaultKind, FaultPlan, Rule
from perdure.scenarios.provider.script import Call, Question, Round, Script, conclusion
from perdure.scenarios.swarm.outside import outside, outside_of
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


around_chats = partial(outside, "chats", Script(questions=QUESTIONS))
"""What chats need outside of the simulated processes."""

outside_of_chats = partial(outside_of, "chats")


@tool
async def add(a: int, b: int) -> str:
    """Add two numbers, in a run of its own."""
    outside_of_chats().effects[f"add {a}"] += 1
    await asyncio.sleep(0.4)
    return str(a + b)


class Calculator(ChatAgent):
    """Adds in runs of their own, and doubles in its own process."""

    chat_recovery = ChatRecovery(max_attempts=100, no_progress_timeout_ms=3_600_000)
    chat_stream_stall_timeout_ms = 2_000

    def get_model(self) -> Any:
        """The scripted provider."""
        return outside_of_chats().model

    def tools(self) -> list[Any]:
        """The function; the method is found by its mark."""
        return [add]

    @tool
    async def double(self, a: int) -> str:
        """Double a number in this very process."""
        outside_of_chats().effects[f"double {a}"] += 1
        await asyncio.sleep(0.02)
        return str(2 * a)


async def chats(context: PlayContext) -> None:
    """Questions to one or two chat agents, some at the same time, while connections break."""
    die = context.die
    topics = die.sample(range(TOPICS), die.randint(1, 4))
    outside_of_chats().provider.set_plan(FaultPlan() if context.patient else FaultPlan(rules=_rules(die)))
    outside_of_chats().provider.open_door()
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
