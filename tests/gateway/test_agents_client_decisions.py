"""What is decided for a chat client of Cloudflare's packages, as pairs without an agent or a socket: what it asks, and what it is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from perdure.actors.agents_client import talk as talking
from perdure.actors.agents_client.chat_requests import ChatDesk
from perdure.actors.agents_client.frames import read
from perdure.actors.agents_client.line import ChatLine, Closed
from perdure.actors.agents_client.talk import Attendance, Talk, TurnNotice
from perdure.actors.gateway.chat_turns import CallAnswer, ChatTurns, TurnDropped
from perdure.ledger import BadRequest
from perdure.policies import TurnPlan
from tests.gateway.deciding import decided, said
from tests.gateway.test_agents_client_orders import told

SENT, ASKS = ChatLine.send, {ChatLine.send, ChatLine.warn, ChatTurns.standing}
U1, U2, U3 = (said(each, "user", {"type": "text", "text": each}) for each in ("u1", "u2", "u3"))
A1 = said("r1-a", "assistant", {"type": "tool-x", "toolCallId": "c1"})


@pytest.mark.parametrize(
    ("text", "fields", "is_wrong"),
    [
        ('{"type": "rpc", "id": "1", "args": []}', {"type": "rpc", "id": "1", "args": []}, False),
        ('{"type": "rpc", "n": 1, "args": [NaN], "id": "1"}', {"type": "rpc", "id": "1"}, True),
        ('{"args": {"id": "no"}, "type": "rpc", "n": 1e999}', {"type": "rpc"}, True),
        ('{"type": 1}', None, False),
        ('["type"]', None, False),
        ("", None, False),
    ],
)
def test_a_text_that_may_not_be_read_is_a_frame_by_the_texts_at_its_top(text: str, fields: Any, is_wrong: bool) -> None:
    found = read(text)
    assert (None if found is None else found.fields) == fields
    assert (found is not None and bool(found.wrong)) == is_wrong


# what is asked


def sends(*messages: Any, trigger: str = "submit-message", **more: Any) -> dict[str, Any]:
    return asks(json.dumps({"messages": messages, "trigger": trigger, **more}))


def asks(body: str) -> dict[str, Any]:
    return {"type": "cf_agent_use_chat_request", "id": "r2", "init": {"body": body}}


def frame(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": f"cf_agent_{kind}", **fields}


NEW = (ChatTurns.accept, TurnPlan("chat", [U2]), "r2")
REFUSED = ["live r2", "end r2 live error"]
CALLED = (ChatTurns.answer, CallAnswer("c1", "blue"))
DROPPED, CLOSED = TurnDropped("under way"), BadRequest("call", "closed")
REQUESTS: dict[str, tuple[dict[str, Any], Any, list[Any], list[str]]] = {
    # the frame, what comes of the deed; what is done, and what this connection is told
    "a message": (sends(U1, U2), None, [NEW], []),
    "one that is dropped": (sends(U2), DROPPED, [NEW], ["messages u1", "end r2 live skipped"]),
    "one that is refused": (sends(U2), CLOSED, [NEW], REFUSED),
    "another answer": (
        sends(U1, trigger="regenerate-message"), None,
        [(ChatTurns.accept, TurnPlan("regenerate", instead_of="r1-a"), "r2")], [],
    ),
    "another answer to other words": (
        sends(7, {**U1, "parts": U2["parts"]}, trigger="regenerate-message"), None,
        [(ChatTurns.accept, TurnPlan("chat", [{"role": "user", "parts": U2["parts"]}], "u1"), "r2")], [],
    ),
    "nothing new": (sends(U1, A1), None, [], REFUSED),
    "no JSON": (asks("{"), None, [], REFUSED),
    "a cancel": (frame("chat_request_cancel", id="r1~3"), None, [(ChatTurns.cancel, "r1")], []),
    "one of what is not known": (frame("chat_request_cancel", id="r7"), None, [(ChatTurns.cancel, "r7")], []),
    "a clear": (frame("chat_clear"), None, [(ChatLine.call, "clear")], []),
    "a transcript": (frame("chat_messages", messages=[]), None, [(ChatLine.replace, [])], []),
    "one that is none": (frame("chat_messages", messages={}), None, [], []),
    "one that is refused, too": (
        frame("chat_messages", messages=[1]), CLOSED, [(ChatLine.replace, [1])], ["messages u1"],
    ),
    "a result": (frame("tool_result", toolCallId="c1", output="blue"), True, [CALLED], []),
    "one that nobody waits for": (frame("tool_result", toolCallId="c1", output="blue"), False, [CALLED], []),
    "one that is too late": (frame("tool_result", toolCallId="c1", output="blue"), CLOSED, [CALLED], []),
    "an error": (
        frame("tool_result", toolCallId="c1", state="output-error", errorText="no"), True,
        [(ChatTurns.answer, CallAnswer("c1", None, "no"))], [],
    ),
    "an approval": (
        frame("tool_approval", toolCallId="c1", approved=False), True,
        [(ChatTurns.answer, CallAnswer("c1", approved=False))], [],
    ),
    "one that says neither": (frame("tool_approval", toolCallId="c1"), True, [], []),
    "something else": (frame("something"), None, [], []),
}  # fmt: skip
TO_ALL = {"a transcript": ["snapshot"]} | {each: ["updated"] for each in ("a result", "an error", "an approval")}


def conversation() -> Talk:
    """One where a turn goes on after an answer, which two connections attend."""
    talk = Talk(lambda: 0.0, lambda: None)
    talk.begin({"turns": [STANDING], "last": None})
    talk.attending.update({1: lambda: None, 2: lambda: None})
    return talk


STANDING = {
    "request_id": "r1", "status": "running", "steers": "", "parked_events": 3, "events": 5, "error": "", "waiting": [],
    "message_ids": ["u1"], "message_id": "r1-a", "is_continuation": False, "is_recovering": False, "waits_for": ["c1"],
}  # fmt: skip
STANDS = {"known": None, "turns": [STANDING], "messages": [["u1", "user"], ["r1-a", "assistant"]]}


def asked(talk: Talk, given: dict[str, Any], came: Any, known: Any = None, *more_messages: Any) -> list[Any]:
    deeds = (ChatTurns.accept, ChatTurns.cancel, ChatTurns.answer, ChatLine.call, ChatLine.replace)
    more: dict[Any, Any] = dict.fromkeys(deeds, lambda *_: came)
    more |= {
        ChatTurns.standing: lambda *_: {**STANDS, "known": known},
        SENT: lambda _: None,
        ChatLine.warn: lambda *_: None,
    }
    desk = ChatDesk(1, talk, Attendance(1, talk, None, lambda: None))
    return decided(desk.take(given), messages=[U1, A1, *more_messages], more=more)[1]


@pytest.mark.parametrize("what", REQUESTS)
def test_what_a_chat_client_asks_is_decided_by_how_the_conversation_stands(what: str) -> None:
    given, came, deeds, shown = REQUESTS[what]
    talk = conversation()
    done = asked(talk, given, came)
    assert [each[: 2 if each[0] is ChatLine.call else 3] for each in done if each[0] not in ASKS] == deeds
    assert told([json.loads(each[1]) for each in done if each[0] is SENT]) == shown
    assert [talk.at(place).kind for place in range(talk.base, talk.head)] == TO_ALL.get(what, [])


def test_who_asks_for_a_turn_is_its_author_and_who_answers_owns_what_follows_if_it_wants_it() -> None:
    talk = conversation()
    asked(talk, sends(U2), None)
    assert talk.authors == {"r2": (1, 0)}
    asked(talk, sends(U2), DROPPED)
    asked(talk, frame("tool_result", toolCallId="c1"), True)
    assert (talk.authors, talk.owners) == ({}, {})
    asked(talk, frame("tool_result", toolCallId="c1", autoContinue=True), True)
    asked(talk, frame("chat_clear"), None)
    assert (talk.owners, talk.cleared_by) == ({"r1": 1}, 1)


WAITS = {
    **STANDING,
    "request_id": "r2",
    "trigger": "chat",
    "status": "accepted",
    "message_ids": ["u2"],
    "waiting": [U2],
}
ASKED = {**WAITS, "request_id": "r1", "message_ids": ["u1"], "waiting": [], "status": "completed"}
EDITED, ANSWERS = (
    {**ASKED, "request_id": "r3", "message_ids": ["r3-0"]},
    {**WAITS, "trigger": "regenerate", "message_ids": []},
)
GONE, OTHER_U2 = {**ASKED, "message_ids": ["u9"]}, {**U2, "parts": U3["parts"]}
ANEW: dict[str, Any] = {"trigger": "regenerate-message"}
AGAIN: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    # the frame, the turn that is known by its id, and how the refusal begins if there is one
    (sends(U1, A1, U2), WAITS, ""),
    (sends(U2), {**WAITS, "message_ids": ["u1", "u2"], "waiting": [U1, U2]}, ""),
    (sends(U1), ASKED, ""),
    (sends(U2), EDITED, ""),
    (sends(U2, **ANEW), EDITED, ""),
    (sends(U1, A1, **ANEW), {**ANSWERS, "waiting": []}, ""),
    (sends(U3), GONE, ""),
    (sends(U1, A1, OTHER_U2), WAITS, "u2 was sent before, and says 'u2'; ask something else"),
    (sends(U2, U3), WAITS, "u2 was sent before, and says 'u2'"),
    (sends(U3), EDITED, "r3-0 was sent before, and says 'u2'"),
    (sends(U1, U3), ASKED, "u1 was sent before, and says 'u1'"),
    (sends(A1), ASKED, "u1 was sent before, and says 'u1'"),
    (sends(U1, **ANEW), ASKED, "u1 was sent before, and says 'u1'"),
    (sends(U1), {**ANSWERS, "waiting": []}, "r2 was sent before; ask something else"),
    (sends({**U1, "parts": 7}), ASKED, "messages[0].parts: 7 is not a list"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "known", "words"), AGAIN)
def test_a_request_whose_id_is_known_is_the_same_turn_or_is_refused_in_words(
    given: dict[str, Any], known: dict[str, Any], words: str
) -> None:
    talk = Talk(lambda: 0.0, lambda: None)
    talk.authors["r2"] = (2, 0)
    done = asked(talk, {**given, "id": known["request_id"]}, None, known, {**U2, "id": "r3-0"})
    shown = [json.loads(each[1]) for each in done if each[0] is SENT]
    assert not [each for each in done if each[0] not in ASKS]
    assert [each["body"][: len(words)] for each in shown] == ([words, ""] if words else [])
    assert talk.authors == {"r2": (2, 0)}, "who asked first is the author still"


# what is told


def event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "turn": "r1", **fields}


def streamed(number: int, **chunk: Any) -> dict[str, Any]:
    return event("event", event_number=number, event={"type": "text-delta", **chunk})


ACCEPTED, BEGUN = event("turn-accepted", messages=[U1], steers=""), event("turn-begun", message_id="r1-a")
WRITTEN, FAILED = event("message", message=A1), event("turn-ended", status="error", error="why")
BEGINS, GOES_ON, ENDED = (
    [ACCEPTED, BEGUN, streamed(0)],
    [streamed(1), streamed(2)],
    event("turn-ended", status="completed", error=""),
)
ANSWERED = [streamed(1, type="tool-output-available"), streamed(2)]
COMES, PROBES, WANTS = "comes", frame("stream_resume_request", probeId="p"), frame("stream_resume_ack", id="r1")
REFUSED_R1 = "is refused what it asks for under the id of the turn"
LIVE, END = "live r1", "end r1 live completed"
LIVES: dict[str, tuple[list[Any], list[str]]] = {
    "from the beginning": ([COMES, *BEGINS, *GOES_ON, ENDED], ["messages u1", LIVE, END]),
    "that comes in the middle": ([*BEGINS, COMES, *GOES_ON, ENDED], ["resuming r1"]),
    "that asks for it": ([*BEGINS, COMES, WANTS, *GOES_ON, ENDED], ["resuming r1", "replay r1", "so far r1", LIVE, END]),
    "that asks at the end": (
        [*BEGINS, COMES, *GOES_ON, ENDED, WANTS], ["resuming r1", "replay r1", "end r1 replay completed"]
    ),
    "that asks twice": ([*BEGINS, COMES, WANTS, WANTS], ["resuming r1", "replay r1", "so far r1"]),
    "that asks for what is not": ([COMES, WANTS], ["end r1 replay"]),
    "that waits": ([ACCEPTED, COMES, BEGUN, PROBES], ["pending r1", "resuming r1", "resuming r1 p"]),
    "that waits for nothing": ([ACCEPTED, COMES, ENDED, PROBES], ["pending r1", "resume_none idle", "resume_none idle p"]),
    "of a failed turn": ([COMES, *BEGINS, FAILED, PROBES], ["messages u1", LIVE, "end r1 live error", "resuming r1 p"]),
    "of a cleared one": (
        [COMES, *BEGINS, event("cleared"), *GOES_ON, PROBES],
        ["messages u1", LIVE, "end r1 live aborted", "chat_clear", "resume_none idle p"],
    ),
    "that is refused something meanwhile": (
        [COMES, *BEGINS, REFUSED_R1, *GOES_ON, WANTS, ENDED],
        ["messages u1", LIVE, "refusal r1", "resuming r1", "replay r1", "so far r1", END],
    ),
    "that is refused something before it was told of the turn": (
        [*BEGINS, COMES, REFUSED_R1, WANTS], ["resuming r1", "refusal r1", "resuming r1", "replay r1", "so far r1"]
    ),
    "that is refused something before the turn begins": (
        [COMES, ACCEPTED, REFUSED_R1, BEGUN, streamed(0), ENDED], ["messages u1", "refusal r1", LIVE, END]
    ),
    "that is refused something before the turn ends at once": (
        [COMES, ACCEPTED, REFUSED_R1, ENDED], ["messages u1", "refusal r1", END]
    ),
    "that is refused something afterwards": (
        [COMES, *BEGINS, ENDED, REFUSED_R1], ["messages u1", LIVE, END, "refusal r1", "end r1 live error"]
    ),
    "that is refused something while a person is waited for": (
        [COMES, *BEGINS, WRITTEN, REFUSED_R1], ["messages u1", LIVE, END, "refusal r1", "end r1 live error"]
    ),
    "of a question": (
        [COMES, *BEGINS, WRITTEN, PROBES, *ANSWERED],
        ["messages u1", LIVE, END, "resume_none idle p", "live r1~"],
    ),
    "of one that read another's": ([COMES, {**ACCEPTED, "steers": "r0"}, BEGUN, streamed(0)], ["messages u1", LIVE]),
    "of a foreign message": ([COMES, event("message", message=U2)], ["messages u1"]),
    "of one attempt more": (
        [COMES, *BEGINS, streamed(1, type="data-attempt"), streamed(2)],
        ["messages u1", LIVE, "chat_recovering r1", LIVE, "chat_recovering r1", LIVE],
    ),
}  # fmt: skip
LATER = {"that comes in the middle": 1, "that asks at the end": 1}


class Hearing:
    """One connection, and what it hears."""

    def __init__(self, talk: Talk) -> None:
        self.kept: list[Any] = []
        self.heard: list[dict[str, Any]] = []
        self.later = 0
        self._talk = talk
        self._attendance: Attendance | None = None

    def have(self, move: Any) -> None:
        if move == COMES:
            self._attendance = Attendance(1, self._talk, None, lambda: None)
            self._do(self._attendance.announce())
        elif move == REFUSED_R1:
            assert self._attendance is not None
            self._do(self._attendance.refuse("r1", "no"))
        elif "turn" not in move:
            assert self._attendance is not None
            self._attendance.ask(move)
        else:
            self.kept += [move["event"]] if "event" in move else []
            self._do(self._talk.take([move]))
        for step in self._steps():
            self._do(step)

    def _steps(self) -> Iterator[Any]:
        while self._attendance is not None and (step := self._attendance.step()) is not None:
            yield step

    def _do(self, deciding: Any) -> None:
        parked = {"known": {"status": "parked"}}
        page = {"events": self.kept, "next": len(self.kept)}
        ways = {SENT: lambda _: None, ChatLine.later: lambda *_: None}
        ways |= {ChatTurns.standing: lambda _: parked, ChatLine.call: lambda *_: page}
        done = decided(deciding, messages=[U1], more=ways)[1]
        self.heard += [json.loads(each[1]) for each in done if each[0] is SENT]
        self.later += sum(each[0] is ChatLine.later for each in done)


@pytest.mark.parametrize("whose", LIVES)
def test_what_a_connection_is_told_is_decided_by_what_has_happened_and_what_it_asks(whose: str) -> None:
    moves, shown = LIVES[whose]
    hearing = Hearing(Talk(lambda: 0.0, lambda: None))
    for each in moves:
        hearing.have(each)
    assert told([{**each, "type": "refusal"} if each.get("body") == "no" else each for each in hearing.heard]) == shown
    assert hearing.later == LATER.get(whose, 0), "who has not asked for the turn by its end is told the end soon"


def test_what_tabs_may_have_made_otherwise_is_told_to_all_soon_after_the_end() -> None:
    for moves, count in (([*BEGINS, ENDED], 0), ([*BEGINS, streamed(1, type="data-retract"), ENDED], 1)):
        soon: list[int] = []
        hearing = Hearing(Talk(lambda: 0.0, lambda: soon.append(1)))  # noqa: B023
        for each in moves:
            hearing.have(each)
        assert len(soon) == count


def test_a_client_that_asks_and_does_not_read_is_closed_when_so_much_waits() -> None:
    talk = Talk(lambda: 0.0, lambda: None)
    decided(talk.take(BEGINS), messages=[U1])
    attendance = Attendance(1, talk, None, lambda: None)
    for _ in range(talking.ASKED_MAX):
        attendance.ask(PROBES)
    for asks in (lambda: attendance.ask(WANTS), lambda: list(attendance.refuse("r1", "no"))):
        with pytest.raises(Closed, match="connect again"):
            asks()


@pytest.mark.parametrize("ended", [ENDED, event("cleared")])
@pytest.mark.parametrize("begins", [BEGINS, [{**ACCEPTED, "steers": "r0"}]])
def test_nothing_is_known_of_who_asked_for_a_turn_that_is_over(begins: list[Any], ended: Any) -> None:
    talk = Talk(lambda: 0.0, lambda: None)
    talk.authors.update(r1=(1, 0), r2=(2, 0))
    talk.owners["r1"] = 1
    decided(talk.take([*begins, ended]), messages=[U1])
    assert (talk.authors, talk.owners) == ({"r2": (2, 0)}, {}), "what is asked for since begins yet"


def test_a_connection_that_is_behind_the_oldest_entry_is_closed_and_the_end_it_has_not_read_is_remembered() -> None:
    talk = Talk(lambda: 0.0, lambda: None)
    hearing = Hearing(talk)
    for each in (COMES, *BEGINS):
        hearing.have(each)
    attendance = hearing._attendance  # noqa: SLF001 - the one that is played
    assert attendance is not None
    for _ in range(talking.ENTRIES_MAX + 1):
        talk.add(TurnNotice("updated"))
    with pytest.raises(Closed):
        attendance.step()
    assert attendance.leave() == "r1"
    assert not talk.attending
