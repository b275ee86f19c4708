"""How every scenario is performed, in one of two worlds.

A subclass of `Scenario` declares what it needs around it (`surroundings`), what happens (`play`), the results (`figures`) and how they read
(`sentences`). It adds each problem to `wrong`, as a sentence. `perform` opens the cluster or the simulated world, lets one scenario at a
time play on a directory, says how to resume after an interruption, and prints the results.

Each scenario has three modules: `NAME.py` declares it, one of `scenarios/cast/` has its agents, and `NAME_checks.py` finds problems.
A new one also needs

- a permanent name for the module of its agents, in `actors/code/permanent_names.py`;
- its command, below the subclass, with examples in the docstring; a row in `scenarios/commands/catalog.py`, and a place in the table of
  commands in `scenarios/README.md`;
- tests in `tests/scenarios`, in the simulated world, and tests that its checks find what is wrong.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, Final

import typer

from perdure import BadRequest, Client, LedgerUnwritable, Limits
from perdure.ledger import LedgerError
from perdure.scenarios.exits import code_of
from perdure.scenarios.faults.strikes import Victim
from perdure.scenarios.live_view import Screen, screen_for
from perdure.scenarios.stories.stage import RayStage, SimStage, Stage
from perdure.scenarios.testing.laboratory import Laboratory, Violation

SIM_TIMEOUT_MS: Final = 48 * 3_600_000.0
LOCK: Final = "scenario.lock"

Play = Callable[[Stage], Awaitable[None]]


class Scenario(ABC):
    """One performance of a scenario.

    Attributes:
        needs_own_cluster: it must start the cluster itself, so that every process inherits its environment.
        limits: those of the runtime that it starts, if they are not the usual ones.
        screen: shows how far it is.
        goes_on: after a broken invariant the next simulated world is played.
    """

    name: ClassVar[str]
    needs_own_cluster: ClassVar[bool] = False
    limits: Limits | None = None
    goes_on: ClassVar[bool] = False

    def __init__(self, seed: int) -> None:
        self.seed, self.screen = seed, Screen()
        self.kills: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.seconds = 0.0

    def surroundings(self, data: Path | None) -> AbstractContextManager[None]:
        """Servers, files and environment for the play. `data` is None in the simulated world."""
        return nullcontext()

    def joined(self, stage: RayStage) -> None:
        """Check the cluster before the play. Raises `BadRequest`."""
        if self.needs_own_cluster and not stage.is_own:
            words = "is served by another process's cluster; stop that one, or give another directory"
            raise BadRequest("data", f"{stage.data} {words}")

    @abstractmethod
    async def play(self, stage: Stage) -> None:
        """Play from beginning to end, and note what is wrong."""

    def simulate(self) -> None:
        """Play in simulated worlds: in one, unless a scenario needs more of them."""
        simulate_in_one_world(self, self.play)

    @abstractmethod
    def figures(self) -> dict[str, Any]:
        """The fields of the JSON object between `seed` and `verified`."""

    @abstractmethod
    def sentences(self, told: dict[str, Any]) -> list[str]:
        """The same in sentences. `told` is the whole object."""

    def stopped(self, data: Path) -> str:
        """What to say after an interruption."""
        return "Stopped."

    async def kill(self, stage: Stage, kind: str, victim: Victim, aside: str = "") -> None:
        self.screen.say(f"kill {_named(kind, victim)}{aside}")
        self.kills[kind] += 1
        await (stage.cold_restart() if kind == "cluster" else stage.kill(victim))


def _named(kind: str, victim: Victim) -> str:
    if kind == "cluster":
        return "everything, Ray included"
    who = "the supervisor" if kind == "supervisor" else f"the {kind}'s host {victim.name}"
    return f"{who} (process {victim.pid})" if victim.pid else who


def perform(
    scenario: Scenario,
    world: str,
    data: Path,
    address: str | None = None,
    *,
    as_json: bool = False,
    take_over: bool = False,
) -> None:
    """Play and print the results: an object or sentences. Problems go to stderr, and the exit code is then 1."""
    scenario.screen = screen_for(as_json=as_json)
    told = simulated(scenario) if world == "sim" else under_ray(scenario, data, address, take_over=take_over)
    print(json.dumps(told) if as_json else "\n".join(scenario.sentences(told)))
    for difference in scenario.wrong:
        print(f"differs: {difference}", file=sys.stderr)
    if scenario.wrong:
        raise typer.Exit(1)


def simulated(scenario: Scenario) -> dict[str, Any]:
    with scenario.surroundings(None), scenario.screen:
        scenario.simulate()
    return _object(scenario, "sim")


def simulate_in_one_world(
    scenario: Scenario, play: Play, begun: Callable[[Laboratory], None] = lambda _laboratory: None, **simulation: Any
) -> None:
    """Play in a simulated world, which must then come to rest with every invariant kept. `begun` gets it first."""
    with Laboratory(scenario.seed, **simulation) as laboratory:
        begun(laboratory)

        async def main(client: Client) -> None:
            await _timed(scenario, play, SimStage(laboratory, client))

        try:
            laboratory.play(main, timeout_ms=SIM_TIMEOUT_MS)
            laboratory.heal()
            laboratory.settle()
            laboratory.simulation.raise_errors()
        except (Violation, ExceptionGroup) as problem:
            scenario.wrong.append(f"the simulated world: {problem}")
            if not scenario.goes_on:
                raise


def under_ray(scenario: Scenario, data: Path, address: str | None, *, take_over: bool) -> dict[str, Any]:
    """Play in a cluster on a directory, and return the object that `--json` prints."""
    with playing(data):
        try:
            played = RayStage(data, address, take_over=take_over, limits=scenario.limits)
            with scenario.surroundings(data), played as stage, scenario.screen:
                scenario.joined(stage)
                asyncio.run(_timed(scenario, scenario.play, stage))
        except KeyboardInterrupt as stop:
            print(f"\n{scenario.stopped(data)}", file=sys.stderr)
            raise typer.Exit(code_of(stop)) from None
        except LedgerError:
            print(f"\n{scenario.stopped(data)}", file=sys.stderr)
            raise
    return _object(scenario, "ray")


async def _timed(scenario: Scenario, play: Play, stage: Stage) -> None:
    began_s = stage.now_s()
    await play(stage)
    scenario.seconds += stage.now_s() - began_s


def _object(scenario: Scenario, world: str) -> dict[str, Any]:
    about = {"scenario": scenario.name, "world": world, "seed": scenario.seed}
    return {**about, **scenario.figures(), "verified": not scenario.wrong}


# one at a time on a directory


@contextmanager
def playing(data: Path) -> Iterator[None]:
    """Let one command at a time play on a directory. Raises `BadRequest` if another one does."""
    try:
        data.mkdir(parents=True, exist_ok=True)
        lock = os.open(data / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as problem:
        raise unwritable(data, problem) from problem
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(lock, 20, 0).decode("ascii", "replace").strip() or "another one"
            raise BadRequest(
                "data",
                f"a scenario is playing on {data} already (process {owner}); watch it by `perdure ps`, or use another --data",
            ) from None
        try:
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        except OSError as problem:
            raise unwritable(data, problem) from problem
        yield
    finally:
        os.close(lock)


def unwritable(data: Path, problem: OSError) -> LedgerUnwritable:
    full = problem.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    advice = "free some space, or name another directory by --data" if full else "name another directory by --data"
    return LedgerUnwritable(str(data), f"it cannot be written: {problem.strerror}", advice)
