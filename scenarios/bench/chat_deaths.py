"""How soon a turn goes on after a lost connection, a stall, or the death of its process; and how soon a client reconnects."""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from perdure.actors import Runtime
from perdure.actors.ray_world.os_processes import kill
from perdure.scenarios.bench.chat import CLOUDFLARE, delay_ms
from perdure.scenarios.bench.report import (
    Baseline,
    Bench,
    Figure,
    Listener,
    at_most,
    calm,
    handle,
    host_of_agent,
    hosts_up,
    process_of,
    wait_for,
)
from perdure.scenarios.cast.measured import Parent
from perdure.scenarios.cast.measured_chats import Broken, ChatParent, Mortal

STALL_MS = 100


def chat_recovery(bench: Bench) -> list[Figure]:
    """From a fault to the next request, and from the end of a recovered child to its parent."""
    count = bench.size(20, 3)
    with bench.cluster("chat-recovery", hosts_warm=2) as runtime:
        agent = handle(runtime, Broken, "broken")
        resets = [_reset_ms(agent) for _ in range(count)]
        stalls = [_stall_ms(agent) for _ in range(count)]
        deaths = [_death_ms(runtime, bench.data, number) for number in range(bench.size(9, 2))]
        parent = handle(runtime, ChatParent, "parent")
        parent.one_by_one(2)
        delays = [delay_ms(runtime, parent) for _ in range(count)]
    return [
        Figure("connection reset → next request, beyond the backoff", "ms", resets, at_most(50)),
        Figure("stall noticed → next request", "ms", stalls, at_most(50)),
        Figure("agent's host killed → next request", "ms", deaths, at_most(500)),
        Figure(
            "detached chat child's end to its parent's handler, after a recovery",
            "ms",
            delays,
            at_most(20),
            Baseline(CLOUDFLARE, 6_000),
        ),
    ]


def _reset_ms(agent: Any) -> float:
    listener = Listener()
    assert agent.chat("Break.", listener).ok
    waited_ms = sum(event["data"]["waitsMs"] for _, event in listener.heard if event["type"] == "data-status")
    broke_s, again_s = agent.last_requests()
    return float((again_s - broke_s) * 1000 - waited_ms)


def _stall_ms(agent: Any) -> float:
    assert agent.chat("Break by silence.", None, chat_stream_stall_timeout_ms=STALL_MS).ok
    broke_s, again_s = agent.last_requests()
    return float((again_s - broke_s) * 1000 - STALL_MS)


def _death_ms(runtime: Runtime, place: Path, number: int) -> float:
    note, name = place / f"requests-{number}", f"mortal-{number}"
    wait_for(lambda: hosts_up(runtime) > 1)
    calm(runtime)  # until the warm host has imported the library
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(lambda: handle(runtime, Mortal, name).chat(str(note), None))
        wait_for(note.exists)
        process = process_of(runtime, host_of_agent(runtime, name))
        killed_s = time.monotonic()
        kill([process])
        again_s = float(wait_for(lambda: note.read_text().split()[1:])[0])
        assert answer.result(60).status in ("completed", "interrupted")
    return (again_s - killed_s) * 1000


def reconnection(bench: Bench) -> list[Figure]:
    """A parent with many ended runs: how soon a new client sees the first frame of a run, and the list of all."""
    count = bench.size(2_000, 200)
    with bench.cluster("reconnection") as runtime:
        parent = handle(runtime, Parent, "parent")
        parent.fan_out(count)
        run_id = runtime.list(limit=1)[0]["run_id"]
        first, whole = [], []
        for _ in range(bench.size(20, 3)):
            with Runtime(runtime.data) as newcomer:
                begun_s = time.perf_counter()
                next(iter(newcomer.events(run_id)))
                first.append((time.perf_counter() - begun_s) * 1000)
                assert len(newcomer.list(limit=count)) >= count
                whole.append((time.perf_counter() - begun_s) * 1000)
    baseline = Baseline(f"the list of all {count:,} as well", statistics.median(whole))
    return [Figure(f"first frame of a run, {count:,} retained beside it", "ms", first, at_most(100), baseline)]
