"""Repairs a transcript so that a provider accepts it: calls without a result get one, and invalid inputs are replaced.

Nothing is deleted, and the order stays. Each part is judged by itself:

| part | what happens |
|---|---|
| not a tool call | stays |
| settled: it has an output or a result, or its state says so | only its input is repaired |
| `approval-responded` | stays: its continuation runs the call |
| unsettled, and `should_repair` says no, because it may still be answered | stays |
| unsettled otherwise | its input is repaired, then the call |

The default repair turns the call into an error. A custom repair may return any part. If it returns a call, that must be the same call, and
settled. Any other result is replaced by the default, because it would be dropped silently on its way to the model.

Repair is idempotent. Unchanged parts and messages keep their identity, so only changed messages are written back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from perdure.policies.json_types import JsonObject
from perdure.policies.ui_messages import TOOL_SETTLED, Message, Part, ToolState, without

INTERRUPTED_TEXT = "The tool call was interrupted before a result was recorded."


# `messages` is the given list if nothing changed. The counts are of parts.
@dataclass(frozen=True)
class Repaired:
    messages: list[Message]
    changed_ids: tuple[str, ...] = ()
    removed_tool_calls: int = 0
    normalized_inputs: int = 0
    tool_call_ids: tuple[str, ...] = ()


def is_tool_part(part: Mapping[str, object]) -> bool:
    kind = part.get("type")
    is_call = isinstance(kind, str) and (kind == "dynamic-tool" or kind.startswith("tool-"))
    return is_call and isinstance(part.get("toolCallId"), str)


def is_settled(part: Mapping[str, object]) -> bool:
    return "output" in part or "result" in part or part.get("state") in TOOL_SETTLED


def tool_name(part: Mapping[str, object]) -> str:
    name = part.get("toolName")
    return name if isinstance(name, str) and name else str(part.get("type", "")).removeprefix("tool-")


def awaits_client(part: Mapping[str, object], client_tools: frozenset[str]) -> bool:
    if not is_tool_part(part) or is_settled(part):
        return False
    state = part.get("state")
    is_clients = state in (ToolState.INPUT_AVAILABLE, ToolState.APPROVAL_RESPONDED) and tool_name(part) in client_tools
    return state == ToolState.APPROVAL_REQUESTED or is_clients


def deferred_ids(parts: Iterable[Part]) -> set[str]:
    """The calls of an answer whose results come from elsewhere, as a part of it says."""
    told = [part.get("data") for part in parts if part["type"] == "data-deferred"]
    return {str(each.get("toolCallId")) for each in told if isinstance(each, dict)}


def waiting_calls(parts: Sequence[Part], client_tools: frozenset[str]) -> list[Part]:
    elsewhere = deferred_ids(parts)
    return [
        part
        for part in parts
        if awaits_client(part, client_tools)
        or (part.get("toolCallId") in elsewhere and is_tool_part(part) and not is_settled(part))
    ]


def open_calls(parts: Iterable[Part]) -> list[Part]:
    """The calls that are whole and not settled. Of a turn that is parked, these are all that wait for a person or a client."""
    calls = (part for part in parts if is_tool_part(part) and not is_settled(part))
    return [part for part in calls if part.get("state") != ToolState.INPUT_STREAMING]


def object_input(raw: object) -> JsonObject:
    """The object that providers require: the given one itself, the one in a JSON text, or an empty one."""
    if isinstance(raw, dict):
        return raw
    if not isinstance(raw, str) or not raw.lstrip().startswith("{"):
        return {}
    try:
        parsed = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def default_repair(part: Part) -> Part:
    bare = without(part, "inputText", "preliminary")
    return {**bare, "state": ToolState.OUTPUT_ERROR.value, "errorText": INTERRUPTED_TEXT}


def repair_transcript(
    messages: list[Message],
    should_repair: Callable[[Part], bool] | None = None,
    repair_part: Callable[[Part], object] = default_repair,
) -> Repaired:
    """The transcript with calls settled and every input an object. `messages` is not changed.

    `should_repair(part)` may spare a part that may still be answered. `repair_part(part)` gets the part with a repaired input. Its
    exceptions are not caught.
    """
    repair = _Repair(should_repair or (lambda _part: True), repair_part)
    repaired = [repair.message(message) for message in messages]
    if all(new is old for new, old in zip(repaired, messages, strict=True)):
        return Repaired(messages)
    changed = tuple(str(new.get("id", "")) for new, old in zip(repaired, messages, strict=True) if new is not old)
    return Repaired(repaired, changed, len(repair.call_ids), repair.normalized, tuple(repair.call_ids))


class _Repair:
    def __init__(self, should_repair: Callable[[Part], bool], repair_part: Callable[[Part], object]) -> None:
        self._should_repair = should_repair
        self._repair_part = repair_part
        self.normalized = 0
        self.call_ids: list[str] = []

    def message(self, message: Message) -> Message:
        parts = message.get("parts")
        if not isinstance(parts, list):
            return message
        repaired = [self.part(part) if isinstance(part, dict) else part for part in parts]
        if all(new is old for new, old in zip(repaired, parts, strict=True)):
            return message
        return {**message, "parts": repaired}

    def part(self, part: Part) -> Part:
        if not is_tool_part(part) or (part.get("state") == ToolState.APPROVAL_RESPONDED and not is_settled(part)):
            return part
        if is_settled(part):
            return self._with_object_input(part)
        if not self._should_repair(part):
            return part
        self.call_ids.append(part["toolCallId"])
        normal = self._with_object_input(part)
        new = self._repair_part(normal)
        if not isinstance(new, dict) or not _is_acceptable(new, part["toolCallId"]):
            return default_repair(normal)
        repaired = cast("Part", new)
        return self._with_object_input(repaired) if is_tool_part(repaired) else repaired

    def _with_object_input(self, part: Part) -> Part:
        given = object_input(part.get("input"))
        if given is part.get("input"):
            return part
        self.normalized += 1
        return {**part, "input": given}


def _is_acceptable(part: Mapping[str, object], call_id: str) -> bool:
    kind = part.get("type")
    if not isinstance(kind, str) or not kind:
        return False
    is_call = kind == "dynamic-tool" or kind.startswith("tool-")
    return not is_call or (part.get("toolCallId") == call_id and is_settled(part))
