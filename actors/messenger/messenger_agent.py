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
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, TypeAlias, cast

from perdure.actors.agent.exposing import begun_at_host, exposed, steering
from perdure.actors.chat.chat_agent import ChatAgent
from perdure.actors.code.author_call import hook, result_of, tried_now
from perdure.actors.jobs.fiber_context import FiberContext, FiberRecovery
from perdure.actors.life.handle import tell
from perdure.actors.link.questions import about_ask, question_of
from perdure.actors.messenger.adapter import Messenger, declared
from perdure.actors.messenger.deliveries import Deliveries
from perdure.actors.messenger.messenger_events import Kind, MessengerEvent, conversation_name
from perdure.actors.messenger.thread_questions import NOT_YOU
from perdure.ledger import AskRow, BadRequest, UnknownAsk, check_id, check_whole
from perdure.policies import DeliveryOutcome, FiberResult, JsonObject, Message

LISTED_MAX = 500
NOTICE_CHARS_MAX = 100_000
SUBSCRIBED = "perdure:subscribed"
DEATHS_MAX = 50
ENDS: dict[str, Literal["completed", "error", "aborted"]] = {
    DeliveryOutcome.FAILED: "error",
    DeliveryOutcome.CANCELLED: "aborted",
}


Thread: TypeAlias = str | tuple[str, str]
"""The id of a thread, of the only messenger of a class; or the id of a messenger, and that of a thread there."""
_MESSENGERS: dict[type[MessengerAgent], dict[str, Messenger]] = {}


def messengers_of(agent_class: type[MessengerAgent]) -> dict[str, Messenger]:
    # They are made once in a process. Raises `BadRequest` for what could not work.
    if agent_class not in _MESSENGERS:
        _MESSENGERS[agent_class] = declared(agent_class.messengers())
    return _MESSENGERS[agent_class]


class MessengerAgent(ChatAgent):
    """A chat that people reach through messengers. Each accepted message is answered once, in order.

    Calls of its turns that need approval are asked for in the thread, with buttons.

    Class attributes:
        ask_threads: the threads into which questions of runs are posted (`run.ask(…, via=…)`), by groups or people who are asked, or by
            names of agents of this class. Whoever presses a button there answers as one of that group.
    """

    ask_threads: ClassVar[Mapping[str, Thread]] = {}

    @classmethod
    @hook
    def messengers(cls) -> Sequence[Messenger]:
        """The messengers of this class. Asked once in each process."""
        return ()

    @classmethod
    def _perdure_check(cls) -> None:
        super()._perdure_check()
        _, problem = tried_now(lambda: messengers_of(cls))
        if isinstance(problem, BadRequest):  # whatever else is wrong may be so in this process alone
            raise problem
        if not isinstance(cls.ask_threads, Mapping):
            raise BadRequest("ask_threads", f"{cls.ask_threads!r:.200} is no mapping of names to threads")
        for name, thread in cls.ask_threads.items() if problem is None else ():
            cls._perdure_thread(f"ask_threads[{name!r}]", thread)

    @classmethod
    def _perdure_check_ask(cls, agent_name: str, to: Sequence[str]) -> None:
        # Called where a run asks by way of an agent of this class: refused if that certainly has no thread for it.
        if cls.ask_thread is MessengerAgent.ask_thread:
            cls._perdure_named_thread(agent_name, to)

    @classmethod
    def _perdure_named_thread(cls, agent_name: str, to: Sequence[str]) -> Thread:
        found = next((name for name in (*to, agent_name) if name in cls.ask_threads), None)
        if found is None:
            asked = f" to {', '.join(to)}" if to else ""
            known = ", ".join(cls.ask_threads) or "(none)"
            words = f"{cls.__name__} {agent_name!r} has no thread for a question{asked}; there are threads for {known}"
            raise BadRequest("ask_threads", f"{words}. The question stands in the inbox all the same")
        return cls.ask_threads[found]

    @classmethod
    def _perdure_thread(cls, field: str, thread: object) -> tuple[Messenger, str]:
        known = messengers_of(cls)
        if isinstance(thread, str) and len(known) == 1:
            thread = (next(iter(known)), thread)
        match thread:
            case (str() as messenger_id, str() as thread_id) if messenger_id in known and thread_id.strip():
                return known[messenger_id], thread_id
        words = (
            f"the id of a thread, or the id of a messenger ({', '.join(known) or 'there is none'}) and that of a thread"
        )
        raise BadRequest(field, f"{thread!r:.200} is not {words}")

    @hook
    def ask_thread(self, ask: Mapping[str, Any]) -> Thread:
        """The thread into which a question of a run is posted, by default as `ask_threads` says. `ask` is as in `Runtime.asks`.

        Whoever presses a button there answers as one of those who are asked. Raises `BadRequest` if no thread fits.
        """
        return self._perdure_named_thread(self.name, ask["to"])

    @hook
    def on_messenger_event(self, event: MessengerEvent) -> bool | str | Awaitable[bool | str]:
        """Called in the transaction that accepts an event; it may be async. Return True to let the model answer, False for no answer, or a
        text to post.

        An exception refuses the event: nothing is written, and the provider delivers it again. For presses of buttons of questions
        (`event.is_press`) it says whether they count; a text is told to whoever has pressed.
        """
        return True

    # webhooks

    @begun_at_host
    @steering
    async def receive(self, event: MessengerEvent) -> JsonObject:
        """Accept an event; durable on return. The same event again changes nothing. What the ingress calls.

        Presses of buttons of questions are refused: they say who has answered, so they come by verified webhooks alone.
        """
        if event.is_press:
            raise BadRequest(
                "event", "is the press of a button of a question, which comes by a webhook of the provider alone"
            )
        deliveries = self._perdure_deliveries
        messenger = deliveries.messenger(event.messenger_id)
        with self.transaction():
            if not self._perdure_is_addressed(event, messenger):
                return {"accepted": False, "reply": "", "why": "not for the agent"}
            wish = await result_of(partial(self.on_messenger_event, event))
            if wish is False:
                return {"accepted": False, "reply": "", "why": "on_messenger_event"}
            return deliveries.accept(event, words=None if wish is True else _checked_words(wish))

    @begun_at_host
    @steering
    async def _perdure_press(self, event: MessengerEvent) -> JsonObject:
        # Accepts presses as `receive` does other events. No client of a gateway can call it.
        deliveries = self._perdure_deliveries
        messenger = deliveries.messenger(event.messenger_id)
        with self.transaction():
            wish = await result_of(partial(self.on_messenger_event, event))
            refusal = "" if wish is True else NOT_YOU if wish is False else _checked_words(wish)
            return deliveries.questions.press(event, refusal or ("" if messenger.lets_answer(event) else NOT_YOU))

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

    # questions of runs

    @exposed
    async def on_ask(self, ask: dict[str, Any]) -> None:
        """Post a question of a run (`run.ask(…, via=…)`) as it stands in the ledger, with a button for each answer; nothing if it is not
        open any more. The agent of the thread does it, unless `Messenger.conversation` names agents: then this one does."""
        told = await self._perdure_open_ask(ask.get("ask_id"))
        if told is not None:
            with self.transaction():
                self._perdure_pass_on(told)

    async def _perdure_open_ask(self, ask_id: object) -> dict[str, Any] | None:
        # Whoever calls may say anything, and people answer what they read.
        try:
            told = cast("dict[str, Any]", await self._perdure.ask(question_of(*about_ask(cast("str", ask_id)))))
        except UnknownAsk:
            return None
        return told if told["status"] == "open" else None

    def _perdure_pass_on(self, ask: dict[str, Any]) -> None:
        messenger, thread_id = self._perdure_thread("ask_thread", self.ask_thread(ask))
        is_chosen = type(self).ask_thread is not MessengerAgent.ask_thread
        groups = ask["to"] if is_chosen else self._perdure_groups_of(messenger.id, thread_id)
        owner = conversation_name(messenger.id, thread_id)
        if messenger.conversation is not None or owner == self.name:
            self._perdure_show_ask(ask, messenger.id, thread_id, groups)
        else:
            show = self.agent(type(self), owner)._perdure_show_ask  # noqa: SLF001 - of another agent of this class
            tell(show, ask, messenger.id, thread_id, groups)

    def _perdure_groups_of(self, messenger_id: str, thread_id: str) -> list[str]:
        here = messengers_of(type(self))[messenger_id], thread_id
        return sorted(name for name, to in self.ask_threads.items() if self._perdure_thread("ask_threads", to) == here)

    @exposed
    def _perdure_show_ask(self, ask: dict[str, Any], messenger_id: str, thread_id: str, groups: list[str]) -> None:
        with self.transaction():
            self._perdure_deliveries.questions.ask(cast("AskRow", ask), messenger_id, thread_id, groups)

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
        return self._perdure.part(
            Deliveries, lambda: Deliveries(self, self._perdure, messengers_of(type(self)), self._perdure_groups_of)
        )

    def _perdure_woken(self) -> None:
        super()._perdure_woken()
        self._perdure_deliveries.wake()


def _checked_words(words: object) -> str:
    if not isinstance(words, str) or not words.strip():
        raise BadRequest("text", f"{words!r:.200} is no text that could be posted")
    if len(words) > NOTICE_CHARS_MAX:
        raise BadRequest("text", f"has {len(words)} characters; the limit is {NOTICE_CHARS_MAX}")
    return words
