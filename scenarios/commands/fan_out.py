"""`perdure run fan-out`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from perdure.ledger import BadRequest
from perdure.scenarios.cast.census import standard_library
from perdure.scenarios.commands.options import AsJson, Data, World, WorldName
from perdure.scenarios.stories.engine import perform
from perdure.scenarios.stories.fan_out import FanOut
from perdure.scenarios.stories.fan_out_record import Order

CHILDREN_MAX: Final = 200_000  # as many as may wait for a place
KILLS_MAX: Final = 1_000
PACE_MAX_S: Final = 3_600.0


def run_fan_out(
    children: Annotated[
        int | None, typer.Option(min=1, max=CHILDREN_MAX, help="Number of child agents; by default one for each file.")
    ] = None,
    kills: Annotated[
        int, typer.Option(min=0, max=KILLS_MAX, help="Number of processes to kill: hosts and the supervisor.")
    ] = 3,
    seed: Annotated[int, typer.Option(help="Decides which process is killed when.")] = 0,
    awaited: Annotated[
        bool, typer.Option("--awaited", help="The parent awaits its runs; by default they are detached.")
    ] = False,
    cold_restart: Annotated[
        bool, typer.Option("--cold-restart", help="Half-way, kill everything, Ray included, and start again.")
    ] = False,
    pace: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=PACE_MAX_S,
            help="Seconds over which the children end, because each rests over its file;"
            " by default 2 for each kill, and more on a machine that is slow to start.",
        ),
    ] = None,
    world: World = WorldName.RAY,
    address: Annotated[
        str | None, typer.Option(help="A Ray cluster to join, as host:port; by default one is started.")
    ] = None,
    data: Data = Path("perdure-data"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Carry on the fan-out that was interrupted in this directory.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Count the Python standard library with one child agent for each file, while processes are killed.

    It kills the host of a child, the host of the parent, and the supervisor, each kind once before any is repeated. When little work is
    left, the remaining kills follow at once; kills that could not be made are reported. At the end the result is compared with a plain loop
    over the same files, and every completion is accounted for. The exit code is 1 if anything differs.

    With --json the object has runs and deliveries (counts), kills and kills_left_out (counts by kind), seconds, runs_per_second,
    recovery_ms (p50, p99 and max of the time until everything was at work again), and verified.

    Examples:
        perdure run fan-out
        perdure run fan-out --children 60 --kills 5 --seed 7 --awaited
        perdure run fan-out --cold-restart --data ./census --json
        perdure run fan-out --resume --data ./census
        perdure run fan-out --address 10.0.0.1:6379 --data /mnt/perdure
        perdure run fan-out --world sim --children 20 --kills 10
    """
    count = len(standard_library()) if children is None else children
    order = Order(children=count, kills=kills, seed=seed, awaited=awaited, cold_restart=cold_restart)
    if world is WorldName.SIM:
        for given, option in ((resume, "resume"), (address, "address")):
            if given:
                raise BadRequest(option, "the simulated world keeps nothing and joins nothing; use it with --world ray")
    if address is not None and not address.strip():
        raise BadRequest("address", "is blank; name host:port of a Ray cluster, or leave it out")
    if cold_restart and address:
        raise BadRequest(
            "cold-restart", f"it would kill the whole cluster at {address}, which others may use; leave --address out"
        )
    perform(FanOut(order, pace, resume=resume), world, data, address, as_json=as_json)
