"""The turns of one chat agent: accepted, played one after the other, ended exactly once.

Every request for an exchange comes through `accept`, which makes the turn durable and starts the drain. The drain is one task. It plays the
oldest turn that does not wait for a person. So there are never two turns at a time, whatever calls, handlers and deaths interleave. A
recovery takes its turn's own place in the queue: nothing runs before it or beside it (spec W-10).

`wake` is all that recovery needs after a death: open turns are found by their rows and go on in the same drain, never in the start of the
agent (spec W-19).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from operator import attrgetter
from typing import cast

from perdure.actors.chat.chat_messages import for_storage
from perdure.actors.chat.client_answers import ClientAnswers
from perdure.actors.chat.conversation_state import ConversationState
from perdure.actors.chat.history import Compaction, History
from perdure.actors.chat.live_turn import LiveTurn
from perdure.actors.chat.play import Play
from perdure.actors.chat.stream import batch, merged
from perdure.actors.chat.turn import READ, STEER, Turn, TurnPage, TurnResult, text_in
from perdure.actors.chat.turn_recovery import ResponseHook, TurnOutcome, TurnRecovery, abort, reported
from perdure.actors.code.author_call import tried
from perdure.actors.events.message_parts import events_of
from perdure.actors.life.activity import ACTIVITY, Activity
from perdure.actors.life.run_context import RunContext
from perdure.actors.ports import KillPoint
from perdure.ledger import BadRequest, ConflictingRequest, StaleIncarnation, StorageError
from perdure.policies import (
    Event,
    Message,
    OpenTurn,
    Overlap,
    QueueAction,
    TurnEvent,
    TurnStatus,
    is_dropped,
    is_held,
    overlaps,
    queue_decision,
    steered_part,
    steered_turn,
)

AFTER_A_LOOK = frozenset({"continue", "regenerate"})  # what they do depends on the newest message
READ_BY = "The turn {} has read this message while it was under way."
RESTART_S = 5.0
"""How long after a failure of its storage a conversation begins again from what is durable."""

FATAL = (StaleIncarnation, StorageError)
"""Errors that end the life and not the turn: the turn goes on in the next life."""


# ---------------------------------------------------------------- turn views
# What callers see of turns: the status and result of one, and its events from a number on.


HOLD_S = 10.0
OPENING_S = 0.05  # a turn that says something so soon is begun and told in one answer
RECENT_MAX, RECENT_EVENTS_MAX = 8, 2_000


class TurnViews:
    """The turns of one chat agent, as callers see them.

    Args:
        is_behind: whether another turn is played, or comes before one.
    """

    def __init__(self, state: ConversationState, is_behind: Callable[[Turn], bool]) -> None:
        self._state, self._is_behind = state, is_behind
        self._recent: dict[str, tuple[Turn, list[Event]]] = {}

    def remember(self, turn: Turn, events: list[Event]) -> None:
        # Its followers ask for the end in a moment.
        if len(events) <= RECENT_EVENTS_MAX:
            self._recent[turn.request_id] = turn, events
        while len(self._recent) > RECENT_MAX:
            del self._recent[next(iter(self._recent))]

    def known(self, turn: Turn) -> Turn | None:
        by_id, key = self.find(turn.request_id), turn.idempotency_key
        if not key:
            return by_id
        request_id = next((each.request_id for each in self._state.open.values() if each.idempotency_key == key), None)
        by_key = self.find(request_id or self._state.store.request_of(key) or "")
        if by_id is not None and by_key is not by_id and by_id.idempotency_key != key:
            raise BadRequest("idempotency_key", "request_id and idempotency_key refer to different turns")
        return by_key or by_id

    def find(self, request_id: str) -> Turn | None:
        recent, _ = self._recent.get(request_id, (None, ()))
        return self._state.open.get(request_id) or recent or self._state.store.turn(request_id)

    def found(self, request_id: str) -> Turn:
        turn = self.find(request_id)
        if turn is None:
            raise BadRequest("request_id", f"no turn has the id {request_id}")
        return turn

    def forget(self) -> None:
        self._recent.clear()

    def result_of(self, turn: Turn) -> TurnResult:
        stream = self._state.streams.get(turn.request_id)
        message = stream.message if stream is not None else self._state.transcript.get(turn.message_id)
        parts = message["parts"] if message is not None else []
        return _result(turn, text_in(parts), message if parts else None)

    async def follow(
        self, request_id: str, first: int, hold_s: float = HOLD_S, *, awaits_people: bool = False
    ) -> TurnPage:
        """How far a turn is, and the events of its stream from a number on. Waits a while if there is none yet.

        If the stream of an ended turn was dropped, its events are made again from its message.
        """
        turn = self.found(request_id)
        if not turn.is_over:
            hold_s = hold_s if awaits_people or turn.status is not TurnStatus.PARKED else 0.0
            events = await self._state.stream_of(turn).next_events(first, hold_s)
            return self._page(
                self.find(request_id) or turn, events, first
            )  # it may have been cleared while this waited
        known = self._recent.get(request_id)
        events = self._state.store.events(request_id, first) if known is None else known[1][first:]
        if first < turn.events and not events:
            return {**self._page(turn, self._retold(turn), 0), "next": turn.events}
        return self._page(turn, batch(events), first)

    async def opening(self, request_id: str) -> TurnPage:
        # The turn was accepted just now. The page has its first events if they come at once.
        turn = self.find(request_id)
        if turn is not None and not turn.is_over and not self._is_behind(turn):
            await self._state.stream_of(turn).next_events(1, OPENING_S)
            if self.find(request_id) is None:  # it was cleared meanwhile
                return self._page(turn, [], turn.events)
        return await self.follow(request_id, 0, 0.0)

    def _page(self, turn: Turn, events: list[Event], first: int) -> TurnPage:
        # Of a turn that is under way its events are enough.
        is_at_rest = turn.is_over or turn.status is TurnStatus.PARKED
        shown = self.result_of(turn) if is_at_rest else _result(turn)
        told = {**vars(shown), "events": events, "next": first + len(events), "attempt": turn.attempt}
        return cast("TurnPage", {**told, "origin": self._state.origin_of(turn)})

    def _retold(self, turn: Turn) -> list[Event]:
        message = self._state.transcript.get(turn.message_id)
        events: list[Event] = [{"type": "start", "messageId": turn.message_id}]
        parts = message["parts"] if message is not None else []
        for number, part in enumerate(parts[turn.base :]):
            events += events_of(part, f"part-{number}")
        last: Event = {"type": _LAST.get(turn.status, "error")}
        if last["type"] == "error":
            last["errorText"] = turn.error
        return [*events, last]


def _result(turn: Turn, text: str = "", message: Message | None = None) -> TurnResult:
    return TurnResult(
        request_id=turn.request_id,
        status=turn.status,
        text=text,
        message=message,
        error=turn.error,
        reason=turn.reason,
        next_event=turn.events,
        finish_reason=turn.finish_reason,
    )


_LAST = {TurnStatus.COMPLETED: "finish", TurnStatus.ABORTED: "abort"}


# ---------------------------------------------------------------- turns


class Turns:
    """The turns of one chat agent, in one life of it.

    Args:
        restart: begins the conversation again from what is durable.
    """

    def __init__(self, state: ConversationState, restart: Callable[[], None]) -> None:
        self.state = state
        self._tenant = state.tenant
        self.history = History(state)
        self.views = TurnViews(state, self._is_behind)
        self.answers = ClientAnswers(state, self.close, self.kick)
        self.playing: Play | None = None
        self.compaction = Compaction(state, self.history)
        self._recovery = TurnRecovery(state, self.history, self.compaction)
        self._response_hook = ResponseHook(state)
        self._restart = restart
        self._waiters: dict[str, list[asyncio.Future[Turn]]] = {}
        self._closing: set[str] = set()
        self._number = 0
        self._drain: asyncio.Task[None] | None = None

    # accepting

    def accept(self, turn: Turn, *, run: RunContext | None = None) -> Turn:
        """Accept a turn, or find the one of its id or key. Durable on return, or with the open transaction.

        The turn of a run is durable by the ledger's record of the run, so it is not written before it has something to say.
        """
        known = self.views.known(turn)
        if known is not None:
            if known.digest != turn.digest:
                raise ConflictingRequest("request_id", f"{known.request_id} was asked for with other content")
            if run is not None:
                self._resume_run(known, run)
            return known
        self.state.spans.accepted(turn, run)
        if turn.trigger == STEER:
            self._aim(turn)
        turn.is_overlapping = self._is_overlapping(turn)
        # The clock puts it behind the ended turns of earlier lives, which are not read here. One that was set back may give the same
        # number again, so no id is made of it alone.
        self._number = turn.number = max(self._number + 1, self.state.tenant.now_ms())
        turn.accepted_at_ms = self.state.tenant.now_ms()
        if any(each in self.state.transcript for each in turn.own_message_ids):
            turn.rename_messages()
        is_alone = not self.state.open and self._drain is None and self._tenant.transaction is None
        if run is not None:
            self.state.runs[turn.request_id] = run
            self._begin(turn)
        elif is_alone and turn.trigger not in AFTER_A_LOOK and not self.state.transcript.uncertain:
            self._begin_at_once(turn)
        else:
            self.state.store.write(turn, then=lambda: self._tenant.on_loop(lambda: self._begin(turn)))
        return turn

    def _begin_at_once(self, turn: Turn) -> None:
        # Nothing is open and nothing has to be looked up first, so acceptance and beginning are one commit.
        try:
            self._recovery.open(turn, self.state.stream_of(turn), [])
        except StorageError as problem:
            self._fail(turn, problem)
            raise
        self._begin(turn)

    def _resume_run(self, turn: Turn, run: RunContext) -> None:
        # The events of a run begin anew with each attempt, so all are sent again.
        stream = self.state.streams.get(turn.request_id)
        events = self.state.store.events(turn.request_id) if stream is None else stream.events[: turn.events]
        if not turn.is_over:
            self.state.runs[turn.request_id] = run
        events = merged(events)
        while events:
            group = batch(events)
            run.emit({"type": "chunks", "chunks": group})
            events = events[len(group) :]

    def _begin(self, turn: Turn) -> None:
        self.state.open[turn.request_id] = turn
        if self._is_held(turn):
            self.state.lost_calls.user_spoke()  # now, and not where it is read: what was stopped meanwhile is not meant
        self.kick()

    def wake(self) -> None:
        for turn in self.state.store.open_turns():
            self.state.open.setdefault(turn.request_id, turn)
            self._number = max(self._number, turn.number)
            self.answers.watch(turn)
        self.answers.look()
        self.kick()

    # messages of people by which they steer the turn under way

    def _is_held(self, turn: Turn) -> bool:
        return is_held(turn.steers, turn.status, self.state.open)

    def _aim(self, turn: Turn) -> None:
        # The turn is held back for the one under way. One that waits for words alone is none: a message answers and ends it.
        playing = 0 if self.playing is None else self.playing.live.turn.number
        found = steered_turn(self._all_seen(), playing)
        target = None if found is None else next(e for e in self.state.open.values() if e.number == found.number)
        if target is None or self.answers.is_talk(target):
            return
        turn.steers = target.request_id
        # The next life must find the turn of a run too, which is written with its first words.
        if not self.state.store.knows(target) and self._tenant.transaction is None:
            stream = self.state.stream_of(target)
            stream.flush() if stream.events else self.state.store.write(target)

    def steered_by(self, turn: Turn) -> str:
        # The turn that this one is held back for, or that has read its messages; empty if there is none.
        return turn.steers if turn.was_read or self._is_held(turn) else ""

    def read_steers(self, live: LiveTurn) -> None:
        """Take the messages that wait for this turn into its answer, if the next request begins a step. With the same commit their own
        turns are over, so each is read here or is a turn of its own, whoever dies when."""
        turn, stream = live.turn, live.stream
        held = [each for each in self.state.open.values() if each.steers == turn.request_id and self._is_held(each)]
        due = sorted((each for each in held if each.request_id not in self._closing), key=attrgetter("number"))
        if not due or turn.cancelled is not None or not stream.is_between_steps:
            return
        with ExitStack() as undo:
            for each in due:
                undo.enter_context(each.applied(TurnEvent.SKIPPED))
                each.reason, each.error, each.ended_at_ms = READ, READ_BY.format(turn.request_id), self._tenant.now_ms()
                for number, message in enumerate(each.messages):
                    part = steered_part(each.request_id, f"{each.request_id}-{number}", for_storage(message))
                    stream.add(cast("Event", part))
            self._tenant.faults.at(KillPoint.MID_STREAM, "steered")
            stream.flush(turns=due)
        for each in due:
            for name, payload in self._recovery.over(each):
                self.state.emit(name, each, payload)
            self.state.spans.ended(each)
            self._release(each)

    # messages of people that come while a turn is open (`policies.overlap`)

    def _seen(self, turn: Turn) -> OpenTurn:
        # A turn that an earlier life or attempt began is recovering, and in the way of no message (W-38).
        is_recovering = turn.status is TurnStatus.RUNNING and (
            turn.attempt > 1 or turn.request_id not in self.state.ours
        )
        return OpenTurn(turn.number, turn.status, turn.is_overlapping, turn.accepted_at_ms, is_recovering=is_recovering)

    def _all_seen(self) -> list[OpenTurn]:
        return [self._seen(turn) for turn in self.state.open.values() if not self._is_held(turn)]

    def _is_overlapping(self, turn: Turn) -> bool:
        return turn.trigger == "chat" and overlaps(self._all_seen())

    def drops(self, turn: Turn) -> bool:
        policy = Overlap.of(self.state.agent.message_concurrency)
        return is_dropped(policy, is_overlapping=self._is_overlapping(turn)) and self.views.known(turn) is None

    async def _superseded(self, live: LiveTurn) -> TurnOutcome | None:
        # Waits for the place of a turn. Returns an outcome if a later message takes it; the turn's message stays in the transcript.
        policy, loop = Overlap.of(self.state.agent.message_concurrency), asyncio.get_running_loop()
        now_ms, begun_s = max(live.turn.accepted_at_ms, self.state.tenant.now_ms()), loop.time()
        while True:
            passed_ms = now_ms + (loop.time() - begun_s) * 1000  # the wall clock may be set meanwhile
            told = queue_decision(policy, self._seen(live.turn), self._all_seen(), passed_ms)
            if told.action is not QueueAction.WAIT:
                break
            await asyncio.sleep(max(0.0, told.until_ms - passed_ms) / 1000)
        if told.action is QueueAction.PLAY:
            return None
        self.state.add_now(live.stream, live.turn.messages)
        return TurnOutcome(TurnEvent.SKIPPED, "A later message has taken the place of this one.", "superseded")

    # playing

    def kick(self) -> None:
        if self._drain is None and self._next() is not None and not self._tenant.is_leaving:
            self._drain = self._tenant.spawn(self._play_all())

    def _next(self) -> Turn | None:
        ready = [
            turn
            for turn in self.state.open.values()
            if turn.status is not TurnStatus.PARKED and turn.request_id not in self._closing and not self._is_held(turn)
        ]
        return min(ready, key=attrgetter("number"), default=None)

    def _is_behind(self, turn: Turn) -> bool:
        return (self.playing.live.turn if self.playing is not None else self._next()) is not turn

    async def _play_all(self) -> None:
        while (turn := self._next()) is not None:
            _, problem = await tried(self._play(turn))
            if problem is not None:
                self._drain = None
                self._fail(turn, problem)
                return
        self._drain = None

    def _fail(self, turn: Turn, problem: Exception) -> None:
        # Nothing acknowledged is lost: waiters get the error, and the conversation begins again in a while.
        if self._tenant.is_leaving:
            return
        self._tenant.trouble(f"turn {turn.request_id}", problem)
        for waiter in [each for waiters in self._waiters.values() for each in waiters]:
            if not waiter.done():
                waiter.set_exception(problem)
        self.state.rest()
        self._tenant.spawn(self._begin_again())

    async def _begin_again(self) -> None:
        await asyncio.sleep(RESTART_S)
        self._tenant.reopen()
        self._restart()

    async def _play(self, turn: Turn) -> None:
        run, live = self._run_of(turn), LiveTurn(self.state, turn)
        ACTIVITY.set(Activity(live.activity, run_id=turn.run_id, run=run, began_by=turn.began_by))
        self.state.spans.enter(turn)
        play = self.playing = Play(self.state, live, self.history, self._recovery, self.read_steers)
        outcome, problem = await tried(play.within(self._outcome(play)))
        self.playing = None
        if problem is not None:
            live.abandon()
            raise problem
        # answered while it was being put aside, it is simply played on
        was_answered = outcome is not None and outcome.event is TurnEvent.PARKED and not live.awaits_person()
        if run is not None:
            run.flush()
        if outcome is not None and not was_answered:
            await self.end(turn, outcome)

    def _run_of(self, turn: Turn) -> RunContext | None:
        """Of which run the turn reports. After a death it goes on as soon as the agent is up, before its run is entered again. What it
        reports by then counts all the same, because the present life of the run's child reports it."""
        known = self.state.runs.get(turn.request_id)
        if known is not None or not turn.run_id:
            return known
        return RunContext(self._tenant, turn.run_id, turn.attempt, self._tenant.incarnation, None)

    async def _outcome(self, play: Play) -> TurnOutcome | None:
        outcome, problem = await tried(self._played(play))
        if problem is not None:
            if self._tenant.is_leaving or isinstance(problem, FATAL):
                raise problem
            outcome = await self._recovery.raised(play.live, problem)
        return None if outcome is None else await reported(self.state, play.live.turn, outcome)

    async def _played(self, play: Play) -> TurnOutcome:
        turn = play.live.turn
        if turn.status is TurnStatus.ACCEPTED:
            replaced = {each["id"] for each in self.state.transcript.since(turn.options.get("instead_of", ""))}
            for parked in [each for each in self.state.open.values() if each.message_id in replaced]:
                await self.cancel(parked.request_id, "its message was replaced")
            await self.answers.answered_by(turn)
            turn.steers = ""
            superseded = await self._superseded(play.live)
            if superseded is not None:
                return superseded
        early = await self._recovery.begin(play.live)
        return await play.run() if early is None else early

    # ending

    async def end(self, turn: Turn, outcome: TurnOutcome) -> None:
        # The turn ends, or is parked until a person has answered. The first end counts.
        with turn.applied(outcome.event) as counts:
            if not counts:
                return
            told, placed = self._commit_end(turn, outcome)
        self.state.transcript.put(placed)
        for name, payload in told:
            self.state.emit(name, turn, payload)
        self.answers.watch(turn)
        if turn.is_over:
            self.state.spans.ended(turn)
            self._release(turn)
            self._response_hook.ended(turn, placed[0][1] if placed else None)
        self.answers.look()

    def _commit_end(
        self, turn: Turn, outcome: TurnOutcome
    ) -> tuple[list[tuple[str, dict[str, object]]], list[tuple[int, Message]]]:
        # Row, message and last event are one commit. Returns what is to be emitted, and what is new in the transcript.
        stream = self.state.stream_of(turn)
        turn.error, turn.reason, turn.finish_reason = outcome.error, outcome.reason, stream.finish_reason
        if outcome.notice is not None:
            stream.add({"type": "data-notice", "id": "notice", "data": outcome.notice})
        told: list[tuple[str, dict[str, object]]] = []
        now_ms = self.state.freed_at_ms = self.state.tenant.now_ms()
        if turn.is_over:
            turn.ended_at_ms = now_ms
            stream.add(outcome.last_event)
            told = self._recovery.over(turn)
        else:
            turn.parked_at_ms = turn.parked_at_ms or now_ms
            turn.parked_events = len(stream.events)
        message = self.history.final_message(stream, is_over=turn.is_over)
        placed = self.state.transcript.placed([message] if message is not None else [])
        stream.flush(messages=placed)
        return told, placed

    def _release(self, turn: Turn) -> None:
        stream = self.state.release(turn)
        if stream is not None:
            self.views.remember(turn, stream.events)
        for waiter in self._waiters.pop(turn.request_id, ()):
            if not waiter.done():
                waiter.set_result(turn)

    async def ended(self, request_id: str) -> Turn:
        turn = self.views.found(request_id)
        if turn.is_over:
            return turn
        waiter: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(request_id, []).append(waiter)
        return await waiter

    async def cancel(self, request_id: str, reason: str) -> bool:
        # The turn is cancelled for the lives that recover it too (spec W-40). Returns whether it was open.
        turn = self.state.open.get(request_id)
        if turn is None or turn.cancelled is not None:
            return False
        turn.cancelled = reason
        if self.playing is not None and self.playing.live.turn is turn:
            self.state.stream_of(turn).flush(then=self.playing.cancel)
        elif not turn.attempt:  # it never began, so there is nothing to stop
            await self.end(turn, TurnOutcome(TurnEvent.ABORTED, f"The turn was cancelled: {reason}", "cancelled"))
        else:
            self.state.store.write(turn)
            await self.close(turn, abort)
        return True

    async def close(self, turn: Turn, ending: Callable[[LiveTurn], Awaitable[TurnOutcome]]) -> None:
        # Nobody plays it meanwhile.
        self._closing.add(turn.request_id)
        try:
            await self.end(turn, await ending(LiveTurn(self.state, turn)))
        finally:
            self._closing.discard(turn.request_id)
            self.kick()

    def forget(self) -> None:
        # No turn is open any more.
        if not self._tenant.has_storage:
            return
        state = self.state

        def then() -> None:
            for forget in (state.transcript.clear, state.lost_calls.forget, self.history.forget, self.views.forget):
                forget()

        state.store.clear(state.transcript.positions(), then)
