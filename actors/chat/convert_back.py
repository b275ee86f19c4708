"""From the library's messages to ours: a history that was kept elsewhere can be gone on with here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pydantic_core import to_jsonable_python

from perdure.actors.chat.answer_reader import provider_metadata
from perdure.actors.chat.call_reader import speakable
from perdure.actors.chat.messages import Message, Role
from perdure.actors.chat.plain_data import all_mended, mended
from perdure.actors.events.message_parts import Part

if TYPE_CHECKING:
    from pydantic_ai import messages as lib


def from_model(history: Sequence[lib.ModelMessage], new_id: Callable[[], str]) -> list[Message]:
    """A history of the library as a transcript of ours: what was kept elsewhere can be gone on with here.

    Answers that follow one another become the steps of one message. What only the library knows (its notes about tools that come and
    go, say) is left out.
    """
    messages: list[Message] = []
    for each in history:
        last = messages[-1] if messages else None
        if each.kind == "request":
            _apply_results(last, each.parts)
            messages += _said(each.parts, new_id)
            continue
        if last is None or last["role"] != "assistant":
            last = {"id": new_id(), "role": "assistant", "parts": []}
            messages.append(last)
        last["parts"] += [{"type": "step-start"}, *_answered(each)]
        _apply_results(last, each.parts)
    return messages


def _said(parts: Sequence[Any], new_id: Callable[[], str]) -> Iterator[Message]:
    roles: dict[str, Role] = {"system-prompt": "system", "user-prompt": "user"}
    for part in parts:
        if part.part_kind in roles:
            yield {"id": new_id(), "role": roles[part.part_kind], "parts": _prompt(part)}


def _answered(response: lib.ModelResponse) -> Iterator[Part]:
    for part in response.parts:
        about = provider_metadata(part, response.canonical_system)
        if part.part_kind in ("text", "thinking"):
            kind = "text" if part.part_kind == "text" else "reasoning"
            metadata = {} if about is None else {"providerMetadata": about}
            yield {"type": kind, "text": mended(part.content), "state": "done", **metadata}
        elif part.part_kind in ("tool-call", "builtin-tool-call"):
            name = speakable(part.tool_name)
            call = {
                "type": f"tool-{name}",
                "toolCallId": part.tool_call_id,
                "toolName": name,
                "state": "input-available",
            }
            hosted = {"providerExecuted": True} if part.part_kind != "tool-call" else {}
            metadata = {} if about is None else {"callProviderMetadata": about}
            yield {**call, "input": all_mended(part.args_as_dict()), **hosted, **metadata}


def _apply_results(last: Message | None, parts: Sequence[Any]) -> None:
    calls = {part["toolCallId"]: part for part in (last["parts"] if last else ()) if "toolCallId" in part}
    for part in parts:
        call = calls.get(getattr(part, "tool_call_id", None))
        if part.part_kind not in ("tool-return", "builtin-tool-return") or call is None:
            continue
        if part.outcome == "success":
            call.update(state="output-available", output=all_mended(to_jsonable_python(part.content, fallback=str)))
        elif part.outcome == "denied":
            call.update(state="output-denied", approval={"approved": False, "reason": str(part.content)})
        else:
            call.update(state="output-error", errorText=mended(part.model_response_str(wrap_if_error=False)))


def _prompt(part: Any) -> list[Part]:
    content = [part.content] if isinstance(part.content, str) else part.content
    return [found for each in content if (found := _prompt_part(each)) is not None]


def _prompt_part(item: Any) -> Part | None:
    if isinstance(item, str):
        return {"type": "text", "text": mended(item)}
    if getattr(item, "kind", "") == "binary":
        return {"type": "file", "mediaType": item.media_type, "url": item.data_uri}
    if isinstance(getattr(item, "url", None), str):
        return {"type": "file", "mediaType": item.media_type, "url": item.url}
    words = getattr(item, "content", None)
    return {"type": "text", "text": mended(words)} if isinstance(words, str) else None
