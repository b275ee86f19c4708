"""Telegram, on python-telegram-bot's client of the Bot API.

The library's retries are off, and its flood control does not wait: the agent decides and records what is repeated, and when. The kind of an
error decides whether a post may be repeated: a connection that was never made sent nothing; one that fell silent may have sent everything.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Final, NamedTuple, TypedDict, TypeVar

import httpx
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from telegram import Bot, InlineKeyboardButton, InlineKeyboardMarkup, LinkPreviewOptions, MessageEntity
from telegram.error import BadRequest as BadTelegram
from telegram.error import NetworkError, TelegramError, TimedOut
from telegram.request import BaseRequest, HTTPXRequest

from perdure.actors.messenger.adapter import (
    Button,
    MalformedUpdate,
    MessageGone,
    MessageUnchanged,
    ProviderBusy,
    ProviderRefused,
    ProviderSilent,
    ProviderTrouble,
    ProviderUnreached,
    TextLimits,
    Webhook,
)
from perdure.actors.messenger.messenger_events import Action, Attachment, Kind, MessengerEvent, Person
from perdure.ledger import BadRequest, Secret, check_number, check_whole, of_json, revealed
from perdure.policies import INFINITY, Counting, is_number, length_of

T = TypeVar("T")

API: Final = "https://api.telegram.org/bot"
SECRET_HEADER: Final = "x-telegram-bot-api-secret-token"  # noqa: S105 - the name of the header, which everybody knows
TEXT_MAX: Final = 4096
TIMEOUT_S: Final = 20.0
ANSWER_MAX: Final = 200  # characters of the answer to a press
KEY_BYTES_MAX: Final = 64
ROW_CHARS_MAX: Final = 24  # of the labels of buttons beside each other
BATCH_S: Final = 5.0  # how long a request may wait before it is sent
UNSENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
GONE: Final = (
    "message to edit not found",
    "message to delete not found",
    "message can't be edited",
    "message_id_invalid",
)
TOO_MANY: Final = 429


# ---------------------------------------------------------------- telegram text
# Turns an answer into plain text with Telegram's entities: code blocks, inline code, and bold.
#
# Telegram's markup languages are not used, so nothing that a model writes can break a message or be taken for a link. Marks that do not
# pair stay as they are. Places are counted in UTF-16 units, as Telegram does.


ENTITIES_MAX: Final = 100  # Telegram's own limit for one message
_BLOCK: Final = re.compile(
    r"^ {0,3}(`{3,}|~{3,})([^`\n]*)\n(.*?)(?:^ {0,3}\1[ \t]*(?:\n|\Z)|\Z)", re.DOTALL | re.MULTILINE
)
_INLINE: Final = re.compile(r"`([^`\n]+)`|\*\*(?=\S)([^*\n]+?)(?<=\S)\*\*")
_LANGUAGE: Final = re.compile(r"[A-Za-z0-9_+#.-]{1,32}")


class TextEntity(NamedTuple):
    # `kind` is Telegram's name for it.
    kind: str
    offset: int
    length: int
    language: str | None = None


def rendered(text: str) -> tuple[str, list[TextEntity]]:
    shown: list[str] = []
    spans: list[TextEntity] = []
    at = 0
    for block in _BLOCK.finditer(text):
        _add_lines(text[at : block.start()], shown, spans)
        body = block[3].removesuffix("\n")
        if body.strip():
            named = _LANGUAGE.fullmatch(block[2].strip())
            _add(body, shown, spans, "pre", named[0] if named else None)
            shown.append("\n" if block[0].endswith("\n") else "")
        else:
            shown.append(block[0])
        at = block.end()
    _add_lines(text[at:], shown, spans)
    whole = "".join(shown)
    return (whole, spans[:ENTITIES_MAX]) if whole.strip() else (text, [])


def _add_lines(text: str, shown: list[str], spans: list[TextEntity]) -> None:
    at = 0
    for found in _INLINE.finditer(text):
        shown.append(text[at : found.start()])
        _add(found[1] or found[2], shown, spans, "code" if found[1] else "bold", None)
        at = found.end()
    shown.append(text[at:])


def _add(body: str, shown: list[str], spans: list[TextEntity], kind: str, language: str | None) -> None:
    before = sum(length_of(each, Counting.UTF16) for each in shown)
    spans.append(TextEntity(kind, before, length_of(body, Counting.UTF16), language))
    shown.append(body)


# ---------------------------------------------------------------- telegram updates
# Reads Telegram's webhooks strictly: a value of another type than the documented one is malformed.
#
# Only fields that are used are read, so a new field or kind of update in the Bot API changes nothing. Edited messages and other bots are
# not answered.


Id = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Count = Annotated[int, Field(ge=0, lt=2**53)]
GENERAL: Final = "private"
FILES: Final = ("document", "audio", "voice", "video", "video_note", "animation", "sticker")


class _Read(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", populate_by_name=True)


class User(_Read):
    id: Id
    is_bot: bool = False
    first_name: str = ""
    last_name: str = ""
    username: str = ""

    @property
    def person(self) -> Person:
        full = f"{self.first_name} {self.last_name}".strip()
        return Person(id=str(self.id), user_name=self.username, full_name=full, is_bot=self.is_bot)


class ChatRef(_Read):
    id: Id
    type: str


class Entity(_Read):
    # Its place in the text is counted in UTF-16 units.
    type: str
    offset: Count
    length: Count
    user: User | None = None


class File(_Read):
    file_id: str
    file_unique_id: str = ""
    file_name: str = ""
    mime_type: str = ""
    file_size: Count | None = None


class TelegramPlace(_Read):
    latitude: float
    longitude: float


class TelegramMessage(_Read):
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
    reply_to_message: TelegramMessage | None = None
    photo: list[File] = []
    document: File | None = None
    audio: File | None = None
    voice: File | None = None
    video: File | None = None
    video_note: File | None = None
    animation: File | None = None
    sticker: File | None = None
    location: TelegramPlace | None = None

    @property
    def thread_id(self) -> str:
        topic = f":{self.message_thread_id}" if self.is_topic_message and self.message_thread_id else ""
        return f"telegram:{self.chat.id}{topic}"

    @property
    def words(self) -> str:
        return self.text or self.caption

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        found = [_attachment("photo", self.photo[-1])] if self.photo else []  # the largest size comes last
        found += [_attachment(name, file) for name in FILES if (file := getattr(self, name)) is not None]
        if self.location is not None:
            place = f"{self.location.latitude:.6f}, {self.location.longitude:.6f}"
            found.append(Attachment(kind="location", name=place))
        return tuple(found)


class Query(_Read):
    # A button was pressed.
    id: str
    sender: User = Field(alias="from")
    message: TelegramMessage | None = None
    data: str = ""


class Update(_Read):
    update_id: Id
    message: TelegramMessage | None = None
    callback_query: Query | None = None


class _Common(TypedDict):
    messenger_id: str
    provider: str
    dedupe_key: str


def events_of(body: bytes, messenger_id: str, bot_id: str, user_name: str) -> list[MessengerEvent]:
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


def _written(message: TelegramMessage, common: _Common, bot_id: str, user_name: str) -> list[MessengerEvent]:
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
        action=Action(id=action_id, value=value, message_text=message.words, press_id=query.id),
        **common,
    )
    return [event]


def _mentions(message: TelegramMessage, bot_id: str, user_name: str) -> bool:
    # The bot is addressed by name, by a command with its name, or by an answer to one of its messages.
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


# ---------------------------------------------------------------- telegram


class Flood(TelegramError):
    # Telegram asks for a pause.

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(f"flood control: again in {retry_after_s:g} s")
        self.retry_after_s = retry_after_s


class TelegramWire(BaseRequest):
    # The library's way to the network, which raises `Flood` with the pause that Telegram asks for.

    def __init__(self, inner: BaseRequest) -> None:
        self._inner = inner

    @property
    def read_timeout(self) -> float | None:
        return self._inner.read_timeout

    async def initialize(self) -> None:
        """Do nothing."""

    async def shutdown(self) -> None:
        await self._inner.shutdown()

    async def do_request(self, *args: Any, **kwargs: Any) -> tuple[int, bytes]:
        status, body = await self._inner.do_request(*args, **kwargs)
        if status == TOO_MANY:
            raise Flood(_pause_s(body))
        return status, body


class Telegram:
    """One bot.

    Args:
        token: as BotFather gave it, or the `Secret` that names it.
        secret_token: sent by Telegram with each webhook if `setWebhook` had it. Without one the messenger needs a `verify`.
        user_name: the bot's, without @, which finds mentions in groups. By default `prepare` asks Telegram for it.
        base_url: what the token is appended to.
        text_max: the longest message, in UTF-16 units.
        edit_every_ms, group_edit_every_ms: the least time between two edits of a message.
        requests_per_s: of this process, over all threads; Telegram takes about thirty from one bot.
        wire: makes the way to the network; for worlds without one.
    """

    provider = "telegram"

    def __init__(
        self,
        token: str | Secret,
        *,
        secret_token: str | Secret | None = None,
        user_name: str = "",
        base_url: str = API,
        text_max: int = TEXT_MAX,
        edit_every_ms: int = 1_000,
        group_edit_every_ms: int = 3_000,
        requests_per_s: float = 25,
        wire: Callable[[], BaseRequest] | None = None,
    ) -> None:
        token, secret = revealed(token), None if secret_token is None else revealed(secret_token)
        bot_id, parted, rest = token.partition(":")
        if not (parted and rest and bot_id.isascii() and bot_id.isdigit()):
            raise BadRequest("token", "is not a bot's token, such as 123456:ABC-DEF; BotFather gives one")
        if secret is not None and not secret.strip():
            raise BadRequest("secret_token", "is blank; leave it out, and give the messenger a `verify`")
        check_whole("text_max", text_max, most=TEXT_MAX)
        check_number("requests_per_s", requests_per_s, is_finite=True, above=True)
        self.bot_id, self.user_name = bot_id, user_name.removeprefix("@")
        self.verifies = secret is not None
        self._token, self._secret, self._base_url, self._wire = token, secret, base_url, wire
        self._text_max, self._every_ms = text_max, (edit_every_ms, group_edit_every_ms)
        self._apart_s = 1 / requests_per_s
        self._next_s: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, float] = weakref.WeakKeyDictionary()
        self._bots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Bot] = weakref.WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"<Telegram bot {self.bot_id}>"  # never the token

    # coming in

    def verify(self, webhook: Webhook) -> bool:
        given = webhook.headers.get(SECRET_HEADER, "")
        return self._secret is not None and hmac.compare_digest(given.encode(errors="replace"), self._secret.encode())

    def parse(self, messenger_id: str, webhook: Webhook) -> list[MessengerEvent]:
        return events_of(webhook.body, messenger_id, self.bot_id, self.user_name)

    async def prepare(self) -> None:
        if not self.user_name:
            self.user_name = (await self._asked(self._bot.get_me)).username or ""

    # going out

    def limits(self, thread_id: str) -> TextLimits:
        return TextLimits(self._text_max, Counting.UTF16, self._every_ms[thread_id.startswith("telegram:-")])

    async def post(self, thread_id: str, text: str) -> str:
        return await self.post_with_buttons(thread_id, text, ())

    async def post_with_buttons(self, thread_id: str, text: str, buttons: Sequence[Button]) -> str:
        """Post a message with an inline keyboard, and return its id."""
        chat_id, topic = _place(thread_id)
        shown, entities = _entities(text)
        keyboard = _keyboard(buttons)
        sent = await self._asked(
            lambda: self._bot.send_message(
                chat_id,
                shown,
                entities=entities,
                message_thread_id=topic,
                link_preview_options=_NO_PREVIEW,
                reply_markup=keyboard,
            )
        )
        return str(sent.message_id)

    async def edit(self, thread_id: str, message_id: str, text: str) -> None:
        await self.edit_with_buttons(thread_id, message_id, text, ())  # one that names no buttons takes them away

    async def edit_with_buttons(self, thread_id: str, message_id: str, text: str, buttons: Sequence[Button]) -> None:
        place = _place(thread_id)[0], int(message_id)
        shown, entities = _entities(text)
        keyboard = _keyboard(buttons)
        await self._asked(
            lambda: self._bot.edit_message_text(
                shown, *place, entities=entities, link_preview_options=_NO_PREVIEW, reply_markup=keyboard
            )
        )

    async def answer_press(self, press_id: str, text: str) -> None:
        await self._asked(lambda: self._bot.answer_callback_query(press_id, text[:ANSWER_MAX]))

    async def delete(self, thread_id: str, message_id: str) -> None:
        await self._asked(lambda: self._bot.delete_message(_place(thread_id)[0], int(message_id)))

    async def typing(self, thread_id: str) -> None:
        chat_id, topic = _place(thread_id)
        await self._asked(lambda: self._bot.send_chat_action(chat_id, "typing", message_thread_id=topic))

    async def set_webhook(self, url: str) -> None:
        """Tell Telegram where webhooks go. Raises `BadRequest` if that is no address over HTTPS."""
        if not url.startswith("https://"):
            raise BadRequest("url", f"{url!r:.200} is not an address over HTTPS, as Telegram demands")
        updates = ["message", "callback_query"]
        await self._asked(lambda: self._bot.set_webhook(url, secret_token=self._secret, allowed_updates=updates))

    async def close(self) -> None:
        """Close the connections of this loop."""
        bot = self._bots.pop(asyncio.get_running_loop(), None)
        if bot is not None:
            await bot.request.shutdown()

    @property
    def _bot(self) -> Bot:  # connections belong to the loop that opened them
        loop = asyncio.get_running_loop()
        found = self._bots.get(loop)
        if found is None:
            network = HTTPXRequest(64, read_timeout=TIMEOUT_S, write_timeout=TIMEOUT_S, pool_timeout=TIMEOUT_S)
            wire = TelegramWire(network if self._wire is None else self._wire())
            # Without a wire for updates the library would open connections of its own for them.
            found = self._bots[loop] = Bot(self._token, self._base_url, request=wire, get_updates_request=wire)
        return found

    async def _asked(self, request: Callable[[], Awaitable[T]]) -> T:
        loop = asyncio.get_running_loop()
        at_s = max(loop.time(), self._next_s.get(loop, 0.0))  # all threads share the rate of the bot
        if at_s > loop.time() + BATCH_S:
            raise ProviderBusy("too many requests of this process are waiting", (at_s - loop.time()) * 1000)
        self._next_s[loop] = at_s + self._apart_s
        if at_s > loop.time():
            await asyncio.sleep(at_s - loop.time())
        try:
            return await request()
        except TelegramError as problem:
            raise _told(problem) from problem


def _told(problem: TelegramError) -> ProviderTrouble:
    said = problem.message
    if isinstance(problem, Flood):
        return ProviderBusy(said, problem.retry_after_s * 1000)
    if isinstance(problem, BadTelegram):  # for the library one of its network errors, so it comes first
        lower = said.lower()
        if "message is not modified" in lower:
            return MessageUnchanged(said)
        return MessageGone(said) if any(each in lower for each in GONE) else ProviderRefused(said)
    if isinstance(problem, TimedOut | NetworkError):
        return (ProviderUnreached if isinstance(problem.__cause__, UNSENT) else ProviderSilent)(said)
    return ProviderRefused(said)


def _pause_s(body: bytes) -> float:
    # A pause that cannot be read is a second.
    try:
        pause = json.loads(body)["parameters"]["retry_after"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return 1.0
    return float(pause) if is_number(pause) and 0 <= pause < INFINITY else 1.0


def _place(thread_id: str) -> tuple[int, int | None]:
    _, chat, *topic = thread_id.split(":")
    return int(chat), int(topic[0]) if topic else None


def _entities(text: str) -> tuple[str, list[MessageEntity]]:
    shown, spans = rendered(text)
    return shown, [MessageEntity(each.kind, each.offset, each.length, language=each.language) for each in spans]


def _keyboard(buttons: Sequence[Button]) -> InlineKeyboardMarkup | None:
    # Short labels stand beside each other, and long ones below each other.
    long = next((each.key for each in buttons if len(each.key.encode()) > KEY_BYTES_MAX), None)
    if long is not None:
        raise BadRequest("buttons.key", f"{long!r:.200} has more than the {KEY_BYTES_MAX} bytes that Telegram takes")
    rows: list[list[InlineKeyboardButton]] = []
    width = ROW_CHARS_MAX
    for each in buttons:
        width += len(each.label)
        if width > ROW_CHARS_MAX:
            rows.append([])
            width = len(each.label)
        rows[-1].append(InlineKeyboardButton(each.label, callback_data=each.key))
    return InlineKeyboardMarkup(rows) if rows else None


_NO_PREVIEW = LinkPreviewOptions(is_disabled=True)
