"""The Python client talks with a chat agent: an answer is followed across a kill of everything, found again, and cancelled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.actors.remote.answers import Piece, Telling
from tests.gateway.connect_cast import AFTER, BEFORE
from tests.gateway.real import RealGateway, real_gateway


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RealGateway, Path]]:
    place = tmp_path_factory.mktemp("chat")
    gate = place / "gate"
    script = {"setup": "tests.gateway.connect_cast:begin", "setup_options": {"gate": str(gate)}}
    with real_gateway(place, ["tests.gateway.connect_cast:Waiter"], **script) as started:
        yield started, gate


@pytest.fixture
def gateway(served: tuple[RealGateway, Path]) -> RealGateway:
    return served[0]


@pytest.fixture
def gate(served: tuple[RealGateway, Path]) -> Path:
    """A file that is not there, for which answers wait."""
    served[1].unlink(missing_ok=True)
    return served[1]


def folded(pieces: Iterable[Piece]) -> str:
    """What somebody has read who takes the pieces as they come."""
    text = ""
    for piece in pieces:
        text = text[: piece.kept] + piece.text
    return text


def test_an_answer_is_whole_though_everything_was_killed_while_it_was_written(gateway: RealGateway, gate: Path) -> None:
    def again() -> None:
        gateway.kill()
        gateway.start()
        gate.touch()

    async def talk() -> tuple[list[Piece], Any]:
        async with perdure.connect_async(gateway.url) as remote:
            answer = remote.chat("waiter", "killed").ask("gate")
            pieces = list[Piece]()
            async for piece in answer:
                pieces.append(piece)
                if len(pieces) == 1:
                    await asyncio.to_thread(again)
            return pieces, await answer.result()

    pieces, reply = asyncio.run(talk())
    assert (reply.ok, reply.status) == (True, "completed")
    assert reply.text.startswith(BEFORE)
    assert reply.text.endswith(AFTER)
    assert folded(pieces) == reply.text


@pytest.mark.thorough
def test_sync_code_follows_across_a_kill_too(gateway: RealGateway, gate: Path) -> None:
    with perdure.connect(gateway.url) as remote:
        following = iter(remote.chat("waiter", "sync").ask("gate", message_id="asked"))
        first = next(following)
        gateway.kill()
        gateway.start()
        gate.touch()
        text = folded([first, *following])
        assert text == remote.chat("waiter", "sync").attach("asked").result().text
        assert text.endswith(AFTER)


def test_the_same_question_is_asked_once_and_found_by_its_id(gateway: RealGateway) -> None:
    with perdure.connect(gateway.url) as remote:
        chat = remote.chat("waiter", "once")
        first = chat.send("words", message_id="first")
        assert first.ok
        assert chat.send("words", message_id="first") == first
        assert folded(chat.attach("first")) == first.text
        assert [each["role"] for each in chat.messages()] == ["user", "assistant"]
        assert len(chat.messages(limit=1)) == 1


def test_other_words_under_the_id_of_a_question_are_refused(gateway: RealGateway, gate: Path) -> None:
    """While the answer is under way too; and the question stays as it was."""

    async def talk() -> None:
        async with perdure.connect_async(gateway.url) as remote:
            chat = remote.chat("waiter", "other")
            answer = chat.ask("gate", message_id="q")
            async for _ in answer:
                with pytest.raises(perdure.ConflictingRequest, match="q was asked with other content") as refused:
                    await chat.send("words", message_id="q")
                assert refused.value.field == "message_id"
                await asyncio.to_thread(gate.touch)
            assert (await chat.send("gate", message_id="q")) == await answer.result()

    asyncio.run(talk())
    with perdure.connect(gateway.url) as remote:
        chat = remote.chat("waiter", "other")
        for ask in (chat.send, chat.steer):
            with pytest.raises(perdure.ConflictingRequest):
                ask("words", message_id="q")
        assert [each["parts"][0].get("text") for each in chat.messages()][:1] == ["gate"]


def test_an_answer_can_be_cancelled_alone_and_with_all_others(gateway: RealGateway, gate: Path) -> None:
    with perdure.connect(gateway.url) as remote:
        for how in ("alone", "all"):
            chat = remote.chat("waiter", how)
            answer = chat.ask("gate")
            following = iter(answer)
            pieces = [next(following)]
            assert answer.cancel() if how == "alone" else chat.cancel() == 1
            pieces += following
            reply = answer.result()
            assert (reply.ok, reply.status) == (False, "aborted")
            assert BEFORE.startswith(reply.text)
            assert folded(pieces) == reply.text
            assert not answer.cancel()
    assert not gate.exists()


def test_an_answer_is_steered_while_it_is_written_and_the_same_words_once(gateway: RealGateway, gate: Path) -> None:
    with perdure.connect(gateway.url) as remote:
        chat = remote.chat("waiter", "steered")
        answer = chat.ask("gate")
        following = iter(answer)
        next(following)
        first, again = [chat.steer("Be quick!", message_id="more") for _ in range(2)]
        assert (first["message_id"], first["accepted"], again) == ("more", True, {**first, "accepted": False})
        gate.touch()
        reply = answer.result()
        assert reply.ok
        assert reply.message is not None
        (part,) = [each for each in reply.message["parts"] if each["type"] == "data-steered"]
        assert part["data"] == {"id": first["request_id"], "messageId": "more", "text": "Be quick!"}
        later = chat.steer("words")
        assert (later["steered"], later["accepted"]) == (None, True)
        with pytest.raises(perdure.PerdureError, match="blank"):
            chat.steer(" ")


def test_an_answer_that_waits_for_a_person_is_parked_and_followed_on_when_that_has_answered(
    gateway: RealGateway,
) -> None:
    with perdure.connect(gateway.url) as remote:
        chat = remote.chat("waiter", "parked")
        parked = chat.send("color", message_id="asked")
        assert (parked.ok, parked.status, parked.text) == (False, "parked", "Which one? ")
        assert parked.message is not None
        (call,) = [part["toolCallId"] for part in parked.message["parts"] if "toolCallId" in part]
        assert remote.agent("waiter", "parked").resolve_tool_call(call, "red")
        reply = chat.attach("asked").result()
        assert reply.ok
        assert reply.text.endswith(AFTER)


def test_what_is_not_there_is_refused(gateway: RealGateway) -> None:
    with perdure.connect(gateway.url) as remote:
        with pytest.raises(perdure.BadRequest, match="never asked") as refused:
            remote.chat("waiter", "nobody").attach("unknown").result()
        assert refused.value.field == "message_id"
        with pytest.raises(perdure.PerdureError, match="nothing"):
            remote.chat("nothing", "there").send("Hello?")


def stream(*chunks: dict[str, Any]) -> str:
    return "".join(f"data: {json.dumps(each)}\n\n" for each in chunks)


BEGUN = [
    {"type": "start", "messageId": "m"},
    {"type": "start-step"},
    {"type": "text-start", "id": "1"},
]


def test_what_was_told_before_is_not_told_again_and_what_was_withdrawn_is_taken_back() -> None:
    telling, pieces = Telling(), list[Piece]()
    with telling.connected():
        pieces += telling.take(stream(*BEGUN, {"type": "text-delta", "id": "1", "delta": "Hello w"}), None)
    with telling.connected():
        first, second = (stream({"type": "text-delta", "id": "1", "delta": each}) for each in ("Hel", "lo world"))
        pieces += telling.take(stream(*BEGUN) + first, "m")
        pieces += telling.take(second[:9], "m")
        pieces += telling.take(second[9:], "m")
    assert pieces == [Piece(0, "Hello w"), Piece(7, "orld")]
    with telling.connected():
        pieces += telling.take(stream(*BEGUN, {"type": "text-delta", "id": "1", "delta": "Hello world"}), "m")
        anew = [{"type": "reset-step"}, {"type": "text-start", "id": "2"}]
        pieces += telling.take(stream(*anew, {"type": "text-delta", "id": "2", "delta": "Help"}), "m")
    assert pieces[2:] == [Piece(3, "p")]
    assert folded(pieces) == telling.text == "Help"


def test_the_answer_to_another_question_is_not_taken_for_this_one() -> None:
    telling = Telling()
    with telling.connected():
        assert list(telling.take(stream(*BEGUN, {"type": "text-delta", "id": "1", "delta": "No"}), "other")) == []
    assert (telling.is_over, telling.text) == (True, "")
    assert telling.pause_s() > 0
