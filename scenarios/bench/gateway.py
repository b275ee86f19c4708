"""Chats through the gateway of `perdure serve`, over real HTTP: what the way adds to a turn, and how late chunks come when many talk.

The clients are minimal, and in the process of the benchmark. The models are in the hosts, and say what time it is.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any, Final

from perdure.actors import Gateways, Runtime, ServePlan, bound
from perdure.scenarios.bench.report import Bench, Figure, at_most, handle, own_heap_left_alone, percentile
from perdure.scenarios.cast.measured_chats import Instant

AGENTS: Final = "perdure.scenarios.cast.measured_chats:GATEWAY_AGENTS"
WARM: Final = 20
START_S: Final = 0.02
"""Between two chats of the crowd, as people do not all begin at once."""


class Talk:
    """One chat over one connection with minimal HTTP: a library would take longer than what is measured."""

    def __init__(self, port: int, chat_class: str, chat_id: str) -> None:
        self._port, self._path, self._chat_id = port, f"/chat/{chat_class}", chat_id
        self._line: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._count = 0

    async def ask(self) -> AsyncIterator[tuple[float, dict[str, Any]]]:
        """Say something; the chunks of the answer, each with the time at which it came."""
        if self._line is None:
            self._line = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._line
        self._count += 1
        message = {"id": f"m{self._count}", "role": "user", "parts": [{"type": "text", "text": "Is it?"}]}
        body = json.dumps({"id": self._chat_id, "messages": [message], "trigger": "submit-message"}).encode()
        head = f"POST {self._path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        status = await reader.readuntil(b"\r\n\r\n")
        assert status.startswith(b"HTTP/1.1 200"), status
        while (size := int(await reader.readuntil(b"\r\n"), 16)) > 0:
            piece = await reader.readexactly(size + 2)
            came_s = time.monotonic()
            for line in piece.split(b"\n"):
                if line.startswith(b"data: {"):
                    yield came_s, json.loads(line[6:])
        await reader.readexactly(2)

    def close(self) -> None:
        """Hang up. Who asks again connects again."""
        if self._line is not None:
            self._line[1].close()
            self._line = None


def gateway(bench: Bench) -> list[Figure]:
    """The same turn inside and over HTTP, a chunk when nothing else happens, and many chats at once."""
    count, crowd = bench.size(200, 10), bench.size(200, 10)
    with bench.cluster("gateway", hosts_warm=2) as runtime, bound("127.0.0.1", 0) as reserved:
        port = reserved.getsockname()[1]
        inside = [_inside_ms(handle(runtime, Instant, "inside")) for _ in range(count + WARM)][WARM:]
        outside, alone, many = asyncio.run(_outside(runtime, port, count, crowd))
    beyond = percentile(outside, 0.5) - percentile(inside, 0.5)
    return [
        Figure("chat turn over HTTP beyond the same turn inside, p50", "ms", [beyond], at_most(5)),
        Figure("chat turn over HTTP, p50", "ms", [percentile(outside, 0.5)]),
        Figure("delay of a chunk of one chat over HTTP, p50", "ms", [percentile(alone, 0.5)]),
        Figure(f"delay of a chunk, {crowd} chats at once with 20 chunks/s each, p50", "ms", [percentile(many, 0.5)]),
        Figure("the same, p99", "ms", [percentile(many, 0.99)], at_most(150)),
    ]


def _inside_ms(agent: Any) -> float:
    begun_s = time.monotonic()
    assert agent.chat("Is it?").ok
    return (time.monotonic() - begun_s) * 1000


async def _outside(runtime: Runtime, port: int, count: int, crowd: int) -> tuple[list[float], list[float], list[float]]:
    plan = ServePlan((AGENTS,), port=port)
    gateways = Gateways(runtime.cluster, plan, port, 1, lambda _words: None)
    await gateways.start()
    try:
        talk = Talk(port, "instant", "outside")
        turns = [await _turn_ms(talk) for _ in range(count + WARM)]
        talk.close()
        alone = [Talk(port, "steady", "alone")]
        many = [Talk(port, "steady", f"crowd-{number}") for number in range(crowd)]
        await _delays(many[: crowd // 10])  # processes and code are warm then
        with own_heap_left_alone():
            return turns[WARM:], await _delays(alone), await _delays(many)
    finally:
        await gateways.stop()


async def _turn_ms(talk: Talk) -> float:
    begun_s = time.monotonic()
    kinds = [chunk["type"] async for _, chunk in talk.ask()]
    assert kinds[-1] == "finish", kinds
    return (time.monotonic() - begun_s) * 1000


async def _delays(talks: list[Talk]) -> list[float]:
    """How late each chunk came that says when it was made, in ms. Each chat is closed."""
    found = await asyncio.gather(*(_delays_of(talk, number * START_S) for number, talk in enumerate(talks)))
    return [each for told in found for each in told]


async def _delays_of(talk: Talk, begin_s: float) -> list[float]:
    await asyncio.sleep(begin_s)
    told = [(came_s, chunk["delta"]) async for came_s, chunk in talk.ask() if chunk["type"] == "text-delta"]
    talk.close()
    return [(came_s - float(made)) * 1000 for came_s, deltas in told for made in deltas.split()]
