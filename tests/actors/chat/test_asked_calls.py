"""Calls that wait for people stand in the ledger's one list of questions, and an answer by any way closes them everywhere."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from perdure.actors import Approval, tool
from perdure.ledger import AlreadyAnswered, AnswerForbidden, AskClosed, BadRequest, UnknownAsk
from perdure.policies import Answerer
from perdure.scenarios.provider.script import Script, ScriptedCall
from tests.actors.chat.desk import Adder, Outside
from tests.actors.chat.room import Room, calls, outcomes, visit, visiting
from tests.actors.chat.talk import streams
from tests.actors.chat.test_people_waited_for import ASK, Asker, _asked

OPERATOR = Answerer("ada", is_operator=True)
ANNA, MAX = Answerer("anna", ["ops"]), Answerer("max", ["ops"])


async def listed(room: Room, most: int = 1, **more: Any) -> list[dict[str, Any]]:
    """The open questions, once there are so many."""
    found: list[dict[str, Any]] = []

    async def there() -> bool:
        found[:] = await room.client.ask("asks", more.get("to"))
        return len(found) == most

    await room.until(there)
    return found


async def answer(room: Room, ask_id: str, value: object, by: Answerer = OPERATOR, **more: Any) -> dict[str, Any]:
    """Answer a question of the list."""
    return await room.client.answer(ask_id, value, by, "test", **more)


@pytest.mark.parametrize("sleeps", [False, True])
@pytest.mark.parametrize("approved", [True, False])
@visiting(Asker, ASK)
async def test_a_call_that_needs_approval_is_asked_in_the_list_and_answered_by_it(
    room: Room, /, *, sleeps: bool, approved: bool
) -> None:
    """Also while the agent is asleep: the question keeps no process."""
    (call_id,) = await _asked(room, "risk")
    (ask,) = await listed(room)
    assert (ask["kind"], ask["tool"], ask["call_id"], ask["run_id"]) == ("approval", "risky", call_id, None)
    assert (ask["schema"], ask["args"], ask["to"], ask["people"]) == ({"type": "boolean"}, {"what": "it"}, [], 1)
    assert "risky" in ask["question"]
    if sleeps:
        await room.sleep()
        assert await listed(room) == [ask]
    told = await answer(room, ask["ask_id"], approved, digest=ask["digest"], answer_id="mine")
    assert (told["status"], told["answers"][0]["who"]) == ("answered", "ada")
    await room.until(lambda: room.is_("completed"))
    assert await listed(room, 0) == []
    message = (await room.do("get_messages"))[-1]
    assert [state for state, _ in outcomes(message)] == ["output-available" if approved else "output-denied"]
    part = next(part for part in message["parts"] if "toolCallId" in part)
    assert (part["approval"]["by"]["who"], part["approval"]["by"]["channel"]) == ("ada", "test")
    assert Outside.effects["risky", "it"] == approved
    with pytest.raises(AlreadyAnswered, match=r"already answered by ada \(test\)"):
        await answer(room, ask["ask_id"], not approved)
    again = await answer(room, ask["ask_id"], approved, answer_id="mine")
    assert again["status"] == "answered", "the same answer again is told again"
    assert await room.do("respond_to_approval", call_id, not approved) is False


@visiting(Asker, ASK)
async def test_an_answer_by_a_front_end_closes_the_question_in_the_list(room: Room, /) -> None:
    (call_id,) = await _asked(room, "risk")
    (ask,) = await listed(room)
    assert await room.do("respond_to_approval", call_id, True) is True
    assert await listed(room, 0) == []
    with pytest.raises(AlreadyAnswered, match=r"\(chat\)"):
        await answer(room, ask["ask_id"], True)
    await room.until(lambda: room.is_("completed"))


@visiting(Asker, ASK)
async def test_what_a_clients_tool_came_to_is_asked_when_nothing_else_is_under_way(room: Room, /) -> None:
    asked = asyncio.ensure_future(_asked(room, "both"))
    await asyncio.sleep(1)
    assert await room.client.ask("asks") == [], "a tool is at work"
    await asked
    first, second = await listed(room, 2)
    assert {first["kind"], second["kind"]} == {"client-tool"}
    await answer(room, first["ask_id"], {"colour": "blue"})
    assert [each["ask_id"] for each in await listed(room, 1)] == [second["ask_id"]]
    await answer(room, second["ask_id"], None)
    await room.until(lambda: room.is_("completed"))
    outputs = [output for _, output in outcomes((await room.do("get_messages"))[-1])]
    assert outputs == [{"colour": "blue"}, None, "pondered"]


@visiting(Asker, ASK)
async def test_the_list_is_right_whatever_dies(room: Room, /) -> None:
    await _asked(room, "risk")
    room.kill()
    (ask,) = await listed(room)
    room.laboratory.simulation.kill("supervisor")
    assert [each["ask_id"] for each in await listed(room)] == [ask["ask_id"]]
    given = asyncio.ensure_future(answer(room, ask["ask_id"], True, answer_id="mine"))
    await asyncio.sleep(0.005)
    room.kill()
    assert (await given)["status"] == "answered"
    await room.until(lambda: room.is_("completed"))
    assert await listed(room, 0) == []
    assert Outside.effects["risky", "it"] == 1


@tool(needs_approval=Approval(to=["ops", ("managers", timedelta(minutes=1))], people=2, expires=120))
async def pay(amount: int, whom: str = "us") -> str:
    """Pay somebody."""
    Outside.effects["pay", amount, whom] += 1
    return f"paid {amount} to {whom}"


def _by_risk(input: dict[str, Any]) -> Approval | bool:
    return Approval(to="boss") if input["amount"] > 100 else False


@tool(needs_approval=_by_risk)
async def lend(amount: int) -> str:
    """Lend somebody money."""
    return f"lent {amount}"


class Payer(Adder):
    """Pays what two people allow."""

    def tools(self) -> list[Any]:
        """What costs."""
        return [pay, lend]


PAY = Script(
    questions=(
        calls("pay", ScriptedCall(name="pay", arguments={"amount": 5})),
        calls("little", ScriptedCall(name="lend", arguments={"amount": 5})),
        calls("much", ScriptedCall(name="lend", arguments={"amount": 500})),
    )
)


@visiting(Payer, PAY)
async def test_a_policy_says_who_approves_and_how_many_and_changed_arguments_are_used(room: Room, /) -> None:
    await _asked(room, "pay")
    (ask,) = await listed(room)
    assert (ask["to"], [each["to"] for each in ask["later"]], ask["people"]) == (["ops"], ["managers"], 2)
    with pytest.raises(AnswerForbidden, match="ops may answer"):
        await answer(room, ask["ask_id"], True, Answerer("eve", ["others"]))
    with pytest.raises(BadRequest) as wrong:
        await answer(room, ask["ask_id"], "yes", ANNA)
    assert wrong.value.field == "value"
    with pytest.raises(BadRequest) as wrong:
        await answer(room, ask["ask_id"], True, ANNA, args={"amount": "much"})
    assert "amount" in wrong.value.field
    with pytest.raises(BadRequest, match="no argument is called so"):
        await answer(room, ask["ask_id"], True, ANNA, args={"sum": 1})
    told = await answer(room, ask["ask_id"], True, ANNA, args={"amount": 3})
    assert (told["status"], len(told["answers"])) == ("open", 1)
    with pytest.raises(AlreadyAnswered, match="2 different people"):
        await answer(room, ask["ask_id"], True, ANNA, args={"amount": 3})
    room.kill()
    assert (await answer(room, ask["ask_id"], True, MAX))["status"] == "open", "he has said something else"
    assert (await answer(room, ask["ask_id"], True, MAX, args={"amount": 3}))["status"] == "answered"
    await room.until(lambda: Outside.effects["pay", 3, "us"])
    part = next(part for part in (await room.do("get_messages"))[-1]["parts"] if "toolCallId" in part)
    assert (part["input"], part["approval"]["proposed"]) == ({"amount": 3}, {"amount": 5})
    await room.do("cancel_chat", "asked")  # the model insists on what it wanted
    assert not Outside.effects["pay", 5, "us"]


@visiting(Payer, PAY)
async def test_one_no_is_enough_and_the_time_brings_it_to_others(room: Room, /) -> None:
    await _asked(room, "pay")
    (ask,) = await listed(room)
    boss = Answerer("kim", ["managers"])
    with pytest.raises(AnswerForbidden):
        await answer(room, ask["ask_id"], False, boss)
    await asyncio.sleep(61)
    assert len(await listed(room, to="managers")) == 1
    assert (await answer(room, ask["ask_id"], False, boss))["status"] == "answered"
    await room.until(lambda: room.is_("completed"))
    assert not Outside.effects["pay", 5, "us"]


@visiting(Payer, PAY)
async def test_what_nobody_approves_in_time_is_denied_though_the_agent_is_asleep(room: Room, /) -> None:
    await _asked(room, "pay")
    (ask,) = await listed(room)
    assert ask["expires_at_ms"] - ask["opened_at_ms"] == 120_000
    await asyncio.sleep(121)
    await room.until(lambda: room.is_("completed"))
    part = next(part for part in (await room.do("get_messages"))[-1]["parts"] if "toolCallId" in part)
    assert part["state"] == "output-denied"
    assert "in time" in part["approval"]["reason"]
    with pytest.raises(AskClosed, match="expired"):
        await answer(room, ask["ask_id"], True)


@pytest.mark.parametrize(("question", "to"), [("little", None), ("much", ["boss"])])
@visiting(Payer, PAY)
async def test_a_function_says_by_the_risk_of_a_call_who_is_to_approve_it(
    room: Room, /, question: str, to: list[str] | None
) -> None:
    await room.do("submit_messages", question, request_id="asked")
    if to is not None:
        (ask,) = await listed(room)
        assert ask["to"] == to
        await answer(room, ask["ask_id"], True, Answerer("boss"))
    await room.until(lambda: room.is_("completed"))


@pytest.mark.parametrize("ends", ["cancel", "clear", "delete"])
@visiting(Asker, ASK)
async def test_a_question_ends_with_its_turn(room: Room, /, ends: str) -> None:
    await _asked(room, "risk")
    (ask,) = await listed(room)
    if ends == "cancel":
        await room.do("cancel_chat", "asked")
    elif ends == "clear":
        await room.do("clear")
    else:
        await room.client.ask("forget", ask["agent"])
    assert await listed(room, 0) == []
    with pytest.raises(UnknownAsk if ends == "delete" else AskClosed):
        await answer(room, ask["ask_id"], True)
    with pytest.raises(UnknownAsk):
        await answer(room, "call-0123", True)


def test_an_answer_to_a_question_of_a_cleared_conversation_answers_no_later_one() -> None:
    """Although the same calls of a turn with the same request id wait by now."""

    async def story(room: Room) -> None:
        await _asked(room, "go")
        before = await listed(room, 2)
        await room.do("clear")
        await _asked(room, "go")
        now = await listed(room, 2)
        assert [(each["call_id"], each["digest"]) for each in now] == [
            (each["call_id"], each["digest"]) for each in before
        ]
        with pytest.raises(AskClosed):
            await answer(room, before[0]["ask_id"], True)
        assert await listed(room, 2) == now

    visit(Asker, story, streams(*(ScriptedCall(name="risky", arguments={"what": what}) for what in ("it", "that"))))


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"to": []}, "to"),
        ({"to": 3}, "to"),
        ({"people": 0}, "people"),
        ({"expires": -1}, "expires"),
        ({"self_answer": "no"}, "self_answer"),
    ],
)
def test_a_policy_that_is_none_is_refused_where_it_is_written(given: dict[str, Any], field: str) -> None:
    with pytest.raises(BadRequest) as refused:
        Approval(**given)
    assert refused.value.field == field
