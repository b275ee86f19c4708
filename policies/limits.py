"""Every limit of Perdure, with its default.

`Limits()` is what a runtime starts with; `Runtime(limits=Limits(...))` changes any of it, and `perdure show` prints what is in force.
The supervisor records the limits in force in the ledger, so that a cold directory shows them too.
Durations are milliseconds. Infinity switches a limit off where its comment says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Final, Self

from perdure.policies.numbers import INFINITY, number, whole

HOSTS_MIN: Final = 2
"""On one core too, so that one is left when the other dies."""
HOSTS_MOST: Final = 16
"""Each takes 110 MB. For more, set `hosts_max`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The limits of one runtime. Kept by the supervisor and handed to every host."""

    hosts_max: int = 0  # per pool, and as many for agents that must be alone; 0: one for each core, from 2 to 16
    hosts_warm: int = 2  # hosts kept ready ahead of demand
    pack_max: int = 1000  # agents per host that work at the same time
    inline_agents_max: int = 16  # above this many agents a host writes storages on threads, which cost more
    late_ms_max: int = 1_000  # lateness of a host's loop, or of the next agent to begin, above which it gets fewer runs
    writes_waiting_max: int = 100  # waiting writes of a host above which it gets fewer runs
    threads_max: int = 32  # threads of one host for sync code; one that waits for the runtime does not count
    tenancies_max: int = 200_000  # agents that a host serves before it is retired
    rss_mb_max: int = 1024  # an empty host that has served and uses more memory is retired
    idle_ms: int = 5_000  # an agent is passivated after this time without work
    host_idle_ms: int = 60_000  # an empty host that is not kept warm ends after this time
    waiting_max: int = 200_000  # waiting runs; above this, requests are refused

    heartbeat_ms: int = 2_000  # the interval between heartbeats
    heartbeat_misses_max: int = 5  # heartbeats without an answer or any computing after which a host is ended
    blocked_warn_ms: int = 5_000  # an agent whose code keeps its host's loop longer is named, and later placed alone
    blocked_max_ms: int = 60_000  # a host whose loop stands in the same piece of work longer is ended
    orphan_ms: int = 60_000  # a host ends itself after this time without a supervisor
    start_timeout_ms: int = 30_000  # an attempt whose agent takes longer to start is interrupted (`inspect-timeout`)
    teardown_grace_ms: int = 5_000  # a torn-down child that takes longer to stop counts as still running
    recovery_deadline_ms: int = 300_000  # a lost run that waits longer for a place is interrupted
    sweep_ms: int = 2_000  # the interval between two looks at all outstanding effects

    attempts_max: int = 5  # attempts without progress; an agent class may set its own
    recovery_work_max: int = 100  # all attempts of a run, whatever it reports between them
    alone_after_losses: int = 2  # lost hosts after which a run or agent is placed alone (`placement.blamed_from`)
    retry_first_ms: int = 200  # first pause between attempts, handlers and wake-ups; it doubles each time
    retry_most_ms: int = 30_000  # longest such pause
    handler_attempts_max: int = 8  # failures of a handler after which its mail is parked; of a step's undo, its run
    handler_timeout_ms: int = 600_000  # a handler, or a step's undo, that takes longer has failed
    on_start_timeout_ms: int = 120_000  # an `on_start` that takes longer has failed

    schedules_max: int = 10_000  # schedules of one agent
    schedules_at_once_max: int = 64  # callbacks of one agent that run at the same time
    schedule_ahead_ms_max: int = 1_576_800_000_000  # fifty years; the furthest that can be scheduled
    schedule_interval_ms_min: int = 100
    schedule_interval_ms_max: int = 2_592_000_000  # thirty days (spec 4.1)
    schedule_grace_ms: int = 60_000  # a later tick is dropped under `catch_up="skip"`
    schedule_catch_up_max: int = 100  # missed ticks that `catch_up="all"` runs one by one
    schedule_history_max: int = 20  # entries of one schedule's history
    schedule_histories_max: int = 1_000  # ended schedules whose history is kept
    queued_max: int = 10_000  # items in the queue of one agent
    callback_losses_max: int = 10  # deaths of an agent during an overdue callback after which it is parked
    callback_payload_bytes_max: int = 1024 * 1024  # of a schedule or a queued item

    reattach_no_progress_ms: float = 120_000  # seed 003; 0 does not wait, infinity never gives up on silence
    reattach_window_ms: float = INFINITY  # seed 003; 0 and infinity are off
    detached_max_budget_ms: float = 86_400_000  # seed 003; 0 gives up at once, infinity never
    detached_no_progress_budget_ms: float = 3_600_000  # seed 003; 0 and infinity are off

    stream_kept_ms: float = 300_000  # how long after its end a chat's answer is streamed to clients that come back

    fibers_at_once_max: int = 1_000  # running fibers of one agent; one that waits for another does not count
    fiber_recoveries_at_once_max: int = 32  # running recovery hooks of one agent
    fiber_recoveries_max: int = 20  # calls of a hook that gives no verdict; with the pauses more than an hour
    fiber_recovery_timeout_ms: int = 60_000  # a recovery hook that takes longer is cancelled and has failed
    fiber_recovery_first_ms: int = 1_000  # first pause between two calls of a recovery hook; it doubles each time
    fiber_recovery_most_ms: int = 300_000  # longest such pause
    fibers_kept_max: int = 10_000  # settled fibers that an agent keeps; interrupted ones do not count
    fibers_kept_ms: float = 2_592_000_000  # how long they are kept: thirty days; infinity for ever
    stash_bytes_max: int = 1024 * 1024  # of a stashed value
    metadata_bytes_max: int = 64 * 1024  # of the metadata of a fiber

    wait_in_memory_ms: int = 5_000  # a run that waits longer gives up its place; one that waits for an event, after it
    wait_ahead_ms_max: int = 1_576_800_000_000  # fifty years; the longest wait
    events_max: int = 10_000  # events that a run has not taken; above this, more are refused
    asks_max: int = 100  # questions to people of one run that are open at once; above this, more are refused
    progress_ms: int = 200  # the least interval between two progress reports of a run
    group_max: int = 256  # mails handled in one transaction
    inbox_max: int = 1_000  # handled mails after which an agent asks which of them it may forget
    turn_max: int = 1_000  # messages decided in one commit; fewer if that many take long
    linger_ms: float = 100  # the least interval between two commits to a bucket while it is busy; 0 does not wait
    checkpoint_facts: int = 200_000  # facts after which a checkpoint is taken even under load
    checkpoint_idle_ms: int = 3_000  # idle time after which a checkpoint is taken
    retained_in_memory: int = 20_000  # ended runs kept in memory for quick answers
    ended_kept_ms: float = INFINITY  # an ended run that nobody needs is cleared after this time; infinity never
    ended_kept_max: float = INFINITY  # when more have ended, the oldest that nobody needs go in seconds; infinity off

    id_max: int = 256  # characters of an id
    input_bytes_max: int = 4 * 1024 * 1024
    output_bytes_max: int = 4 * 1024 * 1024
    progress_bytes_max: int = 64 * 1024
    inline_bytes_max: int = 512  # larger inputs and outputs go to the payload table
    error_chars_max: int = 4_000
    logs_bytes_max: float = 256 * 1024 * 1024  # of all logs of a directory; 0 keeps none

    @classmethod
    def recorded(cls, told: Mapping[str, float]) -> Self:
        """Limits from a record. A missing one has its default, and an unknown one is left out."""
        made = cls()
        for field in fields(cls):  # unchecked: an earlier version may have let in what is refused now
            object.__setattr__(made, field.name, told.get(field.name, field.default))
        return made

    def for_cores(self, cores: int) -> Self:
        """These limits for a cluster of that size: `hosts_max` is set."""
        return self if self.hosts_max else replace(self, hosts_max=min(max(cores, HOSTS_MIN), HOSTS_MOST))

    def differing(self, other: Limits) -> list[str]:
        """The names of the limits that differ. `hosts_max` of 0 differs from none."""
        asked = self if self.hosts_max else replace(self, hosts_max=other.hosts_max)
        return [field.name for field in fields(asked) if getattr(asked, field.name) != getattr(other, field.name)]

    def __post_init__(self) -> None:
        from_1, finite = _AT_LEAST_1.split(), _FINITE.split()
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            least = int(name in from_1)
            if field.type == "int" and "_ms" not in name and value != INFINITY:
                whole(name, value, least)
            number(name, value, least, is_finite=name in finite)


# With 0 of these nothing could be done at all, or the same without a pause. Where 0 is a limit, it means none, or at once.
_AT_LEAST_1: Final = """
    pack_max late_ms_max writes_waiting_max threads_max tenancies_max idle_ms waiting_max heartbeat_ms blocked_max_ms orphan_ms
    start_timeout_ms sweep_ms attempts_max recovery_work_max retry_first_ms retry_most_ms handler_attempts_max handler_timeout_ms
    on_start_timeout_ms schedules_at_once_max schedule_ahead_ms_max schedule_interval_ms_min schedule_interval_ms_max schedule_catch_up_max
    schedule_history_max callback_losses_max callback_payload_bytes_max fibers_at_once_max fiber_recoveries_at_once_max
    fiber_recovery_timeout_ms wait_ahead_ms_max group_max checkpoint_idle_ms id_max input_bytes_max output_bytes_max progress_bytes_max
    error_chars_max
"""
# What is counted, or waited for, up to these.
_FINITE: Final = """
    hosts_max blocked_warn_ms blocked_max_ms sweep_ms retry_first_ms retry_most_ms handler_attempts_max
    schedule_interval_ms_min schedule_history_max fiber_recovery_first_ms events_max group_max error_chars_max
"""
