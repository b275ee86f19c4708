"""Decisions that time makes: budgets that run out, attempts that never start, teardowns that take too long, pauses that are over.

Time is the ledger's own, which never runs backwards, and leaps when the wall clock is set forward (`policies.ledger_time`). Whatever is
measured here is measured without the leaps of this life (`View.leaps`). Alarms are due by the wall clock. A child is not blamed for silence
while no supervisor was there to hear it, or while the supervisor was late itself (`View.awake_at_ms`). Nor is a run for that in which it
waited in line for hosts that were up: it is their work that keeps it (`turn_at_ms`). An absolute budget also counts that time (spec W-52).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from operator import attrgetter

from perdure.ledger import asks
from perdure.ledger.activation import pool_key
from perdure.ledger.facts import AlarmRang, Fact, RunInterrupted, TeardownBegan
from perdure.ledger.host_reports import seal
from perdure.ledger.notes import Note, agent_due, run_queued, timer_armed, timers_fired
from perdure.ledger.placements import is_dry_pool, pool
from perdure.ledger.run import Run, RunWait
from perdure.ledger.status import InterruptedReason
from perdure.ledger.stimulus import Tick
from perdure.ledger.view import ALARM_OF_RUN, View
from perdure.policies import Budget, Expiry, Limits, Sighting, carried, expiry


def tick(view: View, said: Tick, at_ms: int, limits: Limits) -> Iterator[Fact | Note]:
    wall_ms = at_ms - said.behind_ms
    yield timers_fired(at_ms, wall_ms)
    for agent in view.alarms.fired:
        if agent.startswith(ALARM_OF_RUN):
            yield from _ring(view, agent.removeprefix(ALARM_OF_RUN), wall_ms)
        elif agent.startswith(asks.ALARM_OF_ASKS):
            yield from asks.ring(view, agent.removeprefix(asks.ALARM_OF_ASKS), wall_ms)
        elif agent in view.agents and 0 < view.agents[agent].alarm_at_ms <= wall_ms:
            yield AlarmRang(agent)
    for key in view.timers.fired:
        run = view.runs.get(key)
        if run is not None and run.is_live:
            yield from _look(view, run, at_ms, limits)
            yield timer_armed(key, next_look(view, run, limits, at_ms=at_ms))
        activation = view.agents.get(key)
        if key in view.mailbox or key in view.wanted or (activation is not None and activation.unclean):
            yield agent_due(key)


def arm(view: View, keys: Iterable[str], limits: Limits) -> None:
    """Look at the live runs among these again when their records say so. Of those that are alike in what that depends on, one is asked."""
    known: dict[tuple[object, ...], float] = {}
    for key in keys:
        run = view.runs.get(key)
        if run is None or not run.is_live:
            continue
        if run.is_put_off:
            view.timers.arm_by(key, next_look(view, run, limits))
            continue
        # Runs of one batch share their options, so it is enough to compare identities.
        likeness = (id(run.options), _LOOKED_AT(run))
        due_ms = known.get(likeness)
        if due_ms is None:
            due_ms = known[likeness] = next_look(view, run, limits)
        view.timers.arm_by(key, due_ms)


_LOOKED_AT = attrgetter(
    *("parked", "is_undoing", "teardown", "teardown_at_ms", "reattached_at_ms", "signal_at_ms", "retried_at_ms"),
    *("requested_at_ms", "host_id", "placed_at_ms", "confirmed", "lost_at_ms", "waits_for_others", "joined_at_ms"),
)
"""What `next_look` depends on, besides the options and that the run is live."""


def next_look(
    view: View, run: Run, limits: Limits, awake_at_ms: int | None = None, *, at_ms: int | None = None
) -> float:
    """When something is next due for a run, in ms; infinity when nothing is. `awake_at_ms` is the view's, unless no supervisor serves, and
    the time now is that of the newest fact, unless it is given."""
    if not run.is_live or run.parked or run.is_undoing:
        return math.inf
    awake_at_ms = view.awake_at_ms if awake_at_ms is None else awake_at_ms
    if run.is_put_off:
        due_ms = wait_due_ms(view, run) if run.run_id in view.waiting else math.inf
        return min(_patience_with_wait(view, run, limits).at_ms, due_ms)
    if run.teardown:
        return carried(max(run.teardown_at_ms, awake_at_ms), view.leaps) + limits.teardown_grace_ms
    due_ms = math.inf
    if not run.is_awaited or run.reattached_at_ms:  # otherwise it is waited for without limit
        due_ms = expiry(budget_of(run, limits), sighting_of(view, run, awake_at_ms, at_ms)).at_ms
    if run.is_placed:
        return due_ms if run.confirmed else min(due_ms, start_due_ms(view, run, limits, awake_at_ms))
    return min(due_ms, place_due_ms(view, run, limits, awake_at_ms, at_ms)) if run.lost_at_ms else due_ms


def wait_due_ms(view: View, run: Run) -> float:
    """When the wait of a run is over, by the ledger's time; infinity if the wall clock or an event ends it, or it is paused."""
    wait = run.wait
    return math.inf if wait is None or wait.by_wall or run.paused else wait_end_ms(view, run, wait)


def wait_end_ms(view: View, run: Run, wait: RunWait) -> float:
    leapt_ms = 0 if wait.by_wall else carried(run.waits_since_ms, view.leaps) - run.waits_since_ms
    return wait.until_ms + leapt_ms


def _patience_with_wait(view: View, run: Run, limits: Limits) -> Expiry:
    # Nobody is silent who is known to wait, so only a budget in all can run out.
    budget = budget_of(run, limits)._replace(silence_ms=0, reattach_silence_ms=math.inf)
    if "max_budget_ms" not in run.options:
        budget = budget._replace(absolute_ms=math.inf)
    return expiry(budget, sighting_of(view, run, view.awake_at_ms))


def place_due_ms(view: View, run: Run, limits: Limits, awake_at_ms: int, at_ms: int | None = None) -> int:
    since_ms = max(run.lost_at_ms, awake_at_ms, turn_at_ms(view, run, at_ms))
    return carried(since_ms, view.leaps) + limits.recovery_deadline_ms


def turn_at_ms(view: View, run: Run, at_ms: int | None = None) -> int:
    """Until when a run waited for its turn: until it was placed; until now, while hosts of its pool are up; or until the last of them went,
    or no other came."""
    if run.is_placed:
        return run.placed_at_ms
    if waits_its_turn(view, run):
        return view.at_ms if at_ms is None else at_ms
    key = pool_key(run.options.get("pool"))
    trouble = view.troubles.get(key)
    return max(view.served_at_ms.get(key, 0), 0 if trouble is None else trouble.since_at_ms)


def waits_its_turn(view: View, run: Run) -> bool:
    key = pool_key(run.options.get("pool"))
    return not (run.is_placed or is_dry_pool(view, key)) and any(host.up for host in pool(view, key))


def retry_due_ms(view: View, run: Run) -> int:
    return run.retry_at_ms + carried(run.lost_at_ms, view.leaps) - run.lost_at_ms


def start_due_ms(view: View, run: Run, limits: Limits, awake_at_ms: int) -> int:
    host = view.hosts.get(run.host_id)
    # The time in which its host was behind with its work does not count.
    since_ms = max(run.placed_at_ms, awake_at_ms, host.late_at_ms if host is not None else 0)
    return carried(since_ms, view.leaps) + limits.start_timeout_ms


def budget_of(run: Run, limits: Limits) -> Budget:
    options = run.options
    return Budget(
        options.get("max_budget_ms", limits.detached_max_budget_ms),
        options.get("no_progress_budget_ms", limits.detached_no_progress_budget_ms),
        # One that waits for others is not silent.
        math.inf if run.waits_for_others else options.get("reattach_no_progress_ms", limits.reattach_no_progress_ms),
        options.get("reattach_window_ms", limits.reattach_window_ms),
    )


def sighting_of(view: View, run: Run, awake_at_ms: int, at_ms: int | None = None) -> Sighting:
    """When a run was requested, last heard of and re-attached to, as far as that counts against it."""
    turn_ms = turn_at_ms(view, run, at_ms)
    # While no supervisor was awake to hear it, a child is not blamed for silence.
    signal = max(run.signal_at_ms, awake_at_ms, turn_ms) if run.signal_at_ms else 0
    if run.is_awaited:  # before that it was no silence
        signal = max(signal, run.joined_at_ms, turn_ms)
    reattached = run.reattached_at_ms
    if reattached and not run.signal_at_ms:
        reattached = max(reattached, awake_at_ms)
    requested = run.retried_at_ms or run.requested_at_ms  # an absolute budget counts that time (spec W-52)
    if "max_budget_ms" not in run.options:
        requested += run.waited_ms  # the general one counts no time without a process
    times = [carried(instant, view.leaps) if instant else 0 for instant in (requested, signal, reattached)]
    return Sighting(not run.is_awaited, *times)


def _ring(view: View, run_id: str, wall_ms: float) -> Iterator[Note]:
    run = view.runs.get(run_id)
    if run is None or run_id not in view.waiting or run.wait is None or run.paused:
        return
    if run.wait.until_ms <= wall_ms:
        yield run_queued(run_id)


def _look(view: View, run: Run, at_ms: int, limits: Limits) -> Iterator[Fact | Note]:
    if run.parked:
        return
    if run.is_put_off:  # in the queue, too: it is silent for want of a place
        end = _patience_with_wait(view, run, limits)
        if at_ms >= end.at_ms:
            yield from _lose_patience(view, run, end.reason, teardown=end.teardown)
        elif run.run_id in view.waiting and at_ms >= wait_due_ms(view, run):
            yield run_queued(run.run_id)
        return
    if run.is_undoing:  # its end is owed, however long that takes
        yield from _queue(view, run, at_ms)
        return
    if run.teardown:
        if at_ms >= next_look(view, run, limits):
            yield from seal(view, run, still_running=run.is_placed)
        return
    awake = view.awake_at_ms
    end = expiry(budget_of(run, limits), sighting_of(view, run, awake, at_ms))
    if at_ms >= end.at_ms:
        yield from _lose_patience(view, run, end.reason, teardown=end.teardown)
    elif run.is_placed and not run.confirmed and at_ms >= start_due_ms(view, run, limits, awake):
        yield TeardownBegan(run.run_id, InterruptedReason.INSPECT_TIMEOUT)
    elif not run.is_placed and run.lost_at_ms and at_ms >= place_due_ms(view, run, limits, awake, at_ms):
        error = f"no place was found within {limits.recovery_deadline_ms} ms after its child was lost ({run.cause})"
        yield RunInterrupted(run.run_id, InterruptedReason.RECOVERY_DEADLINE, None, error)
    else:
        yield from _queue(view, run, at_ms)


def _queue(view: View, run: Run, at_ms: int) -> Iterator[Note]:
    if not run.is_placed and at_ms < retry_due_ms(view, run):
        yield timer_armed(run.run_id, retry_due_ms(view, run))
    elif not run.is_placed and run.run_id not in view.held.get(run.parent, ()):
        yield run_queued(run.run_id)


def _lose_patience(view: View, run: Run, reason: str, *, teardown: bool) -> Iterator[Fact]:
    if not teardown:
        yield RunInterrupted(run.run_id, reason, run.is_placed, f"no progress was seen for too long ({reason})")
        return
    yield TeardownBegan(run.run_id, reason)  # until the child has stopped, its end still counts
    if not run.is_placed:
        yield from seal(view, run, still_running=False)
