"""Tools that ask people: each is entered as its effect allows, its time stands still meanwhile, and calls do not mix up their answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.actors import ToolContext, tool
from perdure.ledger import BadRequest
from perdure.policies import Answerer
from perdure.scenarios.provider.script import Script, ScriptedCall
from tests.actors.chat.desk import Adder, Outside
from tests.actors.chat.room import Room, calls, outcomes, visiting
from tests.kit import address

ADA = Answerer("ada", is_operator=True)


async def _confirmed(tool: str, what: str, context: ToolContext) -> str:
    Outside.effects[tool, what] += 1
    await asyncio.sleep(1)
    answer = await context.ask(f"{what}?", ["a", "b"], to="ops", args={"what": what})
    await asyncio.sleep(1)
    return f"{what} is {answer.value} by {answer.who}"


@tool(timeout_ms=3_000)
async def once(what: str, context: ToolContext) -> str:
    """Ask, in a run that is entered once."""
    return await _confirmed("once", what, context)


@tool(timeout_ms=3_000, effect="pure")
async def pure(what: str, context: ToolContext) -> str:
    """Ask, in a run that may be entered again."""
    return await _confirmed("pure", what, context)


@tool(timeout_ms=3_000)
async def late(context: ToolContext) -> str:
    """Take too long, although the time in which it waits does not count."""
    await context.ask("late?", ["a", "b"])
    await asyncio.sleep(10)
    return "too late"


class Clerk(Adder):
    """Has tools that ask, and a method that is called as what asks is."""

    tool_timeout_ms = 3_000

    def tools(self) -> list[Any]:
        """Three functions; the methods are found by their marks."""
        return [once, pure, late]

    def ask(self, text: str) -> str:  # type: ignore[override]
        """A method of its own, by the same name."""
        return text

    @tool
    async def here(self, what: str, context: ToolContext) -> str:
        """Ask, in this very process."""
        return await _confirmed("here", what, context)

    @tool(effect="idempotent")
    async def again(self, what: str) -> str:
        """Ask by the agent's own verb, in this very process."""
        Outside.effects["again", what] += 1
        first = await super().ask(f"{what}?", ["a", "b"])
        second = await super().ask(f"{what}?", ["a", "b"])
        return f"{what} is {first.value}{second.value}"


def _call(name: str, **arguments: Any) -> ScriptedCall:
    return ScriptedCall(name=name, arguments=arguments)


SCRIPT = Script(
    questions=(
        *(calls(name, _call(name, what="it")) for name in ("once", "pure", "here", "again")),
        calls("late", _call("late")),
        calls("both", _call("again", what="x"), _call("again", what="y")),
    )
)


async def _opened(room: Room, count: int = 1) -> list[dict[str, Any]]:
    async with asyncio.timeout(200):
        while len(found := await room.client.ask("asks")) != count:
            await asyncio.sleep(0.2)
    return sorted(found, key=lambda each: str(each["question"]))


async def _answered(room: Room, value: str, words: str = "") -> dict[str, Any]:
    async with asyncio.timeout(200):
        while not (found := [each for each in await room.client.ask("asks") if words in each["question"]]):
            await asyncio.sleep(0.2)
    await room.client.answer(found[0]["ask_id"], value, ADA, "cli")
    return dict(found[0])


async def _outcome(room: Room, request_id: str = "asked") -> list[tuple[str, Any]]:
    await room.until(lambda: room.is_("completed", request_id))
    return outcomes((await room.do("get_messages"))[-1])


@pytest.mark.parametrize(("name", "entered"), [("once", 1), ("pure", 2), ("here", 1)])
@visiting(Clerk, SCRIPT)
async def test_a_tool_waits_for_a_person_for_longer_than_its_time_limit(room: Room, /, name: str, entered: int) -> None:
    await room.do("submit_messages", name, request_id="asked")
    (ask,) = await _opened(room)
    assert (ask["to"], ask["args"]) == (["ops"], {"what": "it"})
    assert ask["agent"] == address(Clerk, "somebody"), "whose tool it is, and not what executes it"
    await asyncio.sleep(100)
    await _answered(room, "b")
    assert await _outcome(room) == [("output-available", "it is b by ada")]
    assert Outside.effects == {(name, "it"): entered}


@visiting(Clerk, SCRIPT)
async def test_the_rest_of_its_time_counts_after_the_answer(room: Room, /) -> None:
    await room.do("submit_messages", "late", request_id="asked")
    await _opened(room)
    await asyncio.sleep(50)
    await _answered(room, "a")
    ((state, words),) = await _outcome(room)
    assert state == "output-error"
    assert "did not return within 3000 ms" in words


@visiting(Clerk, SCRIPT)
async def test_calls_at_the_same_time_have_questions_of_their_own_also_when_they_are_entered_again(
    room: Room, /
) -> None:
    await room.do("submit_messages", "both", request_id="asked")
    before = [each["ask_id"] for each in await _opened(room, 2)]
    room.kill()
    await asyncio.sleep(30)
    assert [each["ask_id"] for each in await _opened(room, 2)] == before
    await _answered(room, "a", "y")
    await asyncio.sleep(5)
    room.kill()
    for value, words in (("b", "x"), ("b", "y")):
        await _answered(room, value, words)
    await _opened(room)
    await _answered(room, "a", "x")
    assert await _outcome(room) == [("output-available", "x is ba"), ("output-available", "y is ab")]


@visiting(Clerk, SCRIPT)
async def test_a_turn_that_is_cancelled_takes_the_question_of_its_tool_along(room: Room, /) -> None:
    for name in ("once", "here"):
        await room.do("submit_messages", name, request_id=name)
        await _opened(room)
        await room.do("cancel_chat", name)
        await _opened(room, 0)


def test_a_context_that_was_made_by_hand_asks_nobody() -> None:
    context = ToolContext(call_id="c", run_id="r", attempt=1, idempotency_key="k", report_progress=print)
    with pytest.raises(BadRequest, match="made by hand"):
        context.ask("Ship?")
