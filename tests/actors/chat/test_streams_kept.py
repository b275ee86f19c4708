"""The stream of a turn: durable before it is shown, followed from any number, by anybody, in any life, as long as it is kept and after."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from typing import Any

import pytest

from perdure.actors import exposed, tool
from perdure.actors.chat.stream import Stream, batch, last_boundary, merged, step_ends
from perdure.actors.chat.turn import Turn
from perdure.actors.events.message_parts import BROKEN, RETRACT, apply_chunk
from perdure.ledger import BadRequest, TooLarge, unpack
from perdure.ledger.storage.records import CHUNKS
from perdure.policies import Event
from perdure.scenarios.provider.faults import Fault, FaultKind, FaultPlan
from perdure.scenarios.provider.script import Script, ScriptedCall
from tests.actors.chat.desk import SCRIPT, WHOLE, Adder, Listener, Outside
from tests.actors.chat.room import SLOW, Room, calls, outcomes, texts, visiting

WRONG = Fault(
    kind=FaultKind.ERROR, event=3, type="invalid_request_error", code="invalid_prompt", message="a wrong word"
)
REFUSED = Fault(kind=FaultKind.STATUS, status=401, type="invalid_request_error", message="Wrong key")


class Keeper(Adder):
    """Shows what lies in its storage."""

    @exposed
    async def segments(self, request_id: str) -> list[Any]:
        """The pieces of a stream: the number of the first event, and how many there are."""
        if not self._perdure.has_storage:
            return []
        found = self._perdure.storage.documents(CHUNKS, f"{request_id}\0").values()
        return [[first, len(events)] for first, events in map(unpack, found)]

    @exposed
    async def prune(self, kept: int) -> None:
        """Keep the newest streams only."""
        self._perdure_conversation.state.store.prune_streams(kept)

    @exposed
    async def held(self) -> list[str]:
        """The turns whose streams are in memory."""
        return list(self._perdure_conversation.state.streams)

    @tool
    async def print_out(self, pages: int) -> str:
        """A very long text."""
        return "ä" * pages * 1_000


PRINT = Script(
    questions=(calls("print", ScriptedCall(name="print_out", arguments={"pages": 1_500})), *SCRIPT.questions)
)


def _folded(events: list[Any]) -> list[Any]:
    parts: list[Any] = []
    for event in events:
        parts = apply_chunk(parts, event)
    return parts


async def _events(room: Room, request_id: str = "asked", first: int = 0) -> tuple[Any, list[Any], list[str]]:
    result, listener = await room.follow("attach", request_id, first=first)
    return result, [each[1] for each in listener.heard if each[0] == "on_event"], listener.ends


@pytest.mark.shows(chat_recovery="C-1237 C-1238 C-1239 C-1240 C-1250 C-1251 C-1252")
@visiting(Keeper, pace=SLOW)
async def test_a_stream_is_on_record_from_its_first_event_to_its_last(room: Room, /) -> None:
    """Under the turn's id and its message's, packed into few rows that hold each event once and in order (C-1237…C-1240, C-1250…C-1252)."""
    await room.do("submit_messages", "sum", request_id="asked")
    await room.until(lambda: room.is_("running"))
    begun = await room.do("inspect_turn", "asked")
    assert (begun["events"], begun["message_id"], begun["attempt"]) == (1, "asked-answer", 1)
    assert begun["started_at_ms"] > 0
    await room.until(lambda: room.is_("completed"))
    done = await room.do("inspect_turn", "asked")
    assert (done["status"], done["message_id"]) == ("completed", "asked-answer")
    segments = await room.do("segments", "asked")
    assert [first for first, _ in segments] == [sum(count for _, count in segments[:at]) for at in range(len(segments))]
    assert sum(count for _, count in segments) == done["events"]
    assert len(segments) < done["events"] / 3


@pytest.mark.shows(chat_recovery="C-0771 C-0943 C-1198 C-1256 C-1259 C-1269 C-1315")
@visiting(Keeper, pace=SLOW)
async def test_whoever_attaches_late_or_twice_hears_everything_once_and_the_end(room: Room, /) -> None:
    """From any number, during the turn, after it, and in the next life (C-0771, C-1198, C-1256, C-1259, C-1269, W-43)."""
    live = Listener()
    asking = room.soon("chat", "sum", live, request_id="asked")
    await asyncio.sleep(0.6)
    during, shown, ends = await _events(room)
    assert (await asking).message == during.message
    heard = [each[1] for each in live.heard if each[0] == "on_event"]
    assert (shown, ends) == (heard, ["on_done"])
    assert shown[0] == {"type": "start", "messageId": during.message["id"]}
    assert _folded(shown) == during.message["parts"]
    for first in (0, 7, len(heard)):
        assert await _events(room, first=first) == (during, heard[first:], ["on_done"])
    await room.sleep()
    assert await _events(room) == (during, heard, ["on_done"])
    assert await _events(room, first=5) == (during, heard[5:], ["on_done"])
    with pytest.raises(BadRequest):
        await room.do("attach", "unknown")
    names = ["request_id", "status", "text", "message", "error", "reason", "next_event", "finish_reason"]
    assert list(vars(during)) == names


@pytest.mark.shows(chat_recovery="C-0770 C-1196 C-1197 C-1241 C-1260 C-1264")
@visiting(Keeper, plan=FaultPlan.at({1: WRONG, 2: REFUSED}))
async def test_a_stream_that_failed_is_replayed_with_its_partial_and_its_error(room: Room, /) -> None:
    """In the middle with what had been said, before the first word with the error alone; no empty message stays (C-1196…C-1198, C-1241,
    C-1260, C-1264)."""
    for request_id, words, roles in (("middle", "a wrong word", "ua"), ("first", "Wrong key", "uau")):
        failed = await room.do("chat", "words", request_id=request_id)
        result, shown, ends = await _events(room, request_id)
        assert (failed.status, ends) == ("error", ["on_error"])
        assert words in failed.error
        assert result == failed
        assert (await room.do("inspect_turn", request_id))["status"] == "error"
        assert await room.roles() == roles
        assert bool(texts({"parts": _folded(shown)})) is (request_id == "middle")
    assert result.message is None


@pytest.mark.shows(chat_recovery="C-1088 C-1093 C-1094 C-1143 C-1144 C-1263 C-1265")
@visiting(Keeper, pace=SLOW)
async def test_what_was_said_before_a_death_is_there_after_it(room: Room, /) -> None:
    """The transcript, the open stream and its calls; the turn goes on under its id, in its message (C-1143, C-1144, C-1263, C-1265)."""
    assert (await room.do("chat", "words", request_id="before")).ok
    listener = Listener()
    asking = room.soon("chat", "sum", listener, request_id="asked")
    await room.until(lambda: len(Outside.provider.log()) == 3)
    room.kill()
    assert (await asking).status == "interrupted"
    heard = [each[1] for each in listener.heard if each[0] == "on_event"]
    result, shown, ends = await _events(room)
    assert (result.status, result.text, ends) == ("completed", WHOLE, ["on_done"])
    assert shown[: len(heard)] == heard
    assert _folded(shown) == result.message["parts"]
    assert outcomes(result.message)[:3] == [("output-available", text) for text in "234"]
    assert await room.roles() == "uaua"
    assert (await room.do("get_messages"))[3] == result.message


@pytest.mark.shows(chat_recovery="C-1271 C-1274 C-1278 C-1283")
@visiting(Keeper, plan=FaultPlan.at({4: WRONG}), pace=SLOW)
async def test_old_streams_are_dropped_by_number_and_their_turns_are_told_from_the_transcript(room: Room, /) -> None:
    """Failed ones too; never that of a turn that waits, however old it is (C-1271, C-1274, C-1278, C-1283)."""
    await room.do("submit_messages", "sum", request_id="open")
    await room.until(lambda: len(Outside.provider.log()) == 1)
    await room.do("prune", 0)
    assert await room.do("segments", "open")
    first = await room.do("attach", "open")
    failed = await room.do("chat", "words", request_id="failed")
    assert failed.status == "error"
    assert (await room.do("chat", "words", request_id="kept")).ok
    await room.do("prune", 1)
    assert [await room.do("segments", each) == [] for each in ("open", "failed", "kept")] == [True, True, False]
    await room.sleep()
    for request_id, before, end in (("open", first, "on_done"), ("failed", failed, "on_error")):
        result, shown, ends = await _events(room, request_id)
        assert (result, ends) == (before, [end])
        assert texts({"parts": _folded(shown)}) == texts(before.message)
        assert outcomes({"parts": _folded(shown)}) == outcomes(before.message)
    told = await room.do("_perdure_follow_turn", "failed", 0)
    assert told["events"][-1] == {"type": "error", "errorText": failed.error}


@pytest.mark.shows(chat_recovery="C-1120 C-1248")
@visiting(Keeper)
async def test_clearing_forgets_the_streams_too(room: Room, /) -> None:
    """Nothing of them is left (C-1248, W-38)."""
    assert (await room.do("chat", "words", request_id="asked")).ok
    assert await room.do("segments", "asked")
    await room.do("clear")
    assert await room.do("segments", "asked") == []
    with pytest.raises(BadRequest):
        await room.do("attach", "asked")
    again = await room.do("chat", "words", request_id="asked")
    assert again.ok
    assert await room.roles() == "ua"


@pytest.mark.shows(chat_recovery="C-0816 C-1254 W-43")
@visiting(Keeper, PRINT)
async def test_what_is_very_long_is_cut_where_it_comes_in_and_nothing_breaks_of_it(room: Room, /) -> None:
    """The result of a tool, a person's message: shortened with a note, in the stream as in the message; data is refused (C-1254, W-43)."""
    result = await room.do("chat", "print " + "x" * 2_000_000, request_id="asked")
    assert result.ok
    ((state, output),) = outcomes(result.message)
    assert (state, "characters were left out" in output) == ("output-available", True)
    assert len(output.encode()) < 1_100_000
    found, shown, ends = await _events(room)
    assert (found, ends) == (result, ["on_done"])
    assert _folded(shown) == result.message["parts"]
    (asked,) = texts((await room.do("get_messages"))[0])
    assert len(asked) < 1_800_000
    for method, args, options in (
        ("chat", ("words",), {"metadata": "x" * 100_000}),
        ("resolve_tool_call", ("c", "x" * 1_000_001), {}),
        ("resolve_tool_call", ("c", float("nan")), {}),
    ):
        with pytest.raises((TooLarge, BadRequest)):
            await room.do(method, *args, **options)


@visiting(Keeper)
async def test_who_asks_how_an_ended_turn_stands_opens_no_stream_of_it(room: Room, /) -> None:
    assert (await room.do("chat", "words", request_id="asked")).ok
    for _ in range(2):
        standing = await room.do("_perdure_standing", "asked")
        assert standing["known"]["message_ids"] == ["asked-0"]
        assert (standing["known"]["status"], standing["known"]["waits_for"]) == ("completed", [])
        assert standing["last"] == standing["known"] == standing["resumable"]
        assert await room.do("held") == []
        await room.sleep()


# lists of events


START: Event = {"type": "start-step"}
FINISH: Event = {"type": "finish-step", "finishReason": "stop"}
WITHDRAWN: Event = {"type": RETRACT, "data": {"parts": 0, "step": True}, "transient": True}
SHORTER: Event = {"type": RETRACT, "data": {"parts": 1, "step": False}, "transient": True}


@pytest.mark.parametrize(
    ("events", "boundary", "ends"),
    [
        ([], None, []),
        ([FINISH, WITHDRAWN], None, []),
        ([START], START, [None]),
        ([START, SHORTER], START, [None]),
        ([START, FINISH], FINISH, [FINISH]),
        ([START, FINISH, START], START, [FINISH, None]),
        ([START, FINISH, START, WITHDRAWN], FINISH, [FINISH]),
        ([START, FINISH, START, FINISH, WITHDRAWN], FINISH, [FINISH]),
        ([START, FINISH, START, FINISH, WITHDRAWN, START], START, [FINISH, None]),
        ([START, WITHDRAWN, START, WITHDRAWN], None, []),
        ([START, FINISH, START, START, WITHDRAWN, WITHDRAWN], FINISH, [FINISH]),
    ],
)
def test_a_step_that_was_withdrawn_is_none(events: list[Event], boundary: Event | None, ends: list[Any]) -> None:
    assert last_boundary(events) == boundary
    assert step_ends(events) == ends


def said(delta: str, kind: str = "text", part: str = "a", **more: Any) -> Event:
    return {"type": f"{kind}-delta", "id": part, "delta": delta, **more}


@pytest.mark.parametrize(
    ("events", "joined"),
    [
        ([], []),
        ([said("a")], [said("a")]),
        ([said("a"), said("b"), said("c")], [said("abc")]),
        ([said("a", "reasoning"), said("b", "reasoning")], [said("ab", "reasoning")]),
        ([said("a"), said("b"), START, said("c"), said("d")], [said("ab"), START, said("cd")]),
        *(
            ([said("a"), other, said("b")], [said("a"), other, said("b")])
            for other in (
                said("x", part="b"), said("x", "reasoning"), said("x", providerMetadata={}), said("x", signature="s"), START,
                {"type": "data-delta", "id": "a", "delta": "x"},
            )
        ),
    ],
)  # fmt: skip
def test_neighbouring_deltas_of_one_text_are_joined_and_nothing_else(events: list[Event], joined: list[Event]) -> None:
    before = deepcopy(events)
    assert merged(events) == joined
    assert events == before, "they are kept elsewhere"


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        ([], 0), ([1] * 10, 10), ([1] * 6_000, 5_000), ([2_000_000, 1], 1), ([1, 2_000_000, 1], 2),
        ([250_000], 1), ([125_000, 125_000, 1], 3), ([125_000, 125_001, 1], 2),
    ],
)  # fmt: skip
def test_one_answer_carries_so_many_events_and_bytes_and_at_least_one_event(sizes: list[int], count: int) -> None:
    """A character counts as the four bytes that it may have."""
    events = [said("x" * size) for size in sizes]
    assert batch(events) == events[:count]
    whole = {"type": "file", "url": "x" * 999_000}
    assert batch([whole, whole, whole]) == [whole, whole]


# a step that broke off


class Mended(Stream):
    """A stream that is written nowhere."""

    def __init__(self, *events: Event) -> None:
        super().__init__(Turn("asked", 0, "chat", "asked-answer"), None, None, print, list(events))  # type: ignore[arg-type]

    def add(self, event: Event) -> None:
        """Add an event."""
        self.events.append(event)


def opened(kind: str, part: str = "a") -> Event:
    return {"type": f"{kind}-start", "id": part}


TEXT = (opened("text"), said("So"))
THOUGHT = (opened("reasoning", "r"), said("Hm", "reasoning", "r"))
HALF: tuple[Event, ...] = (
    {"type": "tool-input-start", "toolCallId": "half", "toolName": "add"},
    {"type": "tool-input-delta", "toolCallId": "half", "inputTextDelta": '{"a"'},
)
WHOLE_CALL: tuple[Event, ...] = (
    {"type": "tool-input-available", "toolCallId": "whole", "toolName": "add", "input": {"a": 1}},
)
LEFT = {
    "nothing": ((), [], [], False),
    "a text": (TEXT, ["step-start", "text"], [], True),
    "a text without a letter": ((opened("text"),), [], [], False),
    "a thought": (THOUGHT, [], [], False),
    "a text and a thought": ((*TEXT, *THOUGHT), ["step-start", "text"], [], True),
    "half a call": (HALF, [], [], False),
    "a text and half a call": ((*TEXT, *HALF), ["step-start", "text"], [], True),
    "a call": (WHOLE_CALL, ["step-start", "tool-add"], ["step-start", "tool-add"], False),
    "a thought and a call": (
        (*THOUGHT, *WHOLE_CALL), ["step-start", "reasoning", "tool-add"], ["step-start", "reasoning", "tool-add"], False,
    ),
    "half a call and a call": ((*HALF, *WHOLE_CALL), ["step-start", "tool-add", "tool-add"], ["step-start", "tool-add", "tool-add"], False),
    "a call and a text": ((*WHOLE_CALL, *TEXT), ["step-start", "tool-add", "text"], ["step-start", "tool-add"], True),
    "a call and half a call": ((*WHOLE_CALL, *HALF), ["step-start", "tool-add"], ["step-start", "tool-add"], False),
    "a call and a thought": ((*WHOLE_CALL, *THOUGHT), ["step-start", "tool-add"], ["step-start", "tool-add"], False),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT)
@pytest.mark.parametrize("replay", [False, True])
@pytest.mark.parametrize("before", [(), (START, {**WHOLE_CALL[0], "toolCallId": "earlier"}, FINISH)])
def test_of_a_step_that_broke_off_what_counts_is_kept(name: str, replay: bool, before: tuple[Event, ...]) -> None:
    """Half a thought and half a call are withdrawn, half a text is gone on with; where all is said again, the calls alone are kept."""
    events, kept, kept_for_replay, is_open = LEFT[name]
    stream = Mended(*before, START, *events)
    base = len(Mended(*before).parts)
    assert stream.is_broken
    stream.mend(replay=replay)
    assert [part["type"] for part in stream.parts[base:]] == (kept_for_replay if replay else kept)
    goes_on = is_open and not replay
    assert (stream.open_text is not None, stream.is_broken) == (goes_on, goes_on)
    assert not any(part.get("state") == "input-streaming" for part in stream.parts)
    assert [part.get("state") for part in stream.parts if part.get("toolCallId") == "half"] in ([], ["output-error"])
    assert (stream.events[-1].get("finishReason") == BROKEN) is bool(not goes_on and len(stream.parts) > base)
    told = list(stream.events)
    stream.mend(replay=replay)
    assert stream.events == told or goes_on or (replay and not kept_for_replay)


def test_an_answer_from_elsewhere_takes_the_place_of_what_broke_off() -> None:
    for events in ((), (START, *TEXT), (START, *WHOLE_CALL), (START, *WHOLE_CALL, FINISH)):
        stream = Mended(*events)
        calls = [part for part in stream.parts if "toolCallId" in part]
        stream.answer_with("The whole\0 answer.")
        assert [part for part in stream.parts if "toolCallId" in part] == calls
        assert stream.parts[-2:] == [
            {"type": "step-start"},
            {"type": "text", "text": "The whole\ufffd answer.", "state": "done"},
        ]
        assert (stream.is_answered, stream.is_broken, stream.finish_reason, stream.remark) == (True, False, "stop", "")
        assert stream.steps_taken == 1 + bool(calls)


@pytest.mark.parametrize(
    ("events", "reason", "remark", "is_answered"),
    [
        ((), "", "", False),
        ((START, *TEXT), "", "", False),
        ((START, *TEXT, FINISH), "stop", "", True),
        ((START, FINISH), "stop", "empty", True),
        ((START, *THOUGHT, FINISH), "stop", "empty", True),
        ((START, *WHOLE_CALL, {**FINISH, "finishReason": "tool_call"}), "tool_call", "", False),
        ((START, *TEXT, {**FINISH, "finishReason": "length"}), "length", "length", True),
        ((START, *TEXT, {**FINISH, "finishReason": BROKEN}), "", "", False),
        ((START, *TEXT, FINISH, START, {**WITHDRAWN, "data": {"parts": 2, "step": True}}), "stop", "", True),
        ((START, {**WHOLE_CALL[0], "providerExecuted": True}, *TEXT, FINISH), "stop", "", True),
    ],
)
def test_how_a_stream_stands_is_read_from_its_events(
    events: tuple[Event, ...], reason: str, remark: str, is_answered: bool
) -> None:
    stream = Mended(*events)
    assert (stream.finish_reason, stream.remark, stream.is_answered) == (reason, remark, is_answered)
