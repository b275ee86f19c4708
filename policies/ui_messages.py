"""The shapes of messages, parts and stream events. They are those of the AI SDK's UI messages, so existing front ends can read them.

The `type` of a part or event decides which keys it has. Additional keys of clients' parts are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, Literal, NotRequired, Required, TypedDict, TypeGuard, cast

from perdure.policies.json_types import Json, JsonObject

Role = Literal["user", "assistant", "system"]


# What we keep in `providerMetadata.perdure`: data that the provider wants back, or the evidence of a lost call.
class OurMetadata(TypedDict, total=False):
    provider: str | None
    canonical: str | None
    id: str
    signature: str
    details: Json
    outcome: str
    cause: str
    tool: str
    runId: str
    toolCallId: str
    lostAtMs: int
    stillRunning: bool
    evidence: str
    hasFiles: bool
    content: list[Part]


# Only our own section is read. Of a result it says whether what looks like a part of the type `file` in the output is a file, and has the
# parts that the model is told beside the output.
class ProviderMetadata(TypedDict, total=False):
    perdure: OurMetadata


class ToolState(StrEnum):
    INPUT_STREAMING = "input-streaming"
    INPUT_AVAILABLE = "input-available"
    APPROVAL_REQUESTED = "approval-requested"
    APPROVAL_RESPONDED = "approval-responded"
    OUTPUT_AVAILABLE = "output-available"
    OUTPUT_ERROR = "output-error"
    OUTPUT_DENIED = "output-denied"


TOOL_SETTLED = frozenset({ToolState.OUTPUT_AVAILABLE, ToolState.OUTPUT_ERROR, ToolState.OUTPUT_DENIED})
"""The call has its outcome."""


class PartApproval(TypedDict, total=False):
    id: str
    approved: bool
    by: JsonObject
    reason: str
    descriptor: JsonObject


class Part(TypedDict, total=False):
    """One part of a message."""

    type: Required[str]
    id: str
    text: str
    state: str
    providerMetadata: ProviderMetadata
    mediaType: str
    url: str
    filename: str
    sourceId: str
    title: str
    data: Any
    toolCallId: str
    toolName: str
    input: Any
    inputText: str
    output: Any
    result: Any
    errorText: str
    preliminary: bool
    providerExecuted: bool
    approval: PartApproval
    callProviderMetadata: ProviderMetadata
    resultProviderMetadata: ProviderMetadata


# One message. `metadata` is the client's, except for the reserved keys, which only the agent writes.
class Message(TypedDict):
    id: str
    role: Role
    parts: list[Part]
    metadata: NotRequired[JsonObject]


class Event(TypedDict, total=False):
    """One event of a stream: a chunk of the UI message stream."""

    type: Required[str]
    id: str
    messageId: str
    delta: str
    providerMetadata: ProviderMetadata
    mediaType: str
    url: str
    filename: str
    sourceId: str
    title: str
    transient: bool
    data: Any
    toolCallId: str
    toolName: str
    input: Any
    inputTextDelta: str
    output: Any
    errorText: str
    reason: str
    providerExecuted: bool
    approvalId: str
    approvalDescriptor: JsonObject
    approved: bool
    by: JsonObject
    finishReason: str
    usage: dict[str, int]


def told_of(part: Part) -> OurMetadata:
    """What is said of the result of a call."""
    return (part.get("resultProviderMetadata") or {}).get("perdure") or {}


def is_file(value: object) -> TypeGuard[Part]:
    return isinstance(value, dict) and value.get("type") == "file" and {"url", "mediaType"} <= value.keys()


def result_apart(part: Part) -> tuple[Any, list[Part]]:
    """The output of a call with a name in place of each file; and the parts that are beside it: the files, and what the tool has added."""
    about, output = told_of(part), part.get("output", part.get("result"))
    items, files = output if isinstance(output, list) else [output], list[Part]()
    if about.get("hasFiles") and (files := list(filter(is_file, items))):
        named = [f"[file {each['mediaType']}]" if is_file(each) else each for each in items]
        output = named if isinstance(output, list) else named[0]
    return output, [*files, *about.get("content", [])]


def without(part: Part, *names: str) -> Part:
    return cast("Part", {name: value for name, value in part.items() if name not in names})


STEERED: Final = "data-steered"
"""The part of an answer that holds a message of the user, which came while the answer was given and was read at this place.

Its data: `id` (the request by which it came), `messageId`, `text`, and `parts` and `metadata` if the message is more than its text.
"""


def steered_part(request_id: str, part_id: str, message: Message) -> Part:
    parts, text = message["parts"], "".join(part["text"] for part in message["parts"] if part["type"] == "text")
    data: JsonObject = {"id": request_id, "messageId": message["id"], "text": text}
    if [part["type"] for part in parts] != ["text"]:
        data["parts"] = cast("Json", parts)
    if "metadata" in message:
        data["metadata"] = message["metadata"]
    return {"type": STEERED, "id": part_id, "data": data}


def steered_message(part: Part) -> Message | None:
    """The message of the user that a part of an answer holds; None if it holds none."""
    data = part.get("data") if part["type"] == STEERED else None
    if not isinstance(data, dict) or not isinstance(data.get("messageId"), str):
        return None
    text, parts = data.get("text"), data.get("parts")
    if not isinstance(parts, list):
        parts = [{"type": "text", "text": text}] if isinstance(text, str) else []
    message: Message = {"id": data["messageId"], "role": "user", "parts": parts}
    return {**message, "metadata": data["metadata"]} if isinstance(data.get("metadata"), dict) else message


# An agent could not answer it, and providers refuse it.
def says_nothing(message: Mapping[str, object]) -> bool:
    parts = message.get("parts")
    return isinstance(parts, list) and all(isinstance(each, Mapping) and _is_empty(each) for each in parts)


def _is_empty(part: Mapping[str, object]) -> bool:
    kind, text = part.get("type"), part.get("text")
    return kind == "step-start" or (kind in ("text", "reasoning") and isinstance(text, str) and not text.strip())
