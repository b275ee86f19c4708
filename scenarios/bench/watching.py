"""Watchers of one run, in a process of their own: raw sockets that read the run's event stream over HTTP.

`python -m perdure.scenarios.bench.watching PORT RUN COUNT` prints `ready` once each has the first event. When the run has ended it prints
what they saw as one line of JSON: `events` of the run, `whole` watchers that got each of its events once and in order, and the `delays` of
all events at all watchers: how many arrived within each count of milliseconds.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from bisect import bisect_right
from collections import Counter
from typing import Any, cast

END = b"event: end\n"
REPLAYED = b',"replay":true'
"""A mark of what was read from the ledger. It does not count as a difference."""


class Told:
    """What every watcher has to be told. The one that is ahead adds to it, and its numbers are checked; the others compare the bytes."""

    def __init__(self) -> None:
        self._text = bytearray()
        self._read = 0
        self.ends: list[int] = []
        self.made_s: list[float | None] = []
        self.is_whole = False

    def take(self, at: int, piece: bytes) -> None:
        """A watcher got this piece. Raises `AssertionError` if another one got something else, or an event was lost or doubled."""
        known = piece[: max(0, len(self._text) - at)]
        assert self._text.startswith(known, at), f"two watchers were told different things at byte {at}"
        self._text += piece[len(known) :]
        while (end := self._text.find(b"\n\n", self._read)) >= 0:
            self._event(bytes(self._text[self._read : end]))
            self._read = end + 2

    def _event(self, text: bytes) -> None:
        assert not self.is_whole, "something came after the end"
        if text.startswith(END):
            self.is_whole = True
            return
        head, _, data = text.partition(b"\ndata: ")
        frame = json.loads(data)
        assert head == b"id: %d" % len(self.ends), f"{head!r} came as event {len(self.ends)}"
        assert frame["sequence"] == len(self.ends)
        self.ends.append(self._read + len(text) + 2)
        self.made_s.append(frame["event"]["body"]["at_s"] if frame["event"]["kind"] == "chunk" else None)

    @property
    def size(self) -> int:
        return len(self._text)


class Watcher(asyncio.Protocol):
    """One connection, with minimal HTTP: a library would take longer than what is measured."""

    def __init__(self, told: Told, head: bytes) -> None:
        self._told, self._head = told, head
        self._rest, self._is_body = b"", False
        self.taken = 0
        self.came: list[tuple[float, int]] = []
        loop = asyncio.get_running_loop()
        self.begun: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(self._head)

    def data_received(self, data: bytes) -> None:
        came_s = time.monotonic()
        self._rest += data
        try:
            self._read()
        except AssertionError as problem:
            self.connection_lost(problem)
        self.came.append((came_s, self.taken))

    def connection_lost(self, exc: BaseException | None) -> None:
        for future in (self.begun, self.ended):
            if not future.done():
                future.set_exception(exc or EOFError("the line was cut"))

    def _read(self) -> None:
        if not self._is_body:
            head, found, self._rest = self._rest.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            assert found
            self._is_body = True
        while (at := self._rest.find(b"\r\n")) >= 0:
            size = int(self._rest[:at], 16)
            if len(self._rest) < at + size + 4:
                return
            piece = self._rest[at + 2 : at + 2 + size]
            self._rest = self._rest[at + size + 4 :]
            self._take(piece)

    def _take(self, piece: bytes) -> None:
        if piece.startswith(b":"):
            return
        piece = piece.replace(REPLAYED, b"")
        self._told.take(self.taken, piece)
        self.taken += len(piece)
        if not piece:
            self.ended.set_result(None)
        elif not self.begun.done():
            self.begun.set_result(None)

    def is_whole(self) -> bool:
        return self._told.is_whole and self.taken == self._told.size

    def delays_ms(self) -> Counter[int]:
        # Of the events that say when they were made.
        delays: Counter[int] = Counter()
        known = 0
        for came_s, taken in self.came:
            upto = bisect_right(self._told.ends, taken)
            for made_s in self._told.made_s[known:upto]:
                if made_s is not None:
                    delays[int((came_s - made_s) * 1000) + 1] += 1
            known = upto
        return delays


async def watch(port: int, run_id: str, count: int) -> dict[str, Any]:
    """Watch a run until its end. Raises if a watcher is told anything else than each event once and in order."""
    loop, told = asyncio.get_running_loop(), Told()
    head = f"GET /api/runs/{run_id}/events HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode()
    watchers: list[Watcher] = []
    for _ in range(count):
        _, watcher = await loop.create_connection(lambda: Watcher(told, head), "127.0.0.1", port)
        watchers.append(watcher)
    await asyncio.gather(*(each.begun for each in watchers))
    print("ready", flush=True)
    await asyncio.gather(*(each.ended for each in watchers))
    delays: Counter[int] = Counter()
    for each in watchers:
        delays.update(each.delays_ms())
    whole = sum(each.is_whole() for each in watchers)
    return {"events": len(told.ends), "whole": whole, "delays": sorted(delays.items())}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(watch(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))), flush=True)
