"""The agent behind a messenger: a chat agent that people reach through webhooks, one agent for each thread.

    class Bot(MessengerAgent):
        model = "openai:gpt-5"

        @classmethod
        def messengers(cls):
            return [Messenger(id="support", adapter=Telegram(Secret("BOT_TOKEN"), secret_token=Secret("BOT_SECRET")))]

    app = messenger_app(runtime, Bot)          # any ASGI server

Inbox, burst, turn and outbox lie in one storage, so each step is one commit (`deliveries`, `delivery`, `posts`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from functools import cache
from typing import Literal, cast

from perdure.actors.agent.exposing import exposed
from perdure.actors.chat.chat_agent import ChatAgent
from perdure.actors.jobs.fiber_context import FiberContext, FiberRecovery
from perdure.actors.messenger.adapter import Messenger, declared
from perdure.actors.messenger.deliveries import Deliveries
from perdure.actors.messenger.events import Kind, MessengerEvent
from perdure.ledger import BadRequest, check_id, check_whole
from perdure.policies import FiberResult, JsonObject, Message, Outcome

LISTED_MAX = 500
NOTICE_CHARS_MAX = 100_000
SUBSCRIBED = "perdure:subscribed"
DEATHS_MAX = 50
ENDS: dict[str, Literal["completed", "error", "aborted"]] = {Outcome.FAILED: "error", Outcome.CANCELLED: "aborted"}


def messengers_of(agent_class: type[MessengerAgent]) -> dict[str, Messenger]:
    """The messengers of a class by id, made once in a process. Raises `BadRequest` for what could not work."""
    return _messengers_of(cast("Hashable", agent_class))


@cache
def _messengers_of(agent_class: type[MessengerAgent]) -> dict[str, Messenger]:
    return declared(agent_class.messengers())


class MessengerAgent(ChatAgent):
    """A chat that people reach through messengers. Each accepted message is answered once, in order, with the whole answer."""

    @classmethod
    def messengers(cls) -> Sequence[Messenger]:
        """The messengers through which agents of this class are reached. Asked once in each process."""
        return ()

    def on_messenger_event(self, event: MessengerEvent) -> bool | str:
        """Called in the transaction that accepts an event that is to be answered.

        True lets the model answer, False lets nobody, and a text is posted instead. What it raises refuses the event: nothing was written,
        and the provider delivers it again.
        """
        return True

    # webhooks

    @exposed(repeatable=True)
    async def receive(self, event: MessengerEvent) -> JsonObject:
        """Accept an event; durable on return. The same event again changes nothing. What the ingress calls."""
        messenger = self._perdure_deliveries.messenger(event.messenger_id)
        with self.transaction():
            if not self._perdure_is_addressed(event, messenger):
                return {"accepted": False, "reply": "", "why": "not for the agent"}
            wish = self.on_messenger_event(event)
            if wish is True:
                return self._perdure_deliveries.accept(event)
            return self._perdure_without_turn(event, wish)

    def _perdure_is_addressed(self, event: MessengerEvent, messenger: Messenger) -> bool:
        wanted = messenger.respond_to
        if event.kind is Kind.DIRECT:
            return "direct-message" in wanted
        if event.kind is Kind.ACTION:
            return "action" in wanted
        subscriptions = f"{SUBSCRIBED}:{event.messenger_id}:{event.thread_id}"
        if event.kind is Kind.MENTION:
            if messenger.subscribe_on_mention and "subscribed-thread" in wanted:
                self.state[subscriptions] = True
            return "mention" in wanted
        return "subscribed-thread" in wanted and bool(self.state.get(subscriptions))

    def _perdure_without_turn(self, event: MessengerEvent, wish: bool | str) -> JsonObject:
        if wish is False:
            return {"accepted": False, "reply": "", "why": "on_messenger_event"}
        return self._perdure_deliveries.accept(event, words=_checked_words(wish))

    # steering

    @exposed(repeatable=True)
    async def deliver_notice(
        self,
        text: str,
        thread_id: str,
        messenger_id: str | None = None,
        *,
        inform_model: bool = False,
        kind: str = "notice",
    ) -> str:
        """Post something that is no answer, in its place among the replies. Returns its id. It begins no turn.

        With `inform_model` it stands in the transcript too, as said by the assistant.
        """
        chosen = messenger_id or (
            next(iter(self._perdure_deliveries.messengers)) if len(self._perdure_deliveries.messengers) == 1 else ""
        )
        if not chosen:
            raise BadRequest("messenger_id", "says which messenger posts it; this agent has several, or none")
        check_id("thread_id", thread_id, self._perdure.limits.id_max)
        check_id("kind", kind, 64)
        with self.transaction():
            row = self._perdure_deliveries.notice(chosen, thread_id, _checked_words(text), kind)
            if inform_model:
                message: Message = {
                    "id": f"{kind}-{row.reply_id}",
                    "role": "assistant",
                    "parts": [{"type": "text", "text": text}],
                    "metadata": {"kind": kind, "reply": row.reply_id},
                }
                self._perdure_conversation.add([message])
        return row.reply_id

    @exposed(repeatable=True)
    async def cancel_reply(self, reply_id: str, reason: str = "cancelled") -> bool:
        """Cancel a reply, and with it the model's turn. Durable on return. Returns whether it was open."""
        return await self._perdure_deliveries.cancel(reply_id, reason)

    @exposed(repeatable=True)
    async def retry_delivery(self, reply_id: str) -> bool:
        """Try a parked reply again, without asking the model again. Returns whether there was one."""
        return self._perdure_deliveries.retry(reply_id)

    @exposed(repeatable=True)
    async def list_deliveries(self, status: str | None = None, limit: int = 50) -> list[JsonObject]:
        """The newest replies, oldest first: by a status (`waiting`, `running`, `parked`, `settled`) or an outcome."""
        return self._perdure_deliveries.list(status, min(check_whole("limit", limit), LISTED_MAX))

    # ours

    async def _perdure_deliver_reply(self, fiber: FiberContext, input: dict[str, str]) -> FiberResult:
        """The body of the fiber that delivers a reply."""
        try:
            reply = await self._perdure_deliveries.deliver(input["reply"])
        except asyncio.CancelledError:
            if fiber.cancelled.is_set():
                self._perdure_deliveries.let_go(input["reply"], "its fiber was cancelled")
            raise
        if reply is None:
            return FiberResult("error", "the reply was forgotten")
        about = {"reply": reply.reply_id, "outcome": reply.outcome or reply.status}
        end = ENDS.get(reply.outcome or Outcome.FAILED, "completed")  # one that was parked has no outcome
        return FiberResult(end, reply.problem or None, metadata={**(fiber.metadata or {}), **about})

    async def _perdure_recover_reply(self, fiber: FiberRecovery) -> FiberResult | str:
        """Enter the delivery again after a death: its rows tell how far it had come. After `DEATHS_MAX` deaths it is parked."""
        if fiber.attempt < DEATHS_MAX:
            return "retry"
        self._perdure_deliveries.give_up(str((fiber.input or {}).get("reply")), fiber.attempt)
        return FiberResult("error", f"the process died {fiber.attempt} times")

    @property
    def _perdure_deliveries(self) -> Deliveries:
        """The replies, in this life of the agent."""
        return self._perdure.part(Deliveries, lambda: Deliveries(self, self._perdure, messengers_of(type(self))))

    def _perdure_woken(self) -> None:
        """The agent has come up: go on with the turns and replies of an earlier life."""
        super()._perdure_woken()
        self._perdure_deliveries.wake()


def _checked_words(words: object) -> str:
    if not isinstance(words, str) or not words.strip():
        raise BadRequest("text", f"{words!r:.200} is no text that could be posted")
    if len(words) > NOTICE_CHARS_MAX:
        raise BadRequest("text", f"has {len(words)} characters; the limit is {NOTICE_CHARS_MAX}")
    return words
