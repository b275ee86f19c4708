"""The events of every messenger: a message or the press of a button, by whom, where, and under which ids.

An event is plain data, stored in the agent from its acceptance on. `Attachment.metadata` has what fetches an attachment later; everything
else that the provider sent is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from hashlib import blake2b
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from perdure.actors.chat.plain_data import all_mended
from perdure.policies import JsonObject, Message

OURS: Final = "perdure"
NAME_MAX: Final = 256
_KEPT: Final = 180


class Frozen(BaseModel):
    """Immutable plain data. Providers deliver again what is refused, so characters that no store takes are mended."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _with_takable_texts(cls, given: object) -> object:
        return all_mended(given)


class Person(Frozen):
    """The author of an event."""

    id: str
    user_name: str = ""
    full_name: str = ""
    is_bot: bool = False

    @property
    def label(self) -> str:
        """The name for the model: the full name, else the user name, else the id."""
        return self.full_name or self.user_name or self.id


class Attachment(Frozen):
    """Something attached to a message. `id` is the provider's."""

    kind: str
    id: str | None = None
    name: str = ""
    media_type: str = ""
    size: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    metadata: JsonObject = Field(default_factory=dict)

    @property
    def line(self) -> str:
        size = "" if self.size is None else f"{self.size} bytes"
        more = ", ".join(filter(None, (self.media_type, size)))
        return f"- {self.kind}{f': {self.name}' if self.name else ''}{f' ({more})' if more else ''}"


class Action(Frozen):
    """A pressed button, and the text of its message. The id `perdure` is that of buttons of ours; `press_id` is the provider's of this
    press."""

    id: str
    value: str = ""
    message_text: str = ""
    press_id: str = ""


class Kind(StrEnum):
    """Why the agent is addressed; `message`: it is not."""

    DIRECT = "direct-message"
    MENTION = "mention"
    MESSAGE = "message"
    ACTION = "action"


class MessengerEvent(Frozen):
    """What somebody did in a thread.

    Attributes:
        dedupe_key: the same for every delivery of the same webhook, and unique otherwise.
        message_id: the message's id at the provider.
        is_direct: whether nobody else reads the thread.
        sent_at_ms: the provider's time of the message.
    """

    kind: Kind
    messenger_id: str
    provider: str
    thread_id: str
    message_id: str
    dedupe_key: str
    author: Person
    text: str = ""
    is_direct: bool = False
    attachments: tuple[Attachment, ...] = ()
    action: Action | None = None
    sent_at_ms: int = 0

    @property
    def is_press(self) -> bool:
        """Whether it is the press of a button of ours, below a question."""
        return self.action is not None and self.action.id == OURS

    @property
    def key(self) -> str:
        """Its name for people, and its idempotency key."""
        kind = "message" if self.action is None else "action"
        more = "" if self.action is None else f":{self.action.id}:{self.author.id}:{self.action.value}"
        return f"messenger:{self.messenger_id}:{kind}:{self.thread_id}:{self.message_id}{more}"


Speaker = Callable[[MessengerEvent], str | None] | Literal["author"] | None


def user_text(event: MessengerEvent, speaker: Speaker = "author") -> str:
    # The model is told the speaker's name where others read along.
    text, action = event.text, event.action
    if action is not None:
        about = {"Action selected": action.id, "Value": action.value, "Source message": action.message_text}
        text = "\n".join(f"{name}: {value}" for name, value in about.items() if value)
    if event.attachments:
        text = "\n".join([*([text] if text else []), "Attachments:", *(each.line for each in event.attachments)])
    label = None if event.is_direct else event.author.label if speaker == "author" else speaker and speaker(event)
    return f"{label}: {text}" if label else text


def user_message(event: MessengerEvent, speaker: Speaker = "author") -> Message:
    text = user_text(event, speaker)
    return {
        "id": short(f"{event.messenger_id}:{event.thread_id}:{event.dedupe_key}"),
        "role": "user",
        "parts": [{"type": "text", "text": text if text.strip() else "(nothing that can be shown as text)"}],
        "metadata": {"messenger": {"key": short(event.key), "kind": str(event.kind), "author": event.author.label}},
    }


def own_mentions(text: str, bot_id: str, user_name: str) -> str:
    # For adapters whose provider writes ids.
    if not bot_id or not user_name:
        return text
    own = re.escape(bot_id)
    return re.sub(rf"<@!?{own}>|@{own}\b", lambda _: f"@{user_name}", text)


def conversation_name(messenger_id: str, thread_id: str) -> str:
    """The name of the agent of one thread."""
    escaped = messenger_id.replace("%", "%25").replace(":", "%3A")
    return short(f"{escaped}:{thread_id}")


def short(name: str) -> str:
    if len(name) <= NAME_MAX:
        return name
    return f"{name[:_KEPT]}~{blake2b(name.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"
