"""The shapes of messages, parts and stream events. They are those of the AI SDK's UI messages, so existing front ends can read them.

The `type` of a part or event decides which keys it has. Additional keys of clients' parts are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal, NotRequired, Required, TypedDict, cast

from perdure.policies.json_types import Json, JsonObject

Role = Literal["user", "assistant", "system"]


class OurMetadata(TypedDict, total=False):
    """What we keep in `providerMetadata.perdure`: data that the provider wants back, or the evidence of a lost call."""

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


class ProviderMetadata(TypedDict, total=False):
    """The provider's data of a part. Only our own section is read."""

    perdure: OurMetadata


class ToolState(StrEnum):
    """The state of a tool call, as messages have it."""

    INPUT_STREAMING = "input-streaming"
    INPUT_AVAILABLE = "input-available"
    APPROVAL_REQUESTED = "approval-requested"
    APPROVAL_RESPONDED = "approval-responded"
    OUTPUT_AVAILABLE = "output-available"
    OUTPUT_ERROR = "output-error"
    OUTPUT_DENIED = "output-denied"


TOOL_SETTLED = frozenset({ToolState.OUTPUT_AVAILABLE, ToolState.OUTPUT_ERROR, ToolState.OUTPUT_DENIED})
"""The call has its outcome."""


class Approval(TypedDict, total=False):
    """The approval of a call, requested or given."""

    id: str
    approved: bool
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
    approval: Approval
    callProviderMetadata: ProviderMetadata
    resultProviderMetadata: ProviderMetadata


class Message(TypedDict):
    """One message. `metadata` is the client's, except for the reserved keys, which only the agent writes."""

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
    finishReason: str
    usage: dict[str, int]


def without(part: Part, *names: str) -> Part:
    return cast("Part", {name: value for name, value in part.items() if name not in names})


# An agent could not answer it, and providers refuse it.
def says_nothing(message: Mapping[str, Any]) -> bool:
    parts = message.get("parts")
    return isinstance(parts, list) and all(isinstance(each, Mapping) and _is_empty(each) for each in parts)


def _is_empty(part: Mapping[str, Any]) -> bool:
    kind, text = part.get("type"), part.get("text")
    return kind == "step-start" or (kind in ("text", "reasoning") and isinstance(text, str) and not text.strip())
