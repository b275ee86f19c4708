"""A simulated Telegram: the part of the Bot API that a messenger needs, and faults on demand.

`BotApi` has no sockets and no clock. It keeps every message with all its texts, so its log shows what people have seen. Behind HTTP, as
`/bot<token>/<method>`:

    with SocketTelegram() as telegram:
        bot = Telegram("1:token", secret_token="…", base_url=telegram.base_url)
        telegram.plan([BotFault(method="sendMessage", kind="silent")])
        …
        telegram.log()

In the simulated world, behind the same client library and in virtual time:

    telegram = BotApi()
    bot = Telegram("1:token", secret_token="…", wire=partial(SimWire, telegram))

That one lives outside of every simulated process, so messages outlive the process that posted them.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, Self
from urllib.parse import parse_qsl

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send
from telegram.error import NetworkError
from telegram.request import BaseRequest, RequestData

from perdure.scenarios.provider.events import Plain
from perdure.scenarios.provider.sockets import HOST, Sockets, gone, reset

TEXT_MAX: Final = 4096
KEY_BYTES_MAX: Final = 64
FIRST_MESSAGE: Final = 1_000
FIRST_PRESS: Final = 1_000_000  # above the numbers of updates that a story makes itself
BOT_NAME: Final = "perdure_bot"
REFUSALS: Final = {
    "error": (500, "Internal Server Error"),
    "forbidden": (403, "Forbidden: bot was blocked by the user"),
}


class BotFault(Plain):
    """A fault of the next request of a method, perhaps in one chat.

    `busy` asks the bot to wait, `silent` is done but not answered, `lost` is neither done nor answered, `hold` is done and answered after
    `seconds`, `error` is refused with a 500, and `forbidden` for good.
    """

    method: str
    kind: Literal["busy", "silent", "lost", "hold", "error", "forbidden"]
    chat_id: int | None = None
    seconds: float = Field(default=1.0, ge=0)
    times: int = Field(default=1, ge=1)


# Without a status there is none.
class BotAnswer(NamedTuple):
    status: int | None
    body: Any = None
    after_s: float = 0.0


class Posted(Plain):
    chat_id: int
    message_id: int
    said: list[tuple[int, str]]
    buttons: list[tuple[str, str]] = Field(default_factory=list)  # labels, and the data that a press brings
    is_deleted: bool = False

    @property
    def text(self) -> str:
        return self.said[-1][1]


class Asked(Plain):
    number: int
    at_ms: int
    method: str
    chat_id: int | None
    message_id: int | None
    text: str
    fate: str
    status: int | None


class Pressed(Plain):
    press_id: str
    chat_id: int
    message_id: int
    person: str
    label: str
    told: list[str] = Field(default_factory=list)


class BotRefusal(Exception):
    """A status, and its description."""


class BotApi:
    """One Telegram."""

    def __init__(self) -> None:
        self.messages: dict[tuple[int, int], Posted] = {}
        self.asked: list[Asked] = []
        self.faults: list[BotFault] = []
        self.webhook: dict[str, Any] = {}
        self.presses: dict[str, Pressed] = {}

    def press(self, seen: Posted, label: str, person: str, person_id: int) -> dict[str, Any]:
        """Somebody presses a button of a message as their device shows it: it may be gone by now. Returns the update for the webhook."""
        message, data = self.messages[seen.chat_id, seen.message_id], dict(seen.buttons)[label]
        number = FIRST_PRESS + len(self.presses)
        pressed = Pressed(
            press_id=str(number), chat_id=seen.chat_id, message_id=seen.message_id, person=person, label=label
        )
        self.presses[pressed.press_id] = pressed
        sender = {"id": person_id, "is_bot": False, "first_name": person}
        query = {"id": pressed.press_id, "from": sender, "message": _shown(message), "data": data}
        return {"update_id": number, "callback_query": query}

    def plan(self, faults: list[BotFault]) -> None:
        self.faults += faults

    def receive(self, method: str, given: Mapping[str, Any], at_ms: int) -> BotAnswer:
        chat_id = _number(given.get("chat_id"))
        fault = self._fault(method, chat_id)
        answer = self._answered(method, given, at_ms, fault)
        message_id = _number(given.get("message_id"))
        if method == "sendMessage" and answer.status == 200 and fault is None:  # noqa: PLR2004
            message_id = answer.body["result"]["message_id"]
        number, fate = len(self.asked) + 1, "ok" if fault is None else fault.kind
        text = str(given.get("text") or "")
        place: dict[str, Any] = {"method": method, "chat_id": chat_id, "message_id": message_id}
        self.asked.append(Asked(number=number, at_ms=at_ms, **place, text=text, fate=fate, status=answer.status))
        return answer

    def _fault(self, method: str, chat_id: int | None) -> BotFault | None:
        for at, fault in enumerate(self.faults):
            if fault.method == method and fault.chat_id in (None, chat_id):
                left = fault.model_copy(update={"times": fault.times - 1})
                self.faults[at : at + 1] = [left] if fault.times > 1 else []
                return fault
        return None

    def _answered(self, method: str, given: Mapping[str, Any], at_ms: int, fault: BotFault | None) -> BotAnswer:
        kind = None if fault is None else fault.kind
        if fault is not None and kind == "busy":
            told = f"Too Many Requests: retry after {fault.seconds:g}"
            return BotAnswer(429, _no(429, told) | {"parameters": {"retry_after": fault.seconds}})
        if kind in REFUSALS:
            status, told = REFUSALS[kind]
            return BotAnswer(status, _no(status, told))
        if kind == "lost":
            return BotAnswer(None)
        try:
            result = self._done(method, given, at_ms)
        except BotRefusal as refused:
            return BotAnswer(refused.args[0], _no(*refused.args))
        if kind == "silent":
            return BotAnswer(None)
        after_s = fault.seconds if fault is not None and kind == "hold" else 0.0
        return BotAnswer(200, {"ok": True, "result": result}, after_s)

    def _done(self, method: str, given: Mapping[str, Any], at_ms: int) -> Any:
        match method:
            case "getMe":
                return {"id": 1, "is_bot": True, "first_name": "Perdure", "username": BOT_NAME}
            case "setWebhook":
                self.webhook = dict(given)
                return True
            case "sendChatAction":
                return True
            case "sendMessage":
                return self._sent(given, at_ms)
            case "editMessageText":
                return self._edited(given, at_ms)
            case "answerCallbackQuery":
                return self._told(given)
            case "deleteMessage":
                message = self._message(given, "Bad Request: message to delete not found")
                self._keep(message.model_copy(update={"is_deleted": True}))
                return True
        raise BotRefusal(404, "Not Found")

    def _sent(self, given: Mapping[str, Any], at_ms: int) -> dict[str, Any]:
        chat_id, text = _number(given.get("chat_id")), _checked(given)
        if chat_id is None:
            raise BotRefusal(400, "Bad Request: chat not found")
        message = Posted(
            chat_id=chat_id,
            message_id=FIRST_MESSAGE + len(self.messages),
            said=[(at_ms, text)],
            buttons=_buttons(given),
        )
        self._keep(message)
        return _shown(message)

    def _edited(self, given: Mapping[str, Any], at_ms: int) -> dict[str, Any]:
        message, text = self._message(given, "Bad Request: message to edit not found"), _checked(given)
        buttons = _buttons(given)
        if (message.text, message.buttons) == (text, buttons):
            raise BotRefusal(
                400, "Bad Request: message is not modified: specified new message content is exactly the same"
            )
        changed = message.model_copy(update={"said": [*message.said, (at_ms, text)], "buttons": buttons})
        self._keep(changed)
        return _shown(changed)

    def _told(self, given: Mapping[str, Any]) -> bool:
        pressed = self.presses.get(str(given.get("callback_query_id")))
        if pressed is None:
            raise BotRefusal(400, "Bad Request: query is too old and response timeout expired or query ID is invalid")
        self.presses[pressed.press_id] = pressed.model_copy(
            update={"told": [*pressed.told, str(given.get("text") or "")]}
        )
        return True

    def _message(self, given: Mapping[str, Any], otherwise: str) -> Posted:
        found = self.messages.get((_number(given.get("chat_id")) or 0, _number(given.get("message_id")) or 0))
        if found is None or found.is_deleted:
            raise BotRefusal(400, otherwise)
        return found

    def _keep(self, message: Posted) -> None:
        self.messages[message.chat_id, message.message_id] = message

    def log(self) -> dict[str, Any]:
        return {
            "messages": [each.model_dump() for each in [*self.messages.values()]],
            "asked": [each.model_dump() for each in self.asked],
            "methods": dict(Counter(each.method for each in self.asked)),
        }


def _checked(given: Mapping[str, Any]) -> str:
    text = str(given.get("text") or "")
    units = len(text.encode("utf-16-le", "surrogatepass")) // 2
    if not text.strip():
        raise BotRefusal(400, "Bad Request: message text is empty")
    if units > TEXT_MAX:
        raise BotRefusal(400, "Bad Request: message is too long")
    entities = given.get("entities") or []
    for entity in json.loads(entities) if isinstance(entities, str) else entities:
        if entity["offset"] < 0 or entity["length"] <= 0 or entity["offset"] + entity["length"] > units:
            raise BotRefusal(400, "Bad Request: can't parse entities")
    return text


def _buttons(given: Mapping[str, Any]) -> list[tuple[str, str]]:
    markup = given.get("reply_markup") or {}
    rows = (json.loads(markup) if isinstance(markup, str) else markup).get("inline_keyboard", [])
    found = [(each["text"], each["callback_data"]) for row in rows for each in row]
    if any(not 0 < len(data.encode()) <= KEY_BYTES_MAX for _, data in found):
        raise BotRefusal(400, "Bad Request: BUTTON_DATA_INVALID")
    return found


def _shown(message: Posted) -> dict[str, Any]:
    chat = {"id": message.chat_id, "type": "private" if message.chat_id > 0 else "supergroup", "first_name": "Somebody"}
    date = message.said[0][0] // 1000
    return {"message_id": message.message_id, "date": date, "chat": chat, "text": message.text}


def _no(status: int, description: str) -> dict[str, Any]:
    return {"ok": False, "error_code": status, "description": description}


def _number(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


class SocketTelegram(BotApi):
    """A simulated Telegram on a port of this machine while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self._sockets = Sockets(self._serve)

    @property
    def base_url(self) -> str:
        return f"http://{HOST}:{self._sockets.port}/bot"

    def __enter__(self) -> Self:
        self._sockets.__enter__()
        return self

    def __exit__(self, *trouble: object) -> None:
        self._sockets.__exit__(*trouble)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A request that goes unanswered is reset.
        request = Request(scope, receive)
        given = dict(parse_qsl((await request.body()).decode("utf-8", "replace"), keep_blank_values=True))
        method = request.url.path.removeprefix("/bot").partition("/")[2]
        answer = self.receive(method, given, round(time.time() * 1000))
        await asyncio.sleep(answer.after_s)
        if answer.status is None:
            await reset(scope)
            await gone(receive)
        else:
            await JSONResponse(answer.body, answer.status)(scope, receive, send)


WAY_S: Final = 0.02  # there, and the same back


class SimWire(BaseRequest):
    """The network of the client library, in the simulated world."""

    def __init__(self, api: BotApi) -> None:
        self._api = api

    @property
    def read_timeout(self) -> float | None:
        # Nothing here hangs.
        return None

    async def initialize(self) -> None:
        """Nothing to open."""

    async def shutdown(self) -> None:
        """Nothing to close."""

    async def do_request(
        self, url: str, method: str, request_data: RequestData | None = None, *_rest: object, **_more: object
    ) -> tuple[int, bytes]:
        # Raises what the library raises for a broken connection.
        await asyncio.sleep(WAY_S)
        given = {} if request_data is None else request_data.json_parameters
        now_ms = round(asyncio.get_running_loop().time() * 1000)
        answer = self._api.receive(url.rpartition("/")[2], given, now_ms)
        await asyncio.sleep(WAY_S + answer.after_s)
        if answer.status is None:
            raise NetworkError("the connection broke")
        return answer.status, json.dumps(answer.body).encode()
