"""Kills by progress: each is due after an amount of work that the seed draws, so on any machine it happens during the work.

After a kill the scenario waits until everything that the process carried runs again. A kill without a victim changes places with the next
one that has a victim. When little work is left, the remaining kills follow at once, so all of them happen as long as anything lives.
"""

from __future__ import annotations

import asyncio
import random
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar

from perdure import Agent
from perdure.policies import in_turns
from perdure.scenarios.faults.strikes import Overview, Strike, Victim, hosts_in, supervisor_in
from perdure.scenarios.live_view import RunTable, grid, hosts_line
from perdure.scenarios.stories.engine import Scenario
from perdure.scenarios.stories.stage import Stage

RUNS_SHOWN_MAX: Final = 12
LOOK_S: Final = 0.25  # between two looks when nothing is due
AIM_S: Final = 0.05  # while a kill is due soon
SIGHT_S: Final = 0.02  # while a recovery is measured
RECOVERY_MAX_S: Final = 120.0
DUE_SHARE: Final = 0.7  # of the work, in which the kills are due; the rest is for late ones
PRESSING_SHARE: Final = 0.5  # of that rest; when no more is left, kills follow at once

Due = list[tuple[int, str]]
"""Kinds of processes to kill, each after a number of ended pieces of work."""


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


@dataclass
class Scene:
    """The progress of the work. `overview` is the supervisor's (`ps`), with the runs of the scenario only."""

    requested: int
    noun: str = "runs"
    ended: int = 0
    seconds: float = 0.0
    kills: Counter[str] = field(default_factory=Counter)
    recovery_ms: list[float] = field(default_factory=list)
    overview: dict[str, Any] = field(default_factory=dict)
    table: RunTable = field(default_factory=RunTable)

    @property
    def _rate(self) -> str:
        return f"{self.ended / self.seconds if self.seconds else 0.0:.3g} {self.noun}/s"

    def _count(self, status: str) -> int:
        return sum(row["status"] == status for row in self.overview["live"])

    def picture(self, height: int) -> RenderableType:
        overview, audit, took = self.overview, self.overview["audit"], self.recovery_ms
        about: dict[str, RenderableType] = {
            self.noun: ProgressBar(total=self.requested, completed=self.ended, width=50),
            "": f"{self.ended} of {self.requested} ended, {self._count('running')} running, {self._count('starting')} starting, "
            f"{overview['waiting']} waiting for a place",
            "mail": f"{audit['enqueued']} enqueued, {audit['delivered']} delivered, {audit['pending']} pending",
            "kills": ", ".join(f"{count} {kind}" for kind, count in self.kills.items()) or "none yet",
            "recovery": f"last {took[-1]:.0f} ms, worst {max(took):.0f} ms" if took else "–",
            "rate": f"{self._rate} after {self.seconds:.1f} s, supervisor life {overview['epoch']}",
        }
        runs = self.table.table(overview["live"], min(height - len(about) - 3, RUNS_SHOWN_MAX), len(overview["live"]))
        return Group(grid(about), runs, hosts_line(overview))

    def line(self) -> str:
        starting, running = (f"{self._count(status)} {status}" for status in ("starting", "running"))
        parts = [
            f"{self.seconds:6.1f} s",
            f"{self.ended}/{self.requested} ended",
            *([starting, running] if self.noun == "runs" else []),
            f"{self.overview['audit']['pending']} in the mail",
            f"{sum(host['up'] for host in self.overview['hosts'])} hosts",
            f"{self.kills.total()} kills",
            self._rate,
        ]
        return "  ".join(parts)


class StruckScenario(Scenario):
    """Work during which processes are killed. `due` holds the kills that are left, and `scene` how far the work is."""

    scene: Scene
    due: Due
    waking: asyncio.Task[Any] | None = None

    @abstractmethod
    async def look(self) -> None:
        """Bring the scene up to date, and show it."""

    @abstractmethod
    def is_over(self) -> bool:
        """Whether the work was over by the last look."""

    @abstractmethod
    def hosts_of(self, kind: str, overview: Overview) -> set[str]:
        """The hosts of which one dies when this kind is due."""

    def wake(self, kinds: set[str]) -> None:
        """No process of these kinds can be killed: they may sleep."""

    def wake_by(self, stage: Stage, agent_class: type[Agent], name: str, method: str) -> None:
        if self.waking is None or self.waking.done():
            self.waking = asyncio.get_running_loop().create_task(stage.call(agent_class, name, method))
            self.waking.add_done_callback(lambda done: done.cancelled() or done.exception())  # it was only to wake it

    async def strike(self, stage: Stage, kind: str, victim: Victim, aside: str) -> None:
        await self.kill(stage, kind, victim, aside)

    async def direct(self, stage: Stage, due: Due) -> None:
        self.due, self._victims = due, random.Random(f"{self.seed} victims")
        self._killed: set[str] = set()
        self._looks_s = (0.0, 0.0)
        while True:
            await self._look_on(stage)
            if self.is_over():
                return
            if self.due and (self.scene.ended >= self.due[0][0] or self._is_pressing()):
                await self._strike(stage, self.scene.overview)
            await asyncio.sleep(self._pause(AIM_S if self.due else LOOK_S))

    def _is_pressing(self) -> bool:
        rest = self.scene.requested * (1 - DUE_SHARE) * PRESSING_SHARE
        return bool(self.due) and self.scene.requested - self.scene.ended <= max(rest, 1)

    async def _look_on(self, stage: Stage) -> None:
        asked_s = stage.now_s()
        await self.look()
        self._looks_s = (self._looks_s[1], stage.now_s() - asked_s)

    def _pause(self, seconds: float) -> float:
        # At least three times as long as a look takes. One that waited for a supervisor does not count.
        return max(seconds, 3 * min(self._looks_s))

    async def _strike(self, stage: Stage, overview: Overview) -> None:
        # Without a victim the next look tries again.
        for place, (_, kind) in enumerate(self.due):
            victim = self._choose(kind, overview)
            if victim is not None and (kind != "cluster" or place == 0):
                break
        else:
            self.wake({kind for _, kind in self.due})
            return
        kinds = [kind for _, kind in self.due]
        kinds.pop(place)  # what was before it is late, and stays so: only the kinds move on
        self.due = [(at, kind) for (at, _), kind in zip(self.due[1:], kinds, strict=True)]
        strike = Strike.of(kind, {victim: ""}, overview, stage.now_s())
        self._killed.add(victim.name)
        await self.strike(stage, kind, victim, f": {strike}")
        await self._recover(stage, strike)

    async def _recover(self, stage: Stage, strike: Strike) -> None:
        await self._look_on(stage)
        while not strike.has_recovered(self.scene.overview, now_s := stage.now_s()):
            if self._is_pressing():
                self.screen.say("little work is left, so the next kill does not wait for that")
                return
            if now_s - strike.at_s > RECOVERY_MAX_S:
                self.screen.say(f"not everything was at work again after {RECOVERY_MAX_S:.0f} s")
                break
            await asyncio.sleep(self._pause(SIGHT_S))
            await self._look_on(stage)
        took_ms = (now_s - strike.at_s) * 1000
        self.scene.recovery_ms.append(round(took_ms, 1))
        self.screen.say(f"everything is at work again after {took_ms:.0f} ms")

    def _choose(self, kind: str, overview: Overview) -> Victim | None:
        if kind in ("supervisor", "cluster"):
            return supervisor_in(overview)
        hosts = hosts_in(overview)
        found = sorted(self.hosts_of(kind, overview) & hosts.keys() - self._killed)
        return hosts[self._victims.choice(found)] if found else None
