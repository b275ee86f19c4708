"""A chat agent of the swarm. It adds in runs of their own and doubles in its own process, and each effect is counted outside."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from perdure import Approval, ChatAgent, ChatRecovery, tool
from perdure.scenarios.cast.environment import model_here, outside
from perdure.scenarios.provider.script import Round, ScriptedCall, ScriptedQuestion, conclusion

TOPICS: Final = 8


def _question(topic: int) -> ScriptedQuestion:
    together = tuple(ScriptedCall(name="add", arguments={"a": 10 * topic + each, "b": 2}) for each in range(3))
    alone = ScriptedCall(name="double", arguments={"a": topic})
    return ScriptedQuestion(
        asks=f"topic {topic}.",
        rounds=(
            Round(thinks="Three at once.", says="First I add. ", calls=together),
            Round(says="Now twice. ", calls=(alone,)),
        ),
    )


def _expense(amount: int) -> ScriptedQuestion:
    call = ScriptedCall(name="spend", arguments={"amount": amount})
    return ScriptedQuestion(asks=f"expense {amount}.", rounds=(Round(says="May I? ", calls=(call,)),))


QUESTIONS: Final = tuple(_question(topic) for topic in range(TOPICS))
EXPENSES: Final = tuple(_expense(amount) for amount in range(TOPICS))


@tool
async def add(a: int, b: int) -> str:
    """Add two numbers, in a run of its own."""
    outside().effects[f"add {a}"] += 1
    await asyncio.sleep(0.4)
    return str(a + b)


@tool(needs_approval=Approval(to="purse"))
async def spend(amount: int) -> str:
    """Spend money, in a run of its own, if somebody allows it."""
    outside().effects[f"spend {amount}"] += 1
    await asyncio.sleep(0.1)
    return f"spent {amount}"


class Calculator(ChatAgent):
    chat_recovery = ChatRecovery(max_attempts=100, no_progress_timeout_ms=3_600_000)
    chat_stream_stall_timeout_ms = 2_000

    def get_model(self) -> Any:
        return model_here()

    def tools(self) -> list[Any]:
        # The method `double` is found by its mark.
        return [add, spend]

    @tool
    async def double(self, a: int) -> str:
        """Double a number in this very process."""
        outside().effects[f"double {a}"] += 1
        await asyncio.sleep(0.02)
        return str(2 * a)


def answer_about(topic: int) -> str:
    # If each call returned what it should.
    question = QUESTIONS[topic]
    results = (
        call.arguments["a"] + call.arguments["b"] if call.name == "add" else 2 * call.arguments["a"]
        for call in question.calls
    )
    return conclusion(question, list(map(str, results)))
