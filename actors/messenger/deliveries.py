"""Accepts events in one commit, and delivers replies one after the other in each thread, each exactly once.

`accept` commits the event, its reply and the fiber that will deliver it; then the webhook is acknowledged. An event that was accepted
before is found by its key and changes nothing. While a reply waits for the ones before it, events of its thread join it.

The agent is the lock of its threads. It has one life at a time, fenced by the ledger, so no lease can run out during a long answer, and an
earlier life finds its storage closed.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from perdure.actors.chat.chat_agent import ChatAgent
from perdure.actors.code.author_call import tried
from perdure.actors.host.tenant import Tenant
from perdure.actors.messenger.adapter import Messenger
from perdure.actors.messenger.delivery import ReplyDelivery
from perdure.actors.messenger.events import MessengerEvent
from perdure.actors.messenger.replies import Replies, heard_key
from perdure.actors.messenger.reply_rows import ReplyRow
from perdure.actors.retries import until
from perdure.actors.telemetry.telemetry import carried_text
from perdure.ledger import BadRequest, check_word
from perdure.policies import FiberRetry, JsonObject, Outcome, ReplyEvent, ReplyStatus, ready_at_ms

AGAIN_S = 5.0
BURST_MAX = 100  # events of one reply; its row names them all, and is written with each
FIBER = "perdure:reply"
RETRY = FiberRetry(attempts_max=1_000, first_ms=10, most_ms=1_000, on_error=False)


class Deliveries:
    """The replies of one agent, in one life of it."""

    def __init__(self, agent: ChatAgent, tenant: Tenant, messengers: dict[str, Messenger]) -> None:
        self._agent, self._tenant, self.messengers = agent, tenant, messengers
        self._replies = Replies(tenant)
        self._number: int | None = None

    def messenger(self, messenger_id: str) -> Messenger:
        """One messenger. Raises `BadRequest` if the class has none of that id."""
        found = self.messengers.get(messenger_id)
        if found is None:
            known = ", ".join(self.messengers) or "(none)"
            raise BadRequest("messenger_id", f"{messenger_id!r:.200} is none of {known}")
        return found

    # accepting

    def accept(self, event: MessengerEvent, words: str | None = None) -> JsonObject:
        """Accept an event, unless it was accepted before; durable on return, or with the open transaction. `words` are its answer."""
        known = self._replies.heard(event)
        if known is not None:
            return {"accepted": False, "reply": known["reply"], "why": "heard before"}
        policy, now_ms = self.messenger(event.messenger_id).delivery, self._tenant.now_ms()
        reply = self._joinable(event) if words is None else None
        if reply is None:
            place = event.messenger_id, event.thread_id, event.key
            reply = ReplyRow(self._next_number(), *place, words=words, opened_at_ms=now_ms, trace=carried_text())
        ready_ms = ready_at_ms(policy, reply.opened_at_ms, now_ms)
        row = replace(reply, heard=[*reply.heard, heard_key(event)], ready_at_ms=ready_ms)
        self._keep(row, event)
        self._replies.tell("messenger:accepted", row, {"key": event.key, "joined": len(row.heard) > 1})
        return {"accepted": True, "reply": row.reply_id}

    def notice(self, messenger_id: str, thread_id: str, text: str, kind: str) -> ReplyRow:
        """Accept a text that is posted without a turn, in its place among the replies."""
        self.messenger(messenger_id)
        number, now_ms = self._next_number(), self._tenant.now_ms()
        key = f"messenger:{messenger_id}:{kind}:{number}"
        place = number, messenger_id, thread_id, key
        row = ReplyRow(*place, kind=kind, words=text, opened_at_ms=now_ms, trace=carried_text())
        self._keep(row)
        return row

    def _joinable(self, event: MessengerEvent) -> ReplyRow | None:
        """The reply that this event joins: the newest of its thread, if it waits."""
        mine = [each for each in self._replies.open.values() if each.is_of(event.messenger_id, event.thread_id)]
        newest = max(mine, key=lambda each: each.number, default=None)
        if newest is None or newest.next(ReplyEvent.JOINED) is None or len(newest.heard) >= BURST_MAX:
            return None
        return newest if newest.words is None and newest.cancelled is None else None

    def _next_number(self) -> int:
        if self._number is None:
            self._number = max((each.number for each in self._replies.all()), default=0)
        self._number += 1
        return self._number

    def _keep(self, row: ReplyRow, event: MessengerEvent | None = None) -> None:
        """Make a reply durable. The fiber of a new one begins with the commit."""
        is_new = row.reply_id not in self._replies.open
        row.fiber_id = f"{FIBER}-{row.reply_id}-{row.round}"
        about = {"messenger": row.messenger_id, "thread": row.thread_id, "key": row.key, "reply": row.reply_id}
        with self._replies.spans.within(row), self._tenant.outbox.transact() as transaction:
            self._replies.keep(row, event)
            transaction.then(lambda: self._tenant.on_loop(lambda: self._join(row)))
            if is_new:
                self._agent.start_fiber(
                    FIBER,
                    "_perdure_deliver_reply",
                    {"reply": row.reply_id},
                    fiber_id=row.fiber_id,
                    metadata=about,
                    retry=RETRY,
                    on_recovered="_perdure_recover_reply",
                )

    def _join(self, row: ReplyRow) -> None:
        known = self.messengers.get(row.messenger_id)
        self._replies.join(row, 0 if known is None else known.delivery.burst_ms)

    # delivering

    def wake(self) -> None:
        """Go on with the replies that an earlier life left open."""
        for row in self._replies.all():
            if not row.is_open:
                continue
            self._join(row)
            fiber = self._agent.inspect_fiber(row.fiber_id)
            if fiber is None or fiber.settled_at_ms:
                self._tenant.spawn(self._without_fiber(row.reply_id, "" if fiber is None else fiber.error or ""))

    async def deliver(self, reply_id: str) -> ReplyRow | None:
        """Deliver a reply to its end, and return it. The body of the reply's fiber, however often it is entered."""
        reply = self._replies.open.get(reply_id)
        if reply is None:
            return self._replies.get(reply_id)
        await until(bool, partial(self._try, reply), lambda: AGAIN_S)
        return reply

    async def _try(self, reply: ReplyRow) -> bool:
        """Try to deliver a reply. Returns whether that is done. An error of the storage, or a bug, is logged, and it is tried again."""
        if not reply.is_open:
            return True
        delivery = ReplyDelivery(self._agent, self._replies, reply, self.messenger(reply.messenger_id))
        _, problem = await tried(delivery.run())
        if problem is None or self._tenant.is_leaving:
            return True
        self._tenant.trouble(f"delivering reply {reply.reply_id}", problem)
        return False

    def let_go(self, reply_id: str, reason: str) -> None:
        """The fiber of a reply was cancelled: cancel the turn too, and deliver the rest of the reply in a task."""
        reply = self._replies.open.get(reply_id)
        if reply is not None and reply.is_open and not self._tenant.is_leaving:
            if reply.cancelled is None:
                self._replies.change(reply, cancelled=reason)
            self._tenant.spawn(self._without_fiber(reply_id, reason))

    async def _without_fiber(self, reply_id: str, why: str) -> None:
        """End an open reply whose fiber is over: deliver it if it was cancelled, else park it."""
        reply = self._replies.open.get(reply_id)
        if reply is not None and reply.cancelled is None:
            self._replies.park(reply, f"its fiber is over: {why or 'it was deleted'}")
        else:
            await self.deliver(reply_id)

    def give_up(self, reply_id: str, attempts: int) -> None:
        """Park a reply whose delivery ended the process too often."""
        reply = self._replies.open.get(reply_id)
        if reply is not None:
            self._replies.park(reply, f"the process died {attempts} times while it was delivered")

    def retry(self, reply_id: str) -> bool:
        """Try a parked reply again. Returns whether there was one."""
        row = self._replies.get(reply_id)
        if row is None:
            return False
        was_asked = bool(row.request_id) or row.words is not None
        status = row.next(ReplyEvent.RETRIED_AFTERWARDS if was_asked else ReplyEvent.RETRIED)
        if status is None:
            return False
        afresh = replace(row, status=status, tries=0, busy=0, problem="", settled_at_ms=0)
        self._keep(replace(afresh, round=row.round + 1, ready_at_ms=self._tenant.now_ms()))
        return True

    async def cancel(self, reply_id: str, reason: str) -> bool:
        """Cancel a reply and its turn. Returns whether it was open."""
        reply = self._replies.open.get(reply_id)
        if reply is None or reply.cancelled is not None:
            return False
        self._replies.change(reply, cancelled=reason)
        self._replies.look()
        if reply.request_id:
            await self._agent._perdure_conversation.turns.cancel(reply.request_id, reason)
        return True

    def list(self, status: str | None, limit: int) -> list[JsonObject]:
        """The newest replies, oldest of them first, each with its stage and its visible messages."""
        if status is not None:
            check_word("status", status, [*ReplyStatus, *Outcome])
        found = [each for each in self._replies.all() if status in (None, each.status, each.outcome)]
        return [self._told(each) for each in found[-limit:]]

    def _told(self, reply: ReplyRow) -> JsonObject:
        posts = [vars(post) for post in self._replies.posts(reply).values()]
        stage = "streaming" if reply.is_open else "completed"
        if reply.status == ReplyStatus.WAITING or not posts:
            stage = "accepted"
        return {**vars(reply), "reply_id": reply.reply_id, "stage": stage, "posts": posts}
