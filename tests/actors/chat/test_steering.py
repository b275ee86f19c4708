"""Steering: what a person says to a turn under way is read there or is the next message, one of the two, whatever dies when."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from perdure import BadRequest, ConflictingRequest
from perdure.actors import ChatAgent, exposed
from perdure.actors.chat.turn import ChatRecoveryContext
from perdure.ledger import TooLarge
from perdure.policies import Message, steered_message
from perdure.scenarios.provider.faults import Fault, FaultKind, FaultPlan, Pace
from perdure.scenarios.provider.script import ScriptedCall
from tests.actors.chat.desk import SCRIPT, WHOLE, Adder, Outside
from tests.actors.chat.room import SLOW, Room, outcomes, texts, visit, visiting
from tests.actors.chat.talk import Worker, asks_for
from tests.actors.chat.test_durable_agent import ALL, Planner, Summer

BOTH = pytest.mark.parametrize("agent", [Adder, Summer])
WORDS = "hurry up please"


def times_told(words: str = WORDS) -> list[int]:
    """How often each request to the model has these words, among what users say."""
    said = [[each for each in record.body["messages"] if each["role"] == "user"] for record in Outside.provider.log()]
    return [sum(str(each["content"]).count(words) for each in messages) for messages in said]


def steered(messages: list[Message]) -> list[tuple[str, str]]:
    """The messages that stand in answers: the id of each, and its words."""
    found = [steered_message(part) for message in messages for part in message["parts"]]
    return [(each["id"], texts(each)[0]) for each in found if each is not None]


async def is_asked(room: Room, times: int) -> None:
    """Let time pass until the model was asked so often."""
    await room.until(lambda: len(Outside.provider.log()) == times)


async def ended(room: Room, request_id: str = "asked") -> Any:
    """The end of a turn, and rest."""
    result = await room.do("attach", request_id, follow=True)
    assert await room.do("wait_until_stable", 60_000)
    return result


@BOTH
@pytest.mark.parametrize("step", [1, 2])
def test_it_is_read_after_the_results_of_the_step_and_before_the_next_request(
    agent: type[ChatAgent], step: int
) -> None:
    """While the first and the second answer are written; the model is told it in that request and all later ones, once."""

    async def story(room: Room) -> None:
        await room.do("submit_messages", "sum", request_id="asked")
        await is_asked(room, step)
        receipt = await room.do("steer", WORDS, request_id="steered")
        assert receipt == {"request_id": "steered", "message_id": "steered-0", "steered": "asked", "accepted": True}
        assert (await room.do("inspect_turn", "steered"))["status"] == "accepted"
        result = await ended(room)
        assert result.text == WHOLE, "the answer goes on"
        told = await room.do("inspect_turn", "steered")
        assert (told["status"], told["reason"], told["steers"]) == ("skipped", "steered", "asked")
        types = [part["type"] for part in result.message["parts"]]
        assert types.index("data-steered") == [at for at, kind in enumerate(types) if kind == "step-start"][step] - 1
        messages = await room.do("get_messages")
        assert (await room.roles(), steered(messages)) == ("ua", [("steered-0", WORDS)])
        again = await room.do("steer", WORDS, request_id="steered")
        assert again == {**receipt, "accepted": False}
        await room.do("chat", "words")

    visit(agent, story, ALL, pace=SLOW)
    assert times_told() == [0] * step + [1] * (4 - step), "and the next turn knows it"
    for later, record in enumerate(Outside.provider.log()[step:]):
        sent = record.body["messages"]
        (at,) = [at for at, each in enumerate(sent) if each["role"] == "user" and WORDS in str(each["content"])]
        around = [each["role"] for each in sent[at - 1 : at + 2]]
        assert around == ["tool", "user", *(["assistant"] if later else [])], "in its place, in later requests too"


@BOTH
def test_what_is_said_in_two_lives_stands_in_the_answer_though_the_clock_was_set_back(agent: type[ChatAgent]) -> None:
    async def story(room: Room) -> None:
        await room.do("submit_messages", "sum", request_id="asked")
        await is_asked(room, 1)
        room.laboratory.simulation.set_clocks(-3_600_000)
        for words in ("first", "second"):
            await room.do("steer", words, request_id=words)
            await room.until(lambda words=words: room.is_("skipped", words))
            room.kill()
        await ended(room)
        assert steered(await room.do("get_messages")) == [("first-0", "first"), ("second-0", "second")]

    visit(agent, story, ALL, pace=SLOW)


class Patient(Adder):
    """Waits until people have finished."""

    message_concurrency: ClassVar[Any] = {"strategy": "debounce", "debounce_ms": 5_000}


class PatientSummer(Summer):  # type: ignore[valid-type, misc]
    """The same, played by the library."""

    message_concurrency: ClassVar[Any] = {"strategy": "debounce", "debounce_ms": 5_000}


@pytest.mark.parametrize("agent", [Patient, PatientSummer])
def test_it_is_read_before_the_first_request_if_there_was_none_yet(agent: type[ChatAgent]) -> None:
    """The turn that is next is under way."""

    async def story(room: Room) -> None:
        room.soon("chat", "words", request_id="before")
        await is_asked(room, 1)
        asking = room.soon("chat", "sum", request_id="asked")
        await room.until(lambda: room.is_("completed", "before"))
        assert await room.is_("accepted")
        assert (await room.do("steer", WORDS))["steered"] == "asked"
        result = await asking
        assert [part["type"] for part in result.message["parts"]][:2] == ["data-steered", "step-start"]
        assert result.text == WHOLE

    visit(agent, story, ALL, pace=SLOW)
    assert times_told() == [0, 1, 1, 1]


@BOTH
@pytest.mark.parametrize("step", [3, 4])
def test_it_is_the_next_message_if_no_request_follows(agent: type[ChatAgent], step: int) -> None:
    """While the last answer is written, and after the end: it is a turn of its own, and behind those that were asked for before."""

    async def story(room: Room) -> None:
        await room.do("submit_messages", "sum", request_id="asked")
        if step < 4:
            await is_asked(room, step)
            await room.do("submit_messages", "words", request_id="queued")
        else:
            await ended(room)
        receipt = await room.do("steer", "words at last", request_id="steered")
        assert receipt["steered"] == ("asked" if step < 4 else None)
        result = await ended(room, "steered")
        assert (result.status, result.text) == ("completed", "Only words: 0 results.\nThat is all. ∎")
        assert (await room.do("inspect_turn", "steered"))["steers"] == ""
        assert (await room.do("steer", "words at last", request_id="steered"))["steered"] is None
        messages = await room.do("get_messages")
        assert steered(messages) == []
        assert messages[-2]["id"] == receipt["message_id"]
        assert await room.roles() == ("uauaua" if step < 4 else "uaua")

    visit(agent, story, ALL, pace=SLOW)
    assert times_told("at last")[-1] == 1
    assert sum(times_told("at last")) == 1


@BOTH
def test_several_are_read_in_their_order(agent: type[ChatAgent]) -> None:
    """At one boundary, and at two; whether they are texts or messages."""

    async def story(room: Room) -> None:
        await room.do("submit_messages", "sum", request_id="asked")
        await is_asked(room, 1)
        await room.do("steer", "the first")
        parts = [{"type": "text", "text": "the second"}, {"type": "file", "mediaType": "text/plain", "url": "data:,x"}]
        given = {"id": "mine", "role": "user", "parts": parts, "metadata": {"mood": "good"}}
        assert (await room.do("steer", given))["message_id"] == "mine"
        await is_asked(room, 2)
        await room.do("steer", "the third")
        result = await ended(room)
        assert [words for _, words in steered([result.message])] == ["the first", "the second", "the third"]
        found = [steered_message(part) for part in result.message["parts"]]
        assert next(each for each in found if each is not None and each["id"] == "mine") == given

    visit(agent, story, ALL, pace=SLOW)
    said = str(Outside.provider.log()[-1].body)
    assert said.index("the first") < said.index("the second") < said.index("And then double") < said.index("the third")


def test_it_waits_while_the_turn_waits_for_a_person_and_longer() -> None:
    """Other messages are answered meanwhile, and overlap with nothing; the turn reads it when it goes on, in another life too."""

    async def story(room: Room) -> None:
        await room.do("submit_messages", "go", request_id="asked")
        await room.until(lambda: room.is_("parked"))
        assert (await room.do("steer", WORDS, request_id="steered"))["steered"] == "asked"
        assert (await room.do("chat", "words")).ok, "it drops no message, because it is not in the way"
        assert await room.is_("accepted", "steered")
        room.kill()
        await asyncio.sleep(1)
        (call,) = [p["toolCallId"] for m in await room.do("get_messages") for p in m["parts"] if "toolCallId" in p]
        assert await room.do("respond_to_approval", call, True)
        result = await ended(room)
        assert [part["type"] for part in result.message["parts"]][-3] == "data-steered"
        assert outcomes(result.message) == [("output-available", "did it")]

    visit(Picky, story, asks_for(ScriptedCall(name="risky", arguments={"what": "it"})))
    assert times_told() == [0, 0, 1]


class Picky(Worker):
    """Takes no messages while a turn is under way."""

    message_concurrency: ClassVar[Any] = "drop"


class Chatty(Worker):
    """Its questions to the client are answered by whatever is said next."""

    def repair_interrupted_tool_part(self, part: dict[str, Any]) -> dict[str, Any]:
        """A question becomes a part of the talk."""
        return {"type": "text", "text": "What do you want?"}


@visiting(Chatty, asks_for(ScriptedCall(name="ask_user")))
async def test_it_answers_a_question_that_any_message_answers(room: Room, /) -> None:
    """So the turn that asked is not under way: it is over with the answer, which is a turn of its own."""
    await room.do("submit_messages", "go", request_id="asked")
    await room.until(lambda: room.is_("parked"))
    assert (await room.do("steer", "words", request_id="steered"))["steered"] is None
    assert (await ended(room, "steered")).text.startswith("Only words")
    assert await room.is_("completed")


@BOTH
def test_it_is_the_next_message_if_the_turn_is_cancelled_or_fails(agent: type[ChatAgent]) -> None:
    """The words are not lost."""

    async def story(room: Room) -> None:
        await room.do("submit_messages", "sum", request_id="asked")
        await is_asked(room, 1)
        assert (await room.do("steer", "words after all", request_id="steered"))["steered"] == "asked"
        await room.do("cancel_chat", "asked")
        assert (await ended(room, "steered")).text.startswith("Only words")
        await room.do("submit_messages", "sum", request_id="fails")
        await is_asked(room, 3)
        assert (await room.do("steer", "words once more", request_id="again"))["steered"] == "fails"
        assert (await ended(room, "again")).text.startswith("Only words")
        assert await room.is_("error", "fails")

    refused = Fault(kind=FaultKind.ERROR, event=3, type="invalid_request_error", message="Wrong key")
    visit(agent, story, ALL, FaultPlan.at({3: refused}), pace=SLOW)


def test_it_is_taken_back_by_a_cancel_until_it_is_read() -> None:
    """Of itself, and of everything."""

    async def story(room: Room) -> None:
        await room.do("submit_messages", "sum", request_id="asked")
        await is_asked(room, 1)
        await room.do("steer", WORDS, request_id="steered")
        assert await room.do("cancel_chat", "steered")
        assert (await ended(room)).text == WHOLE
        assert not await room.do("cancel_chat", "steered")
        await room.do("submit_messages", "sum", request_id="more")
        await is_asked(room, 4)
        await room.do("steer", WORDS, request_id="too")
        assert await room.do("cancel_all_chats") == 2
        assert await room.do("wait_until_stable", 60_000)
        assert await room.is_("aborted", "too")
        await room.do("clear")
        assert await room.do("list_turns") == []

    visit(Adder, story, pace=SLOW)
    assert sum(times_told()) == 0


@BOTH
def test_another_answer_is_asked_for_with_it(agent: type[ChatAgent]) -> None:
    """It stands before the new answer then, as a message; and what replaces the question replaces it too."""

    async def story(room: Room) -> None:
        await room.do("submit_messages", "sum", request_id="asked")
        await is_asked(room, 1)
        await room.do("steer", WORDS, request_id="steered")
        await ended(room)
        result = await room.do("regenerate", request_id="other")
        assert result.ok
        messages = await room.do("get_messages")
        assert [each["id"] for each in messages] == ["asked-0", "steered-0", "other-answer"]
        assert steered(messages) == []
        await room.do("chat", "words", instead_of="asked-0")
        assert await room.roles() == "ua"

    visit(agent, story, ALL, pace=SLOW)
    assert times_told()[-2:] == [1, 0]


def test_in_the_middle_of_a_broken_answer_it_waits_for_the_end_of_the_step() -> None:
    """The text goes on where it broke off, and is not cut by what a person says."""

    async def story(room: Room) -> None:
        await room.do("submit_messages", "sum", request_id="asked")
        await is_asked(room, 1)
        await room.do("steer", WORDS)
        result = await ended(room)
        assert result.text == WHOLE
        types = [part["type"] for part in result.message["parts"]]
        assert types[types.index("data-steered") - 1 :][:3] == ["tool-add", "data-steered", "step-start"]

    broken = Fault(kind=FaultKind.RESET, event=6)
    visit(Adder, story, SCRIPT, FaultPlan.at({1: broken}), pace=SLOW)


def test_a_validator_of_the_library_asks_again_with_it() -> None:
    """Its loop makes another request, so there is another step."""

    async def story(room: Room) -> None:
        await room.do("submit_messages", "twice", request_id="asked")
        await is_asked(room, 1)
        await room.do("steer", WORDS)
        assert (await ended(room)).output == {"title": "Three", "steps": ["one"]}

    visit(Planner, story, ALL, pace=SLOW)
    assert times_told() == [0, 1]


class Dropping(Adder):
    """Begins its answers anew after a death."""

    async def on_chat_recovery(self, context: ChatRecoveryContext) -> dict[str, bool] | None:
        """Drop what there is."""
        return {"persist": False}


def test_what_was_said_in_an_answer_stays_when_the_author_drops_the_rest() -> None:
    """It is no part of what the model has said."""

    async def story(room: Room) -> None:
        room.soon("chat", "words", request_id="before")
        await is_asked(room, 1)
        room.soon("chat", "words", request_id="asked")
        await room.until(lambda: room.is_("completed", "before"))
        assert (await room.do("steer", WORDS))["steered"] == "asked"
        await is_asked(room, 2)
        await asyncio.sleep(0.3)
        room.kill()
        result = await ended(room)
        assert [part["type"] for part in result.message["parts"]] == ["data-steered", "step-start", "text"]
        assert result.text.startswith("Only words")

    visit(PatientDropping, story, pace=Pace(first_ms=200, between_ms=100))
    assert times_told() == [0, 1, 1]


class PatientDropping(Dropping):
    """Waits until people have finished, too."""

    message_concurrency: ClassVar[Any] = {"strategy": "debounce", "debounce_ms": 5_000}


class Steerer(Worker):
    """Steers its own turn from within: in a tool, and in a handler with its transaction."""

    def tools(self) -> list[Any]:
        """Those of a worker; the method is found by its mark."""
        return super().tools()

    @exposed
    async def told(self, words: str, *, fails: bool = False) -> Any:
        """Pass words on in a transaction."""
        with self.transaction():
            receipt = await self.steer(words, request_id="told")
            if fails:
                raise ValueError("not yet")
        return receipt


def test_inside_a_transaction_it_is_part_of_that() -> None:
    """Rolled back, it was never said."""

    async def story(room: Room) -> None:
        await room.do("submit_messages", "sum", request_id="asked")
        await is_asked(room, 1)
        with pytest.raises(Exception, match="not yet"):
            await room.do("told", "never said", fails=True)
        assert await room.do("inspect_turn", "told") is None
        assert (await room.do("told", WORDS))["steered"] == "asked"
        assert steered([(await ended(room)).message]) == [("told-0", WORDS)]

    visit(Steerer, story, pace=SLOW)
    assert times_told("never said") == [0, 0, 0]


BAD: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "empty": ("", {}, BadRequest, "message: is blank"),
    "blank": (" \n", {}, BadRequest, "message: is blank"),
    "no text": (7, {}, BadRequest, "neither a text nor a message"),
    "none": (None, {}, BadRequest, "neither a text nor a message"),
    "a list": (["a", "b"], {}, BadRequest, "one text or message at a time"),
    "an empty list": ([], {}, BadRequest, "one text or message at a time"),
    "of the assistant": ({"role": "assistant", "parts": [{"type": "text", "text": "I"}]}, {}, BadRequest, "role"),
    "of the system": ({"role": "system", "parts": [{"type": "text", "text": "I"}]}, {}, BadRequest, "role"),
    "too large": ("x" * 16_000_001, {}, TooLarge, "the limit is"),
    "an unknown option": ("a", {"instead_of": "b"}, BadRequest, "instead_of"),
    "a typo": ("a", {"request": "b"}, BadRequest, "request_id"),
    "an id of nothing": ("a", {"request_id": ""}, BadRequest, "request_id"),
}


@visiting(Adder, pace=SLOW)
async def test_what_is_no_message_is_refused_where_it_is_given(room: Room, /) -> None:
    """And nothing is written; nor for the same id with other words, before and after it was read."""
    await room.do("submit_messages", "sum", request_id="asked")
    await is_asked(room, 1)
    for name, (message, options, kind, words) in BAD.items():
        with pytest.raises(kind, match=words):
            await room.do("steer", message, **options)
        assert len(await room.do("list_turns")) == 1, name
    await room.do("steer", WORDS, request_id="steered")
    for _ in range(2):
        with pytest.raises(ConflictingRequest, match="other content"):
            await room.do("steer", "other words", request_id="steered")
        await ended(room)
    first = await room.do("steer", "words", idempotency_key="once")
    assert (await room.do("steer", "words", idempotency_key="once"))["request_id"] == first["request_id"]
    await ended(room, first["request_id"])


def _story(room: Room, at: list[str], agent: type[ChatAgent]) -> Any:
    async def steer_when(step: int, request_id: str) -> None:
        await room.until(lambda: len(Outside.provider.log()) >= step)
        at.append(str((await room.do("steer", f"words {request_id}", request_id=request_id))["steered"]))

    async def story() -> tuple[Any, list[Message]]:
        await room.do("submit_messages", "sum", request_id="asked")
        await asyncio.gather(*(steer_when(step, f"s{step}") for step in (1, 2, 3)))
        result = await ended(room)
        for name in ("s1", "s2", "s3"):
            await ended(room, name)
        return result, await room.do("get_messages")

    return story()


@BOTH
@pytest.mark.thorough
def test_whatever_dies_it_is_read_once_or_answered_once(agent: type[ChatAgent]) -> None:
    """At every fifth kill point of a story with three of them: in the answer, or a message of its own; never both, never neither."""

    def told(**simulation: Any) -> int:
        async def story(room: Room) -> int:
            _, messages = await _story(room, [], agent)
            for name in ("s1", "s2", "s3"):
                inside = [each for each in steered(messages) if each[0] == f"{name}-0"]
                own = [each for each in messages if each["id"] == f"{name}-0"]
                turn = await room.do("inspect_turn", name)
                assert len(inside) + len(own) == 1, (simulation, name, turn)
                assert (turn["status"], turn["reason"]) == ("skipped", "steered") if inside else turn["attempt"] > 0
            return room.laboratory.simulation.visit_count

        return int(visit(agent, story, ALL, pace=Pace(first_ms=20), **simulation))

    places = told()
    assert places > 80
    for place in range(1, places + 1, 5):
        told(kill_at=place)
