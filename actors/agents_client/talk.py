"""A watched conversation, and what each connection is told of it (client protocols A.7). Pure.

The feed of the conversation is followed once for all connections of a gateway. An entry is made of each event that connections may want to
know of, with its frame encoded once. A connection has a place in the list of entries, and its own picture of the turns there. So it may be
slow without costing memory; one that has fallen behind the oldest entry is closed, comes again, and resumes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, NamedTuple

from perdure.actors.agents_client.frames import encoded, json_text
from perdure.actors.agents_client.line import BEHIND, ChatLine, Closed
from perdure.actors.chat.feed import FeedEvent, TurnBegun, TurnEnded, TurnStreamed
from perdure.actors.chat.turn import TurnPage, TurnStanding
from perdure.actors.gateway.chat_turns import ChatTurns, Deciding
from perdure.ledger import BadRequest
from perdure.policies import (
    OUTCOMES,
    Event,
    JsonObject,
    Message,
    ProbeAnswer,
    Situation,
    TurnStatus,
    probe_answer,
    shown_chunk,
)

SEND: Final = ChatLine.send
RESPONSE: Final = "cf_agent_use_chat_response"
MESSAGES: Final = "cf_agent_chat_messages"
PENDING, NONE = "cf_agent_stream_pending", "cf_agent_stream_resume_none"
ENTRIES_MAX: Final = 20_000
CHARS_MAX: Final = 32_000_000
RETURN_S: Final = 60.0
ASKED_MAX: Final = 1_000
"""What a connection may ask for before it has read what it is told of that."""
ANSWERS: Final = frozenset({"tool-output-available", "tool-output-error", "tool-approval-response"})


@dataclass(frozen=True)
class ShownTurn:
    """A turn as a connection sees it, at one place of the list.

    Attributes:
        wire: the request id of its present stream: that of the turn, or after an answer of the client another one.
        next: how many events it has.
    """

    turn: str
    wire: str
    status: TurnStatus
    message_ids: tuple[str, ...] = ()
    message_id: str = ""
    next: int = 0
    error: str = ""
    is_continuation: bool = False
    is_recovering: bool = False
    is_overlapping: bool = False

    @property
    def streams(self) -> bool:
        return self.status is TurnStatus.RUNNING


class TurnNotice(NamedTuple):
    """Something that happened: `accepted`, `begun`, `resumed` (after an answer of the client), `chunk`, `parked`, `ended`, `recovering`,
    `snapshot`, `updated` or `cleared`. `turn` is the turn after it, `frame` what is told, `besides` the connection that is not told it,
    `author` the connection that has asked for the turn."""

    kind: str
    turn: ShownTurn | None = None
    frame: str = ""
    besides: int = -1
    author: int = -1


class Talk:
    """A watched conversation. `settle_soon` has its transcript told to all (`show_all`) once the tabs have worked off their chunks."""

    def __init__(self, clock: Callable[[], float], settle_soon: Callable[[], None]) -> None:
        self.clock, self.settle_soon = clock, settle_soon
        self.turns: dict[str, ShownTurn] = {}
        self.failed: ShownTurn | None = None
        # By turns: the connection that has asked for it, and the place of the list at which it did.
        self.authors: dict[str, tuple[int, int]] = {}
        self._shown_at = -1  # the place of the newest entry that tells a transcript
        self.owners: dict[str, int] = {}  # by turns: the connection that wants the continuation
        self.attending: dict[int, Callable[[], None]] = {}  # connections, each with what wakes it
        self.cleared_by = -1  # the connection whose clear is under way: it shows nothing already
        self.base = 0  # the place of the oldest entry
        self._entries: deque[TurnNotice] = deque()
        self._chars = 0
        self._waiting: dict[str, list[Message]] = {}  # the messages of turns that have not begun
        # Turns whose messages another one may read: shown where they are read, or when they begin.
        self._steering: dict[str, list[Message]] = {}
        # Messages of turns. All tabs are told of any other that is written.
        self._own_ids: deque[str] = deque(maxlen=1_000)
        self._unsettled: set[str] = set()  # turns of whose stream tabs may make something else than is stored
        self._last_end_s = float("-inf")

    def begin(self, standing: Any) -> None:
        # As the conversation stands where its feed is taken up.
        for told in standing["turns"]:
            turn = _seen(told)
            if told["steers"]:
                self._steering[turn.turn] = told["waiting"]
                continue
            self.turns[turn.turn] = turn
            self._waiting[turn.turn] = told["waiting"]
            self._own_ids.extend([turn.message_id, *turn.message_ids])
        last = standing["last"]
        if last is not None:
            self._last_end_s = self.clock() - standing["last_ms_ago"] / 1000
        self.failed = _seen(last) if last is not None and last["status"] == TurnStatus.ERROR else None

    # the list

    @property
    def head(self) -> int:
        # The place after the newest entry.
        return self.base + len(self._entries)

    def at(self, place: int) -> TurnNotice:
        return self._entries[place - self.base]

    def add(self, entry: TurnNotice) -> None:
        if entry.frame and entry.kind in ("accepted", "begun", "snapshot"):
            self._shown_at = self.head
        self._entries.append(entry)
        self._chars += len(entry.frame)
        while len(self._entries) > ENTRIES_MAX or (self._chars > CHARS_MAX and len(self._entries) > 1):
            self._chars -= len(self._entries.popleft().frame)
            self.base += 1
        self.wake()

    def wake(self) -> None:
        for each in self.attending.values():
            each()

    # what is read of the conversation

    def transcript(self) -> Deciding[list[Message]]:
        # Messages of turns that have not begun are not stored yet, and are shown all the same.
        found: list[Message] = yield (ChatTurns.transcript,)
        known = {each["id"] for each in found}
        return found + [each for told in self._waiting.values() for each in told if each["id"] not in known]

    @property
    def has_just_ended(self) -> bool:
        # A tab that comes now may have lost its line in a turn that is over.
        return self.clock() - self._last_end_s < RETURN_S

    def missed(self, turn: str) -> Deciding[ShownTurn | None]:
        # A turn whose end was not told on a line that was lost; None if it is open, or forgotten.
        if not turn or turn in self.turns:
            return None
        known: TurnStanding | None = (yield ChatTurns.standing, turn)["known"]
        return None if known is None else _seen(known)

    def show_all(self, besides: int = -1) -> Deciding[None]:
        if set(self.attending) - {besides}:
            frame = encoded(MESSAGES, messages=(yield from self.transcript()))
            self.add(TurnNotice("snapshot", frame=frame, besides=besides))

    def take(self, events: list[FeedEvent]) -> Deciding[None]:
        """Make entries of what the feed tells."""
        is_changed, written = False, set[str]()
        for event in events:
            if event["type"] == "turn-accepted" and event["steers"]:
                self._steering[event["turn"]] = event["messages"]
            elif event["type"] == "turn-accepted":
                yield from self._accepted(event["turn"], event["messages"])
            elif event["type"] == "turn-begun":
                yield from self._began(event)
            elif event["type"] == "event":
                self._streamed(event)
            elif event["type"] == "turn-ended":
                self._ended(event)
            elif event["type"] == "message":
                written.add(event["message"]["id"])
            elif event["type"] == "cleared":
                self._cleared()
                is_changed = False
            else:
                is_changed = True
        foreign = written - set(self._own_ids)
        for turn in [each for each in self.turns.values() if each.streams and each.message_id in written]:
            yield from self._look_whether_parked(turn)
        if is_changed or foreign:
            yield from self.show_all()

    def _accepted(self, turn: str, messages: list[Message]) -> Deciding[None]:
        ids = tuple(each["id"] for each in messages)
        is_overlapping = any(each.status is not TurnStatus.PARKED for each in self.turns.values())
        seen = self.turns[turn] = ShownTurn(turn, turn, TurnStatus.ACCEPTED, ids, is_overlapping=is_overlapping)
        self.failed = None
        self._waiting[turn] = messages
        self._own_ids.extend(ids)
        author, place = self.authors.get(turn, (-1, -1))
        besides = -1 if self._shown_at >= place else author  # another transcript was told over what the author shows
        is_told = bool(messages) and bool(set(self.attending) - {besides})
        frame = encoded(MESSAGES, messages=(yield from self.transcript())) if is_told else ""
        self.add(TurnNotice("accepted", seen, frame, besides, author))

    def _began(self, event: TurnBegun) -> Deciding[None]:
        turn, message_id = event["turn"], event["message_id"]
        if turn in self._steering:
            yield from self._accepted(turn, self._steering.pop(turn))
        known = self.turns.get(turn)
        if known is None:
            return
        self._own_ids.append(message_id)
        is_continuation = not message_id.startswith(f"{turn}-")
        seen = replace(known, status=TurnStatus.RUNNING, message_id=message_id, is_continuation=is_continuation)
        self.turns[turn] = seen
        frame = encoded(MESSAGES, messages=(yield from self.transcript())) if known.is_overlapping else ""
        self._waiting.pop(turn, None)
        if known.is_overlapping or is_continuation:
            self._unsettled.add(turn)
        self.add(TurnNotice("begun", seen, frame))

    def _streamed(self, event: TurnStreamed) -> None:
        known, told = self.turns.get(event["turn"]), event["event"]
        if known is None or event["event_number"] < known.next:
            return
        kind = told["type"]
        if known.status is TurnStatus.PARKED and kind not in ANSWERS:
            known = replace(known, status=TurnStatus.RUNNING, wire=f"{known.turn}~{known.next}", is_continuation=True)
            self.turns[known.turn] = known
            self._unsettled.add(known.turn)
            self.add(TurnNotice("resumed", known))
        seen = self.turns[known.turn] = replace(known, next=event["event_number"] + 1)
        if known.status is TurnStatus.PARKED:
            return
        if kind == "data-retract":
            self._unsettled.add(known.turn)
        recovering = kind == "data-attempt" or (
            kind == "data-interrupted" and told["data"].get("outcome") == "scheduled"
        )
        if seen.is_recovering != recovering:
            seen = self.turns[known.turn] = replace(seen, is_recovering=recovering)
            self.add(TurnNotice("recovering", seen, _recovering_frame(seen)))
        if (chunk := shown_chunk(told)) is not None:
            self.add(TurnNotice("chunk", seen, _chunk_frame(seen, event["event_number"], chunk)))

    def _look_whether_parked(self, turn: ShownTurn) -> Deciding[None]:
        # The answer of a turn was written, and the turn has not ended: it may wait for a person now.
        told: TurnStanding | None = (yield ChatTurns.standing, turn.turn)["known"]
        if told is not None and told["status"] == TurnStatus.PARKED and self.turns.get(turn.turn) == turn:
            parked = self.turns[turn.turn] = replace(turn, status=TurnStatus.PARKED)
            self.add(TurnNotice("parked", parked))
            self._settle(turn.turn)

    def _ended(self, event: TurnEnded) -> None:
        known = self.turns.pop(event["turn"], None)
        self._forget(event["turn"])
        if known is None:
            return
        ended = replace(known, status=TurnStatus(event["status"]), error=event["error"], is_recovering=False)
        if known.is_recovering:
            self.add(TurnNotice("recovering", frame=_recovering_frame(ended)))
        self.failed = ended if ended.status is TurnStatus.ERROR else self.failed
        self.add(TurnNotice("ended", ended))
        self._last_end_s = self.clock()
        self._settle(known.turn)

    def _forget(self, turn: str) -> None:
        for each in (self._waiting, self._steering, self.authors, self.owners):
            each.pop(turn, None)

    def _cleared(self) -> None:
        self.settle_soon()  # chunks that were under way to the tab that cleared have made a message there
        for turn in (*self.turns, *self._steering):  # one that was asked for since keeps its author
            self._forget(turn)
        self.turns.clear()
        self._unsettled.clear()
        self.failed = None
        self.add(TurnNotice("cleared", frame=encoded("cf_agent_chat_clear"), besides=self.cleared_by))
        self.cleared_by = -1

    def _settle(self, turn: str) -> None:
        # What the tabs have made of the stream may not be what is stored.
        if turn in self._unsettled:
            self._unsettled.discard(turn)
            self.settle_soon()


def _chunk_frame(turn: ShownTurn, number: int, chunk: Event, *, replay: bool = False) -> str:
    flags = {**({"continuation": True} if turn.is_continuation else {}), **({"replay": True} if replay else {})}
    return encoded(RESPONSE, id=turn.wire, body=json_text(chunk), done=False, seq=number, **flags)


def _recovering_frame(turn: ShownTurn) -> str:
    return encoded("cf_agent_chat_recovering", recovering=turn.is_recovering, id=turn.wire)


def _seen(told: TurnStanding) -> ShownTurn:
    status, turn, parked = TurnStatus(told["status"]), str(told["request_id"]), told["parked_events"]
    goes_on = parked > 0 and status is not TurnStatus.PARKED
    return ShownTurn(
        turn,
        f"{turn}~{parked}" if goes_on else turn,
        status,
        tuple(told["message_ids"]),
        told["message_id"],
        told["events"],
        told["error"],
        is_continuation=goes_on or told["is_continuation"],
        is_recovering=told["is_recovering"],
    )


# ---------------------------------------------------------------- one connection
# What one connection is told: live chunks, and on request a turn from its beginning. Whatever the client asks is answered at its place in
# the list. So a replay and the live chunks after it fit together: the replay has what is before the place, and the list goes on there.
#
#     live      the connection has had every chunk of the turn, and gets the next ones
#     held      it was told `resuming`, and gets nothing of the turn until it says so. A client that waits for no `resuming` any more never
#               says so (its probe was answered too late, or another one was heard in its place), and would show the turn as under way
#               for ever. So if the turn ends first, it is soon told the end and the transcript
#     waiting   it was told `pending`, and is told `resuming` or that there is nothing


ARRIVES_S: Final = 5.0
"""If the line is lost so soon after the end of a turn was sent, it may not have arrived."""
UNHEARD_S: Final = 0.3
"""After the end of a turn that is held, its client is told that end, if it has not asked for the turn by then."""


class Attendance:
    """One connection's part in a conversation. `missed` is a turn whose end it may not have been told. There is something to do (`step`)
    when `wake` is called."""

    def __init__(self, number: int, talk: Talk, missed: ShownTurn | None, wake: Callable[[], None]) -> None:
        self._number, self._talk, self._wake = number, talk, wake
        self._place = talk.head
        self._turns = dict(talk.turns)
        self._failed, self._missed = talk.failed, missed
        self._told_last = ("", float("-inf"))
        """The turn whose end was sent last, and when."""
        self._live: set[str] = set()  # turns
        self._held: dict[str, ShownTurn] = {}  # by the request ids of their streams
        self._announced: set[str] = set()  # streams that the client was told of by `resuming`
        self._waiting: set[str] = set()  # turns
        self._answered: set[str] = set()  # parked turns, of which the client wants the continuation
        self._owed = ""
        """The continuation that this client has caused, and not asked for yet."""
        self._asked: deque[Deciding[None]] = deque()  # answered one after the other, each at the place of then
        talk.attending[number] = wake

    # Both raise `Closed` if the client asks, and does not read.

    def ask(self, frame: JsonObject) -> None:
        is_acknowledged = frame["type"] == "cf_agent_stream_resume_ack"
        self._queue(self._replay(frame.get("id")) if is_acknowledged else self._probed(frame.get("probeId")))

    def _queue(self, step: Deciding[None]) -> None:
        if len(self._asked) >= ASKED_MAX:
            raise Closed(BEHIND, "the client asks faster than it reads; connect again to go on")
        self._answer(step)

    def _answer(self, step: Deciding[None]) -> None:
        self._asked.append(step)
        self._wake()

    def refuse(self, wire: str, why: str) -> Deciding[None]:
        # A request. Where a stream of this name is open, the refusal comes at its place there, and the end is that of the stream.
        refused = encoded(RESPONSE, id=wire, body=why, done=False, error=True)
        under_way = (*self._turns.values(), *self._talk.turns.values())
        if any(each.wire == wire and each.status is not TurnStatus.PARKED for each in under_way):
            self._queue(self._refused(wire, refused))
            return
        yield SEND, refused
        yield SEND, encoded(RESPONSE, id=wire, body="", done=True, outcome="error")

    def _refused(self, wire: str, refused: str) -> Deciding[None]:
        # To the client it ends the stream, so that is offered anew.
        yield SEND, refused
        for turn in [each for each in self._turns.values() if each.wire == wire]:
            if turn.streams:
                yield from self._resume(turn)
            else:
                self._live.add(turn.turn)

    def answered(self, turn: str) -> None:
        self._answered.add(turn)
        self._talk.owners[turn] = self._number

    def leave(self) -> str:
        # Returns the turn whose end the client has not been told, or may not have been. Clients know an end that comes twice.
        self._talk.attending.pop(self._number, None)
        under_way = [each.turn for each in self._turns.values() if each.turn in self._live or each.wire in self._held]
        turn, told_at_s = self._told_last
        is_fresh = self._talk.clock() - told_at_s < ARRIVES_S
        return next(iter(under_way), turn if is_fresh else "")

    def step(self) -> Deciding[None] | None:
        # What is to be done next, after `announce`. Raises `Closed` if the client reads too slowly.
        if self._place < self._talk.base:
            raise Closed(BEHIND, "the client reads too slowly; connect again to go on")
        if self._asked:
            return self._asked.popleft()
        if self._place == self._talk.head:
            return None
        self._place += 1
        return self._tell(self._talk.at(self._place - 1))

    def remind(self) -> Deciding[None]:
        for turn in sorted(self._waiting):
            if turn in self._waiting:
                yield SEND, encoded(PENDING, id=turn)

    # what the client asks

    def announce(self) -> Deciding[None]:
        for turn in list(self._turns.values()):
            if turn.streams:
                yield from self._resume(turn)
            elif turn.status is TurnStatus.ACCEPTED:
                self._waiting.add(turn.turn)
                yield SEND, encoded(PENDING, id=turn.turn)
            if turn.is_recovering:
                yield SEND, _recovering_frame(turn)
        if self._missed is not None:
            yield from self._resume(self._missed)
            if not self._missed.streams:
                yield from self._ended_unheard(self._missed)

    def _probed(self, probe_id: object) -> Deciding[None]:
        probe = {"probeId": probe_id} if isinstance(probe_id, str) else {}
        streaming = next((each for each in self._turns.values() if each.streams), None)
        accepted = next((each for each in self._turns.values() if each.status is TurnStatus.ACCEPTED), None)
        parked = (each for each in self._turns.values() if each.status is TurnStatus.PARKED)
        continuing = next((each for each in parked if each.turn in self._answered), None)
        owner = self._talk.owners.get(streaming.turn) if streaming is not None and streaming.is_continuation else None
        is_owned = owner is not None and owner != self._number and owner in self._talk.attending
        missed = self._missed if self._missed is not None and self._missed.wire in self._held else None
        unseen = self._held.get(self._owed) or missed or self._failed
        now = Situation(bool(streaming), is_owned, bool(continuing), bool(unseen), bool(accepted))
        match probe_answer(now), streaming or unseen, continuing or accepted:
            case ProbeAnswer.OWNED, _, _:
                yield SEND, encoded(NONE, reason="continuation-owned", **probe)
            case ProbeAnswer.RESUMING, ShownTurn() as turn, _:
                yield from self._resume(turn, **probe)
            case ProbeAnswer.PENDING, _, ShownTurn() as turn:
                self._waiting.add(turn.turn)
                yield SEND, encoded(PENDING, id=turn.wire, **probe)
            case _:
                yield SEND, encoded(NONE, reason="idle", **probe)

    def _resume(self, turn: ShownTurn, **probe: str) -> Deciding[None]:
        # From here on nothing of the turn is sent until the client acknowledges.
        self._live.discard(turn.turn)
        self._held[turn.wire], self._owed = turn, ""
        self._announced.add(turn.wire)
        yield SEND, encoded("cf_agent_stream_resuming", id=turn.wire, **probe)

    def _replay(self, wire: object) -> Deciding[None]:
        nothing = encoded(RESPONSE, id=wire, body="", done=True, replay=True)
        turn = self._held.pop(wire, None) if isinstance(wire, str) else None
        self._announced.discard(turn.wire if turn is not None else "")
        if turn is None:
            if not any(each.wire == wire for each in self._turns.values()):
                yield SEND, nothing
            return
        try:
            yield from self._send_kept(turn, replay=True)
        except BadRequest as problem:
            if problem.field != "request_id":
                raise
            yield SEND, nothing
            return
        if turn.streams:
            self._live.add(turn.turn)
            yield SEND, encoded(RESPONSE, id=turn.wire, body="", done=False, replay=True, replayComplete=True)
        else:
            yield from self._send_end(turn, replay=True)
            if turn.is_continuation:
                self._talk.settle_soon()

    def _ended_unheard(self, turn: ShownTurn) -> Deciding[None]:
        # The client was offered the stream, and has not asked for it.
        if turn.wire in self._held and turn.wire in self._announced:
            yield ChatLine.later, UNHEARD_S, self._answer, self._end_unheard(turn.wire)

    def _end_unheard(self, wire: str) -> Deciding[None]:
        # If the client asks for the turn after all, it is told whole: clients know an end that comes twice.
        turn = self._held.get(wire)
        if turn is not None and not turn.streams:
            yield from self._send_end(turn, replay=True)
            yield SEND, encoded(MESSAGES, messages=(yield from self._talk.transcript()))

    def _send_kept(self, turn: ShownTurn, *, replay: bool) -> Deciding[None]:
        # Raises `BadRequest` if the turn is forgotten.
        first, upcoming = -1, 0
        while first < upcoming < turn.next:
            page: TurnPage = yield ChatLine.call, "_perdure_follow_turn", turn.turn, upcoming
            first, upcoming = upcoming, page["next"]
            for number, event in enumerate(page["events"], first):
                if number < turn.next and (chunk := shown_chunk(event)) is not None:
                    yield SEND, _chunk_frame(turn, number, chunk, replay=replay)

    def _send_end(self, turn: ShownTurn, *, replay: bool = False) -> Deciding[None]:
        self._told_last = (turn.turn, self._talk.clock())
        flags: JsonObject = {"replay": True} if replay else {}
        if turn.is_continuation:
            flags["continuation"] = True
        if turn.status is TurnStatus.ERROR:
            yield SEND, encoded(RESPONSE, id=turn.wire, body=turn.error, done=replay, error=True, **flags)
        if turn.status is not TurnStatus.ERROR or not replay:
            ids, outcome = list(turn.message_ids), OUTCOMES[turn.status]
            yield SEND, encoded(RESPONSE, id=turn.wire, body="", done=True, messageIds=ids, outcome=outcome, **flags)

    # what happens

    def _tell(self, entry: TurnNotice) -> Deciding[None]:
        turn = entry.turn
        if turn is not None:
            self._turns[turn.turn] = turn
            if turn.wire in self._held:
                self._held[turn.wire] = turn
        if entry.kind == "chunk":
            if turn is not None and turn.turn in self._live:
                yield SEND, entry.frame
        elif entry.kind == "cleared":
            yield from self._clear(entry)
        elif turn is not None and entry.kind != "recovering":
            yield from self._moves[entry.kind](self, entry, turn)
        elif entry.besides != self._number:
            yield SEND, entry.frame

    def _accepted(self, entry: TurnNotice, turn: ShownTurn) -> Deciding[None]:
        self._failed = None
        if entry.author == self._number:
            self._live.add(turn.turn)
        if entry.frame and entry.besides != self._number:
            yield SEND, entry.frame

    def _begun(self, entry: TurnNotice, turn: ShownTurn) -> Deciding[None]:
        if entry.frame:
            yield SEND, entry.frame
        if turn.turn in self._waiting:
            self._waiting.discard(turn.turn)
            yield from self._resume(turn)
        elif turn.wire not in self._held:
            self._live.add(turn.turn)

    def _resumed(self, _entry: TurnNotice, turn: ShownTurn) -> Deciding[None]:
        # The client that answered asks for its continuation; the others get the message from its beginning again.
        if turn.turn in self._waiting:
            self._waiting.discard(turn.turn)
            yield from self._resume(turn)
        elif turn.turn in self._answered:
            self._held[turn.wire], self._owed = turn, turn.wire
        else:
            self._live.add(turn.turn)
            yield from self._send_kept(turn, replay=False)
        self._answered.discard(turn.turn)

    def _ended(self, entry: TurnNotice, turn: ShownTurn) -> Deciding[None]:
        self._turns.pop(turn.turn, None)
        self._failed = turn if turn.status is TurnStatus.ERROR else self._failed
        self._answered.discard(turn.turn)
        yield from self._parked(entry, turn)

    def _parked(self, _entry: TurnNotice, turn: ShownTurn) -> Deciding[None]:
        yield from self._ended_unheard(turn)
        if turn.turn in self._waiting:
            self._waiting.discard(turn.turn)
            yield SEND, encoded(NONE, reason="idle")
        if turn.turn in self._live:
            self._live.discard(turn.turn)
            yield from self._send_end(turn)

    def _clear(self, entry: TurnNotice) -> Deciding[None]:
        for turn in [each for each in self._turns.values() if each.turn in self._live]:
            yield SEND, encoded(RESPONSE, id=turn.wire, body="", done=True, outcome="aborted")
        if self._waiting:
            yield SEND, encoded(NONE, reason="idle")
        for each in (self._turns, self._live, self._waiting, self._answered):
            each.clear()
        self._failed = None
        if entry.besides != self._number:
            yield SEND, entry.frame

    _moves: ClassVar[dict[str, Callable[[Attendance, TurnNotice, ShownTurn], Deciding[None]]]] = {
        "accepted": _accepted,
        "begun": _begun,
        "resumed": _resumed,
        "parked": _parked,
        "ended": _ended,
    }
