"""How fast fibers are accepted and done, and whether their recovery delays calls of the agent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from perdure.actors import Agent, FiberContext, FiberRecovery, FiberResult, exposed
from perdure.actors.ray_world.os_processes import ProcessId, kill, this_process
from perdure.scenarios.bench.report import Baseline, Bench, Figure, at_least, at_most, handle, percentile, took_ms

BATCH = 500


async def each_ms(count: int, act: Callable[[int], object]) -> list[float]:
    """How long each of so many acts takes. Others have their turn in between."""
    times = []
    for number in range(count):
        times.append(took_ms(partial(act, number)))
        await asyncio.sleep(0)
    return times


class Jobber(Agent):
    """Has fibers that end at once, and some that do not."""

    done: ClassVar[int] = 0  # of this process
    recovered: ClassVar[int] = 0

    async def quick(self, fiber: FiberContext, input: Any) -> None:
        type(self).done += 1

    async def endless(self, fiber: FiberContext) -> None:
        await asyncio.sleep(86_400)

    async def on_fiber_recovered(self, fiber: FiberRecovery) -> FiberResult:
        """Call it done."""
        type(self).recovered += 1
        return FiberResult("completed")

    @exposed
    async def one_by_one(self, count: int) -> list[float]:
        """The milliseconds of each acceptance. The bodies run in between."""
        return await each_ms(count, lambda number: self.start_fiber("quick", "quick", {"number": number}))

    @exposed
    async def commit_alone(self, count: int) -> list[float]:
        """The milliseconds of the smallest durable write."""
        return await each_ms(count, partial(self.state.__setitem__, "number"))

    @exposed
    async def in_batches(self, count: int) -> list[float]:
        """The seconds until all were accepted, and until all were done."""
        begun_s, before = time.perf_counter(), self.done
        asked = [{"name": "quick", "fn_name": "quick", "input": {"number": number}} for number in range(count)]
        for first in range(0, count, BATCH):
            self.fibers.start(asked[first : first + BATCH])
        accepted_s = time.perf_counter() - begun_s
        while self.done < before + count:  # noqa: ASYNC110 - what is measured is a rate
            await asyncio.sleep(0.005)
        return [accepted_s, time.perf_counter() - begun_s]

    @exposed
    async def begin_endless(self, count: int) -> None:
        """Have so many fibers under way."""
        for first in range(0, count, BATCH):
            size = min(BATCH, count - first)
            self.fibers.start([{"name": "endless", "fn_name": "endless", "input": first + n} for n in range(size)])
            await asyncio.sleep(0)
        while self.list_fibers("pending", limit=1).fibers:  # noqa: ASYNC110 - the same
            await asyncio.sleep(0.1)

    @exposed
    def process(self) -> tuple[int, int]:
        """The process that it lives in."""
        return this_process()

    @exposed(repeatable=True)
    async def came_back(self) -> int:
        return self.recovered


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
