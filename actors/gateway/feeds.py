"""The events of a run, encoded once for any number of watchers.

One follower for each watched run asks the supervisor. It keeps the newest events, encoded, in a window. A watcher has a place in the
sequence and nothing else, so a slow one costs no memory: whatever has left the window is read again from what the ledger keeps.

Watchers that stand at the same place are given the same batch, whose text is made once. A batch is told of new events a little later than
a few watchers are, so that each of its members is given many at once.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from functools import cached_property
from typing import Final, NamedTuple

from perdure.actors.events.reducer import SentFrame
from perdure.actors.gateway.plain_json import json_bytes
from perdure.actors.gateway.shared import Shared, Watched
from perdure.actors.gateway.streaming import event
from perdure.actors.link.messages import Fields
from perdure.actors.runtime.client import Client
from perdure.actors.tasks import awaited
from perdure.ledger import LAST_EVENTS

WINDOW: Final = 4096
"""How many encoded events of a run are kept for its watchers."""
BATCH: Final = 512
"""How many events a watcher is given at once."""
PAUSE_S: Final = 0.000_1
"""For each watcher: how long it takes to hand a batch to one. It is the least time between two batches."""
PAUSE_MAX_S: Final = 0.1


class Encoded(NamedTuple):
    """An event of a run, and its JSON text."""

    sequence: int
    text: bytes
    is_last: bool


class Batch(tuple[Encoded, ...]):  # noqa: SLOT001 - its text is kept in it
    """Some events in a row, the same for every watcher that is given them."""

    @cached_property
    def stream(self) -> bytes:
        return b"".join([event(each.text, number=each.sequence) for each in self])

    @cached_property
    def frames(self) -> list[SentFrame]:
        """The events as their JSON has them, which is not always as the ledger does."""
        return [json.loads(each.text) for each in self]


def encoded(frame: Fields) -> Encoded:
    text = json_bytes(frame)
    return Encoded(frame["sequence"], text, frame["event"]["kind"] in LAST_EVENTS)


class RunFeed(Watched):
    """The events of one run, for all its watchers."""

    def __init__(self, client: Client, run_id: str) -> None:
        super().__init__()
        self._client, self._run_id = client, run_id
        self._fresh: list[Encoded] = []  # what watchers are told next
        self._window: deque[Encoded] = deque(maxlen=WINDOW)
        self._batches: dict[int, Batch] = {}  # the newest, by the number before their first
        self._told_s = 0.0
        self._telling: asyncio.TimerHandle | None = None
        self._reading = asyncio.Lock()

    async def begin(self) -> None:
        """The first who asks for what is not there yet has the run followed."""

    async def after(self, last: int) -> AsyncGenerator[Batch, None]:
        while True:
            changed, is_last = self._changed, False
            for batch in await self._next(last):
                yield batch
                last, is_last = batch[-1].sequence, batch[-1].is_last
            if is_last and _newest(self._fresh or self._window) <= last:
                return
            if changed is not self._changed or _newest(self._window) > last:
                continue
            if self._following is not None and self._following.done():
                self._following.result()
                return
            await changed.wait()

    async def _next(self, last: int) -> Iterable[Batch]:
        # The first to ask has the run followed, unless the ledger has its end: then there is nothing to come, and a page of ended runs
        # costs one question for each.
        if self._is_at_hand(last):
            return self._newer(last)
        async with self._reading:  # one after the other, as many come at the same time and the first may read for all
            if self._is_at_hand(last):
                return self._newer(last)
            kept = [encoded(frame) for frame in await self._client.ask("frames", self._run_id, last)]
            if self._following is None:
                self._window.clear()
                self._batches.clear()
                self._window.extend(kept)
                if not kept or not kept[-1].is_last:
                    self._following = awaited(self._follow(kept[-1].sequence if kept else last))
        return (Batch(kept[at : at + BATCH]) for at in range(0, len(kept), BATCH))

    def _is_at_hand(self, last: int) -> bool:
        is_within = bool(self._window) and self._window[0].sequence <= last + 1
        return is_within and (self._following is not None or _newest(self._window) > last)

    def _newer(self, last: int) -> list[Batch]:
        if _newest(self._window) <= last:
            return []
        batch = self._batches.get(last)
        if batch is None:
            first = last + 1 - self._window[0].sequence
            batch = self._batches[last] = Batch(itertools.islice(self._window, first, first + BATCH))
        return [batch]

    async def _follow(self, last: int) -> None:
        try:
            async for frame in self._client.follow(self._run_id, last):
                self._fresh.append(encoded(frame))
                if self._telling is None:
                    self._tell_soon()
        finally:
            if self._telling is not None:
                self._telling.cancel()
            self._tell()

    def _tell_soon(self) -> None:
        loop = asyncio.get_running_loop()
        wait_s = self._told_s + min(PAUSE_MAX_S, PAUSE_S * self.users) - loop.time()
        if wait_s <= 0:
            self._tell()
        else:
            self._telling = loop.call_later(wait_s, self._tell)

    def _tell(self) -> None:
        self._window.extend(self._fresh)
        self._fresh.clear()
        self._batches.clear()
        self._told_s, self._telling = asyncio.get_running_loop().time(), None
        self._wake()


def _newest(events: Sequence[Encoded]) -> int:
    return events[-1].sequence if events else -1


class RunFeeds(Shared[RunFeed]):
    """The watched runs of one gateway."""

    async def watch(self, client: Client, run_id: str, after: int = -1) -> AsyncGenerator[Batch, None]:
        """The events of a run after a number, in batches: kept ones, then live ones, until its hard end. Raises `UnknownRun`."""
        async with (
            self.watched(run_id, lambda: RunFeed(client, run_id)) as feed,
            aclosing(feed.after(after)) as batches,
        ):
            async for batch in batches:
                yield batch
