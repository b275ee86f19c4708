"""`perdure run jobs`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from perdure.scenarios.commands.options import AsJson, Data, World, WorldName
from perdure.scenarios.stories.engine import perform
from perdure.scenarios.stories.jobs import Jobs

JOBS_MAX: Final = 100_000


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
