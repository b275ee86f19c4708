"""Answers of the ledger as JSON, or as lines and tables."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from rich.cells import cell_len
from rich.table import Table

from perdure import actors
from perdure.ledger import harmless, lasting
from perdure.policies import is_number
from perdure.scenarios.live_view import Terminal

WAYS: Final = ("delivered", "superseded", "suppressed", "parked", "pending")
PIPE_COLUMNS: Final = 100_000  # a program that reads a pipe wants whole ids
OUTCOME_MAX: Final = 60
LEAST_COLUMN: Final = 5
_MORE: Final = "…"


def json_of(told: object) -> str:
    """Standard JSON: infinity is null, and unknown types are strings."""
    return json.dumps(actors.finite(told), default=str)


def print_pairs(told: dict[str, Any]) -> None:
    width = max(map(len, told), default=0) + 2
    for name, value in told.items():
        say(f"{name:{width}}{_value(name, value)}")


def _value(name: str, value: object) -> str:
    if is_number(value) and name.endswith("_at_ms"):
        return instant(value) if value else "–"
    if is_number(value) and name.endswith("_ms"):
        return lasting(value) if not math.isfinite(value) else f"{value} ({lasting(value)})"
    return value if isinstance(value, str) else json_of(value)


def instant(at_ms: float) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _brief(at_ms: float) -> str:
    # Who reads it on a terminal knows what day it is.
    whole = instant(at_ms)
    if not sys.stdout.isatty():
        return whole
    today = f"{datetime.now(UTC):%Y-%m-%d} "
    return whole.removeprefix(today) if whole.startswith(today) else whole[: -len(":00 UTC")]


def equation(told: dict[str, Any]) -> str:
    return f"{told['enqueued']} enqueued = " + " + ".join(f"{told[way]} {way}" for way in WAYS)


def print_hosts(hosts: Iterable[dict[str, Any]]) -> None:
    titles = ("host", "process", "agents", "memory")
    cells = (
        (f"gateway {each['gateway']}", str(each["pid"]), "–", "–")
        if "gateway" in each
        else (each["host"], str(each["pid"] or "starting"), str(each["tenants"]), f"{each['rss_mb']} MB")
        for each in hosts
    )
    print_table(titles, cells)


def print_live(runs: Iterable[dict[str, Any]]) -> None:
    titles = ("run", "agent", "status", "attempt", "progress", "host")
    cells = (
        (row["run_id"], row["agent_type"], row["status"], str(row["attempt"]), _progress(row), row["host"] or "")
        for row in runs
    )
    print_table(titles, cells)


def print_runs(runs: Iterable[dict[str, Any]]) -> None:
    titles = ("run", "agent", "status", "attempt", "asked for at", "took", "outcome")
    print_table(titles, map(_cells, runs), whole=4)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    asked_ms, ended_ms = row["started_at_ms"], row["completed_at_ms"]
    took = lasting(max(0, ended_ms - asked_ms)) if ended_ms else ""
    told = row["outcome"]
    words = "" if row.get("undoing") else told.get("reason") or told.get("error") or told.get("summary") or ""
    outcome = shortened(words)
    return (
        row["run_id"], row["agent_type"], row["status"], str(row["attempt"]), _brief(asked_ms), took, outcome or _progress(row),
    )  # fmt: skip


def say(text: str, *, aside: bool = False) -> None:
    """Print a text in which there may be words of agents; `aside`, where errors go."""
    print(harmless(text), file=sys.stderr if aside else sys.stdout)


def shortened(text: str) -> str:
    words = harmless(" ".join(text.split()))
    return words if len(words) <= OUTCOME_MAX else words[: OUTCOME_MAX - 1] + _MORE


def awaited_in_words(waits: dict[str, Any]) -> str:
    until = [f"until {instant(waits['until_ms'])}"] if waits["until_ms"] else []
    return f"waits {' or '.join([*(f'for {name}' for name in waits['events']), *until])}"


def replica_words(told: dict[str, Any]) -> str:
    if "behind_ms" not in told:
        return f"{told['url']}, at most {lasting(told['lag_max_ms'])} behind while it is served"
    if told["trouble"]:
        return f"{told['url']}, {lasting(told['behind_ms'])} behind: {told['trouble']}"
    if not told["filled"]:
        return f"{told['url']}, compared with the directory now; it may be further behind than {lasting(told['lag_max_ms'])}"
    return f"{told['url']}, {lasting(told['behind_ms'])} behind, at most {lasting(told['lag_max_ms'])}"


def _progress(row: dict[str, Any]) -> str:
    if row.get("undoing"):
        return shortened(f"undoing: {row['outcome']['error']}")
    waits = row.get("waits")
    if waits is not None:
        return "paused" if waits["paused"] else awaited_in_words(waits)
    if row.get("waits_for"):
        return f"waits for {row['waits_for']}"
    progress = row["progress"] or {}
    fraction, phase = progress.get("fraction"), progress.get("phase") or ""
    return f"{fraction:.0%} {phase}".rstrip() if fraction is not None else phase


def print_table(titles: Iterable[str], rows: Iterable[tuple[str, ...]], whole: int = 0) -> None:
    """A table that never cuts its first column: ids are copied from it. On a narrow terminal the widest of the others are cut, but for the
    one at `whole`."""
    console = Terminal(width=None if sys.stdout.isatty() else PIPE_COLUMNS, highlight=False, markup=False)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    heads, cells = list(titles), [tuple(map(_in_a_row, row)) for row in rows]
    for place, (title, width) in enumerate(
        zip(heads, _widths([tuple(heads), *cells], console.width, whole), strict=True)
    ):
        table.add_column(title, no_wrap=place > 0, overflow="ellipsis" if place else "fold", width=width)
    for row in cells:
        table.add_row(*row)
    if table.row_count:
        console.print()
        console.print(table)


def _in_a_row(cell: str) -> str:
    return harmless(cell.replace("\r", r"\r").replace("\n", r"\n").replace("\t", r"\t"))


def _widths(rows: list[tuple[str, ...]], most: int, whole: int) -> list[int]:
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    excess = sum(widths) + 2 * len(widths) - most
    for _ in range(excess):
        width, at = max(((width, -at) for at, width in enumerate(widths) if at not in (0, whole)), default=(0, 0))
        if width <= LEAST_COLUMN:
            break
        widths[-at] -= 1
    return widths


def in_words(counts: Mapping[str, int]) -> str:
    """`2 × child, 1 × supervisor`, or `nothing`."""
    return ", ".join(f"{count} × {kind}" for kind, count in counts.items() if count) or "nothing"


def rate(count: float, seconds: float) -> float:
    return round(count / seconds, 1) if seconds else 0.0


def percentiles(values: Sequence[float]) -> dict[str, float | None]:
    ordered = sorted(values)
    if not ordered:
        return {"p50": None, "p99": None, "max": None}
    last = len(ordered) - 1
    return {"p50": ordered[last // 2], "p99": ordered[math.ceil(last * 0.99)], "max": ordered[-1]}
