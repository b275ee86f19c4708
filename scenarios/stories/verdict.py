"""What came of a fan-out: compared with a plain loop, and every completion accounted for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

from perdure.actors import RunResult
from perdure.scenarios.stories.census import Totals, count_plainly, files_for
from perdure.scenarios.stories.fan_out import KINDS, MAIL, Order, Progress


def verdict(order: Order, progress: Progress, world: str, told: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The object that `--json` prints, and what is wrong, in sentences; nothing if the fan-out is verified."""
    assert progress.before is not None
    audit = told["audit"]
    deliveries = {key: audit[key] - progress.before[key] for key in MAIL}
    totals, delivered, distinct = _sum_of(told)
    deliveries |= {"duplicated": delivered - distinct, "lost": order.children - distinct}
    plain = count_plainly(files_for(order.children))
    runs = {"requested": sum(told["runs"].values())}
    runs |= {status: told["runs"][status] for status in ("completed", "error", "aborted", "interrupted")}
    wrong = [
        *(f"{name}: the agents counted {got}, a plain loop {want}" for name, got, want in _differences(totals, plain)),
        *(
            []
            if audit["balanced"]
            else [f"the audit does not balance: {', '.join(f'{key} {audit[key]}' for key in MAIL)}"]
        ),
        *([f"{deliveries['duplicated']} completions were delivered twice"] if deliveries["duplicated"] else []),
        *([f"{deliveries['lost']} completions were lost"] if deliveries["lost"] else []),
        *([f"{runs['completed']} of {order.children} runs completed"] if runs["completed"] != order.children else []),
    ]
    if "result" in told and not told["result"].ok:
        wrong.append(f"the census ended {told['result'].status}: {told['result'].error}")
    if runs["requested"] != order.children:
        wrong.append(f"{runs['requested']} runs are known, {order.children} were asked for")
    seconds = told["seconds"]
    struck = Counter(progress.struck)
    return {
        "scenario": "fan-out",
        "world": world,
        "seed": order.seed,
        "runs": runs,
        "deliveries": deliveries,
        "kills": {kind: struck[kind] for kind in KINDS},
        "kills_left_out": dict(Counter(told["left_out"])),
        "seconds": round(seconds, 3),
        "runs_per_second": round(runs["completed"] / seconds, 1) if seconds else 0.0,
        "recovery_ms": percentiles(progress.recovery_ms),
        "verified": not wrong,
    }, wrong


def _sum_of(told: dict[str, Any]) -> tuple[Totals, int, int]:
    """The totals, how many completions they were added up from, and how many different ones."""
    if "report" in told:
        report = told["report"]
        return Totals(**report["totals"]), report["deliveries"], report["distinct"]
    result: RunResult = told["result"]
    totals = result.output if isinstance(result.output, Totals) else Totals()
    return totals, totals.files, min(totals.files, sum(told["runs"].values()))


def _differences(got: Totals, want: Totals) -> Iterable[tuple[str, int, int]]:
    for name in Totals.model_fields:
        pair = getattr(got, name), getattr(want, name)
        if pair[0] != pair[1]:
            yield name, *pair


def percentiles(values: list[float]) -> dict[str, float | None]:
    """The middle, the 99th percentile and the worst; None if there are no values."""
    ordered = sorted(values)
    if not ordered:
        return {"p50": None, "p99": None, "max": None}
    last = len(ordered) - 1
    return {"p50": ordered[last // 2], "p99": ordered[math.ceil(last * 0.99)], "max": ordered[-1]}
