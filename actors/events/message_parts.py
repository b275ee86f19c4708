"""From stream chunks to message parts: what a reader of a child's stream sees grow.

The vocabulary is that of the AI SDK's UI message stream, so that existing front ends can read the parts. The reducer
is pure and keeps nothing beside the parts, which is what lets the same chunk be applied twice to the same parts with
the same result (spec B23). Two keys therefore live on a part only while it streams: `id`, by which interleaved texts
find their part, and `inputText`, the raw JSON of a tool's input so far. Both are gone when the part is done.

The states of a tool part, and who may move them (spec chat-recovery §1.2):

    input-streaming → input-available → approval-requested → approval-responded
                                      → output-available | output-error | output-denied

Providers replay earlier calls in a continued answer, so a chunk about the *input* of a call never moves a part
backwards; an *output* is taken in any state, because it says what happened. A chunk that is malformed, of an unknown
type, or about an unknown call changes nothing. `data-retract` is ours: it withdraws what a broken connection left half said.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeGuard

from pydantic_core import from_json

Part = dict[str, Any]
"""One part of a message; `type` says which."""

Chunk = Mapping[str, Any]
"""One piece of a UI message stream; `type` says which."""

RETRACT = "data-retract"
BROKEN = "interrupted"
"""The reason of a step's end if its answer never ended."""

SETTLED = frozenset({"output-available", "output-error", "output-denied"})
_ANSWERED = SETTLED | {"approval-responded"}


def chunk_of(body: object) -> Chunk | None:
    """The chunk in the body of a frame, which is the chunk itself or its JSON text; None if it is neither."""
    if isinstance(body, str):
        try:
            body = json.loads(body)
        except (ValueError, RecursionError):
            return None
    return body if isinstance(body, Mapping) else None


def apply_chunk(parts: list[Part], chunk: Chunk) -> list[Part]:
    """The parts after a chunk: a new list, or the very same one if the chunk changes nothing.

    Neither `parts` nor any part in it is ever changed. The new parts share the values of the chunk, which is not
    copied.
    """
    kind = chunk.get("type")
    if not isinstance(kind, str):
        return parts
    if kind == RETRACT:
        return _retracted(parts, chunk)
    if kind.startswith("data-"):
        return _data(parts, chunk)
    step = _STEPS.get(kind)
    return step(parts, chunk) if step else parts


def normalized_input(raw: object) -> dict[str, Any]:
    """A tool's input as the object that providers demand: itself, or the object in its JSON text, or an empty one."""
    if isinstance(raw, dict):
        return raw
    if isinstance(raw, str) and raw.lstrip().startswith("{"):
        parsed = chunk_of(raw)
        return dict(parsed) if parsed is not None else {}
    return {}


def _replaced(parts: list[Part], index: int, part: Part) -> list[Part]:
    return [*parts[:index], part, *parts[index + 1 :]]


def _kept(chunk: Chunk, *names: str) -> Part:
    """Those of the chunk's fields that are there."""
    return {name: chunk[name] for name in names if chunk.get(name) is not None}


# --- text and reasoning ----------------------------------------------------------------------------------------------


def _prose_of(chunk: Chunk) -> str:
    """`text` or `reasoning`: the type of the part that a `text-…` or `reasoning-…` chunk is about."""
    return str(chunk["type"]).partition("-")[0]


def _streaming(parts: list[Part], kind: str, part_id: object) -> int | None:
    """Where the text stands that a chunk continues.

    A chunk without an id continues the last text that still streams, but not across a tool call or a step: what was
    said after a call is not put before it.
    """
    for index in range(len(parts) - 1, -1, -1):
        part = parts[index]
        if part["type"] == kind and part.get("state") == "streaming" and part_id in (None, part.get("id")):
            return index
        if part_id is None and (part["type"] == "step-start" or "toolCallId" in part):
            return None
    return None


def _with_metadata(part: Part, chunk: Chunk) -> Part:
    """The part with the chunk's provider metadata merged in: signatures may come with a delta or with the end."""
    metadata = chunk.get("providerMetadata")
    if not isinstance(metadata, Mapping):
        return part
    return {**part, "providerMetadata": {**part.get("providerMetadata", {}), **metadata}}


def _prose_started(parts: list[Part], chunk: Chunk) -> list[Part]:
    part = {"type": _prose_of(chunk), **_kept(chunk, "id"), "text": "", "state": "streaming"}
    return [*parts, _with_metadata(part, chunk)]


def _prose_grew(parts: list[Part], chunk: Chunk) -> list[Part]:
    delta = chunk.get("delta")
    if not isinstance(delta, str):
        return parts
    index = _streaming(parts, _prose_of(chunk), chunk.get("id"))
    if index is None:
        started = _prose_started(parts, chunk)
        return [*parts, {**started[-1], "text": delta}]
    part = {**parts[index], "text": parts[index]["text"] + delta}
    return _replaced(parts, index, _with_metadata(part, chunk))


def _done(part: Part) -> Part:
    return {**{name: value for name, value in part.items() if name != "id"}, "state": "done"}


def _prose_ended(parts: list[Part], chunk: Chunk) -> list[Part]:
    index = _streaming(parts, _prose_of(chunk), chunk.get("id"))
    if index is None:
        return parts
    return _replaced(parts, index, _with_metadata(_done(parts[index]), chunk))


# --- steps, sources, files, data -------------------------------------------------------------------------------------


def _step_started(parts: list[Part], _chunk: Chunk) -> list[Part]:
    return [*parts, {"type": "step-start"}]


def _step_finished(parts: list[Part], chunk: Chunk) -> list[Part]:
    """Close every text that still streams, so that the next step may use its id again."""
    is_open = [part["type"] in ("text", "reasoning") and part.get("state") == "streaming" for part in parts]
    closed = [_done(part) if still_open else part for part, still_open in zip(parts, is_open, strict=True)]
    if chunk.get("finishReason") == BROKEN:
        base = max((at for at, part in enumerate(parts) if part["type"] == "step-start"), default=-1) + 1
        closed[base:] = map(_unbound, closed[base:])
    return parts if all(new is old for new, old in zip(closed, parts, strict=True)) else closed


def _unbound(part: Part) -> Part:
    """A part of an answer that never ended, without its provider's number of it.

    OpenAI takes the number of an item for the item that it has kept, and has kept nothing of an answer that broke off: the next request
    would be refused. A signature that proves itself (Anthropic's, Google's) stays.
    """
    metadata = part.get("providerMetadata") or part.get("callProviderMetadata")
    ours = metadata.get("perdure") if isinstance(metadata, Mapping) else None
    kept_as = str(ours.get("id", "")) if isinstance(ours, Mapping) else ""
    if not kept_as.startswith(("rs_", "msg_", "fc_")):
        return part
    return {name: value for name, value in part.items() if name not in ("providerMetadata", "callProviderMetadata")}


def _whole(*names: str) -> Callable[[list[Part], Chunk], list[Part]]:
    """The step for a chunk that is a part as it stands, with these fields."""

    def step(parts: list[Part], chunk: Chunk) -> list[Part]:
        return [*parts, {"type": chunk["type"], **_kept(chunk, *names, "providerMetadata")}]

    return step


def _data(parts: list[Part], chunk: Chunk) -> list[Part]:
    """Add an author's data part, or renew the one with the same type and id. A transient one is seen but not kept."""
    if chunk.get("transient"):
        return parts
    part = {"type": chunk["type"], **_kept(chunk, "id"), "data": chunk.get("data")}
    if "id" not in part:
        return [*parts, part]
    for index, known in enumerate(parts):
        if known["type"] == part["type"] and known.get("id") == part["id"]:
            return _replaced(parts, index, part)
    return [*parts, part]


def _retracted(parts: list[Part], chunk: Chunk) -> list[Part]:
    """Withdraw what an abandoned half step had shown: only the first parts stay. Nothing is spliced silently."""
    kept = chunk.get("data", {}).get("parts") if isinstance(chunk.get("data"), Mapping) else None
    return parts[:kept] if isinstance(kept, int) and 0 <= kept < len(parts) else parts


# --- tool calls ------------------------------------------------------------------------------------------------------


def _is_name(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and value != ""


def _find_call(parts: list[Part], chunk: Chunk) -> int | None:
    call_id = chunk.get("toolCallId")
    if not _is_name(call_id):
        return None
    return next((index for index in range(len(parts) - 1, -1, -1) if parts[index].get("toolCallId") == call_id), None)


def _new_call(chunk: Chunk) -> Part | None:
    """The first sight of a call, or None if the chunk does not say which call of which tool."""
    call_id, name = chunk.get("toolCallId"), chunk.get("toolName")
    if not _is_name(call_id) or not _is_name(name):
        return None
    kind = "dynamic-tool" if chunk.get("dynamic") else f"tool-{name}"
    return {"type": kind, "toolCallId": call_id, "toolName": name, "state": "input-streaming"}


def _about_call(chunk: Chunk) -> Part:
    metadata = chunk.get("providerMetadata")
    return {
        **_kept(chunk, "title", "providerExecuted"),
        **({"callProviderMetadata": metadata} if metadata is not None else {}),
    }


def _moved(part: Part, state: str, **fields: object) -> Part:
    """The part in another state, without the raw text of its input."""
    return {**{name: value for name, value in part.items() if name != "inputText"}, "state": state, **fields}


def _input_started(parts: list[Part], chunk: Chunk) -> list[Part]:
    part = _new_call(chunk)
    if part is None or _find_call(parts, chunk) is not None:
        return parts
    return [*parts, {**part, **_about_call(chunk)}]


def _input_grew(parts: list[Part], chunk: Chunk) -> list[Part]:
    """Add to the raw text of the input, and show as much of it as can be read already."""
    index, delta = _find_call(parts, chunk), chunk.get("inputTextDelta")
    if index is None or not isinstance(delta, str) or parts[index].get("state") != "input-streaming":
        return parts
    text = parts[index].get("inputText", "") + delta
    part = {**parts[index], "inputText": text}
    with suppress(ValueError):  # not readable yet, or never: the whole input comes with `tool-input-available`
        part["input"] = from_json(text, allow_partial="trailing-strings")
    return _replaced(parts, index, part)


def _input_arrived(parts: list[Part], chunk: Chunk) -> list[Part]:
    index = _find_call(parts, chunk)
    part = _new_call(chunk) if index is None else parts[index]
    if part is None or part.get("state") != "input-streaming":
        return parts
    part = _moved(part, "input-available", input=normalized_input(chunk.get("input")), **_about_call(chunk))
    return [*parts, part] if index is None else _replaced(parts, index, part)


def _input_failed(parts: list[Part], chunk: Chunk) -> list[Part]:
    index = _find_call(parts, chunk)
    part = _new_call(chunk) if index is None else parts[index]
    if part is None or part.get("state") in SETTLED:
        return parts
    given = {"input": normalized_input(chunk.get("input")), "errorText": str(chunk.get("errorText", ""))}
    part = _moved(part, "output-error", **given, **_about_call(chunk))
    return [*parts, part] if index is None else _replaced(parts, index, part)


def _approval_requested(parts: list[Part], chunk: Chunk) -> list[Part]:
    """Ask a person. The input stands by what was streamed of it; an approval that was answered is not asked again."""
    index = _find_call(parts, chunk)
    if index is None or parts[index].get("state") in _ANSWERED:
        return parts
    approval = {"id": chunk.get("approvalId")}
    if "approvalDescriptor" in chunk:
        approval["descriptor"] = chunk["approvalDescriptor"]
    shown = normalized_input(parts[index].get("input"))
    return _replaced(parts, index, _moved(parts[index], "approval-requested", input=shown, approval=approval))


def _approval_answered(parts: list[Part], chunk: Chunk) -> list[Part]:
    """A person allowed the call, or did not; what is known of the approval is kept. An answered one is not answered again."""
    index = _find_call(parts, chunk)
    if index is None or parts[index].get("state") not in ("input-available", "approval-requested"):
        return parts
    approval = {
        **(parts[index].get("approval") or {"id": chunk.get("toolCallId")}),
        "approved": bool(chunk.get("approved")),
    }
    state = "approval-responded" if chunk.get("approved") else "output-denied"
    reason = _kept(chunk, "reason")
    return _replaced(parts, index, _moved(parts[index], state, approval={**approval, **reason}))


def _denied(parts: list[Part], chunk: Chunk) -> list[Part]:
    index = _find_call(parts, chunk)
    if index is None or parts[index].get("state") in _ANSWERED:
        return parts
    return _replaced(parts, index, _moved(parts[index], "output-denied"))


def _returned(parts: list[Part], chunk: Chunk) -> list[Part]:
    index = _find_call(parts, chunk)
    if index is None:
        return parts
    bare = {name: value for name, value in parts[index].items() if name not in ("errorText", "preliminary")}
    part = _moved(
        bare, "output-available", output=chunk.get("output"), **_kept(chunk, "preliminary", "providerExecuted")
    )
    return _replaced(parts, index, _with_result_metadata(part, chunk))


def _raised(parts: list[Part], chunk: Chunk) -> list[Part]:
    index = _find_call(parts, chunk)
    if index is None:
        return parts
    bare = {name: value for name, value in parts[index].items() if name not in ("output", "preliminary")}
    part = _moved(bare, "output-error", errorText=str(chunk.get("errorText", "")), **_kept(chunk, "providerExecuted"))
    return _replaced(parts, index, _with_result_metadata(part, chunk))


def _with_result_metadata(part: Part, chunk: Chunk) -> Part:
    metadata = chunk.get("providerMetadata")
    return part if metadata is None else {**part, "resultProviderMetadata": metadata}


_STEPS: dict[str, Callable[[list[Part], Chunk], list[Part]]] = {
    "text-start": _prose_started,
    "text-delta": _prose_grew,
    "text-end": _prose_ended,
    "reasoning-start": _prose_started,
    "reasoning-delta": _prose_grew,
    "reasoning-end": _prose_ended,
    "start-step": _step_started,
    "step-start": _step_started,
    "finish-step": _step_finished,
    "file": _whole("mediaType", "url", "filename"),
    "source-url": _whole("sourceId", "url", "title"),
    "source-document": _whole("sourceId", "mediaType", "title", "filename"),
    "tool-input-start": _input_started,
    "tool-input-delta": _input_grew,
    "tool-input-available": _input_arrived,
    "tool-input-error": _input_failed,
    "tool-approval-request": _approval_requested,
    "tool-approval-response": _approval_answered,
    "tool-output-denied": _denied,
    "tool-output-available": _returned,
    "tool-output-error": _raised,
}
