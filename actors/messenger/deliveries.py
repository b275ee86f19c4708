"""Accepts events in one commit, and delivers replies one after the other in each thread, each exactly once.

`accept` commits the event, its reply and the fiber that will deliver it; then the webhook is acknowledged. An event that was accepted
before is found by its key and changes nothing. While a reply waits for the ones before it, events of its thread join it.

The agent is the lock of its threads. It has one life at a time, fenced by the ledger, so no lease can run out during a long answer, and an
earlier life finds its storage closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from perdure.actors.chat.chat_agent import ChatAgent
from perdure.actors.chat.followers import is_last
from perdure.actors.chat.stream import merged
from perdure.actors.chat.turn import TurnPage
from perdure.actors.code.author_call import in_words, tried
from perdure.actors.events.message_parts import apply_chunk
from perdure.actors.host.tenant import Tenant
from perdure.actors.messenger.adapter import (
    Button,
    ButtonAdapter,
    Messenger,
    ProviderRefused,
    ProviderSilent,
    ProviderTrouble,
)
from perdure.actors.messenger.messenger_events import MessengerEvent, user_message
from perdure.actors.messenger.replies import PostRow, PressedButton, Replies, ReplyRow, digest, heard_key
from perdure.actors.messenger.thread_questions import ThreadQuestions, buttons_of
from perdure.actors.ports import KillPoint
from perdure.actors.retries import until
from perdure.actors.tasks import awaited
from perdure.actors.telemetry.telemetry import carried_text
from perdure.ledger import BadRequest, check_word
from perdure.policies import (
    TURN_ENDED,
    DeliveryOutcome,
    Event,
    FiberRetry,
    JsonObject,
    Next,
    Part,
    ReplyEvent,
    ReplyStatus,
    TurnStatus,
    after_failure,
    after_unknown,
    ending,
    length_of,
    pause_ms,
    ready_at_ms,
    sendable,
    split,
    spoken,
)

AGAIN_S = 5.0
BURST_MAX = 100  # events of one reply; its row names them all, and is written with each
FIBER = "perdure:reply"
# The body raises only if the class no longer has the messenger, which another attempt would not change.
RETRY = FiberRetry(attempts_max=1_000, first_ms=10, most_ms=1_000, on_error=False)


# ---------------------------------------------------------------- posts
# The visible messages of one reply, brought to the intended text whatever became of earlier requests.
#
# Each request to the provider lies between two commits: before it, what is intended and that a post is on its way; after it, the id and
# what is acknowledged. So a life that takes over finds one of these:
#
#     nothing                        nothing was sent
#     a post on its way, no id       it was sent or not: `policies.after_unknown` decides
#     an id                          the message can be edited, as often as it takes
#
# While an answer streams, `show` makes one try for each message. `finish` tries until every message is acknowledged, or the reply is
# parked.


CALL_S = 30.0
POSTS_MAX = 200
T = TypeVar("T")
_ENDS = (Next.DONE, Next.PARK)


class DeliveryParked(Exception):
    """The reply cannot be delivered; a person decides what becomes of it."""


class Posts:
    """The messages of one reply, in one life of its agent."""

    def __init__(self, replies: Replies, reply: ReplyRow, messenger: Messenger) -> None:
        self._replies, self._reply, self._messenger = replies, reply, messenger
        self._adapter, self._policy = messenger.adapter, messenger.delivery
        self._limits = self._adapter.limits(reply.thread_id)
        self.rows = replies.posts(reply)
        self._quiet_until_s = 0.0

    @property
    def pace_s(self) -> float:
        own_ms = self._policy.edit_every_ms
        return max(0, self._limits.edit_every_ms if own_ms is None else own_ms) / 1000

    def pieces(self, text: str) -> list[str]:
        # Each piece leaves room for `repeated_text` above it.
        room = length_of(self._policy.repeated_text, self._limits.counting) + 2
        found = split(sendable(text), self._limits.text_max - room, self._limits.counting)
        return [each.shown for each in found if each.shown.strip()][:POSTS_MAX]

    async def show(self, text: str) -> None:
        # Makes one request for each message, up to the first that fails.
        if asyncio.get_running_loop().time() < self._quiet_until_s:
            return
        for index, piece in enumerate(self.pieces(text)):
            if await self._make(index, piece) is not Next.DONE:
                return

    async def finish(self, text: str, buttons: Sequence[Button] = ()) -> None:
        # The messages say exactly this, the last one with these buttons. Raises `DeliveryParked` if that is impossible.
        pieces = self.pieces(text)
        for index, piece in enumerate(pieces):
            below = buttons if index == len(pieces) - 1 else ()
            if await self._repeated(partial(self._make, index, piece, below)) is Next.PARK:
                raise DeliveryParked(self._reply.problem)
        for index in sorted(each for each in self.rows if each >= len(pieces)):
            message_id = self.rows[index].message_id  # an earlier attempt had a longer text
            if message_id:
                await self._repeated(partial(self._delete, message_id))  # one that cannot be deleted stays
            del self.rows[index]
            self._replies.forget_post(self._reply, index)

    async def _repeated(self, request: Callable[[], Awaitable[Next]]) -> Next:
        time_s = asyncio.get_running_loop().time
        return await until(_ENDS.__contains__, request, lambda: max(0.0, self._quiet_until_s - time_s()))

    async def tell_presser(self, press_id: str, text: str) -> None:
        # A provider takes this only for a while, so what is refused is left.
        await self._repeated(partial(self._tell_presser, press_id, text))

    async def _tell_presser(self, press_id: str, text: str) -> Next:
        adapter = self._adapter
        if not isinstance(adapter, ButtonAdapter):
            return Next.DONE
        _, trouble = await self._asked("press", lambda: adapter.answer_press(press_id, text))
        what = Next.DONE if trouble is None else self._after(trouble, is_edit=True)
        return Next.DONE if what is Next.ANEW else what  # it can be told no more

    async def _make(self, index: int, text: str, buttons: Sequence[Button] = ()) -> Next:
        row = self.rows.get(index) or PostRow(index)
        if row.is_sent and not row.message_id:
            if after_unknown(self._policy) is Next.PARK:
                self._reply.problem = "a message was sent, and nobody knows whether it arrived; the policy leaves it"
                return Next.PARK
            row.is_sent, row.is_repeated = False, self._policy.unknown == "edit-or-apologise"
            self._replies.emit("messenger:post:unknown", self._reply, {"index": index})
        if row.is_repeated:
            text = f"{self._policy.repeated_text}\n\n{text}"
        wanted = digest(text, [each.label for each in buttons])
        if row.message_id and row.acknowledged == wanted:
            return Next.DONE
        row.intended, row.is_sent = wanted, not row.message_id
        self.rows[index] = row
        self._replies.keep_post(self._reply, row)
        return await (self._edit(row, text, buttons) if row.message_id else self._post(row, text, buttons))

    async def _post(self, row: PostRow, text: str, buttons: Sequence[Button]) -> Next:
        adapter, thread_id = self._adapter, self._reply.thread_id
        request = partial(adapter.post, thread_id, text)
        if buttons and isinstance(adapter, ButtonAdapter):
            request = partial(adapter.post_with_buttons, thread_id, text, buttons)
        message_id, trouble = await self._asked("post", request)
        if trouble is not None:
            what = self._after(trouble, is_edit=False)
            if trouble.trouble is not ProviderSilent.trouble:  # it certainly did not arrive
                row.is_sent = False
                self._replies.keep_post(self._reply, row)
            return what
        row.message_id, row.acknowledged, row.is_sent = str(message_id), row.intended, False
        self._replies.keep_post(self._reply, row)
        self._replies.emit("messenger:posted", self._reply, {"index": row.index, "messageId": row.message_id})
        return Next.DONE

    async def _edit(self, row: PostRow, text: str, buttons: Sequence[Button]) -> Next:
        adapter, where = self._adapter, (self._reply.thread_id, row.message_id)
        request = partial(adapter.edit, *where, text)
        if buttons and isinstance(adapter, ButtonAdapter):
            request = partial(adapter.edit_with_buttons, *where, text, buttons)
        _, trouble = await self._asked("edit", request)
        what = Next.DONE if trouble is None else self._after(trouble, is_edit=True)
        if what is Next.DONE:
            row.acknowledged = row.intended
        elif what is Next.ANEW:  # the message is gone, so another one is posted
            row.message_id = row.acknowledged = ""
        else:
            return what
        self._replies.keep_post(self._reply, row)
        return Next.DONE if what is Next.DONE else Next.AGAIN

    async def _delete(self, message_id: str) -> Next:
        where = self._reply.thread_id, message_id
        _, trouble = await self._asked("delete", lambda: self._adapter.delete(*where))
        what = Next.DONE if trouble is None else self._after(trouble, is_edit=True)
        return Next.DONE if what is Next.ANEW else what  # it is gone

    async def _asked(self, what: str, request: Callable[[], Awaitable[T]]) -> tuple[T | None, ProviderTrouble | None]:
        # Errors other than `ProviderTrouble` are bugs of the adapter, and are not repeated.
        await self._replies.tenant.services.until_durable()
        self._replies.tenant.faults.at(KillPoint.BEFORE_EFFECT, f"messenger {what}")
        begun_ms = self._replies.tenant.now_ms()
        try:
            async with asyncio.timeout(CALL_S):
                answer, problem = await tried(request())
        except TimeoutError:
            answer, problem = None, ProviderSilent(f"no reply within {CALL_S:.0f} s")
        self._replies.tenant.faults.at(KillPoint.AFTER_EFFECT, f"messenger {what}")
        error = str(problem.trouble) if isinstance(problem, ProviderTrouble) else type(problem).__name__
        self._replies.spans.asked(self._reply, what, begun_ms, "" if problem is None else error)
        if problem is None:
            self._reply.tries = self._reply.busy = 0  # they count what fails in a row
        if problem is None or isinstance(problem, ProviderTrouble):
            return answer, problem
        return None, ProviderRefused(f"the adapter failed: {in_words(problem)}")

    def _after(self, trouble: ProviderTrouble, *, is_edit: bool) -> Next:
        # The count of failures is made durable, and the pause is set.
        reply = self._reply
        is_busy = trouble.trouble is trouble.trouble.BUSY
        reply.busy, reply.tries = reply.busy + is_busy, reply.tries + (not is_busy)
        what = after_failure(trouble.trouble, self._policy, is_edit=is_edit, tries=reply.tries, busy=reply.busy)
        if what is Next.DONE:
            return what
        reply.problem = str(trouble)
        self._replies.keep(reply)
        pause = pause_ms(self._policy, reply.tries, trouble.retry_after_ms, self._replies.tenant.dice.roll())
        self._quiet_until_s = asyncio.get_running_loop().time() + pause / 1000
        told = {"trouble": str(trouble.trouble), "error": str(trouble), "pauseMs": pause}
        self._replies.emit("messenger:post:failed", reply, told)
        return what


# ---------------------------------------------------------------- delivery
# One reply, from its acceptance to its end: it waits for its place, asks for a turn, shows the answer as it grows, and settles.
#
# It may be entered again at any line. The commit that makes the reply `running` asks for the turn, so a later life finds the turn under
# the same id, and follows its stream from the first event. An interrupted turn goes on by itself (`actors.chat.turn_recovery`); meanwhile
# the message says that it is being recovered. The rows of the posts say what has been shown, so the same messages are edited. A reply
# settles when each of its messages is acknowledged.


TYPING_S = 4.0  # Telegram shows the indicator for five
HOLD_S = 10.0


class StreamedAnswer:
    # The answer of a turn so far, and whether the turn is being recovered.

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self.is_recovering = False

    def take(self, events: list[Event]) -> None:
        for event in merged(events):
            self._parts = apply_chunk(self._parts, event)
            kind = event.get("type", "")
            if kind == "data-interrupted":
                self.is_recovering = event["data"].get("outcome") == "scheduled"
            elif kind in ("text-delta", "text-start", "tool-input-available"):
                self.is_recovering = False

    @property
    def said(self) -> str:
        return spoken(self._parts)


class ReplyDelivery:
    """One reply in one life of its agent."""

    def __init__(
        self, agent: ChatAgent, replies: Replies, reply: ReplyRow, messenger: Messenger, questions: ThreadQuestions
    ) -> None:
        self._agent, self._replies, self._reply, self._messenger = agent, replies, reply, messenger
        self._questions = questions
        self._typing: asyncio.Task[None] | None = None
        self._posts = Posts(replies, reply, messenger)

    async def run(self) -> None:
        await self._replies.place_of(self._reply)
        try:
            outcome, problem = await self._to_the_end()
        except DeliveryParked as parked:
            self._replies.park(self._reply, str(parked))
        else:
            self._replies.settle(self._reply, outcome, problem, self._messenger.delivery.kept_max)
        finally:
            self._stop_typing()

    async def _to_the_end(self) -> tuple[DeliveryOutcome, str]:
        reply = self._reply
        if reply.cancelled is not None and reply.status == ReplyStatus.WAITING and not self._posts.rows:
            return DeliveryOutcome.CANCELLED, reply.cancelled
        if reply.press is not None:
            return await self._pressed(reply, reply.press)
        if reply.words is not None:
            await self._finish_words()
            return DeliveryOutcome.ANSWERED, ""
        if reply.status == ReplyStatus.WAITING:
            self._ask()
        elif reply.cancelled is not None:
            await self._questions.turns.cancel(reply.request_id, reply.cancelled)
        last = await self._followed()
        self._review(is_parked=False)
        policy, has_posts = self._messenger.delivery, bool(self._posts.rows)
        message = None if last is None else last["message"]
        said = "" if message is None else spoken(message["parts"])
        status = TurnStatus.ABORTED if last is None else TurnStatus(last["status"])
        shown = ending(status, policy, has_text=bool(said.strip()), has_posts=has_posts)
        self._stop_typing()
        await self._posts.finish(shown.shown(said))
        return shown.outcome, "" if last is None else last["error"]

    async def _pressed(self, reply: ReplyRow, press: PressedButton) -> tuple[DeliveryOutcome, str]:
        if reply.words is None:
            await self._questions.decide(reply)
        if reply.words is None:
            return DeliveryOutcome.CANCELLED, reply.cancelled or ""
        await self._posts.tell_presser(press["press_id"], reply.words)
        return DeliveryOutcome.ANSWERED, ""

    async def _finish_words(self) -> None:
        # The words may become others meanwhile.
        shown: tuple[str | None, list[str]] | None = None
        while shown != (shown := (self._reply.words, self._reply.buttons)):
            await self._posts.finish(shown[0] or "", buttons_of(self._reply))

    def _review(self, *, is_parked: bool) -> None:
        if is_parked or self._questions.has_open(self._reply):
            self._questions.review(self._reply, is_parked=is_parked)

    def _ask(self) -> None:
        reply, replies = self._reply, self._replies
        messages = [user_message(each, self._messenger.speaker) for each in replies.events(reply)]
        request_id = f"{reply.kind}-{reply.reply_id}"
        with replies.tenant.outbox.transact():  # from this commit on, the reply takes in no more events
            metadata = {"messenger": {"id": reply.messenger_id, "thread": reply.thread_id, "reply": reply.reply_id}}
            self._agent._perdure_conversation.accept_request("submission", messages, request_id, {"metadata": metadata})
            replies.move(reply, ReplyEvent.ASKED, request_id=request_id, started_at_ms=replies.tenant.now_ms())
        replies.emit("messenger:turn", reply, {"requestId": request_id, "messages": len(messages)})

    # following

    async def _followed(self) -> TurnPage | None:
        # Shows the answer as it grows. Returns the last page of the turn; None if that was forgotten meanwhile.
        telling, first = StreamedAnswer(), 0
        if not self._posts.rows:
            self._typing = self._replies.tenant.spawn_awaited(self._type())
        while True:
            try:
                page = await self._questions.turns.views.follow(
                    self._reply.request_id, first, HOLD_S, awaits_people=True
                )
            except BadRequest:
                return None
            first = page["next"]
            telling.take(page["events"])
            is_over = page["status"] in TURN_ENDED
            if is_over and is_last(page):
                return page
            is_parked = page["status"] == TurnStatus.PARKED
            self._replies.step_aside(self._reply, is_aside=is_parked)
            has_words = bool(telling.said.strip()) and not is_over
            if has_words and (self._posts.rows or not telling.is_recovering):
                words = self._messenger.delivery.recovering_text if telling.is_recovering else ""
                await self._posts.show(f"{telling.said}\n\n{words}" if words else telling.said)
                self._stop_typing()
            if not is_over:
                self._review(is_parked=is_parked)
            if has_words:
                await self._pause()

    async def _pause(self) -> None:
        ended = awaited(self._questions.turns.ended(self._reply.request_id))
        await asyncio.wait([ended], timeout=self._posts.pace_s)
        if ended.done() and not ended.cancelled() and ended.exception() is not None:
            return  # a storage that failed; the next look raises it
        ended.cancel()

    # typing

    async def _type(self) -> None:
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


# ---------------------------------------------------------------- deliveries


class Deliveries:
    """The replies of one agent, in one life of it. `groups_of` says as which groups the people of a thread answer."""

    def __init__(
        self,
        agent: ChatAgent,
        tenant: Tenant,
        messengers: dict[str, Messenger],
        groups_of: Callable[[str, str], list[str]],
    ) -> None:
        self._agent, self._tenant, self.messengers, self.groups_of = agent, tenant, messengers, groups_of
        self._replies = Replies(tenant)
        self.questions = ThreadQuestions(agent, tenant, self._replies, self)
        self._number: int | None = None

    def messenger(self, messenger_id: str) -> Messenger:
        found = self.messengers.get(messenger_id)
        if found is None:
            known = ", ".join(self.messengers) or "(none)"
            raise BadRequest("messenger_id", f"{messenger_id!r:.200} is none of {known}")
        return found

    # accepting

    def accept(self, event: MessengerEvent, words: str | None = None) -> JsonObject:
        # Durable on return, or with the open transaction. `words` are the answer to the event.
        known = self._replies.heard(event)
        if known is not None:
            return {"accepted": False, "reply": known["reply"], "why": "heard before"}
        policy, now_ms = self.messenger(event.messenger_id).delivery, self._tenant.now_ms()
        reply = self._joinable(event) if words is None else None
        if reply is None:
            place = event.messenger_id, event.thread_id, event.key
            reply = ReplyRow(self.next_number(), *place, words=words, opened_at_ms=now_ms, trace=carried_text())
        ready_ms = ready_at_ms(policy, reply.opened_at_ms, now_ms)
        row = replace(reply, heard=[*reply.heard, heard_key(event)], ready_at_ms=ready_ms)
        self.keep(row, event)
        self._replies.emit("messenger:accepted", row, {"key": event.key, "joined": len(row.heard) > 1})
        return {"accepted": True, "reply": row.reply_id}

    def notice(self, messenger_id: str, thread_id: str, text: str, kind: str) -> ReplyRow:
        # A text that is posted without a turn, in its place among the replies.
        self.messenger(messenger_id)
        number, now_ms = self.next_number(), self._tenant.now_ms()
        key = f"messenger:{messenger_id}:{kind}:{number}"
        place = number, messenger_id, thread_id, key
        row = ReplyRow(*place, kind=kind, words=text, opened_at_ms=now_ms, trace=carried_text())
        self.keep(row)
        return row

    def _joinable(self, event: MessengerEvent) -> ReplyRow | None:
        mine = [each for each in self._replies.open.values() if each.is_of(event.messenger_id, event.thread_id)]
        newest = max(mine, key=lambda each: each.number, default=None)
        if newest is None or newest.next(ReplyEvent.JOINED) is None or len(newest.heard) >= BURST_MAX:
            return None
        return newest if newest.words is None and newest.cancelled is None else None

    def next_number(self) -> int:
        if self._number is None:  # only this life counts them
            self._number = max((each.number for each in self._replies.all()), default=0)
        self._number += 1
        return self._number

    def keep(self, row: ReplyRow, event: MessengerEvent | None = None) -> None:
        # The fiber of a new reply begins with the commit.
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
        for row in self._replies.all():
            if not row.is_open:
                continue
            self._join(row)
            fiber = self._agent.inspect_fiber(row.fiber_id)
            if fiber is None or fiber.settled_at_ms:
                self._tenant.spawn(self._without_fiber(row.reply_id, "" if fiber is None else fiber.error or ""))

    async def deliver(self, reply_id: str) -> ReplyRow | None:
        # The body of the reply's fiber, however often it is entered.
        reply = self._replies.open.get(reply_id)
        if reply is None:
            return self._replies.rows.get(reply_id)
        await until(bool, partial(self._try, reply), lambda: AGAIN_S)
        return reply

    async def _try(self, reply: ReplyRow) -> bool:
        # Returns whether the reply is done. An error of the storage, or a bug, is logged, and it is tried again.
        if not reply.is_open:
            return True
        messenger = self.messenger(reply.messenger_id)
        delivery = ReplyDelivery(self._agent, self._replies, reply, messenger, self.questions)
        _, problem = await tried(delivery.run())
        if problem is None or self._tenant.is_leaving:  # the next life goes on with it
            return True
        self._tenant.trouble(f"delivering reply {reply.reply_id}", problem)
        return False

    def let_go(self, reply_id: str, reason: str) -> None:
        # Its fiber was cancelled: the turn is cancelled too, and the rest of the reply is delivered in a task.
        reply = self._replies.open.get(reply_id)
        if reply is not None and reply.is_open and not self._tenant.is_leaving:
            if reply.cancelled is None:
                self._replies.change(reply, cancelled=reason)
            self._tenant.spawn(self._without_fiber(reply_id, reason))

    async def _without_fiber(self, reply_id: str, why: str) -> None:
        # Its fiber is over: it is delivered if it was cancelled, else parked.
        reply = self._replies.open.get(reply_id)
        if reply is not None and reply.cancelled is None:
            self._replies.park(reply, f"its fiber is over: {why or 'it was deleted'}")
        else:
            await self.deliver(reply_id)

    def give_up(self, reply_id: str, attempts: int) -> None:
        reply = self._replies.open.get(reply_id)
        if reply is not None:
            self._replies.park(reply, f"the process died {attempts} times while it was delivered")

    def retry(self, reply_id: str) -> bool:
        # Returns whether there was a parked one.
        row = self._replies.rows.get(reply_id)
        if row is None:
            return False
        status = row.next(ReplyEvent.RETRIED_AFTERWARDS if row.request_id else ReplyEvent.RETRIED)
        if status is None:
            return False
        afresh = replace(row, status=status, tries=0, busy=0, problem="", settled_at_ms=0)
        self.keep(replace(afresh, round=row.round + 1, ready_at_ms=self._tenant.now_ms()))
        return True

    async def cancel(self, reply_id: str, reason: str) -> bool:
        reply = self._replies.open.get(reply_id)
        if reply is None or reply.cancelled is not None:
            return False
        self._replies.change(reply, cancelled=reason)
        self._replies.wake_waiters()
        if reply.request_id:
            await self._agent._perdure_conversation.turns.cancel(reply.request_id, reason)
        return True

    def list(self, status: str | None, limit: int) -> list[JsonObject]:
        """The newest replies, oldest of them first, each with its stage and its visible messages."""
        if status is not None:
            check_word("status", status, [*ReplyStatus, *DeliveryOutcome])
        found = [each for each in self._replies.all() if status in (None, each.status, each.outcome)]
        return [self._told(each) for each in found[-limit:]]

    def _told(self, reply: ReplyRow) -> JsonObject:
        posts = [vars(post) for post in self._replies.posts(reply).values()]
        stage = "streaming" if reply.is_open else "completed"
        if reply.status == ReplyStatus.WAITING or not posts:
            stage = "accepted"
        return {**vars(reply), "reply_id": reply.reply_id, "stage": stage, "posts": posts}
