"""The directory is followed into a bucket (`ledger.maintenance.replicated_store`): what is new goes there in cuts between two turns."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from perdure.actors.ports import World
from perdure.actors.tasks import Tasks
from perdure.ledger import (
    UNREACHABLE_RETRY_MS,
    UNREACHABLE_S,
    BucketUnreachable,
    LedgerError,
    StorageError,
    View,
)

if TYPE_CHECKING:  # it needs what reaches buckets
    from perdure.ledger import ReplicatedStore

log = logging.getLogger("perdure.supervisor")


class Replication:
    """The following in one life of the supervisor.

    Args:
        lost: is told for how many milliseconds the loop decided nothing.
        wake: lets the next turn begin.
        hold_back: has the hosts answer nothing that is new past the supervisor, for a while.

    Attributes:
        is_filled: the bucket has had everything at least once in this life, so its lag is what was promised.
    """

    def __init__(
        self,
        world: World,
        tasks: Tasks,
        view: View,
        store: ReplicatedStore,
        *,
        lost: Callable[[float], object],
        wake: Callable[[], None],
        hold_back: Callable[[], None],
    ) -> None:
        self._world, self._tasks, self._view, self._store = world, tasks, view, store
        self.settings = store.settings
        self._lost, self._wake, self._hold_back = lost, wake, hold_back
        self._touched: dict[str, None] = {}
        self._cutting: asyncio.Future[None] | None = None
        self._wanted, self._advanced = asyncio.Event(), asyncio.Event()
        self._tidying: asyncio.Task[None] | None = None
        self._problem = self._untidy = ""  # why the last round has failed, and the last root
        self.is_filled = False

    # Turns see by themselves whether their answers wait. Hosts, which begin some work without a turn, are told.
    async def watch(self) -> None:
        while True:
            await asyncio.sleep(self.settings.lag_ms / 1000)
            if self.is_late:
                self._hold_back()

    # What cannot be read together now is tried again.
    async def serve(self) -> None:
        await self._follow(None)
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.settings.lag_ms / 1000):
                    await self._wanted.wait()
            self._wanted.clear()
            await self._follow(self._candidates() if self.is_filled else None)

    # These runs and agents have changed, or were deleted.
    def touch(self, keys: Iterable[str]) -> None:
        runs = self._view.runs
        self._touched.update((runs[key].child if key in runs else key, None) for key in keys)

    @property
    def is_late(self) -> bool:
        return self.is_filled and self._store.behind_ms() > self.settings.lag_max_ms

    # Whether the bucket lacks anything that is known of here.
    @property
    def is_behind(self) -> bool:
        return not self.is_filled or bool(self._touched) or self._store.has_news or self._store.behind_ms() > 0

    # Wait until the bucket is no further behind than it may be, or has all that was written until now: agents go on, and a slow bucket may
    # never have what they write meanwhile. The ledger decides nothing meanwhile.
    async def caught_up(self) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while self.is_late and self._store.behind_ms() / 1000 > loop.time() - began_s:
            self._advanced.clear()
            self._wanted.set()
            await self.between_turns()
            if self._cutting is None and self.is_late:
                await self._advanced.wait()

    async def between_turns(self) -> None:
        cutting, self._cutting = self._cutting, None
        if cutting is None:
            return
        began_s = asyncio.get_running_loop().time()
        agents, touched = self._candidates(), self._take_touched()
        try:
            await self._world.threads.commit(partial(self._store.cut, agents))
        except (StorageError, OSError) as problem:
            self.touch(touched)
            cutting.set_exception(problem)
        else:
            cutting.set_result(None)
        self._lost((asyncio.get_running_loop().time() - began_s) * 1000)

    def told(self) -> dict[str, object]:
        return {
            **self.settings._asdict(),
            "behind_ms": round(self._store.behind_ms()),
            "filled": self.is_filled,
            "trouble": str(self._store.unreachable() or self._problem or self._untidy or self._store.unreadable),
        }

    # Why answers wait for the bucket. None while it may still take what they wait for.
    def unreachable(self) -> BucketUnreachable | None:
        behind_s = self._store.behind_ms() / 1000
        if not self._problem or behind_s < self.settings.lag_max_ms / 1000 + UNREACHABLE_S:
            return self._store.unreachable()
        return BucketUnreachable(self.settings.url, behind_s, self._problem, UNREACHABLE_RETRY_MS)

    def _candidates(self) -> list[str]:
        return list({**self._touched, **self._view.awake})

    def _take_touched(self) -> dict[str, None]:
        # Before anything is looked at: what is touched while it is may have been looked at too early.
        touched, self._touched = self._touched, {}
        return touched

    async def _follow(self, agents: list[str] | None) -> None:
        touched = self._take_touched()
        try:
            if agents != [] or self._store.unreadable:
                await self._world.threads.run(partial(self._store.prepare, agents))
            else:
                self._store.nothing_written()
            if self._store.has_news or agents is None:
                await self._put()
        except (LedgerError, StorageError, OSError) as problem:  # the directory is whole: nothing that lives ends
            self.touch(touched)
            if str(problem) != self._problem:
                log.warning("the directory is not followed: %s", problem)
            self._problem = str(problem)
            await asyncio.sleep(self.settings.lag_ms / 1000)
        else:
            self._problem, self.is_filled = "", True
            self._advanced.set()  # there may be nothing to put

    async def _put(self) -> None:
        cutting = self._cutting = asyncio.get_running_loop().create_future()
        self._wake()
        self._advanced.set()  # whoever waits for us makes the cut
        await cutting
        await self._world.threads.run(self._store.put)
        self._advanced.set()
        if self._tidying is None or self._tidying.done():
            self._tidying = self._tasks.start(self._tidy())

    async def _tidy(self) -> None:
        try:
            await self._world.threads.run(self._store.tidy)
        except (LedgerError, OSError) as problem:
            self._untidy = str(problem)
            log.warning("the replica has no new snapshot: %s", problem)
        else:
            self._untidy = ""
