"""What a soak measures between its legs, and whether any of it grows.

The growth of a measure is the slope of the straight line that fits its samples best, an hour, as a share of their mean. The first third of
the time is the warm-up, and does not count. Memory and disk are those of one retained run: a ledger that keeps more may hold more, but not
more for each. File descriptors and threads are those of one process.

What lies within twice the standard error of the slope may be chance, and only what is beyond that is judged. Hosts come and go with the
legs, so a slope says nothing about the number of processes. If some of them stayed for ever, the fewest that are ever there would rise.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

WARM_UP: Final = 1 / 3
JUDGED_FROM_S: Final = 1_200.0  # of samples after the warm-up; in less, a step looks like a slope
GROWTH_MAX: Final = 0.02  # an hour
FEWEST_MAX: Final = 1.5  # the fewest processes in the later half, over the fewest in the earlier one
PROCESSES: Final = "processes"


class Sample(NamedTuple):
    """One moment between two legs."""

    at_s: float
    retained: int  # ended runs in the ledger
    memory_mb: float  # of the supervisor and the hosts
    disk_mb: float  # of the data directory
    descriptors: int
    threads: int
    processes: int


class Growth(NamedTuple):
    """By which share of its mean a measure grows in an hour: most likely, and at least, as far as the samples tell."""

    likely: float
    sure: float


class Curve(NamedTuple):
    """One measure over a soak. `growth` is None with too few samples."""

    name: str
    first: float
    last: float
    growth: Growth | None


def curves(samples: Sequence[Sample]) -> list[Curve]:
    """Every measure, after the warm-up."""
    warm = warmed_up(samples)
    measures = {
        "memory_mb_per_1000_retained": [each.memory_mb / max(1, each.retained) * 1000 for each in warm],
        "disk_mb_per_1000_retained": [each.disk_mb / max(1, each.retained) * 1000 for each in warm],
        "descriptors_per_process": [each.descriptors / max(1, each.processes) for each in warm],
        "threads_per_process": [each.threads / max(1, each.processes) for each in warm],
        PROCESSES: [float(each.processes) for each in warm],
    }
    at_s = [each.at_s for each in warm]
    return [Curve(name, round(v[0], 3), round(v[-1], 3), growth(at_s, v)) for name, v in measures.items() if v]


def warmed_up(samples: Sequence[Sample]) -> list[Sample]:
    """The samples after the warm-up."""
    if not samples:
        return []
    begin_s, end_s = samples[0].at_s, samples[-1].at_s
    return [each for each in samples if each.at_s >= begin_s + (end_s - begin_s) * WARM_UP]


def growth(at_s: Sequence[float], values: Sequence[float]) -> Growth | None:
    """The slope of the line that fits best, and the slope less twice its standard error."""
    mean = statistics.fmean(values) if values else 0.0
    if len(values) < 3 or at_s[-1] <= at_s[0] or not mean:  # noqa: PLR2004 - a line through two points fits always
        return None
    line = statistics.linear_regression(at_s, values)
    squares = sum((value - line.slope * at - line.intercept) ** 2 for at, value in zip(at_s, values, strict=True))
    error = math.sqrt(squares / (len(values) - 2) / (statistics.pvariance(at_s) * len(at_s)))
    return Growth(*(round(slope * 3600 / mean, 4) for slope in (line.slope, line.slope - 2 * error)))


def grown(samples: Sequence[Sample]) -> list[str]:
    """What grows, in words. Nothing is said about a soak that is too short to tell."""
    warm = warmed_up(samples)
    if not warm or warm[-1].at_s - warm[0].at_s < JUDGED_FROM_S:
        return []
    said = [
        f"{curve.name} grows by {curve.growth.likely:.1%} an hour, from {curve.first:,g} to {curve.last:,g}; "
        f"at most {GROWTH_MAX:.0%} may be"
        for curve in curves(samples)
        if curve.name != PROCESSES and curve.growth is not None and curve.growth.sure > GROWTH_MAX
    ]
    half = len(warm) // 2
    before, after = (min(each.processes for each in part) for part in (warm[:half], warm[half:]))
    if after > FEWEST_MAX * before:
        said.append(f"there were never fewer than {after} processes in the later half, and {before} in the earlier one")
    return said


def told(samples: Sequence[Sample]) -> dict[str, Any]:
    """As `--json` prints it."""
    return {
        "samples": [each._asdict() for each in samples],
        "curves": {
            curve.name: {
                "first": curve.first,
                "last": curve.last,
                "growth": curve.growth and curve.growth.likely,
                "sure_growth": curve.growth and curve.growth.sure,
            }
            for curve in curves(samples)
        },
    }
