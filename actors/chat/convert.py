"""From our messages to the library's: what a model is sent of a transcript. `pydantic_ai.ui` is not used for it, since what a provider
refuses of a transcript it refuses for ever.

One message of an assistant holds all the steps of a turn. A model's history has an answer for each step, followed by the results of its
calls. The history is legal for every provider: each call has exactly one result, right after its answer; ids are unique; names are such as
providers take; inputs are objects; a thought without its signature, or without what it led to, is left out; and the last message is never
the model's own.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import islice
from operator import is_
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import unquote_to_bytes

from perdure.actors.chat.answer_reader import free_id, speakable
from perdure.ledger import BadRequest
from perdure.policies import STEERED, JsonObject, Message, Part, is_file, object_input, steered_message, told_of

if TYPE_CHECKING:
    from pydantic_ai import messages as lib
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models import Model, ModelRequestParameters


CONTINUE = (
    "[Your last message was cut off by a lost connection. "
    "Continue it exactly where it ends; repeat nothing of it, and do not mention this.]"
)
"""Said after a broken answer. Many models refuse a request whose last message is their own."""

CUT_BY_LENGTH = (
    "[Your last message was cut off, because it had reached the limit of its length. "
    "Continue it exactly where it ends; repeat nothing of it, and do not mention this.]"
)
GO_ON = "[Continue your last message where it ends; repeat nothing of it, and do not mention this.]"

_ID_CHARS_MAX = 64  # as long as every provider takes them
DENIED = "The user declined this call. It was not executed."
UNANSWERED = "There is no result yet: this call waits for the user. It may or may not be executed later."

_METADATA = ("providerMetadata", "callProviderMetadata")
Outcome = Literal["success", "failed", "denied", "interrupted"]


class IllegalRequest(AssertionError):
    """A request that providers would refuse, now and later, because it stays in the history. Only a bug of ours makes one."""


def to_model(
    messages: Sequence[Message], *, provider: str | None = None, last_word: str = CONTINUE
) -> list[lib.ModelMessage]:
    """The history for a request. Raises `BadRequest` if there is nothing to send.

    Args:
        messages: the transcript. Calls without a result get one that says so.
        provider: who will read it. Ids of other providers' calls are written in letters that all of them take.
        last_word: said to the model if the transcript ends with an answer of its own.
    """
    return HistoryWriter(provider).finished(messages, last_word)


def _steps(parts: list[Part]) -> Iterator[list[Part]]:
    # A message that a client made may lack the marks between its steps; then a text after a call begins the next one.
    # What a person said in the middle of the answer stands alone.
    is_marked = any(part["type"] == "step-start" for part in parts)
    step: list[Part] = []
    for part in parts:
        if part["type"] == STEERED:
            yield step
            yield [part]
            step = []
            continue
        is_word = part["type"] in ("text", "reasoning")
        has_call = any("toolCallId" in each and not each.get("providerExecuted") for each in step)
        if part["type"] == "step-start" or (is_word and not is_marked and has_call):
            yield step
            step = []
        if part["type"] != "step-start":
            step.append(part)
    yield step


class HistoryWriter:
    """Writes the history of a request, message by message. What is written is never changed in place, so forks share it."""

    def __init__(self, provider: str | None) -> None:
        from pydantic_ai import messages as lib  # noqa: PLC0415 - not before a model is asked

        self.history: list[lib.ModelMessage] = []
        self.provider = provider
        self._lib = lib
        self._ids: set[str] = set()

    def fork(self) -> HistoryWriter:
        other = HistoryWriter(self.provider)
        other.history, other._ids = [*self.history], {*self._ids}
        return other

    def finished(self, messages: Sequence[Message], last_word: str) -> list[lib.ModelMessage]:
        # The history ends with these messages. Raises `BadRequest` if there is nothing to send.
        for message in messages:
            self.write(message)
        if not self.history:
            raise BadRequest("messages", "there is nothing in them that could be sent to a model")
        if isinstance(self.history[-1], self._lib.ModelResponse):
            self.history.append(self._lib.ModelRequest(parts=[self._lib.UserPromptPart(last_word)]))
        return self.history

    def write(self, message: Message) -> None:
        # What people said in the middle of an answer is a message of its own to the model.
        if message["role"] != "assistant":
            self._say(message)
            return
        has_begun = False
        for step in _steps(message["parts"]):
            steered = steered_message(step[0]) if step else None
            if steered is not None:
                self._say(steered)
            else:
                has_begun = self._answer(step, goes_on=has_begun) or has_begun

    def _say(self, message: Message) -> None:
        content = user_content(message["parts"])
        texts = [each for each in content if isinstance(each, str)]
        if message["role"] == "system" and texts:
            self._add([self._lib.SystemPromptPart("\n".join(texts))])
        elif content:
            whole = texts[0] if content == texts and len(texts) == 1 else content
            self._add([self._lib.UserPromptPart(whole)])

    def _answer(self, step: list[Part], *, goes_on: bool) -> bool:
        # Returns whether it was not empty. `goes_on`: it is not the first answer of its message.
        parts: list[lib.ModelResponsePart] = []
        results: list[lib.ModelRequestPart] = []
        beside: list[lib.ModelRequestPart] = []
        for part in _with_what_it_led_to([part for part in step if _is_sendable(part)]):
            if "toolCallId" not in part:
                parts.append(self._said(part))
            elif part.get("providerExecuted"):
                parts.extend(self._hosted(part))
            else:
                call_id = self._call_id(part)
                name, given = speakable(str(part.get("toolName"))), object_input(part.get("input"))
                content, outcome = call_result(part)
                parts.append(self._lib.ToolCallPart(name, given, call_id, **_told(part, "callProviderMetadata", "id")))
                results.append(self._lib.ToolReturnPart(name, content, call_id, outcome=outcome))
                if outcome == "success" and (added := beside_result(part)):
                    beside.append(self._lib.UserPromptPart(added))
        if not parts:
            return False
        about: dict[str, Any] = next(filter(None, (_about(part, *_METADATA) for part in step)), {})
        self._respond(parts, about.get("provider"), about.get("canonical"), goes_on=goes_on)
        if results:
            self._add([*results, *beside])
        return True

    def _respond(
        self, parts: list[lib.ModelResponsePart], provider: str | None, canonical: str | None, *, goes_on: bool
    ) -> None:
        last, system = self.history[-1] if self.history else None, (provider, canonical)
        if not isinstance(last, self._lib.ModelResponse) or (last.provider_name, last.canonical_system) != system:
            answer = self._lib.ModelResponse(parts=parts, provider_name=provider, canonical_system=canonical)
            self.history.append(answer)
            return
        before, text = last.parts[-1], parts[0]
        if goes_on and isinstance(before, self._lib.TextPart) and isinstance(text, self._lib.TextPart):
            # The text broke off there. Between two parts the library would put blank lines, perhaps inside a word.
            joined, parts = replace(before, content=before.content + text.content), parts[1:]
            self.history[-1] = replace(last, parts=[*last.parts[:-1], joined, *parts])
        else:
            self.history[-1] = replace(last, parts=[*last.parts, *parts])

    def _add(self, parts: Sequence[lib.ModelRequestPart]) -> None:
        last = self.history[-1] if self.history else None
        if isinstance(last, self._lib.ModelRequest):
            self.history[-1] = replace(last, parts=[*last.parts, *parts])
        else:
            self.history.append(self._lib.ModelRequest(parts=[*parts]))

    def _said(self, part: Part) -> lib.ModelResponsePart:
        if part["type"] == "reasoning":
            return self._lib.ThinkingPart(part["text"], **_told(part, "providerMetadata", "id", "signature"))
        if part["type"] == "file":
            return self._lib.FilePart(_binary(part["url"], part["mediaType"]))
        return self._lib.TextPart(part["text"], **_told(part, "providerMetadata", "id"))

    def _hosted(self, part: Part) -> list[lib.ModelResponsePart]:
        # The library sends such a call to this provider only.
        told = _told(part, "callProviderMetadata", "id")
        name, call_id = str(part.get("toolName")), part["toolCallId"]
        call = self._lib.NativeToolCallPart(name, object_input(part.get("input")), call_id, **told)
        about = {name: value for name, value in told.items() if name == "provider_name"}
        return [call, self._lib.NativeToolReturnPart(name, part.get("output"), call_id, **about)]

    def _call_id(self, part: Part) -> str:
        made_by = _about(part, "callProviderMetadata").get("provider")
        found = str(part["toolCallId"])
        if made_by is None or made_by != self.provider:
            found = re.sub(r"[^a-zA-Z0-9_-]", "_", found)
        found = free_id(found, lambda each: each not in self._ids and 0 < len(each) <= _ID_CHARS_MAX)
        self._ids.add(found)
        return found


def user_content(parts: Iterable[Part]) -> list[lib.UserContent]:
    content: list[lib.UserContent] = []
    for part in parts:
        if part["type"] == "text" and part["text"].strip():
            content.append(part["text"])
        elif part["type"] == "file":
            content.append(_file(part))
    return content


def _file(part: Part) -> lib.UserContent:
    from pydantic_ai import messages as lib  # noqa: PLC0415 - as above

    url, kind = part["url"], part["mediaType"]
    about = _about(part, "providerMetadata")
    more: dict[str, Any] = {"identifier": about.get("id"), "vendor_metadata": about.get("details")}
    if url.startswith("data:"):
        try:
            return replace(_binary(url, kind), **more)
        except ValueError:
            return f"[The file {part.get('filename') or kind} cannot be read.]"
    if not url.startswith(("http://", "https://")):
        return f"[The file {part.get('filename') or kind} is at {url}, which cannot be reached.]"
    kinds = {"image": lib.ImageUrl, "audio": lib.AudioUrl, "video": lib.VideoUrl}
    found: lib.UserContent = kinds.get(kind.partition("/")[0], lib.DocumentUrl)(url, media_type=kind, **more)
    return found


def call_result(part: Part) -> tuple[object, Outcome]:
    # What the model is told of a call: its output, or why there is none. A warning comes before partial output.
    output = part.get("output", part.get("result"))
    state = part.get("state")
    if part.get("errorText") and state != "output-denied":
        if output is None:
            return part["errorText"], "failed"
        so_far = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
        return f"{part['errorText']}\n\nOutput so far:\n{so_far}", "failed"
    if state == "output-denied":
        approval = part.get("approval")
        reason = approval.get("reason") if isinstance(approval, dict) else None
        return (f"{DENIED} Reason given: {reason}" if reason else DENIED), "denied"
    if state == "output-error":
        return "The call failed for an unknown reason.", "failed"
    if state == "output-available" or output is not None:
        return _with_files(output) if told_of(part).get("hasFiles") else output, "success"
    return UNANSWERED, "interrupted"


def _with_files(output: object) -> object:
    if isinstance(output, list):
        return [_file(each) if is_file(each) else each for each in output]
    return _file(output) if is_file(output) else output


def beside_result(part: Part) -> list[lib.UserContent]:
    # What a tool has added to its result for the model.
    return user_content(told_of(part).get("content", ()))


def _is_sendable(part: Part) -> bool:
    if "toolCallId" in part:
        is_over = "output" in part or not part.get("providerExecuted")
        return part.get("state") != "input-streaming" and is_over
    if part["type"] == "reasoning":
        return bool(_about(part, "providerMetadata"))
    if part["type"] == "file":
        return str(part["url"]).startswith("data:")
    return bool(part["type"] == "text" and part["text"])


def _with_what_it_led_to(parts: list[Part]) -> Iterator[Part]:
    # Providers refuse a thought that nothing follows. OpenAI also wants the very item that followed.
    for at, part in enumerate(parts):
        if part["type"] == "reasoning":
            follows = next((each for each in parts[at + 1 :] if each["type"] != "reasoning"), None)
            is_bound = str(_about(part, "providerMetadata").get("id", "")).startswith("rs_")
            if follows is None or (is_bound and not _about(follows, *_METADATA).get("id")):
                continue
        yield part


def _about(part: Part, *names: str) -> JsonObject:
    for name in names:
        metadata = part.get(name)
        ours = metadata.get("perdure") if isinstance(metadata, dict) else None
        if isinstance(ours, dict):
            return ours
    return {}


def _told(part: Part, name: str, *fields: str) -> dict[str, Any]:
    about = _about(part, name)
    if not about.get("provider"):
        return {}
    told = {"provider_name": about["provider"], "provider_details": about.get("details")}
    return told | {field: about[field] for field in fields if about.get(field)}


def _binary(url: str, kind: str) -> lib.BinaryContent:
    from pydantic_ai import messages as lib  # noqa: PLC0415 - as above

    head, comma, body = url.removeprefix("data:").partition(",")
    if not comma:
        raise ValueError("the data URL has no data")
    raw = unquote_to_bytes(body)
    try:
        data = base64.b64decode(raw, validate=True) if head.endswith(";base64") else raw
    except binascii.Error as problem:
        raise ValueError(str(problem)) from problem
    return lib.BinaryContent(data=data, media_type=kind)


def assert_paired(history: Sequence[lib.ModelMessage], before: AbstractSet[str] = frozenset()) -> None:
    """Check that every call has exactly one result in the next message, and every result its call, and that ids are unique, also among
    those of the calls `before` it.

    Raises `IllegalRequest`. Nothing was sent.
    """
    from pydantic_ai import messages as lib  # noqa: PLC0415 - as above

    seen = set(before)
    waiting: list[str] = []
    for message in history:
        if isinstance(message, lib.ModelResponse):
            if waiting:
                raise IllegalRequest(f"another answer comes before the results of {', '.join(waiting)}")
            waiting = [part.tool_call_id for part in message.parts if isinstance(part, lib.ToolCallPart)]
            twice = [call for at, call in enumerate(waiting) if call in seen or call in waiting[:at]]
            if twice:
                raise IllegalRequest(f"the id {twice[0]} names two calls")
            seen.update(waiting)
            continue
        results = [part.tool_call_id for part in message.parts if isinstance(part, lib.ToolReturnPart)]
        if sorted(results) != sorted(waiting):
            raise IllegalRequest(f"the calls are {waiting or 'none'}, but the results are of {results or 'none'}")
        waiting = []
    if waiting:
        raise IllegalRequest(f"there is no result of {', '.join(waiting)}")


def _called_ids(history: Iterable[lib.ModelMessage]) -> set[str]:
    return {part.tool_call_id for each in history for part in each.parts if part.part_kind == "tool-call"}


# ---------------------------------------------------------------- kept from one request to the next
# A message of the transcript is never changed in place. So what was made of it counts as long as this very object stands in its place:
# after an edit, a repair or a deletion another one does, and everything is made anew. The last message is written each time, because an
# answer that is being played is another object for each request.
#
# The library prepares each history for its model. What it does to a message depends on that message, its neighbours, and the head of the
# history. So if it leaves the messages of a history as they are, it is next shown the head and what is new, and all of it only if it
# changes anything there.


LONG: Final = 40
"""The number of messages from which a history is worth its memory."""
RECENT: Final = 20
"""The newest messages, which are prepared with each request: what the library does to these may depend on the end."""


class KeptHistory:
    """The history of one conversation, for its next request."""

    def __init__(self, worth: int = LONG) -> None:
        self._worth = worth
        self._messages: list[Message] = []
        self._writer: HistoryWriter | None = None
        self._model: Model | None = None
        self._untouched: list[ModelMessage] = []  # the library left these as they are
        self._call_ids: set[str] = set()  # of the calls in them, each of which has its result

    def count_new(self, messages: Sequence[Message]) -> int:
        return len(messages) - len(self._messages) if _begins(self._messages, messages) else len(messages)

    def prepared(
        self,
        messages: Sequence[Message],
        model: Model,
        parameters: ModelRequestParameters,
        last_word: str = CONTINUE,
    ) -> list[ModelMessage]:
        # Raises as `to_model` and `assert_paired` do.
        if len(messages) < self._worth:
            made = model.prepare_messages(to_model(messages, provider=model.system, last_word=last_word), parameters)
            assert_paired(made)
            return made
        history = self._written(messages, model.system).fork().finished(messages[-1:], last_word)
        known = self._untouched if self._model is model and _begins(self._untouched, history) else []
        shown = [*known[:1], *history[len(known) :]]
        made = model.prepare_messages(shown, parameters)
        if len(made) != len(shown) or not all(map(is_, made, shown)):
            made = model.prepare_messages(history, parameters) if known else made
            assert_paired(made)
            return made
        if not known:
            self._model, self._untouched, self._call_ids = model, [], set()
        assert_paired(history[len(known) :], self._call_ids)
        self._settle(history)
        return history

    def _written(self, messages: Sequence[Message], provider: str) -> HistoryWriter:
        # The last message is not written, because an answer that is being played is another object for each request.
        writer = self._writer
        if writer is None or writer.provider != provider or not _begins(self._messages, messages):
            writer, self._messages = HistoryWriter(provider), []
        self._writer = None  # until it is whole again
        for message in islice(messages, len(self._messages), max(0, len(messages) - 1)):
            writer.write(message)
            self._messages.append(message)
        self._writer = writer
        return writer

    def _settle(self, history: list[ModelMessage]) -> None:
        # The rest begins with an answer, lest a result be cut off from its call.
        end = max(0, len(history) - RECENT)
        while end > len(self._untouched) and history[end].kind != "response":
            end -= 1
        if end > len(self._untouched) and history[0].kind == "request":
            self._call_ids |= _called_ids(history[len(self._untouched) : end])
            self._untouched = history[:end]


def _begins(first: Sequence[object], whole: Sequence[object]) -> bool:
    return len(first) < len(whole) and all(map(is_, first, whole))
