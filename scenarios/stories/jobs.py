"""`perdure run jobs`: desks accept jobs twice, some jobs are cancelled, processes are killed, and each job is accounted for.

Accepted jobs are durable and follow from the seed, so the same command resumes on the same directory.
"""

from __future__ import annotations

import asyncio
import shlex
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

import typer

from perdure.scenarios.cast.job_desk import Job, JobDesk, JobsLeft, Report, draw_jobs, wrong_jobs
from perdure.scenarios.commands.options import AsJson, Data, World, WorldName
from perdure.scenarios.commands.shown import in_words, percentiles, rate
from perdure.scenarios.faults.chaos import unbalanced
from perdure.scenarios.faults.strikes import Victim
from perdure.scenarios.stories.by_progress import Scene, StruckScenario, draw_kills
from perdure.scenarios.stories.engine import perform
from perdure.scenarios.stories.stage import Stage

JOBS_MAX: Final = 100_000
BATCH: Final = 200  # jobs accepted in one transaction
COMPLAINTS_MAX: Final = 20
KINDS: Final = ("desk", "supervisor")
KILL_S: Final = 2.0  # for a kill and its recovery, with a reserve
SPREAD_LEAST_S: Final = 2.0
STATUSES: Final = ("completed", "error", "aborted", "interrupted")


class Jobs(StruckScenario):
    """The work is spread over some seconds, so that there is something to kill. With `lasting_s` the queues are drained for so long too."""

    name: ClassVar[str] = "jobs"

    def __init__(self, jobs: int, desks: int, kills: int, seed: int, lasting_s: float = 0) -> None:
        super().__init__(seed)
        self._jobs, self._kills_max = jobs, kills
        spread_s = max(SPREAD_LEAST_S, KILL_S * kills, lasting_s)
        drawn = draw_jobs(jobs, seed, spread_s, drained=lasting_s > 0)
        desks = min(desks, jobs)
        self._desks = {f"desk-{seed}-{number}": drawn[number::desks] for number in range(desks)}
        self.scene = Scene(jobs, "jobs", kills=self.kills)
        self._reports: list[Report] = []
        self._audit: dict[str, Any] = {}

    def stopped(self, data: Path) -> str:
        again = ["--jobs", self._jobs, "--desks", len(self._desks), "--seed", self.seed, "--data", data]
        return f"Stopped. `{shlex.join(['perdure', 'run', self.name, *map(str, again)])}` carries on."

    async def play(self, stage: Stage) -> None:
        self._stage, self._began_s = stage, stage.now_s()
        await asyncio.gather(*(self._accept(desk, jobs) for desk, jobs in self._desks.items()))
        self.screen.say(f"{self._jobs} jobs are accepted by {len(self._desks)} desks")
        troubling = asyncio.gather(*(self._trouble(desk, jobs) for desk, jobs in self._desks.items()))
        due = draw_kills(KINDS, self._kills_max, self._jobs, self.seed)
        try:
            await self.direct(stage, due)
            await troubling
        finally:
            troubling.cancel()
        await self._harvest()

    async def _accept(self, desk: str, jobs: list[Job]) -> None:
        for first in range(0, len(jobs), BATCH):
            await self._stage.call(JobDesk, desk, "accept", jobs[first : first + BATCH])

    async def _trouble(self, desk: str, jobs: list[Job]) -> None:
        # As after a lost answer.
        await self._accept(desk, jobs)
        cancelled = [job.key for job in jobs if job.kind == "cancelled"]
        await self._stage.call(JobDesk, desk, "cancel", cancelled)

    async def _harvest(self) -> None:
        for desk, jobs in self._desks.items():
            self._reports.append(await self._stage.call(JobDesk, desk, "report"))
            self.wrong += wrong_jobs(jobs, self._reports[-1])
        self._audit = await self._stage.ask("audit")
        self.wrong += unbalanced(self._audit)
        more = len(self.wrong) - COMPLAINTS_MAX
        if more > 0:
            self.wrong[COMPLAINTS_MAX:] = [f"… and {more} more"]

    # what the kills ask

    async def look(self) -> None:
        asking = (self._stage.call(JobDesk, desk, "progress") for desk in self._desks)
        told: list[JobsLeft] = await asyncio.gather(*asking)
        scene = self.scene
        scene.ended = scene.requested - sum(each.left for each in told)
        scene.overview, scene.seconds = await self._stage.ask("ps", 0), self._stage.now_s() - self._began_s
        self.screen.show(scene)

    def is_over(self) -> bool:
        return self.scene.ended >= self.scene.requested and not self.due

    def hosts_of(self, _kind: str, overview: dict[str, Any]) -> set[str]:
        return {host for agent, host, _ in overview["agents"] if agent.partition("@")[0] in self._desks}

    async def strike(self, stage: Stage, kind: str, victim: Victim, aside: str) -> None:
        # Which fibers were on a host is not known from outside, so nothing is said of what it carried.
        await self.kill(stage, kind, victim)

    # the end

    def figures(self) -> dict[str, Any]:
        statuses = Counter(status for each in self._reports for status in each.statuses.values())
        late_ms = [float(-early_ms) for each in self._reports for _, early_ms in each.fired]
        return {
            "jobs": {"requested": self._jobs, **{status: statuses[status] for status in STATUSES}},
            "schedules": {"fired": len(late_ms), "late_ms": percentiles(late_ms)},
            "queue": {"served": sum(len(each.served) for each in self._reports)},
            "deliveries": {key: value for key, value in self._audit.items() if isinstance(value, int)},
            "kills": {kind: self.kills[kind] for kind in KINDS},
            "seconds": round(self.seconds, 3),
            "jobs_per_second": rate(self._jobs, self.seconds),
        }

    def sentences(self, told: dict[str, Any]) -> list[str]:
        jobs, late = told["jobs"], told["schedules"]["late_ms"]
        statuses = ", ".join(f"{jobs[status]} {status}" for status in STATUSES if jobs[status])
        fired = f"{told['schedules']['fired']} schedules fired"
        if late["p50"] is not None:
            fired += f", {late['p50']:.0f} ms after their time (worst {late['max']:.0f} ms, deaths included)"
        said = [
            f"{jobs['requested']} jobs in {told['seconds']:.1f} s ({told['jobs_per_second']:.3g} a second): {statuses}.",
            f"{fired}; {told['queue']['served']} items of the queue were served in order.",
            f"Killed: {in_words(told['kills'])}.",
        ]
        if told["verified"]:
            said.append("Verified: each job ended as it should, once, with the result of a plain loop.")
        return said


def run_jobs(
    jobs: Annotated[int, typer.Option(min=1, max=JOBS_MAX, help="Number of jobs.")] = 2_000,
    desks: Annotated[int, typer.Option(min=1, max=100, help="Number of agents that accept them.")] = 8,
    kills: Annotated[int, typer.Option(min=0, max=1_000, help="Number of processes to kill.")] = 4,
    seed: Annotated[int, typer.Option(help="Decides the jobs, and which process is killed when.")] = 0,
    world: World = WorldName.RAY,
    data: Data = Path("perdure-data"),
    as_json: AsJson = False,
) -> None:
    """Accept jobs as fibers, schedules and queued items, each under a key, while hosts and the supervisor are killed.

    Every job is accepted twice. Some fail at first and are retried, some fail for good, some are cancelled, some wait for their time, and
    some for their turn. At the end each job must have ended as it should, with one result that equals that of a plain loop. Schedules
    must have fired once and not too early, and the queue must have kept its order. The exit code is 1 if anything differs. To carry on
    what was stopped, give the same command again: jobs are known by their keys.

    With --json the object has jobs (fibers by status), schedules and queue (counts, and late_ms of the schedules), deliveries, kills,
    seconds, jobs_per_second and verified.

    Examples:
        perdure run jobs
        perdure run jobs --jobs 5000 --kills 10 --seed 7 --json
        perdure run jobs --world sim --jobs 300 --kills 10
    """
    perform(Jobs(jobs, desks, kills, seed), world, data, as_json=as_json)
