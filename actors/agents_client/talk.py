"""A watched conversation, and what each connection is told of it (client protocols A.7).

One follower of its feed for each gateway is shared by all connections. It makes an entry of each event that connections may want to know
of, with its frame encoded once. A connection has a place in the list of entries, and its own picture of the turns there. So it may be slow
without costing memory; one that has fallen behind the oldest entry is closed, comes again, and resumes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Final, NamedTuple

from perdure.actors.agents_client.line import BEHIND, ClientSocket, Closed, encoded, json_text
from perdure.actors.chat.feed import FeedEvent, TurnAccepted, TurnBegun, TurnEnded, TurnStreamed
from perdure.actors.chat.followers import Caller, Rest, TurnPages
from perdure.actors.chat.turn import TurnStanding
from perdure.actors.code.author_call import tried
from perdure.actors.gateway.chat_turns import ChatTurns
from perdure.actors.gateway.feeds import Watched
from perdure.actors.tasks import Pending, awaited
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

RESPONSE: Final = "cf_agent_use_chat_response"
MESSAGES: Final = "cf_agent_chat_messages"
ENTRIES_MAX: Final = 20_000
CHARS_MAX: Final = 32_000_000
SETTLE_S: Final = 0.15
"""A tab works off its queue of chunks after the end of a stream; then it takes the transcript as it is told (client protocols A.8)."""
RETURN_S: Final = 60.0
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


class Author(NamedTuple):
    # Which connection has asked for a turn, and the place of the list at which it did.
    connection: int
    place: int


class WatchedChat(Watched):
    """A watched conversation."""

    def __init__(self, caller: Caller) -> None:
        super().__init__()
        self.caller, self.service = caller, ChatTurns(caller)
        self.turns: dict[str, ShownTurn] = {}
        self.failed: ShownTurn | None = None
        self.authors: dict[str, Author] = {}
        self._shown_at = -1  # the place of the newest entry that tells a transcript
        self.owners: dict[str, int] = {}  # by turns: the connection that wants the continuation
        self.attending: dict[int, asyncio.Event] = {}  # connections, each with what wakes it
        self.cleared_by = -1  # the connection whose clear is under way: it shows nothing already
        self.problem: BaseException | None = None
        self.base = 0  # the place of the oldest entry
        self._entries: deque[TurnNotice] = deque()
        self._chars = 0
        self._waiting: dict[str, list[Message]] = {}  # the messages of turns that have not begun
        # Turns whose messages another one may read: shown where they are read, or when they begin.
        self._steering: dict[str, TurnAccepted] = {}
        # Messages of turns. All tabs are told of any other that is written.
        self._own_ids: deque[str] = deque(maxlen=1_000)
        self._unsettled: set[str] = set()  # turns of whose stream tabs may make something else than is stored
        self._jobs: set[asyncio.Task[None]] = set()
        self._first = 0  # the event of the feed that is asked for next
        self._last_end_s = float("-inf")

    # beginning and end

    async def _begun(self) -> Pending[None]:
        standing = await self.service.standing()
        self._first = standing["next"]
        for told in standing["turns"]:
            turn = _seen(told)
            if told["steers"]:
                self._steering[turn.turn] = _accepted(told)
                continue
            self.turns[turn.turn] = turn
            self._waiting[turn.turn] = told["waiting"]
            self._own_ids.extend([turn.message_id, *turn.message_ids])
        last = standing["last"]
        if last is not None:
            self._last_end_s = asyncio.get_running_loop().time() - standing["last_ms_ago"] / 1000
        self.failed = _seen(last) if last is not None and last["status"] == TurnStatus.ERROR else None
        return self._follow()

    async def stop(self) -> None:
        for each in self._jobs:
            each.cancel()
        await super().stop()
        await asyncio.gather(*self._jobs, return_exceptions=True)

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
            each.set()

    # what is read of the conversation

    async def transcript(self) -> list[Message]:
        # Messages of turns that have not begun are not stored yet, and are shown all the same.
        found = await self.service.transcript()
        known = {each["id"] for each in found}
        return found + [each for told in self._waiting.values() for each in told if each["id"] not in known]

    @property
    def has_just_ended(self) -> bool:
        # A tab that comes now may have lost its line in a turn that is over.
        return asyncio.get_running_loop().time() - self._last_end_s < RETURN_S

    async def missed(self, turn: str) -> ShownTurn | None:
        # A turn whose end was not told on a line that was lost; None if it is open, or forgotten.
        if not turn or turn in self.turns:
            return None
        known = (await self.service.standing(turn))["known"]
        return None if known is None else _seen(known)

    async def kept(self, turn: str, last: int) -> AsyncGenerator[tuple[int, Event], None]:
        # The chunks of a turn before a number, each with its own. Raises `BadRequest` if the turn is forgotten.
        pages, first = TurnPages(self.caller.call, turn), -1
        while first < pages.next_event < last:
            first = pages.next_event
            for number, event in enumerate((await pages.next())["events"], first):
                chunk = shown_chunk(event)
                if chunk is not None and number < last:
                    yield number, chunk

    async def show_all(self, besides: int = -1) -> None:
        if set(self.attending) - {besides}:
            self.add(TurnNotice("snapshot", frame=encoded(MESSAGES, messages=await self.transcript()), besides=besides))

    # the feed

    async def _follow(self) -> None:
        _, self.problem = await tried(self._take_all())
        self.wake()

    async def _take_all(self) -> None:
        rest = Rest(self.caller)
        while True:
            page = await rest.ask("_perdure_feed", self._first)
            await self._take(page["events"])
            self._first = page["next"]
            await rest.after(is_resting=page["is_resting"])

    async def _take(self, events: list[FeedEvent]) -> None:
        is_changed, written = False, set()
        for event in events:
            if event["type"] == "turn-accepted":
                await self._accepted(event)
            elif event["type"] == "turn-begun":
                await self._began(event)
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
            await self._look_whether_parked(turn)
        if is_changed or foreign:
            await self.show_all()

    async def _accepted(self, event: TurnAccepted) -> None:
        turn, messages = event["turn"], event["messages"]
        if event["steers"]:
            self._steering[turn] = event
            return
        ids = tuple(each["id"] for each in messages)
        is_overlapping = any(each.status is not TurnStatus.PARKED for each in self.turns.values())
        seen = self.turns[turn] = ShownTurn(turn, turn, TurnStatus.ACCEPTED, ids, is_overlapping=is_overlapping)
        self.failed = None
        self._waiting[turn] = messages
        self._own_ids.extend(ids)
        author, place = self.authors.get(turn, Author(-1, -1))
        besides = -1 if self._shown_at >= place else author  # another transcript was told over what the author shows
        is_told = bool(messages) and bool(set(self.attending) - {besides})
        frame = encoded(MESSAGES, messages=await self.transcript()) if is_told else ""
        self.add(TurnNotice("accepted", seen, frame, besides, author))

    async def _began(self, event: TurnBegun) -> None:
        if event["turn"] in self._steering:
            await self._accepted({**self._steering.pop(event["turn"]), "steers": ""})
        known = self.turns.get(event["turn"])
        if known is None:
            return
        self._own_ids.append(event["message_id"])
        is_continuation = not event["message_id"].startswith(f"{known.turn}-")
        seen = replace(
            known, status=TurnStatus.RUNNING, message_id=event["message_id"], is_continuation=is_continuation
        )
        self.turns[known.turn] = seen
        frame = encoded(MESSAGES, messages=await self.transcript()) if known.is_overlapping else ""
        self._waiting.pop(known.turn, None)
        if known.is_overlapping or is_continuation:
            self._unsettled.add(known.turn)
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
        recovering = (
            bool(told["data"].get("outcome") == "scheduled") if kind == "data-interrupted" else kind == "data-attempt"
        )
        if seen.is_recovering != recovering:
            seen = self.turns[known.turn] = replace(seen, is_recovering=recovering)
            self.add(TurnNotice("recovering", seen, _recovering_frame(seen)))
        chunk = shown_chunk(told)
        if chunk is not None:
            self.add(TurnNotice("chunk", seen, _chunk_frame(seen, event["event_number"], chunk)))

    async def _look_whether_parked(self, turn: ShownTurn) -> None:
        # The answer of a turn was written, and the turn has not ended: it may wait for a person now.
        told = (await self.service.standing(turn.turn))["known"]
        if told is not None and told["status"] == TurnStatus.PARKED and self.turns.get(turn.turn) == turn:
            parked = self.turns[turn.turn] = replace(turn, status=TurnStatus.PARKED)
            self.add(TurnNotice("parked", parked))
            self._settle(turn.turn)

    def _ended(self, event: TurnEnded) -> None:
        known = self.turns.pop(event["turn"], None)
        self._waiting.pop(event["turn"], None)
        self._steering.pop(event["turn"], None)
        if known is None:
            return
        status = TurnStatus(event["status"])
        if known.is_recovering:
            self.add(TurnNotice("recovering", frame=_recovering_frame(replace(known, is_recovering=False))))
        ended = replace(known, status=status, error=event["error"], is_recovering=False)
        self.failed = ended if status is TurnStatus.ERROR else self.failed
        self.add(TurnNotice("ended", ended))
        self._last_end_s = asyncio.get_running_loop().time()
        self.authors.pop(known.turn, None)
        self.owners.pop(known.turn, None)
        self._settle(known.turn)

    def _cleared(self) -> None:
        self.settle_soon()  # chunks that were under way to the tab that cleared have made a message there
        self.turns.clear()
        self._waiting.clear()
        self._steering.clear()
        self._unsettled.clear()
        self.failed = None
        self.add(TurnNotice("cleared", frame=encoded("cf_agent_chat_clear"), besides=self.cleared_by))
        self.cleared_by = -1

    # afterwards

    def _settle(self, turn: str) -> None:
        # What the tabs have made of the stream may not be what is stored.
        if turn in self._unsettled:
            self._unsettled.discard(turn)
            self.settle_soon()

    def settle_soon(self) -> None:
        # An error of it ends the connections, as one of the following does.
        task = awaited(self._settled())
        self._jobs.add(task)
        task.add_done_callback(self._over)

    async def _settled(self) -> None:
        await asyncio.sleep(SETTLE_S)
        await self.show_all()

    def _over(self, task: asyncio.Task[None]) -> None:
        self._jobs.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.problem = self.problem or task.exception()
            self.wake()


def _chunk_frame(turn: ShownTurn, number: int, chunk: Event, *, replay: bool = False) -> str:
    flags = {**({"continuation": True} if turn.is_continuation else {}), **({"replay": True} if replay else {})}
    return encoded(RESPONSE, id=turn.wire, body=json_text(chunk), done=False, seq=number, **flags)


def _recovering_frame(turn: ShownTurn) -> str:
    return encoded("cf_agent_chat_recovering", recovering=turn.is_recovering, id=turn.wire)


def _accepted(told: TurnStanding) -> TurnAccepted:
    return {
        "number": 0,
        "type": "turn-accepted",
        "turn": told["request_id"],
        "trigger": told["trigger"],
        "metadata": None,
        "messages": told["waiting"],
        "steers": told["steers"],
        "at_ms": 0,
    }


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
UNHEARD: Final = "unheard"
PENDING_AGAIN_S: Final = 45.0
"""A client that was told `pending` waits a minute."""


class Attendance:
    """One connection's part in a conversation."""

    def __init__(self, line: ClientSocket, talk: WatchedChat, missed: ShownTurn | None) -> None:
        self._line, self._talk = line, talk
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
        self._asked: deque[JsonObject] = deque()  # answered one after the other, each at the place of then
        self._woken = talk.attending[line.number] = asyncio.Event()

    def leave(self) -> None:
        self._talk.attending.pop(self._line.number, None)

    def ask(self, frame: JsonObject) -> None:
        self._asked.append(frame)
        self._woken.set()

    def answered(self, turn: str) -> None:
        self._answered.add(turn)
        self._talk.owners[turn] = self._line.number

    @property
    def untold(self) -> str:
        # The turn whose end the client has not been told, or may not have been. Clients know an end that comes twice.
        under_way = [each.turn for each in self._turns.values() if each.turn in self._live or each.wire in self._held]
        turn, told_at_s = self._told_last
        is_fresh = asyncio.get_running_loop().time() - told_at_s < ARRIVES_S
        return next(iter(under_way), turn if is_fresh else "")

    async def serve(self) -> None:
        # Until the connection ends. Raises `Closed` if the client reads too slowly.
        await self._announce()
        while True:
            self._woken.clear()
            if self._place < self._talk.base:
                raise Closed(BEHIND, "the client reads too slowly; connect again to go on")
            if self._asked:
                await self._reply(self._asked.popleft())
            elif self._place < self._talk.head:
                entry = self._talk.at(self._place)
                self._place += 1
                await self._tell(entry)
            elif self._talk.problem is not None:
                raise self._talk.problem
            else:
                await self._woken.wait()

    async def remind(self) -> None:
        while True:
            await asyncio.sleep(PENDING_AGAIN_S)
            for turn in sorted(self._waiting):
                if turn in self._waiting:
                    await self._line.send("cf_agent_stream_pending", id=turn)

    # what the client asks

    async def _announce(self) -> None:
        for turn in list(self._turns.values()):
            if turn.streams:
                await self._resume(turn)
            elif turn.status is TurnStatus.ACCEPTED:
                self._waiting.add(turn.turn)
                await self._line.send("cf_agent_stream_pending", id=turn.turn)
            if turn.is_recovering:
                await self._line.send_text(_recovering_frame(turn))
        if self._missed is not None:
            await self._resume(self._missed)
            if not self._missed.streams:
                self._ended_unheard(self._missed)

    async def _reply(self, frame: JsonObject) -> None:
        if frame["type"] == "cf_agent_stream_resume_ack":
            await self._replay(frame.get("id"))
            return
        if frame["type"] == UNHEARD:
            await self._end_unheard(str(frame["id"]))
            return
        probe_id = frame.get("probeId")
        probe = {"probeId": probe_id} if isinstance(probe_id, str) else {}
        streaming = next((each for each in self._turns.values() if each.streams), None)
        accepted = next((each for each in self._turns.values() if each.status is TurnStatus.ACCEPTED), None)
        parked = (each for each in self._turns.values() if each.status is TurnStatus.PARKED)
        continuing = next((each for each in parked if each.turn in self._answered), None)
        owner = self._talk.owners.get(streaming.turn) if streaming is not None and streaming.is_continuation else None
        is_owned = owner is not None and owner != self._line.number and owner in self._talk.attending
        missed = self._missed if self._missed is not None and self._missed.wire in self._held else None
        unseen = self._held.get(self._owed) or missed or self._failed
        now = Situation(
            streaming is not None, is_owned, continuing is not None, unseen is not None, accepted is not None
        )
        match probe_answer(now):
            case ProbeAnswer.OWNED:
                await self._line.send("cf_agent_stream_resume_none", reason="continuation-owned", **probe)
            case ProbeAnswer.RESUMING:
                turn = streaming or unseen
                assert turn is not None
                await self._resume(turn, **probe)
            case ProbeAnswer.PENDING:
                turn = continuing or accepted
                assert turn is not None
                self._waiting.add(turn.turn)
                await self._line.send("cf_agent_stream_pending", id=turn.wire, **probe)
            case ProbeAnswer.IDLE:
                await self._line.send("cf_agent_stream_resume_none", reason="idle", **probe)

    async def _resume(self, turn: ShownTurn, **probe: str) -> None:
        # From here on nothing of the turn is sent until the client acknowledges.
        self._live.discard(turn.turn)
        self._held[turn.wire], self._owed = turn, ""
        self._announced.add(turn.wire)
        await self._line.send("cf_agent_stream_resuming", id=turn.wire, **probe)

    async def _replay(self, wire: object) -> None:
        held = self._held.pop(wire, None) if isinstance(wire, str) else None
        if held is None:
            if not any(turn.wire == wire for turn in self._turns.values()):
                await self._line.send(RESPONSE, id=wire, body="", done=True, replay=True)
            return
        turn = self._turns.get(held.turn)
        turn = turn if turn is not None and turn.wire == wire else held
        try:
            await self._send_kept(turn, replay=True)
        except BadRequest as problem:
            if problem.field != "request_id":
                raise
            await self._line.send(RESPONSE, id=turn.wire, body="", done=True, replay=True)
            return
        if turn.streams:
            self._live.add(turn.turn)
            await self._line.send(RESPONSE, id=turn.wire, body="", done=False, replay=True, replayComplete=True)
        else:
            await self._send_end(turn, replay=True)
            if turn.is_continuation:
                self._talk.settle_soon()

    def _ended_unheard(self, turn: ShownTurn) -> None:
        # The client was offered the stream, and has not asked for it.
        if turn.wire in self._held and turn.wire in self._announced:
            unheard: JsonObject = {"type": UNHEARD, "id": turn.wire}
            asyncio.get_running_loop().call_later(UNHEARD_S, self.ask, unheard)

    async def _end_unheard(self, wire: str) -> None:
        # If the client asks for the turn after all, it is told whole: clients know an end that comes twice.
        turn = self._held.get(wire)
        if turn is None or turn.streams:
            return
        await self._send_end(turn, replay=True)
        await self._line.send(MESSAGES, messages=await self._talk.transcript())

    async def _send_kept(self, turn: ShownTurn, *, replay: bool) -> None:
        async for number, chunk in self._talk.kept(turn.turn, turn.next):
            await self._line.send_text(_chunk_frame(turn, number, chunk, replay=replay))

    async def _send_end(self, turn: ShownTurn, *, replay: bool = False) -> None:
        self._told_last = (turn.turn, asyncio.get_running_loop().time())
        flags: JsonObject = {"replay": True} if replay else {}
        if turn.is_continuation:
            flags["continuation"] = True
        if turn.status is TurnStatus.ERROR and replay:
            await self._line.send(RESPONSE, id=turn.wire, body=turn.error, done=True, error=True, **flags)
            return
        if turn.status is TurnStatus.ERROR:
            await self._line.send(RESPONSE, id=turn.wire, body=turn.error, done=False, error=True, **flags)
        ids, outcome = list(turn.message_ids), OUTCOMES[turn.status]
        await self._line.send(RESPONSE, id=turn.wire, body="", done=True, messageIds=ids, outcome=outcome, **flags)

    # what happens

    async def _tell(self, entry: TurnNotice) -> None:
        turn = entry.turn
        if turn is not None:
            self._turns[turn.turn] = turn
            if turn.wire in self._held:
                self._held[turn.wire] = turn
        if entry.kind == "chunk":
            if turn is not None and turn.turn in self._live:
                await self._line.send_text(entry.frame)
        elif entry.kind == "cleared":
            await self._clear(entry)
        elif turn is not None and entry.kind != "recovering":
            await self._moves[entry.kind](self, entry, turn)
        elif entry.besides != self._line.number:
            await self._line.send_text(entry.frame)

    async def _accepted(self, entry: TurnNotice, turn: ShownTurn) -> None:
        self._failed = None
        if entry.author == self._line.number:
            self._live.add(turn.turn)
        if entry.frame and entry.besides != self._line.number:
            await self._line.send_text(entry.frame)

    async def _begun(self, entry: TurnNotice, turn: ShownTurn) -> None:
        if entry.frame:
            await self._line.send_text(entry.frame)
        if turn.turn in self._waiting:
            self._waiting.discard(turn.turn)
            await self._resume(turn)
        elif turn.wire not in self._held:
            self._live.add(turn.turn)

    async def _resumed(self, _entry: TurnNotice, turn: ShownTurn) -> None:
        # The client that answered asks for its continuation; the others get the message from its beginning again.
        if turn.turn in self._waiting:
            self._waiting.discard(turn.turn)
            await self._resume(turn)
        elif turn.turn in self._answered:
            self._held[turn.wire], self._owed = turn, turn.wire
        else:
            self._live.add(turn.turn)
            await self._send_kept(turn, replay=False)
        self._answered.discard(turn.turn)

    async def _parked(self, _entry: TurnNotice, turn: ShownTurn) -> None:
        self._ended_unheard(turn)
        if turn.turn in self._live:
            self._live.discard(turn.turn)
            await self._send_end(turn)

    async def _ended(self, _entry: TurnNotice, turn: ShownTurn) -> None:
        self._turns.pop(turn.turn, None)
        self._failed = turn if turn.status is TurnStatus.ERROR else self._failed
        self._answered.discard(turn.turn)
        self._ended_unheard(turn)
        if turn.turn in self._waiting:
            self._waiting.discard(turn.turn)
            await self._line.send("cf_agent_stream_resume_none", reason="idle")
        if turn.turn in self._live:
            self._live.discard(turn.turn)
            await self._send_end(turn)

    async def _clear(self, entry: TurnNotice) -> None:
        for turn in [each for each in self._turns.values() if each.turn in self._live]:
            await self._line.send(RESPONSE, id=turn.wire, body="", done=True, outcome="aborted")
        if self._waiting:
            await self._line.send("cf_agent_stream_resume_none", reason="idle")
        for each in (self._turns, self._live, self._waiting, self._answered):
            each.clear()
        self._failed = None
        if entry.besides != self._line.number:
            await self._line.send_text(entry.frame)

    _moves: ClassVar[dict[str, Callable[[Attendance, TurnNotice, ShownTurn], Pending[None]]]] = {
        "accepted": _accepted,
        "begun": _begun,
        "resumed": _resumed,
        "parked": _parked,
        "ended": _ended,
    }
