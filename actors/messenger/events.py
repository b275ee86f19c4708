"""What comes from a messenger, whichever it is: a message or the press of a button, by whom, where, and under which ids.

An event is plain data: it stands in the agent's storage from its acceptance on, and everything that follows can be done from there again.
What a provider sent beside it is not kept; what is needed to fetch an attachment later is (`Attachment.metadata`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from hashlib import blake2b
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from perdure.policies import JsonObject, Message

NAME_MAX: Final = 256
_KEPT: Final = 180


class Plain(BaseModel):
    """Plain data that nobody changes."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Person(Plain):
    """Somebody who writes. What speaks for them is the full name, else the user name, else the id."""

    id: str
    user_name: str = ""
    full_name: str = ""
    is_bot: bool = False

    @property
    def label(self) -> str:
        """How the model is told who speaks."""
        return self.full_name or self.user_name or self.id


class Attachment(Plain):
    """Something that is no text. `id` names it at the provider; without one of its own it is the provider's file id."""

    kind: str
    id: str | None = None
    name: str = ""
    media_type: str = ""
    size: int | None = None
    metadata: JsonObject = Field(default_factory=dict)

    @property
    def line(self) -> str:
        """How the model is told of it."""
        more = ", ".join(
            each for each in (self.media_type, f"{self.size} bytes" if self.size is not None else "") if each
        )
        return f"- {self.kind}{': ' + self.name if self.name else ''}{f' ({more})' if more else ''}"


class Action(Plain):
    """A button that was pressed, and the message below which it stood."""

    id: str
    value: str = ""
    message_text: str = ""


class Kind(StrEnum):
    """Why the agent is addressed, or that it is not."""

    DIRECT = "direct-message"
    MENTION = "mention"
    MESSAGE = "message"
    ACTION = "action"


class MessengerEvent(Plain):
    """One thing that somebody did in a thread.

    Attributes:
        dedupe_key: the same for every delivery of the same webhook, and for nothing else of this messenger.
        message_id: the message's id at the provider, to which an answer may refer.
        is_direct: whether nobody else reads the thread.
        sent_at_ms: when the provider says that it was written.
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
    def key(self) -> str:
        """What names it for people and as an idempotency key."""
        kind = "message" if self.action is None else "action"
        more = "" if self.action is None else f":{self.action.id}:{self.author.id}:{self.action.value}"
        return f"messenger:{self.messenger_id}:{kind}:{self.thread_id}:{self.message_id}{more}"


Speaker = Callable[[MessengerEvent], str | None] | Literal["author"] | None


def user_text(event: MessengerEvent, speaker: Speaker = "author") -> str:
    """What the model is told: what was written, by whom where others read along, and what was attached."""
    text = event.text if event.action is None else _action_text(event.action)
    if event.attachments:
        text = "\n".join([*([text] if text else []), "Attachments:", *(each.line for each in event.attachments)])
    label = None if event.is_direct else event.author.label if speaker == "author" else speaker and speaker(event)
    return f"{label}: {text}" if label else text


def _action_text(action: Action) -> str:
    lines = [f"Action selected: {action.id}"]
    lines += [f"Value: {action.value}"] if action.value else []
    lines += [f"Source message: {action.message_text}"] if action.message_text else []
    return "\n".join(lines)


def user_message(event: MessengerEvent, speaker: Speaker = "author") -> Message:
    """The message of the user in the transcript. Its id is the same however often it is made."""
    return {
        "id": short(f"{event.messenger_id}:{event.thread_id}:{event.dedupe_key}"),
        "role": "user",
        "parts": [{"type": "text", "text": user_text(event, speaker) or "(nothing that can be shown as text)"}],
        "metadata": {"messenger": {"key": short(event.key), "kind": str(event.kind), "author": event.author.label}},
    }


def own_mentions(text: str, bot_id: str, user_name: str) -> str:
    """A text in which the agent's own id is its name, for adapters whose provider writes ids."""
    if not bot_id or not user_name:
        return text
    own = re.escape(bot_id)
    return re.sub(rf"<@!?{own}>|@{own}\b", lambda _: f"@{user_name}", text)


def conversation_name(messenger_id: str, thread_id: str) -> str:
    """The name of the agent of one thread. Different threads have different names."""
    escaped = messenger_id.replace("%", "%25").replace(":", "%3A")
    return short(f"{escaped}:{thread_id}")


def short(name: str) -> str:
    """A name as it is, or if it is too long for one, its beginning and a digest of the whole."""
    if len(name) <= NAME_MAX:
        return name
    return f"{name[:_KEPT]}~{blake2b(name.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"
