"""Reads Telegram's webhooks strictly: a value of another type than the documented one is malformed.

Only fields that are used are read, so a new field or kind of update in the Bot API changes nothing. Edited messages and other bots are not
answered.
"""

from __future__ import annotations

from typing import Annotated, Final, TypedDict

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from perdure.actors.messenger.adapter import MalformedUpdate
from perdure.actors.messenger.events import Action, Attachment, Kind, MessengerEvent, Person
from perdure.ledger import of_json

Id = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Count = Annotated[int, Field(ge=0, lt=2**53)]
GENERAL: Final = "private"
FILES: Final = ("document", "audio", "voice", "video", "video_note", "animation", "sticker")


class _Read(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", populate_by_name=True)


class User(_Read):
    """The author of a message."""

    id: Id
    is_bot: bool = False
    first_name: str = ""
    last_name: str = ""
    username: str = ""

    @property
    def person(self) -> Person:
        """Their `Person`."""
        full = f"{self.first_name} {self.last_name}".strip()
        return Person(id=str(self.id), user_name=self.username, full_name=full, is_bot=self.is_bot)


class ChatRef(_Read):
    """A chat."""

    id: Id
    type: str


class Entity(_Read):
    """An entity of a text; its place is counted in UTF-16 units."""

    type: str
    offset: Count
    length: Count
    user: User | None = None


class File(_Read):
    """An attachment."""

    file_id: str
    file_unique_id: str = ""
    file_name: str = ""
    mime_type: str = ""
    file_size: Count | None = None


class Place(_Read):
    """A shared location."""

    latitude: float
    longitude: float


class Message(_Read):
    """A message."""

    message_id: Id
    chat: ChatRef
    date: Count = 0
    sender: User | None = Field(default=None, alias="from")
    text: str = ""
    caption: str = ""
    entities: list[Entity] = []
    caption_entities: list[Entity] = []
    message_thread_id: Id | None = None
    is_topic_message: bool = False
    reply_to_message: Message | None = None
    photo: list[File] = []
    document: File | None = None
    audio: File | None = None
    voice: File | None = None
    video: File | None = None
    video_note: File | None = None
    animation: File | None = None
    sticker: File | None = None
    location: Place | None = None

    @property
    def thread_id(self) -> str:
        """The thread: a chat, or a topic of one."""
        topic = f":{self.message_thread_id}" if self.is_topic_message and self.message_thread_id else ""
        return f"telegram:{self.chat.id}{topic}"

    @property
    def words(self) -> str:
        """What was written."""
        return self.text or self.caption

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        """The attachments; of a photo only the largest size."""
        found = [_attachment("photo", self.photo[-1])] if self.photo else []
        found += [_attachment(name, file) for name in FILES if (file := getattr(self, name)) is not None]
        if self.location is not None:
            place = f"{self.location.latitude:.6f}, {self.location.longitude:.6f}"
            found.append(Attachment(kind="location", name=place))
        return tuple(found)


class Query(_Read):
    """A button was pressed."""

    id: str
    sender: User = Field(alias="from")
    message: Message | None = None
    data: str = ""


class Update(_Read):
    """One webhook."""

    update_id: Id
    message: Message | None = None
    callback_query: Query | None = None


class _Common(TypedDict):
    """What the events of one update have in common."""

    messenger_id: str
    provider: str
    dedupe_key: str


def events_of(body: bytes, messenger_id: str, bot_id: str, user_name: str) -> list[MessengerEvent]:
    """The events of a webhook. Raises `MalformedUpdate`, which names the field."""
    try:
        update = Update.model_validate_json(body)
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_input=False)[0]
        raise MalformedUpdate(".".join(["update", *map(str, first["loc"])]), of_json(first["msg"])) from problem
    key = f"update:{update.update_id}"
    common: _Common = {"messenger_id": messenger_id, "provider": "telegram", "dedupe_key": key}
    if update.callback_query is not None:
        return _pressed(update.callback_query, common)
    return [] if update.message is None else _written(update.message, common, bot_id, user_name)


def _written(message: Message, common: _Common, bot_id: str, user_name: str) -> list[MessengerEvent]:
    sender = message.sender
    if sender is None or sender.is_bot or not (message.words or message.attachments):
        return []
    is_direct = message.chat.type == GENERAL
    is_mention = _mentions(message, bot_id, user_name)
    event = MessengerEvent(
        kind=Kind.DIRECT if is_direct else Kind.MENTION if is_mention else Kind.MESSAGE,
        thread_id=message.thread_id,
        message_id=str(message.message_id),
        author=sender.person,
        text=message.words,
        is_direct=is_direct,
        attachments=message.attachments,
        sent_at_ms=message.date * 1000,
        **common,
    )
    return [event]


def _pressed(query: Query, common: _Common) -> list[MessengerEvent]:
    message = query.message
    if message is None or query.sender.is_bot:
        return []
    action_id, _, value = query.data.partition(":")
    event = MessengerEvent(
        kind=Kind.ACTION,
        thread_id=message.thread_id,
        message_id=str(message.message_id),
        author=query.sender.person,
        is_direct=message.chat.type == GENERAL,
        action=Action(id=action_id, value=value, message_text=message.words),
        **common,
    )
    return [event]


def _mentions(message: Message, bot_id: str, user_name: str) -> bool:
    """Whether the bot is addressed: by name, by a command with its name, or by an answer to one of its messages."""
    answered = message.reply_to_message
    if answered is not None and answered.sender is not None and str(answered.sender.id) == bot_id:
        return True
    units = message.words.encode("utf-16-le", "surrogatepass")
    name = f"@{user_name}".lower()
    for entity in message.entities if message.text else message.caption_entities:
        raw = units[2 * entity.offset : 2 * (entity.offset + entity.length)]
        said = raw.decode("utf-16-le", "replace").lower()
        if entity.type == "text_mention" and entity.user is not None and str(entity.user.id) == bot_id:
            return True
        is_named = said == name if entity.type == "mention" else entity.type == "bot_command" and said.endswith(name)
        if user_name and is_named:
            return True
    return False


def _attachment(kind: str, file: File) -> Attachment:
    return Attachment(
        kind=kind,
        id=file.file_unique_id or file.file_id,
        name=file.file_name,
        media_type=file.mime_type,
        size=file.file_size,
        metadata={"fileId": file.file_id},
    )
