"""A collector of OpenTelemetry on a real socket: it decodes what it is sent, and remembers it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Received(NamedTuple):
    """A span as it came: ids as hexadecimal digits, instants in milliseconds."""

    name: str
    trace_id: str
    span_id: str
    parent: str
    links: list[str]
    start_ms: int
    end_ms: int
    is_error: bool
    attributes: dict[str, Any]
    process: str


class Collector:
    """What was received so far. `status` is what is answered; while `is_held` nothing is."""

    def __init__(self) -> None:
        self.status = 200
        self.go_on = threading.Event()
        self.go_on.set()
        self.url = ""
        self.bodies: list[bytes] = []
        self._changed = threading.Condition()
        self._spans: dict[str, Received] = {}
        self._metrics: dict[str, list[Any]] = {}

    def take(self, path: str, body: bytes) -> None:
        with self._changed:
            self.bodies.append(body)
            if path.endswith("/traces"):
                self._take_spans(ExportTraceServiceRequest.FromString(body))
            else:
                self._take_metrics(ExportMetricsServiceRequest.FromString(body))
            self._changed.notify_all()

    def _take_spans(self, request: Any) -> None:
        for resource in request.resource_spans:
            process = _plain(resource.resource.attributes).get("service.instance.id", "")
            for each in (span for scope in resource.scope_spans for span in scope.spans):
                known = self._spans.setdefault(each.span_id.hex(), _received(each, process))
                again = _received(each, process)._replace(process=known.process)
                assert known == again, f"one id, two spans: {known}, {again}"

    def _take_metrics(self, request: Any) -> None:
        for metric in (
            each for resource in request.resource_metrics for scope in resource.scope_metrics for each in scope.metrics
        ):
            points = getattr(metric, metric.WhichOneof("data")).data_points
            self._metrics[metric.name] = list(points)

    def wait_for(self, found: Any, timeout_s: float = 60.0) -> Any:
        """Wait until `found(self)` is true, and return that."""
        with self._changed:
            assert self._changed.wait_for(lambda: found(self), timeout_s), (sorted(self.names), list(self._metrics))
            return found(self)

    @property
    def spans(self) -> list[Received]:
        """All spans, each once, in the order of their beginnings."""
        with self._changed:
            return sorted(self._spans.values(), key=lambda span: (span.start_ms, span.end_ms))

    @property
    def names(self) -> list[str]:
        """Their names."""
        return [span.name for span in self.spans]

    @property
    def metrics(self) -> dict[str, list[Any]]:
        """The newest points of each metric."""
        with self._changed:
            return dict(self._metrics)


def _received(each: Any, process: str) -> Received:
    return Received(
        each.name,
        each.trace_id.hex(),
        each.span_id.hex(),
        each.parent_span_id.hex(),
        [link.span_id.hex() for link in each.links],
        each.start_time_unix_nano // 1_000_000,
        each.end_time_unix_nano // 1_000_000,
        each.status.code == 2,
        _plain(each.attributes),
        process,
    )


def _plain(attributes: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind) if kind else None


@contextmanager
def collector() -> Iterator[Collector]:
    """A collector that listens on the loopback."""
    held = Collector()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            held.go_on.wait()
            if held.status == 200:
                held.take(self.path, body)
            self.send_response(held.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            """A process that is killed in the middle of a request is no news."""

    server = Server(("127.0.0.1", 0), Handler)
    held.url = f"http://127.0.0.1:{server.server_port}"
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        yield held
    finally:
        held.go_on.set()
        server.shutdown()
        serving.join()
        server.server_close()
