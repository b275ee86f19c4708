"""The turns of one chat agent: accepted, played one after the other, ended exactly once.

Everything that asks for an exchange comes through `accept`, which makes the turn durable and lets the drain know. The drain is one task;
it plays the oldest turn that is not waiting for a person. So there are never two turns at a time, whatever calls, handlers and deaths
interleave, and a recovery takes its turn's own place in the queue: nothing can run on top of it or before it (spec W-10).

`wake` is all that recovery needs after a death: the turns that have not ended are found by their rows and go on in the same drain, never in
the start of the agent (spec W-19).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from perdure.actors.chat.chat_hooks import ChatHooks
from perdure.actors.chat.conversation_state import Floor
from perdure.actors.chat.deadlines import Deadlines
from perdure.actors.chat.history import History
from perdure.actors.chat.outcome import Outcome
from perdure.actors.chat.overlapping import Crowd
from perdure.actors.chat.play import Play
from perdure.actors.chat.repeats import Repeats
from perdure.actors.chat.store import Message
from perdure.actors.chat.stream import batch, merged
from perdure.actors.chat.turn import Turn
from perdure.actors.chat.turn_end_hooks import Endings
from perdure.actors.chat.turn_errors import worded
from perdure.actors.chat.turn_recovery import Rescue
from perdure.actors.chat.turn_views import Views
from perdure.actors.code.author_call import tried
from perdure.actors.host.tenant import Tenant
from perdure.actors.life.activity import ACTIVITY, Activity
from perdure.actors.life.run_context import RunContext
from perdure.ledger import BadRequest, ConflictingRequest, StorageError
from perdure.policies import TurnEvent, TurnStatus

AGAIN_S = 5.0


class Turns(Floor):
    """The turns of one chat agent, in one life of it.

    Args:
        restart: begins with the conversation again, from what is durable.
    """

    def __init__(self, agent: ChatHooks, tenant: Tenant, restart: Callable[[], None]) -> None:
        super().__init__(agent, tenant)
        self.history = History(self)
        self.views = Views(self, self.history, self._is_behind)
        self.crowd = Crowd(self, self.views)
        self.deadlines = Deadlines(self, self.close)
        self.playing: Play | None = None
        self._rescue = Rescue(self, self.history)
        self._endings = Endings(agent, tenant)
        self._restart = restart
        self._ends: dict[str, list[asyncio.Future[Turn]]] = {}
        self._stopping: set[str] = set()
        self._number = 0
        self._drain: asyncio.Task[None] | None = None

    # accepting

    def accept(self, turn: Turn, *, run: RunContext | None = None) -> Turn:
        """Accept a turn, or find the one that was accepted under its id or key; durable on return, or with the open transaction.

        The turn of a run is durable by the ledger's own record of the run, so it need not be written before it has something to say.
        """
        known = self.views.known(turn)
        if known is not None:
            if known.digest != turn.digest:
                raise ConflictingRequest("request_id", f"{known.request_id} was asked for with other content")
            if run is not None:
                self._carries(known, run)
            return known
        turn.is_overlapping = self.crowd.is_overlapping(turn)
        self._number = turn.number = max(self._number + 1, self.now_ms())
        turn.accepted_at_ms = self.now_ms()
        if any(each in self.transcript for each in turn.own_message_ids):
            turn.rename_messages()
        if run is not None:
            self._runs[turn.request_id] = run
            self._begin(turn)
        elif self._may_begin_at_once(turn):
            self._begin_at_once(turn)
        else:
            self.store.write(turn, then=lambda: self.tenant.on_loop(lambda: self._begin(turn)))
        return turn

    def _may_begin_at_once(self, turn: Turn) -> bool:
        """Whether it can be its turn in the commit that accepts it: nothing is open, and nothing has to be looked up first."""
        is_free = not self.open and self._drain is None and self.tenant.transaction is None
        return is_free and turn.trigger != "continue" and not self.transcript.uncertain

    def _begin_at_once(self, turn: Turn) -> None:
        try:
            self._rescue.open(turn, self.stream_of(turn), [])
        except StorageError as problem:
            self._fail(turn, problem)
            raise
        self._begin(turn)

    def _carries(self, turn: Turn, run: RunContext) -> None:
        """A new attempt at a run takes up its turn. Its events begin anew with the attempt, so all that was said is said again first."""
        stream = self._streams.get(turn.request_id)
        said = self.store.events(turn.request_id) if stream is None else stream.events[: turn.events]
        if not turn.is_over:
            self._runs[turn.request_id] = run
        said = merged(said)
        while said:
            group = batch(said)
            run.emit({"type": "chunks", "chunks": group})
            said = said[len(group) :]

    def _begin(self, turn: Turn) -> None:
        self.open[turn.request_id] = turn
        self.kick()

    def wake(self) -> None:
        """Take up what an earlier life owed."""
        for turn in self.store.open_turns():
            self.open.setdefault(turn.request_id, turn)
            self._number = max(self._number, turn.number)
            self.deadlines.watch(turn)
        self.kick()

    # playing

    def kick(self) -> None:
        """See to it that accepted turns are played."""
        if self._drain is None and self._next() is not None and not self.tenant.is_leaving:
            self._drain = self.tenant.spawn(self._play_all())

    def _next(self) -> Turn | None:
        ready = [
            turn
            for turn in self.open.values()
            if turn.status is not TurnStatus.PARKED and turn.request_id not in self._stopping
        ]
        return min(ready, key=lambda turn: turn.number, default=None)

    def _is_behind(self, turn: Turn) -> bool:
        """Whether another turn is played, or comes before this one."""
        return (self.playing.turn if self.playing is not None else self._next()) is not turn

    async def _play_all(self) -> None:
        while (turn := self._next()) is not None:
            _, problem = await tried(self._play(turn))
            if problem is not None:
                self._drain = None
                self._fail(turn, problem)
                return
        self._drain = None

    def _fail(self, turn: Turn, problem: Exception) -> None:
        """The storage failed. Nothing acknowledged is lost; whoever waits is told, and the turns are taken up again in a while."""
        if self.tenant.is_leaving:
            return
        self.tenant.trouble(f"turn {turn.request_id}", problem)
        for waiter in [each for waiters in self._ends.values() for each in waiters]:
            if not waiter.done():
                waiter.set_exception(problem)
        for stream in self._streams.values():
            stream.rest()
        self.tenant.spawn(self._again())

    async def _again(self) -> None:
        await asyncio.sleep(AGAIN_S)
        self.tenant.reopen()
        self._restart()

    async def _play(self, turn: Turn) -> None:
        run = self._runs.get(turn.request_id)
        ACTIVITY.set(Activity(f"turn/{turn.request_id}", run_id=turn.run_id, run=run))
        play = self.playing = self._play_of(turn)
        outcome, problem = await tried(play.within(self._outcome(play)))
        self.playing = None
        if problem is not None:
            play.toolbox.let_go()
            raise problem
        has_been_answered = (
            outcome is not None and outcome.event is TurnEvent.PARKED and not play.toolbox.awaits_person()
        )
        if outcome is not None and not has_been_answered:
            await self.end(turn, outcome)

    def _play_of(self, turn: Turn) -> Play:
        return Play(self, turn, self.stream_of(turn), self.history, self._rescue)

    async def _outcome(self, play: Play) -> Outcome | None:
        outcome, problem = await tried(self._played(play))
        if problem is not None:
            if self.tenant.is_leaving or isinstance(problem, self.agent.fatal):
                raise problem
            outcome = await self._rescue.raised(play, problem)
        return None if outcome is None else await worded(self, play.turn, outcome)

    async def _played(self, play: Play) -> Outcome:
        if play.turn.status is TurnStatus.ACCEPTED and (skipped := await self.crowd.skipped(play)) is not None:
            return skipped
        early = await self._rescue.begin(play)
        return await play.run() if early is None else early

    # ending

    async def end(self, turn: Turn, outcome: Outcome) -> None:
        """End a turn, or park it until a person has answered. A turn that is over stays as it is: its first end counts."""
        with turn.applied(outcome.event) as counts:
            if not counts:
                return
            told, placed = self._commit_end(turn, outcome)
        for position, each in placed:
            self.transcript.put(position, each)
        for name, payload in told:
            self.emit(name, turn, payload)
        self.deadlines.watch(turn)
        if turn.is_over:
            self._forget(turn)
            self._endings.ended(turn, placed[0][1] if placed else None)

    def _commit_end(
        self, turn: Turn, outcome: Outcome
    ) -> tuple[list[tuple[str, dict[str, Any]]], list[tuple[int, Message]]]:
        """Row, message and last event in one commit. The events to emit, and the messages to put into the transcript."""
        stream = self.stream_of(turn)
        turn.error, turn.reason = outcome.error, outcome.reason
        if outcome.notice is not None:
            stream.add({"type": "data-notice", "id": "notice", "data": outcome.notice})
        told: list[tuple[str, dict[str, Any]]] = []
        self.freed_at_ms = self.now_ms()
        if turn.is_over:
            turn.ended_at_ms = self.now_ms()
            stream.add(outcome.last_event)
            told = self._rescue.over(turn)
        else:
            turn.parked_at_ms = turn.parked_at_ms or self.now_ms()
        message = self.history.final_message(stream, is_over=turn.is_over)
        placed = self.transcript.placed([message] if message is not None else [])
        stream.flush(messages=placed)
        return told, placed

    def _forget(self, turn: Turn) -> None:
        self.open.pop(turn.request_id, None)
        stream = self._streams.pop(turn.request_id, None)
        if stream is not None:
            stream.rest()
            self.views.remember(turn, stream.events)
        self._runs.pop(turn.request_id, None)
        self._ours.pop(turn.request_id, None)
        for waiter in self._ends.pop(turn.request_id, ()):
            if not waiter.done():
                waiter.set_result(turn)

    async def ended(self, request_id: str) -> Turn:
        """Wait for the end of a turn."""
        turn = self.views.find(request_id)
        if turn is None:
            raise BadRequest("request_id", f"no turn has the id {request_id}")
        if turn.is_over:
            return turn
        waiter: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        self._ends.setdefault(request_id, []).append(waiter)
        return await waiter

    async def cancel(self, request_id: str, reason: str) -> bool:
        """Cancel a turn, for ever: also a life that recovers it finds it cancelled (spec W-40). Whether it was still open."""
        turn = self.open.get(request_id)
        if turn is None or turn.cancelled is not None:
            return False
        turn.cancelled = reason
        if self.playing is not None and self.playing.turn is turn:
            self.stream_of(turn).flush(then=self.playing.cancel)
        elif not turn.attempt:
            await self.end(turn, Outcome(TurnEvent.ABORTED, f"The turn was cancelled: {reason}", "cancelled"))
        else:
            self.store.write(turn)
            await self.close(turn, Play.abort)
        return True

    def forget(self) -> None:
        """Forget the conversation: messages, turns, streams, and the calls that may not be repeated. No turn is open any more."""
        if self.store.is_empty:
            return
        with self.tenant.storage.transaction() as transaction:
            self.store.write(messages=[(position, None) for position in self.transcript.positions()])
            self.store.drop([turn.request_id for turn in self.store.turns()])
            self.store.keep_guard([])
            transaction.then(self._forgotten)

    def _forgotten(self) -> None:
        self.transcript.clear()
        self.history.forget()
        self.repeats = Repeats(self.store)
        self.views.forget()

    async def close(self, turn: Turn, ending: Callable[[Play], Awaitable[Outcome]]) -> None:
        """End a turn that had begun and is not being played. It is played by nobody meanwhile."""
        self._stopping.add(turn.request_id)
        try:
            await self.end(turn, await ending(self._play_of(turn)))
        finally:
            self._stopping.discard(turn.request_id)
            self.kick()
