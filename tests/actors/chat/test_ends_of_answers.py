"""How an answer ended is visible: cut off by its length, filtered, refused, empty. And what an author need not set."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.actors import ChatAgent, tool
from perdure.actors.chat.answer_stream import reason_of_end
from perdure.scenarios.provider.events import (
    CREATED_S,
    Done,
    Event,
    Finish,
    Raw,
    Role,
    Text,
    dumped,
)
from perdure.scenarios.provider.faults import Fault, FaultKind, FaultPlan
from perdure.scenarios.provider.script import Round, Script, ScriptedCall, ScriptedQuestion
from tests.actors.chat.desk import SCRIPT, Adder, Outside
from tests.actors.chat.room import Room, visit


class Stream:
    """What the library makes of an answer, as far as its end is read from it."""

    provider_url: str | None = "https://provider.example"
    finish_reason: str | None = None
    provider_details: dict[str, Any] | None = None

    def __init__(self, **told: Any) -> None:
        vars(self).update(told)


class OpenAIStreamedResponse(Stream):
    """Says `stop` although nothing was said."""


def raw(reason: object) -> dict[str, Any]:
    return {"provider_details": {"finish_reason": reason}}


@pytest.mark.parametrize(
    ("stream", "meanwhile", "in_the_end"),
    [
        (Stream(), None, None),
        (Stream(provider_url=None), None, "stop"),
        (Stream(finish_reason="length"), "length", "length"),
        (Stream(finish_reason="stop"), "stop", "stop"),
        (OpenAIStreamedResponse(finish_reason="stop"), None, None),
        (OpenAIStreamedResponse(finish_reason="tool_call"), "tool_call", "tool_call"),
        (OpenAIStreamedResponse(finish_reason="stop", **raw("stop")), "stop", "stop"),
        (Stream(**raw("MAX_TOKENS")), "length", "length"),
        (Stream(**raw("the length")), "length", "length"),
        (Stream(**raw("eos")), "stop", "stop"),
        (Stream(**raw("")), None, None),
        (Stream(**raw(7)), None, None),
        (Stream(finish_reason="error", **raw("length")), "error", "error"),
        (Stream(finish_reason="stop", _has_refusal=True, _has_finish_reason=False), None, "stop"),
        (Stream(finish_reason="stop", _has_refusal=True, _has_finish_reason=True), "stop", "stop"),
        (Stream(finish_reason="stop", _has_refusal=False, _has_finish_reason=False), "stop", "stop"),
        (Stream(finish_reason="stop", _has_refusal=True), "stop", "stop"),
    ],
)
def test_the_end_of_an_answer_is_what_its_provider_says_of_it(
    stream: Any, meanwhile: str | None, in_the_end: str | None
) -> None:
    assert reason_of_end(stream, is_over=False) == meanwhile
    assert reason_of_end(stream, is_over=True) == in_the_end


def says(*events: Event) -> Script:
    """A model that answers `go` with these events, and what follows by the script."""
    return Script(
        questions=(ScriptedQuestion(asks="go", rounds=(), verbatim=((Role(), *events, Done()),)), *SCRIPT.questions)
    )


def refuses(words: str) -> Raw:
    """A piece of a refusal, which providers send beside the content."""
    choice = {"index": 0, "delta": {"refusal": words}, "finish_reason": None}
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": CREATED_S, "model": "m", "choices": [choice]}
    return Raw(text=f"data: {dumped(chunk)}\n\n")


@pytest.mark.parametrize(
    ("events", "reason", "finish_reason", "text"),
    [
        ((Text(text="It is"), Finish(reason="length")), "length", "length", "It is"),
        ((Text(text="It is"), Finish(reason="content_filter")), "content_filter", "content_filter", "It is"),
        (
            (refuses("I cannot "), refuses("say that."), Finish()),
            "content_filter",
            "content_filter",
            "I cannot say that.",
        ),
        ((Finish(),), "empty", "stop", ""),
        ((Text(text="It is so."), Finish()), "", "stop", "It is so."),
    ],
)
def test_how_an_answer_ended_is_told(events: tuple[Event, ...], reason: str, finish_reason: str, text: str) -> None:
    """To its caller, to who comes later, and in the row of the turn; a cut is also in the metadata of the message."""

    async def story(room: Room) -> None:
        result = await room.do("chat", "go", request_id="asked")
        assert (result.status, result.reason, result.finish_reason, result.text) == (
            "completed",
            reason,
            finish_reason,
            text,
        )
        await room.sleep()
        assert await room.do("attach", "asked") == result
        assert (await room.do("inspect_turn", "asked"))["reason"] == reason
        if text:
            told = result.message.get("metadata", {}).get("finishReason")
            assert told == (finish_reason if finish_reason != "stop" else None)

    visit(Adder, story, says(*events))


@pytest.mark.parametrize(
    ("reason", "words"), [("length", "limit of its length"), ("stop", "Continue your last message")]
)
def test_a_continuation_says_why_the_answer_ended(reason: str, words: str) -> None:
    """Neither after a limit nor on request is there a word of a lost connection, and what was cut off is no longer marked so."""

    async def story(room: Room) -> None:
        assert (await room.do("chat", "go", request_id="asked")).ok
        more = await room.do("continue_last_turn")
        assert more.ok
        assert more.text == "It is done."
        assert "finishReason" not in more.message.get("metadata", {})

    first = (Role(), Text(text="It is "), Finish(reason=reason), Done())
    then = (Role(), Text(text="done."), Finish(), Done())
    visit(Adder, story, Script(questions=(ScriptedQuestion(asks="go", rounds=(), verbatim=(first, then)),)))
    last = Outside.provider.log()[-1].body["messages"][-1]["content"]
    assert words in last
    assert "connection" not in last


@pytest.mark.parametrize("garbled", ["null", "[1]", '"x"', "7"])
def test_a_garbled_first_event_is_recovered_like_a_later_one(garbled: str) -> None:
    """The same request is sent again, silently."""

    async def story(room: Room) -> None:
        asking = room.soon("chat", "go", request_id="asked")
        await room.until(Outside.provider.log)
        Outside.provider.script = says(Text(text="It is so."), Finish())
        result = await asking
        assert (result.status, result.text) == ("completed", "It is so.")

    visit(
        Adder,
        story,
        Script(questions=(ScriptedQuestion(asks="go", rounds=(), verbatim=((Raw(text=f"data: {garbled}\n\n"),),)),)),
    )


class Unset(ChatAgent):
    """Sets nothing but its model, asynchronously."""

    async def get_model(self) -> Any:
        """The scripted provider."""
        await asyncio.sleep(0.01)
        return Outside.model

    async def get_instructions(self) -> str:
        """Fetched from somewhere."""
        await asyncio.sleep(0.01)
        return "Be kind."

    async def get_model_settings(self) -> dict[str, Any]:
        """The same."""
        return {"temperature": 0.25}

    @tool
    async def hang(self) -> str:
        """Hang."""
        await asyncio.Event().wait()
        return ""


def test_what_is_asked_of_an_author_may_be_async() -> None:
    """The instructions, the model and its settings."""

    async def story(room: Room) -> None:
        assert (await room.do("chat", "words")).ok

    visit(Unset, story)
    (record,) = Outside.provider.log()
    assert record.body["messages"][0] == {"role": "system", "content": "Be kind."}
    assert record.body["temperature"] == 0.25


@pytest.mark.parametrize(("event", "seconds"), [(None, 600), (2, 90)])
def test_silence_has_a_limit_though_its_author_set_none(event: int | None, seconds: int) -> None:
    """A model may think for ten minutes before it speaks, and pause for a minute and a half."""

    async def story(room: Room) -> None:
        begun_s = asyncio.get_running_loop().time()
        assert (await room.do("chat", "words")).ok
        assert seconds <= asyncio.get_running_loop().time() - begun_s < seconds + 10

    visit(Unset, story, plan=FaultPlan.at({1: Fault(kind=FaultKind.STALL, event=event)}), timeout_ms=900_000)


def test_a_tool_has_a_limit_though_its_author_set_none() -> None:
    """After ten minutes the model is told that the outcome is not known."""
    script = Script(
        questions=(ScriptedQuestion(asks="go", rounds=(Round(calls=(ScriptedCall(name="hang", arguments={}),)),)),)
    )

    async def story(room: Room) -> None:
        begun_s = asyncio.get_running_loop().time()
        result = await room.do("chat", "go")
        assert result.ok
        assert 600 <= asyncio.get_running_loop().time() - begun_s < 610
        (words,) = [part["errorText"] for part in result.message["parts"] if "errorText" in part]
        assert "within 600000 ms" in words

    visit(Unset, story, script, timeout_ms=900_000)
