"""Whether telemetry is on, and what of it, by the standard variables of OpenTelemetry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

PREFIX: Final = "OTEL_"
ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
CAPTURE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
PROTOCOL: Final = "http/protobuf"
CAPTURING: Final = frozenset({"true", "span_only", "span_and_event"})


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
        """The settings in an environment. An endpoint turns telemetry on; `OTEL_SDK_DISABLED=true` turns it off."""
        if _word(environ, "OTEL_SDK_DISABLED") == "true":
            return cls()
        wanted = {name: _is_wanted(environ, name) for name in ("traces", "metrics")}
        protocols = {
            environ.get(f"OTEL_EXPORTER_OTLP_{name.upper()}_PROTOCOL") or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
            for name in wanted
            if wanted[name]
        }
        other = sorted(each for each in protocols if each and each != PROTOCOL)
        unfit = f"OTEL_EXPORTER_OTLP_PROTOCOL is {other[0]}; Perdure speaks {PROTOCOL}" if other else ""
        return cls(**wanted, tells_content=_word(environ, CAPTURE) in CAPTURING, unfit=unfit)


def _is_wanted(environ: Mapping[str, str], name: str) -> bool:
    chosen = _word(environ, f"OTEL_{name.upper()}_EXPORTER") or "otlp"
    has_place = environ.get(ENDPOINT) or environ.get(f"OTEL_EXPORTER_OTLP_{name.upper()}_ENDPOINT")
    return bool(has_place) and "otlp" in chosen.split(",")


def _word(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name, "").strip().lower()


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that the processes of a directory are given: all of OpenTelemetry's, if telemetry is on."""
    if not TelemetrySettings.of(environ).is_on:
        return {}
    return {name: value for name, value in environ.items() if name.startswith(PREFIX)}


def secrets_in(environ: Mapping[str, str]) -> list[str]:
    """The values of the headers for the collector, which hold its keys."""
    headers = [value for name, value in environ.items() if name.startswith(PREFIX) and name.endswith("_HEADERS")]
    pairs = [pair.partition("=")[2].strip() for text in headers for pair in text.split(",")]
    return [value for pair in pairs for value in (pair, pair.rpartition(" ")[2], pair.rpartition("%20")[2]) if value]
