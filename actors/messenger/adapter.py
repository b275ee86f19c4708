"""The interface of a messenger's adapter, its errors, and the declaration of a messenger.

An adapter keeps no state that must survive, and retries nothing. The agent decides, records and repeats what is sent (`deliveries`). The
adapter says of each failed request which kind of failure it was, because that decides what may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal, NamedTuple, Protocol, runtime_checkable

from perdure.actors.messenger.messenger_events import Kind, MessengerEvent, Speaker, conversation_name
from perdure.ledger import BadRequest, PerdureError, check_bool
from perdure.policies import Counting, Delivery, DeliveryTrouble

RESPOND_TO: Final = frozenset({"direct-message", "mention", "subscribed-thread", "action"})
RESERVED: Final = frozenset({"/get-messages"})


class ProviderTrouble(PerdureError):
    """A request to a provider failed. `retry_after_ms` is the pause that the provider asks for, or None."""

    trouble: ClassVar[DeliveryTrouble] = DeliveryTrouble.REFUSED

    def __init__(self, said: str, retry_after_ms: float | None = None) -> None:
        super().__init__(said, retry_after_ms)
        self.said, self.retry_after_ms = said, retry_after_ms

    def __str__(self) -> str:
        return self.said


class ProviderBusy(ProviderTrouble):
    """The request was not done; it may be repeated after a pause."""

    trouble = DeliveryTrouble.BUSY


class ProviderUnreached(ProviderTrouble):
    """The request was certainly not sent."""

    trouble = DeliveryTrouble.UNREACHED


class ProviderSilent(ProviderTrouble):
    """The request was sent, or may have been, and no response was seen."""

    trouble = DeliveryTrouble.UNKNOWN


class MessageUnchanged(ProviderTrouble):
    """The message already has the text of the edit."""

    trouble = DeliveryTrouble.UNCHANGED


class MessageGone(ProviderTrouble):
    """The message to edit no longer exists."""

    trouble = DeliveryTrouble.GONE


class ProviderRefused(ProviderTrouble):
    """The request will never be done: the agent was blocked, the thread does not exist, the token is wrong."""

    trouble = DeliveryTrouble.REFUSED


class MalformedUpdate(BadRequest):
    """A verified webhook that cannot be read. Nothing was accepted."""


class Webhook(NamedTuple):
    """One request as it came. Names of headers are lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class WebhookReply(NamedTuple):
    """A verifier's answer to a webhook that it does not let in."""

    status: int
    text: str = ""


class TextLimits(NamedTuple):
    """The longest text of a message, how it is counted, and the least time between two edits in milliseconds."""

    text_max: int
    counting: Counting
    edit_every_ms: int


class Adapter(Protocol):
    """One provider of messages. It raises `ProviderTrouble`; anything else is a bug."""

    provider: str
    verifies: bool  # whether `verify` has a secret to tell the provider's webhooks by

    def verify(self, webhook: Webhook) -> bool | WebhookReply:
        """Whether the webhook is the provider's. Called before the body is parsed."""

    def parse(self, messenger_id: str, webhook: Webhook) -> list[MessengerEvent]:
        """The events of a verified webhook, none if it is of no interest. Raises `MalformedUpdate`."""

    def limits(self, thread_id: str) -> TextLimits:
        """The limits of texts in a thread."""

    async def post(self, thread_id: str, text: str) -> str:
        """Post a message, and return its id."""

    async def edit(self, thread_id: str, message_id: str, text: str) -> None:
        """Replace the text of a message."""

    async def delete(self, thread_id: str, message_id: str) -> None:
        """Delete a message."""

    async def typing(self, thread_id: str) -> None:
        """Show the typing indicator."""


class Button(NamedTuple):
    """A button below a message. A press of it comes back as an `Action` whose id and value are those of `key`, parted by a colon.

    Providers take few bytes of a key (Telegram 64), so it names what the agent has on record.
    """

    label: str
    key: str


@runtime_checkable
class ButtonAdapter(Adapter, Protocol):
    """An adapter of a provider that has buttons. The parsed event of a press has the press's id as `Action.press_id`."""

    async def post_with_buttons(self, thread_id: str, text: str, buttons: Sequence[Button]) -> str:
        """Post a message with buttons, and return its id."""

    async def edit_with_buttons(self, thread_id: str, message_id: str, text: str, buttons: Sequence[Button]) -> None:
        """Replace the text and the buttons of a message. `edit` takes its buttons away."""

    async def answer_press(self, press_id: str, text: str) -> None:
        """Tell the one who pressed what came of it. Told again it changes nothing."""


Verifier = Callable[[Webhook], "bool | WebhookReply"]
MayAnswer = Collection[str] | Callable[[MessengerEvent], bool]


@dataclass(frozen=True, kw_only=True)
class Messenger:
    """One messenger of an agent class.

    Attributes:
        id: names it; part of its path, of conversation names and of ids.
        path: of its webhooks; by default `/messengers/<id>/webhook`.
        verify: `adapter` lets the adapter decide, a function decides itself, `False` lets anybody write.
        respond_to: what is answered: `direct-message`, `mention`, `subscribed-thread`, `action`.
        subscribe_on_mention: whether a mention subscribes to the thread.
        speaker: the name that the model is told where others read along: `author`, a function of the event, or None.
        conversation: the name of the agent for an event; None is one agent for each thread.
        may_answer: whose presses of the buttons of questions count: a function of the press, or ids of authors. By default all count
            for which `on_messenger_event` returns True, which is asked in any case.
    """

    id: str
    adapter: Adapter
    path: str = ""
    verify: Literal["adapter", False] | Verifier = "adapter"
    respond_to: frozenset[str] = frozenset({"direct-message", "mention"})
    subscribe_on_mention: bool = True
    delivery: Delivery = field(default_factory=Delivery)
    speaker: Speaker = "author"
    conversation: Callable[[MessengerEvent], str] | None = None
    may_answer: MayAnswer | None = None

    def takes(self, event: MessengerEvent) -> bool:
        """Whether an agent may want to answer an event. Only the agent knows its subscriptions."""
        if event.is_press:
            return True
        is_addressed = event.kind in (Kind.DIRECT, Kind.ACTION)
        return event.kind in self.respond_to or (not is_addressed and "subscribed-thread" in self.respond_to)

    def lets_answer(self, press: MessengerEvent) -> bool:
        """Whether `may_answer` lets a press count. Raises `BadRequest` if it says neither yes nor no."""
        if self.may_answer is None:
            return True
        if not callable(self.may_answer):
            return press.author.id in self.may_answer
        return check_bool("messengers.may_answer", self.may_answer(press))

    def agent_name(self, event: MessengerEvent) -> str:
        given = None if self.conversation is None else self.conversation(event)
        return conversation_name(self.id, event.thread_id) if given is None else given

    @property
    def webhook_path(self) -> str:
        return self.path or f"/messengers/{self.id}/webhook"

    def verified(self, webhook: Webhook) -> bool | WebhookReply:
        """Whether a webhook is accepted, or what is answered instead."""
        if self.verify is False:
            return True
        return self.adapter.verify(webhook) if self.verify == "adapter" else self.verify(webhook)


def declared(messengers: Iterable[Messenger]) -> dict[str, Messenger]:
    # Raises `BadRequest` for what could not work.
    found: dict[str, Messenger] = {}
    paths: dict[str, str] = {}
    for each in messengers:
        _check(each)
        if each.id in found:
            raise BadRequest("messengers.id", f"{each.id!r} is declared twice")
        if each.webhook_path in paths:
            raise BadRequest("messengers.path", f"{each.webhook_path!r} is also used by {paths[each.webhook_path]!r}")
        found[each.id], paths[each.webhook_path] = each, each.id
    return found


def _check(each: Messenger) -> None:
    if not each.id or "/" in each.id or any(sign in each.id for sign in "?#\0") or each.id != each.id.strip():
        raise BadRequest(
            "messengers.id", f"{each.id!r} is no name: it is part of a path, so no outer blanks, /, ? or #"
        )
    path = each.webhook_path
    if not path.startswith("/") or any(sign in path for sign in "?#") or path in RESERVED:
        raise BadRequest("messengers.path", f"{path!r} is no path of its own: it begins with / and has neither ? nor #")
    if each.respond_to - RESPOND_TO:
        unknown = ", ".join(sorted(each.respond_to - RESPOND_TO))
        raise BadRequest("messengers.respond_to", f"{unknown}: there are {', '.join(sorted(RESPOND_TO))}")
    if each.verify is not False and each.verify != "adapter" and not callable(each.verify):
        raise BadRequest("messengers.verify", f"{each.verify!r} is neither 'adapter', nor a function, nor False")
    _check_may_answer(each.may_answer)
    if each.verify == "adapter" and not each.adapter.verifies:
        words = "its adapter has no secret to verify webhooks with; give it one, or a function, or False: then anybody may write"
        raise BadRequest("messengers.verify", f"{each.id}: {words}")


def _check_may_answer(given: object) -> None:
    if given is None or callable(given):
        return
    ids = list(given) if isinstance(given, list | tuple | set | frozenset) else [None]
    if not all(isinstance(each, str) and each for each in ids):
        words = "is neither a function of a press nor a collection of ids of authors, which are texts"
        raise BadRequest("messengers.may_answer", f"{given!r:.200} {words}")
    if not ids:
        raise BadRequest("messengers.may_answer", "is empty, so nobody could answer; leave it out to let everybody")
