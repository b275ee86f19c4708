"""The port by which spans leave a process, the place in a trace of the code that runs here, and whether telemetry is on.

Nothing in Perdure depends on a span: it is told after the fact, in one piece, when what it is about has ended. A span is never begun at a
collector, so none stays open there. What a process had under way when it died is told by whoever tells its end:

    an attempt at a run     the supervisor, from the facts of the ledger: it sees the death of a host
    an attempt at a turn    the agent's next life, from the turn's row
    a request to a model    the agent's next life, if the turn's row says that one was under way
    an inline tool          the agent's next life, from the record of the call
    an attempt at a fiber   the agent's next life, from the fiber's row
    a reply of a messenger  whichever life brings it to its end, from its row

Where a ledger is in a bucket, a span is held until the bucket has what it may speak of: in a host by `HeldTelemetry`, and the supervisor
tells of facts after their commit.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from perdure.policies import AttemptSpans, EndedSpan, TraceContext, context_of, trace_of

TRACE: Final[ContextVar[TraceContext | None]] = ContextVar("perdure_trace", default=None)
"""The span to which the code that runs here belongs. It is set only where telemetry is on."""

TOOL: Final[ContextVar[str]] = ContextVar("perdure_traced_tool", default="")
"""The name of the tool by which a model asks for what is requested here."""

CARRIED, CARRIED_TOOL = "trace", "trace_tool"
"""The options in which a request carries the context of whoever made it, and of a run of an agent the name of the tool."""

_outer: list[Callable[[], TraceContext | None]] = []


class Telemetry:
    """Where spans go. This one drops them all: telemetry is off.

    Attributes:
        is_on: whether spans are told at all; whoever would make one asks this first.
        tells_content: whether messages, and the arguments and results of tools, are told too.
    """

    is_on = False
    tells_content = False

    def tell(self, span: EndedSpan) -> None:
        """Tell of a span that has ended."""

    def samples(self, trace_id: str) -> bool:
        """Whether a trace that begins here is told."""
        return True

    def enter(self, context: TraceContext) -> None:
        """From now on the current task belongs to this span."""
        TRACE.set(context)

    @contextmanager
    def entered(self, context: TraceContext) -> Iterator[None]:
        token = TRACE.set(context)
        try:
            yield
        finally:
            TRACE.reset(token)

    def close(self) -> None:
        """Send what waits, as far as the collector takes it in a moment."""

    def above(self, carried: object, *ids: str) -> TraceContext:
        """What the first spans of something belong to: the context that came with its request, or a trace of its own."""
        known = context_of(carried)
        if known is not None:
            return known
        trace_id = trace_of(*ids)
        return TraceContext(trace_id, sampled=self.samples(trace_id))

    def attempts(self, carried: object, *ids: str) -> AttemptSpans:
        """The spans of the attempts at something that was asked for in the context `carried`."""
        return AttemptSpans(self.above(carried, *ids), ids)


OFF: Final = Telemetry()


class HeldTelemetry(Telemetry):
    """Passes spans on when all that was committed in this process before them is durable. What is held when the process dies is not told.

    Spans that an author's code makes by OpenTelemetry's own API do not come here: they are requests of that code's own. Nor do metrics:
    those of a host count requests to models, and say of no run, turn or fiber that anything came of it.

    Args:
        until_durable: waits until all that was committed so far is durable.
        start: begins a job on the loop, from whichever thread.
    """

    def __init__(
        self,
        telemetry: Telemetry,
        until_durable: Callable[[], Awaitable[None]],
        start: Callable[[Callable[[], Coroutine[object, object, None]]], None],
    ) -> None:
        self._telemetry, self._until_durable, self._start = telemetry, until_durable, start
        self.is_on, self.tells_content = telemetry.is_on, telemetry.tells_content
        self._held: list[EndedSpan] = []
        self._is_waiting = False

    def tell(self, span: EndedSpan) -> None:
        self._held.append(span)
        self._start(self._let_go)

    async def _let_go(self) -> None:
        if self._is_waiting:
            return
        self._is_waiting = True
        while count := len(self._held):
            await self._until_durable()
            self.pass_on(count)
        self._is_waiting = False

    def pass_on(self, count: int | None = None) -> None:
        # The first that are held, or all: what they speak of is durable.
        due, self._held = self._held[:count], [] if count is None else self._held[count:]
        for span in due:
            self._telemetry.tell(span)

    def samples(self, trace_id: str) -> bool:
        return self._telemetry.samples(trace_id)

    def enter(self, context: TraceContext) -> None:
        self._telemetry.enter(context)

    @contextmanager
    def entered(self, context: TraceContext) -> Iterator[None]:
        with self._telemetry.entered(context):
            yield


def carried() -> dict[str, str]:
    """The option that a request carries: nothing where there is no trace."""
    here = (_outer[0]() if _outer else None) or TRACE.get()
    return {CARRIED: here.text} if here is not None else {}


def carried_text() -> str:
    # The same as a text that stands in a row; empty where there is no trace.
    return carried().get(CARRIED, "")


def carried_by_run() -> dict[str, str]:
    # The same for a run, with the tool by which a model asks for it.
    told, tool = carried(), TOOL.get()
    return {**told, CARRIED_TOOL: tool} if told and tool else told


def heed_callers() -> None:
    # Spans that the program itself has begun with OpenTelemetry are above what it asks for. It is not imported for that.
    if not _outer:
        _outer.append(_current_of_program)


def _current_of_program() -> TraceContext | None:
    library = sys.modules.get("opentelemetry.trace")
    if library is None or not hasattr(library, "get_current_span"):
        return None
    here = library.get_current_span().get_span_context()
    if not here.is_valid:
        return None
    return TraceContext(f"{here.trace_id:032x}", f"{here.span_id:016x}", bool(here.trace_flags.sampled))


# ---------------------------------------------------------------- settings
# Whether telemetry is on, and what of it, by the standard variables of OpenTelemetry.


_PREFIX: Final = "OTEL_"
_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
_CAPTURE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_PROTOCOL: Final = "http/protobuf"
_CAPTURING: Final = frozenset({"true", "span_only", "span_and_event"})


@dataclass(frozen=True, kw_only=True)
class TelemetrySettings:
    """What is exported.

    Attributes:
        traces, metrics: whether these are sent.
        tells_content: whether spans carry messages, and the arguments and results of tools.
        unfit: why nothing is exported although an endpoint is named; empty if nothing is wrong.
    """

    traces: bool = False
    metrics: bool = False
    tells_content: bool = False
    unfit: str = ""

    @property
    def is_on(self) -> bool:
        return not self.unfit and (self.traces or self.metrics)

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> TelemetrySettings:
        # An endpoint turns telemetry on; `OTEL_SDK_DISABLED=true` turns it off.
        if _word(environ, "OTEL_SDK_DISABLED") == "true":
            return cls()
        wanted = {name: _is_wanted(environ, name) for name in ("traces", "metrics")}
        protocols = {
            environ.get(f"OTEL_EXPORTER_OTLP_{name.upper()}_PROTOCOL") or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
            for name in wanted
            if wanted[name]
        }
        other = sorted(each for each in protocols if each and each != _PROTOCOL)
        unfit = f"OTEL_EXPORTER_OTLP_PROTOCOL is {other[0]}; Perdure speaks {_PROTOCOL}" if other else ""
        return cls(**wanted, tells_content=_word(environ, _CAPTURE) in _CAPTURING, unfit=unfit)


def _is_wanted(environ: Mapping[str, str], name: str) -> bool:
    chosen = _word(environ, f"OTEL_{name.upper()}_EXPORTER") or "otlp"
    has_place = environ.get(_ENDPOINT) or environ.get(f"OTEL_EXPORTER_OTLP_{name.upper()}_ENDPOINT")
    return bool(has_place) and "otlp" in chosen.split(",")


def _word(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name, "").strip().lower()


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    # All of OpenTelemetry's, if telemetry is on: the processes of a directory are given these.
    if not TelemetrySettings.of(environ).is_on:
        return {}
    return {name: value for name, value in environ.items() if name.startswith(_PREFIX)}


def secrets_in(environ: Mapping[str, str]) -> list[str]:
    # They hold the collector's keys.
    headers = [value for name, value in environ.items() if name.startswith(_PREFIX) and name.endswith("_HEADERS")]
    pairs = [pair.partition("=")[2].strip() for text in headers for pair in text.split(",")]
    return [value for pair in pairs for value in (pair, pair.rpartition(" ")[2], pair.rpartition("%20")[2]) if value]
