"""What every front end promises of a turn: begun, followed, taken up again, given again, answered, cancelled, through deaths."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from perdure.actors.chat.turns import HOLD_S
from perdure.actors.gateway.security import Principal, Scope
from perdure.ledger import AlreadyAnswered, AnswerForbidden, AskClosed
from perdure.policies import Answerer
from perdure.scenarios.provider.faults import Fault, FaultKind, FaultPlan
from perdure.scenarios.testing.laboratory import Laboratory
from tests.actors.chat.desk import WHOLE, Outside, in_third_answer
from tests.gateway.clerk import CLERK, Clerk, script
from tests.gateway.door import Door
from tests.gateway.front_ends import FRONT_ENDS, AgentsClient, AgUi, AiSdk, FrontEnd, Heard
from tests.gateway.tabs import texts
from tests.gateway.world import visit

pytestmark = pytest.mark.parametrize("kind", FRONT_ENDS)
Kind = type[FrontEnd]


def play(
    kind: Kind,
    story: Callable[[FrontEnd, Any, Laboratory], Awaitable[object]],
    between_ms: float = 0,
    plan: FaultPlan | None = None,
    **simulation: Any,
) -> None:
    """A story of one client, and of the agent that it talks with."""

    async def played(door: Door, laboratory: Laboratory) -> None:
        await story(kind(door), laboratory._client.agent(Clerk, "ann"), laboratory)  # type: ignore[union-attr]  # noqa: SLF001

    script(between_ms=between_ms)
    if plan is not None:
        Outside.begin(CLERK, plan)
    visit([Clerk], played, **simulation)


async def hear(front: FrontEnd, text: str, turn: str = "one") -> Heard:
    async with front.asks(text, turn) as listening:
        return await listening.rest()


async def shown(agent: Any) -> list[str]:
    return texts(await agent.get_messages())


def test_a_turn_is_told_whole_and_stands_in_the_transcript(kind: Kind) -> None:
    async def story(front: FrontEnd, agent: Any, _: Laboratory) -> None:
        heard = await hear(front, "sum")
        assert (heard.end, heard.text, heard.open_calls) == ("completed", WHOLE, [])
        assert sorted(heard.outputs) == ["14", "2", "3", "4"]
        assert await shown(agent) == ["sum", WHOLE]

    play(kind, story)


@pytest.mark.shows(clients="P-184")
def test_two_messages_at_once_are_answered_one_after_the_other(kind: Kind) -> None:
    async def story(front: FrontEnd, agent: Any, _: Laboratory) -> None:
        async with front.asks("sum", "one") as first, front.asks("words", "two") as second:
            assert (await first.rest()).text == WHOLE
            assert (await second.rest()).text.startswith("Only words")
        assert [each["role"] for each in await agent.get_messages()] == ["user", "assistant"] * 2

    play(kind, story, between_ms=20)


@pytest.mark.shows(clients="P-193")
def test_a_client_that_leaves_stops_nothing_and_is_told_the_whole_answer_once_when_it_comes_back(kind: Kind) -> None:
    async def story(front: FrontEnd, agent: Any, _: Laboratory) -> None:
        async with front.asks("sum") as listening:
            await listening.until("And then")
        async with front.comes_back("sum") as first, front.comes_back("sum") as second:
            assert [(await each.rest()).text for each in (first, second)] == [WHOLE] * 2
        assert len(await agent.list_turns()) == Outside.effects["add", 1] == 1
        assert await shown(agent) == ["sum", WHOLE]

    play(kind, story, between_ms=100)


def test_a_death_in_an_answer_is_not_missed_in_what_is_told(kind: Kind) -> None:
    death = in_third_answer()

    async def story(front: FrontEnd, agent: Any, _: Laboratory) -> None:
        heard = await hear(front, "sum")
        assert (heard.end, heard.text) == ("completed", WHOLE)
        assert await shown(agent) == ["sum", WHOLE]

    play(kind, story, kill_when=death)
    assert death.victims


def test_a_child_that_dies_meanwhile_is_waited_for(kind: Kind) -> None:
    async def story(front: FrontEnd, _: Any, laboratory: Laboratory) -> None:
        async with front.asks("please walk") as listening:
            await listening.until("I walk. ")
            for host in list(laboratory.hosts):
                laboratory.simulation.kill(host)
            heard = await listening.rest()
        assert (heard.end, heard.outputs) == ("completed", ["arrived"])

    play(kind, story, between_ms=20)


def test_an_answer_that_is_given_again_takes_the_place_of_the_first(kind: Kind) -> None:
    async def story(front: FrontEnd, agent: Any, _: Laboratory) -> None:
        first = await hear(front, "words")
        known = await agent.get_messages()
        again = await front.regenerate("words")
        assert (again.end, again.text) == ("completed", first.text)
        now = await agent.get_messages()
        assert texts(now) == texts(known)
        assert [each["id"] == other["id"] for each, other in zip(known, now, strict=True)] == [True, False]

    play(kind, story)


def test_an_answer_that_is_given_again_takes_with_it_what_followed(kind: Kind) -> None:
    async def story(front: FrontEnd, agent: Any, _: Laboratory) -> None:
        first = await hear(front, "words")
        await hear(front, "sum", "two")
        again = await front.regenerate("words")
        assert (again.end, again.text) == ("completed", first.text)
        assert await shown(agent) == ["words", first.text]

    play(kind, story)


def test_a_cancelled_answer_can_be_given_again(kind: Kind) -> None:
    async def story(front: FrontEnd, agent: Any, _: Laboratory) -> None:
        async with front.asks("sum") as listening:
            await listening.until("Let me")
            await front.cancel()
            assert (await listening.rest()).end == "cancelled"
        again = await front.regenerate("sum")
        assert (again.end, again.text) == ("completed", WHOLE)
        assert await shown(agent) == ["sum", WHOLE]
        assert [each["status"] for each in await agent.list_turns()] == ["aborted", "completed"]

    play(kind, story, between_ms=100)


@pytest.mark.parametrize("is_under_way", [True, False])
def test_a_message_that_is_edited_takes_the_place_of_the_first_and_of_what_followed(
    kind: Kind, is_under_way: bool
) -> None:
    if kind is AgUi:
        pytest.skip("AG-UI has no word for it")

    async def story(front: FrontEnd, agent: Any, _: Laboratory) -> None:
        async with front.asks("sum") as listening:
            await (listening.until("Let me") if is_under_way else listening.rest())
        edited = await front.edit("words")
        assert (edited.end, edited.text.startswith("Only words")) == ("completed", True)
        assert await shown(agent) == ["words", edited.text]
        assert len(await agent.list_turns()) == 2

    play(kind, story, between_ms=50)


@pytest.mark.parametrize("approved", [True, False])
def test_a_call_that_needs_approval_is_made_if_it_is_allowed(kind: Kind, approved: bool) -> None:
    async def story(front: FrontEnd, agent: Any, _: Laboratory) -> None:
        asked = await hear(front, "please risk")
        assert (asked.end, len(asked.open_calls), Outside.effects["risky", 1]) == ("waits", 1, 0)
        rest = await front.answer(asked, approved=approved)
        assert (rest.end, rest.text.startswith("Done"), rest.open_calls) == ("completed", True, [])
        assert (rest.outputs == ["done"], Outside.effects["risky", 1]) == (approved, int(approved))
        assert len(await agent.list_turns()) == 1
        assert (await shown(agent))[1] == asked.text + rest.text, "it goes on in the same message"

    play(kind, story)


def test_a_client_is_told_at_once_that_its_turn_waits_for_a_person(kind: Kind) -> None:
    async def story(front: FrontEnd, _agent: Any, _: Laboratory) -> None:
        asked_at_s = asyncio.get_running_loop().time()
        assert (await hear(front, "please risk")).end == "waits"
        assert asyncio.get_running_loop().time() - asked_at_s < HOLD_S / 2

    play(kind, story, between_ms=20)


ADA = Answerer("ada", is_operator=True)


def answerer(laboratory: Laboratory, ask_id: str, value: bool, who: Answerer = ADA) -> Awaitable[Any]:
    return laboratory._client.answer(ask_id, value, who, "cli")  # type: ignore[union-attr]  # noqa: SLF001


@pytest.mark.parametrize("comes_back", [False, True])
def test_what_a_run_of_a_call_asks_people_is_told_open_and_closed_under_one_id(kind: Kind, comes_back: bool) -> None:
    async def story(front: FrontEnd, _: Any, laboratory: Laboratory) -> None:
        async with front.asks("please inquire") as listening:
            row = await listening.until_asked()
            if not comes_back:
                inbox = await laboratory._client.ask("asks")  # type: ignore[union-attr]  # noqa: SLF001
                assert [{**each, "part": each["ask_id"]} for each in inbox] == [row]
                assert (row["question"], row["to"], row["status"]) == ("Open the gate?", ["ops"], "open")
                await answerer(laboratory, row["ask_id"], True)
                heard = await listening.rest()
        if comes_back:
            async with front.comes_back("please inquire") as again:
                assert await again.until_asked() == row
                await answerer(laboratory, row["ask_id"], True)
                heard = await again.rest()
        assert (heard.end, heard.outputs) == ("completed", ["True by ada"])
        assert [(each["part"], each["status"]) for each in heard.asks] == [
            (row["ask_id"], "open"),
            (row["ask_id"], "answered"),
        ]
        answer = heard.asks[-1]["answers"][0]
        assert (answer["who"], answer["channel"], answer["value"]) == ("ada", "cli", True)

    play(kind, story)


def test_whoever_began_a_turn_began_the_runs_of_its_calls_through_deaths(kind: Kind) -> None:
    async def story(front: FrontEnd, agent: Any, laboratory: Laboratory) -> None:
        async with front.asks("please inquire") as listening:
            await listening.until("I in")
            for host in list(laboratory.hosts):
                laboratory.simulation.kill(host)
            row = await listening.until_asked()
            assert row["began_by"] == "bob"
            with pytest.raises(AnswerForbidden, match="bob began the run"):
                await answerer(laboratory, row["ask_id"], True, Answerer("bob", is_admin=True))
            await answerer(laboratory, row["ask_id"], True, Answerer("eve", ("ops",)))
            assert (await listening.rest()).outputs == ["True by eve"]
        assert len(await agent.list_turns()) == 1

    play(kind, story, between_ms=100, gateway_options={"authenticate": lambda _: Principal("bob")})


CHANNELS = {AiSdk: "ai-sdk", AgUi: "ag-ui", AgentsClient: "agents-client"}


def test_an_answer_to_a_call_is_told_by_who_gave_it_and_the_way_that_it_came(kind: Kind) -> None:
    async def story(front: FrontEnd, _: Any, laboratory: Laboratory) -> None:
        asked = await hear(front, "please risk")
        (row,) = await laboratory._client.ask("asks")  # type: ignore[union-attr]  # noqa: SLF001
        rest = await front.answer(asked, approved=True)
        assert (rest.end, rest.outputs) == ("completed", ["done"])
        with pytest.raises(AlreadyAnswered, match=rf"by bob \({CHANNELS[kind]}\)"):
            await answerer(laboratory, row["ask_id"], False)

    play(kind, story, gateway_options={"authenticate": lambda _: Principal("bob")})


def test_a_call_that_others_are_asked_about_is_not_approved_by_whoever_talks(kind: Kind) -> None:
    async def story(front: FrontEnd, _: Any, laboratory: Laboratory) -> None:
        asked = await hear(front, "please pay")
        assert len(asked.open_calls) == 1
        (row,) = await laboratory._client.ask("asks")  # type: ignore[union-attr]  # noqa: SLF001
        assert (row["to"], row["began_by"], row["tool"]) == (["board"], "bob", "pay")
        # Each front end tells a refusal in its own way, and none of them an answer that counts.
        with suppress(AssertionError, TimeoutError):
            async with asyncio.timeout(30):
                await front.answer(asked, approved=True)
        assert await laboratory._client.ask("asks") == [row]  # type: ignore[union-attr]  # noqa: SLF001
        await answerer(laboratory, row["ask_id"], True, Answerer("eve", ("board",)))
        assert await laboratory._client.ask("asks") == []  # type: ignore[union-attr]  # noqa: SLF001

    play(kind, story, gateway_options={"authenticate": lambda _: Principal("bob", frozenset(Scope) - {Scope.ADMIN})})


def test_what_a_run_asks_people_is_withdrawn_with_its_turn(kind: Kind) -> None:
    async def story(front: FrontEnd, _: Any, laboratory: Laboratory) -> None:
        async with front.asks("please inquire") as listening:
            row = await listening.until_asked()
            await front.cancel()
            heard = await listening.rest()
        assert heard.end == "cancelled"
        assert [(each["part"], each["status"]) for each in heard.asks] == [
            (row["ask_id"], "open"),
            (row["ask_id"], "withdrawn"),
        ]
        with pytest.raises(AskClosed):
            await answerer(laboratory, row["ask_id"], True)

    play(kind, story)


def test_the_first_result_of_a_call_counts_and_only_the_rest_is_told(kind: Kind) -> None:
    async def story(front: FrontEnd, agent: Any, _: Laboratory) -> None:
        asked = await hear(front, "please user")
        assert asked.end == "waits"
        rest = await front.answer(asked, output="blue")
        assert (rest.end, rest.text.startswith("Done")) == ("completed", True)
        assert not await agent.resolve_tool_call(asked.open_calls[0], "red")
        parts = [part for each in await agent.get_messages() for part in each["parts"] if "toolCallId" in part]
        assert [part["output"] for part in parts] == ["blue"]

    play(kind, story)


def test_a_cancelled_turn_ends_as_such_and_what_it_said_stays(kind: Kind) -> None:
    async def story(front: FrontEnd, agent: Any, _: Laboratory) -> None:
        async with front.asks("sum") as listening:
            await listening.until("Let me")
            for _time in range(2):
                await front.cancel()
            heard = await listening.rest()
        await front.cancel()
        assert heard.end == "cancelled"
        (turn,) = await agent.list_turns()
        assert turn["status"] == "aborted"
        assert (await shown(agent))[1].startswith("Let me")
        assert (await hear(front, "words", "two")).end == "completed"

    play(kind, story, between_ms=100)


def test_a_turn_that_waits_for_a_person_is_cancelled_with_its_call(kind: Kind) -> None:
    async def story(front: FrontEnd, agent: Any, _: Laboratory) -> None:
        asked = await hear(front, "please risk")
        for _time in range(2):
            await front.cancel()
        assert not await agent.respond_to_approval(asked.open_calls[0], True)
        assert [each["status"] for each in await agent.list_turns()] == ["aborted"]
        assert Outside.effects["risky", 1] == 0
        assert (await hear(front, "words", "two")).end == "completed"

    play(kind, story)


def test_a_turn_that_fails_is_told_in_words(kind: Kind) -> None:
    async def story(front: FrontEnd, agent: Any, _: Laboratory) -> None:
        heard = await hear(front, "sum")
        assert (heard.end, "Wrong key" in str(heard.last)) == ("failed", True)
        assert [each["status"] for each in await agent.list_turns()] == ["error"]

    refused = Fault(kind=FaultKind.STATUS, status=401, type="invalid_request_error", message="Wrong key")
    play(kind, story, plan=FaultPlan.at({2: refused}))
