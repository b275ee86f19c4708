"""What several connections of one loop watch, and is followed once for all of them: the events of a run, the state of an agent.

It is made for the first who watches it, and put away after the last. A slow watcher costs no memory.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import cached_property
from typing import Final, Generic, NamedTuple, TypeVar

from perdure.actors.chat.followers import Caller, Rest
from perdure.actors.events.reducer import SentFrame
from perdure.actors.gateway.plain_json import json_bytes
from perdure.actors.gateway.streaming import event
from perdure.actors.life.state_watch import StatePage
from perdure.actors.link.messages import Fields
from perdure.actors.runtime.client import Client
from perdure.actors.tasks import Pending, awaited
from perdure.ledger import LAST_EVENTS


class Watched:
    """What is begun once, by the first who comes, and stopped once. A task follows it meanwhile, and wakes those who wait for a change."""

    def __init__(self) -> None:
        self.users = 0
        self._following: asyncio.Task[None] | None = None
        self._beginning, self._changed = asyncio.Lock(), asyncio.Event()

    async def begin(self) -> None:
        # A second caller waits until it has begun. Raises what keeps it from beginning.
        async with self._beginning:
            if self._following is None:
                self._following = awaited(await self._begun())

    async def _begun(self) -> Pending[None]:
        # A subclass learns how things stand, and returns what follows them from there.
        raise NotImplementedError

    async def stop(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)  # its watchers were told

    async def _change(self, since: asyncio.Event | None = None) -> None:
        # `since` is an earlier `_changed`: a change that has come after it counts. Raises what has ended the following.
        if self._following is not None and self._following.done():
            self._following.result()
        await (since or self._changed).wait()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


T = TypeVar("T", bound=Watched)


class Shared(Generic[T]):
    def __init__(self) -> None:
        self._known: dict[str, T] = {}

    @asynccontextmanager
    async def watched(self, key: str, make: Callable[[], T]) -> AsyncGenerator[T, None]:
        if key not in self._known:
            self._known[key] = make()
        found = self._known[key]
        found.users += 1
        try:
            await found.begin()
            yield found
        finally:
            found.users -= 1
            if not found.users:
                del self._known[key]  # who comes while it is stopped gets another one
                await found.stop()


# ---------------------------------------------------------------- runs
# The events of a run, encoded once for any number of watchers.
#
# One follower for each watched run asks the supervisor. It keeps the newest events, encoded, in a window. A watcher has a place in the
# sequence and nothing else: whatever has left the window is read again from what the ledger keeps.
#
# Watchers that stand at the same place are given the same batch, whose text is made once. A batch is told of new events a little later than
# a few watchers are, so that each of its members is given many at once.


WINDOW: Final = 4096
"""How many encoded events of a run are kept for its watchers."""
BATCH: Final = 512
"""How many events a watcher is given at once."""
PAUSE_S: Final = 0.000_1
"""For each watcher: how long it takes to hand a batch to one. It is the least time between two batches."""
PAUSE_MAX_S: Final = 0.1


class Encoded(NamedTuple):
    sequence: int
    text: bytes
    is_last: bool


class Batch(tuple[Encoded, ...]):  # noqa: SLOT001 - its text is kept in it
    # The same for every watcher that is given these events.

    @cached_property
    def stream(self) -> bytes:
        return b"".join([event(each.text, number=each.sequence) for each in self])

    @cached_property
    def frames(self) -> list[SentFrame]:
        # As the JSON has them, which is not always as the ledger does.
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
    async def watch(self, client: Client, run_id: str, after: int = -1) -> AsyncGenerator[Batch, None]:
        async with (
            self.watched(run_id, lambda: RunFeed(client, run_id)) as feed,
            aclosing(feed.after(after)) as batches,
        ):
            async for batch in batches:
                yield batch


# ---------------------------------------------------------------- states
# Only the newest state of an agent counts, so a slow watcher misses some. The follower lets its agent fall asleep, as that of a
# conversation does.


class KnownState(NamedTuple):
    """A state as the gateway was told it. `version` is empty if there is none; `number` counts what the gateway was told. `edition` has the
    life of the agent, and how many changes that life had seen."""

    state: dict[str, object]
    version: str
    number: int
    edition: tuple[int, int] = (0, 0)

    def is_before(self, edition: tuple[int, int]) -> bool:
        # The same life of the agent has had another state since.
        return self.edition[0] == edition[0] and self.edition[1] < edition[1]


class WatchedState(Watched):
    """The state of one agent as the gateway knows it."""

    def __init__(self, caller: Caller) -> None:
        super().__init__()
        self.known = KnownState({}, "", 0)
        self._edition: tuple[int, int] | None = None  # that was told last, which may have had the same state
        self._caller = caller

    async def begin(self) -> None:
        # Reads the state, which wakes the agent.
        self._take(await self._caller.call("_perdure_watch_state", None, None, 0.0))
        if self._following is None or self._following.done():
            self._following = awaited(self._follow())

    async def after(self, number: int) -> KnownState:
        """Wait until the agent has told of a change after this one: of the same state as before, if others were in between. Raises what
        has ended the following."""
        while self.known.number <= number:
            await self._change()
        return self.known

    def _take(self, page: StatePage) -> None:
        self._edition = page["edition"]
        if page["is_news"]:
            life, changes = page["edition"]
            self.known = KnownState(page["state"], page["version"], self.known.number + 1, (life, changes))
            self._wake()

    async def _follow(self) -> None:
        rest = Rest(self._caller)
        try:
            while True:
                page: StatePage = await rest.ask("_perdure_watch_state", self.known.version, self._edition)
                self._take(page)
                await rest.after(is_resting=not page["is_news"])
        finally:
            self._wake()
