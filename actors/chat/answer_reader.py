"""One answer of a model, from the library's events to chunks of the AI SDK's UI message stream. Pure.

The events of pydantic-ai are known by their `event_kind` and `part_kind` only, so reading them loads nothing. The reader of an answer adds
`start`, `finish` and step chunks.

Metadata that a provider wants back with a part (a signature, its own id) travels as `providerMetadata.perdure`, and comes back to it in
`convert`. A part that breaks off never gets any, so half a thought is never sent as a signed one.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from perdure.actors.chat.call_reader import CallReader
from perdure.actors.chat.plain_data import TextJoiner, all_mended, mended
from perdure.actors.chat.tools import ToolSpec
from perdure.actors.chat.turn_failures import too_long
from perdure.policies import Event, Json, JsonObject, OurMetadata, ProviderMetadata

if TYPE_CHECKING:
    from pydantic_ai import messages as lib

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
    """The metadata that the part's provider wants back, under our own name, or None."""
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
