"""How fast fibers are accepted and done, and whether their recovery delays calls of the agent."""

from __future__ import annotations

import time
from typing import Any

from perdure.actors.ray_world.os_processes import ProcessId, kill
from perdure.scenarios.bench.report import Baseline, Bench, Figure, at_least, at_most, handle, percentile
from perdure.scenarios.cast.measured import BATCH, Jobber


def fibers(bench: Bench) -> list[Figure]:
    """Fibers one by one and in batches, and calls while ten thousand are recovered."""
    count, crowd, repeats = bench.size(500, 50), bench.size(10_000, 500), bench.size(5, 2)
    with bench.cluster("fibers", fibers_at_once_max=crowd) as runtime:
        agent = handle(runtime, Jobber, "jobber")
        agent.in_batches(count)
        commits = percentile(agent.commit_alone(count), 0.5)
        singles = [percentile(agent.one_by_one(count), 0.5) for _ in range(repeats)]
        batches = [agent.in_batches(crowd) for _ in range(repeats)]
        victim = handle(runtime, Jobber, "victim")
        victim.begin_endless(crowd)
        kill([ProcessId(*victim.process())])
        delays = calls_during_recovery(victim, crowd)
    return [
        Figure(
            "fiber accepted durably, one at a time, p50",
            "ms",
            singles,
            at_most(3),
            Baseline("smallest durable write", commits),
        ),
        Figure(
            f"fibers accepted durably in batches of {BATCH}",
            "/s",
            [crowd / each[0] for each in batches],
            at_least(5_000),
        ),
        Figure("the same, until they were done", "/s", [crowd / each[1] for each in batches]),
        Figure(f"longest call while {crowd:,} fibers are recovered", "ms", [max(delays)], at_most(50)),
        Figure(f"median call while {crowd:,} fibers are recovered", "ms", [percentile(delays, 0.5)]),
    ]


def calls_during_recovery(victim: Any, count: int) -> list[float]:
    """The milliseconds of each call, until the new life has recovered so many fibers."""
    times, recovered = [], victim.came_back()
    while recovered < count:
        begun_s = time.perf_counter()
        recovered = victim.came_back()
        times.append((time.perf_counter() - begun_s) * 1000)
    return times or [0.0]
