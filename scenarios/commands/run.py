"""`perdure run fan-out`, and how every scenario tells its end."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from perdure.actors import Client
from perdure.ledger import BadRequest, LedgerError
from perdure.scenarios.commands.options import AsJson, Data, WorldName
from perdure.scenarios.commands.shown import equation
from perdure.scenarios.exits import code_of
from perdure.scenarios.stories import logbook
from perdure.scenarios.stories.census import standard_library
from perdure.scenarios.stories.fan_out import FanOut, Order, pace_for
from perdure.scenarios.stories.live_table import Lines, LiveTable, Silence
from perdure.scenarios.stories.logbook import Logbook
from perdure.scenarios.stories.stage import RayStage, SimStage
from perdure.scenarios.stories.verdict import verdict
from perdure.scenarios.testing.laboratory import Laboratory

SIM_TIMEOUT_MS: Final = 24 * 3_600_000.0
CHILDREN_MAX: Final = 200_000  # as many as may wait for a place
KILLS_MAX: Final = 1_000
PACE_MAX_S: Final = 3_600.0

Sentences = Callable[[dict[str, Any]], list[str]]  # what the object says, for people


def fan_out(
    children: Annotated[
        int | None, typer.Option(min=1, max=CHILDREN_MAX, help="Number of child agents; by default one for each file.")
    ] = None,
    kills: Annotated[
        int,
        typer.Option(min=0, max=KILLS_MAX, help="Number of processes to kill: hosts and the supervisor."),
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
    world: Annotated[WorldName, typer.Option(help="Real processes under Ray, or the simulated world.")] = WorldName.RAY,
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
    order.pace_s = pace if pace is not None else pace_for(order)
    watcher = Silence() if as_json else LiveTable() if sys.stdout.isatty() else Lines()
    if world is WorldName.SIM:
        for given, option in ((resume, "resume"), (address, "address")):
            if given:
                raise BadRequest(option, "the simulated world keeps nothing and joins nothing; use it with --world ray")
        tell_end(*_simulated(order, watcher), _sentences, as_json=as_json)
        return
    if address is not None and not address.strip():
        raise BadRequest("address", "is blank; name host:port of a Ray cluster, or leave it out")
    if cold_restart and address:
        raise BadRequest(
            "cold-restart", f"it would kill the whole cluster at {address}, which others may use; leave --address out"
        )
    with logbook.playing(data):
        try:
            book, object_, wrong = _under_ray(data, address, order, watcher, resume=resume, is_paced=pace is not None)
        except KeyboardInterrupt as stop:
            print(_stopped(data), file=sys.stderr)
            raise typer.Exit(code_of(stop)) from None
        except LedgerError:
            print(_stopped(data), file=sys.stderr)
            raise
        book.finished = True
        book.save()
    tell_end(object_, wrong, _sentences, as_json=as_json)


def _stopped(data: Path) -> str:
    known = logbook.read(data)
    if known is None or known.finished:
        return "\nStopped before it began."
    again = shlex.join(["perdure", "run", "fan-out", "--resume", "--data", str(data)])
    return f"\nStopped. `{again}` carries on."


def _under_ray(
    data: Path, address: str | None, order: Order, watcher: Silence, *, resume: bool, is_paced: bool
) -> tuple[Logbook, dict[str, Any], list[str]]:
    """Play in the cluster. What is refused, or stopped before that is there, leaves an interrupted fan-out as it was."""
    known = logbook.read(data)
    carried = known if resume and known is not None and not known.finished else None
    if resume and carried is None:
        print("There is nothing to resume here, so a new fan-out begins.", file=sys.stderr)
    with RayStage(data, address) as stage:
        if (carried.order if carried is not None else order).cold_restart and not stage.is_own:
            raise BadRequest(
                "cold-restart", f"the cluster of {data} was started by another process; stop that one first"
            )
        if not is_paced:
            order.pace_s = pace_for(order, stage.start_s)
        book = carried if carried is not None else logbook.begin(data, order, known)
        with watcher:
            told = asyncio.run(FanOut(stage, book.order, book.progress, watcher, book.save).play())
    return book, *verdict(book.order, book.progress, "ray", told)


def _simulated(order: Order, watcher: Silence) -> tuple[dict[str, Any], list[str]]:
    book = Logbook(order)
    with Laboratory(order.seed) as laboratory, watcher:

        async def story(client: Client) -> dict[str, Any]:
            return await FanOut(SimStage(laboratory, client), order, book.progress, watcher).play()

        told = laboratory.run(story, timeout_ms=SIM_TIMEOUT_MS)
    laboratory.simulation.raise_errors()
    return verdict(order, book.progress, "sim", told)


def tell_end(told: dict[str, Any], wrong: list[str], sentences: Sentences, *, as_json: bool) -> None:
    """The end of a scenario: the object, or a few sentences; what differs goes to stderr. Exits 1 if anything does."""
    print(json.dumps(told) if as_json else "\n".join(sentences(told)))
    for difference in wrong:
        print(f"differs: {difference}", file=sys.stderr)
    if wrong:
        raise typer.Exit(1)


def _sentences(told: dict[str, Any]) -> list[str]:
    runs, mail, kills, recovery = told["runs"], told["deliveries"], told["kills"], told["recovery_ms"]
    killed = ", ".join(f"{count} × {kind}" for kind, count in kills.items() if count) or "nothing"
    said = [
        f"{runs['completed']} of {runs['requested']} runs completed in {told['seconds']:.1f} s ({told['runs_per_second']:.3g} a second).",
        f"Killed: {killed}."
        + (
            f" At work again after {recovery['p50']:.0f} ms (worst {recovery['max']:.0f} ms)."
            if recovery["max"]
            else ""
        ),
        f"Mail: {equation(mail)}" + f"; {mail['duplicated']} duplicated, {mail['lost']} lost.",
    ]
    left_out = told["kills_left_out"]
    if left_out:
        which = ", ".join(f"{count} × {kind}" for kind, count in left_out.items())
        said.insert(
            2,
            f"Not killed, although asked for: {which}. The work was done before that was due, or had anybody to hit;"
            " more --children or a longer --pace leave time for it.",
        )
    if told["verified"]:
        said.append("Verified: the agents' totals equal those of a plain loop over the same files.")
    return said
