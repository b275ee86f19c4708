"""Telemetry over a real socket: what a collector receives, and what a collector that is down, slow or refusing cannot do."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from opentelemetry import trace

from perdure.actors.telemetry.otlp import OtlpTelemetry
from perdure.actors.telemetry.telemetry import TelemetrySettings, carried, heed_callers, secrets_in, variables
from perdure.ledger import Secret
from perdure.policies import EndedSpan, TraceContext, run_span, trace_of, within
from tests.collector import Collector, collector
from tests.kit import some

TOP = TraceContext(trace_of("one"))
FIRST = run_span(TOP, "one", 1)
SPAN = EndedSpan("invoke_agent Reader", FIRST, "", 1_000, 2_500, {"perdure.run.id": "one", "empty": ""})
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collector() as held:
        monkeypatch.setenv(ENDPOINT, held.url)
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "200")
        yield held


@contextmanager
def telemetry(**environ: str) -> Iterator[OtlpTelemetry]:
    settings = TelemetrySettings.of({ENDPOINT: "http://there", **environ})
    with closing(OtlpTelemetry(settings, "supervisor")) as told:
        yield told


def test_a_span_arrives_as_it_was_told(received: Collector) -> None:
    second = run_span(TOP, "one", 2)
    with telemetry() as told:
        told.tell(SPAN._replace(error="host_lost"))
        told.tell(SPAN._replace(context=second, links=(FIRST,), parent=FIRST.span_id))
        received.wait_for(lambda it: len(it.spans) == 2)
    first, again = sorted(received.spans, key=lambda span: span.is_error, reverse=True)
    assert (first.name, first.trace_id, first.span_id, first.parent) == (SPAN.name, TOP.trace_id, FIRST.span_id, "")
    assert (first.start_ms, first.end_ms, first.is_error) == (1_000, 2_500, True)
    assert first.attributes == {"perdure.run.id": "one", "error.type": "host_lost"}
    assert (again.span_id, again.parent, again.links) == (second.span_id, FIRST.span_id, [FIRST.span_id])
    assert not again.is_error
    assert first.process == "supervisor"


def test_what_waits_is_sent_at_the_end(received: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")
    with telemetry() as told:
        told.tell(SPAN)
    received.wait_for(lambda it: it.names)  # a busy machine may take longer than the end waits
    assert received.names == [SPAN.name]


def test_metrics_arrive_under_the_names_of_the_conventions(received: Collector) -> None:
    with telemetry() as told:
        told.metrics.observe("model_tokens", 100, {"gen_ai.token.type": "input", "nothing": ""})
        told.metrics.observe("model_request_ms", 1_500, {"gen_ai.operation.name": "chat"})
        told.metrics.count("runs_ended", 2, {"status": "completed"})
        told.metrics.gauge("runs_live", 3)
        told.metrics.gauge("nobody_knows_this", 3)
        received.wait_for(lambda it: len(it.metrics) >= 4)
    found = received.metrics
    assert set(found) == {
        "gen_ai.client.token.usage",
        "gen_ai.client.operation.duration",
        "perdure.runs.ended",
        "perdure.runs.live",
    }
    (tokens,), (duration,) = found["gen_ai.client.token.usage"], found["gen_ai.client.operation.duration"]
    assert (tokens.sum, [each.key for each in tokens.attributes]) == (100, ["gen_ai.token.type"])
    assert duration.sum == 1.5


def test_a_secret_is_struck_out_of_every_part_of_a_span(received: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    value = "sk-do-not-tell-anybody"
    monkeypatch.setenv("A_KEY", value)
    Secret("A_KEY").reveal()
    with telemetry() as told:
        told.tell(SPAN._replace(name=f"chat {value}", attributes={"a": f"<{value}>", "b": [value]}, error=value))
        received.wait_for(lambda it: it.spans)
    assert all(value.encode() not in body for body in received.bodies)
    assert received.spans[0].attributes["a"] == f"<{'*' * len(value)}>"


def test_a_sampler_of_the_environment_counts_for_spans_and_for_what_is_below_them(
    received: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    tops = [f"run {number}" for number in range(40)]
    with telemetry() as told:
        above = {name: told.above("", name) for name in tops}
        sampled = [name for name in tops if above[name].sampled]
        for name in tops:
            mine = within(above[name], "mine")
            told.tell(SPAN._replace(name=name, context=mine))
            told.tell(SPAN._replace(name=f"below {name}", context=within(mine, "below"), parent=mine.span_id))
    assert 0 < len(sampled) < len(tops)
    assert sorted(received.names) == sorted([*sampled, *(f"below {name}" for name in sampled)])


def test_spans_of_the_program_are_above_what_it_asks_for(received: Collector) -> None:
    heed_callers()
    place = trace.SpanContext(int("ab" * 16, 16), int("cd" * 8, 16), is_remote=False, trace_flags=trace.TraceFlags(1))
    assert carried() == {}
    with trace.use_span(trace.NonRecordingSpan(place)):
        assert carried() == {"trace": f"00-{'ab' * 16}-{'cd' * 8}-01"}
    assert carried() == {}


@pytest.mark.parametrize("trouble", some(1, ["holds", "down", "refuses", "fails"]))
def test_no_collector_holds_anybody_up_or_fills_the_memory(
    trouble: str, received: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")  # what is left behind is waited for at the end
    if trouble == "down":
        monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")
    elif trouble == "holds":
        received.go_on.clear()
    else:
        received.status = 400 if trouble == "refuses" else 503
    with telemetry() as told:
        begun_s = time.monotonic()
        for number in range(10_000):
            told.tell(SPAN._replace(context=within(TOP, number)))
        took_s = time.monotonic() - begun_s
        (processor,) = told._spans._active_span_processor._span_processors  # noqa: SLF001 - nothing public tells of the queue
        queue = processor._batch_processor._queue  # type: ignore[attr-defined]  # noqa: SLF001 - as above
        assert len(queue) <= queue.maxlen == 2_048
    assert time.monotonic() - begun_s < took_s + 30
    assert took_s < 30
    assert received.spans == []
    said = [each for each in caplog.records if each.levelname != "DEBUG"]
    assert [each.name for each in said] in ([], ["perdure.telemetry"]), "it is said once a minute"
    received.go_on.set()
    processor.span_exporter.shutdown()  # type: ignore[attr-defined]
    for thread in threading.enumerate():  # what is left behind would complain in the next test
        if thread.name.startswith("OtelBatch"):
            thread.join(60)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, {}),
        ({ENDPOINT: "http://c"}, {"traces": True, "metrics": True}),
        ({ENDPOINT: "http://c", "OTEL_SDK_DISABLED": "TRUE"}, {}),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/v1/traces"}, {"traces": True}),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c/v1/metrics"}, {"metrics": True}),
        ({ENDPOINT: "http://c", "OTEL_TRACES_EXPORTER": "none"}, {"metrics": True}),
        ({ENDPOINT: "http://c", "OTEL_METRICS_EXPORTER": "none"}, {"traces": True}),
        ({ENDPOINT: "http://c", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, {"traces": True, "metrics": True}),
    ],
)
def test_the_standard_environment_turns_it_on(environ: dict[str, str], expected: dict[str, bool]) -> None:
    assert TelemetrySettings.of(environ) == TelemetrySettings(**expected)
    assert TelemetrySettings.of(environ).is_on == bool(expected)


def test_a_protocol_that_is_not_spoken_turns_it_off_and_says_so() -> None:
    settings = TelemetrySettings.of({ENDPOINT: "http://c", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
    assert not settings.is_on
    assert settings.unfit == "OTEL_EXPORTER_OTLP_PROTOCOL is grpc; Perdure speaks http/protobuf"


@pytest.mark.parametrize(
    ("value", "expected"), [("true", True), ("SPAN_ONLY", True), ("false", False), ("event_only", False), ("", False)]
)
def test_content_is_told_only_on_demand(value: str, expected: bool) -> None:
    capture = {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": value}
    assert TelemetrySettings.of({ENDPOINT: "http://c", **capture}).tells_content is expected


def test_only_the_variables_of_opentelemetry_travel_and_only_if_it_is_on() -> None:
    ours = {ENDPOINT: "http://c", "OTEL_SERVICE_NAME": "shop"}
    assert variables({**ours, "HOME": "/x"}) == ours
    assert variables({"OTEL_SERVICE_NAME": "shop"}) == {}


def test_the_keys_in_headers_are_secrets() -> None:
    found = secrets_in({"OTEL_EXPORTER_OTLP_HEADERS": "api-key=abcdefgh1,authorization=Basic%20abcdefgh2"})
    assert {"abcdefgh1", "abcdefgh2"} <= set(found)
