"""What may go wrong in the simulated world, and how often: one frozen value per phase of a simulation.

Which faults exist at all is drawn per seed (`Weather.drawn`). A bug that needs two rare faults together, or one fault
*without* another that hides it, is hardly ever found by weather in which everything goes a little wrong all the time.
Some seeds have no faults. Probabilities are per event (a message, a commit, a visit of a kill point); spans are
uniform.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from perdure.actors.ports import BUCKET_POINTS, KillPoint

if TYPE_CHECKING:
    from random import Random

CALM_SHARE: Final = 0.1
RATE_MAX: Final = 0.5  # no single fault may happen more often than not, or nothing ever gets done


class Span(NamedTuple):
    """From `low` to `high`, uniformly drawn."""

    low: float
    high: float


# The commit that the weather refused. The ledger cannot know whether it took effect.
class DiskFault(OSError):
    def __init__(self, *, took_effect: bool) -> None:
        super().__init__(errno.EIO, "simulated disk fault " + ("after" if took_effect else "before") + " the commit")
        self.took_effect = took_effect


@dataclass(frozen=True, slots=True)
class Weather:
    """Probabilities and delays. The defaults are calm: delays only.

    Mail, of each call and of each reply: it is under way for `mail_ms`. `late`: for `late_ms` more, so that others
    overtake it. `lost`: the caller hears nothing, and learns that after `lost_noticed_ms`. `doubled` (calls only):
    the supervisor gets the frame a second time, and its second answer is dropped.

    Processes, of each call: `partitioned`, the calling host is cut off for `partition_ms`; `hung`, its event loop
    stands still for `hang_ms`; `slow`, its event loop is that long behind its work; `stopped`, everything on the machine
    stands still for `stop_ms`; `host_dies`, `supervisor_dies`, within `sudden_ms`, wherever they are then. Of each
    visit of a named kill point, by supervisor or host: `kills`.

    Disk, of each commit: it takes `commit_ms`; `commit_slow`, it takes `commit_slow_ms`; `commit_fails` without effect,
    `commit_fails_late` after it took effect. Other threads take `thread_ms`.

    Bucket, of each request: it takes `bucket_ms` each way. `bucket_lost`, `bucket_answer_lost`: nothing is heard, which counts as no answer
    after `bucket_silent_ms`. `bucket_busy`: it is refused for now. Of each write: `bucket_late`, nothing is heard, and it takes effect
    after `bucket_late_ms`; `bucket_doubled`, it does so besides. `bucket_cut`: this process has no answers for `bucket_cut_ms`;
    `bucket_stands`: nobody has any for `bucket_stands_ms`. Of each list: `bucket_stale`, it is an earlier one. Of each beginning:
    `cache_lost`, the machine is a new one. After a failure it is asked again in `bucket_pause_ms`.

    Clocks: a new process's clock is off by up to `clock_skew_ms`, and jumps by `clock_jump_ms` every
    `clock_jump_every_ms` on average (0: never).

    Ray: `spawn_asked_ms` until a host's creation was asked for; `spawn_refused`; `spawn_ms` until the host lives;
    `death_seen_ms` until others notice a death; `restart_ms` until the supervisor lives again.
    """

    mail_ms: Span = Span(0.2, 3)
    lost: float = 0.0
    lost_noticed_ms: Span = Span(300, 5_000)
    doubled: float = 0.0
    late: float = 0.0
    late_ms: Span = Span(50, 4_000)
    partitioned: float = 0.0
    partition_ms: Span = Span(300, 30_000)
    hung: float = 0.0
    hang_ms: Span = Span(100, 30_000)
    slow: float = 0.0
    slow_ms: Span = Span(100, 30_000)
    stopped: float = 0.0
    stop_ms: Span = Span(100, 30_000)
    host_dies: float = 0.0
    supervisor_dies: float = 0.0
    sudden_ms: Span = Span(0, 500)
    kills: tuple[tuple[KillPoint, float], ...] = ()
    thread_ms: Span = Span(0.05, 0.5)
    commit_ms: Span = Span(0.5, 3)
    commit_slow: float = 0.0
    commit_slow_ms: Span = Span(50, 3_000)
    commit_fails: float = 0.0
    commit_fails_late: float = 0.0
    clock_skew_ms: float = 0.0
    clock_jump_every_ms: float = 0.0
    clock_jump_ms: Span = Span(-60_000, 60_000)
    spawn_asked_ms: Span = Span(1, 20)
    spawn_refused: float = 0.0
    spawn_ms: Span = Span(100, 1_200)
    death_seen_ms: Span = Span(5, 50)
    restart_ms: Span = Span(100, 1_500)
    bucket_ms: Span = Span(1, 20)
    bucket_lost: float = 0.0
    bucket_answer_lost: float = 0.0
    bucket_silent_ms: Span = Span(1_000, 10_000)
    bucket_pause_ms: Span = Span(25, 1_000)
    bucket_busy: float = 0.0
    bucket_late: float = 0.0
    bucket_doubled: float = 0.0
    bucket_late_ms: Span = Span(50, 60_000)
    bucket_cut: float = 0.0
    bucket_cut_ms: Span = Span(300, 20_000)
    bucket_stands: float = 0.0
    bucket_stands_ms: Span = Span(300, 20_000)
    bucket_stale: float = 0.0
    cache_lost: float = 0.0

    @classmethod
    def calm(cls) -> Weather:
        """Nothing goes wrong; everything takes its time."""
        return cls()

    @classmethod
    def drawn(cls, rng: Random, intensity: float = 1.0) -> Weather:
        """Draw which faults exist this time and how often. A tenth is calm; otherwise a coin decides on every fault.

        `intensity` scales the probabilities; at 1, a hundred exchanges see a handful of each fault that exists.
        """
        if rng.random() < CALM_SHARE:
            return cls.calm()

        def rate(most: float) -> float:
            return _rate(rng, most * intensity)

        mail_ms = rng.choice((Span(0.2, 3), Span(1, 30), Span(5, 150)))
        kills = tuple((point, rate(0.1)) for point in KillPoint if point not in BUCKET_POINTS)
        return cls(
            mail_ms=mail_ms,
            lost=rate(0.2),
            doubled=rate(0.3),
            late=rate(0.4),
            partitioned=rate(0.05),
            hung=rate(0.03),
            host_dies=rate(0.03),
            supervisor_dies=rate(0.03),
            kills=tuple((point, chance) for point, chance in kills if chance > 0),
            commit_slow=rate(0.1),
            commit_fails=rate(0.03),
            commit_fails_late=rate(0.03),
            clock_skew_ms=rng.choice((0.0, 0.0, 5_000.0)),
            clock_jump_every_ms=rng.choice((0.0, 0.0, 2_000.0, 20_000.0)),
            spawn_refused=rate(0.3),
            slow=rate(0.03),
            stopped=rate(0.01),
        )

    def with_bucket(self, rng: Random, intensity: float) -> Weather:
        """Draw what goes wrong with a bucket. Where it is calm, nothing does."""
        if self == Weather.calm():
            return self

        def rate(most: float) -> float:
            return _rate(rng, most * intensity)

        return replace(
            self,
            kills=(*self.kills, *((point, rate(0.1)) for point in BUCKET_POINTS)),
            bucket_lost=rate(0.1),
            bucket_answer_lost=rate(0.1),
            bucket_busy=rate(0.1),
            bucket_late=rate(0.1),
            bucket_doubled=rate(0.2),
            bucket_cut=rate(0.01),
            bucket_stands=rate(0.01),
            bucket_stale=rate(0.5),
            cache_lost=rate(0.5),
        )


def _rate(rng: Random, most: float) -> float:
    exists, strength = rng.choice((True, False)), rng.random()
    return min(RATE_MAX, most * strength * strength) if exists else 0.0
