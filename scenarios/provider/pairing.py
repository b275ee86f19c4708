"""Whether a request is legal: tool calls and results pair, and everything has the shape that real servers require.

The check is strict. Real servers refuse some of this with a 400, and an illegal history makes a conversation unusable for ever.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

ROLES: Final = ("system", "developer", "user", "assistant", "tool")


def problems(body: object) -> list[str]:
    """The problems of a request body, one sentence each."""
    if not isinstance(body, dict):
        return ["the body is not a JSON object"]
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return ["`messages` is not a list with at least one message"]
    shape = [*_shape_of_tools(body.get("tools"))]
    if not isinstance(body.get("stream_options"), dict | None):
        shape.append("`stream_options` is not an object")
    for at, message in enumerate(messages):
        shape += (f"messages[{at}]: {problem}" for problem in _shape_of(message))
    return shape or list(_unpaired(messages))


def _shape_of_tools(tools: object) -> Iterator[str]:
    if tools is None:
        return
    if not isinstance(tools, list) or not tools:
        yield "`tools` is not a list with at least one tool"
        return
    for at, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not _is_text(function.get("name")):
            yield f"tools[{at}]: not a function with a name"


def _shape_of(message: object) -> Iterator[str]:
    if not isinstance(message, dict):
        yield "not an object"
        return
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        yield f"the role is {role!r}; there are {', '.join(ROLES)}"
    if not isinstance(content, str | list | None):
        yield "`content` is neither text nor a list of parts"
    calls = message.get("tool_calls")
    if calls is not None and role != "assistant":
        yield f"`tool_calls` in a message of the {role}"
    elif calls is not None and (not isinstance(calls, list) or not calls):
        yield "`tool_calls` is not a list with at least one call"
    elif calls:
        yield from (problem for call in calls for problem in _shape_of_call(call))
    if not content and not calls:
        yield from _emptiness(str(role), content)
    if role == "tool" and not _is_text(message.get("tool_call_id")):
        yield "a tool message without `tool_call_id`"


def _emptiness(role: str, content: object) -> Iterator[str]:
    """Only a tool message may have an empty text."""
    if role == "assistant":
        yield "an assistant message with neither content nor tool calls"
    elif role != "tool" or content is None:
        yield "there is no content"


def _shape_of_call(call: object) -> Iterator[str]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        yield "a tool call without a function"
        return
    if not _is_text(call.get("id")):
        yield "a tool call without an id"
    if not _is_text(function.get("name")):
        yield f"tool call {call.get('id')}: the function has no name"
    if not _is_object(function.get("arguments")):
        yield f"tool call {call.get('id')}: the arguments are not a JSON object: {function.get('arguments')!r}"


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _is_object(text: object) -> bool:
    try:
        return isinstance(text, str) and isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _unpaired(messages: Sequence[dict[str, Any]]) -> Iterator[str]:
    """After an assistant message with calls, exactly their results must follow, in any order."""
    seen: set[str] = set()
    due: dict[str, None] = {}
    for at, message in enumerate(messages):
        if message["role"] == "tool":
            result_of = message["tool_call_id"]
            if result_of not in due:
                yield f"messages[{at}]: {_orphan(result_of, seen)}"
            due.pop(result_of, None)
            continue
        yield from _missing(at, due)
        due = {}
        for call in message.get("tool_calls") or ():
            if call["id"] in seen:
                yield f"messages[{at}]: the tool call id {call['id']} was used before"
            seen.add(call["id"])
            due[call["id"]] = None
    yield from _missing(len(messages), due)


def _missing(at: int, due: dict[str, None]) -> Iterator[str]:
    if due:
        yield f"messages[{at}]: no tool message right after the call for {', '.join(due)}"


def _orphan(call_id: str, seen: set[str]) -> str:
    if call_id in seen:
        return f"a second or late result for tool call {call_id}"
    return f"a result for tool call {call_id}, which was never made"
