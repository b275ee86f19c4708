"""How a real process gets its telemetry: by the program's variables, unless its own environment says something else."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from perdure.actors.events.observability import NoMetrics, Tags
from perdure.actors.ray_world.deployment import Deployment
from perdure.actors.ray_world.process_telemetry import begin_telemetry, several, traced_program
from perdure.actors.telemetry.telemetry import OFF
from perdure.policies import Limits

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


def _begun(**variables: str) -> object:
    async def begin() -> object:
        deployment = Deployment(Path("data"), Limits(), telemetry=tuple(variables.items()))
        telemetry, metrics = begin_telemetry(deployment, "h1")
        assert isinstance(metrics, NoMetrics)
        await asyncio.sleep(0)  # what is wrong is said as soon as there is a log
        return telemetry

    return asyncio.run(begin())


def test_a_program_without_an_endpoint_hands_on_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENDPOINT, raising=False)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "shop")
    assert traced_program() == ()
    assert _begun() is OFF


def test_a_program_hands_on_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINT, "http://c")
    assert (ENDPOINT, "http://c") in traced_program()


def test_what_a_machine_says_of_itself_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    monkeypatch.setenv(ENDPOINT, "http://its-own")
    assert _begun(**{ENDPOINT: "http://c", "OTEL_SDK_DISABLED": "false"}) is OFF
    assert os.environ[ENDPOINT] == "http://its-own"


def test_without_the_extra_it_is_off_and_the_log_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(ENDPOINT, "http://c")
    monkeypatch.setitem(sys.modules, "perdure.actors.telemetry.otlp", None)
    assert _begun() is OFF
    assert "`pip install 'perdure[telemetry]'` brings it" in caplog.text


def test_a_protocol_that_is_not_spoken_is_named_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(ENDPOINT, "http://c")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    assert _begun() is OFF
    assert "no telemetry: OTEL_EXPORTER_OTLP_PROTOCOL is grpc" in caplog.text


class Counter:
    """Metrics that are remembered."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, float]] = []

    def count(self, name: str, value: float = 1, tags: Tags | None = None) -> None:
        self.told.append(("count", name, value))

    def observe(self, name: str, value: float, tags: Tags | None = None) -> None:
        self.told.append(("observe", name, value))

    def gauge(self, name: str, value: float, tags: Tags | None = None) -> None:
        self.told.append(("gauge", name, value))


def test_metrics_go_to_ray_and_to_the_collector() -> None:
    rays, collectors = Counter(), Counter()
    both = several(rays, collectors)
    both.count("recoveries", 2)
    both.observe("commit_ms", 3)
    both.gauge("runs_live", 4)
    assert (
        rays.told
        == collectors.told
        == [("count", "recoveries", 2), ("observe", "commit_ms", 3), ("gauge", "runs_live", 4)]
    )
    assert several(rays, NoMetrics()) is rays
