"""What a request of AG-UI asks of a chat agent, in our words; and our messages in AG-UI's. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ag_ui.core import (
    AssistantMessage,
    DeveloperMessage,
    FileSource,
    Message,
    RunAgentInput,
    SystemMessage,
    TextPart,
    ToolMessage,
    UrlSource,
    UserMessage,
)
from pydantic import ValidationError

from perdure.actors.ag_ui.speech import Speech
from perdure.ledger import BadRequest, of_json
from perdure.policies import Json, JsonObject, Part, says_nothing
from perdure.policies import Message as OurMessage


def input_of(body: bytes) -> RunAgentInput:
    """The request in a body. Raises `BadRequest`, naming the field."""
    try:
        return RunAgentInput.model_validate_json(body)
    except ValidationError as problem:
        first = problem.errors(include_url=False)[0]
        raise BadRequest(".".join(map(str, first["loc"])) or "body", of_json(first["msg"])) from None


def asking(given: RunAgentInput) -> list[JsonObject]:
    """The messages at the end that an agent is to answer, as ours."""
    found: list[JsonObject] = []
    for at in range(len(given.messages) - 1, -1, -1):
        message = given.messages[at]
        if not isinstance(message, UserMessage | SystemMessage | DeveloperMessage):
            break
        found.insert(0, message_of(f"messages[{at}]", message))
    return found if any(each["role"] == "user" for each in found) else []


def earlier(given: RunAgentInput) -> list[JsonObject]:
    """What was said before these, as ours: texts alone."""
    found = []
    for at, message in enumerate(given.messages[: len(given.messages) - len(asking(given))]):
        if isinstance(message, UserMessage | SystemMessage | DeveloperMessage) or (
            isinstance(message, AssistantMessage) and message.content
        ):
            said = message_of(f"messages[{at}]", message)
            found += [] if says_nothing(said) else [said]
    return found


def answers(given: RunAgentInput) -> dict[str, ToolMessage]:
    """The results of front-end tools that came since the last answer, by their calls."""
    found: dict[str, ToolMessage] = {}
    for message in reversed(given.messages):
        if isinstance(message, AssistantMessage):
            break
        if isinstance(message, ToolMessage):
            found[message.tool_call_id] = message
    return found


def message_of(field: str, message: UserMessage | SystemMessage | DeveloperMessage | AssistantMessage) -> JsonObject:
    """A message as ours. Raises `BadRequest` for content that nobody here could read."""
    role = "system" if message.role == "developer" else message.role
    content = message.content
    texts = [TextPart(text=content)] if isinstance(content, str) else content or []
    parts = [_part(f"{field}.content[{at}]", each) for at, each in enumerate(texts)]
    return {"id": message.id, "role": role, "parts": parts}


def _part(field: str, part: Any) -> JsonObject:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    source = part.source
    if isinstance(source, FileSource):
        raise BadRequest(field, "names a file at a provider; send its data, or a link")
    kind = source.mime_type or {"image": "image/*", "audio": "audio/*", "video": "video/*"}.get(part.type, "text/plain")
    url = source.value if isinstance(source, UrlSource) else f"data:{kind};base64,{source.value}"
    return {"type": "file", "mediaType": kind, "url": url}


def client_tools(given: RunAgentInput) -> list[dict[str, object]]:
    """The front end's tools, as ours."""
    nothing = {"type": "object", "properties": {}}
    return [
        {"name": each.name, "description": each.description, "parameters": each.parameters or nothing}
        for each in given.tools or ()
    ]


def metadata(given: RunAgentInput) -> Json:
    """What stays with the turn for its author: `active_turn.metadata["agUi"]`."""
    context = [{"description": each.description, "value": each.value} for each in given.context or ()]
    props = {"state": given.state, "context": context or None, "forwardedProps": given.forwarded_props or None}
    found: JsonObject = {name: value for name, value in props.items() if value not in (None, {})}
    return {"agUi": {"runId": given.run_id, **found}}


# ours in AG-UI's words


def conversation(transcript: Iterable[OurMessage]) -> list[Message]:
    """A transcript as messages of AG-UI, with the ids by which its turns were told."""
    return [each for message in transcript for each in _told(message)]


def _told(message: OurMessage) -> Sequence[Message]:
    if message["role"] == "assistant":
        speech = Speech(message["id"])
        for number, part in enumerate(message["parts"]):
            for chunk in _retold(part, f"part-{number}"):
                speech.say(chunk)
        return speech.messages
    text = "".join(part["text"] for part in message["parts"] if part["type"] == "text")
    kind = UserMessage if message["role"] == "user" else SystemMessage
    return [kind(id=message["id"], content=text)]


def _retold(part: Part, part_id: str) -> list[JsonObject]:
    kind = part["type"]
    if kind in ("text", "reasoning"):
        return [
            {"type": f"{kind}-delta", "id": part_id, "delta": part.get("text", "")},
            {"type": f"{kind}-end", "id": part_id},
        ]
    if kind == "step-start":
        return [{"type": "start-step"}]
    if "toolCallId" not in part:
        return []
    call = {"toolCallId": part["toolCallId"], "toolName": part.get("toolName") or kind.removeprefix("tool-")}
    found: list[JsonObject] = [{"type": "tool-input-available", **call, "input": part.get("input")}]
    state = part.get("state")
    if state == "output-available":
        found.append({"type": "tool-output-available", **call, "output": part.get("output")})
    elif state == "output-error":
        found.append({"type": "tool-output-error", **call, "errorText": part.get("errorText", "")})
    elif state == "output-denied":
        found.append({"type": "tool-output-denied", **call})
    return found
