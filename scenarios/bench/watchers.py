"""Many watchers of one busy run through the gateway of `perdure serve`: whether each gets every event, how late, and in how much memory.

The run's child is in a host and emits pieces of its stream, which are kept: each is an event with a number. Reports of progress would be
coalesced. The gateway is one process, and the watchers are in another one (`watching`).
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from typing import Any, Final

import psutil

from perdure.actors import Gateways, Runtime, ServePlan, bound
from perdure.scenarios.bench.report import Bench, Figure, at_most, pss_mb
from perdure.scenarios.cast.measured import EVENTS_A_SECOND as RATE
from perdure.scenarios.cast.measured import Herald, Speech

AGENTS: Final = "perdure.scenarios.cast.measured:Herald"
RUN: Final = "busy"
PATIENCE_S: Final = 200.0


def watchers(bench: Bench) -> list[Figure]:
    """A crowd that watches from the begin to the end."""
    count, seconds = bench.size(1_000, 20), bench.size(10, 2)
    with bench.cluster("watchers") as runtime, bound("127.0.0.1", 0) as reserved:
        port = reserved.getsockname()[1]
        seen = asyncio.run(_watched(bench, runtime, port, count, seconds))
    delays = seen["delays"]
    name = f"delay of an event, {count:,} watchers of a run with {RATE:,} a second"
    return [
        Figure(f"{name}, p50", "ms", [_within(delays, 0.5)]),
        Figure("the same, p99", "ms", [_within(delays, 0.99)], at_most(250)),
        Figure("watchers that lost an event or got one twice", "", [count - seen["whole"]], at_most(0)),
        Figure("memory of the gateway, highest", "MB", [max(seen["memory"])], at_most(400)),
        Figure("processor time of the gateway", "% of a core", [seen["share"]]),
    ]


def _within(delays: list[tuple[int, int]], share: float) -> float:
    """The milliseconds within which this share of the events came."""
    left = share * sum(count for _, count in delays)
    for late_ms, count in delays:
        left -= count
        if left <= 0:
            return late_ms
    raise ValueError("nothing came")


async def _watched(bench: Bench, runtime: Runtime, port: int, count: int, seconds: int) -> dict[str, Any]:
    gateways = Gateways(runtime.cluster, ServePlan((AGENTS,), port=port), port, 1, lambda _words: None)
    await gateways.start()
    try:
        return await asyncio.to_thread(_crowd, bench, runtime, port, count, seconds)
    finally:
        await gateways.stop()


def _crowd(bench: Bench, runtime: Runtime, port: int, count: int, seconds: int) -> dict[str, Any]:
    cue = bench.data / "cue"
    runtime.start(Herald, Speech(seconds=seconds, cue=str(cue)), run_id=RUN)
    serving = _listener(port)
    command = [sys.executable, "-m", "perdure.scenarios.bench.watching", str(port), RUN, str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as crowd:
        try:
            assert crowd.stdout is not None
            assert crowd.stdout.readline() == "ready\n", "the watchers could not begin"
            before, begun_s, memory = _cpu_s(serving), time.monotonic(), [pss_mb([serving.pid])]
            cue.touch()
            while time.monotonic() < begun_s + seconds:
                time.sleep(0.5)
                memory.append(pss_mb([serving.pid]))
            share = (_cpu_s(serving) - before) / (time.monotonic() - begun_s) * 100
            told, _ = crowd.communicate(timeout=PATIENCE_S)
        finally:
            crowd.kill()
    assert crowd.returncode == 0, "an event was lost or came twice, or a line was cut"
    seen: dict[str, Any] = json.loads(told)
    assert seen["events"] >= seconds * RATE, seen["events"]
    return {**seen, "memory": memory, "share": share}


def _cpu_s(process: psutil.Process) -> float:
    used = process.cpu_times()
    return float(used.user + used.system)


def _listener(port: int) -> psutil.Process:
    """The process that accepts connections on a port."""
    found = (each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN)
    return psutil.Process(next(each.pid for each in found if each.laddr.port == port))
