"""Folds stream chunks into message parts.

The vocabulary is that of the AI SDK's UI message stream, so existing front ends can read the parts. The fold is pure and keeps nothing
beside the parts: the same chunk on the same parts gives the same result (spec B23). Two keys live on a part only while it streams: `id`,
by which interleaved texts find their part, and `inputText`, the raw JSON of a tool's input so far.

One table moves the state of a tool part (`call_cell`; spec chat-recovery §1.2). A chunk that is malformed, of an unknown type, or about an
unknown call changes nothing. `data-retract` is ours: it withdraws what a broken connection left half said.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeGuard, cast

from pydantic_core import from_json

from perdure.policies import Event, Part, ToolState, is_tool_part, object_input, tool_name, without

Chunk = Mapping[str, object]
"""An unchecked event of a UI message stream; `type` says which."""

RETRACT = "data-retract"
BROKEN = "interrupted"
"""The reason of a step's end if its answer never ended."""


CALL_ENDS: Final = frozenset({"tool-output-available", "tool-output-error", "tool-output-denied"})
"""The chunks that end a call."""


def chunk_of(body: object) -> Chunk | None:
    if isinstance(body, str):
        try:
            body = json.loads(body)
        except (ValueError, RecursionError):
            return None
    return body if isinstance(body, Mapping) else None


def chunks_of(body: object) -> list[Chunk]:
    # One event may have a chunk for itself, or several may share it.
    whole = chunk_of(body)
    several = whole.get("chunks") if whole is not None and whole.get("type") == "chunks" else [whole]
    found = map(chunk_of, several if isinstance(several, list) else ())
    return [each for each in found if each is not None]


def apply_chunk(parts: list[Part], chunk: Chunk) -> list[Part]:
    """The parts after a chunk: a new list, or the very same one if the chunk changes nothing.

    `parts` and the parts in it are never changed. New parts share the values of the chunk.
    """
    kind = chunk.get("type")
    if not isinstance(kind, str):
        return parts
    step = _STEPS.get(kind) or (_data if kind.startswith("data-") else None)
    return step(parts, chunk) if step else parts


def step_base(parts: Sequence[Part]) -> int:
    # The place of the last `step-start`; -1 if there is none.
    return max((at for at, part in enumerate(parts) if part["type"] == "step-start"), default=-1)


def events_of(part: Part, part_id: str) -> list[Event]:
    """The events that make a part of a stored message, in the state in which it is, as short as can be."""
    kind = part["type"]
    if kind in ("text", "reasoning"):
        delta: Event = {"type": f"{kind}-delta", "id": part_id, "delta": part.get("text", "")}
        return [{"type": f"{kind}-start", "id": part_id}, delta, {"type": f"{kind}-end", "id": part_id}]
    if kind == "step-start":
        return [{"type": "start-step"}]
    if not is_tool_part(part):
        return [cast("Event", part)]
    call: Event = {"type": "", "toolCallId": part["toolCallId"], "toolName": tool_name(part)}
    call = cast("Event", {**call, **_kept(part, "title", "providerExecuted")})
    events: list[Event] = [{**call, "type": "tool-input-available", "input": part.get("input")}]
    approval = part.get("approval")
    if approval is not None:
        asked: Event = {**call, "type": "tool-approval-request", "approvalId": approval.get("id", call["toolCallId"])}
        events.append({**asked, "approvalDescriptor": approval["descriptor"]} if "descriptor" in approval else asked)
        if "approved" in approval:
            events.append({**call, "type": "tool-approval-response", "approved": approval["approved"]})
    match part.get("state"):
        case ToolState.OUTPUT_AVAILABLE:
            events.append({**call, "type": "tool-output-available", "output": part.get("output")})
        case ToolState.OUTPUT_ERROR:
            events.append({**call, "type": "tool-output-error", "errorText": part.get("errorText", "")})
        case ToolState.OUTPUT_DENIED:
            events.append({**call, "type": "tool-output-denied"})
    return events


def _replaced(parts: list[Part], index: int, part: Part) -> list[Part]:
    return [*parts[:index], part, *parts[index + 1 :]]


def _kept(chunk: Chunk, *names: str) -> dict[str, object]:
    return {name: chunk[name] for name in names if chunk.get(name) is not None}


def _part(fields: Mapping[str, object]) -> Part:
    return cast("Part", fields)


# --- text and reasoning ----------------------------------------------------------------------------------------------


def _prose_of(chunk: Chunk) -> str:
    return str(chunk["type"]).partition("-")[0]


def _streaming(parts: list[Part], kind: str, part_id: object) -> int | None:
    """The index of the text that a chunk continues.

    A chunk without an id continues the last text that still streams, but not across a tool call or a step.
    """
    for index in range(len(parts) - 1, -1, -1):
        part = parts[index]
        if part["type"] == kind and part.get("state") == "streaming" and part_id in (None, part.get("id")):
            return index
        if part_id is None and (part["type"] == "step-start" or "toolCallId" in part):
            return None
    return None


def _with_metadata(part: Part, chunk: Chunk) -> Part:
    metadata = chunk.get("providerMetadata")  # signatures may come with a delta or with the end
    if not isinstance(metadata, Mapping):
        return part
    return _part({**part, "providerMetadata": {**part.get("providerMetadata", {}), **metadata}})


def _prose_started(parts: list[Part], chunk: Chunk) -> list[Part]:
    part = {"type": _prose_of(chunk), **_kept(chunk, "id"), "text": "", "state": "streaming"}
    return [*parts, _with_metadata(_part(part), chunk)]


def _prose_grew(parts: list[Part], chunk: Chunk) -> list[Part]:
    delta = chunk.get("delta")
    if not isinstance(delta, str):
        return parts
    index = _streaming(parts, _prose_of(chunk), chunk.get("id"))
    if index is None:
        started = _prose_started(parts, chunk)
        return [*parts, {**started[-1], "text": delta}]
    part: Part = {**parts[index], "text": parts[index]["text"] + delta}
    return _replaced(parts, index, _with_metadata(part, chunk))


def _done(part: Part) -> Part:
    return {**without(part, "id"), "state": "done"}


def _prose_ended(parts: list[Part], chunk: Chunk) -> list[Part]:
    index = _streaming(parts, _prose_of(chunk), chunk.get("id"))
    if index is None:
        return parts
    return _replaced(parts, index, _with_metadata(_done(parts[index]), chunk))


# --- steps, sources, files, data -------------------------------------------------------------------------------------


def _step_finished(parts: list[Part], chunk: Chunk) -> list[Part]:
    # Every text that still streams is closed, because the next step may use its id again.
    is_open = [part["type"] in ("text", "reasoning") and part.get("state") == "streaming" for part in parts]
    closed = [_done(part) if still_open else part for part, still_open in zip(parts, is_open, strict=True)]
    if chunk.get("finishReason") == BROKEN:
        base = step_base(parts) + 1
        closed[base:] = map(_unbound, closed[base:])
    return parts if all(new is old for new, old in zip(closed, parts, strict=True)) else closed


def _unbound(part: Part) -> Part:
    """A part of an answer that never ended, without its id at the provider.

    OpenAI looks up the id, has kept nothing of an answer that broke off, and would refuse the next request. A signature that proves itself
    (Anthropic's, Google's) stays.
    """
    metadata = part.get("providerMetadata") or part.get("callProviderMetadata")
    ours = metadata.get("perdure") if isinstance(metadata, Mapping) else None
    kept_as = str(ours.get("id", "")) if isinstance(ours, Mapping) else ""
    if not kept_as.startswith(("rs_", "msg_", "fc_")):
        return part
    return without(part, "providerMetadata", "callProviderMetadata")


def _whole(*names: str) -> Callable[[list[Part], Chunk], list[Part]]:
    def step(parts: list[Part], chunk: Chunk) -> list[Part]:
        return [*parts, _part({"type": chunk["type"], **_kept(chunk, *names, "providerMetadata")})]

    return step


def _data(parts: list[Part], chunk: Chunk) -> list[Part]:
    if chunk.get("transient"):
        return parts
    part = _part({"type": chunk["type"], **_kept(chunk, "id"), "data": chunk.get("data")})
    if "id" not in part:
        return [*parts, part]
    for index, known in enumerate(parts):
        if known["type"] == part["type"] and known.get("id") == part["id"]:
            return _replaced(parts, index, part)
    return [*parts, part]


def _retracted(parts: list[Part], chunk: Chunk) -> list[Part]:
    data = chunk.get("data")
    kept = data.get("parts") if isinstance(data, Mapping) else None
    return parts[:kept] if isinstance(kept, int) and 0 <= kept < len(parts) else parts


# --- tool calls ------------------------------------------------------------------------------------------------------


_S = ToolState
_IS, _IA, _AR, _AD = _S.INPUT_STREAMING, _S.INPUT_AVAILABLE, _S.APPROVAL_REQUESTED, _S.APPROVAL_RESPONDED
_OA, _OE, _OD = _S.OUTPUT_AVAILABLE, _S.OUTPUT_ERROR, _S.OUTPUT_DENIED
_no = None  # the chunk changes nothing
_ORDER = (None, _IS, _IA, _AR, _AD, _OA, _OE, _OD)

# Providers replay earlier calls in a continued answer, so a chunk about the input of a call never moves it backwards. An output counts in
# any state, because it says what happened. An answered approval is neither asked for nor answered again.
#                                 unknown  input-          approval-           output-
#                                 call     stream. avail.  requested responded avail. error denied
_CALLS: dict[str, tuple[ToolState | None, ...]] = {
    "tool-input-start":          (_IS,     _no,    _no,    _no,      _no,      _no,   _no,  _no),
    "tool-input-delta":          (_no,     _IS,    _no,    _no,      _no,      _no,   _no,  _no),
    "tool-input-available":      (_IA,     _IA,    _no,    _no,      _no,      _no,   _no,  _no),
    "tool-input-error":          (_OE,     _OE,    _OE,    _OE,      _OE,      _no,   _no,  _no),
    "tool-approval-request":     (_no,     _AR,    _AR,    _AR,      _no,      _no,   _no,  _no),
    "tool-approval-response":    (_no,     _no,    _AD,    _AD,      _no,      _no,   _no,  _no),  # approved; if not: output-denied
    "tool-output-denied":        (_no,     _OD,    _OD,    _OD,      _no,      _no,   _no,  _no),
    "tool-output-available":     (_no,     _OA,    _OA,    _OA,      _OA,      _OA,   _OA,  _OA),
    "tool-output-error":         (_no,     _OE,    _OE,    _OE,      _OE,      _OE,   _OE,  _OE),
}  # fmt: skip
_MOVES: dict[str, dict[str | None, str]] = {
    kind: {before: after.value for before, after in zip(_ORDER, row, strict=True) if after is not None}
    for kind, row in _CALLS.items()
}


def call_cell(kind: str, state: ToolState | None) -> ToolState | None:
    # None if the chunk changes nothing. A `state` of None is an unknown call.
    return _CALLS[kind][_ORDER.index(state)]


def _is_name(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and value != ""


def _call(parts: list[Part], chunk: Chunk) -> list[Part]:
    kind, index = str(chunk["type"]), _find_call(parts, chunk)
    part = None if index is None else parts[index]
    state = _MOVES[kind].get(None if part is None else part.get("state", _IA))
    if state is None:
        return parts
    new = part or _new_call(chunk)
    moved = None if new is None else _TAKES[kind](new, state, chunk)
    if moved is None:
        return parts
    return [*parts, moved] if index is None else _replaced(parts, index, moved)


def _find_call(parts: list[Part], chunk: Chunk) -> int | None:
    call_id = chunk.get("toolCallId")
    if not _is_name(call_id):
        return None
    return next((index for index in range(len(parts) - 1, -1, -1) if parts[index].get("toolCallId") == call_id), None)


def _new_call(chunk: Chunk) -> Part | None:
    call_id, name = chunk.get("toolCallId"), chunk.get("toolName")
    if not _is_name(call_id) or not _is_name(name):
        return None
    kind = "dynamic-tool" if chunk.get("dynamic") else f"tool-{name}"
    return {"type": kind, "toolCallId": call_id, "toolName": name, "state": ToolState.INPUT_STREAMING.value}


def _about_call(chunk: Chunk) -> dict[str, object]:
    return {**_kept(chunk, "title", "providerExecuted"), **_metadata_as("callProviderMetadata", chunk)}


def _metadata_as(name: str, chunk: Chunk) -> dict[str, object]:
    metadata = chunk.get("providerMetadata")
    return {} if metadata is None else {name: metadata}


def _moved(part: Part, state: str, fields: Mapping[str, object]) -> Part:
    return _part({**without(part, "inputText"), "state": state, **fields})


def _input_grew(part: Part, _state: str, chunk: Chunk) -> Part | None:
    delta = chunk.get("inputTextDelta")
    if not isinstance(delta, str):
        return None
    text = part.get("inputText", "") + delta
    grown: Part = {**part, "inputText": text}
    with suppress(ValueError):  # the whole input comes with `tool-input-available`
        grown["input"] = from_json(text, allow_partial="trailing-strings")
    return grown


def _input_failed(part: Part, state: str, chunk: Chunk) -> Part:
    given = {"input": object_input(chunk.get("input")), "errorText": str(chunk.get("errorText", ""))}
    return _moved(part, state, {**given, **_about_call(chunk)})


def _approval_requested(part: Part, state: str, chunk: Chunk) -> Part:
    approval = {"id": chunk.get("approvalId")}
    if "approvalDescriptor" in chunk:
        approval["descriptor"] = chunk["approvalDescriptor"]
    return _moved(part, state, {"input": object_input(part.get("input")), "approval": approval})


def _approval_answered(part: Part, state: str, chunk: Chunk) -> Part:
    known = part.get("approval") or {"id": chunk.get("toolCallId")}
    approval = {**known, "approved": bool(chunk.get("approved")), **_kept(chunk, "reason", "by")}
    if "input" not in chunk:
        return _moved(part, state if chunk.get("approved") else _OD.value, {"approval": approval})
    approval["proposed"] = part.get("input")  # whoever approved has changed the arguments
    return _moved(part, state if chunk.get("approved") else _OD.value, {"approval": approval, "input": chunk["input"]})


def _returned(part: Part, state: str, chunk: Chunk) -> Part:
    fields = {"output": chunk.get("output"), **_kept(chunk, "preliminary", "providerExecuted")}
    return _moved(
        without(part, "errorText", "preliminary"), state, {**fields, **_metadata_as("resultProviderMetadata", chunk)}
    )


def _raised(part: Part, state: str, chunk: Chunk) -> Part:
    fields = {"errorText": str(chunk.get("errorText", "")), **_kept(chunk, "providerExecuted")}
    return _moved(
        without(part, "output", "preliminary"), state, {**fields, **_metadata_as("resultProviderMetadata", chunk)}
    )


_TAKES: dict[str, Callable[[Part, str, Chunk], Part | None]] = {
    "tool-input-start": lambda part, _, chunk: _part({**part, **_about_call(chunk)}),
    "tool-input-delta": _input_grew,
    "tool-input-available": lambda part, state, chunk: _moved(
        part, state, {"input": object_input(chunk.get("input")), **_about_call(chunk)}
    ),
    "tool-input-error": _input_failed,
    "tool-approval-request": _approval_requested,
    "tool-approval-response": _approval_answered,
    "tool-output-denied": lambda part, state, _: _moved(part, state, {}),
    "tool-output-available": _returned,
    "tool-output-error": _raised,
}

_STEPS: dict[str, Callable[[list[Part], Chunk], list[Part]]] = {
    RETRACT: _retracted,
    "text-start": _prose_started,
    "text-delta": _prose_grew,
    "text-end": _prose_ended,
    "reasoning-start": _prose_started,
    "reasoning-delta": _prose_grew,
    "reasoning-end": _prose_ended,
    **dict.fromkeys(("start-step", "step-start"), lambda parts, _: [*parts, {"type": "step-start"}]),
    "finish-step": _step_finished,
    "file": _whole("mediaType", "url", "filename"),
    "source-url": _whole("sourceId", "url", "title"),
    "source-document": _whole("sourceId", "mediaType", "title", "filename"),
    **dict.fromkeys(_TAKES, _call),
}
