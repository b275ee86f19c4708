"""Messages of a chat: their shape, the checks of a client's messages, and their storage.

    {"id": str, "role": "user" | "assistant" | "system", "parts": [Part, …], "metadata"?: {…}}

The shapes are those of the AI SDK's UI messages (spec chat-recovery §1.1), which front ends read and write. A message is one row, and is
sent to every client that connects, so it has a limit (`MESSAGE_BYTES_MAX`). A file over its limit is refused. Everything else that
is too long is shortened, with a note in its place for the model and the person: first the outputs of tools, last what people wrote.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast, get_args

from perdure.actors.chat.plain_data import checked_plain, checked_text
from perdure.ledger import BadRequest, TooLarge, check_id, pack
from perdure.policies import (
    STEERED,
    JsonObject,
    Message,
    OurMetadata,
    Part,
    Role,
    ToolState,
    is_file,
    says_nothing,
    steered_message,
    steered_part,
    told_of,
    without,
)

T = TypeVar("T")

if TYPE_CHECKING:
    Messages: TypeAlias = str | Mapping[str, object] | Sequence[str | Mapping[str, object]]
else:
    Messages = Any
    """A text, a message, or a list of either. `as_messages` checks it."""

ROLES: tuple[Role, ...] = get_args(Role)
REPLACED_BY = "replacedBy"
"""In the metadata of a message that another one has replaced: people may see it, the model does not."""
RESERVED_METADATA = frozenset({"channel", "turnMetadata", REPLACED_BY})
TOOL_STATES = tuple(ToolState)
_APPROVALS = ToolState.APPROVAL_REQUESTED, ToolState.APPROVAL_RESPONDED

MESSAGE_BYTES_MAX = 1_800_000
RESULT_BYTES_MAX = 1_000_000
INPUT_BYTES_MAX = 16_000_000
FILES_BYTES_MAX = 1_500_000
METADATA_BYTES_MAX = 64 * 1024
ID_CHARS_MAX = 256
PARTS_MAX = 4096
MESSAGES_MAX = 10_000

BLANK = "is blank; a message has words, a file or data"

_TEXTS_OF = {
    "text": ("text",),
    "reasoning": ("text",),
    "file": ("mediaType", "url"),
    "source-url": ("sourceId", "url"),
    "source-document": ("sourceId", "mediaType", "title"),
    "step-start": (),
}


def as_messages(
    given: object, *, new_id: Callable[[], str], roles: Collection[str] = ROLES, field: str = "messages"
) -> list[Message]:
    """Messages from a text (one message of the user), a message, or a list of either. The result is a copy.

    A message without an id gets one from `new_id`. Reserved metadata and unknown keys of a message are dropped; keys of parts are kept.
    Raises `BadRequest` or `TooLarge`, which name the field, such as `messages[2].parts[0].text` where `field` is `messages`.
    """
    if isinstance(given, list | tuple):
        if len(given) > MESSAGES_MAX:
            raise TooLarge(field, f"has {len(given)} messages; the limit is {MESSAGES_MAX}")
        found = [_message(f"{field}[{at}]", each, new_id, roles) for at, each in enumerate(given)]
    else:
        found = [_message(field, given, new_id, roles)]
    _refuse_repeated(field, "id", [message["id"] for message in found])
    calls = [part["toolCallId"] for message in found for part in message["parts"] if "toolCallId" in part]
    _refuse_repeated(field, "toolCallId", calls)
    _refuse_larger(field, sum(map(_size, found)), INPUT_BYTES_MAX)
    return found


def _message(field: str, given: object, new_id: Callable[[], str], roles: Collection[str]) -> Message:
    if isinstance(given, str):
        if not given.strip():
            raise BadRequest(field, BLANK)
        given = {"role": "user", "parts": [{"type": "text", "text": given}]}
    if not isinstance(given, Mapping):
        raise BadRequest(field, f"{given!r:.200} is {type(given).__name__}, neither a text nor a message")
    role = given.get("role")
    if role not in roles:
        raise BadRequest(f"{field}.role", f"{role!r:.200} is not one of {', '.join(roles)}")
    message_id, told = given.get("id"), given.get("metadata")
    message: Message = {
        "id": new_id() if message_id is None else check_id(f"{field}.id", message_id, ID_CHARS_MAX),
        "role": cast("Role", role),
        "parts": _parts(f"{field}.parts", given.get("parts")),
    }
    checked_text(f"{field}.id", message["id"])
    if role != "assistant" and says_nothing(message):
        raise BadRequest(f"{field}.parts", BLANK)
    if told is not None and not isinstance(told, Mapping):
        raise BadRequest(f"{field}.metadata", f"{told!r:.200} is {type(told).__name__}, not an object")
    kept = {key: value for key, value in (told or {}).items() if key not in RESERVED_METADATA}
    metadata: JsonObject = checked_data(f"{field}.metadata", kept, METADATA_BYTES_MAX)
    return {**message, "metadata": metadata} if metadata else message


def _parts(field: str, given: object) -> list[Part]:
    if not isinstance(given, list | tuple):
        raise BadRequest(field, f"{given!r:.200} is not a list of parts such as {{'type': 'text', 'text': 'Hello'}}")
    if len(given) > PARTS_MAX:
        raise TooLarge(field, f"has {len(given)} parts; the limit is {PARTS_MAX}")
    parts = [_part(f"{field}[{at}]", each) for at, each in enumerate(given)]
    size = sum(len(part["url"]) for part in parts if part["type"] == "file")
    if size > FILES_BYTES_MAX:
        raise TooLarge(field, f"have files of {size} bytes; the limit is {FILES_BYTES_MAX}; give links to them")
    return parts


def _part(field: str, given: object) -> Part:
    if not isinstance(given, Mapping):
        raise BadRequest(field, f"{given!r:.200} is {type(given).__name__}, not a part")
    part: Part = checked_plain(field, given)
    kind = checked_text(f"{field}.type", part.get("type"))
    if kind in _TEXTS_OF:
        for name in _TEXTS_OF[kind]:
            checked_text(f"{field}.{name}", part.get(name))
        return part
    if kind.startswith("data-"):
        if "data" not in part:
            raise BadRequest(f"{field}.data", f"is missing in a part of type {kind}")
        if kind == STEERED:
            _check_steered(f"{field}.data", part["data"])
        return part
    if kind == "dynamic-tool" or kind.startswith("tool-"):
        return _tool_part(field, kind, part)
    raise BadRequest(f"{field}.type", f"{kind!r:.200} is not a type of part")


def trusted_with(message: Mapping[str, object]) -> str:
    """What of a message only those may write who are trusted with it: what the system says tells the model what to do, as its author does,
    and a call that has its approval is made. Empty if there is nothing of that."""
    if message.get("role") == "system":
        return "a message of the system"
    parts = message.get("parts")
    found = [each for each in parts if isinstance(each, Mapping)] if isinstance(parts, list) else []
    return "a call with an approval" if any(each.get("state") in _APPROVALS for each in found) else ""


def _check_steered(field: str, given: object) -> None:
    # It is told to the model as a message, so it must be one.
    if not isinstance(given, dict):
        raise BadRequest(field, f"{given!r:.200} is {type(given).__name__}, not an object")
    for name in ("messageId", "text"):
        checked_text(f"{field}.{name}", given.get(name))
    if "parts" in given:
        _parts(f"{field}.parts", given["parts"])


def _tool_part(field: str, kind: str, part: Part) -> Part:
    check_id(f"{field}.toolCallId", part.get("toolCallId"), ID_CHARS_MAX)
    name = part.get("toolName", "" if kind == "dynamic-tool" else kind.removeprefix("tool-"))
    check_id(f"{field}.toolName", name, ID_CHARS_MAX)
    state = part.get("state")
    if state not in TOOL_STATES:
        raise BadRequest(f"{field}.state", f"{state!r:.200} is not one of {', '.join(TOOL_STATES)}")
    if state == ToolState.OUTPUT_AVAILABLE and "output" not in part and "result" not in part:
        raise BadRequest(f"{field}.output", "is missing in state output-available")
    if state == ToolState.OUTPUT_ERROR:
        checked_text(f"{field}.errorText", part.get("errorText"))
    if not isinstance(part.get("approval", {}), dict):
        raise BadRequest(f"{field}.approval", f"{part['approval']!r:.200} is not an object")
    _check_beside(f"{field}.resultProviderMetadata", part.get("resultProviderMetadata") or {})
    return {**part, "toolName": name}


def _check_beside(field: str, given: object) -> None:
    # What is beside the output is told to the model.
    ours = given.get("perdure", {}) if isinstance(given, dict) else given
    if not isinstance(ours, dict):
        raise BadRequest(field, f"{given!r:.200} is not an object, or what is in it of Perdure is none")
    _parts(f"{field}.perdure.content", ours.get("content", []))


def _refuse_repeated(field: str, name: str, values: list[str]) -> None:
    twice = next((value for value, times in Counter(values).items() if times > 1), None)
    if twice is not None:
        raise BadRequest(field, f"the {name} {twice!r:.200} is there twice")


def _refuse_larger(field: str, size: int, bytes_max: int) -> None:
    if size > bytes_max:
        raise TooLarge(field, f"has {size} bytes encoded; the limit is {bytes_max}")


def checked_data(field: str, value: object, bytes_max: int = RESULT_BYTES_MAX) -> Any:
    data = checked_plain(field, value)
    _refuse_larger(field, _size(data), bytes_max)
    return data


def for_storage(message: Message, bytes_max: int = MESSAGE_BYTES_MAX) -> Message:
    """The message as it is stored: without empty reasoning, and within its limit. The very same object if nothing changes.

    Raises:
        TooLarge: its id and metadata alone are over the limit.
    """
    # reasoning without words may have metadata, which may hold encrypted ones
    kept = [
        part
        for part in message["parts"]
        if part["type"] != "reasoning" or part.get("text") or part.get("providerMetadata")
    ]
    if len(kept) < len(message["parts"]):
        message = {**message, "parts": kept}
    if _size(message) <= bytes_max:
        return message
    for shorter in (_shorter_result, _shorter_data, _shorter_reasoning, _shorter_input, _shorter_text, _no_file):
        parts = message["parts"]
        for keep in (256 * 1024, 64 * 1024, 16 * 1024, 4 * 1024, 1024):
            message = {**message, "parts": [shorter(part, keep) for part in parts]}
            if _size(message) <= bytes_max:
                return message
    return _without_middle(message, bytes_max)


def is_current(message: Message) -> bool:
    return REPLACED_BY not in message.get("metadata", {})


def shortened_result(value: T) -> T | str:
    # Within the limit of an event and of a message. The very same object if it is.
    return _short(value, RESULT_BYTES_MAX)


def shortened_content(parts: list[Part]) -> list[Part]:
    return for_storage({"id": "", "role": "user", "parts": parts}, RESULT_BYTES_MAX)["parts"]


def _without_middle(message: Message, bytes_max: int) -> Message:
    room = bytes_max - _size({**message, "parts": []}) - 1024
    if room < 0:
        raise TooLarge("metadata", f"the message without its parts is over the limit of {bytes_max} bytes")
    parts = message["parts"]
    sizes = [len(pack(part)) for part in parts]
    first, last = _fitting(sizes, room // 2), _fitting(sizes[::-1], room // 2)
    left_out = len(parts) - first - last
    note: Part = {"type": "text", "text": f"[{left_out:,} parts were left out: {_REASON}]", "state": "done"}
    return {**message, "parts": [*parts[:first], note, *parts[len(parts) - last :]]}


def _fitting(sizes: list[int], room: int) -> int:
    return sum(total <= room for total in accumulate(sizes))


_REASON = "the message was longer than one may be"


def _size(value: object) -> int:
    return len(pack(value))


def _clipped(text: str, keep: int) -> str:
    encoded = text.encode()
    if len(encoded) <= keep:
        return text
    head = encoded[: keep * 2 // 3].decode(errors="ignore")
    tail = encoded[-(keep // 3) :].decode(errors="ignore")
    return f"{head}\n[… {len(text) - len(head) - len(tail):,} characters were left out: {_REASON} …]\n{tail}"


def _short(value: T, keep: int) -> T | str:
    if isinstance(value, str):
        return _clipped(value, keep)
    for file_keep in (keep, 0):
        if _size(value) <= keep:
            return value
        value = cast("T", _without_files(value, file_keep))
    return _short(json.dumps(value, ensure_ascii=False), keep) if _size(value) > keep else value


def _without_files(output: object, keep: int) -> object:
    # Half of a file is of no use to anybody.
    if isinstance(output, list):
        return [_without_files(each, keep) for each in output]
    return _no_file(output, keep).get("text", output) if is_file(output) else output


def _shorter_result(part: Part, keep: int) -> Part:
    short = {name: _short(value, keep) for name, value in part.items() if name in ("output", "result", "errorText")}
    if "content" in (told := told_of(part)):
        content = [_shorter_text(_no_file(each, keep), keep) for each in told["content"]]
        about: OurMetadata = {**told, "content": content}
        short["resultProviderMetadata"] = {"perdure": about}
    return cast("Part", {**part, **short})


def _shorter_data(part: Part, keep: int) -> Part:
    if not part["type"].startswith("data-") or steered_message(part) or _size(part.get("data")) <= keep:
        return part
    return {**part, "data": {"leftOut": f"{_size(part['data']):,} bytes: {_REASON}"}}


def _shorter_reasoning(part: Part, keep: int) -> Part:
    # The signature goes too, because the provider signed the whole text.
    if part["type"] != "reasoning" or len(part["text"].encode()) <= keep:
        return part
    return {**without(part, "providerMetadata"), "text": _clipped(part["text"], keep)}


def _shorter_input(part: Part, keep: int) -> Part:
    # Another object, because providers want an object.
    if "toolCallId" not in part or _size(part.get("input")) <= keep:
        return part
    return {**part, "input": {"leftOut": _clipped(json.dumps(part["input"], ensure_ascii=False), keep)}}


def _in_steered(part: Part, shorter: Callable[[Part, int], Part], keep: int) -> Part:
    # What people said is kept longest, also where they said it in the middle of an answer.
    message = steered_message(part)
    if message is None:
        return part
    said: Message = {**message, "parts": [shorter(each, keep) for each in message["parts"]]}
    return steered_part(str(part["data"].get("id", "")), str(part.get("id", "")), said)


def _shorter_text(part: Part, keep: int) -> Part:
    if part["type"] == STEERED:
        return _in_steered(part, _shorter_text, keep)
    return {**part, "text": _clipped(part["text"], keep)} if part["type"] == "text" else part


def _no_file(part: Part, keep: int) -> Part:
    if part["type"] == STEERED:
        return _in_steered(part, _no_file, keep)
    if part["type"] != "file" or len(part["url"]) <= keep:
        return part
    name = part.get("filename") or part.get("mediaType")
    return {"type": "text", "text": f"[The file {name} was left out: {_REASON}]", "state": "done"}
