"""Calls that wait for somebody: which answers are taken, in which state, what they make of the call, and when the turn goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.actors import Client, KillPoint, client_tool
from perdure.scenarios.provider.faults import Pace
from perdure.scenarios.provider.script import ScriptedCall
from tests.actors.chat.desk import Adder, Listener, Outside
from tests.actors.chat.talk import (
    NOTHING,
    Worker,
    asks_for,
    bodies,
    call,
    status_of,
    streams,
    tell,
    until,
    until_parked,
    values,
)
from tests.kit import Death, played

ONE, TWO = (ScriptedCall(name="ask_user", arguments={"about": about}) for about in ("colour", "size"))
RISKY = ScriptedCall(name="risky", arguments={"what": "it"})
PICK = ScriptedCall(name="pick_file")


async def part_of(client: Client, agent: type[Adder], call_id: str) -> dict[str, Any]:
    """The part of a call, in whichever message it stands."""
    parts = [part for each in await call(client, agent, "get_messages") for part in each["parts"]]
    (found,) = [part for part in parts if part.get("toolCallId") == call_id]
    return dict(found)


@pytest.mark.shows(chat_recovery="C-0035 C-0036 C-0038 C-0039 C-0445 C-0979 C-1151 C-1296")
@played(lambda story: tell(story, asks_for(ONE, TWO)))
async def test_a_turn_goes_on_once_when_the_last_of_its_calls_is_answered(client: Client, /) -> None:
    """C-0035, C-0036, C-0038, C-0039, C-0445: an answer settles its own call and no other, and one request is made for all of them."""
    await call(client, Worker, "submit_messages", "go", request_id="asked")
    first, second = await until_parked(client, Worker)
    assert await call(client, Worker, "resolve_tool_call", second, "large") is True
    await asyncio.sleep(1)
    assert await status_of(client, Worker) == "parked"
    assert len(Outside.provider.log()) == 1, "a sibling is still waited for"
    assert await call(client, Worker, "has_pending_interaction") is True
    assert await call(client, Worker, "resolve_tool_call", first, "blue") is True
    result = await call(client, Worker, "attach", "asked")
    assert result.ok, result
    assert len(Outside.provider.log()) == 2
    assert "blue" in bodies()[1]
    assert "large" in bodies()[1]
    assert await call(client, Worker, "has_pending_interaction") is False


@pytest.mark.shows(chat_recovery="C-0037 C-0981 C-0982 C-0983 C-0993 W-11")
@played(lambda story: tell(story, streams(ONE, TWO), pace=Pace(between_ms=300)))
async def test_an_answer_that_comes_while_the_model_speaks_waits_for_its_end(client: Client, /) -> None:
    """C-0037: it is durable at once, and the next request is made when this one is over, once."""
    await call(client, Worker, "submit_messages", "go", request_id="asked")
    listener = Listener()
    following = asyncio.ensure_future(call(client, Worker, "attach", "asked", listener, follow=True))
    await until(lambda: "tool-input-available" in listener.types)
    assert await call(client, Worker, "resolve_tool_call", "call-a", "blue") is True
    assert len(Outside.provider.log()) == 1
    assert Outside.provider.log()[0].ended is None, "the model speaks still"
    (_, second) = await until_parked(client, Worker)
    assert await call(client, Worker, "resolve_tool_call", second, "large") is True
    assert (await following).ok
    assert [record.ended for record in Outside.provider.log()] == ["whole", "whole"]


@pytest.mark.shows(chat_recovery="C-0375 C-0376 C-0377 C-0403 C-0422 C-0425 C-0427 C-0428 C-0429 C-0969")
@pytest.mark.parametrize("error", [None, "no such file"])
@played(lambda story: tell(story, asks_for(ONE)))
async def test_an_answer_finds_its_call_in_an_earlier_message_while_another_turn_plays(
    client: Client, /, error: str | None
) -> None:
    """C-0375 to C-0377, C-0403, C-0422, C-0425, C-0427 to C-0429: it is written there and nowhere else, and the first one counts."""
    await call(client, Worker, "submit_messages", "go", request_id="asked")
    (waiting,) = await until_parked(client, Worker)
    await call(client, Worker, "submit_messages", "sum", request_id="other")
    await until(lambda: bool(Outside.effects["add", 0]))
    answer = ("blue",) if error is None else (None, error)
    assert await call(client, Worker, "resolve_tool_call", waiting, *answer) is True
    assert await status_of(client, Worker, "other") == "running"
    assert (await call(client, Worker, "attach", "other")).ok
    assert (await call(client, Worker, "attach", "asked")).ok
    part = await part_of(client, Worker, waiting)
    before = await call(client, Worker, "get_messages")
    assert await call(client, Worker, "resolve_tool_call", waiting, "red") is False
    assert await call(client, Worker, "respond_to_approval", waiting, True) is False
    assert await call(client, Worker, "get_messages") == before
    if error is None:
        assert (part["state"], part["output"]) == ("output-available", "blue")
    else:
        assert (part["state"], part["errorText"]) == ("output-error", error)
    assert [each["id"] for each in before if each["role"] == "assistant"] == ["asked-answer", "other-answer"]


class Picker(Worker):
    """Has a tool of its client's that somebody has to allow first, one way or another."""

    def tools(self) -> list[Any]:
        """One that always asks, and one that asks for what is secret."""
        return [
            client_tool("pick_file", "Pick a file.", NOTHING, needs_approval=True),
            client_tool("show", "Show a page.", NOTHING, needs_approval=lambda input: "secret" in input),
        ]


@pytest.mark.shows(chat_recovery="C-0423 C-0430 C-0436 C-0438 C-0441 C-0444 C-0808 C-0970 C-0986 C-0996")
def test_a_tool_of_the_clients_may_need_approval_too() -> None:
    """C-0423, C-0430, C-0436, C-0438, C-0441, C-0444: allowed first, then executed there; each step is taken once."""

    async def story(client: Client) -> None:
        await call(client, Picker, "submit_messages", "go", request_id="asked")
        picks, shows, secret = await until_parked(client, Picker)
        asked = [await part_of(client, Picker, each) for each in (picks, shows, secret)]
        assert [each["state"] for each in asked] == ["approval-requested", "input-available", "approval-requested"]
        assert asked[0]["approval"] == {"id": f"approval-{picks}"}
        assert await call(client, Picker, "respond_to_approval", picks, True) is True
        assert await call(client, Picker, "respond_to_approval", picks, False) is False, "it was allowed"
        assert await call(client, Picker, "respond_to_approval", secret, False, "not that one") is True
        assert await call(client, Picker, "resolve_tool_call", shows, "shown") is True
        assert await status_of(client, Picker) == "parked", "the allowed one is still to be executed"
        await asyncio.sleep(10)  # also over a sleep of the agent
        assert await call(client, Picker, "resolve_tool_call", picks, "a.txt") is True
        result = await call(client, Picker, "attach", "asked")
        assert result.ok, result
        ended = [await part_of(client, Picker, each) for each in (picks, shows, secret)]
        assert [each["state"] for each in ended] == ["output-available", "output-available", "output-denied"]
        assert ended[0]["approval"] == {"id": f"approval-{picks}", "approved": True}
        assert "not that one" in bodies()[-1]

    shows = (
        ScriptedCall(name="show", arguments={"page": 1}),
        ScriptedCall(name="show", arguments={"page": 2, "secret": True}),
    )
    heard = tell(story, asks_for(PICK, *shows))
    assert not [event for event in heard if event.type.startswith("chat:recovery")], "to wait is no interruption"


@pytest.mark.shows(
    chat_recovery=(
        "C-0419 C-0420 C-0421 C-0426 C-0437 C-0439 C-0440 C-0443 C-0792 C-0793 C-0800 C-0801 C-0803 C-0804 C-0959 "
        "C-0960 C-0961 C-0964 C-0965 C-0966 C-0967 C-0968 C-0976 C-0978"
    ),
)
@pytest.mark.parametrize(
    ("method", "answer", "state", "fields"),
    [
        ("resolve_tool_call", ("done by hand",), "output-available", {"output": "done by hand"}),
        ("resolve_tool_call", (None, "not today"), "output-error", {"errorText": "not today"}),
        (
            "resolve_tool_call",
            (None, ""),
            "output-error",
            {"errorText": "The client did not execute this call, and gave no reason."},
        ),
        ("respond_to_approval", (True,), "output-available", {"output": "did it"}),
        ("respond_to_approval", (False, "too risky"), "output-denied", {}),
    ],
)
def test_each_answer_makes_of_a_call_what_it_says(method: str, answer: Any, state: str, fields: dict[str, Any]) -> None:
    """C-0419 to C-0421, C-0426, C-0436, C-0437, C-0439, C-0440, C-0443, C-0792, C-0793: an unknown call is not
    waited for, and a known one once."""

    async def story(client: Client) -> None:
        await call(client, Worker, "submit_messages", "go", request_id="asked")
        (waiting,) = await until_parked(client, Worker)
        for unknown in ("", "another"):
            assert await call(client, Worker, method, unknown, *answer) is False
        assert await call(client, Worker, method, waiting, *answer) is True
        for other in ((method, *answer), ("respond_to_approval", True), ("respond_to_approval", False)):
            assert await call(client, Worker, other[0], waiting, *other[1:]) is False
        assert (await call(client, Worker, "attach", "asked")).ok
        part = await part_of(client, Worker, waiting)
        assert part["state"] == state
        assert fields.items() <= part.items()
        assert "inputText" not in part
        told = [*fields.values(), *answer[1:]]
        assert all(str(each) in bodies()[-1] for each in told), "the model goes on with it"

    tell(story, asks_for(RISKY))
    assert Outside.effects["risky", "it"] == int(answer == (True,))


def test_an_answer_is_no_interruption_though_the_agent_has_slept_and_people_have_gone_on() -> None:
    """W-29: whoever watches from the beginning hears one attempt and its end, and no recovery is asked about."""

    async def story(client: Client) -> None:
        listener = Listener()
        asking = asyncio.ensure_future(call(client, Worker, "chat", "go", listener, request_id="asked", follow=True))
        (waiting,) = await until_parked(client, Worker)
        assert (await call(client, Worker, "chat", "words")).ok
        await asyncio.sleep(10)
        assert await call(client, Worker, "resolve_tool_call", waiting, "blue") is True
        result = await asking
        assert result.ok, result
        assert listener.ends == ["on_done"]
        told = await call(client, Worker, "inspect_turn", "asked")
        assert (told["attempt"], told["incident"]) == (1, None)

    heard = tell(story, asks_for(ONE))
    assert [event.type for event in heard].count("chat:turn:start") == 2
    assert not [event for event in heard if event.type.startswith("chat:recovery")]


def test_an_answered_turn_is_played_to_its_end_though_people_have_gone_on_and_a_process_dies() -> None:
    """Who allows a call wants it done: the recovery is about the answer, and not about a question that another one has followed."""
    after_the_answer = Death(KillPoint.MID_TOOL, of="before", when=lambda: Outside.effects["answered"])

    async def story(client: Client) -> None:
        await call(client, Worker, "submit_messages", "go", request_id="asked")
        (waiting,) = await until_parked(client, Worker)
        assert (await call(client, Worker, "chat", "words")).ok
        Outside.effects["answered"] += 1
        assert await call(client, Worker, "respond_to_approval", waiting, True) is True
        await until(lambda: bool(after_the_answer.victims))
        result = await call(client, Worker, "attach", "asked")
        assert result.ok, result
        assert values(result.message, "output") == ["did it"]

    tell(story, asks_for(RISKY), kill_when=after_the_answer)
    assert Outside.effects["risky", "it"] == 1
