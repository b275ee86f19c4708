"""The events of a run, encoded once for any number of watchers.

One follower for each watched run asks the supervisor. It keeps the newest events, encoded, in a window. A watcher has a place in the
sequence and nothing else, so a slow one costs no memory: whatever has left the window is read again from what the ledger keeps.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, Final, NamedTuple, cast

from perdure.actors.link.messages import Fields
from perdure.actors.runtime.client import Client
from perdure.actors.tasks import awaited

WINDOW: Final = 4096
"""How many encoded events of a run are kept for its watchers."""
BATCH: Final = 512
"""How many events a watcher is given at once."""
LAST: Final = frozenset({"finished", "error", "aborted", "cleared"})


class Encoded(NamedTuple):
    """An event of a run, and its JSON text."""

    sequence: int
    text: bytes
    is_last: bool


def encoded(frame: Fields) -> Encoded:
    """An event for watchers. Pure."""
    text = json.dumps(frame, ensure_ascii=False, separators=(",", ":")).encode()
    return Encoded(frame["sequence"], text, frame["event"]["kind"] in LAST)


class RunFeeds:
    """The watched runs of one gateway."""

    def __init__(self) -> None:
        self._feeds: dict[str, _RunFeed] = {}

    async def watch(self, client: Client, run_id: str, after: int = -1) -> AsyncGenerator[list[Encoded], None]:
        """The events of a run after a number, in batches: kept ones, then live ones, until its hard end. Raises `UnknownRun`."""
        feed = self._feeds.get(run_id)
        if feed is None:
            feed = self._feeds[run_id] = _RunFeed(client, run_id)
        feed.watchers += 1
        try:
            async for batch in feed.after(after):
                yield batch
        finally:
            feed.watchers -= 1
            if feed.watchers == 0:
                await feed.stop()
                if self._feeds.get(run_id) is feed:
                    del self._feeds[run_id]


class _RunFeed:
    """One watched run."""

    def __init__(self, client: Client, run_id: str) -> None:
        self.watchers = 0
        self._client, self._run_id = client, run_id
        self._window: deque[Encoded] = deque(maxlen=WINDOW)
        self._grown = asyncio.Event()
        self._following: asyncio.Task[None] | None = None

    async def after(self, last: int) -> AsyncGenerator[list[Encoded], None]:
        while True:
            grown = self._grown
            if self._following is None:
                kept = await self._kept(last)
                self._following = self._following or awaited(self._follow(kept[-1].sequence if kept else last))
            elif self._is_within(last):
                kept = self._newer(last)
            else:
                kept = await self._kept(last)
            for at in range(0, len(kept), BATCH):
                batch = kept[at : at + BATCH]
                yield batch
                last = batch[-1].sequence
                if batch[-1].is_last and at + BATCH >= len(kept) and not self._newer(last):
                    return
            if not kept and self._following.done():
                self._following.result()
                return
            if not kept:
                await grown.wait()

    async def stop(self) -> None:
        if self._following is not None:
            self._following.cancel()
            with suppress(asyncio.CancelledError, Exception):  # it was told to the watchers
                await self._following

    def _is_within(self, last: int) -> bool:
        """Whether all that comes after this number is in the window, or yet to come."""
        return bool(self._window) and self._window[0].sequence <= last + 1

    def _newer(self, last: int) -> list[Encoded]:
        if not self._window or self._window[-1].sequence <= last:
            return []
        first = max(0, last + 1 - self._window[0].sequence)
        return [self._window[at] for at in range(first, len(self._window))]

    async def _kept(self, last: int) -> list[Encoded]:
        frames = cast("list[dict[str, Any]]", await self._client.ask("frames", self._run_id, last))
        return [encoded(frame) for frame in frames]

    async def _follow(self, last: int) -> None:
        try:
            async for frame in self._client.follow(self._run_id, last):
                self._window.append(encoded(frame))
                self._wake()
        finally:
            self._wake()

    def _wake(self) -> None:
        grown, self._grown = self._grown, asyncio.Event()
        grown.set()
