r"""The events of a scripted reply, and their encoding in the chat completions protocol.

Each event becomes one frame of server-sent events, so "after the third event" and "after byte 412" mean the same in every world. The same
reply always has the same bytes, so `created` is a constant. Text is sent as UTF-8, not as `\u` escapes, so a cut can split a character.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

CREATED_S: Final = 1_700_000_000
CHARS_PER_TOKEN: Final = 4


# Frozen. An unknown field is refused.
class Plain(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Role(Plain):
    """The first chunk, which has only the role."""


class Text(Plain):
    text: str


class Reasoning(Plain):
    text: str


# Some real servers leave out the id or the name.
class CallStart(Plain):
    index: int = 0
    id: str | None = None
    name: str | None = None


class ArgumentsDelta(Plain):
    index: int = 0
    text: str


class Finish(Plain):
    reason: str = "stop"


# In a chunk without choices.
class Usage(Plain):
    prompt: int = 0
    completion: int = 0


class Done(Plain):
    """The sentinel `[DONE]`."""


class StreamFailure(Plain):
    message: str
    type: str = "server_error"
    code: str | None = None


class Comment(Plain):
    text: str = "keep-alive"


# What a broken server sends.
class Raw(Plain):
    text: str


Event = Role | Text | Reasoning | CallStart | ArgumentsDelta | Finish | Usage | Done | StreamFailure | Comment | Raw


def frames(events: Iterable[Event], response_id: str, model: str) -> tuple[bytes, ...]:
    return tuple(_frame(event, response_id, model).encode() for event in events)


def _frame(event: Event, response_id: str, model: str) -> str:
    match event:
        case Raw(text=text):
            return text
        case Comment(text=text):
            return f": {text}\n\n"
        case Done():
            return "data: [DONE]\n\n"
        case StreamFailure():
            return f"data: {dumped({'error': error_of(event)})}\n\n"
    return f"data: {dumped(_chunk(event, response_id, model))}\n\n"


def _chunk(event: Event, response_id: str, model: str) -> dict[str, Any]:
    chunk: dict[str, Any] = {
        "id": response_id,
        "object": "chat.completion.chunk",
        "created": CREATED_S,
        "model": model,
        "choices": [],
    }
    if isinstance(event, Usage):
        return {**chunk, "usage": _tokens(event)}
    reason = event.reason if isinstance(event, Finish) else None
    return {**chunk, "choices": [{"index": 0, "delta": _delta(event), "finish_reason": reason}]}


def _delta(event: Event) -> dict[str, Any]:
    match event:
        case Role():
            return {"role": "assistant", "content": ""}
        case Text(text=text):
            return {"content": text}
        case Reasoning(text=text):
            return {"reasoning_content": text}
        case CallStart(index=index, id=call_id, name=name):
            function = {"arguments": ""} if name is None else {"name": name, "arguments": ""}
            known = {} if call_id is None else {"id": call_id}
            return {"tool_calls": [{"index": index, **known, "type": "function", "function": function}]}
        case ArgumentsDelta(index=index, text=text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
    return {}


def error_of(failure: StreamFailure) -> dict[str, Any]:
    return {"message": failure.message, "type": failure.type, "param": None, "code": failure.code}


def _tokens(usage: Usage) -> dict[str, int]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
    }


def tokens_in(text: str) -> int:
    return -(-len(text) // CHARS_PER_TOKEN)


def dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
