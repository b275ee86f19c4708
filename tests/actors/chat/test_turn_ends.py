"""How turns end badly or emptily: who is told, in which words, what stays of the answer, and that the next turn is as any other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from perdure.actors.events.observability import ObservedEvent, subscribe
from perdure.ledger import BadRequest
from perdure.scenarios.provider.events import Done, Finish, Role
from perdure.scenarios.provider.faults import Fault, FaultKind, FaultPlan, Pace
from perdure.scenarios.provider.script import Script, ScriptedQuestion
from tests.actors.chat.desk import SCRIPT, WHOLE, Adder, Listener, Outside
from tests.actors.chat.room import SLOW, Room, outcomes, visit, visiting

REFUSED = Fault(kind=FaultKind.ERROR, event=2, type="invalid_request_error", message="No such thing")
HEARD: list[Any] = []


@contextmanager
def observed(channel: str = "chat") -> Iterator[list[ObservedEvent]]:
    """What observers of a channel are told meanwhile."""
    events: list[ObservedEvent] = []
    unsubscribe = subscribe(channel, events.append)
    try:
        yield events
    finally:
        unsubscribe()


def named(events: list[ObservedEvent], name: str) -> list[dict[str, Any]]:
    """The payloads of the events of one name."""
    return [dict(event.payload) for event in events if event.type == name]


class Told(Adder):
    """Writes down what its hooks are told."""

    async def on_chat_error(self, error: str, info: dict[str, Any]) -> str | None:
        """Remember."""
        HEARD.append(("error", error, info))
        return None

    async def on_chat_response(self, response: dict[str, Any]) -> None:
        """Remember."""
        HEARD.append(("response", response["status"], response))


def hooks() -> list[tuple[str, str]]:
    """Which hooks were called, and with what first."""
    return [(kind, said) for kind, said, _ in HEARD]


@pytest.mark.shows(
    chat_recovery="C-0486 C-0487 C-0489 C-0490 C-0491 C-0511 C-0513 C-0514 C-0515 C-0517 C-1206 C-1224 C-1233"
)
def test_an_error_in_the_stream_is_told_once_to_each_who_asked_and_keeps_what_was_said() -> None:
    """Callback, result, hook, observers and the row have the same words; parts before it stay, and later chunks are not read
    (C-0486 – C-0491, C-0511 – C-0515, C-0517)."""

    async def story(room: Room) -> None:
        HEARD.clear()
        result, listener = await room.follow("chat", "sum", request_id="asked")
        assert result.status == "error"
        assert "No such thing" in result.error
        assert listener.heard[-1] == ("on_error", result.error)
        assert listener.ends == ["on_error"]
        assert hooks() == [("error", result.error), ("response", "error")]
        assert HEARD[0][2] == {"request_id": "asked", "stage": "stream", "reason": result.reason}
        told = await room.do("inspect_turn", "asked")
        assert (told["status"], told["error"]) == ("error", result.error)
        _, answer = await room.do("get_messages")
        assert answer == HEARD[1][2]["message"] == result.message
        assert outcomes(answer) == [("output-available", "2"), ("output-available", "3"), ("output-available", "4")]
        assert result.text == "Let me add first. And then double ", "nothing after the error was read"

    with observed() as events:
        visit(Told, story, plan=FaultPlan.at({2: REFUSED}))
    (failed,) = named(events, "chat:request:failed")
    assert (failed["requestId"], failed["stage"]) == ("asked", "stream")
    assert "No such thing" in failed["error"]


@pytest.mark.shows(chat_recovery="C-0498 C-0512 C-0524 C-0566 C-0569 C-1039 C-1119")
def test_an_error_before_the_first_part_is_as_loud() -> None:
    """Nothing is stored but the question, and the next turn works (C-0498, C-0512, C-0524, C-0566, C-0569)."""

    async def story(room: Room) -> None:
        HEARD.clear()
        result, listener = await room.follow("chat", "words", request_id="asked")
        assert (result.status, result.message, listener.ends) == ("error", None, ["on_error"])
        assert hooks() == [("error", result.error), ("response", "error")]
        again, late = await room.follow("attach", "asked")
        assert (again.error, late.ends) == (result.error, ["on_error"]), "it is recorded for whoever comes later"
        saved = await room.do("save_messages", "words")
        assert (saved.status, saved.error) == ("error", result.error)
        assert (await room.do("chat", "words")).ok
        assert await room.roles() == "uuua"
        assert (await room.do("inspect_turn", "asked"))["status"] == "error", "each turn has a record of its own"

    early = REFUSED.model_copy(update={"event": 0})
    visit(Told, story, plan=FaultPlan.at({1: early, 2: early}))


class Kind(Told):
    """Says things more kindly."""

    async def on_chat_error(self, error: str, info: dict[str, Any]) -> str | None:
        """Other words."""
        await super().on_chat_error(error, info)
        return "Please ask somebody else."

    def get_instructions(self) -> str | None:
        """Fails when it is told so."""
        assert self.active_turn is not None
        if self.active_turn.metadata == "fail":
            raise RuntimeError("there is nothing to say")
        if self.active_turn.metadata == "sql":
            self.sql("SELECT nothing FROM nowhere")
        return None


@pytest.mark.shows(chat_recovery="C-0488 C-0619 C-0625 C-0628 C-0682 C-1129 C-1130 C-1207 C-1225")
@visiting(Kind, plan=FaultPlan.at({1: REFUSED}))
async def test_the_author_may_choose_the_words_of_every_error(room: Room, /) -> None:
    """Of a provider's refusal as of an exception in his own code, which ends the turn and is not tried again, a statement that his
    storage refuses included (C-0488, C-0619, C-0625, C-0628, C-0682)."""
    HEARD.clear()
    refused, _ = await room.follow("chat", "words", request_id="refused")
    raised, listener = await room.follow("chat", "words", request_id="raised", metadata="fail")
    assert refused.error == raised.error == "Please ask somebody else."
    assert listener.heard[-1] == ("on_error", "Please ask somebody else.")
    assert (await room.do("chat", "words", metadata="sql")).status == "error"
    errors = [(said, info["stage"], info["reason"]) for kind, said, info in HEARD if kind == "error"]
    assert errors[1] == ("RuntimeError: there is nothing to say", "turn", "RuntimeError")
    assert "nowhere does not exist" in errors[2][0]
    assert (await room.do("chat", "words")).ok


class Raising(Told):
    """Its hook for errors raises."""

    async def on_chat_error(self, error: str, info: dict[str, Any]) -> str | None:
        """Fail."""
        raise RuntimeError("not my day")


@visiting(Raising, plan=FaultPlan.at({1: REFUSED}))
async def test_a_hook_for_errors_that_raises_hides_no_error(room: Room, /) -> None:
    """The turn ends in the words that it would have ended in."""
    result, listener = await room.follow("chat", "words")
    assert "No such thing" in result.error
    assert listener.ends == ["on_error"]


SILENT = Script(questions=(ScriptedQuestion(asks="nothing", verbatim=((Role(), Finish(), Done()),)), *SCRIPT.questions))


@pytest.mark.shows(chat_recovery="C-0509 C-0510")
@visiting(Told, SILENT)
async def test_an_empty_answer_is_an_end_like_any_other(room: Room, /) -> None:
    """The hook and the callback are told, and nothing is stored (C-0509, C-0510)."""
    HEARD.clear()
    result, listener = await room.follow("chat", "nothing")
    assert (result.status, result.text, result.message) == ("completed", "", None)
    assert listener.ends == ["on_done"]
    assert hooks() == [("response", "completed")]
    assert await room.roles() == "u"
    assert (await room.do("chat", "words")).ok


@pytest.mark.shows(chat_recovery="C-0508 C-0518 C-0519 C-0521 C-0523 C-0540 C-1222 C-1223 C-1226 C-1227 C-1229 C-1230")
@visiting(Told, pace=SLOW)
async def test_the_hook_hears_of_every_turn_with_its_message_and_how_it_was_asked(room: Room, /) -> None:
    """Chats, saved messages, continuations and aborted turns, once each (C-0508, C-0518, C-0519, C-0521, C-0523, C-0540)."""
    HEARD.clear()
    said = await room.do("chat", "words")
    saved = await room.do(
        "save_messages", ["words again", {"role": "user", "parts": [{"type": "text", "text": "words"}]}]
    )
    assert saved.ok
    more = await room.do("continue_last_turn")
    stopped = room.soon("chat", "sum", request_id="stopped")
    await room.until(lambda: room.is_("running", "stopped"))
    await room.do("cancel_chat", "stopped")
    await stopped
    told = [(response["status"], response["continuation"]) for _, _, response in HEARD]
    assert told == [("completed", False), ("completed", False), ("completed", True), ("aborted", False)]
    assert HEARD[0][2]["message"] == said.message
    assert HEARD[2][2]["message"] == more.message
    assert await room.roles() == "uauuau", "what was cancelled before its first word has no answer"


@pytest.mark.shows(chat_recovery="C-0693 C-0694 C-0695 C-0696 C-0697 C-0706 C-0708 C-0958")
def test_observers_are_told_of_each_turn_once_when_it_begins_and_once_when_it_ends() -> None:
    """Whoever asked, in the order in which turns are played, and nothing of a wish that was refused (C-0693 – C-0697, C-0706, C-0708)."""
    several = ["words", {"role": "user", "parts": [{"type": "text", "text": "words"}, {"type": "text", "text": "too"}]}]

    async def story(room: Room) -> None:
        accepted: list[int] = []
        first = room.soon("chat", several, request_id="one")
        await room.until(lambda: room.is_("running", "one"))
        for number in range(2):
            await room.do("submit_messages", "words", request_id=f"later-{number}")
            accepted.append(len(named(events, "chat:turn:start")))
        assert accepted == [1, 1], "a turn begins when it is played"
        assert (await first).ok
        assert (await room.do("attach", "later-1")).ok
        assert (await room.do("continue_last_turn")).ok
        with pytest.raises(BadRequest):
            await room.do("chat", [])

    with observed() as events:
        visit(Adder, story, pace=SLOW)
    edges = [event for event in events if event.type.startswith("chat:turn:")]
    assert [event.type for event in edges] == ["chat:turn:start", "chat:turn:finish"] * 4
    began, ended = edges[::2], edges[1::2]
    asked = [event.payload["requestId"] for event in began]
    assert asked == [event.payload["requestId"] for event in ended]
    assert asked[:3] == ["one", "later-0", "later-1"]
    assert asked[3] not in asked[:3]
    told = [(event.payload["trigger"], event.payload["continuation"]) for event in began]
    assert told == [("chat", False), ("submission", False), ("submission", False), ("continue", True)]
    assert {event.payload["status"] for event in ended} == {"completed"}


class Slow(Adder):
    """Takes its time after a turn."""

    async def on_chat_response(self, response: dict[str, Any]) -> None:
        """Note when it begins and ends."""
        HEARD.append(("begin", response["request_id"]))
        await asyncio.sleep(1)
        HEARD.append(("end", response["request_id"]))


@pytest.mark.shows(chat_recovery="C-0553 C-1228 C-1235")
@visiting(Slow)
async def test_slow_hooks_miss_no_turn_and_are_called_one_after_the_other(room: Room, /) -> None:
    """However fast the turns end (C-0553, C-0554)."""
    HEARD.clear()
    asked = [(await room.do("submit_messages", f"words {number}"))["request_id"] for number in range(3)]
    await room.until(lambda: len(HEARD) == 6)
    told = [(edge, each) for each in asked for edge in ("begin", "end")]
    assert told == HEARD


@pytest.mark.shows(chat_recovery="C-0492 C-0495 C-1203")
@visiting(Adder, pace=Pace(first_ms=100, between_ms=45))
async def test_who_watches_a_good_turn_is_told_of_no_interruption(room: Room, /) -> None:
    """Chunks that come steadily never stall, however many they are (C-0492, C-0495)."""
    result, listener = await room.follow("chat", "sum", chat_stream_stall_timeout_ms=200)
    assert (result.text, listener.ends) == (WHOLE, ["on_done"])


@pytest.mark.parametrize(
    ("args", "options", "field"), [(("other",), {}, "request_id"), (("asked",), {"first": -1}, "first")]
)
@visiting(Adder)
async def test_who_wants_to_watch_what_is_not_there_is_told_so(
    room: Room, /, args: Any, options: Any, field: str
) -> None:
    """By an error that names the field; a callback that was told of a start is told of an end."""
    assert (await room.do("chat", "words", request_id="asked")).ok
    listener = Listener()
    with pytest.raises(BadRequest) as refused:
        await room.do("attach", *args, listener, **options)
    assert refused.value.field == field
    assert listener.ends == ["on_error"] * len(listener.heard[1:])


class Unwatched(Adder):
    """Never takes silence for a stall."""

    chat_stream_stall_timeout_ms = 0


@pytest.mark.shows(chat_recovery="C-0493 C-0497")
@pytest.mark.parametrize("kind", [FaultKind.STALL, FaultKind.ERROR])
def test_a_turn_may_bring_its_own_patience(kind: FaultKind) -> None:
    """The watchdog of one turn, where the class has none; an error under the watchdog is just an error (C-0493, C-0497)."""

    async def story(room: Room) -> None:
        result, listener = await room.follow("chat", "words", request_id="asked", chat_stream_stall_timeout_ms=500)
        if kind is FaultKind.STALL:
            assert listener.ends == ["on_interrupted"]
            assert listener.heard[-1][1].cause == "stall"
            result, listener = await room.follow("attach", "asked", first=result.next_event)
            assert (result.status, listener.ends) == ("completed", ["on_done"])
        else:
            assert (result.status, listener.ends) == ("error", ["on_error"])

    fault = REFUSED if kind is FaultKind.ERROR else Fault(kind=kind, event=2)
    visit(Unwatched, story, plan=FaultPlan.at({1: fault}))
    assert len(Outside.provider.log()) == (2 if kind is FaultKind.STALL else 1)
