"""Kills by progress: each is due after an amount of work that the seed draws, so on any machine it happens during the work.

After a kill the director waits until everything that the process carried runs again. A kill without a victim changes places with the next
one that has a victim. When little work is left, the remaining kills follow at once, so all of them happen as long as anything lives.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, Protocol

from perdure.policies import in_turns
from perdure.scenarios.faults.strikes import Overview, Strike, System, Victim, hosts_in, supervisor_in

LOOK_S: Final = 0.25  # between two looks when nothing is due
AIM_S: Final = 0.05  # while a kill is due soon
SIGHT_S: Final = 0.02  # while a recovery is measured
RECOVERY_MAX_S: Final = 120.0
DUE_SHARE: Final = 0.7  # of the work, in which the kills are due; the rest is for late ones
PRESSING_SHARE: Final = 0.5  # of that rest; when no more is left, kills follow at once

Due = list[tuple[int, str]]
"""Kinds of processes to kill, each after a number of ended pieces of work."""


class WorkProgress(Protocol):
    """How far the work is: how many pieces were asked for and have ended, the supervisor's overview, and how long recoveries took."""

    requested: int
    ended: int
    overview: Overview
    recovery_ms: list[float]


class Workload(Protocol):
    """The work during which processes are killed."""

    async def look(self) -> WorkProgress:
        """How far it is now."""

    def is_over(self) -> bool:
        """Whether it was by the last look."""

    def hosts_of(self, kind: str, overview: Overview) -> set[str]:
        """The hosts of which one dies when this kind is due."""

    def wake(self, kinds: set[str]) -> None:
        """No process of these kinds can be killed: they may sleep."""

    async def strike(self, kind: str, victim: Victim, aside: str) -> None:
        """Kill."""


def draw_kills(kinds: Sequence[str], count: int, work: int, seed: int) -> Due:
    """Draw kills over the first part of the work. Every kind comes once before any comes twice."""
    die = random.Random(seed)
    drawn = list(islice(in_turns(kinds, lambda each: die.sample(each, len(each))), count))
    return [(int((index + die.random()) / count * work * DUE_SHARE), kind) for index, kind in enumerate(drawn)]


def left_of(due: Due, struck: Sequence[str]) -> Due:
    """The kills that are left of a plan, at its last times."""
    made = Counter(struck)
    kinds: list[str] = []
    for _, kind in due:
        if made[kind]:
            made[kind] -= 1
        else:
            kinds.append(kind)
    times = [at for at, _ in due][len(due) - len(kinds) :]
    return list(zip(times, kinds, strict=True))


class Director:
    """Makes the kills of one piece of work. `due` holds those that are left."""

    def __init__(self, system: System, work: Workload, due: Due, seed: int, tell: Callable[[str], None]) -> None:
        self.due = due
        self._system, self._work, self._tell = system, work, tell
        self._die = random.Random(f"{seed} victims")
        self._killed: set[str] = set()
        self._looks_s = (0.0, 0.0)

    async def direct(self) -> None:
        while True:
            progress = await self._look()
            if self._work.is_over():
                return
            if self.due and (progress.ended >= self.due[0][0] or self._is_pressing(progress)):
                await self._strike(progress.overview)
            await asyncio.sleep(self._pause(AIM_S if self.due else LOOK_S))

    def _is_pressing(self, progress: WorkProgress) -> bool:
        rest = progress.requested * (1 - DUE_SHARE) * PRESSING_SHARE
        return bool(self.due) and progress.requested - progress.ended <= max(rest, 1)

    async def _look(self) -> WorkProgress:
        asked_s = self._system.now_s()
        progress = await self._work.look()
        self._looks_s = (self._looks_s[1], self._system.now_s() - asked_s)
        return progress

    def _pause(self, seconds: float) -> float:
        # At least three times as long as a look takes. One that waited for a supervisor does not count.
        return max(seconds, 3 * min(self._looks_s))

    async def _strike(self, overview: Overview) -> None:
        # Without a victim the next look tries again.
        for place, (_, kind) in enumerate(self.due):
            victim = self._choose(kind, overview)
            if victim is not None and (kind != "cluster" or place == 0):
                break
        else:
            self._work.wake({kind for _, kind in self.due})
            return
        kinds = [kind for _, kind in self.due]
        kinds.pop(place)  # what was before it is late, and stays so: only the kinds move on
        self.due = [(at, kind) for (at, _), kind in zip(self.due[1:], kinds, strict=True)]
        strike = Strike.of(kind, {victim: ""}, overview, self._system.now_s())
        self._killed.add(victim.name)
        await self._work.strike(kind, victim, f": {strike}")
        await self._recover(strike)

    async def _recover(self, strike: Strike) -> None:
        while not strike.has_recovered((progress := await self._look()).overview, now_s := self._system.now_s()):
            if self._is_pressing(progress):
                self._tell("little work is left, so the next kill does not wait for that")
                return
            if now_s - strike.at_s > RECOVERY_MAX_S:
                self._tell(f"not everything was at work again after {RECOVERY_MAX_S:.0f} s")
                break
            await asyncio.sleep(self._pause(SIGHT_S))
        took_ms = (now_s - strike.at_s) * 1000
        progress.recovery_ms.append(round(took_ms, 1))
        self._tell(f"everything is at work again after {took_ms:.0f} ms")

    def _choose(self, kind: str, overview: Overview) -> Victim | None:
        if kind in ("supervisor", "cluster"):
            return supervisor_in(overview)
        hosts = hosts_in(overview)
        found = sorted(self._work.hosts_of(kind, overview) & hosts.keys() - self._killed)
        return hosts[self._die.choice(found)] if found else None
