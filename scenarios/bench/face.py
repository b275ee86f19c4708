"""What a person meets at the gateway of `perdure serve`: what it costs while nobody asks, what is seen when one of its processes is killed,
and how soon an agent, or a page, with a past is there.

The clients are in the process of the benchmark, and raw where a library would take longer than what is measured.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import statistics
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import closing, contextmanager
from typing import Any, Final, TypeVar

import psutil
from websockets.sync.client import connect as connect_socket

import perdure
from perdure.actors import Gateways, Runtime, ServePlan, bound
from perdure.scenarios.bench.chromium import visits
from perdure.scenarios.bench.report import Baseline, Bench, Figure, at_most, calm, handle, pss_mb, wait_for
from perdure.scenarios.cast.measured import Parent

CHATS: Final = "perdure.scenarios.cast.measured_chats:GATEWAY_AGENTS"
PARENTS: Final = "perdure.scenarios.cast.measured:Parent"
PIECES: Final = 10
"""How many pieces of the answer come before the kill."""
PAGE: Final = 50
"""How many ended runs the tray shows at first."""
HISTORY: Final = "main > section.group > ul.rows > li"
CROWD: Final = 10_000
T = TypeVar("T")


@contextmanager
def served(runtime: Runtime, target: str, workers: int = 1) -> Iterator[int]:
    """A gateway of so many processes within the block; its port."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def done(work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    async def started() -> Gateways:
        gateways = Gateways(runtime.cluster, ServePlan((target,), port=port), port, workers, lambda _words: None)
        await gateways.start()
        return gateways

    with bound("127.0.0.1", 0) as reserved:
        port = reserved.getsockname()[1]
        gateways = done(started())
        try:
            yield port
        finally:
            done(gateways.stop())
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def listeners(port: int) -> list[psutil.Process]:
    """The processes that accept connections on a port."""
    known = {
        each.pid
        for each in psutil.net_connections("tcp")
        if each.status == psutil.CONN_LISTEN and each.laddr.port == port and each.pid not in (None, os.getpid())
    }
    return [psutil.Process(pid) for pid in known]


def gateway_idle(bench: Bench) -> list[Figure]:
    """A process that has answered once, and that nobody asks anything."""
    seconds = bench.size(30, 3)
    with bench.cluster("gateway-idle") as runtime, served(runtime, CHATS) as port:
        assert _get(port, "/api/overview")
        calm(runtime)
        (process,) = listeners(port)
        before = process.cpu_times()
        time.sleep(seconds)
        after = process.cpu_times()
        used_s = after.user + after.system - before.user - before.system
        return [
            Figure("idle gateway, processor time", "% of a core", [used_s / seconds * 100], at_most(1)),
            Figure("the same, memory", "MB", [pss_mb([process.pid])], at_most(120)),
            Figure(
                "the same, pages that it shares with others counted whole", "MB", [process.memory_info().rss / 2**20]
            ),
        ]


def gateway_killed(bench: Bench) -> list[Figure]:
    """The gateway's process is killed while an answer is written: the next word that is written after that, at a Python client."""
    found: dict[int, list[float]] = {1: [], 2: []}
    with bench.cluster("gateway-killed", hosts_warm=2) as runtime:
        for workers, waits in found.items():
            with served(runtime, CHATS, workers) as port:
                waits += [_wait_ms(port, f"asker-{workers}-{number}") for number in range(bench.size(5, 1))]
    return [
        Figure("gateway killed in an answer → next frame, one of two processes", "ms", found[2], at_most(1_500)),
        Figure("the same, the only process", "ms", found[1]),
    ]


def _wait_ms(port: int, name: str) -> float:
    """How long after the kill a word came that was written after it. The words say when they were written."""
    killed_s = 0.0
    wait_for(lambda: _is_up(port))
    with (
        perdure.connect(f"http://127.0.0.1:{port}") as gateway,
        closing(iter(gateway.chat("steady", name).ask("Is it?"))) as answer,
    ):
        for number, piece in enumerate(answer):
            came_s, words = time.monotonic(), piece.text.split()
            if killed_s and words and float(words[-1]) > killed_s:
                return (came_s - killed_s) * 1000
            if number == PIECES:
                os.kill(_serving(port), signal.SIGKILL)
                killed_s = time.monotonic()
    raise RuntimeError("the answer ended before the gateway was back")


def _is_up(port: int) -> bool:
    try:
        return bool(_get(port, "/api/overview"))
    except OSError:
        return False


def _serving(port: int) -> int:
    """The process to which this one is connected."""
    lines = psutil.net_connections("tcp")
    mine = {each.laddr.port for each in lines if each.pid == os.getpid() and each.raddr and each.raddr.port == port}
    return next(
        int(each.pid)
        for each in lines
        if each.pid and each.raddr and each.laddr.port == port and each.raddr.port in mine
    )


# what is retained


def agent_connect(bench: Bench) -> list[Figure]:
    """A front end of the npm package `agents` comes to an agent that has many ended runs."""
    count, repeats = bench.size(2_000, 200), bench.size(20, 3)
    with bench.cluster("agent-connect") as runtime:
        handle(runtime, Parent, "parent").fan_out(count)
        with served(runtime, PARENTS) as port:
            told = [_connection(port) for _ in range(repeats + 1)][1:]
    name = f"connect to an agent with {count:,} retained runs"
    return [
        Figure(f"{name}, until it says who it is", "ms", [greeted for greeted, _, _ in told], at_most(100)),
        Figure("the same, until the first retained run is told", "ms", [first for _, first, _ in told]),
        Figure(f"the same, until the newest {min(count, 1_000):,} are told", "ms", [last for _, _, last in told]),
    ]


def first_paint(bench: Bench) -> list[Figure]:
    """Somebody opens the tray of a runtime with many ended runs in a browser that never was there."""
    count, repeats = bench.size(100_000, 2_000), bench.size(11, 3)
    with bench.cluster("first-paint") as runtime, served(runtime, PARENTS) as port:
        few = _paints(runtime, port, PAGE, repeats)
        many = _paints(runtime, port, count, repeats)
    shown, painted = (Baseline(f"with {PAGE} runs", statistics.median(each)) for each in few)
    name = f"tray opened with {count:,} ended runs → the newest {PAGE} are painted"
    return [
        Figure(name, "ms", many[0], at_most(300), shown),
        Figure("the same, until anything is painted", "ms", many[1], None, painted),
    ]


def _paints(runtime: Runtime, port: int, count: int, repeats: int) -> tuple[list[float], list[float]]:
    """When the newest runs were painted, and when anything was, once so many runs have ended and are in the snapshot. The first page of
    all is not counted."""
    parent = handle(runtime, Parent, "parent")
    while (missing := count - int(_get(port, "/api/overview")["runs"].get("completed", 0))) > 0:
        parent.fan_out(min(missing, CROWD))
    time.sleep(runtime.limits.checkpoint_idle_ms / 1000)
    calm(runtime)
    with visits() as visit:  # a browser's loop runs in this thread, and then a handle does not wait
        told = [visit(f"http://127.0.0.1:{port}/", HISTORY) for _ in range(repeats + 1)][1:]
    if any(each.found != PAGE for each in told):
        raise RuntimeError(f"the tray does not show {PAGE} ended runs: {told}")
    return [each.shown_ms for each in told], [each.painted_ms for each in told]


def _connection(port: int) -> tuple[float, float, float]:
    """When it was told who is reached, the first run, and the last of the newest thousand."""
    begun_s, ends = time.perf_counter(), 0
    first_ms = greeted_ms = now_ms = 0.0
    wanted = min(1_000, int(_get(port, "/api/overview")["runs"]["completed"]))
    with connect_socket(f"ws://127.0.0.1:{port}/agents/parent/parent", compression=None) as line:
        while ends < wanted:
            frame = json.loads(line.recv(60))
            now_ms = (time.perf_counter() - begun_s) * 1000
            if frame["type"] == "cf_agent_identity":
                greeted_ms = now_ms
            elif frame["type"] == "agent-tool-event":
                first_ms = first_ms or now_ms
                ends += frame["event"]["kind"] == "finished"
    return greeted_ms, first_ms, now_ms


def _asked(line: http.client.HTTPConnection, path: str) -> bytes:
    line.request("GET", path)
    answer = line.getresponse()
    body = answer.read()
    assert answer.status == http.client.OK, (path, answer.status, body[:200])
    return body


def _get(port: int, path: str) -> Any:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as line:
        return json.loads(_asked(line, path))
