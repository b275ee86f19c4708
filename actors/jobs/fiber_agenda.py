"""Which fibers are entered or recovered, when, and how many at once.

A fiber that waits for an instant is in `_later`. A fiber that is due is in one of two lanes, in the order of acceptance: `entering` a
body, or `recovering` after a death. Each lane has a number of places. Nothing here is durable: every entry stands for a row, and the next
life finds the rows. A fiber that waits for its time keeps nobody awake: its alarm is in the ledger.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from heapq import heappop, heappush

from perdure.actors.code.author_call import tried, tried_now
from perdure.actors.jobs.fiber import Fiber
from perdure.actors.jobs.fiber_store import FiberStore
from perdure.actors.life.alarm_clock import STORAGE_RETRY_MS, AlarmClock
from perdure.actors.life.life import Life
from perdure.policies import FiberStatus

PART = "fibers"


class Lane:
    """The fibers that are due for one kind of work, oldest first, and the free places for it."""

    def __init__(self, places: int, attend: Callable[[str], Awaitable[None]]) -> None:
        self.places, self.attend = places, attend
        self.due: list[tuple[int, str]] = []


class FiberAgenda:
    """The work that the fibers of one agent wait for."""

    def __init__(
        self,
        life: Life,
        alarms: AlarmClock,
        store: FiberStore,
        enter: Callable[[str], Awaitable[None]],
        recover: Callable[[str], Awaitable[None]],
    ) -> None:
        self._life, self._alarms, self._store = life, alarms, store
        self.entering = Lane(self._life.limits.fibers_at_once_max, enter)
        self.recovering = Lane(self._life.limits.fiber_recoveries_at_once_max, recover)
        self._later: list[tuple[int, int, str, Lane]] = []
        self._waiting: dict[str, int] = {}
        self._attended: dict[str, asyncio.Task[None]] = {}
        self._is_looking = False

    def add(self, fiber: Fiber, *, after_ms: int = 0) -> None:
        """Enter or recover this fiber when it is due, unless that is under way. The earliest instant given counts."""
        fiber_id = fiber.fiber_id
        at_ms = max(fiber.due_at_ms, self._life.now_ms() + after_ms if after_ms else 0)
        if fiber_id in self._attended or self._waiting.get(fiber_id, at_ms + 1) <= at_ms:
            return
        self._waiting[fiber_id] = at_ms
        lane = self.entering if fiber.status == FiberStatus.PENDING else self.recovering
        if at_ms <= self._life.now_ms():
            heappush(lane.due, (fiber.number, fiber_id))
        else:
            heappush(self._later, (at_ms, fiber.number, fiber_id, lane))
        self.look_soon()

    def look_soon(self) -> None:
        """Begin what is due in the next turn of the loop. Nothing is due before the agent is up."""
        if not self._is_looking and self._life.is_up:
            self._is_looking = True
            self._alarms.owe(PART, owes=True)  # a run that ends in this turn must not take the agent away
            asyncio.get_running_loop().call_soon(self._look)

    def give_place(self, count: int) -> None:
        """Add free places, or take some back. A body that waits for another fiber lends its own."""
        self.entering.places += count
        self.look_soon()

    def _look(self) -> None:
        self._is_looking = False
        if self._life.is_leaving:
            return
        now_ms = self._life.now_ms()
        while self._later and self._later[0][0] <= now_ms:
            at_ms, number, fiber_id, lane = heappop(self._later)
            if self._waiting.get(fiber_id) == at_ms:  # else it was given an earlier instant
                heappush(lane.due, (number, fiber_id))
        for lane in (self.entering, self.recovering):
            while lane.due and lane.places > 0:
                self._begin(lane, heappop(lane.due)[1])
        self._alarms.owe(PART, owes=bool(self._attended or self.entering.due or self.recovering.due))
        self._alarms.set(PART, self._later[0][0] if self._later else None, self.look_soon)

    def _begin(self, lane: Lane, fiber_id: str) -> None:
        if self._waiting.pop(fiber_id, None) is None or fiber_id in self._attended:
            return
        lane.places -= 1
        task = self._attended[fiber_id] = self._life.spawn_awaited(self._attend(lane, fiber_id))
        task.add_done_callback(partial(self._done, lane, fiber_id))

    async def _attend(self, lane: Lane, fiber_id: str) -> None:
        _, problem = await tried(lane.attend(fiber_id))
        if problem is not None and not self._life.is_leaving:
            self._life.trouble(f"fiber {fiber_id}", problem)
            raise problem

    def _done(self, lane: Lane, fiber_id: str, task: asyncio.Task[None]) -> None:
        """The work on a fiber has ended. A fiber that is still open is due again, after an error of the storage some seconds later."""
        lane.places += 1
        self._attended.pop(fiber_id, None)
        has_failed = not task.cancelled() and task.exception() is not None
        if self._life.is_leaving:
            return
        self._life.touch()
        fiber, _ = tried_now(lambda: self._store.find(fiber_id) if self._store.is_open(fiber_id) else None)
        if fiber is not None:
            self.add(fiber, after_ms=STORAGE_RETRY_MS if has_failed else 0)
        self.look_soon()
