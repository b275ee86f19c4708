"""Figures: what is measured, what came of it, and how that reads."""

from __future__ import annotations

import platform
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from rich.table import Table

from perdure.scenarios.bench.measuring import Bench
from perdure.scenarios.live_view import Terminal


# It is a bound for the median.
@dataclass(frozen=True)
class Goal:
    bound: float
    at_least: bool = False

    def is_met(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.bound:,g}"


def at_most(bound: float) -> Goal:
    return Goal(bound)


def at_least(bound: float) -> Goal:
    return Goal(bound, at_least=True)


class Compared(NamedTuple):
    values: Sequence[float]
    baseline: float


Values = Sequence[float] | Compared | float


class Found:
    """What a workload found: the values of each row in order, or one value; and the words for the braces of the names."""

    def __init__(self, *values: Values, **words: Any) -> None:
        self.values, self.words = values, words


class Measure(NamedTuple):
    """One quantity. A workload fills in the braces of the names.

    Args:
        baseline: what is measured beside it in the same run.
        known: the value of a baseline that was measured elsewhere.
    """

    name: str
    unit: str
    goal: Goal | None = None
    baseline: str = ""
    known: float = 0.0

    def figure(self, found: Values, **words: Any) -> dict[str, Any]:
        # Goals are for medians.
        values = found.values if isinstance(found, Compared) else [found] if isinstance(found, (int, float)) else found
        known = found.baseline if isinstance(found, Compared) else self.known
        is_compared = isinstance(found, Compared) or bool(self.known)
        assert is_compared == bool(self.baseline), f"{self.name} has the baseline {known}, called {self.baseline!r}"
        median = statistics.median(values)
        return {
            "name": self.name.format(**words),
            "unit": self.unit,
            "min": rounded(min(values)),
            "median": rounded(median),
            "max": rounded(max(values)),
            "goal": None if self.goal is None else f"{self.goal} {self.unit}".rstrip(),
            "baseline": {"name": self.baseline.format(**words), "median": rounded(known)} if self.baseline else None,
            "met": None if self.goal is None else self.goal.is_met(median),
        }


class Group:
    def __init__(self, workload: Callable[[Bench], Found], *rows: Measure) -> None:
        self.workload, self.rows = workload, rows

    def measure(self, bench: Bench) -> list[dict[str, Any]]:
        found = self.workload(bench)
        return [row.figure(each, **found.words) for row, each in zip(self.rows, found.values, strict=True)]


def rounded(value: float) -> float:
    return float(f"{value:.4g}")


@dataclass(frozen=True)
class Failed:
    group: str
    cause: str


def machine() -> dict[str, Any]:
    return {
        "cores": len(psutil.Process().cpu_affinity()),
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "cpu": _cpu(),
        "python": platform.python_version(),
        "ray": version("ray"),
        "duckdb": version("duckdb"),
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def report(figures: Sequence[dict[str, Any]], failures: Sequence[Failed] = ()) -> dict[str, Any]:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {
        "machine": machine(),
        "date": now,
        "figures": list(figures),
        "failures": [asdict(each) for each in failures],
    }


def show(told: dict[str, Any]) -> None:
    about, figures, console = told["machine"], told["figures"], Terminal(highlight=False, soft_wrap=True)
    software = f"Python {about['python']}, Ray {about['ray']}, DuckDB {about['duckdb']}"
    console.print(f"{about['cores']} cores ({about['cpu']}), {about['memory_gb']} GB, {software}, {told['date']}")
    if sys.stdout.isatty() and figures:
        table = Table(*cells(figures[0]))
        for figure in figures:
            table.add_row(*cells(figure).values(), style="yellow" if figure.get("met") is False else "")
        console.print(table)
    else:
        for figure in figures:
            print(line(figure))
    for failure in told["failures"]:
        console.print(f"{failure['group']}: FAILED, {failure['cause']}", style="red", markup=False)


def cells(figure: dict[str, Any]) -> dict[str, str]:
    goal, baseline = figure["goal"], figure["baseline"]
    return {
        "figure": figure["name"],
        "": figure["unit"],
        **{key: f"{figure[key]:,g}" for key in ("min", "median", "max")},
        "goal": f"{goal} {'✓' if figure['met'] else '✗'}" if goal is not None else "",
        "baseline": f"{baseline['name']}: {baseline['median']:,g}" if baseline is not None else "",
    }


def line(figure: dict[str, Any]) -> str:
    told = f"{figure['name']}: {figure['median']:,g} {figure['unit']} ({figure['min']:,g} to {figure['max']:,g})"
    if figure["goal"] is not None:
        told += f"; goal {figure['goal']}, {'met' if figure['met'] else 'MISSED'}"
    if figure["baseline"] is not None:
        told += f"; {figure['baseline']['name']}: {figure['baseline']['median']:,g}"
    return told
