"""Chat agents: children one by one and all at once, streams, turns, and long transcripts."""

from __future__ import annotations

import statistics
import time
from typing import Any

from perdure import Runtime
from perdure.scenarios.bench.figures import Compared, Found
from perdure.scenarios.bench.measuring import (
    Bench,
    Listener,
    calm,
    disk_bytes,
    handle,
    peak_mb,
    percentile,
    pss_mb,
    wait_for,
)
from perdure.scenarios.cast.measured import Parent
from perdure.scenarios.cast.measured_chats import ChatParent, Clocked, InstantChat, Long, SlowParent, Torrent


def chat_children(bench: Bench) -> Found:
    count, total, repeats = bench.size(200, 20), bench.size(500, 50), bench.size(3, 1)
    with bench.cluster("chat-children", hosts_warm=2) as runtime:
        parent = handle(runtime, ChatParent, "parent")
        parent.one_by_one(20)
        calm(runtime)
        before = disk_bytes(runtime.data / "agents")
        times = [parent.one_by_one(count) for _ in range(repeats)]
        kilobytes = (disk_bytes(runtime.data / "agents") - before) / (count * repeats) / 1024
        parent.fan_out(total // 5)
        rates = [total / parent.fan_out(total) for _ in range(repeats)]
        delays = [delay_ms(runtime, parent) for _ in range(bench.size(50, 5))]
    middle = [percentile(each, 0.5) for each in times]
    return Found(middle, rates, kilobytes, delays, total=total)


def delay_ms(runtime: Runtime, parent: Any) -> float:
    # The delay from the end of a detached child to its parent's handler.
    run_id = parent.detach_one()
    came_ms = wait_for(lambda: parent.came(run_id))
    told = runtime.inspect(run_id)
    assert told is not None
    return float(came_ms - told["completed_at_ms"])


def chat_streams(bench: Bench) -> Found:
    count = bench.size(1_000, 50)
    with bench.cluster("chat-streams", hosts_warm=2) as runtime:
        handle(runtime, Parent, "warm").fan_out(10)
        handle(runtime, ChatParent, "parent").one_by_one(5)
        with peak_mb(runtime) as seen:
            seconds = handle(runtime, SlowParent, "slow").fan_out(count)
        memory = max(seen, default=0.0) or pss_mb(runtime.cluster.pids())
        rates = [_rate(runtime, number) for number in range(bench.size(5, 2))]
        listener = Listener()
        chat_ms(handle(runtime, Clocked, "clocked"), listener)
    chunks = [(at_s, event["delta"]) for at_s, event in listener.heard if event["type"] == "text-delta"]
    latencies = [(at_s - float(made)) * 1000 for at_s, made in chunks if "." in made]
    return Found(seconds, memory, rates, percentile(latencies, 0.5), count=count)


def _rate(runtime: Runtime, number: int) -> float:
    listener = Listener()
    ms = chat_ms(handle(runtime, Torrent, f"torrent-{number}"), listener)
    return len(listener.heard) / ms * 1000


def chat_turns(bench: Bench) -> Found:
    count, long = bench.size(100, 10), bench.size(10_000, 500)
    with bench.cluster("chat-turns", hosts_warm=2) as runtime:
        short = handle(runtime, InstantChat, "short")
        old = handle(runtime, Long, "long")
        old.remember(long)
        for agent in (short, old):
            chat_ms(agent)
        calm(runtime)
        turns = [chat_ms(short) for _ in range(count)]
        begun = [_start_ms(old) for _ in range(bench.size(20, 3))]
        later = [chat_ms(old) for _ in range(bench.size(20, 3))]
    return Found(percentile(turns, 0.5), begun, Compared(later, statistics.median(turns)), long=long)


def _start_ms(agent: Any) -> float:
    listener, asked_s = Listener(), time.monotonic()
    chat_ms(agent, listener)
    return (listener.heard[0][0] - asked_s) * 1000


def chat_ms(agent: Any, listener: Listener | None = None) -> float:
    begun_s = time.perf_counter()
    result = agent.chat("Is it?", listener)
    assert result.ok, result
    return (time.perf_counter() - begun_s) * 1000
