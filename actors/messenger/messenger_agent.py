"""The agent behind a messenger: a chat agent that people reach through webhooks, one agent for each thread.

    class Bot(MessengerAgent):
        model = "openai:gpt-5"

        @classmethod
        def messengers(cls):
            return [Messenger(id="support", adapter=Telegram(Secret("BOT_TOKEN"), secret_token=Secret("BOT_SECRET")))]

    app = messenger_app(runtime, Bot)          # any ASGI server

Inbox, burst, turn and outbox lie in one storage, so each step is one commit (`deliveries`): one accepts a webhook and begins its reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Literal

from perdure.actors.agent.exposing import begun_at_host, steering
from perdure.actors.chat.chat_agent import ChatAgent
from perdure.actors.code.author_call import result_of, tried_now
from perdure.actors.jobs.fiber_context import FiberContext, FiberRecovery
from perdure.actors.messenger.adapter import Messenger, declared
from perdure.actors.messenger.deliveries import Deliveries
from perdure.actors.messenger.messenger_events import Kind, MessengerEvent
from perdure.ledger import BadRequest, check_id, check_whole
from perdure.policies import DeliveryOutcome, FiberResult, JsonObject, Message

LISTED_MAX = 500
NOTICE_CHARS_MAX = 100_000
SUBSCRIBED = "perdure:subscribed"
DEATHS_MAX = 50
ENDS: dict[str, Literal["completed", "error", "aborted"]] = {
    DeliveryOutcome.FAILED: "error",
    DeliveryOutcome.CANCELLED: "aborted",
}


_MESSENGERS: dict[type[MessengerAgent], dict[str, Messenger]] = {}


def messengers_of(agent_class: type[MessengerAgent]) -> dict[str, Messenger]:
    """The messengers of a class by id, made once in a process. Raises `BadRequest` for what could not work."""
    if agent_class not in _MESSENGERS:
        _MESSENGERS[agent_class] = declared(agent_class.messengers())
    return _MESSENGERS[agent_class]


class MessengerAgent(ChatAgent):
    """A chat that people reach through messengers. Each accepted message is answered once, in order."""

    @classmethod
    def messengers(cls) -> Sequence[Messenger]:
        """The messengers of this class. Asked once in each process."""
        return ()

    @classmethod
    def _perdure_check(cls) -> None:
        super()._perdure_check()
        _, problem = tried_now(lambda: messengers_of(cls))
        if isinstance(problem, BadRequest):  # whatever else is wrong may be so in this process alone
            raise problem

    def on_messenger_event(self, event: MessengerEvent) -> bool | str | Awaitable[bool | str]:
        """Called in the transaction that accepts an event; it may be async. Return True to let the model answer, False for no answer, or a
        text to post.

        An exception refuses the event: nothing is written, and the provider delivers it again.
        """
        return True

    # webhooks

    @begun_at_host
    @steering
    async def receive(self, event: MessengerEvent) -> JsonObject:
        """Accept an event; durable on return. The same event again changes nothing. What the ingress calls."""
        deliveries = self._perdure_deliveries
        messenger = deliveries.messenger(event.messenger_id)
        with self.transaction():
            if not self._perdure_is_addressed(event, messenger):
                return {"accepted": False, "reply": "", "why": "not for the agent"}
            wish = await result_of(partial(self.on_messenger_event, event))
            if wish is False:
                return {"accepted": False, "reply": "", "why": "on_messenger_event"}
            return deliveries.accept(event, words=None if wish is True else _checked_words(wish))

    def _perdure_is_addressed(self, event: MessengerEvent, messenger: Messenger) -> bool:
        wanted = messenger.respond_to
        if event.kind in (Kind.DIRECT, Kind.ACTION):
            return event.kind in wanted
        subscription = f"{SUBSCRIBED}:{event.messenger_id}:{event.thread_id}"
        if event.kind is Kind.MENTION:
            if messenger.subscribe_on_mention and "subscribed-thread" in wanted:
                self.state[subscription] = True
            return event.kind in wanted
        return "subscribed-thread" in wanted and bool(self.state.get(subscription))

    # steering

    @steering
    async def deliver_notice(
        self,
        text: str,
        thread_id: str,
        messenger_id: str | None = None,
        *,
        inform_model: bool = False,
        kind: str = "notice",
    ) -> str:
        """Post a text without a turn, in its place among the replies. Returns its id.

        With `inform_model` it is added to the transcript too, as said by the assistant.
        """
        deliveries = self._perdure_deliveries
        if not messenger_id:
            if len(deliveries.messengers) != 1:
                raise BadRequest("messenger_id", "is needed: this agent has several messengers, or none")
            (messenger_id,) = deliveries.messengers
        check_id("thread_id", thread_id, self._perdure.limits.id_max)
        check_id("kind", kind, 64)
        with self.transaction():
            row = deliveries.notice(messenger_id, thread_id, _checked_words(text), kind)
            if inform_model:
                message: Message = {
                    "id": f"{kind}-{row.reply_id}",
                    "role": "assistant",
                    "parts": [{"type": "text", "text": text}],
                    "metadata": {"kind": kind, "reply": row.reply_id},
                }
                self._perdure_conversation.add([message])
        return row.reply_id

    @steering
    async def cancel_reply(self, reply_id: str, reason: str = "cancelled") -> bool:
        """Cancel a reply, and with it the model's turn. Durable on return. Returns whether it was open."""
        return await self._perdure_deliveries.cancel(reply_id, reason)

    @steering
    async def retry_delivery(self, reply_id: str) -> bool:
        """Try a parked reply again, without asking the model again. Returns whether there was one."""
        return self._perdure_deliveries.retry(reply_id)

    @steering
    async def list_deliveries(self, status: str | None = None, limit: int = 50) -> list[JsonObject]:
        """The newest replies, oldest first: by a status (`waiting`, `running`, `parked`, `settled`) or an outcome."""
        return self._perdure_deliveries.list(status, min(check_whole("limit", limit), LISTED_MAX))

    # ours

    async def _perdure_deliver_reply(self, fiber: FiberContext, input: dict[str, str]) -> FiberResult:
        try:
            reply = await self._perdure_deliveries.deliver(input["reply"])
        except asyncio.CancelledError:
            if fiber.cancelled.is_set():
                self._perdure_deliveries.let_go(input["reply"], "its fiber was cancelled")
            raise
        if reply is None:
            return FiberResult("error", "the reply was forgotten")
        about = {"reply": reply.reply_id, "outcome": reply.outcome or reply.status}
        end = ENDS.get(reply.outcome or DeliveryOutcome.FAILED, "completed")  # one that was parked has no outcome
        return FiberResult(end, reply.problem or None, metadata={**(fiber.metadata or {}), **about})

    async def _perdure_recover_reply(self, fiber: FiberRecovery) -> FiberResult | str:
        if fiber.attempt < DEATHS_MAX:  # else the delivery may be what kills the process
            return "retry"
        self._perdure_deliveries.give_up(str((fiber.input or {}).get("reply")), fiber.attempt)
        return FiberResult("error", f"the process died {fiber.attempt} times")

    @property
    def _perdure_deliveries(self) -> Deliveries:
        return self._perdure.part(Deliveries, lambda: Deliveries(self, self._perdure, messengers_of(type(self))))

    def _perdure_woken(self) -> None:
        super()._perdure_woken()
        self._perdure_deliveries.wake()


def _checked_words(words: object) -> str:
    if not isinstance(words, str) or not words.strip():
        raise BadRequest("text", f"{words!r:.200} is no text that could be posted")
    if len(words) > NOTICE_CHARS_MAX:
        raise BadRequest("text", f"has {len(words)} characters; the limit is {NOTICE_CHARS_MAX}")
    return words
