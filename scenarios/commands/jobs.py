"""`perdure run jobs`."""

from __future__ import annotations

import asyncio
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from perdure.actors import Client
from perdure.scenarios.commands.chat import Words
from perdure.scenarios.commands.options import AsJson, Data, WorldName
from perdure.scenarios.commands.run import SIM_TIMEOUT_MS, tell_end
from perdure.scenarios.exits import code_of
from perdure.scenarios.stories import logbook
from perdure.scenarios.stories.jobs import VICTIMS, Jobs, Order, Outcome
from perdure.scenarios.stories.stage import RayStage, SimStage
from perdure.scenarios.stories.verdict import percentiles
from perdure.scenarios.testing.laboratory import Laboratory

JOBS_MAX: Final = 100_000
STATUSES: Final = ("completed", "error", "aborted", "interrupted")
KILL_S: Final = 2.0  # the time that a kill and its recovery take, and then some


def run_jobs(
    jobs: Annotated[int, typer.Option(min=1, max=JOBS_MAX, help="Number of jobs.")] = 2_000,
    desks: Annotated[int, typer.Option(min=1, max=100, help="Number of agents that accept them.")] = 8,
    kills: Annotated[int, typer.Option(min=0, max=1_000, help="Number of processes to kill.")] = 4,
    seed: Annotated[int, typer.Option(help="Decides the jobs, and which process is killed when.")] = 0,
    world: Annotated[WorldName, typer.Option(help="Real processes under Ray, or the simulated world.")] = WorldName.RAY,
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
    order = Order(jobs=jobs, desks=min(desks, jobs), kills=kills, seed=seed, spread_s=max(2.0, KILL_S * kills))
    watcher = Words(silent=as_json)
    if world is WorldName.SIM:
        outcome = _simulated(order, watcher)
    else:
        with logbook.playing(data):
            outcome = _under_ray(order, watcher, data)
    tell_end(_as_object(outcome, str(world)), outcome.wrong, _sentences, as_json=as_json)


def _simulated(order: Order, watcher: Words) -> Outcome:
    with Laboratory(order.seed) as laboratory:

        async def story(client: Client) -> Outcome:
            return await Jobs(SimStage(laboratory, client), order, watcher).play()

        outcome = laboratory.run(story, timeout_ms=SIM_TIMEOUT_MS)
    laboratory.simulation.raise_errors()
    return outcome


def _under_ray(order: Order, watcher: Words, data: Path) -> Outcome:
    try:
        with RayStage(data, None) as stage:
            return asyncio.run(Jobs(stage, order, watcher).play())
    except KeyboardInterrupt as stop:
        again = ["perdure", "run", "jobs", "--jobs", order.jobs, "--desks", order.desks, "--seed", order.seed]
        print(f"\nStopped. `{shlex.join([*map(str, again), '--data', str(data)])}` carries on.", file=sys.stderr)
        raise typer.Exit(code_of(stop)) from None


def _as_object(outcome: Outcome, world: str) -> dict[str, Any]:
    order, seconds = outcome.order, outcome.seconds
    return {
        "scenario": "jobs",
        "world": world,
        "seed": order.seed,
        "jobs": {"requested": order.jobs, **{status: outcome.statuses[status] for status in STATUSES}},
        "schedules": {"fired": outcome.fired, "late_ms": percentiles(list(map(float, outcome.late_ms)))},
        "queue": {"served": outcome.served},
        "deliveries": {key: value for key, value in outcome.audit.items() if isinstance(value, int)},
        "kills": {kind: outcome.kills[kind] for kind in VICTIMS},
        "seconds": round(seconds, 3),
        "jobs_per_second": round(order.jobs / seconds, 1) if seconds else 0.0,
        "verified": not outcome.wrong,
    }


def _sentences(told: dict[str, Any]) -> list[str]:
    jobs, late, kills = told["jobs"], told["schedules"]["late_ms"], told["kills"]
    killed = ", ".join(f"{count} × {kind}" for kind, count in kills.items() if count) or "nothing"
    statuses = ", ".join(f"{jobs[status]} {status}" for status in STATUSES if jobs[status])
    fired = f"{told['schedules']['fired']} schedules fired"
    if late["p50"] is not None:
        fired += f", {late['p50']:.0f} ms after their time (worst {late['max']:.0f} ms, deaths included)"
    said = [
        f"{jobs['requested']} jobs in {told['seconds']:.1f} s ({told['jobs_per_second']:.3g} a second): {statuses}.",
        f"{fired}; {told['queue']['served']} items of the queue were served in order.",
        f"Killed: {killed}.",
    ]
    if told["verified"]:
        said.append("Verified: each job ended as it should, once, with the result of a plain loop.")
    return said
