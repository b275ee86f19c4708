"""Every limit of Perdure, with its default, in one place.

`Limits()` is what a runtime starts with; `Runtime(limits=Limits(...))` changes any of it, and `perdure show` prints what is in force.
Those in force are kept in the ledger by whoever decides by them, so that they can be told when nobody does.
Durations are milliseconds; infinity switches a limit off where its description says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from perdure.policies.numbers import INFINITY, number


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The limits of one runtime. Kept by the supervisor and handed to every host."""

    hosts_max: int = (
        4  # hosts per pool, and as many again for agents that must be alone; further ones are packed, or wait
    )
    hosts_warm: int = 2  # hosts kept ready ahead of demand
    pack_max: int = 1000  # agents per host that are at work at the same time
    inline_agents_max: int = (
        16  # agents on a host, up to which their storages are written on its event loop: that costs less than a thread
    )
    threads_max: int = 32  # sync code that runs on one host at the same time; who waits for the runtime does not count
    tenancies_max: int = 200_000  # agents a host may have served before it is retired
    rss_mb_max: int = 1024  # memory of a host above which it is retired when empty
    idle_ms: int = 5_000  # an agent without work for so long is passivated
    host_idle_ms: int = 60_000  # a host of a pool other than the default one that is empty for so long ends
    waiting_max: int = 200_000  # runs that may wait for a place before requests are refused

    heartbeat_ms: int = 2_000  # how often a host is asked whether it answers
    heartbeat_misses_max: int = (
        5  # heartbeats in a row at which a host neither answers nor computes, before it is ended
    )
    blocked_warn_ms: int = (
        5_000  # an agent whose code keeps its host's loop for so long is named, and later placed alone
    )
    blocked_max_ms: int = 60_000  # a host whose loop stands in the same piece of work for so long is ended
    orphan_ms: int = 60_000  # a host without a supervisor for so long ends itself
    start_timeout_ms: int = 30_000  # an attempt whose agent has not come up by then is interrupted (`inspect-timeout`)
    teardown_grace_ms: int = 5_000  # how long a torn-down child may take to stop before it counts as still running
    recovery_deadline_ms: int = 300_000  # a run that finds no place after a loss for so long is interrupted
    sweep_ms: int = 2_000  # how often everything outstanding is looked at again

    attempts_max: int = 5  # attempts without progress in between; an agent class may set its own
    recovery_work_max: int = 100  # attempts in the whole life of a run; never resets
    alone_after_losses: int = 2  # a run or agent whose host died so often is placed alone (`placement.blamed_from`)
    retry_first_ms: int = 200  # backoff of attempts, handlers and wake-ups: first, factor 2, most
    retry_most_ms: int = 30_000
    handler_attempts_max: int = 8  # then the mail is parked
    handler_timeout_ms: int = 600_000  # a handler that has not returned by then has failed
    on_start_timeout_ms: int = 120_000  # an `on_start` that has not returned by then has failed

    schedules_max: int = 10_000  # schedules of one agent
    schedules_at_once_max: int = 64  # due schedules of one agent that are at work at the same time
    schedule_ahead_ms_max: int = 1_576_800_000_000  # fifty years: further ahead nothing is scheduled
    schedule_interval_ms_min: int = 100
    schedule_interval_ms_max: int = 2_592_000_000  # thirty days (spec 4.1)
    schedule_grace_ms: int = 60_000  # so late a tick still runs under `catch_up="skip"`
    schedule_catch_up_max: int = 100  # missed ticks that run one by one under `catch_up="all"`
    schedule_history_max: int = 20  # entries of one schedule's history
    schedule_histories_max: int = 1_000  # schedules that are gone and whose history is kept
    queued_max: int = 10_000  # items in the queue of one agent
    callback_losses_max: int = 10  # lives of an agent that an overdue callback may have ended, then it is parked
    callback_payload_bytes_max: int = 1024 * 1024  # of a schedule, or of an item of the queue

    reattach_no_progress_ms: float = 120_000  # seed 003; 0 does not wait, infinity never gives up on silence
    reattach_window_ms: float = INFINITY  # seed 003; 0 and infinity are off
    detached_max_budget_ms: float = 86_400_000  # seed 003; 0 gives up at once, infinity never
    detached_no_progress_budget_ms: float = 3_600_000  # seed 003; 0 and infinity are off

    fibers_at_once_max: int = (
        1_000  # fibers of one agent that run at the same time; who waits for another does not count
    )
    fiber_recoveries_at_once_max: int = 32  # recovery hooks of one agent that run at the same time
    fiber_recoveries_max: int = (
        20  # tries of a hook that comes to no verdict; with the pauses they span more than an hour
    )
    fiber_recovery_timeout_ms: int = (
        60_000  # a recovery hook that has not returned by then is cancelled, and has failed
    )
    fiber_recovery_first_ms: int = 1_000  # backoff of recovery hooks: first, factor 2, most
    fiber_recovery_most_ms: int = 300_000
    fibers_kept_max: int = 10_000  # settled fibers that an agent keeps; interrupted ones are kept beside them
    fibers_kept_ms: float = 2_592_000_000  # and for how long: thirty days; infinity for ever
    stash_bytes_max: int = 1024 * 1024  # what a fiber stashes
    metadata_bytes_max: int = 64 * 1024  # what is said about a fiber

    progress_ms: int = 200  # progress of a run goes out at most this often
    group_max: int = 256  # mail handled in one transaction
    inbox_max: int = 1_000  # mail handled since it was last asked what may be forgotten of it
    turn_max: int = 1_000  # messages decided together; hosts begin with the first of many meanwhile
    checkpoint_facts: int = 200_000  # facts after which a checkpoint is due even under load
    checkpoint_idle_ms: int = 3_000  # quiet time after which a checkpoint is taken
    retained_in_memory: int = 20_000  # ended runs kept in memory for quick answers

    id_max: int = 256  # characters of an id
    input_bytes_max: int = 4 * 1024 * 1024
    output_bytes_max: int = 4 * 1024 * 1024
    progress_bytes_max: int = 64 * 1024
    inline_bytes_max: int = 512  # larger inputs and outputs stand in the payload table
    error_chars_max: int = 4_000

    @classmethod
    def recorded(cls, told: Mapping[str, float]) -> Self:
        """The limits that somebody else had. What it did not know has its default, and what is not known any more is left out."""
        known: dict[str, Any] = {field.name: told[field.name] for field in fields(cls) if field.name in told}
        return cls(**known)

    def differing(self, other: Limits) -> list[str]:
        """The names of those that another one has otherwise."""
        return [field.name for field in fields(self) if getattr(self, field.name) != getattr(other, field.name)]

    def __post_init__(self) -> None:
        for field in fields(self):
            number(field.name, getattr(self, field.name))
