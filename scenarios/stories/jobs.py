"""The story of `perdure run jobs`: desks accept jobs, twice; some are cancelled; processes die; and in the end each job is accounted for.

The director looks at how far the desks are, and strikes when as much is done as the seed has drawn. What the desks have accepted needs
nobody who remembers it: whoever plays the same seed on the same directory again finds the same jobs, and carries on.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from perdure.scenarios.stories.job_desk import Job, JobDesk, Progress, Report, differences, draw_jobs
from perdure.scenarios.stories.stage import Stage, Victim

LOOK_S: Final = 0.5
LOOK_SHARE: Final = 3  # looking is work for the desks, too: never more than a quarter of their time
BATCH: Final = 200  # jobs accepted in one transaction
CALM_S: Final = 1.0  # between two kills
DUE_SHARE: Final = 0.8  # of the work, in which the kills are due
COMPLAINTS_MAX: Final = 20
VICTIMS: Final = ("desk", "supervisor")


class Watcher(Protocol):
    """Who looks on."""

    def say(self, text: str) -> None:
        """Something happened."""


@dataclass(kw_only=True)
class Order:
    """What was ordered. `spread_s` is over how many seconds the work is spread, so that there is something to kill."""

    jobs: int
    desks: int
    kills: int
    seed: int
    spread_s: float


@dataclass
class Outcome:
    """What came of it."""

    order: Order
    seconds: float = 0.0
    kills: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    fired: int = 0
    served: int = 0
    late_ms: list[int] = field(default_factory=list)
    audit: dict[str, Any] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


class Jobs:
    """One performance."""

    def __init__(self, stage: Stage, order: Order, watcher: Watcher) -> None:
        self._stage, self._order, self._watcher = stage, order, watcher
        self._die = random.Random(f"{order.seed} deaths")
        drawn = draw_jobs(order.jobs, order.seed, order.spread_s)
        self._desks = {f"desk-{order.seed}-{number}": drawn[number :: order.desks] for number in range(order.desks)}
        share = DUE_SHARE / max(order.kills, 1)
        self._due = [(index + self._die.random()) * share for index in range(order.kills)]
        self._outcome = Outcome(order)

    async def play(self) -> Outcome:
        """Play to the end."""
        began_s = self._stage.now_s()
        await asyncio.gather(*(self._accept(desk, jobs) for desk, jobs in self._desks.items()))
        self._watcher.say(f"{self._order.jobs} jobs are accepted by {len(self._desks)} desks")
        working = asyncio.gather(*(self._trouble(desk, jobs) for desk, jobs in self._desks.items()))
        try:
            await self._direct()
            await working
        finally:
            working.cancel()
        await self._harvest()
        self._outcome.seconds = self._stage.now_s() - began_s
        return self._outcome

    async def _accept(self, desk: str, jobs: list[Job]) -> None:
        for first in range(0, len(jobs), BATCH):
            await self._stage.call(JobDesk, desk, "accept", jobs[first : first + BATCH])

    async def _trouble(self, desk: str, jobs: list[Job]) -> None:
        """Ask for everything a second time, as a provider would that has heard no answer, and cancel what nobody wants any more."""
        await self._accept(desk, jobs)
        cancelled = [job.key for job in jobs if job.kind == "cancelled"]
        await self._stage.call(JobDesk, desk, "cancel", cancelled)

    async def _direct(self) -> None:
        struck_s, said = -math.inf, -1
        while True:
            began_s = self._stage.now_s()
            told: list[Progress] = await asyncio.gather(
                *(self._stage.call(JobDesk, desk, "progress") for desk in self._desks)
            )
            looked_s = self._stage.now_s() - began_s
            left = sum(each.left for each in told)
            share = 1 - left / max(self._order.jobs, 1)
            if int(share * 10) != said:
                said = int(share * 10)
                self._watcher.say(f"{left} jobs are left")
            if not left and not self._due:
                return
            calm = self._stage.now_s() - struck_s >= CALM_S
            if self._due and calm and (share >= self._due[0] or not left):
                self._due.pop(0)
                await self._strike()
                struck_s = self._stage.now_s()
            await self._stage.sleep(max(LOOK_S, LOOK_SHARE * looked_s))

    async def _strike(self) -> None:
        overview = await self._stage.ask("ps", 1)
        kind = VICTIMS[sum(self._outcome.kills.values()) % 2]
        if kind == "supervisor":
            victim = Victim("supervisor", overview["supervisor"]["pid"], overview["supervisor"]["node"])
        else:
            desks = {host for agent, host, _ in overview["agents"] if agent.partition("@")[0] in self._desks}
            hosts = [host for host in overview["hosts"] if host["up"] and host["host"] in desks]
            if not hosts:
                self._due.insert(0, 0.0)
                return
            chosen = self._die.choice(sorted(hosts, key=lambda host: str(host["host"])))
            victim = Victim(chosen["host"], chosen["pid"], chosen["node"])
        self._watcher.say(f"kill {'the host of a desk' if kind == 'desk' else 'the supervisor'} (process {victim.pid})")
        self._outcome.kills[kind] += 1
        await self._stage.kill(victim)

    async def _harvest(self) -> None:
        outcome = self._outcome
        for desk, jobs in self._desks.items():
            told: Report = await self._stage.call(JobDesk, desk, "report")
            outcome.wrong += differences(jobs, told)
            outcome.statuses.update(told.statuses.values())
            outcome.fired += len(told.fired)
            outcome.served += len(told.served)
            outcome.late_ms += [-early_ms for _, early_ms in told.fired]
        outcome.audit = await self._stage.ask("audit")
        if not outcome.audit["balanced"]:
            outcome.wrong.append("the audit does not balance")
        outcome.wrong[COMPLAINTS_MAX:] = [f"… and {len(outcome.wrong) - COMPLAINTS_MAX} more"] * (
            len(outcome.wrong) > COMPLAINTS_MAX
        )
