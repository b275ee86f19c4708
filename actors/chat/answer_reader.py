"""One answer of a model, from the library's events to chunks of the AI SDK's UI message stream. Pure.

The events of pydantic-ai are known by their `event_kind` and `part_kind` only, so reading them loads nothing. The reader of an answer adds
`start`, `finish` and step chunks.

Metadata that a provider wants back with a part (a signature, its own id) travels as `providerMetadata.perdure`, and comes back to it in
`convert`. A part that breaks off never gets any, so half a thought is never sent as a signed one.

An executed call cannot be taken back. So a call is given out (`tool-input-available`) only when two things are proven (spec
transport-recovery §1.5, B11):

    it is over      the next part of the answer has begun, or the answer has ended for a reason that ends calls too
    it is right     its arguments are one strict JSON object, for a tool that was offered

A call that is over but not right becomes a `tool-input-error`, whose text tells the model what to do; it is never executed. A call that is
not over when the stream breaks is dropped: its arguments may be the beginning of others, even if they happen to parse.

Ids name the durable runs of calls, and providers repeat them within an answer and between answers. An id that is missing, unusable or taken
is replaced by one that is derived from it.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, cast

from perdure.actors.chat.plain_data import TextJoiner, all_mended, checked_plain, mended
from perdure.actors.chat.tools import ToolSpec
from perdure.actors.chat.turn_failures import ModelFailed, too_long
from perdure.ledger import BadRequest, pack
from perdure.policies import Event, Failure, FailureKind, Json, JsonObject, OurMetadata, ProviderMetadata

if TYPE_CHECKING:
    from pydantic_ai import messages as lib


ENDING = frozenset({"stop", "tool_call"})
"""Reasons of an answer's end that also end its last call; `length` cuts it off."""

ARGUMENTS_BYTES_MAX: Final = 2_000_000
"""Of one call. What is larger could not be kept whole in the message that holds the call."""
_TOO_LONG: Final = (
    f"have more than {ARGUMENTS_BYTES_MAX:,} bytes, which is the limit of a call; hand the data over in parts"
)

_ID = re.compile(r"[\x21-\x7e]{1,64}")
_MADE_UP = "pyd_ai_"  # of the library's random id for a call without one
_SHOWN_MAX = 500


class BadArguments(ValueError):
    """The text is not one JSON object; the message says why."""


@dataclass(slots=True)
class _Call:
    call_id: str
    name: str
    pieces: list[str] = field(default_factory=list)
    given: JsonObject | None = None
    joiner: TextJoiner = field(default_factory=TextJoiner)
    metadata: ProviderMetadata | None = None
    is_shown: bool = False
    is_settled: bool = False
    is_too_long: bool = False
    size: int = 0

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def _overrun(call: _Call) -> ModelFailed:
    words = f"the provider added to a finished call of {call.name}"
    return ModelFailed(Failure(FailureKind.IN_BAND, words, is_transient=True))


class CallReader:
    """Reads the calls of one answer. Calls go by the number of their part."""

    def __init__(self, tools: Iterable[ToolSpec], taken_ids: Iterable[str] = ()) -> None:
        self._tools: Mapping[str, ToolSpec] = {each.name: each for each in tools}
        self._taken = set(taken_ids)
        self._calls: dict[int, _Call] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, part: int) -> bool:
        return part in self._calls

    def started(self, part: int, call_id: str, name: str, args: str | JsonObject | None) -> Iterator[Event]:
        known = self._calls.get(part)
        if known is None:
            known = self._calls[part] = _Call(self._own_id(call_id), name)
        elif known.is_too_long:
            return
        elif known.is_settled:
            raise _overrun(known)
        else:
            known.name, known.pieces, known.given = name, [], None
        yield from self.grew(part, "", args)

    def grew(self, part: int, more_name: str, args: str | JsonObject | None) -> Iterator[Event]:
        """More of a call. Raises `ModelFailed` for one that was given out: the provider broke its own protocol."""
        call = self._calls[part]
        if call.is_too_long:
            return
        if call.is_settled:
            if more_name or (args.strip() if isinstance(args, str) else args):
                raise _overrun(call)
            return
        call.name += more_name
        if isinstance(args, dict):
            call.given = {**(call.given or {}), **args}
            args = ""
        piece = call.joiner.joined(args or "")
        if piece:
            yield from self._shown(call)
            call.pieces.append(piece)
            call.size += len(piece)
            if call.size > ARGUMENTS_BYTES_MAX:
                call.is_too_long = True
                yield from self._failed(call, f"the arguments {_TOO_LONG}; what follows of them is not read")
                return
            yield {"type": "tool-input-delta", "toolCallId": call.call_id, "inputTextDelta": piece}

    def described(self, part: int, metadata: ProviderMetadata) -> None:
        self._calls[part].metadata = metadata

    def next_began(self, part: int) -> Iterator[Event]:
        """A part began, so those before it are over. Incomplete calls are left until the end: some providers begin all calls before they
        fill them."""
        for number, call in self._calls.items():
            if number != part and not call.is_settled and (call.pieces or call.given):
                yield from self._settled(call, only_right=True)

    def ended(self, reason: str) -> Iterator[Event]:
        for call in self._calls.values():
            if call.is_settled:
                continue
            if reason in ENDING:
                yield from self._settled(call)
            else:
                yield from self._failed(call, f"the answer was cut off ({reason}) before the call was complete")

    def _shown(self, call: _Call) -> Iterator[Event]:
        if not call.is_shown:
            call.is_shown = True
            yield {"type": "tool-input-start", "toolCallId": call.call_id, "toolName": speakable(call.name)}

    def _settled(self, call: _Call, *, only_right: bool = False) -> Iterator[Event]:
        tool = self._tools.get(call.name)
        try:
            given = call.given if call.given is not None and not call.text else self._arguments(call, tool)
            given = checked_plain("input", all_mended(given))
            if len(pack(given)) > ARGUMENTS_BYTES_MAX:
                raise BadArguments(f"they {_TOO_LONG}")  # noqa: TRY301 - like any other
        except (BadArguments, BadRequest) as problem:
            if not only_right:
                yield from self._failed(call, f"the arguments cannot be used: {problem}")
            return
        if tool is None:
            names, wanted = ", ".join(self._tools) or "none", mended(call.name)[:_SHOWN_MAX]
            yield from self._failed(call, f"there is no tool {wanted!r}; the tools are: {names}", given)
            return
        yield from self._shown(call)
        call.is_settled = True
        about: Event = {"type": "tool-input-available", "toolCallId": call.call_id, "toolName": call.name}
        event: Event = {**about, "input": given}
        if call.metadata is not None:
            event["providerMetadata"] = call.metadata
        yield event

    def _arguments(self, call: _Call, tool: ToolSpec | None) -> JsonObject:
        call.pieces.append(call.joiner.rest())
        text = call.text
        if not text.strip():  # some providers send nothing for a tool that needs nothing
            wanted = tool.parameters.get("required") if tool is not None else None
            if isinstance(wanted, list) and wanted:
                raise BadArguments(f"none came, and these are required: {', '.join(map(str, wanted))}")
            return {}
        return arguments_in(text)

    def _failed(self, call: _Call, why: str, given: object = None) -> Iterator[Event]:
        # Without the provider's metadata, because the provider has kept another call under that id.
        yield from self._shown(call)
        call.is_settled = True
        raw = mended(call.text)
        began = f" They began with: {raw[:_SHOWN_MAX]}" if given is None and raw.strip() else ""
        yield {
            "type": "tool-input-error",
            "toolCallId": call.call_id,
            "toolName": speakable(call.name),
            "input": {} if given is None else given,
            "errorText": f"This call was not executed: {why}.{began}",
        }

    def _own_id(self, call_id: str) -> str:
        wanted = "" if call_id.startswith(_MADE_UP) else call_id
        found = free_id(wanted, lambda each: each not in self._taken and _ID.fullmatch(each) is not None)
        self._taken.add(found)
        return found


def free_id(wanted: str, is_free: Callable[[str], bool]) -> str:
    # The same id each time, whatever life reads the answer.
    found, turn = wanted, 0
    while not is_free(found):
        turn += 1
        found = f"call_{blake2b(f'{wanted}|{turn}'.encode(errors='replace'), digest_size=12).hexdigest()}"
    return found


def arguments_in(text: str) -> JsonObject:
    """The one JSON object in a text, strictly: nothing before or after it, no name twice, no NaN. Raises `BadArguments`."""
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_refuse_constant)
    except json.JSONDecodeError as problem:
        if problem.msg == "Extra data":
            raise BadArguments(f"something follows the first JSON value, at character {problem.pos}") from problem
        raise BadArguments(f"they are not JSON ({problem.msg} at character {problem.pos})") from problem
    except RecursionError as problem:
        raise BadArguments("they are nested too deep") from problem
    except BadArguments:
        raise
    except ValueError as problem:  # a number of more digits than Python reads
        raise BadArguments(str(problem)) from problem
    if not isinstance(value, dict):
        raise BadArguments(f"they are a JSON {_KINDS.get(type(value), 'value')}, not an object")
    return value


_KINDS = {list: "array", str: "string", int: "number", float: "number", bool: "boolean", type(None): "null"}


def _object(pairs: list[tuple[str, Json]]) -> JsonObject:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise BadArguments(f"the name {twice!r:.100} stands twice in one object")
    return found


def _refuse_constant(name: str) -> None:
    raise BadArguments(f"{name} is not JSON")


def speakable(name: str) -> str:
    # Models make names up, and one that a provider refuses would spoil all further requests.
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64] or "unnamed"


# ---------------------------------------------------------------- the answer


ANSWER_BYTES_MAX = 16_000_000
_EVENT_BYTES = 32
_WEIGHTY = frozenset({"content", "content_delta", "args", "args_delta", "signature", "signature_delta", "tool_name"})
_PLAIN_ID = re.compile(r"[a-zA-Z0-9_-]+")


class _Prose:
    def __init__(self, kind: str, part: int) -> None:
        self.kind, self.id = kind, f"{kind}-{part}"
        self.joiner, self.is_open = TextJoiner(), False

    def grew(self, piece: str | None) -> Iterator[Event]:
        words = self.joiner.joined(piece or "")
        if words:
            yield from self._opened()
            yield {"type": f"{self.kind}-delta", "id": self.id, "delta": words}

    def ended(self, metadata: ProviderMetadata | None) -> Iterator[Event]:
        rest = self.joiner.rest()
        if rest:
            yield {"type": f"{self.kind}-delta", "id": self.id, "delta": rest}
        if self.is_open or (metadata and self.kind == "reasoning"):
            yield from self._opened()
            end: Event = {"type": f"{self.kind}-end", "id": self.id}
            if metadata:
                end["providerMetadata"] = metadata
            yield end
        self.is_open = False

    def _opened(self) -> Iterator[Event]:
        if not self.is_open:
            self.is_open = True
            yield {"type": f"{self.kind}-start", "id": self.id}


class AnswerReader:
    """Reads one answer."""

    def __init__(
        self, tools: Iterable[ToolSpec], *, taken_ids: Iterable[str] = (), bytes_max: int = ANSWER_BYTES_MAX
    ) -> None:
        self.calls = CallReader(tools, taken_ids)
        self._prose: dict[int, _Prose] = {}
        self._cited: set[str] = set()
        self._is_hosted = False
        self.provider: str | None = None
        """The provider's name, once it is known."""
        self._bytes, self._bytes_max = 0, bytes_max

    def read(self, event: lib.ModelResponseStreamEvent) -> Iterator[Event]:
        """The chunks of one event. Raises `ModelFailed` if the answer is too long, or goes on with a call that it had finished."""
        if event.event_kind == "part_start":
            self._weigh(event.part)
            yield from self.calls.next_began(event.index)
            yield from self._started(event.index, event.part)
        elif event.event_kind == "part_delta":
            self._weigh(event.delta)
            yield from self._grew(event.index, event.delta)
        elif event.event_kind == "part_end":
            yield from self._ended(event.index, event.part, event.canonical_system)

    @property
    def has_calls(self) -> bool:
        return len(self.calls) > 0 or self._is_hosted

    def finish(self, reason: str) -> Iterator[Event]:
        for prose in self._prose.values():
            if prose.is_open:
                yield from prose.ended(None)
        yield from self.calls.ended(reason)

    def refused(self, words: str) -> Iterator[Event]:
        # People read these words as the answer.
        prose = _Prose("text", len(self._prose) + len(self.calls))
        yield from prose.grew(words)
        yield from prose.ended(None)

    def _weigh(self, piece: object) -> None:
        self._bytes += _EVENT_BYTES
        for name in _weighty(cast("Hashable", type(piece))):
            self._bytes += _weight(getattr(piece, name))
        if self._bytes > self._bytes_max:
            raise too_long(self._bytes_max)

    def _started(self, index: int, part: lib.ModelResponsePart) -> Iterator[Event]:
        if part.part_kind == "text":
            yield from self._prose_started(index, "text", part.content)
        elif part.part_kind == "thinking":
            yield from self._prose_started(index, "reasoning", part.content)
        elif part.part_kind == "tool-call":
            args = cast("str | JsonObject | None", part.args)
            yield from self.calls.started(index, part.tool_call_id or "", part.tool_name, args)
            self._describe(index, part, None)
        elif part.part_kind == "builtin-tool-return":
            about: Event = {"type": "tool-output-available", "toolCallId": part.tool_call_id}
            yield {**about, "output": _json(part.content), "providerExecuted": True}
        elif part.part_kind == "file":
            kind, data = part.content.media_type, base64.b64encode(part.content.data).decode()
            yield {"type": "file", "mediaType": kind, "url": f"data:{kind};base64,{data}"}

    def _prose_started(self, index: int, kind: str, words: str) -> Iterator[Event]:
        before = self._prose.get(index)
        if before is not None:
            yield from before.ended(None)
        self._prose[index] = _Prose(kind, index)
        yield from self._prose[index].grew(words)

    def _grew(self, index: int, delta: lib.ModelResponsePartDelta) -> Iterator[Event]:
        if delta.part_delta_kind == "tool_call":
            if index in self.calls:  # else it is the provider's own, of which we hear when it is over
                args = cast("str | JsonObject | None", delta.args_delta)
                yield from self.calls.grew(index, delta.tool_name_delta or "", args)
        elif index in self._prose and delta.part_delta_kind != "speech":
            yield from self._prose[index].grew(delta.content_delta)
            for citation in getattr(delta, "citations_delta", None) or ():
                yield from self._sources(citation)

    def _ended(self, index: int, part: lib.ModelResponsePart, canonical: str | None) -> Iterator[Event]:
        if index in self._prose and part.part_kind in ("text", "thinking"):
            yield from self._prose[index].ended(provider_metadata(part, canonical))
            for citation in getattr(part, "citations", None) or ():
                yield from self._sources(citation)
        elif part.part_kind == "tool-call":
            self._describe(index, part, canonical)
        elif part.part_kind == "builtin-tool-call":
            self._is_hosted = True
            yield from _hosted_call(part, canonical)

    def _describe(self, index: int, part: lib.ToolCallPart, canonical: str | None) -> None:
        # An id that other providers may not take is recorded with its provider.
        metadata = provider_metadata(part, canonical)
        if metadata is None and self.provider and not _PLAIN_ID.fullmatch(part.tool_call_id or "-"):
            metadata = {"perdure": {"provider": self.provider}}
        if metadata is not None:
            self.calls.described(index, metadata)

    def _sources(self, citation: lib.Citation) -> Iterator[Event]:
        for source in citation.sources:
            url = getattr(source, "url", None)
            if isinstance(url, str) and url not in self._cited:
                self._cited.add(url)
                event: Event = {"type": "source-url", "sourceId": f"source-{len(self._cited)}", "url": mended(url)}
                if source.title:
                    event["title"] = mended(source.title)
                yield event


@cache
def _weighty(kind: Any) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind) if each.name in _WEIGHTY)


def _weight(value: object) -> int:
    if isinstance(value, str):
        return len(value)
    data = getattr(value, "data", None)
    return len(data) if isinstance(data, bytes) else len(str(value)) if value else 0


def provider_metadata(part: lib.ModelResponsePart, canonical: str | None) -> ProviderMetadata | None:
    # What the part's provider wants back, under our own name.
    told = {
        "provider": getattr(part, "provider_name", None),
        "canonical": canonical,
        "id": getattr(part, "id", None),
        "signature": getattr(part, "signature", None),
        "details": _json(getattr(part, "provider_details", None)),
    }
    kept = {name: value for name, value in told.items() if value}
    return {"perdure": cast("OurMetadata", kept)} if kept.keys() - {"canonical"} else None


def _json(value: object) -> Json:
    try:
        return cast("Json", all_mended(json.loads(json.dumps(value))))
    except (TypeError, ValueError, RecursionError):
        return None


def _hosted_call(part: lib.NativeToolCallPart, canonical: str | None) -> Iterator[Event]:
    about = provider_metadata(part, canonical)
    call: Event = {"type": "tool-input-available", "toolCallId": part.tool_call_id, "toolName": part.tool_name}
    event: Event = {**call, "input": all_mended(part.args_as_dict()), "providerExecuted": True}
    if about is not None:
        event["providerMetadata"] = about
    yield event
