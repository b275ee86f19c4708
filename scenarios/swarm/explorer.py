"""The explorer: the same story again and again, killed each time one kill point later, until every place to die has been tried.

First a calm run counts the visits of kill points. Then, for each visit, a new world with the same seed plays the story; the process
that visits that point is killed there, once. Up to that moment both worlds are the same, so the death hits just that line at that time.
Afterwards everything must converge, and all invariants must hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import perf_counter

from perdure import Limits
from perdure.actors import KillPoint
from perdure.ledger import check_whole, check_word
from perdure.scenarios.testing.laboratory import QUICK, Laboratory, Story, finding, weathered

VICTIMS = ("host", "supervisor")
TIMEOUT_MS = 900_000.0


@dataclass(frozen=True)
class Death:
    """One place to die: which visit it is, which process dies there, and what came of it."""

    visit: int
    victim: str
    point: KillPoint
    detail: str
    problem: str = ""
    trace: str = field(default="", compare=False)


@dataclass
class ExploreReport:
    """What came of all places to die. `points` says how often each kind of place was tried."""

    visits: int = 0
    kills: int = 0
    seconds: float = 0.0
    points: Counter[str] = field(default_factory=Counter)
    failures: list[Death] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.failures


def explore(
    story: Story,
    kill: str | None = None,
    *,
    seed: int = 0,
    limits: Limits = QUICK,
    stride: int = 1,
    diaries: bool = False,
    timeout_ms: float | None = TIMEOUT_MS,
    parked: bool = False,
    on_progress: Callable[[Death, ExploreReport], None] | None = None,
) -> ExploreReport:
    """Play the story once for every place to die.

    Args:
        story: given a client; it must accept being played twice under the same run ids. A call that the death interrupts, and that may not
            be repeated, ends the first play, which is no failure.
        kill: `"supervisor"` or `"host"` to try only these victims; None tries all.
        stride: try only each `stride`-th place.
        diaries: the handlers keep diaries; see `Laboratory`.
        parked: handlers are meant to fail for good, as for `Laboratory`.
        timeout_ms: most milliseconds of virtual time of each play, as for `Laboratory.play`.
    """
    if kill is not None:
        check_word("kill", kill, VICTIMS)
    check_whole("stride", stride)
    report = ExploreReport()
    begun_s = perf_counter()
    for place in places(story, seed, limits, kill, timeout_ms, parked=parked)[::stride]:
        death = die_at(story, place, seed, limits, diaries=diaries, timeout_ms=timeout_ms, parked=parked)
        report.visits += 1
        report.kills += 1
        report.points[f"{place.victim} {place.point}"] += 1
        report.seconds = perf_counter() - begun_s
        if death.problem:
            report.failures.append(death)
        if on_progress is not None:
            on_progress(death, report)
    return report


def places(
    story: Story,
    seed: int,
    limits: Limits,
    kill: str | None,
    timeout_ms: float | None = TIMEOUT_MS,
    *,
    parked: bool = False,
) -> list[Death]:
    seen: list[Death] = []

    def note(process: str, point: KillPoint, detail: str) -> bool:
        victim = process if process in ("supervisor", "client") else "host"
        seen.append(Death(len(seen) + 1, victim, point, detail))
        return False

    with Laboratory(seed, limits=limits, parked=parked, kill_when=note) as laboratory:
        laboratory.play(story, timeout_ms)
        laboratory.settle(timeout_ms)
    return [place for place in seen if place.victim != "client" and kill in (None, place.victim)]


def die_at(
    story: Story,
    place: Death,
    seed: int = 0,
    limits: Limits = QUICK,
    *,
    diaries: bool = False,
    timeout_ms: float | None = TIMEOUT_MS,
    parked: bool = False,
) -> Death:
    with Laboratory(seed, limits=limits, kill_at=place.visit, diaries=diaries, parked=parked) as laboratory:
        words, trace = finding(lambda: weathered(laboratory, story, story, timeout_ms))
    return replace(place, problem=words, trace=trace)
