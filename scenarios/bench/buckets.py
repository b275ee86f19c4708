"""A bucket beside a directory in the same run: what it costs in time and in requests that no machine owns the place of record."""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from secrets import token_hex
from typing import NamedTuple

from perdure import ledger
from perdure.actors import Runtime
from perdure.actors.ray_world.os_processes import kill
from perdure.scenarios.bench.figures import Compared, Found
from perdure.scenarios.bench.measuring import Bench, calm, handle, percentile, process_of, took_ms
from perdure.scenarios.cast.measured import STEPS, Instant, Parent

SETTLED_S = 2.0  # for busy agents to be there, and to have begun


class MeasuredPlace(NamedTuple):
    """What was measured of one place of record; of each fan-out also its commits."""

    awaited_ms: list[float]
    fan_outs: list[float]
    commits: list[float]
    detached: list[float]
    a_second: float
    turns_s: list[float]
    killed_ms: list[float]


def bucket(bench: Bench) -> Found:
    """Awaited runs, fan-outs, detached runs, busy agents and deaths of the supervisor, on a directory and in the bucket."""
    count, agents = bench.size(10_000, 500), bench.size(1_000, 60)
    turn_s = bench.size(30, 6)
    fresh = f"{bench.bucket}/bench-{token_hex(4)}"
    puts = [took_s * 1000 for took_s in ledger.Bucket(f"{fresh}/puts").puts_s(bench.size(200, 40))]
    on_disk = _side(bench, "directory", count, agents, turn_s)
    there = _side(bench, f"{fresh}/runs", count, agents, turn_s)
    put_ms, pair_ms = statistics.median(puts), statistics.median(map(sum, zip(puts[::2], puts[1::2], strict=True)))
    awaited, before = percentile(there.awaited_ms, 0.5), percentile(on_disk.awaited_ms, 0.5)
    rate, detached = statistics.median(on_disk.fan_outs), statistics.median(on_disk.detached)
    return Found(
        puts,
        Compared([awaited], pair_ms),
        Compared([awaited - 2 * put_ms], before),
        Compared([percentile(there.awaited_ms, 0.99)], percentile(on_disk.awaited_ms, 0.99)),
        Compared(there.fan_outs, rate),
        [each / rate for each in there.fan_outs],
        there.commits,
        Compared(there.detached, detached),
        [each / detached for each in there.detached],
        Compared(there.killed_ms, statistics.median(on_disk.killed_ms)),
        there.a_second,
        Compared(there.turns_s, statistics.median(on_disk.turns_s)),
        count=count,
        agents=agents,
        seconds=turn_s,
    )


def _side(bench: Bench, place: str, count: int, agents: int, turn_s: int) -> MeasuredPlace:
    bench.say(f"on {place} …")
    repeats = bench.size(5, 2)
    with bench.cluster(place) as runtime:
        parent = handle(runtime, Parent, "parent")
        parent.one_by_one(50)
        awaited_ms = [each for _ in range(repeats) for each in parent.one_by_one(bench.size(100, 20))]
        parent.fan_out(count // 5)
        fan_outs, commits, detached = [], [], []
        for _ in range(repeats):
            before = _commits(runtime)
            fan_outs.append(count / parent.fan_out(count))
            commits.append(float(_commits(runtime) - before))
            detached.append(count / parent.detach(count))
        return MeasuredPlace(
            awaited_ms, fan_outs, commits, detached, *_busy(runtime, agents, turn_s), _deaths_ms(runtime)
        )


def _busy(runtime: Runtime, agents: int, turn_s: int) -> tuple[float, list[float]]:
    """Commits a second while all of these agents take a turn, and the seconds of their turns."""
    calm(runtime)
    with ThreadPoolExecutor(1) as thread:
        turns = thread.submit(handle(runtime, Parent, "thoughts").think, agents, turn_s, SETTLED_S)
        time.sleep(SETTLED_S + turn_s / STEPS + SETTLED_S)
        begun_s, before = time.monotonic(), _commits(runtime)
        time.sleep(turn_s - turn_s / STEPS - SETTLED_S)
        a_second = (_commits(runtime) - before) / (time.monotonic() - begun_s)
        return a_second, turns.result()


def _commits(runtime: Runtime) -> int:
    return int(runtime.ps()["supervisor"]["commits"])


def _deaths_ms(runtime: Runtime) -> list[float]:
    """`SIGKILL` of the supervisor until a run has come back that is asked for then."""
    times = []
    for number in range(3):
        calm(runtime)
        kill([process_of(runtime, "supervisor")])
        times.append(took_ms(partial(runtime.run, Instant, number)))
    return times
