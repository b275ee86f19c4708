"""Names of spans: ids that derive from durable ids, and the words of OpenTelemetry's conventions for generative AI.

A span is named by what it is about (a run and its attempt, a turn and its attempt, a call), never by chance. So whichever process knows
these ids can name a span that another process tells, or told before it died: as the parent of a span, or as the attempt before it.

A request carries the context of its sender as the W3C's `traceparent`. What no request caused has a trace of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from perdure.policies.repair import is_tool_part, tool_name
from perdure.policies.ui_messages import Message, Part, result_apart

Attribute = str | int | float | bool | list[str]

INVOKE_AGENT, EXECUTE_TOOL, CHAT = "invoke_agent", "execute_tool", "chat"
OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
OURS = "perdure"
NO_SPAN = "0" * 16
CONTENT_MAX = 16_000
"""How many characters of one piece of content a span carries."""

_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_ERROR_NAME = re.compile(r"[A-Za-z_][\w.]{0,99}(?=:|$)")


# A place in a trace: the trace, the span in it, and whether it is told at all. Without a span it is the top of the trace.
class TraceContext(NamedTuple):
    trace_id: str
    span_id: str = ""
    sampled: bool = True

    @property
    def text(self) -> str:
        return f"00-{self.trace_id}-{self.span_id or NO_SPAN}-{'01' if self.sampled else '00'}"


class EndedSpan(NamedTuple):
    """A span that has ended. Instants are milliseconds since the epoch; `parent` is a span of the same trace, or empty.

    `error` is the type of what went wrong, in one word; `kind` is `internal` or `client`.
    """

    name: str
    context: TraceContext
    parent: str
    start_ms: int
    end_ms: int
    attributes: Mapping[str, Attribute]
    links: tuple[TraceContext, ...] = ()
    error: str = ""
    kind: str = "internal"


def context_of(text: object) -> TraceContext | None:
    found = _TRACEPARENT.fullmatch(text) if isinstance(text, str) else None
    if found is None or not int(found[1], 16):  # the W3C calls a trace of zeros invalid
        return None
    return TraceContext(found[1], "" if found[2] == NO_SPAN else found[2], bool(int(found[3], 16) & 1))


def trace_of(*ids: str) -> str:
    return blake2b("\0".join(ids).encode(errors="surrogatepass"), digest_size=16, person=b"trace").hexdigest()


def within(above: TraceContext, *ids: object) -> TraceContext:
    told = "\0".join((above.trace_id, *map(str, ids)))
    return above._replace(
        span_id=blake2b(told.encode(errors="surrogatepass"), digest_size=8, person=b"span").hexdigest()
    )


def run_span(above: TraceContext, run_id: str, attempt: int) -> TraceContext:
    return within(above, "run", run_id, attempt)


def call_span(above: TraceContext, run_id: str) -> TraceContext:
    return within(above, "call", run_id)


class AttemptSpans(NamedTuple):
    """The spans of the attempts at something of these ids. Each but the `first` has a link to the one before."""

    above: TraceContext
    ids: tuple[str, ...]
    first: int = 1

    def place(self, attempt: int) -> TraceContext:
        return within(self.above, *self.ids, attempt)

    def ended(
        self,
        attempt: int,
        name: str,
        times: tuple[int, int],
        attributes: Mapping[str, Attribute],
        error: str = "",
        *links: TraceContext,
    ) -> EndedSpan:
        before = (self.place(attempt - 1),) if attempt > self.first else ()
        return EndedSpan(name, self.place(attempt), self.above.span_id, *times, attributes, (*before, *links), error)


def error_type(text: str, otherwise: str) -> str:
    found = _ERROR_NAME.match(text)  # and no more of `ValueError: …`: the words may hold what a person wrote
    return found[0] if found is not None else otherwise


# --- content, which is told only on demand ---------------------------------------------------------------------------


def spoken_content(messages: Sequence[Message]) -> list[dict[str, object]]:
    """Messages in the form of the conventions: `[{role, parts: [{type, …}]}]`."""
    return [{"role": each["role"], "parts": list(_content(each["parts"]))} for each in messages]


def _content(parts: Sequence[Part]) -> Iterator[dict[str, object]]:
    for part in parts:
        if part["type"] in ("text", "reasoning"):
            yield {"type": part["type"], "content": part.get("text", "")}
        elif is_tool_part(part):
            call = {"id": part["toolCallId"], "name": tool_name(part)}
            yield {"type": "tool_call", **call, "arguments": part.get("input")}
            result = result_apart(part)[0] if "output" in part else part.get("errorText")
            if result is not None:
                yield {"type": "tool_call_response", "id": part["toolCallId"], "response": result}
