"""`perdure bench`: the figures of the README, measured here and now, each beside its goal and its baseline.

Every group of figures has a data directory and a cluster of its own, so none inherits what another left behind.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from scenarios.bench_deaths import child_death, cluster_death, handlers_death, supervisor_death
from scenarios.bench_ledger import boot
from scenarios.bench_report import Bench, Figure, known, report, show
from scenarios.bench_speed import awaited, detached, fan_out, passivated, sleepers
from scenarios.swarm import swarm


def simulated_kills(bench: Bench) -> list[Figure]:
    """How many deaths a second the swarm plays, with one process for each core."""
    seeds, repeats = bench.size(100, 10), 3
    reports = [swarm(seeds, seeds * repeat, processes=os.cpu_count() or 1) for repeat in range(repeats)]
    failures = sum(len(each.failures) for each in reports)
    return [
        Figure("simulated kills", "kills/s", [each.kills / each.seconds for each in reports]),
        Figure("seeds of the swarm that failed", "", [failures]),
    ]


FIGURES: Final[dict[str, Callable[[Bench], list[Figure]]]] = {
    "awaited": awaited,
    "fan-out": fan_out,
    "detached": detached,
    "sleepers": sleepers,
    "child-death": child_death,
    "supervisor-death": supervisor_death,
    "cluster-death": cluster_death,
    "boot": boot,
    "passivated": passivated,
    "handlers-death": handlers_death,
    "simulated-kills": simulated_kills,
}


def measure(names: Sequence[str], *, quick: bool, data: Path, say: Callable[[str], None]) -> list[Figure]:
    """Measure these groups of figures, one after the other."""
    bench = Bench(data, quick, say)
    figures: list[Figure] = []
    for name in names:
        say(f"measuring {name} …")
        figures += FIGURES[name](bench)
    return figures


def main(as_json: bool = False, quick: bool = False, only: str | None = None, data: Path | None = None) -> None:
    """Measure and tell. With `data`, what was written stays there; otherwise it is thrown away.

    Raises `BadRequest` if `only` names no group of figures.
    """
    names = list(FIGURES) if only is None else [known(only, list(FIGURES))]
    room = tempfile.TemporaryDirectory(prefix="perdure-bench-") if data is None else nullcontext(str(data))
    with room as place:
        told = report(measure(names, quick=quick, data=Path(place), say=_say))
    if as_json:
        print(json.dumps(told))
    else:
        show(told)


def _say(text: str) -> None:
    """Aside, so that a pipe gets the figures alone."""
    print(text, file=sys.stderr, flush=True)
