"""The swarm: many small worlds, each with a story and a weather drawn from its seed, checked all the way, and replayed by one line.

Safety is checked under fire: after every few steps, and at every commit. Then everything heals, the story is asked for again under the
same ids, and within a bound of virtual time nothing may be left to do. The same seed gives the same digest.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from random import Random
from time import perf_counter

from actors import Client, KillPoint
from actors.sim_world import Span, Stuck
from ledger import PerdureError
from policies import Limits
from scenarios.simulation import Laboratory, Violation, Weather
from scenarios.stories import STORIES, Script, play_parts

FIRE_S = 25.0
CALM_MS = 900_000.0
KILL_SHARE = 0.7
KILL_RATE_MAX = 0.5
MIXTURE = ("trees", "crowds", "budgets", "twins", "meddling", "everything")

SWIFT = Limits(
    hosts_max=3,
    hosts_warm=1,
    idle_ms=1_000,
    orphan_ms=20_000,
    heartbeat_ms=1_000,
    sweep_ms=1_000,
    retry_most_ms=4_000,
    attempts_max=50,
    recovery_work_max=1_000,
)


@dataclass(frozen=True)
class SeedReport:
    """What came of one seed. `problem` is empty if all was well; `replay` is the command that plays it again."""

    seed: int
    story: str
    digest: str
    kills: int
    visits: int
    seconds: float
    problem: str = ""
    trace: str = field(default="", compare=False)

    @property
    def ok(self) -> bool:
        """Whether everything held."""
        return not self.problem

    @property
    def replay(self) -> str:
        """The line that plays this seed again."""
        return f"perdure replay {self.seed}" + (f" --story {self.story}" if self.story != story_of(self.seed) else "")


@dataclass
class SwarmReport:
    """What came of all seeds."""

    seeds: int = 0
    kills: int = 0
    visits: int = 0
    seconds: float = 0.0
    failures: list[SeedReport] = field(default_factory=list)
    stories: Counter[str] = field(default_factory=Counter)

    @property
    def ok(self) -> bool:
        """Whether everything held for every seed."""
        return not self.failures

    def add(self, report: SeedReport) -> None:
        """Count one more seed."""
        self.seeds += 1
        self.kills += report.kills
        self.visits += report.visits
        self.stories[report.story] += 1
        if not report.ok:
            self.failures.append(report)


def story_of(seed: int) -> str:
    """The story that a seed draws when none is asked for."""
    return Random(f"story/{seed}").choice(MIXTURE)


def weather_of(seed: int) -> Weather:
    """The weather of a seed: what `Weather.drawn` draws, made to strike more often, because processes return quickly here."""
    die = Random(f"weather/{seed}")
    weather = Weather.drawn(die, intensity=2.0)
    kills = tuple((point, KILL_RATE_MAX * die.random() ** 2) for point in KillPoint if die.random() < KILL_SHARE)
    return replace(
        weather,
        kills=kills if weather != Weather.calm() else (),
        spawn_ms=Span(5, 150),
        restart_ms=Span(5, 150),
        lost_noticed_ms=Span(50, 800),
        partition_ms=Span(100, 5_000),
        hang_ms=Span(50, 5_000),
    )


def play(seed: int, story: str | None = None) -> SeedReport:
    """Play one seed to its end, and say what came of it. Nothing but a mistake in here comes out as an exception."""
    name = story or story_of(seed)
    begun_s = perf_counter()
    laboratory = Laboratory(seed, weather_of(seed), SWIFT)
    problem = trace = ""
    with laboratory:
        try:
            _play(laboratory, seed, name)
        except (PerdureError, Stuck, BaseExceptionGroup, AssertionError) as failure:
            problem = "; ".join(
                [f"{type(failure).__name__}: {str(failure)[:1500]}", *getattr(failure, "__notes__", ())]
            )
            trace = "".join(traceback.format_exception(failure))
    simulation = laboratory.simulation
    return SeedReport(
        seed,
        name,
        simulation.digest(),
        sum(simulation.kills.values()),
        simulation.visit_count,
        perf_counter() - begun_s,
        problem,
        trace,
    )


def _play(laboratory: Laboratory, seed: int, name: str) -> None:
    meddled: dict[str, None] = {}
    complaints: list[str] = []

    async def fire(client: Client) -> None:
        script = Script(client, Random(seed), False, "", meddled, complaints)
        try:
            await asyncio.wait_for(play_parts(STORIES[name], script, seed), FIRE_S)
        except TimeoutError:
            return

    async def calm(client: Client) -> None:
        await play_parts(STORIES[name], Script(client, Random(seed), True, "", meddled, complaints), seed)

    laboratory.run(fire, timeout_ms=CALM_MS)
    laboratory.heal()
    laboratory.run(calm, timeout_ms=CALM_MS)
    laboratory.settle(CALM_MS)
    laboratory.simulation.raise_errors()
    if complaints:
        raise Violation("; ".join(complaints))


def swarm(
    seeds: int,
    first_seed: int = 0,
    *,
    story: str | None = None,
    on_progress: Callable[[SeedReport, SwarmReport], None] | None = None,
    processes: int = 1,
) -> SwarmReport:
    """Play many seeds, in as many processes as asked for, and add up what came of them."""
    total = SwarmReport()
    begun_s = perf_counter()
    wanted = range(first_seed, first_seed + seeds)

    def count(report: SeedReport) -> None:
        total.add(report)
        total.seconds = perf_counter() - begun_s
        if on_progress is not None:
            on_progress(report, total)

    if processes <= 1:
        for seed in wanted:
            count(play(seed, story))
        return total
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for report in pool.map(play, wanted, [story] * seeds, chunksize=4):
            count(report)
    return total
