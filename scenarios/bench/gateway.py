"""The gateway over real HTTP.

Of chats and webhooks: what the way adds to a turn, how late chunks come when many talk, how soon a webhook is taken. Of what a person
meets: what it costs while nobody asks, what is seen when one of its processes is killed, and how soon an agent, or a page, with a past is
there.

The clients are minimal: raw where a library would take longer than what is measured. They are in the process of the benchmark, but for
the watchers of one busy run (`watching`). The models are in the hosts. They say what time it is, or take a second, so that most messages of
a messenger are answered together during the measurement.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from typing import Any, Final

import psutil
from websockets.sync.client import connect as connect_socket

import perdure
from perdure import Runtime
from perdure.actors import Gateways, ServePlan, bound, messenger_app
from perdure.actors.ray_world.os_processes import cpu_s
from perdure.scenarios.bench.browser import visits
from perdure.scenarios.bench.chats import chat_ms
from perdure.scenarios.bench.figures import Compared, Found
from perdure.scenarios.bench.measuring import (
    Bench,
    busy_share,
    calm,
    handle,
    own_heap_left_alone,
    percentile,
    pss_mb,
    wait_for,
)
from perdure.scenarios.cast.measured import EVENTS_A_SECOND, Herald, Parent, SpeechOrder
from perdure.scenarios.cast.measured_chats import Correspondent, InstantChat
from perdure.scenarios.stories.messenger import served as served_app

AGENTS: Final = "perdure.scenarios.cast.measured_chats:GATEWAY_AGENTS"
WARM: Final = 20
START_S: Final = 0.02  # between two chats of the total, as people do not all begin at once
PATH: Final = "/messengers/sink/webhook"
CHATS: Final = 20
LINES: Final = 32
PAUSE_S: Final = 0.05


class RawConnection:
    """One connection with minimal HTTP: a library would take longer than what is measured."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: object) -> tuple[bytes, asyncio.StreamReader]:
        """Send an object. Returns the head of the answer, and where its body comes."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        whole = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {len(whole)}\r\n\r\n"
        writer.write(head.encode() + whole)
        told = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert told.startswith(b"http/1.1 200"), told
        return told, reader

    def close(self) -> None:
        # The next `post` connects again.
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class RawChat(RawConnection):
    def __init__(self, port: int, chat_class: str, chat_id: str) -> None:
        super().__init__(port)
        self._path, self._chat_id, self._count = f"/chat/{chat_class}", chat_id, 0

    async def ask(self) -> AsyncIterator[tuple[float, dict[str, Any]]]:
        # The chunks of the answer, each with the time at which it came.
        self._count += 1
        message = {"id": f"m{self._count}", "role": "user", "parts": [{"type": "text", "text": "Is it?"}]}
        body = {"id": self._chat_id, "messages": [message], "trigger": "submit-message"}
        _, reader = await self.post(self._path, body)
        while (size := int(await reader.readuntil(b"\r\n"), 16)) > 0:
            piece = await reader.readexactly(size + 2)
            came_s = time.monotonic()
            for line in piece.split(b"\n"):
                if line.startswith(b"data: {"):
                    yield came_s, json.loads(line[6:])
        await reader.readexactly(2)


def gateway(bench: Bench) -> Found:
    count, total = bench.size(200, 10), bench.size(200, 10)
    with bench.cluster("gateway", hosts_warm=2) as runtime:
        inside = [chat_ms(handle(runtime, InstantChat, "inside")) for _ in range(count + WARM)][WARM:]
        outside, alone, many = asyncio.run(_outside(runtime, count, total))
    middle = percentile(outside, 0.5)
    beyond = middle - percentile(inside, 0.5)
    late = (percentile(many, share) for share in (0.5, 0.99))
    return Found(beyond, middle, percentile(alone, 0.5), *late, total=total)


async def _outside(runtime: Runtime, count: int, total: int) -> tuple[list[float], list[float], list[float]]:
    async with gateways(runtime, AGENTS) as port:
        talk = RawChat(port, "instant", "outside")
        turns = [await _turn_ms(talk) for _ in range(count + WARM)]
        talk.close()
        alone = [RawChat(port, "steady", "alone")]
        many = [RawChat(port, "steady", f"total-{number}") for number in range(total)]
        await _delays(many[: total // 10])  # processes and code are warm then
        with own_heap_left_alone():
            return turns[WARM:], await _delays(alone), await _delays(many)


@asynccontextmanager
async def gateways(runtime: Runtime, target: str, workers: int = 1) -> AsyncIterator[int]:
    with bound("127.0.0.1", 0) as reserved:
        port = reserved.getsockname()[1]
        found = Gateways(runtime.cluster, ServePlan((target,), port=port), port, workers, lambda _words: None)
        await found.start()
        try:
            yield port
        finally:
            await found.stop()


async def _turn_ms(talk: RawChat) -> float:
    begun_s = time.monotonic()
    kinds = [chunk["type"] async for _, chunk in talk.ask()]
    assert kinds[-1] == "finish", kinds
    return (time.monotonic() - begun_s) * 1000


async def _delays(talks: list[RawChat]) -> list[float]:
    """How late each chunk came that says when it was made, in ms. Each chat is closed."""
    found = await asyncio.gather(*(_delays_of(talk, number * START_S) for number, talk in enumerate(talks)))
    return [each for told in found for each in told]


async def _delays_of(talk: RawChat, begin_s: float) -> list[float]:
    await asyncio.sleep(begin_s)
    told = [(came_s, chunk["delta"]) async for came_s, chunk in talk.ask() if chunk["type"] == "text-delta"]
    talk.close()
    return [(came_s - float(made)) * 1000 for came_s, deltas in told for made in deltas.split()]


def webhooks(bench: Bench) -> Found:
    alone, total, repeats = bench.size(300, 20), bench.size(2_000, 100), bench.size(3, 1)
    with bench.cluster("messenger", hosts_warm=2) as runtime:
        times, rates, lost = asyncio.run(_measured(runtime, alone, total, repeats))
    return Found(percentile(times, 0.5), percentile(times, 0.99), rates, lost, chats=CHATS)


async def _measured(runtime: Any, alone: int, total: int, repeats: int) -> tuple[list[float], list[float], int]:
    async with served_app(messenger_app(runtime, Correspondent)) as address:
        lines = [RawConnection(int(address.rpartition(":")[2])) for _ in range(LINES)]
        for chat in range(CHATS):
            await _webhook_ms(lines[0], chat, chat)
        times = []
        for number in range(alone):
            times.append(await _webhook_ms(lines[0], 1_000 + number, number % CHATS))
            await asyncio.sleep(PAUSE_S)  # for the answer
        rates = [await _batch(lines, 100_000 * (1 + each), total) for each in range(repeats)]
        for line in lines:
            line.close()
    answered = [await _answered(runtime, f"c{chat}") for chat in range(CHATS)]
    return times, rates, CHATS + alone + total * repeats - sum(answered)


async def _webhook_ms(line: RawConnection, number: int, chat: int) -> float:
    begun_s = time.perf_counter()
    told, reader = await line.post(PATH, {"id": number, "chat": chat})
    size = int(told.partition(b"content-length: ")[2].partition(b"\r\n")[0])
    assert json.loads(await reader.readexactly(size))["accepted"] == 1
    return (time.perf_counter() - begun_s) * 1000


async def _batch(lines: list[RawConnection], first: int, count: int) -> float:
    numbers = iter(range(first, first + count))

    async def work(line: RawConnection) -> None:
        for number in numbers:
            await _webhook_ms(line, number, number % CHATS)

    begun_s = time.perf_counter()
    await asyncio.gather(*(work(line) for line in lines))
    return count / (time.perf_counter() - begun_s)


async def _answered(runtime: Any, name: str) -> int:
    # When it is idle: later messages are answered together.
    while True:
        rows = await runtime.agent(Correspondent, name).list_deliveries(None, 500)
        if all(row["status"] == "settled" for row in rows):
            return sum(len(row["heard"]) for row in rows if row["outcome"] == "answered")
        await asyncio.sleep(0.2)


# ---------------- what a person meets


PARENTS: Final = "perdure.scenarios.cast.measured:Parent"
HERALDS: Final = "perdure.scenarios.cast.measured:Herald"
PIECES: Final = 10  # of the answer that come before the kill
PAGE: Final = 50  # ended runs that the dashboard shows at first
HISTORY: Final = "main > section.group > ul.rows > li"
BATCH: Final = 10_000
RUN: Final = "busy"
PATIENCE_S: Final = 200.0


@contextmanager
def served(runtime: Runtime, target: str, workers: int = 1) -> Iterator[int]:
    """A gateway of `workers` processes within the block; gives its port. Its loop is in another thread, so the block may wait."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    serving = gateways(runtime, target, workers)
    try:
        yield asyncio.run_coroutine_threadsafe(serving.__aenter__(), loop).result()
    finally:
        asyncio.run_coroutine_threadsafe(serving.__aexit__(None, None, None), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def listeners(port: int) -> list[psutil.Process]:
    known = {
        each.pid
        for each in psutil.net_connections("tcp")
        if each.status == psutil.CONN_LISTEN and each.laddr.port == port and each.pid not in (None, os.getpid())
    }
    return [psutil.Process(pid) for pid in known]


def gateway_idle(bench: Bench) -> Found:
    seconds = bench.size(30, 3)
    with bench.cluster("gateway-idle") as runtime, served(runtime, AGENTS) as port:
        assert _overview(port)
        calm(runtime)
        (process,) = listeners(port)
        return Found(busy_share([process.pid], seconds) * 100, pss_mb([process.pid]), process.memory_info().rss / 2**20)


def gateway_killed(bench: Bench) -> Found:
    found: dict[int, list[float]] = {1: [], 2: []}
    with bench.cluster("gateway-killed", hosts_warm=2) as runtime:
        for workers, waits in found.items():
            with served(runtime, AGENTS, workers) as port:
                waits += [_wait_ms(port, f"asker-{workers}-{number}") for number in range(bench.size(5, 1))]
    return Found(found[2], found[1])


def _wait_ms(port: int, name: str) -> float:
    # Until a word came that was written after the kill. The words say when they were written.
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
        return bool(_overview(port))
    except OSError:
        return False


def _serving(port: int) -> int:
    lines = psutil.net_connections("tcp")
    mine = {each.laddr.port for each in lines if each.pid == os.getpid() and each.raddr and each.raddr.port == port}
    return next(
        int(each.pid)
        for each in lines
        if each.pid and each.raddr and each.laddr.port == port and each.raddr.port in mine
    )


# what is retained


def agent_connect(bench: Bench) -> Found:
    count, repeats = bench.size(2_000, 200), bench.size(20, 3)
    with bench.cluster("agent-connect") as runtime:
        handle(runtime, Parent, "parent").fan_out(count)
        with served(runtime, PARENTS) as port:
            told = [_connection(port) for _ in range(repeats + 1)][1:]
    greeted, first, last = zip(*told, strict=True)
    return Found(greeted, first, last, count=count, newest=min(count, 1_000))


def first_paint(bench: Bench) -> Found:
    count, repeats = bench.size(100_000, 2_000), bench.size(11, 3)
    with bench.cluster("first-paint") as runtime, served(runtime, PARENTS) as port:
        few = _paints(runtime, port, PAGE, repeats)
        many = _paints(runtime, port, count, repeats)
    return Found(
        *(Compared(each, statistics.median(base)) for each, base in zip(many, few, strict=True)), count=count, page=PAGE
    )


def _paints(runtime: Runtime, port: int, count: int, repeats: int) -> tuple[list[float], list[float]]:
    """When the newest runs were painted, and when anything was, once `count` runs have ended and are in the snapshot. The first page of
    all is not counted."""
    parent = handle(runtime, Parent, "parent")
    while (missing := count - int(_overview(port)["runs"].get("completed", 0))) > 0:
        parent.fan_out(min(missing, BATCH))
    time.sleep(runtime.limits.checkpoint_idle_ms / 1000)
    calm(runtime)
    with visits() as visit:  # a browser's loop runs in this thread, and then a handle does not wait
        told = [visit(f"http://127.0.0.1:{port}/", HISTORY) for _ in range(repeats + 1)][1:]
    if any(each.found != PAGE for each in told):
        raise RuntimeError(f"the dashboard does not show {PAGE} ended runs: {told}")
    return [each.shown_ms for each in told], [each.painted_ms for each in told]


def _connection(port: int) -> tuple[float, float, float]:
    # Milliseconds until the line said who it is, until the first run, and until the last of the newest thousand.
    begun_s, ends = time.perf_counter(), 0
    first_ms = greeted_ms = now_ms = 0.0
    wanted = min(1_000, int(_overview(port)["runs"]["completed"]))
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


def _overview(port: int) -> Any:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as line:
        line.request("GET", "/api/overview")
        answer = line.getresponse()
        body = answer.read()
    assert answer.status == http.client.OK, (answer.status, body[:200])
    return json.loads(body)


def watchers(bench: Bench) -> Found:
    count, seconds = bench.size(1_000, 20), bench.size(10, 2)
    with bench.cluster("watchers") as runtime, served(runtime, HERALDS) as port:
        seen = _watched(bench, runtime, port, count, seconds)
    p50, p99 = (_within(seen["delays"], share) for share in (0.5, 0.99))
    return Found(p50, p99, count - seen["whole"], max(seen["memory"]), seen["share"], count=count, rate=EVENTS_A_SECOND)


def _within(delays: list[tuple[int, int]], share: float) -> float:
    # In milliseconds.
    left = share * sum(count for _, count in delays)
    for late_ms, count in delays:
        left -= count
        if left <= 0:
            return late_ms
    raise ValueError("nothing came")


def _watched(bench: Bench, runtime: Runtime, port: int, count: int, seconds: int) -> dict[str, Any]:
    cue = bench.data / "cue"
    runtime.start(Herald, SpeechOrder(seconds=seconds, cue=str(cue)), run_id=RUN)
    (serving,) = (each.pid for each in listeners(port))
    command = [sys.executable, "-m", "perdure.scenarios.bench.watching", str(port), RUN, str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as total:
        try:
            assert total.stdout is not None
            assert total.stdout.readline() == "ready\n", "the watchers could not begin"
            before, begun_s, memory = cpu_s([serving]), time.monotonic(), [pss_mb([serving])]
            cue.touch()
            while time.monotonic() < begun_s + seconds:
                time.sleep(0.5)
                memory.append(pss_mb([serving]))
            share = (cpu_s([serving]) - before) / (time.monotonic() - begun_s) * 100
            told, _ = total.communicate(timeout=PATIENCE_S)
        finally:
            total.kill()
    assert total.returncode == 0, "an event was lost or came twice, or a line was cut"
    seen: dict[str, Any] = json.loads(told)
    assert seen["events"] >= seconds * EVENTS_A_SECOND, seen["events"]
    return {**seen, "memory": memory, "share": share}
