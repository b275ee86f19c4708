"""The frame format: one event of one run, as it goes to clients and is replayed to them.

A frame is plain JSON data. Each run has one durable number space, 0, 1, 2, … without holes, given out by the ledger;
replay and live frames of the same event carry the same number (spec W-30). Fields that an event requires make it
malformed when they are missing or of another type; an optional field of another type is as good as missing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from typing import Literal, NotRequired, TypedDict, TypeGuard, TypeVar, cast

from perdure.policies import Json, JsonObject

FRAME_TYPE: Literal["agent-tool-event"] = "agent-tool-event"
V = TypeVar("V")


class Started(TypedDict):
    """Number 0: the run exists. `order` places it among the runs of its tool call; `parent` is the parent's address."""

    kind: Literal["started"]
    agent_type: str
    order: int
    input_preview: NotRequired[str]
    display: NotRequired[JsonObject]
    parent: NotRequired[str]


class Attempt(TypedDict):
    """The child is at work again: anew if `attempt` is higher than before, re-attached if it is the same."""

    kind: Literal["attempt"]
    attempt: int


class Chunk(TypedDict):
    """A piece of the child's stream. A UI message chunk, or its JSON text, grows the parts; others are only carried."""

    kind: Literal["chunk"]
    body: Json


class Progress(TypedDict):
    """How far the child is. `fraction` is between 0 and 1."""

    kind: Literal["progress"]
    at_ms: int
    fraction: NotRequired[float]
    message: NotRequired[str]
    phase: NotRequired[str]
    data: NotRequired[Json]


class Milestone(TypedDict):
    """Something that the child achieved for good; `milestone_sequence` counts the run's milestones from 0."""

    kind: Literal["milestone"]
    name: str
    milestone_sequence: int
    at_ms: int
    data: NotRequired[Json]
    fraction: NotRequired[float]
    message: NotRequired[str]
    phase: NotRequired[str]


class Finished(TypedDict):
    """The child returned."""

    kind: Literal["finished"]
    summary: str
    output: NotRequired[Json]


class Error(TypedDict):
    """The child raised, or could not be carried to an end."""

    kind: Literal["error"]
    error: str


class Aborted(TypedDict):
    """Somebody cancelled the run, and may have said why."""

    kind: Literal["aborted"]
    reason: NotRequired[str]


class Interrupted(TypedDict):
    """The parent stopped waiting. `reason` is one of the typed reasons, `error` is prose."""

    kind: Literal["interrupted"]
    error: str
    reason: NotRequired[str]
    child_still_running: NotRequired[bool]


class Cleared(TypedDict):
    """The run was forgotten."""

    kind: Literal["cleared"]


Event = Started | Attempt | Chunk | Progress | Milestone | Finished | Error | Aborted | Interrupted | Cleared


class Frame(TypedDict):
    """One event of one run, with its number. `replay` is True on a frame that is sent again from the ledger."""

    type: Literal["agent-tool-event"]
    run_id: str
    sequence: int
    event: Event
    parent_tool_call_id: NotRequired[str]
    replay: NotRequired[Literal[True]]


_INTEGER, _TEXT, _ANY = (int,), (str,), (object,)
_REQUIRED: dict[str, dict[str, tuple[type, ...]]] = {
    "started": {"agent_type": _TEXT, "order": _INTEGER},
    "attempt": {"attempt": _INTEGER},
    "chunk": {"body": _ANY},
    "progress": {"at_ms": _INTEGER},
    "milestone": {"name": _TEXT, "milestone_sequence": _INTEGER, "at_ms": _INTEGER},
    "finished": {"summary": _TEXT},
    "error": {"error": _TEXT},
    "interrupted": {"error": _TEXT},
}


def _is(value: object, types: tuple[type[V], ...]) -> TypeGuard[V]:
    """Whether the value is of a type; True and False are no numbers, and neither is NaN."""
    if isinstance(value, bool):
        return bool in types or object in types
    return isinstance(value, types) and not (isinstance(value, float) and not isfinite(value))


def frame_in(frame: object) -> Frame | None:
    """The frame if it is one of ours, with all that its kind requires."""
    if isinstance(frame, str | bytes):
        try:
            frame = json.loads(frame)
        except (ValueError, RecursionError):
            return None
    if not isinstance(frame, dict) or frame.get("type") != FRAME_TYPE:
        return None
    run_id, sequence, event = frame.get("run_id"), frame.get("sequence"), frame.get("event")
    if not isinstance(run_id, str) or not _is(sequence, _INTEGER) or not isinstance(event, dict):
        return None
    kind = event.get("kind")
    if not isinstance(kind, str) or sequence < 0:
        return None
    required = _REQUIRED.get(kind, {})
    if not all(name in event and _is(event[name], types) for name, types in required.items()):
        return None
    return cast("Frame", frame)


def copy_of(frame: Frame) -> Frame | None:
    """The frame as plain data of our own, or None if it holds what JSON cannot."""
    try:
        return cast("Frame", json.loads(json.dumps(frame)))
    except (TypeError, ValueError, RecursionError):
        return None


def optional(event: Mapping[str, object], name: str, *types: type[V]) -> V | None:
    """An optional field if it is there and well typed, else None."""
    value = event.get(name)
    return value if _is(value, types) else None
