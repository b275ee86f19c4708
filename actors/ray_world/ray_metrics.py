"""Ray's metrics behind the port `Metrics`."""

from __future__ import annotations

from typing import Final

from ray.util.metrics import Counter, Gauge, Histogram

from perdure.actors.events.observability import Tags

BOUNDARIES_MS: Final[list[float]] = [1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000]


class RayMetrics:
    """Counters, gauges and histograms. Each is created when it is first used, with the tags that it has then."""

    def __init__(self) -> None:
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram] = {}

    def count(self, name: str, value: float = 1, tags: Tags | None = None) -> None:
        """Add to a counter."""
        if name not in self._counters:
            self._counters[name] = Counter(f"perdure_{name}", tag_keys=tuple(tags or ()))
        self._counters[name].inc(value, dict(tags or {}))

    def gauge(self, name: str, value: float, tags: Tags | None = None) -> None:
        """Set a gauge."""
        if name not in self._gauges:
            self._gauges[name] = Gauge(f"perdure_{name}", tag_keys=tuple(tags or ()))
        self._gauges[name].set(value, dict(tags or {}))

    def observe(self, name: str, value: float, tags: Tags | None = None) -> None:
        """Add to a histogram of durations, in milliseconds."""
        if name not in self._histograms:
            keys = tuple(tags or ())
            self._histograms[name] = Histogram(f"perdure_{name}", boundaries=BOUNDARIES_MS, tag_keys=keys)
        self._histograms[name].observe(value, dict(tags or {}))
