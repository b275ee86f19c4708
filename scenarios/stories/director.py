"""Kills by progress, and how long each recovery takes.

A kill is due after an amount of work that the seed draws, so on any machine it happens during the work. The director then waits until
everything that the process carried runs again. A kill without a victim changes places with the next one that has a victim. When little work
is left, the remaining kills follow at once, so all of them happen as long as anything lives.
"""

from __future__ import annotations

import asyncio
import math
import random
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

from perdure.policies import in_turns
from perdure.scenarios.stories.engine import Scenario
from perdure.scenarios.stories.loss import Loss
from perdure.scenarios.stories.stage import Stage
from perdure.scenarios.stories.victims import Victim, hosts_in, supervisor_in
from perdure.scenarios.stories.watchers import Scene

LOOK_S: Final = 0.25  # between two looks when nothing is due
AIM_S: Final = 0.05  # while a kill is due soon
SIGHT_S: Final = 0.02  # while a recovery is measured
RECOVERY_MAX_S: Final = 120.0
DUE_SHARE: Final = 0.7  # of the work, in which the kills are due; the rest is for late ones
PRESSING_SHARE: Final = 0.5  # of that rest; when no more is left, kills follow at once

Due = list[tuple[int, str]]
"""Kinds of processes to kill, each after so many ended pieces of work."""


class Directed(Scenario):
    """A scenario whose kills are due by progress. `scene` is what its watcher sees."""

    scene: Scene

    @abstractmethod
    async def look(self) -> Scene: ...

    @abstractmethod
    def is_over(self, scene: Scene) -> bool: ...

    @abstractmethod
    def hosts_of(self, kind: str, overview: dict[str, Any]) -> set[str]:
        """The hosts of which one dies when this kind is due."""

    def wake(self, kinds: set[str]) -> None:
        """Called when no process of these kinds can be killed: they may sleep."""

    async def strike(self, stage: Stage, kind: str, victim: Victim, aside: str) -> None:
        """Kill."""
        await self.kill(stage, kind, victim)

    def recovered(self, took_ms: float) -> None:
        """Everything that the process carried runs again."""
        self.scene.recovery_ms.append(round(took_ms, 1))


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
    """Directs one play. `due` holds the kills that are left."""

    def __init__(self, stage: Stage, plot: Directed, due: Due, seed: int) -> None:
        self.due = due
        self._stage, self._plot, self._watcher = stage, plot, plot.watcher
        self._die = random.Random(f"{seed} victims")
        self._killed: set[str] = set()
        self._shown_s, self._looks_s = -math.inf, (0.0, 0.0)

    async def direct(self) -> None:
        while not self._plot.is_over(scene := await self._look()):
            if self.due and (scene.ended >= self.due[0][0] or self._is_pressing(scene)):
                await self._strike(scene)
            await asyncio.sleep(self._pause(AIM_S if self.due else LOOK_S))

    def _is_pressing(self, scene: Scene) -> bool:
        """Whether so little work is left that the remaining kills must follow now."""
        rest = scene.requested * (1 - DUE_SHARE) * PRESSING_SHARE
        return bool(self.due) and scene.requested - scene.ended <= max(rest, 1)

    async def _look(self) -> Scene:
        asked_s = self._stage.now_s()
        scene = await self._plot.look()
        now_s = self._stage.now_s()
        self._looks_s = (self._looks_s[1], now_s - asked_s)
        if now_s - self._shown_s >= LOOK_S:
            self._shown_s = now_s
            self._watcher.show(scene)
        return scene

    def _pause(self, seconds: float) -> float:
        """At least three times as long as a look takes. A look that waited for a supervisor does not count."""
        return max(seconds, 3 * min(self._looks_s))

    async def _strike(self, scene: Scene) -> None:
        """Kill, and wait for the recovery. Without a victim the next look tries again."""
        for place, (_, kind) in enumerate(self.due):
            victim = self._choose(kind, scene.overview)
            if victim is not None and (kind != "cluster" or place == 0):
                break
        else:
            self._plot.wake({kind for _, kind in self.due})
            return
        self._take_turn(place)
        loss = Loss.of(kind, {victim.name}, scene.overview)
        killed_s = self._stage.now_s()
        self._killed.add(victim.name)
        await self._plot.strike(self._stage, kind, victim, f": {loss.told}")
        await self._recover(loss, killed_s)

    def _take_turn(self, place: int) -> None:
        """Take this kill out of those that are due. Whatever was before it is late, and stays so: only the kinds move on."""
        kinds = [kind for _, kind in self.due]
        kinds.pop(place)
        self.due = [(at, kind) for (at, _), kind in zip(self.due[1:], kinds, strict=True)]

    async def _recover(self, loss: Loss, killed_s: float) -> None:
        while not loss.is_mended((scene := await self._look()).overview):
            if self._is_pressing(scene):
                self._watcher.say("little work is left, so the next kill does not wait for that")
                return
            if self._stage.now_s() - killed_s > RECOVERY_MAX_S:
                self._watcher.say(f"not everything was at work again after {RECOVERY_MAX_S:.0f} s")
                break
            await asyncio.sleep(self._pause(SIGHT_S))
        took_ms = (self._stage.now_s() - killed_s) * 1000
        self._plot.recovered(took_ms)
        self._watcher.say(f"everything is at work again after {took_ms:.0f} ms")

    def _choose(self, kind: str, overview: dict[str, Any]) -> Victim | None:
        if kind in ("supervisor", "cluster"):
            return supervisor_in(overview)
        hosts = hosts_in(overview)
        found = sorted(self._plot.hosts_of(kind, overview) & hosts.keys() - self._killed)
        return hosts[self._die.choice(found)] if found else None
