"""The telemetry of one real process, by its environment and by that of the program that started its directory.

The program's variables travel with the deployment, because a Ray that was there before has an environment of its own. What a machine's own
environment says comes first: it may have a collector of its own.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
from collections.abc import Sequence
from importlib.util import find_spec

from perdure.actors.events.observability import Metrics, NoMetrics, Tags
from perdure.actors.ray_world.deployment import Deployment
from perdure.actors.telemetry.telemetry import OFF, Telemetry, TelemetrySettings, heed_callers, secrets_in, variables
from perdure.ledger import strike

IMPLEMENTATION = "perdure.actors.telemetry.otlp"
MISSING = "no telemetry: %s; `pip install 'perdure[telemetry]'` brings it"
log = logging.getLogger("perdure.telemetry")


# From now on the program's own spans are above what it asks for.
def traced_program() -> tuple[tuple[str, str], ...]:
    found = variables(os.environ)
    if found:
        heed_callers()
        if find_spec("opentelemetry.sdk") is None:
            log.warning(MISSING, "OpenTelemetry's SDK is not installed here")
    return tuple(sorted(found.items()))


def take_variables(deployment: Deployment) -> None:
    for variable, value in deployment.telemetry:
        os.environ.setdefault(variable, value)
    for secret in secrets_in(os.environ):
        strike(secret)


# If the environment turns it on. What is wrong with it is logged, and it is off then.
def begin_telemetry(deployment: Deployment, name: str) -> tuple[Telemetry, Metrics]:
    take_variables(deployment)
    settings = TelemetrySettings.of(os.environ)
    if settings.unfit:
        _say("no telemetry: %s", settings.unfit)
    if not settings.is_on:
        return OFF, NoMetrics()
    try:
        library = importlib.import_module(IMPLEMENTATION)
    except ImportError as problem:
        _say(MISSING, str(problem))
        return OFF, NoMetrics()
    telemetry = library.OtlpTelemetry(settings, name)
    telemetry.serve_authors()
    heed_callers()
    return telemetry, telemetry.metrics


# A process has its log a little later.
def _say(words: str, problem: str) -> None:
    asyncio.get_running_loop().call_soon(log.warning, words, problem)


def several(*metrics: Metrics) -> Metrics:
    wanted = [each for each in metrics if not isinstance(each, NoMetrics)]
    return wanted[0] if len(wanted) == 1 else _Several(wanted)


class _Several:
    def __init__(self, metrics: Sequence[Metrics]) -> None:
        self._metrics = metrics

    def count(self, name: str, value: float = 1, tags: Tags | None = None) -> None:
        for each in self._metrics:
            each.count(name, value, tags)

    def observe(self, name: str, value: float, tags: Tags | None = None) -> None:
        for each in self._metrics:
            each.observe(name, value, tags)

    def gauge(self, name: str, value: float, tags: Tags | None = None) -> None:
        for each in self._metrics:
            each.gauge(name, value, tags)
