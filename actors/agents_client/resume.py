"""What one connection is told of a conversation: live chunks, and on request a turn from its beginning (client protocols A.7).

A connection has a place in the list of entries (`WatchedChat`) and its own picture of the turns there. Whatever the client asks is
answered at that place. So a replay and the live chunks after it fit together: the replay has what is before the place, and the list goes
on there.

    live      the connection has had every chunk of the turn, and gets the next ones
    held      it was told `resuming`, and gets nothing of the turn until it says so. A client that waits for no `resuming` any more never
              says so (its probe was answered too late, or another one was heard in its place), and would show the turn as under way
              for ever. So if the turn ends first, it is soon told the end and the transcript
    waiting   it was told `pending`, and is told `resuming` or that there is nothing
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, Final

from perdure.actors.agents_client.line import BEHIND, ClientSocket, Closed
from perdure.actors.agents_client.talk import (
    MESSAGES,
    RESPONSE,
    ShownTurn,
    TurnNotice,
    WatchedChat,
    chunk_frame,
    recovering_frame,
)
from perdure.actors.tasks import Pending
from perdure.ledger import BadRequest
from perdure.policies import OUTCOMES, JsonObject, ProbeAnswer, Situation, TurnStatus, probe_answer

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
        """The turn whose end the client has not been told, or may not have been, if there is one. Clients know an end that comes twice."""
        under_way = [each.turn for each in self._turns.values() if each.turn in self._live or each.wire in self._held]
        turn, told_at_s = self._told_last
        is_fresh = asyncio.get_running_loop().time() - told_at_s < ARRIVES_S
        return next(iter(under_way), turn if is_fresh else "")

    async def serve(self) -> None:
        """Tell what happens, until the connection ends. Raises `Closed` if the client reads too slowly."""
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
                await self._line.send_text(recovering_frame(turn))
        if self._missed is not None:
            await self._resume(self._missed)
            if not self._missed.streams:
                self._ended_unheard(self._missed)

    async def _reply(self, frame: dict[str, Any]) -> None:
        if frame["type"] == "cf_agent_stream_resume_ack":
            await self._replay(frame.get("id"))
            return
        if frame["type"] == UNHEARD:
            await self._end_unheard(frame["id"])
            return
        probe = {"probeId": frame["probeId"]} if isinstance(frame.get("probeId"), str) else {}
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
            await self._line.send_text(chunk_frame(turn, number, chunk, replay=replay))

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
