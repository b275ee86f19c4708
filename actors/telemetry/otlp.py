"""Telemetry by OpenTelemetry's SDK, over OTLP. This module is loaded only where telemetry is on: nothing else imports the SDK.

What is told is put into a queue of the SDK, and a thread of its own sends it. The queue has an end: while a collector is slow, refuses or
is down, what does not fit any more is dropped, and the log says once a minute that spans are lost. Nobody waits for a collector, but a
process that ends by itself, for a moment.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from perdure.actors.events.observability import Tags
from perdure.actors.telemetry.conventions import INSTRUMENTS, Instrument
from perdure.actors.telemetry.telemetry import TRACE, Telemetry, TelemetrySettings
from perdure.ledger import plain_without_secrets
from perdure.policies import Attribute, EndedSpan, TraceContext

EVERY_MS: Final = 500
"""How long a span waits for others. What a killed process had not sent by then is lost with it."""
SAYS_S: Final = 60.0
CLOSE_S: Final = 2.0
"""How long a process that ends waits for its collector."""
SCOPE: Final = "perdure"
log = logging.getLogger("perdure.telemetry")


class OtlpTelemetry(Telemetry):
    """The spans and metrics of one process, on their way to a collector.

    Args:
        name: the process: `supervisor`, or the id of a host.
    """

    is_on = True

    def __init__(self, settings: TelemetrySettings, name: str) -> None:
        self.tells_content = settings.tells_content
        for noisy in ("opentelemetry.exporter", "opentelemetry.sdk"):
            logging.getLogger(noisy).setLevel(logging.CRITICAL)  # `_Complaints` says it, once a minute
        resource = Resource.create(_who(name))
        self._ids = _Ids()
        self._spans = TracerProvider(resource=resource, id_generator=self._ids, shutdown_on_exit=False)
        if settings.traces:
            delay = None if "OTEL_BSP_SCHEDULE_DELAY" in os.environ else EVERY_MS
            self._spans.add_span_processor(BatchSpanProcessor(_Spans(), schedule_delay_millis=delay))
        self._tracer = self._spans.get_tracer(SCOPE)
        readers = [PeriodicExportingMetricReader(_Metrics())] if settings.metrics else []
        self._metrics = MeterProvider(readers, resource, shutdown_on_exit=False)
        self.metrics = OtlpMetrics(self._metrics)

    def serve_authors(self) -> None:
        # What an author's code tells by OpenTelemetry's API is sent in the same way, unless it has a provider of its own.
        trace.set_tracer_provider(self._spans)

    def tell(self, span: EndedSpan) -> None:
        # The SDK puts it into a queue, and this returns at once.
        attributes: dict[str, Attribute] = {
            name: plain_without_secrets(value) for name, value in span.attributes.items() if value not in ("", None)
        }
        if span.error:
            attributes["error.type"] = plain_without_secrets(span.error)
        with self._ids.given(span.context):
            begun = self._tracer.start_span(
                plain_without_secrets(span.name),
                _above(span),
                SpanKind.CLIENT if span.kind == "client" else SpanKind.INTERNAL,
                attributes,
                [Link(_place(each)) for each in span.links],
                span.start_ms * 1_000_000,
            )
        if span.error:
            begun.set_status(Status(StatusCode.ERROR))
        begun.end(max(span.start_ms, span.end_ms) * 1_000_000)  # the clock may have been set back in between

    def samples(self, trace_id: str) -> bool:
        # The sampler of the environment (`OTEL_TRACES_SAMPLER`) decides.
        decision = self._spans.sampler.should_sample(None, int(trace_id, 16), SCOPE).decision
        return decision is Decision.RECORD_AND_SAMPLE

    def enter(self, context: TraceContext) -> None:
        # The spans that an author's code begins in the current task belong to it too.
        TRACE.set(context)
        otel_context.attach(trace.set_span_in_context(NonRecordingSpan(_place(context))))

    @contextmanager
    def entered(self, context: TraceContext) -> Iterator[None]:
        token = otel_context.attach(trace.set_span_in_context(NonRecordingSpan(_place(context))))
        try:
            with super().entered(context):
                yield
        finally:
            otel_context.detach(token)

    def close(self) -> None:
        # Waits for a moment at most.
        threads = [
            threading.Thread(target=provider.shutdown, daemon=True, name="perdure-telemetry")
            for provider in (self._spans, self._metrics)
        ]
        for thread in threads:
            thread.start()
        until_s = time.monotonic() + CLOSE_S
        for thread in threads:
            thread.join(max(0.0, until_s - time.monotonic()))


class OtlpMetrics:
    """The port `Metrics`, by instruments of OpenTelemetry. What is not in the table of instruments goes nowhere."""

    def __init__(self, provider: MeterProvider) -> None:
        self._meter = provider.get_meter(SCOPE)
        self._made: dict[str, Callable[..., None]] = {}

    def count(self, name: str, value: float = 1, tags: Tags | None = None) -> None:
        self._with(name, lambda it: self._meter.create_counter(it.name, it.unit, it.description).add, value, tags)

    def observe(self, name: str, value: float, tags: Tags | None = None) -> None:
        self._with(
            name,
            lambda it: (
                self._meter.create_histogram(
                    it.name, it.unit, it.description, explicit_bucket_boundaries_advisory=it.bounds
                ).record
            ),
            value,
            tags,
        )

    def gauge(self, name: str, value: float, tags: Tags | None = None) -> None:
        self._with(name, lambda it: self._meter.create_gauge(it.name, it.unit, it.description).set, value, tags)

    def _with(
        self, name: str, make: Callable[[Instrument], Callable[..., None]], value: float, tags: Tags | None
    ) -> None:
        instrument = INSTRUMENTS.get(name)
        if instrument is None:
            return
        if name not in self._made:
            self._made[name] = make(instrument)
        self._made[name](value * instrument.scale, {key: each for key, each in (tags or {}).items() if each})


def _who(name: str) -> dict[str, str]:
    # What the environment says of the process comes first.
    named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    who = {"service.instance.id": name, "perdure.role": name if name == "supervisor" else "host"}
    return who if named else {"service.name": "perdure", **who}


def _place(context: TraceContext) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if context.sampled else TraceFlags.DEFAULT)
    return SpanContext(int(context.trace_id, 16), int(context.span_id or "0", 16), is_remote=True, trace_flags=flags)


def _above(span: EndedSpan) -> otel_context.Context:
    if not span.parent:
        return otel_context.Context()
    parent = NonRecordingSpan(_place(span.context._replace(span_id=span.parent)))
    return trace.set_span_in_context(parent, otel_context.Context())


# A span that is told has the ids that it is to have, and any other span, such as an author's, ids by chance.
class _Ids(RandomIdGenerator):
    def __init__(self) -> None:
        self._here = threading.local()

    @contextmanager
    def given(self, context: TraceContext) -> Iterator[None]:
        # In the block, the next span of this thread has these ids.
        self._here.context = context
        try:
            yield
        finally:
            self._here.context = None

    def generate_trace_id(self) -> int:
        context: TraceContext | None = getattr(self._here, "context", None)
        return super().generate_trace_id() if context is None else int(context.trace_id, 16)

    def generate_span_id(self) -> int:
        context: TraceContext | None = getattr(self._here, "context", None)
        return super().generate_span_id() if context is None else int(context.span_id, 16)


# It is said at most once a minute that a collector takes nothing, and then that it takes something again.
class _Complaints:
    def __init__(self, what: str) -> None:
        self._what = what
        self._said_s, self._lost = -SAYS_S, 0

    def heard(self, count: int, *, is_taken: bool) -> None:
        if is_taken and self._lost:
            log.info("the collector of telemetry takes %s again; %d were lost", self._what, self._lost)
            self._lost, self._said_s = 0, -SAYS_S
        if is_taken:
            return
        self._lost += count
        if time.monotonic() - self._said_s >= SAYS_S:
            self._said_s = time.monotonic()
            log.warning("the collector of telemetry took no %s; %d are lost so far", self._what, self._lost)


class _Spans(OTLPSpanExporter):
    def __init__(self) -> None:
        super().__init__()
        self._complaints = _Complaints("spans")

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = super().export(spans)
        self._complaints.heard(len(spans), is_taken=result is SpanExportResult.SUCCESS)
        return result


class _Metrics(OTLPMetricExporter):
    def __init__(self) -> None:
        super().__init__()
        self._complaints = _Complaints("metrics")

    def export(
        self, metrics_data: MetricsData, timeout_millis: float | None = 10_000, **kwargs: object
    ) -> MetricExportResult:
        result = super().export(metrics_data, timeout_millis, **kwargs)
        self._complaints.heard(1, is_taken=result is MetricExportResult.SUCCESS)
        return result
