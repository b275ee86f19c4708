"""The story of `perdure run fan-out`: one child agent per file, and a death every now and then.

Theory of operation
-------------------
There are two coroutines. The *work* asks the census for its files, and may be asked for again after any death: `take` counts only
once, and an awaited census is a run under an id of its own. The *director* looks at the supervisor's overview, strikes when as many
runs have ended as the seed has drawn, waits until everything that the dead process carried is at work again, and looks on. Both see
the world through a `Stage`, so the same story plays under Ray and in the simulation.

A kill is due by progress and not by time, so that it happens in the midst of the work on any machine. A kill for which there is nobody
just now changes places with the next one that has a victim. When little work is left the kills that are left come at once, one upon the
other, and do not wait for recoveries; so as long as a child lives, all that were asked for happen. Those that do not are told.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from perdure.scenarios.stories.census import Census, CensusOrder, SourceFile, files_for
from perdure.scenarios.stories.stage import Stage, Victim

Kind = Literal["child", "parent", "supervisor", "cluster"]
KINDS: Final[tuple[Kind, ...]] = ("child", "parent", "supervisor", "cluster")

LOOK_S: Final = 0.25  # between two looks when nothing is due
AIM_S: Final = 0.05  # while a kill is due soon
SIGHT_S: Final = 0.02  # while a recovery is measured
RECOVERY_MAX_S: Final = 120.0
DUE_SHARE: Final = 0.7  # of the work, in which the kills are due; what is left of it is for those that were late
PRESSING_SHARE: Final = 0.5  # of that rest; when no more is left, kills are made at once
KILL_S: Final = 2.0  # the time that a kill and its recovery take, and then some
SLOWNESS: Final = 0.5  # of the time that the world took to start, for a kill on a slow machine
MAIL: Final = ("enqueued", "delivered", "superseded", "suppressed", "parked", "pending")


@dataclass(kw_only=True)
class Order:
    """A fan-out as it was ordered.

    `number` tells those of one directory apart, and names the parent agent. Children rest over their files, each a little
    longer than the one before, up to `pace_s` seconds: so the ends are spread, and there is something left to kill.
    """

    children: int
    kills: int = 0
    seed: int = 0
    awaited: bool = False
    cold_restart: bool = False
    pace_s: float = 0.0
    number: int = 1


class Watcher(Protocol):
    """Who looks on."""

    def show(self, scene: Scene) -> None:
        """The state of affairs, some times a second."""

    def say(self, text: str) -> None:
        """Something happened."""


@dataclass
class Scene:
    """What a watcher sees. `overview` is the supervisor's (`ps`), narrowed to what belongs to the fan-out."""

    requested: int
    ended: int = 0
    seconds: float = 0.0
    kills: Counter[str] = field(default_factory=Counter)
    recovery_ms: list[float] = field(default_factory=list)
    overview: dict[str, Any] = field(default_factory=dict)


@dataclass
class Progress:
    """What must outlive the command, so that another one can carry on: the mail before it began, and what was killed so far."""

    before: dict[str, int] | None = None
    struck: list[str] = field(default_factory=list)
    recovery_ms: list[float] = field(default_factory=list)
    seconds: float = 0.0


def draw_kills(order: Order) -> list[tuple[int, Kind]]:
    """Who dies when: after how many ended runs, spread over the first part of the work, every kind before any kind twice."""
    die = random.Random(order.seed)
    kinds: list[Kind] = []
    while len(kinds) < order.kills:
        kinds += die.sample(KINDS[:3], 3)
    count = order.kills
    due = [
        (int((index + die.random()) / max(count, 1) * order.children * DUE_SHARE), kind)
        for index, kind in enumerate(kinds[:count])
    ]
    if order.cold_restart:
        due.append((order.children // 2, "cluster"))
    return sorted(due, key=lambda each: each[0])


def left_of(drawn: list[tuple[int, Kind]], struck: list[str]) -> list[tuple[int, Kind]]:
    """The kills that are still to be made: as many of each kind as were drawn and not made, the last of the times that were drawn."""
    made = Counter(struck)
    kinds: list[Kind] = []
    for _, kind in drawn:
        if made[kind]:
            made[kind] -= 1
        else:
            kinds.append(kind)
    times = [due for due, _ in drawn][len(drawn) - len(kinds) :]
    return list(zip(times, kinds, strict=True))


def pace_for(order: Order, start_s: float = 0.0) -> float:
    """Over how many seconds the ends of the children should be spread, so that there is time for every kill and its recovery."""
    kills = order.kills + 4 * order.cold_restart
    return kills * max(KILL_S, SLOWNESS * start_s)


def paced(order: Order) -> list[SourceFile]:
    """The files, and how long to rest over each."""
    step_ms = order.pace_s * 1000 / order.children
    return [
        file.model_copy(update={"rest_ms": int(step_ms * (index + 1))})
        for index, file in enumerate(files_for(order.children))
    ]


class FanOut:
    """One performance."""

    def __init__(
        self, stage: Stage, order: Order, progress: Progress, watcher: Watcher, save: Callable[[], None] = lambda: None
    ) -> None:
        self.stage, self.order, self.progress, self.watcher, self._save = stage, order, progress, watcher, save
        self.name = f"fan-out-{order.number}"
        self.files = paced(order)
        self.scene = Scene(order.children, kills=Counter(progress.struck), recovery_ms=progress.recovery_ms)
        self._die = random.Random(f"{order.seed} victims")
        self._due = left_of(draw_kills(order), progress.struck)
        self._killed: set[str] = set()
        self._work: asyncio.Task[Any] | None = None
        self._shown_s, self._looks_s = -math.inf, (0.0, 0.0)
        self._call: asyncio.Task[Any] | None = None
        self._earlier_s, self._began_s = progress.seconds, stage.now_s()

    # the work

    async def play(self) -> dict[str, Any]:
        """Play to the end and return what was counted, delivered and asked for (`audit`, `runs`, `totals`, …)."""
        if self.progress.before is None:
            audit = await self.stage.ask("audit")
            self.progress.before = {key: audit[key] for key in MAIL}
            self._save()
        self._begin_work()
        try:
            await self._direct()
            return await self._harvest()
        finally:
            self._end_work()
            self.progress.seconds = self._seconds()
            self._save()

    def _begin_work(self) -> None:
        order = CensusOrder(files=self.files)
        work = (
            self.stage.run(Census, order, self.name)
            if self.order.awaited
            else self.stage.call(Census, self.name, "take", order)
        )
        self._work = asyncio.get_running_loop().create_task(work)

    def _end_work(self) -> None:
        for task in (self._work, self._call):
            if task is not None:
                task.cancel()

    def _seconds(self) -> float:
        return self._earlier_s + self.stage.now_s() - self._began_s

    # the director

    async def _direct(self) -> None:
        while True:
            scene = await self._look()
            if self._is_over(scene):
                return
            if self._due and (scene.ended >= self._due[0][0] or self._is_pressing(scene)):
                await self._strike(scene)
            await self.stage.sleep(self._pause(AIM_S if self._due else LOOK_S))

    def _is_pressing(self, scene: Scene) -> bool:
        """Whether so little work is left that the kills which are left must be made now, or there will be nobody to kill."""
        rest = scene.requested * (1 - DUE_SHARE) * PRESSING_SHARE
        return bool(self._due) and scene.requested - scene.ended <= max(rest, 1)

    def _is_over(self, scene: Scene) -> bool:
        assert self._work is not None
        if self._work.done():
            self._work.result()  # what it raises ends the story
        if self.order.awaited:
            return self._work.done()
        return self._work.done() and scene.ended >= scene.requested and scene.overview["audit"]["pending"] == 0

    async def _look(self) -> Scene:
        asked_s = self.stage.now_s()
        overview = await self.stage.ask("ps", self.order.children + 1)
        self._looks_s = (self._looks_s[1], self.stage.now_s() - asked_s)
        scene = self.scene
        overview["live"] = [row for row in overview["live"] if self._is_ours(row)]
        scene.overview, scene.seconds = overview, self._seconds()
        scene.ended = max(scene.ended, self._ended(overview))
        if self.stage.now_s() - self._shown_s >= LOOK_S:
            self._shown_s = self.stage.now_s()
            self.watcher.show(scene)
        return scene

    def _pause(self, seconds: float) -> float:
        """Looking is work for the supervisor too: never more than a quarter of its time. A look that waited for its next life was none."""
        return max(seconds, 3 * min(self._looks_s))

    def _is_ours(self, row: dict[str, Any]) -> bool:
        return self.name in (row["run_id"], row["parent"].partition("@")[0])

    def _ended(self, overview: dict[str, Any]) -> int:
        """How many runs have ended: each end is a mail, or is counted by the awaited run itself."""
        if not self.order.awaited:
            assert self.progress.before is not None
            return int(overview["audit"]["enqueued"] - self.progress.before["enqueued"])
        own = next((row for row in overview["live"] if row["run_id"] == self.name), None)
        fraction = ((own or {}).get("progress") or {}).get("fraction") or 0.0
        return round(fraction * self.order.children)

    # deaths

    async def _strike(self, scene: Scene) -> None:
        """Kill, and wait until what was killed is at work again. If there is nobody to kill just now, the next look tries again."""
        for place, (_, kind) in enumerate(self._due):
            victim = self._choose(kind, scene.overview)
            if victim is not None and (kind != "cluster" or place == 0):
                break
        else:
            if any(kind == "parent" for _, kind in self._due):
                self._call_parent()
            return
        self._take_turn(place)
        loss = Loss.of(kind, victim.name, scene.overview)
        self.watcher.say(f"kill {_named(kind, victim)}: {loss.told}")
        killed_s = self.stage.now_s()
        if kind == "cluster":
            self._end_work()
            await self.stage.cold_restart()
            self._begin_work()
        else:
            self._killed.add(victim.name)
            await self.stage.kill(victim)
        self.scene.kills[kind] += 1
        self.progress.struck.append(kind)
        self._save()
        await self._recover(loss, killed_s)

    def _call_parent(self) -> None:
        """Wake the parent, which sleeps while nothing happens: who sleeps is nowhere, and cannot be killed."""
        if not self.order.awaited and (self._call is None or self._call.done()):
            call = self.stage.call(Census, self.name, "report")
            self._call = asyncio.get_running_loop().create_task(call)
            self._call.add_done_callback(lambda done: done.cancelled() or done.exception())  # it was only to wake it

    def _take_turn(self, place: int) -> None:
        """Take this kill out of those that are due. Whoever was before it is late, and stays so: only the kinds move on."""
        kinds = [kind for _, kind in self._due]
        kinds.pop(place)
        self._due = [(due, kind) for (due, _), kind in zip(self._due[1:], kinds, strict=True)]

    async def _recover(self, loss: Loss, killed_s: float) -> None:
        while not loss.is_mended((scene := await self._look()).overview):
            if self._is_pressing(scene):
                self.watcher.say("little work is left, so the next kill does not wait for that")
                return
            if self.stage.now_s() - killed_s > RECOVERY_MAX_S:
                self.watcher.say(f"not everything was at work again after {RECOVERY_MAX_S:.0f} s")
                break
            await self.stage.sleep(self._pause(SIGHT_S))
        took_ms = (self.stage.now_s() - killed_s) * 1000
        self.progress.recovery_ms.append(round(took_ms, 1))
        self._save()
        self.watcher.say(f"everything is at work again after {took_ms:.0f} ms")

    def _choose(self, kind: Kind, overview: dict[str, Any]) -> Victim | None:
        if kind in ("supervisor", "cluster"):
            return Victim("supervisor", overview["supervisor"]["pid"], overview["supervisor"]["node"])
        hosts = {
            host["host"]: Victim(host["host"], host["pid"], host["node"]) for host in overview["hosts"] if host["up"]
        }
        parents = {host for agent, host, _ in overview["agents"] if agent.partition("@")[0] == self.name}
        busy = {row["host"] for row in overview["live"] if row["status"] == "running" and row["run_id"] != self.name}
        chosen = parents if kind == "parent" else (busy - parents or busy)
        found = sorted(chosen & hosts.keys() - self._killed)
        return hosts[self._die.choice(found)] if found else None

    # the end

    async def _harvest(self) -> dict[str, Any]:
        """What is known at the end."""
        assert self._work is not None
        assert self.progress.before is not None
        seconds = self._seconds()
        told: dict[str, Any] = {"seconds": seconds, "audit": await self.stage.ask("audit")}
        if self.order.awaited:
            told["result"] = self._work.result()
        else:
            told["report"] = await self.stage.call(Census, self.name, "report")
        rows = await self.stage.ask("list", self.stage.agent_id(Census, self.name), None, None, self.order.children + 1)
        told["runs"] = Counter(row["status"] for row in rows)
        told["left_out"] = [kind for _, kind in self._due]
        self.watcher.show(self.scene)
        return told


@dataclass
class Loss:
    """What a process carried when it was killed, and so what must be seen at work again."""

    epoch: int | None
    runs: dict[str, int]
    agents: dict[str, int]

    @classmethod
    def of(cls, kind: Kind, name: str, overview: dict[str, Any]) -> Loss:
        """From the last look before the kill."""
        if kind == "supervisor":
            return cls(overview["epoch"], {}, {})
        everything = kind == "cluster"
        runs = {
            row["run_id"]: row["attempt"]
            for row in overview["live"]
            if row["host"] and (everything or row["host"] == name)
        }
        parents = {row["parent"] for row in overview["live"]}
        agents = {
            agent: incarnation
            for agent, host, incarnation in overview["agents"]
            if agent in parents and host and (everything or host == name)
        }
        return cls(overview["epoch"] if everything else None, runs, agents)

    @property
    def told(self) -> str:
        """In words."""
        if self.epoch is not None and not self.runs:
            return "nobody decides anything now"
        runs = "1 run was" if len(self.runs) == 1 else f"{len(self.runs)} runs were"
        return f"{runs} on it" + (", and their parent" if self.agents else "")

    def is_mended(self, overview: dict[str, Any]) -> bool:
        """Whether all of it is at work again, or has ended."""
        if self.epoch is not None and overview["epoch"] <= self.epoch:
            return False
        rows = {row["run_id"]: row for row in overview["live"]}
        lives = {agent: incarnation for agent, host, incarnation in overview["agents"] if host}
        again = all(_is_again(rows.get(run_id), attempt) for run_id, attempt in self.runs.items())
        return again and all(
            lives.get(agent, incarnation) > incarnation or not rows for agent, incarnation in self.agents.items()
        )


def _is_again(row: dict[str, Any] | None, attempt: int) -> bool:
    return row is None or (row["attempt"] > attempt and row["status"] == "running")


def _named(kind: Kind, victim: Victim) -> str:
    if kind == "cluster":
        return "everything, Ray included"
    who = {
        "child": f"host {victim.name}",
        "parent": f"the parent's host {victim.name}",
        "supervisor": "the supervisor",
    }[kind]
    return f"{who} (process {victim.pid})" if victim.pid else who
