"""Chats and webhooks over real HTTP: what the way adds to a turn, how late chunks come when many talk, how soon a webhook is taken.

The clients are minimal, and in the process of the benchmark. The models are in the hosts. They say what time it is, or take a second, so
that most messages of a messenger are answered together during the measurement.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from perdure.actors import Gateways, Runtime, ServePlan, bound, messenger_app
from perdure.scenarios.bench.chats import chat_ms
from perdure.scenarios.bench.figures import Found
from perdure.scenarios.bench.measuring import Bench, handle, own_heap_left_alone, percentile
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
    """One chat over one connection."""

    def __init__(self, port: int, chat_class: str, chat_id: str) -> None:
        super().__init__(port)
        self._path, self._chat_id, self._count = f"/chat/{chat_class}", chat_id, 0

    async def ask(self) -> AsyncIterator[tuple[float, dict[str, Any]]]:
        """Say something; the chunks of the answer, each with the time at which it came."""
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
    """A gateway of `workers` processes within the block; gives its port."""
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
    """One webhook after the other, then as many as go."""
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
