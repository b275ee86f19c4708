"""A watched conversation: one follower of its feed for each gateway, shared by all connections to it.

The follower makes an entry of each event that connections may want to know of, with its frame encoded once. A connection has a place in the
list of entries, and its own picture of the turns there. So it may be slow without costing memory; one that has fallen behind the oldest
entry is closed, comes again, and resumes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from perdure.actors.agents_client.line import encoded, json_text
from perdure.actors.chat.feed import FeedEvent, TurnAccepted, TurnBegun, TurnEnded, TurnStreamed
from perdure.actors.chat.followers import Caller, Rest, TurnPages
from perdure.actors.chat.turn import TurnStanding
from perdure.actors.code.author_call import tried
from perdure.actors.gateway.chat_turns import ChatTurns
from perdure.actors.gateway.shared import Watched
from perdure.actors.tasks import Pending, awaited
from perdure.policies import Event, Message, TurnStatus, shown_chunk

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
    """Which connection has asked for a turn, and the place of the list at which it did."""

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
        """The place after the newest entry."""
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
        """Whether a tab that comes now may have lost its line in a turn that is over."""
        return asyncio.get_running_loop().time() - self._last_end_s < RETURN_S

    async def missed(self, turn: str) -> ShownTurn | None:
        """A turn whose end was not told on a line that was lost; None if it is open, or forgotten."""
        if not turn or turn in self.turns:
            return None
        known = (await self.service.standing(turn))["known"]
        return None if known is None else _seen(known)

    async def kept(self, turn: str, last: int) -> AsyncGenerator[tuple[int, Event], None]:
        """The chunks of a turn before a number, each with its own. Raises `BadRequest` if the turn is forgotten."""
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
        if seen.is_recovering != (recovering := _recovers(told)):
            seen = self.turns[known.turn] = replace(seen, is_recovering=recovering)
            self.add(TurnNotice("recovering", seen, recovering_frame(seen)))
        chunk = shown_chunk(told)
        if chunk is not None:
            self.add(TurnNotice("chunk", seen, chunk_frame(seen, event["event_number"], chunk)))

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
            self.add(TurnNotice("recovering", frame=recovering_frame(replace(known, is_recovering=False))))
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


def chunk_frame(turn: ShownTurn, number: int, chunk: Event, *, replay: bool = False) -> str:
    flags = {**({"continuation": True} if turn.is_continuation else {}), **({"replay": True} if replay else {})}
    return encoded(RESPONSE, id=turn.wire, body=json_text(chunk), done=False, seq=number, **flags)


def recovering_frame(turn: ShownTurn) -> str:
    return encoded("cf_agent_chat_recovering", recovering=turn.is_recovering, id=turn.wire)


def _recovers(event: Event) -> bool:
    if event["type"] == "data-interrupted":
        return bool(event["data"].get("outcome") == "scheduled")
    return event["type"] == "data-attempt"


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
