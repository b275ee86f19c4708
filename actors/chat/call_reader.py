"""The tool calls in a model's answer: which of them are whole, and their arguments.

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

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from perdure.actors.chat.plain_data import TextJoiner, all_mended, checked, mended
from perdure.actors.chat.tools import ToolSpec
from perdure.actors.chat.turn_failures import ModelFailed
from perdure.ledger import BadRequest, pack
from perdure.policies import Event, Failure, FailureKind, Json, JsonObject, ProviderMetadata

ENDING = frozenset({"stop", "tool_call"})
"""Reasons of an answer's end that also end its last call; `length` cuts it off."""

ARGUMENTS_BYTES_MAX: Final = 2_000_000
"""Of one call. What is larger could not be kept whole in the message that holds the call."""
TOO_LONG: Final = (
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
        """A call begins, or begins again. Raises `ModelFailed` for one that was given out: the provider broke its own protocol."""
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
        """More of a call. Raises `ModelFailed` as `started` does."""
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
                yield from self._failed(call, f"the arguments {TOO_LONG}; what follows of them is not read")
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
            given = checked("input", all_mended(given))
            if len(pack(given)) > ARGUMENTS_BYTES_MAX:
                raise BadArguments(f"they {TOO_LONG}")  # noqa: TRY301 - like any other
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
        found, turn = "" if call_id.startswith(_MADE_UP) else call_id, 0
        call_id = found
        while found in self._taken or not _ID.fullmatch(found):
            turn += 1
            found = f"call_{blake2b(f'{call_id}|{turn}'.encode(errors='replace'), digest_size=12).hexdigest()}"
        self._taken.add(found)
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
