"""When an agent must be awake again, whatever becomes of its process until then.

Each part of an agent that works by the clock says when it is to be rung next. The earliest of these instants is the agent's one alarm
in the ledger, which has the agent woken at that time if it is asleep or dead. While it is awake a timer rings here, and the ledger only
checks: its own alarm rings, too, and the agent *owes* until it has said what comes next.

What is rung for lies in the agent's storage. So nothing depends on a ring coming once, or on time: a part looks at its rows and says
when it is to be rung again. A life that dies before it has said so is woken again because it died; one that falls asleep says it before
its goodbye, on the same link.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from perdure.actors.code.author_call import tried_now
from perdure.actors.life.host_options import pool_spec
from perdure.actors.life.life import Life
from perdure.ledger import Alarm, StorageLost
from perdure.ledger.storage.records import FIBER_OPEN, QUEUED, SCHEDULE

COME_BACK_MS = 30_000  # until another life tries what this one could not
STORAGE_RETRY_MS = 5_000
JOBS = (FIBER_OPEN, SCHEDULE, QUEUED)


class _Timer(NamedTuple):
    at_ms: int
    ring: Callable[[], None]
    wakes: bool


class AlarmClock:
    """The alarms of one life of an agent."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._timers: dict[str, _Timer] = {}
        self._owed: set[str] = set()
        self._reported_ms = 0  # what this life has said to the ledger
        self._handle: asyncio.TimerHandle | None = None
        self._is_saying = False
        self._rests_until_ms = 0

    def set(self, part: str, at_ms: int | None, ring: Callable[[], None], *, wakes: bool = True) -> None:
        """Ring this part on the loop at that instant (milliseconds since the epoch), or soon if it is past; None: not at all.

        May be called on any thread. It is part of no transaction: call it after the commit (`transaction.then`). With `wakes=False` it
        rings only if the agent is awake then: the ledger does not hear of it.
        """
        self._life.on_loop(lambda: self._set(part, at_ms, ring, wakes=wakes))

    def _set(self, part: str, at_ms: int | None, ring: Callable[[], None], *, wakes: bool = True) -> None:
        if self._life.is_leaving:
            return  # the next life looks at the rows
        if at_ms is None:
            self._timers.pop(part, None)
        else:
            self._timers[part] = _Timer(at_ms, ring, wakes)
        self._arm()
        if not self._is_saying and self._next_ms() != self._reported_ms:
            self._is_saying = True
            asyncio.get_running_loop().call_soon(self.say)

    def owe(self, part: str, *, owes: bool) -> None:
        """A part has work under way. A life that has to leave before it is done is followed by another one at once."""
        if owes:
            self._owed.add(part)
        else:
            self._owed.discard(part)

    @property
    def is_owing(self) -> bool:
        return bool(self._owed)

    def come_back(self) -> None:
        # The agent could not come up, so none of its parts has looked at its rows. If there are any, another life tries after a while.
        waiting, problem = tried_now(self._has_jobs)
        if (waiting or isinstance(problem, StorageLost)) and self._life.agent is not None:
            self._set("start", self._life.now_ms() + COME_BACK_MS, lambda: None)

    def rest(self) -> None:
        # The life ends by an error. What it owes, and what is due, is done by another one, which begins after a while.
        self._rests_until_ms = self._life.now_ms() + COME_BACK_MS
        self.come_back()

    def finds_work(self) -> bool:
        # Whether this life, which has not come up, would find something to do or to say that an earlier one left.
        life = self._life
        found, _ = tried_now(lambda: self._has_jobs() or (life.has_storage and bool(life.storage.outbox())))
        return bool(found) and not life.is_up

    def _has_jobs(self) -> bool:
        return self._life.has_storage and any(map(self._life.storage.records().keys, JOBS))

    def say(self) -> None:
        self._is_saying = False
        at_ms = self._next_ms()
        if at_ms != self._reported_ms:
            self._reported_ms = at_ms
            agent = self._life.agent  # a life that never came up does not know; the ledger may
            home = None if agent is None else pool_spec(type(agent), self._life.services.package)
            self._life.push(Alarm(self._life.agent_id, self._life.incarnation, at_ms, home))

    def _next_ms(self) -> int:
        if self._owed and self._life.is_leaving:
            return max(1, self._life.now_ms(), self._rests_until_ms)
        first_ms = min((timer.at_ms for timer in self._timers.values() if timer.wakes), default=None)
        return 0 if first_ms is None else max(1, first_ms, self._rests_until_ms)

    def _arm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._timers:
            left_s = (min(timer.at_ms for timer in self._timers.values()) - self._life.now_ms()) / 1000
            self._handle = asyncio.get_running_loop().call_later(max(0.0, left_s), self._ring)

    def clock_was_set(self) -> None:
        # the next instant comes sooner now, or later
        if not self._life.is_leaving:
            self._arm()

    def _ring(self) -> None:
        self._handle = None
        if self._life.is_leaving:
            return
        now_ms = self._life.now_ms()
        due = [part for part, timer in self._timers.items() if timer.at_ms <= now_ms]
        for timer in [self._timers.pop(part) for part in due]:
            timer.ring()  # each part sets its next timer then
        self._arm()


class StorageRetry:
    """Handles a storage that fails under background work: nothing is lost, and the rows are looked at again in a while.

    Args:
        part: the name of the part of the agent that works by these rows, among those that its alarm is set for.
        woken: looks at all its rows.
    """

    def __init__(self, life: Life, alarms: AlarmClock, part: str, woken: Callable[[], None]) -> None:
        self._life, self._alarms, self._part, self._woken = life, alarms, part, woken

    def look(self) -> None:
        self.safely(self._woken)

    def safely(self, job: Callable[[], None]) -> None:
        _, problem = tried_now(job)
        if problem is not None:
            self.failed(problem)

    def failed(self, problem: Exception) -> None:
        if not self._life.is_leaving:
            self._life.trouble(self._part, problem)
            self._alarms.set(self._part, self._life.now_ms() + STORAGE_RETRY_MS, self._again)

    def _again(self) -> None:
        if self._life.is_broken:
            self.safely(self._life.reopen)
        self.look()
