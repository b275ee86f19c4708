"""The swarm: many small worlds, each with a story (ours, or yours) and a weather drawn from its seed, checked all the way, and replayed by
one line.

Safety is checked under fire: after every few steps, and at every commit. Then everything heals, the story is asked for again under the
same ids, and within a bound of virtual time nothing may be left to do. The same seed gives the same digest.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from multiprocessing import active_children, get_context
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import perf_counter

from perdure import BadRequest, Client, Limits
from perdure.actors import BUCKET_POINTS, KillPoint
from perdure.actors.ray_world.os_processes import die_with_parent
from perdure.actors.sim_world.simulation import Span, check_no_loop
from perdure.ledger import check_ms, check_whole
from perdure.scenarios.cast.outside import Outside
from perdure.scenarios.swarm.conversations import approvals, around_chats, around_letters, chats, letters
from perdure.scenarios.swarm.play_context import Part, PlayContext
from perdure.scenarios.swarm.stories import STORIES, play_parts, tallies
from perdure.scenarios.testing.laboratory import (
    Laboratory,
    Story,
    Violation,
    Weather,
    begun,
    check_kind,
    finding,
    weathered,
)

FIRE_S = 25.0
CALM_MS = 900_000.0
KILL_SHARE = 0.7
KILL_RATE_MAX = 0.5
ROOTED_FACTS, ROOTED_IDLE_MS = 40, 500  # so that a bucket has a root soon
AHEAD = 8  # seeds that are handed to each process in advance
MIXTURE = (
    "trees",
    "batches",
    "budgets",
    "twins",
    "meddling",
    "everything",
    "chats",
    "approvals",
    "offices",
    "desks",
    "families",
    "letters",
    "joins",
    "waits",
)

AROUND: dict[Part, Callable[[], AbstractContextManager[Outside]]] = {
    chats: around_chats,
    approvals: around_chats,
    letters: around_letters,
}
"""What a part of a story needs outside of the simulated processes."""

SWIFT = Limits(
    hosts_max=3,
    hosts_warm=1,
    idle_ms=1_000,
    orphan_ms=20_000,
    heartbeat_ms=1_000,
    inline_agents_max=2,
    sweep_ms=1_000,
    retry_most_ms=4_000,
    attempts_max=50,
    recovery_work_max=1_000,
    inbox_max=8,
)


@dataclass(frozen=True)
class SeedReport:
    """What came of one seed. `problem` is empty if all was well; `replay` is what plays it again."""

    seed: int
    story: str
    digest: str
    kills: int
    visits: int
    seconds: float
    problem: str = ""
    trace: str = field(default="", compare=False)
    carried: bool = False
    timeout_ms: float | None = CALM_MS
    parked: bool = False

    @property
    def ok(self) -> bool:
        return not self.problem

    @property
    def replay(self) -> str:
        """The line that plays this seed again: a command, or for a story of your own a call."""
        if self.story not in STORIES:
            limit = "" if self.timeout_ms == CALM_MS else f", timeout_ms={self.timeout_ms}"
            options = f"{', carried=True' * self.carried}{limit}{', parked=True' * self.parked}"
            return f"perdure.scenarios.swarm.runner.play({self.seed}, {self.story}{options})"
        drawn = "" if self.story == story_of(self.seed) else f" --story {self.story}"
        return f"perdure replay {self.seed}{drawn}{' --carried' * self.carried}"


@dataclass
class SwarmReport:
    seeds: int = 0
    kills: int = 0
    visits: int = 0
    seconds: float = 0.0
    failures: list[SeedReport] = field(default_factory=list)
    stories: Counter[str] = field(default_factory=Counter)

    @property
    def ok(self) -> bool:
        return not self.failures

    def add(self, report: SeedReport) -> None:
        self.seeds += 1
        self.kills += report.kills
        self.visits += report.visits
        self.stories[report.story] += 1
        if not report.ok:
            self.failures.append(report)


def check_story(story: object) -> None:
    if isinstance(story, str) and story not in STORIES:
        raise BadRequest("story", f"{story!r:.200} is not one of {', '.join(sorted(STORIES))}")


def story_of(seed: int) -> str:
    return Random(f"story/{seed}").choice(MIXTURE)


def weather_of(seed: int, *, carried: bool = False) -> Weather:
    """The weather of a seed: what `Weather.drawn` draws, made to strike more often, because processes return quickly here."""
    die = Random(f"weather/{seed}")
    weather = Weather.drawn(die, intensity=2.0)
    points = (point for point in KillPoint if point not in BUCKET_POINTS)
    kills = tuple((point, KILL_RATE_MAX * die.random() ** 2) for point in points if die.random() < KILL_SHARE)
    weather = replace(weather, kills=kills if weather != Weather.calm() else ())
    if carried:
        weather = weather.with_bucket(Random(f"bucket/{seed}"), intensity=3.0)
    return replace(
        weather,
        spawn_ms=Span(5, 150),
        restart_ms=Span(5, 150),
        lost_noticed_ms=Span(50, 800),
        partition_ms=Span(100, 5_000),
        hang_ms=Span(50, 5_000),
        slow_ms=Span(50, 5_000),
        stop_ms=Span(50, 5_000),
        bucket_silent_ms=Span(100, 2_000),
        bucket_cut_ms=Span(100, 15_000),
        bucket_stands_ms=Span(100, 15_000),
    )


def play(
    seed: int,
    story: str | Story | None = None,
    *,
    limits: Limits = SWIFT,
    carried: bool = False,
    timeout_ms: float | None = CALM_MS,
    parked: bool = False,
) -> SeedReport:
    """Play one seed to its end, and say what came of it, whatever the story raised.

    Args:
        story: one of ours by its name, by default the one that the seed draws; or your own, a coroutine function that is given a client.
        carried: the ledger and the agents' storages are in a simulated bucket, and machines lose their disks. Needs `perdure[bucket]`.
        timeout_ms: most milliseconds of virtual time of the play to the end, as for `Laboratory.play`.
        parked: handlers are meant to fail for good, as some of ours are; see `Laboratory`.
    """
    check_no_loop()
    check_story(story)
    if timeout_ms is not None:
        check_ms("timeout_ms", timeout_ms)
    check_kind("limits", limits, Limits)
    chosen = story_of(seed) if story is None else story
    is_ours = isinstance(chosen, str)
    if carried:
        limits = replace(limits, checkpoint_facts=ROOTED_FACTS, checkpoint_idle_ms=ROOTED_IDLE_MS)
    begun_s = perf_counter()
    with ExitStack() as stack:
        place = Path(stack.enter_context(TemporaryDirectory(prefix="perdure-"))) if carried else None
        laboratory = Laboratory(
            seed, weather_of(seed, carried=carried), limits, diaries=is_ours, carried=place, parked=parked or is_ours
        )
        stack.enter_context(_hushed())
        stack.enter_context(laboratory)
        play_it = (
            partial(_play_ours, name=chosen) if isinstance(chosen, str) else partial(_play, fire=chosen, calm=chosen)
        )
        problem, trace = finding(lambda: play_it(laboratory, timeout_ms=timeout_ms))
    simulation = laboratory.simulation
    return SeedReport(
        seed,
        chosen if isinstance(chosen, str) else f"{chosen.__module__}.{getattr(chosen, '__qualname__', chosen)}",
        simulation.digest(),
        sum(simulation.kills.values()),
        simulation.visit_count,
        perf_counter() - begun_s,
        problem,
        trace,
        carried,
        timeout_ms,
        parked,
    )


@contextmanager
def _hushed() -> Iterator[None]:
    # The deaths are ordered, so nobody needs their warnings.
    log = logging.getLogger("perdure")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _play_ours(laboratory: Laboratory, name: str, timeout_ms: float | None) -> None:
    meddled: dict[str, None] = {}
    complaints: list[str] = []
    heard: dict[str, int] = {}
    seed = laboratory.simulation.seed
    parts = STORIES[name] if laboratory.bucket is None else (*STORIES[name], tallies)

    async def story(client: Client, *, patient: bool) -> None:
        await play_parts(parts, PlayContext(client, Random(seed), patient, "", meddled, complaints, heard), seed)

    with around_story(name) as complaints_outside:
        _play(laboratory, partial(story, patient=False), partial(story, patient=True), timeout_ms)
        complaints += complaints_outside()
    if complaints:
        raise Violation("; ".join(complaints))


@contextmanager
def around_story(name: str) -> Iterator[Callable[[], Iterable[str]]]:
    """What a story needs outside of the simulated processes, and what is wrong there in the end."""
    with ExitStack() as stack:
        worlds = [stack.enter_context(around()) for part, around in AROUND.items() if part in STORIES[name]]
        yield lambda: [complaint for world in worlds for complaint in world.complaints()]


def _play(laboratory: Laboratory, fire: Story, calm: Story, timeout_ms: float | None) -> None:

    async def cut_off(client: Client) -> None:
        playing = asyncio.ensure_future(begun(fire, client))
        if not (await asyncio.wait({playing}, timeout=FIRE_S))[0]:
            playing.cancel()
            await asyncio.wait({playing})
        elif not playing.cancelled():
            playing.result()

    weathered(laboratory, cut_off, calm, timeout_ms)


def swarm(
    seeds: int,
    first_seed: int = 0,
    *,
    story: str | Story | None = None,
    limits: Limits = SWIFT,
    on_progress: Callable[[SeedReport, SwarmReport], None] | None = None,
    processes: int = 1,
    carried: bool = False,
    timeout_ms: float | None = CALM_MS,
    parked: bool = False,
    total: SwarmReport | None = None,
) -> SwarmReport:
    """Play many seeds, and add up what came of them, in the order of the seeds.

    Args:
        story: one of ours by its name, by default the one that each seed draws; or your own: a coroutine function that is given a client.
            It is played twice in each world, first under fire, where it may be cut off anywhere, and then to its end. So it asks for its
            work under ids of its own, and calls what may be called again.
        processes: in how many at once. With more than one, a story of your own must be a function of a module.
        carried, timeout_ms, parked: as for `play`.
        total: is added to, so that it says how far the swarm came when it is stopped by Ctrl-C.
    """
    check_whole("seeds", seeds)
    total = SwarmReport() if total is None else total
    begun_s = perf_counter()
    play_one = partial(play, story=story, limits=limits, carried=carried, timeout_ms=timeout_ms, parked=parked)
    wanted = range(first_seed, first_seed + seeds)
    for report in map(play_one, wanted) if processes <= 1 else _played_at_once(processes, play_one, wanted):
        total.add(report)
        total.seconds = perf_counter() - begun_s
        if on_progress is not None:
            on_progress(report, total)
    return total


def _played_at_once(
    processes: int, play_one: Callable[[int], SeedReport], seeds: Iterable[int]
) -> Iterator[SeedReport]:
    # A caller that stops iterating ends the processes.
    others, left = set(active_children()), iter(seeds)
    with ProcessPoolExecutor(processes, get_context("spawn"), die_with_parent) as pool:

        @_deaf_to_ctrl_c()
        def submit(seed: int) -> Future[SeedReport]:
            return pool.submit(play_one, seed)

        try:
            ahead = deque(map(submit, islice(left, AHEAD * processes)))
            while ahead:
                yield ahead.popleft().result()
                ahead.extend(map(submit, islice(left, 1)))
        except BaseException:
            for worker in set(active_children()) - others:
                worker.kill()
            raise


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    # A terminal sends Ctrl-C to all processes. Those that start here never hear it; the first one does, and ends them.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
