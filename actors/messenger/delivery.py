"""One reply, from its acceptance to its end: it waits for its place, asks for a turn, shows the answer as it grows, and settles.

It may be entered again at any line. The commit that makes the reply `running` asks for the turn, so a later life finds the turn under the
same id, and follows its stream from the first event. An interrupted turn goes on by itself (`actors.chat.turn_recovery`); meanwhile the
message says that it is being recovered. `posts` records what has been shown, so the same messages are edited. A reply settles when each of
its messages is acknowledged.
"""

from __future__ import annotations

import asyncio

from perdure.actors.chat.chat_agent import ChatAgent
from perdure.actors.chat.event_lists import merged
from perdure.actors.chat.turn import Turn
from perdure.actors.chat.turns import Turns
from perdure.actors.code.author_call import tried
from perdure.actors.events.message_parts import apply_chunk
from perdure.actors.messenger.adapter import Messenger
from perdure.actors.messenger.events import user_message
from perdure.actors.messenger.posts import DeliveryParked, Posts
from perdure.actors.messenger.replies import Replies
from perdure.actors.messenger.reply_rows import ReplyRow
from perdure.actors.tasks import awaited
from perdure.ledger import BadRequest
from perdure.policies import Ending, Event, Outcome, Part, ReplyEvent, ReplyStatus, TurnStatus, ending, spoken

TYPING_S = 4.0
HOLD_S = 10.0


class StreamedAnswer:
    """The answer of a turn so far, and whether the turn is being recovered."""

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self.is_recovering = False

    def take(self, events: list[Event]) -> None:
        """Add the next events of the stream."""
        for event in merged(events):
            self._parts = apply_chunk(self._parts, event)
            kind = event.get("type", "")
            if kind == "data-interrupted":
                self.is_recovering = event["data"].get("outcome") == "scheduled"
            elif kind in ("text-delta", "text-start", "tool-input-available"):
                self.is_recovering = False

    @property
    def said(self) -> str:
        """The answer so far."""
        return spoken(self._parts)


class ReplyDelivery:
    """One reply in one life of its agent."""

    def __init__(self, agent: ChatAgent, replies: Replies, reply: ReplyRow, messenger: Messenger) -> None:
        self._agent, self._replies, self._reply, self._messenger = agent, replies, reply, messenger
        self._typing: asyncio.Task[None] | None = None
        self._posts = Posts(replies, reply, messenger)

    @property
    def _turns(self) -> Turns:
        """The turns of the agent. After a failure of its storage they are other objects."""
        return self._agent._perdure_conversation.turns

    async def run(self) -> None:
        """Deliver it to its end, or park it."""
        await self._replies.place_of(self._reply)
        try:
            outcome, problem = await self._to_the_end()
        except DeliveryParked as parked:
            self._replies.park(self._reply, str(parked))
        else:
            self._replies.settle(self._reply, outcome, problem, self._messenger.delivery.kept_max)
        finally:
            self._stop_typing()

    async def _to_the_end(self) -> tuple[Outcome, str]:
        reply = self._reply
        if reply.cancelled is not None and reply.status == ReplyStatus.WAITING and not self._posts.rows:
            return Outcome.CANCELLED, reply.cancelled
        if reply.words is not None:
            await self._posts.finish(reply.words)
            return Outcome.ANSWERED, ""
        if reply.status == ReplyStatus.WAITING:
            self._ask()
        elif reply.cancelled is not None:
            await self._turns.cancel(reply.request_id, reply.cancelled)
        turn = await self._followed()
        shown, said = self._ending(turn)
        self._stop_typing()
        await self._posts.finish(shown.shown(said))
        return shown.outcome, "" if turn is None else turn.error

    def _ask(self) -> None:
        """Ask for the turn. From this commit on, the reply takes in no more events."""
        reply, replies = self._reply, self._replies
        messages = [user_message(each, self._messenger.speaker) for each in replies.events(reply)]
        request_id = f"{reply.kind}-{reply.reply_id}"
        with replies.tenant.outbox.transact():
            metadata = {"messenger": {"id": reply.messenger_id, "thread": reply.thread_id, "reply": reply.reply_id}}
            self._agent._perdure_conversation.accept_request("submission", messages, request_id, {"metadata": metadata})
            replies.move(reply, ReplyEvent.ASKED, request_id=request_id, started_at_ms=replies.tenant.now_ms())
        replies.tell("messenger:turn", reply, {"requestId": request_id, "messages": len(messages)})

    # following

    async def _followed(self) -> Turn | None:
        """Show the answer as it grows, until the turn is over; None if the turn was forgotten meanwhile."""
        telling, first = StreamedAnswer(), 0
        if not self._posts.rows:
            self._typing = self._replies.tenant.spawn_awaited(self._type())
        while True:
            try:
                turn, events, first = await self._turns.views.follow(self._reply.request_id, first, HOLD_S)
            except BadRequest:
                return None
            telling.take(events)
            if turn.is_over and first >= turn.events:
                return turn
            self._replies.step_aside(self._reply, is_aside=turn.status is TurnStatus.PARKED)
            if turn.is_over or not telling.said.strip():
                continue
            if self._posts.rows or not telling.is_recovering:
                words = self._messenger.delivery.recovering_text if telling.is_recovering else ""
                await self._posts.show(f"{telling.said}\n\n{words}" if words else telling.said)
                self._stop_typing()
            await self._pause(turn)

    async def _pause(self, turn: Turn) -> None:
        """Wait until the next edit is allowed, or until the turn ends."""
        ended = awaited(self._turns.ended(turn.request_id))
        await asyncio.wait([ended], timeout=self._posts.pace_s)
        if ended.done() and not ended.cancelled() and ended.exception() is not None:
            return  # a storage that failed; the next look raises it
        ended.cancel()

    def _ending(self, turn: Turn | None) -> tuple[Ending, str]:
        policy = self._messenger.delivery
        if turn is None:
            return ending(TurnStatus.ABORTED, policy, has_text=False, has_posts=bool(self._posts.rows)), ""
        message = self._turns.views.result_of(turn).message
        said = spoken((message or {"parts": []})["parts"])
        return ending(turn.status, policy, has_text=bool(said.strip()), has_posts=bool(self._posts.rows)), said

    # typing

    async def _type(self) -> None:
        """Show the typing indicator until something of the answer is visible. Failures are ignored."""
        while True:
            try:
                async with asyncio.timeout(TYPING_S):
                    await tried(self._messenger.adapter.typing(self._reply.thread_id))
            except TimeoutError:
                continue
            await asyncio.sleep(TYPING_S)

    def _stop_typing(self) -> None:
        if self._typing is not None:
            self._typing.cancel()
            self._typing = None
