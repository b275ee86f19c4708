"""Why a run is where it is: sentences for a person who knows the README and nothing of what is inside.

Everything is read from the records, so a cold ledger can be explained as well as one that a supervisor serves. Each sentence is true at
`at_ms`. What comes next is told with the name of the limit that decides it, so that the reader knows what to change.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

from perdure.ledger.activation import STARTS_MAX, Activation, PoolTrouble, package_of, pool_key
from perdure.ledger.asks import ask_id
from perdure.ledger.codec import unpack
from perdure.ledger.indexes import line_for
from perdure.ledger.join_decisions import source_of
from perdure.ledger.mail import ANSWER, Mail, MailState, Slot
from perdure.ledger.old_code import has_older_code
from perdure.ledger.placements import askers_host, blamed_in, hindrance, is_alone, is_at_fault, is_run_alone
from perdure.ledger.run import Run
from perdure.ledger.status import InterruptedReason, Status, Undo
from perdure.ledger.timeouts import (
    budget_of,
    next_look,
    place_due_ms,
    retry_due_ms,
    sighting_of,
    start_due_ms,
    wait_end_ms,
    waits_its_turn,
)
from perdure.ledger.view import View
from perdure.ledger.wording import counted, first, lasting, nth
from perdure.policies import Limits, condition_in_words, is_window, judge_condition, leaves_of

NAMED_MAX = 3
_NOWHERE = Activation("")
_LIMITED = {  # by the reason of an interruption and whether the run is detached: the option, and the limit that stands in for it
    (InterruptedReason.NO_PROGRESS, False): ("reattach_no_progress_ms", "reattach_no_progress_ms"),
    (InterruptedReason.NO_PROGRESS, True): ("no_progress_budget_ms", "detached_no_progress_budget_ms"),
    (InterruptedReason.WINDOW_EXCEEDED, False): ("reattach_window_ms", "reattach_window_ms"),
    (InterruptedReason.BUDGET_EXCEEDED, True): ("max_budget_ms", "detached_max_budget_ms"),
}


class Case(NamedTuple):
    """The run to explain, and the moment. Silence does not count against a child while no supervisor is there (`served` is false)."""

    view: View
    run: Run
    at_ms: int
    limits: Limits
    served: bool

    @property
    def awake_at_ms(self) -> int:
        return self.view.awake_at_ms if self.served else self.at_ms

    @property
    def parent(self) -> str:
        return "its parent" if self.run.parent else "the client that asked for it"

    def ago(self, at_ms: int) -> str:
        return f"{lasting(max(0, self.at_ms - at_ms))} ago"

    def due(self, at_ms: float, *, since_start: bool = False) -> str:
        """`in 5 min, at 2026-11-21 12:00:03 UTC`. With `since_start`, the time runs only while a supervisor does."""
        if at_ms <= self.at_ms:
            return "any moment now" if self.served else "at the next start"
        if since_start and not self.served:
            return f"{lasting(at_ms - self.at_ms)} after the next start"
        return (
            f"in {lasting(at_ms - self.at_ms)}, at {datetime.fromtimestamp(at_ms // 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
        )

    def limit(self, option: str, name: str) -> str:
        """`max_budget_ms is 1 h`: the run's own option, or else the runtime's limit."""
        value = self.run.options.get(option)
        return f"{option} is {lasting(value)}" if value is not None else self.general(name)

    def general(self, name: str) -> str:
        return f"{name} is {lasting(getattr(self.limits, name))}"


def explain(view: View, run: Run, at_ms: int, limits: Limits, *, served: bool = True) -> list[str]:
    """Where the run is and why, which limit applied, who re-attached, and what comes next and when.

    `served` says whether a supervisor is there to do what comes next.
    """
    case = Case(view, run, at_ms, limits, served)
    said = [*_what(case), *_code(case), *_undo(case)]
    said += _asks(case)
    if run.parked:
        said += _parked(case)
    elif run.run_id in view.waiting:
        said += _put_off(case)
    elif run.is_live:
        said += [*_attempts(case), *_place(case), *_signs(case), *_patience(case)]
    elif run.status is Status.INTERRUPTED:
        said += [*_interrupted(case), *_way_on(case)]
    else:
        said += _end(case)
    for slot, state in run.slots.items():
        said += _letter(case, slot, state, view.mail.get(run.mail_id(slot)))
    if not served and not run.is_settled:
        what = "what is still to be done about it waits" if run.is_hard else "nothing happens to it"
        said.append(
            f"No supervisor serves this directory now, so {what} until one is started: by `perdure serve`, or by a program that opens a"
            " Runtime on it."
        )
    return said


def _what(case: Case) -> Iterator[str]:
    run = case.run
    stands = "has failed (error)" if run.status is Status.ERROR else f"is {run.status}"
    yield f"Run {run.run_id} of {run.agent_type} {stands}."
    waits = "waits" if run.is_live else "waited"
    # Whether a client still waits is not known.
    awaited = f"and {waits} for its result" if run.parent else "to be awaited"
    how = awaited if run.is_awaited else "as a detached run, whose end is told by mail"
    who = f"Its parent {run.parent}" if run.parent else "A client"
    yield f"{who} requested it {case.ago(run.requested_at_ms)}, {how}."
    if run.retried_at_ms:
        times = f", the {nth(run.retries)} time" if run.retries else ""
        yield f"It was tried again {case.ago(run.retried_at_ms)}{times}, with all its attempts."
    if run.reattached_at_ms:
        life = f" in life {run.life} of that agent" if run.parent else ""
        yield f"{first(case.parent)} re-attached to it {case.ago(run.reattached_at_ms)}{life}."


def _code(case: Case) -> Iterator[str]:
    package, newest = package_of(case.run.options.get("pool")), case.view.newest_code(case.run)
    if package:
        yield f"Its code is version {package[:8]}, with which it was {'tried again' if case.run.retried_at_ms else 'requested'}."
    if case.run.begins_anew:
        yield "No attempt has begun since: if newer code comes before that, it takes the newer one."
    elif not case.run.is_hard and has_older_code(case.view, case.run):
        yield f"Newer code has come since ({(newest or '')[:8] or 'installed'}); a run keeps its own until it is retried."


def _undo(case: Case) -> Iterator[str]:
    run = case.run
    if run.undo == Undo.PROMISED:
        yield "It has begun a step that is undone if the run fails or is cancelled."
    elif run.undo:
        end = {Undo.ERROR: "fails", Undo.ABORTED: "is aborted", Undo.CLEARED: "is aborted and cleared"}[Undo(run.undo)]
        yield f"It is over, and its steps are being undone: {run.error}"
        yield f"When that is done it {end}. `run` is not entered any more, and no time limit applies to it meanwhile."


def _parked(case: Case) -> Iterator[str]:
    run = case.run
    yield f"It is parked: {run.parked}"
    yield f"Nothing is lost, {case.parent} was told nothing, and no time limit applies to it meanwhile."
    name = shlex.quote(run.run_id)
    yield "It goes on as soon as code for it comes: with a program that opens a Runtime here and has its class."
    yield f"`perdure retry {name}` tries it at once, and `perdure cancel {name}` gives it up."


def _asks(case: Case) -> Iterator[str]:
    asks = [] if case.run.is_hard else case.run.open_asks
    for ask in asks[:NAMED_MAX]:
        named, names = ask_id(case.run.run_id, ask.number), [name for name, _ in ask.to[: ask.level]]
        whom = " or ".join(names) or "anybody"
        said = f" {counted(len(ask.answers), 'answer')} of {ask.people} came." if ask.answers else ""
        yield f"It asks {whom}, since {lasting(max(0, case.at_ms - ask.opened_at_ms))}: {ask.question:.200} ({named}).{said}"
        if ask.note:
            yield f"It asks that again: {ask.note}."
        for name, at_ms in ask.to[ask.level :][:1]:
            yield f"If that is not answered, it comes to {name} too {case.due(at_ms)}."
        if ask.expires_at_ms:
            then = "the run is told that nobody answered" if ask.otherwise is None else "its `otherwise` is the answer"
            yield f"If nobody answers, it expires {case.due(ask.expires_at_ms)}, and {then}."
    if asks:
        more = f" It asks {counted(len(asks), 'question')} in all." if len(asks) > NAMED_MAX else ""
        yield f"`perdure answer {shlex.quote(ask_id(case.run.run_id, asks[0].number))} VALUE` answers it.{more}"


def _awaited(event: str) -> str:
    number = event.removeprefix(ANSWER).partition(":")[0]
    return f"the answer to its question {number}" if event.startswith(ANSWER) else f"event {event!r}"


def _put_off(case: Case) -> Iterator[str]:
    run, wait, name = case.run, case.run.wait, shlex.quote(case.run.run_id)
    if wait is not None and not wait.is_for_nothing:
        whats = [f"for {_awaited(each)}" for each in wait.events]
        if not math.isinf(wait.until_ms):
            whats.append(f"until its time comes, {case.due(wait_end_ms(case.view, run, wait))}")
        since = lasting(max(0, case.at_ms - run.waits_since_ms))
        yield f"It waits {' or '.join(whats)}, and has waited for {since}. It is on no host, and that costs it no attempt."
        come = case.view.come_to(run)  # it would have a place if it were not paused
        yield from (f"{first(_awaited(each))} has come, and is taken when it is resumed." for each in come[:1])
        events = [each for each in wait.events if not each.startswith(ANSWER) and not come]
        if events:
            yield f"`perdure send {name} {shlex.quote(events[0])} VALUE` sends it the event."
    if run.paused:
        yield f"It is paused, and on no host, until `perdure resume {name}`."
    if not run.is_awaited and run.options.get("max_budget_ms", math.inf) < math.inf:
        seen = sighting_of(case.view, run, case.awake_at_ms)
        yield from _ends(case, "It is given up", seen.requested_at_ms + run.options["max_budget_ms"], "max_budget_ms")
    else:
        yield "No time limit applies to it meanwhile."


# ------------------------------------------------------------------ live


def _place(case: Case) -> Iterator[str]:
    run = case.run
    if run.teardown:
        yield f"Its child was told {case.ago(run.teardown_at_ms)} to stop: {_reason(case, run.teardown)}."
        end = next_look(case.view, run, case.limits, case.awake_at_ms)
        yield (
            f"If it returns a result before it has stopped, that result counts. Otherwise the run is interrupted"
            f" {case.due(end, since_start=True)} ({case.general('teardown_grace_ms')})."
        )
    elif run.stops_to_undo:
        yield "Its child was told to stop. When it has stopped, the next attempt undoes what its steps have done."
    elif run.is_placed and not case.served:
        yield f"{_last_seen(run)} If that host is gone, the next attempt begins."
    elif run.is_placed and run.paused:
        yield "It is paused: its child stops at its next step at which nothing else of it is at work."
    elif run.is_placed and run.confirmed:
        yield f"Its child is at work on host {run.host_id}{_own_children(case)}."
    elif run.is_placed:
        end = start_due_ms(case.view, run, case.limits, case.awake_at_ms)
        yield (
            f"Its child was given a place on host {run.host_id} {case.ago(run.placed_at_ms)} and has not started yet. If it does not, it is"
            f" stopped and the run is interrupted (inspect-timeout) {case.due(end)} ({case.general('start_timeout_ms')})."
        )
    else:
        yield from _waits(case)
    host = case.view.hosts.get(run.host_id)
    if host is not None and host.blocked:
        yield f"Nothing else on that host goes on: {host.blocked}. If that lasts, it is ended ({case.general('blocked_max_ms')})."


def _last_seen(run: Run) -> str:
    return f"Its child was last seen on host {run.host_id}."


def _own_children(case: Case) -> str:
    names = [name for name in case.view.children.get(case.run.child, ()) if case.view.runs[name].is_awaited]
    if not names:
        return ""
    some = ", ".join(names[:NAMED_MAX]) + (", …" if names[NAMED_MAX:] else "")
    return f", waiting for {counted(len(names), 'run')} of its own ({some})"


def _waits(case: Case) -> Iterator[str]:
    view, run = case.view, case.run
    most = run.options.get("limit")
    if run.waits_for_others:
        yield from _waits_for_others(case)
    elif view.agents.get(run.child, _NOWHERE).host_id:
        yield "Its agent is doing other work, and is asked to end that first."
    elif retry_due_ms(case.view, run) > case.at_ms:
        yield f"Attempt {run.attempt + 1} begins {case.due(retry_due_ms(case.view, run))}. The pause grows with each loss in a row."
    elif most is not None and view.placed.get(run.parent, 0) >= most:
        yield (
            f"It waits until another run of its parent has ended: {view.placed[run.parent]} are at work, and"
            f" max_concurrent_agent_tools of the parent's class allows {most} at a time."
        )
    elif case.served and (trouble := hindrance(view, pool_key(run.options.get("pool")))) is not None:
        yield from _hindered(case, trouble)
    elif case.served:
        before = view.queues.before(line_for(run.options.get("pool")), run.run_id)
        up = counted(sum(host.up for host in view.hosts.values()), "host")
        yield f"It waits for a place: {counted(before, 'run')} before it, {up} up (hosts_max is {case.limits.hosts_max})."
        if askers_host(view, run):
            yield "It needs another host than that of the agent that asked for it, because it has to outlive that agent."
    else:
        yield "It waits for a place on a host."
    key = pool_key(run.options.get("pool"))
    if is_run_alone(view, run, blamed_in(view, key, case.limits), case.limits):
        yield from _alone(case, f"its host died under it {run.losses} times in a row" if run.losses else "")
    if run.lost_at_ms and not waits_its_turn(view, run):
        end = place_due_ms(case.view, run, case.limits, case.awake_at_ms)
        yield (
            f"If no place is found for it {case.due(end, since_start=True)} ({case.general('recovery_deadline_ms')}),"
            " it is interrupted (recovery-deadline)."
        )


def _waits_for_others(case: Case) -> Iterator[str]:
    condition = case.run.condition
    assert condition is not None, "a run that waits for others has a condition"
    yield f"It waits for {condition_in_words(condition)}. It is on no host meanwhile."
    verdict = judge_condition(condition, partial(source_of, case.view))
    if verdict.met:
        leaves = leaves_of(condition)
        met = [condition_in_words(leaves[place]) for place in verdict.met]
        yield f"There already: {', '.join(met[:NAMED_MAX])}{', …' if met[NAMED_MAX:] else ''}."
    if case.run.options.get("losers") == "cancel":
        yield "When that is decided, those of these runs that are not needed are cancelled."


def _hindered(case: Case, trouble: PoolTrouble) -> Iterator[str]:
    yield f"It waits for a place, and {trouble}. That is so since {lasting(max(0, case.at_ms - trouble.since_at_ms))}."
    if trouble.is_lack:
        yield "It begins when a node has it. `perdure cancel` gives it up."
    elif is_at_fault(case.view, pool_key(trouble.spec)) and case.run.attempt == case.run.begun_after:
        most = case.run.attempts(case.limits.attempts_max).most
        yield f"Other hosts come up, so it fails after {max(STARTS_MAX, most)} such tries ({case.general('attempts_max')})."
    else:
        yield "It is tried again, ever more seldom, and the run goes on when a host comes up."


def _alone(case: Case, died: str) -> Iterator[str]:
    is_blocker = case.run.child in case.view.blockers
    why = "its code blocked the event loop of its host" if is_blocker else died or "its class asks for that"
    yield f"It gets a host to itself, because {why}."


def _attempts(case: Case) -> Iterator[str]:
    run, limits = case.run, case.limits
    coming = run.attempt + (not run.is_placed)
    if coming - run.begun_after - run.reentries == 1:
        return
    attempts, in_all = run.attempts(limits.attempts_max), run.counted_attempts
    yield f"It is in attempt {coming}." if run.is_placed else f"Attempt {coming} is next."
    if run.cause:
        yield f"The attempt before was lost: {run.cause}."
    yield (
        f"Used up: {attempts.spent} of {attempts.most} attempts without progress in between (attempts_max), and {in_all} of"
        f" {limits.recovery_work_max} in all (recovery_work_max)."
    )
    if run.collect or (not run.is_placed and attempts.are_used_up):
        yield "The last attempt only hands in a result that its child committed before. `run` is not called again."


def _signs(case: Case) -> Iterator[str]:
    run = case.run
    if not run.signal_at_ms:
        return
    said = unpack(run.progress) if run.progress is not None else {}
    words = [f"{said['fraction']:.0%}"] if isinstance(said.get("fraction"), int | float) else []
    words += [str(said[key]) for key in ("phase", "message") if said.get(key)]
    yield f"Its child last reported {case.ago(run.signal_at_ms)}" + (
        f"; its progress: {', '.join(words)}." if words else "."
    )


def _patience(case: Case) -> Iterator[str]:
    run = case.run
    if run.teardown or run.is_undoing:
        return
    budget, seen = budget_of(run, case.limits), sighting_of(case.view, run, case.awake_at_ms)
    quiet_since, silence_counts = max(seen.reattached_at_ms, seen.signal_at_ms), not waits_its_turn(case.view, run)
    if not run.is_awaited:
        yield from _ends(case, "It is given up", seen.requested_at_ms + budget.absolute_ms, "max_budget_ms")
        if silence_counts and is_window(budget.silence_ms) and seen.signal_at_ms:
            yield from _ends(
                case,
                "If it stays silent, it is given up",
                quiet_since + budget.silence_ms,
                "no_progress_budget_ms",
                since_start=True,
            )
    elif not run.parent and not run.reattached_at_ms:
        yield "No time limit applies to it, because a client asked for it."
    elif not run.reattached_at_ms:
        yield "Its parent waits for it without a time limit, unless it has to re-attach to it."
    else:
        if silence_counts:
            silence = quiet_since + budget.reattach_silence_ms
            yield from _ends(
                case, "If it stays silent, it is interrupted", silence, "reattach_no_progress_ms", since_start=True
            )
        if is_window(budget.reattach_window_ms):
            window = seen.reattached_at_ms + budget.reattach_window_ms
            yield from _ends(case, "It is interrupted in any case", window, "reattach_window_ms")


def _ends(case: Case, what: str, at_ms: float, option: str, *, since_start: bool = False) -> Iterator[str]:
    name = next(name for known, name in _LIMITED.values() if known == option)
    if at_ms < math.inf:
        yield f"{what} {case.due(at_ms, since_start=since_start)} ({case.limit(option, name)})."


# ------------------------------------------------------------------ interrupted


def _interrupted(case: Case) -> Iterator[str]:
    run = case.run
    yield f"{first(case.parent)} stopped waiting for it {case.ago(run.ended_at_ms)} ({run.reason}): {_reason(case, run.reason)}."
    if run.is_placed and case.served and run.teardown_at_ms:
        yield _stopping(case)
    elif run.is_placed and case.served:
        yield f"Its child is still on host {run.host_id}."
    elif run.is_placed:
        yield _last_seen(run)
    elif run.child_still_running:
        yield "Its child was still at work then. It is on no host now."
    elif run.child_still_running is False:
        awaited = run.is_awaited and run.reason == InterruptedReason.NO_PROGRESS
        yield "Its child was on no host then." if awaited else "Its child has been stopped."
    else:
        yield "What became of its child is unknown. It is on no host."


def _reason(case: Case, reason: str) -> str:
    limited = _LIMITED.get((InterruptedReason(reason), not case.run.is_awaited))
    limit = f" ({case.limit(*limited)})" if limited is not None else ""
    return {
        InterruptedReason.NO_PROGRESS: f"its child did not report for too long{limit}",
        InterruptedReason.WINDOW_EXCEEDED: f"it did not end in time after its parent had re-attached{limit}",
        InterruptedReason.BUDGET_EXCEEDED: f"it did not end in time after it was requested{limit}",
        InterruptedReason.INSPECT_TIMEOUT: f"its child did not start in time ({case.general('start_timeout_ms')})",
        InterruptedReason.INSPECT_FAILED: f"its class could be imported for an earlier attempt, but no longer can: {case.run.error}",
        InterruptedReason.NOT_TAILABLE: f"its class no longer has a `run`: {case.run.error}",
        InterruptedReason.RECOVERY_DEADLINE: f"no host was found for it after a loss ({case.general('recovery_deadline_ms')})",
    }[InterruptedReason(reason)]


def _way_on(case: Case) -> Iterator[str]:
    run = case.run
    if run.is_placed or case.view.agents.get(run.child, _NOWHERE).unclean:
        yield "If its child still ends, that end replaces the interruption."
    else:
        yield "Nothing more happens by itself."
    if run.is_awaited:
        asks = "its parent asks again" if run.parent else "a client asks again"
        follows = "the wait goes on" if run.is_placed else "the run gets another attempt"
        yield f"If {asks} for this run id with the same input, {follows}."
    else:
        yield "Requesting a detached run again under its id changes nothing. Use another id, or clear this run first."
    yield f"`perdure retry {shlex.quote(run.run_id)}` tries it again, with all its attempts."
    yield f"It is kept until `perdure clear {shlex.quote(run.run_id)}` deletes it."


# ------------------------------------------------------------------ over


def _end(case: Case) -> Iterator[str]:
    run = case.run
    took = lasting(max(0, run.ended_at_ms - run.requested_at_ms))
    when = f"{case.ago(run.ended_at_ms)}, {took} after it was asked for"
    tries = f", in attempt {run.attempt}" if run.attempt > 1 else ""
    if run.status is Status.COMPLETED:
        yield f"It completed {when}{tries}."
    elif run.status is Status.ERROR:
        yield f"It failed {when}{tries}: {run.error}"
        yield from run.trace.splitlines()
    else:
        yield f"It was cancelled {when}: {run.error}"
    if run.attempt > 1 and run.cause:
        yield f"The last attempt that was lost: {run.cause}."
    yield from _afterlife(case)
    if run.status is Status.ERROR:
        yield f"`perdure retry {shlex.quote(run.run_id)}` tries it again. By itself this end never changes."
    else:
        yield "This end never changes."


def _afterlife(case: Case) -> Iterator[str]:
    view, run = case.view, case.run
    life = view.agents.get(run.child, _NOWHERE)
    if run.is_placed and not case.served:
        yield _last_seen(run)
    elif run.is_placed and run.teardown:
        yield _stopping(case)
    elif life.host_id:
        yield f"Its child does other work on host {life.host_id}."
    elif life.unclean:
        yield f"Its child may have other work to do, so it is woken again {case.due(life.wake_at_ms)}."
        home = view.home_of(run.child)
        if is_alone(view, run.child, home, life.deaths, blamed_in(view, pool_key(home), case.limits)):
            yield from _alone(case, f"{counted(life.deaths, 'host')} died under it lately" if life.deaths else "")


def _stopping(case: Case) -> str:
    run, grace_ms = case.run, case.limits.teardown_grace_ms
    told_ms = max(run.teardown_at_ms, case.awake_at_ms)
    if case.at_ms < told_ms + grace_ms:
        return f"Its child on host {run.host_id} is being stopped."
    return (
        f"Its child on host {run.host_id} goes on, although it was told {case.ago(told_ms)} to stop: its code does not let itself be"
        f" cancelled. Storage and runtime are closed to it ({case.general('teardown_grace_ms')})."
    )


# ------------------------------------------------------------------ mail


def _letter(case: Case, slot: str, state: MailState, mail: Mail | None) -> Iterator[str]:
    what = f"The mail that tells {case.run.parent} of its {_SLOTS.get(slot, slot.replace(':', ' '))}"
    failed = f"its handler {mail.handler or 'on_agent_tool_finish'} raised: {mail.error}" if mail is not None else ""
    if state is MailState.PARKED and mail is not None:
        yield f"{what} is parked after {counted(mail.attempts, 'attempt')}: {failed}"
        yield f"`perdure retry {shlex.quote(mail.mail_id)}` delivers it again."
    elif state is MailState.PENDING and mail is not None and mail.attempts:
        yield f"{what} was tried {counted(mail.attempts, 'time')}: {failed}"
        if mail.retry_at_ms > case.at_ms:
            yield f"It is delivered again {case.due(mail.retry_at_ms)}."
    elif state is MailState.PENDING:
        yield f"{what} is on its way."
    elif state is MailState.SUPERSEDED:
        yield f"{what} was superseded by the mail about its end before it was delivered."
    elif state is MailState.SUPPRESSED:
        yield f"{what} was withdrawn, because the run was cleared."
    else:
        yield f"{what} has been handled."


_SLOTS: dict[str, str] = {Slot.FINISH: "end", Slot.GIVE_UP: "interruption"}
