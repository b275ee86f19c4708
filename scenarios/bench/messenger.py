"""Webhooks: the time from the first byte to the durable acknowledgement, and how many a second are acknowledged.

Both over real HTTP, for agents that are awake. The model takes a second, so most messages are answered together, during the measurement.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any, Final

from perdure.actors import messenger_app
from perdure.scenarios.bench.report import Bench, Figure, at_least, at_most, percentile
from perdure.scenarios.cast.measured_chats import Correspondent
from perdure.scenarios.stories.messenger import served

PATH: Final = "/messengers/sink/webhook"
OK: Final = b"HTTP/1.1 200 "
CHATS: Final = 20
LINES: Final = 32
PAUSE_S: Final = 0.05


class Line:
    """One open connection with minimal HTTP: a library would take longer than what is measured."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def to(cls, address: str) -> Line:
        """Connect."""
        host, _, port = address.removeprefix("http://").partition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def send(self, number: int, chat: int) -> float:
        """Send one webhook. Returns the milliseconds until its acknowledgement."""
        body = json.dumps({"id": number, "chat": chat}).encode()
        head = f"POST {PATH} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        begun_s = time.perf_counter()
        self._writer.write(head.encode() + body)
        told = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        assert told.startswith(OK.lower()), told
        size = int(told.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        assert json.loads(await self._reader.readexactly(size))["accepted"] == 1
        return (time.perf_counter() - begun_s) * 1000

    def close(self) -> None:
        self._writer.close()


def webhooks(bench: Bench) -> list[Figure]:
    """One webhook after the other, then as many as go."""
    alone, crowd, repeats = bench.size(300, 20), bench.size(2_000, 100), bench.size(3, 1)
    with bench.cluster("messenger", hosts_warm=2) as runtime:
        times, rates, lost = asyncio.run(_measured(runtime, alone, crowd, repeats))
    return [
        Figure("webhook to durable acknowledgement, p50", "ms", [percentile(times, 0.5)], at_most(10)),
        Figure("the same, p99", "ms", [percentile(times, 0.99)]),
        Figure(f"webhooks acknowledged, {CHATS} chats", "/s", rates, at_least(500)),
        Figure("webhooks that were acknowledged and not answered", "", [lost], at_most(0)),
    ]


async def _measured(runtime: Any, alone: int, crowd: int, repeats: int) -> tuple[list[float], list[float], int]:
    async with served(messenger_app(runtime, Correspondent)) as address:
        lines = [await Line.to(address) for _ in range(LINES)]
        for chat in range(CHATS):
            await lines[0].send(chat, chat)
        times = []
        for number in range(alone):
            times.append(await lines[0].send(1_000 + number, number % CHATS))
            await asyncio.sleep(PAUSE_S)  # for the answer
        rates = [await _crowd(lines, 100_000 * (1 + each), crowd) for each in range(repeats)]
        for line in lines:
            line.close()
    answered = [await _answered(runtime, f"c{chat}") for chat in range(CHATS)]
    return times, rates, CHATS + alone + crowd * repeats - sum(answered)


async def _crowd(lines: list[Line], first: int, count: int) -> float:
    """The webhooks a second if every line sends one after the other."""
    numbers = iter(range(first, first + count))

    async def work(line: Line) -> None:
        for number in numbers:
            await line.send(number, number % CHATS)

    begun_s = time.perf_counter()
    await asyncio.gather(*(work(line) for line in lines))
    return count / (time.perf_counter() - begun_s)


async def _answered(runtime: Any, name: str) -> int:
    """The number of answered events of an agent, when it is idle."""
    while True:
        rows = await runtime.agent(Correspondent, name).list_deliveries(None, 500)
        if all(row["status"] == "settled" for row in rows):
            return sum(len(row["heard"]) for row in rows if row["outcome"] == "answered")
        await asyncio.sleep(0.2)
