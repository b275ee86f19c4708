"""The record of one run, and the fold that makes it from its facts.

The record is all that the supervisor knows of a run. Only this module changes it, and only for a fact, so the same facts always give the
same record (invariant 8): `apply` for a fact about the run, `Run.release` when its child left its host, `Run.mark_slot` when a mail of it
moved. The table in `transitions` moves the status; the functions below keep the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

from perdure.ledger.activation import with_package
from perdure.ledger.facts import (
    FRAME_FACTS,
    AskAnswered,
    AskEscalated,
    AskLapsed,
    AskOpened,
    AskWithdrawn,
    AttemptLost,
    AttemptStarted,
    ChunkEmitted,
    EventTaken,
    Fact,
    JoinMet,
    MilestoneReached,
    ProgressReported,
    RunAborted,
    RunCleared,
    RunErrored,
    RunInterrupted,
    RunParked,
    RunPaused,
    RunReattached,
    RunRequested,
    RunRetried,
    RunStarted,
    RunSucceeded,
    RunWaiting,
    TeardownBegan,
    UndoBegan,
    UndoPromised,
)
from perdure.ledger.ids import agent_id, mail_id, name_of
from perdure.ledger.mail import MailState, Slot
from perdure.ledger.status import ENDED, HARD, LIVE, RETRIABLE, AskStatus, Status, Undo
from perdure.ledger.transitions import cell
from perdure.policies import Attempts, Cell, Condition, IllegalTransition, condition_from, leaves_of

RECEIPTS_KEPT: Final = 1_000


# What a run waits for without a process, as `RunWaiting` says it.
class RunWait(NamedTuple):
    events: Sequence[str]
    until_ms: float
    by_wall: bool
    deadline_ms: float

    @property
    def is_for_nothing(self) -> bool:
        # The child stopped because the run was paused.
        return not self.events and math.isinf(self.until_ms)


# What a person has answered, and when; `AskAnswered` says the rest.
class GivenAnswer(NamedTuple):
    who: str
    value: bytes
    edited: bytes | None
    channel: str
    at_ms: int
    answer_id: str


class AskRecord(NamedTuple):
    """A question to people, as `AskOpened` says it; `seq` is the number of that fact. `answers` are the latest of each person."""

    number: int
    digest: str
    question: str
    schema: bytes
    args: bytes | None
    to: Sequence[tuple[str, int]]
    level: int
    people: int
    self_answer: bool
    began_by: str
    expires_at_ms: int
    otherwise: bytes | None
    note: str
    seq: int
    opened_at_ms: int
    status: AskStatus = AskStatus.OPEN
    closed_at_ms: int = 0
    answers: Sequence[GivenAnswer] = ()

    @property
    def is_open(self) -> bool:
        return self.status is AskStatus.OPEN

    @property
    def next_at_ms(self) -> float:
        """When it goes on to the next of those that it names, or expires; infinity if neither."""
        following = [at_ms for _, at_ms in self.to[self.level :][:1]]
        return min([*following, self.expires_at_ms or math.inf])

    def has_answer(self, answer_id: str) -> bool:
        return any(each.answer_id == answer_id for each in self.answers)

    def by_now(self, wall_ms: float) -> AskRecord:
        """The same, as far as it has come by the wall clock among those that it names."""
        return self._replace(level=sum(at_ms <= wall_ms for _, at_ms in self.to))

    def closed(self, status: AskStatus, at_ms: int) -> AskRecord:
        return self._replace(status=status, closed_at_ms=at_ms)

    def answered(self, given: GivenAnswer, *, closes: bool) -> AskRecord:
        answers = [*(each for each in self.answers if each.who != given.who), given]
        ask = self._replace(answers=answers)
        return ask.closed(AskStatus.ANSWERED, given.at_ms) if closes else ask

    @classmethod
    def from_plain(cls, plain: Sequence[Any]) -> AskRecord:
        ask = cls(*plain)
        to, answers = [(name, at_ms) for name, at_ms in ask.to], [GivenAnswer(*each) for each in ask.answers]
        return ask._replace(to=to, status=AskStatus(ask.status), answers=answers)


def opened(fact: AskOpened, seq: int, at_ms: int) -> AskRecord:
    to = [(name, begins_at_ms) for name, begins_at_ms in fact.to]
    return AskRecord(*fact[1:], seq=seq, opened_at_ms=at_ms)._replace(to=to)


Milestone: TypeAlias = tuple[int, str, int, int, bytes, str]
NO_SLOTS: Final[dict[str, MailState]] = {}
NO_CHUNK: Final = (0, -1)


@dataclass(slots=True)
class Run:
    """One logical execution of a child, requested by a parent under a run id.

    `parked` says why the run waits for other code or for a person; it is live then, and no time limit applies to it. `retries` counts how
    often it was tried again after an end, and `begun_after` the attempts before that, which do not count any more. Since then it has other
    ends to tell, whose mail is told from the earlier by `end_mark`; `overtaken` are mails about earlier ends, which were not delivered.

    With `wait` the run is on no host until its wait is over. Then it is entered again, which costs none of its attempts: `reentries`
    counts that, `waited_ms` is how long it has waited in all, and `over_ms` tells the child which of its deadlines has passed. `paused`
    keeps it from every host. `receipts` says of the events that it took last, in which attempt, after which step, and when.
    `joined` are the leaves of its condition that had come true when it might begin, `ended_seq` is the number of its end.
    `undo` is a word of `Undo`, or empty: whether its steps are undone before it ends, and how it ends then. While they are, `error` says
    why, no time limit applies, and the attempts after `begun_after` undo.

    `asks` are its questions to people, the oldest first: the open ones, and the last that were closed.

    Runs without mail share `NO_SLOTS`, which stays empty, so that a million waiting runs do not hold a million dictionaries.
    """

    run_id: str
    agent_type: str
    parent: str
    parent_run: str
    digest: str
    input: bytes | None
    options: dict[str, Any]
    life: int
    requested_at_ms: int
    first_seq: int
    last_seq: int = 0
    frames: int = 0
    status: Status = Status.STARTING
    attempt: int = 0
    incarnation: int = 0
    host_id: str = ""
    collect: bool = False
    placed_at_ms: int = 0
    confirmed: bool = False
    losses: int = 0
    idle_attempts: int = 0
    lost_at_ms: int = 0
    retry_at_ms: int = 0
    cause: str = ""
    signal_at_ms: int = 0
    progress: bytes | None = None
    milestones: Sequence[Milestone] = ()
    chunk: tuple[int, int] = NO_CHUNK
    reattached_at_ms: int = 0
    teardown: str = ""
    teardown_at_ms: int = 0
    ended_at_ms: int = 0
    output: bytes | None = None
    large_output: bool = False
    summary: str = ""
    error: str = ""
    reason: str = ""
    child_still_running: bool | None = None
    cleared: bool = False
    slots: dict[str, MailState] = field(default_factory=lambda: NO_SLOTS)
    mark: int = 0
    trace: str = ""
    progress_at_ms: int = 0
    parked: str = ""
    retries: int = 0
    retried_at_ms: int = 0
    begun_after: int = 0
    end_mark: int = 0
    overtaken: Sequence[str] = ()
    wait: RunWait | None = None
    waits_since_ms: int = 0
    waited_ms: int = 0
    reentries: int = 0
    over_ms: float = 0
    paused: bool = False
    paused_at_ms: int = 0
    receipts: dict[str, list[Any]] | None = None
    joined: list[int] | None = None
    joined_at_ms: int = 0
    ended_seq: int = 0
    undo: str = ""
    asks: Sequence[AskRecord] = ()

    child: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.child = agent_id(self.agent_type, self.run_id)  # one child per run, named by its id

    @property
    def is_live(self) -> bool:
        return self.status in LIVE

    @property
    def is_hard(self) -> bool:
        return self.status in HARD

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED

    @property
    def is_placed(self) -> bool:
        return self.host_id != ""

    @property
    def is_awaited(self) -> bool:
        return not self.options.get("detached")

    @property
    def condition(self) -> Condition | None:
        after = self.options.get("after")
        return None if after is None else condition_from(after)

    @property
    def waits_for_others(self) -> bool:
        return "after" in self.options and self.joined is None and self.is_live

    @property
    def sources(self) -> list[str]:
        """The runs that it needs: while it waits those of its condition, and after that those whose results it is given."""
        condition = self.condition
        leaves = [] if condition is None else leaves_of(condition)
        needed = leaves if self.joined is None else [leaves[place] for place in self.joined]
        return list(dict.fromkeys(leaf.run_id for leaf in needed))

    @property
    def is_undoing(self) -> bool:
        return bool(self.undo) and self.undo != Undo.PROMISED and self.is_live

    @property
    def stops_to_undo(self) -> bool:
        # The attempt that was at work when that was decided. Its child is told to stop, and the next one undoes.
        return self.is_undoing and self.is_placed and self.attempt <= self.begun_after

    @property
    def begins_anew(self) -> bool:
        # Until the next attempt begins, newer code that comes is taken.
        if self.is_undoing:
            return False
        return bool(self.retried_at_ms) and self.status is Status.STARTING and self.attempt == self.begun_after

    @property
    def can_be_retried(self) -> bool:
        return bool(self.parked) or self.status in RETRIABLE

    @property
    def trouble(self) -> str:
        # In all its words: the error, and why it was given up or parked.
        return "\n".join(filter(None, (self.error, self.reason, self.parked)))

    @property
    def wants_mail(self) -> bool:
        options = self.options
        told = ("on_finish", "on_give_up", "hook", "notify")
        return bool(options and self.parent) and any(options.get(name) for name in told)

    def mail_id(self, slot: str) -> str:
        is_of_end = slot in (Slot.FINISH, Slot.GIVE_UP)
        return mail_id(self.run_id, slot, (is_of_end and self.end_mark) or self.mark)

    @property
    def mail_ids(self) -> list[str]:
        return [*map(self.mail_id, self.slots), *self.overtaken]  # those that may still be known

    def attempts(self, default_max: int) -> Attempts:
        most = default_max if self.is_undoing else self.options.get("attempts_max") or default_max
        # A limit of one means at most once, so all attempts count.
        return Attempts(self.counted_attempts if most == 1 else self.idle_attempts, most)

    def has_a_last_chance(self, default_max: int) -> bool:
        # Whoever dies beside it would take it.
        spent, most = self.attempts(default_max)
        return self.losses > 0 and spent >= max(1, most - 1)

    @property
    def counted_attempts(self) -> int:
        return self.attempt - self.begun_after - self.reentries

    @property
    def is_put_off(self) -> bool:
        """Whether it is on no host because it waits, or is paused."""
        return not self.host_id and (self.wait is not None or self.paused)

    @property
    def is_settled(self) -> bool:
        is_over = self.has_ended and not self.host_id and MailState.PENDING not in self.slots.values()
        return is_over and not (self.asks and self.open_asks)

    @property
    def open_asks(self) -> list[AskRecord]:
        return [ask for ask in self.asks if ask.is_open]

    def ask(self, number: int) -> AskRecord | None:
        return next((ask for ask in self.asks if ask.number == number), None)

    def answer_mail(self, ask: AskRecord) -> str:
        return f"answer!{self.run_id}!{ask.number}!{ask.seq}"

    def forget_asks(self, kept: int, but: Container[int]) -> None:
        """Forget the oldest closed questions but for so many, and but for these."""
        closed = [ask.number for ask in self.asks if not ask.is_open and ask.number not in but]
        gone = set(closed[: max(0, len(closed) - kept)])
        self.asks = tuple(ask for ask in self.asks if ask.number not in gone)

    def release(self, seq: int) -> None:
        self.host_id, self.last_seq, self.teardown = "", seq, "" if self.is_hard else self.teardown

    def mark_slot(self, slot: str, state: MailState) -> None:
        if not self.slots:  # an empty dictionary may be shared
            self.slots = {}
        self.slots[slot] = state

    def forget_ends(self, seq: int) -> None:
        ends = (Slot.FINISH, Slot.GIVE_UP)
        gone = [self.mail_id(slot) for slot in ends if self.slots.get(slot) is MailState.SUPERSEDED]
        self.overtaken = (*self.overtaken, *gone)
        self.slots = {slot: state for slot, state in self.slots.items() if slot not in ends}
        self.end_mark = seq

    def to_plain(self) -> list[object]:
        return [*_plain_of(self)]

    @classmethod
    def from_plain(cls, plain: list[Any]) -> Run:
        run = cls(*plain)
        run.status = _STATUSES[run.status]
        run.agent_type, run.parent = _same(run.agent_type, run.parent)  # which many have
        run.milestones = tuple([(*stone,) for stone in run.milestones]) if run.milestones else ()
        run.chunk = (run.chunk[0], run.chunk[1]) if run.chunk[0] else NO_CHUNK
        run.slots = {slot: MailState(state) for slot, state in run.slots.items()} if run.slots else NO_SLOTS
        run.overtaken = tuple(run.overtaken) if run.overtaken else ()
        run.wait = None if run.wait is None else _wait(*run.wait[1:], *run.wait[0])
        run.asks = tuple(map(AskRecord.from_plain, run.asks)) if run.asks else ()
        return run


_plain_of = attrgetter(*(each.name for each in fields(Run) if each.init))
_STATUSES: Final = {str(each): each for each in Status}  # a boot looks up one for each run, in a third of the time


def open_run(fact: RunRequested, seq: int, at_ms: int) -> Run:
    return Run(*fact[:8], requested_at_ms=at_ms, first_seq=seq, last_seq=seq, frames=1, mark=fact.mark)


def apply(run: Run, fact: Fact, seq: int, at_ms: int) -> int | None:
    """Change the record by one fact, and return the fact's number in the run's event stream, if it is an event."""
    outcome = cell(run.status, type(fact))
    if isinstance(outcome, Cell):
        raise IllegalTransition(run.run_id, run.status, type(fact).__name__)
    run.status = outcome
    run.last_seq = seq
    keep = _KEEPERS.get(type(fact))
    if keep is not None:
        keep(run, fact, at_ms)
    if type(fact) in FRAME_FACTS or (isinstance(fact, AttemptStarted) and fact.attempt > 1):
        run.frames += 1
        return run.frames - 1
    return None


def begin_all(runs: Sequence[Run], incarnation: int, host_id: str, seq: int, at_ms: int) -> None:
    """What `apply` does to runs whose first attempts begin together: the facts have the numbers from `seq` on, the lives those from
    `incarnation` on."""
    after = _statuses_after(runs, AttemptStarted)
    for place, run in enumerate(runs):
        run.status, run.last_seq = after[run.status], seq + place
        run.attempt, run.incarnation, run.host_id, run.collect = 1, incarnation + place, host_id, False
        run.placed_at_ms, run.confirmed, run.retry_at_ms = at_ms, False, 0
        run.idle_attempts += 1


def complete_all(
    runs: Sequence[Run], outputs: Sequence[bytes | None], summaries: Sequence[str], seq: int, at_ms: int
) -> None:
    # Their children have left their hosts. The facts have the numbers from `seq` on.
    after = _statuses_after(runs, RunSucceeded)
    for place, (run, output, summary) in enumerate(zip(runs, outputs, summaries, strict=True)):
        run.status, run.last_seq = after[run.status], seq + place
        run.frames += 1
        _end(run, at_ms, released=True)
        run.output, run.summary, run.large_output, run.error = output, summary, False, ""


def _statuses_after(runs: Sequence[Run], kind: type[Fact]) -> dict[Status, Status]:
    after: dict[Status, Status] = {}
    for run in {run.status: run for run in runs}.values():
        outcome = cell(run.status, kind)
        if isinstance(outcome, Cell):
            raise IllegalTransition(run.run_id, run.status, kind.__name__)
        after[run.status] = outcome
    return after


def run_of(runs: Mapping[str, Run], agent: str) -> Run | None:
    """The run whose child this agent is; None if it is no child, or its run is not among these."""
    run = runs.get(name_of(agent))  # the child of a run bears the run's id as its name
    return run if run is not None and run.child == agent else None


def outcome_of(run: Run) -> dict[str, Any]:
    told: dict[str, Any] = {"status": str(run.status), "summary": run.summary, "error": run.error, "output": run.output}
    if run.large_output:
        told["large"] = True
    if run.trace:
        told["trace"] = run.trace
    if run.reason:
        told["reason"], told["child_still_running"] = run.reason, run.child_still_running
    return told


def _attempt_started(run: Run, fact: AttemptStarted, at_ms: int) -> None:
    run.attempt, run.incarnation, run.host_id, run.collect = fact[1:5]
    run.placed_at_ms, run.confirmed, run.retry_at_ms = at_ms, False, 0
    run.idle_attempts += 1
    if run.wait is not None:
        _waited(run, run.wait, at_ms)


def _waited(run: Run, wait: RunWait, at_ms: int) -> None:
    # It was not silent meanwhile, and nobody had to come back to it.
    is_over = at_ms >= wait.until_ms and not wait.by_wall
    run.over_ms = wait.deadline_ms if is_over else 0
    run.waited_ms += at_ms - run.waits_since_ms
    run.reentries += 1
    run.signal_at_ms = at_ms
    run.reattached_at_ms = at_ms if run.reattached_at_ms else 0
    run.wait = None


def _signalled(run: Run, at_ms: int) -> None:
    run.confirmed, run.signal_at_ms, run.idle_attempts, run.losses = True, at_ms, 0, 0


def _told(run: Run, fact: ProgressReported | MilestoneReached, at_ms: int) -> None:
    if fact.relayed:  # by a tool on another host: the run goes on, and nothing is known of the attempt's host
        run.signal_at_ms = at_ms
    else:
        _signalled(run, at_ms)


def _progress(run: Run, fact: ProgressReported, at_ms: int) -> None:
    _told(run, fact, at_ms)
    run.progress, run.progress_at_ms = fact.body, at_ms


def _milestone(run: Run, fact: MilestoneReached, at_ms: int) -> None:
    _told(run, fact, at_ms)
    run.milestones = (*run.milestones, (fact.number, fact.name, fact.occurrence, at_ms, fact.body, fact.source))


def _chunk(run: Run, fact: ChunkEmitted, at_ms: int) -> None:
    _signalled(run, at_ms)
    run.chunk = (fact.attempt, fact.number)


def _end(run: Run, at_ms: int, *, released: bool) -> None:
    run.ended_at_ms, run.reason, run.child_still_running, run.teardown, run.parked = at_ms, "", None, "", ""
    run.wait, run.paused = None, False
    run.ended_seq = run.last_seq
    run.undo = ""
    if run.asks:
        _withdraw_asks(run, at_ms)
    if released:
        run.host_id = ""


def _completed(run: Run, fact: RunSucceeded, at_ms: int) -> None:
    _end(run, at_ms, released=fact.released)
    run.output, run.summary, run.large_output, run.error = fact.output, fact.summary, fact.large, ""


def _failed(run: Run, fact: RunErrored, at_ms: int) -> None:
    _end(run, at_ms, released=fact.released)
    run.error, run.trace = fact.error, fact.trace


def _aborted(run: Run, fact: RunAborted, at_ms: int) -> None:
    _end(run, at_ms, released=False)
    run.error, run.teardown, run.teardown_at_ms = fact.reason, str(Status.ABORTED) if run.host_id else "", at_ms


def _interrupted(run: Run, fact: RunInterrupted, at_ms: int) -> None:
    run.ended_at_ms, run.reason, run.error = at_ms, fact.reason, fact.error
    run.wait, run.paused = None, False
    run.child_still_running = fact.child_still_running


def _teardown(run: Run, fact: TeardownBegan, at_ms: int) -> None:
    run.teardown, run.teardown_at_ms = fact.reason, at_ms


def _lost(run: Run, fact: AttemptLost, at_ms: int) -> None:
    run.host_id, run.confirmed, run.cause = "", False, fact.cause
    if fact.excused:
        run.idle_attempts = max(0, run.idle_attempts - 1)
    else:
        run.losses += 1
    run.retry_at_ms, run.lost_at_ms = fact.retry_at_ms, at_ms


def _reattached(run: Run, fact: RunReattached, at_ms: int) -> None:
    run.life = fact.life
    run.reattached_at_ms, run.reason, run.child_still_running, run.ended_at_ms = at_ms, "", None, 0
    run.error = run.error if run.is_undoing else ""
    run.teardown = ""
    if not (run.host_id or run.is_put_off):
        run.status = Status.STARTING  # interrupted or not: its next attempt is still to come
        run.idle_attempts, run.losses, run.retry_at_ms = 0, 0, 0
        run.lost_at_ms = at_ms if run.lost_at_ms else 0  # its deadline for a place begins anew


def _joined(run: Run, fact: JoinMet, at_ms: int) -> None:
    run.joined, run.joined_at_ms = fact.met, at_ms


def _cleared(run: Run, _fact: RunCleared, _at_ms: int) -> None:
    run.cleared = True


def _started(run: Run, _fact: Fact, _at_ms: int) -> None:
    run.confirmed = True


def _parked(run: Run, fact: RunParked, _at_ms: int) -> None:
    run.host_id, run.confirmed, run.parked, run.retry_at_ms, run.lost_at_ms = "", False, fact.error, 0, 0


def _waiting(run: Run, fact: RunWaiting, at_ms: int) -> None:
    _signalled(run, at_ms)
    run.wait, run.waits_since_ms = _wait(fact.until_ms, fact.by_wall, fact.deadline_ms, *fact.events), at_ms
    run.host_id, run.confirmed, run.cause, run.retry_at_ms, run.lost_at_ms = "", False, "", 0, 0
    run.ended_at_ms, run.reason, run.child_still_running, run.error = 0, "", None, ""


@lru_cache(maxsize=1_000)
def _wait(until_ms: float, by_wall: bool, deadline_ms: float, *events: str) -> RunWait:
    # Many wait for the same, and for no time: they share what they wait for.
    return RunWait(events, until_ms, by_wall, deadline_ms)


@lru_cache(maxsize=1_000)
def _same(*names: str) -> Sequence[str]:
    return names


def _taken(run: Run, fact: EventTaken, at_ms: int) -> None:
    receipts = run.receipts = run.receipts or {}
    receipts[fact.mail_id] = [fact.attempt, fact.after, at_ms]
    if len(receipts) > RECEIPTS_KEPT:
        del receipts[next(iter(receipts))]


def _ask_opened(run: Run, fact: AskOpened, at_ms: int) -> None:
    _signalled(run, at_ms)
    run.asks = (*(ask for ask in run.asks if ask.number != fact.number), opened(fact, run.last_seq, at_ms))


def _ask_changed(run: Run, fact: AskAnswered | AskLapsed | AskEscalated | AskWithdrawn, at_ms: int) -> None:
    change = _ASK_CHANGES[type(fact)]
    run.asks = tuple(change(ask, fact, at_ms) if ask.number == fact.number else ask for ask in run.asks)


def _ask_answered(ask: AskRecord, fact: AskAnswered, at_ms: int) -> AskRecord:
    given = GivenAnswer(fact.who, fact.value, fact.edited, fact.channel, at_ms, fact.answer_id)
    return ask.answered(given, closes=fact.closes)


_ASK_CHANGES: dict[type[Fact], Callable[[AskRecord, Any, int], AskRecord]] = {
    AskAnswered: _ask_answered,
    AskLapsed: lambda ask, _fact, at_ms: ask.closed(AskStatus.EXPIRED, at_ms),
    AskEscalated: lambda ask, fact, _at_ms: ask._replace(level=fact.level),
    AskWithdrawn: lambda ask, _fact, at_ms: ask.closed(AskStatus.WITHDRAWN, at_ms),
}


def _withdraw_asks(run: Run, at_ms: int) -> None:
    # Nobody is left to take an answer.
    run.asks = tuple(ask.closed(AskStatus.WITHDRAWN, at_ms) if ask.is_open else ask for ask in run.asks)


def _paused(run: Run, fact: RunPaused, at_ms: int) -> None:
    if run.paused and not (run.host_id or run.wait):  # it was not silent meanwhile, and nobody had to come back to it
        run.waited_ms += at_ms - max(run.paused_at_ms, run.lost_at_ms)
        run.signal_at_ms = at_ms if run.signal_at_ms else 0
        run.reattached_at_ms = at_ms if run.reattached_at_ms else 0
        run.lost_at_ms = at_ms if run.lost_at_ms else 0
    run.paused, run.paused_at_ms = fact.paused, at_ms


def _retried(run: Run, fact: RunRetried, at_ms: int) -> None:
    if run.ended_at_ms:
        run.retries += 1
    run.retried_at_ms, run.begun_after, run.host_id, run.confirmed = at_ms, run.attempt, "", False
    run.idle_attempts, run.losses, run.retry_at_ms, run.lost_at_ms, run.signal_at_ms = 0, 0, 0, 0, 0
    if not run.is_undoing:  # otherwise they say why
        run.error, run.trace = "", ""
    run.cause, run.reason, run.child_still_running, run.parked = "", "", None, ""
    run.ended_at_ms, run.reattached_at_ms, run.teardown, run.teardown_at_ms = 0, 0, "", 0
    run.wait, run.waited_ms, run.reentries, run.over_ms = None, 0, 0, 0  # if it is paused, it stays so
    if fact.package is not None:
        run.options = {**run.options, "pool": with_package(run.options.get("pool"), fact.package)}


def _undo_promised(run: Run, _fact: UndoPromised, _at_ms: int) -> None:
    run.confirmed, run.undo = True, Undo.PROMISED


def _undo_began(run: Run, fact: UndoBegan, at_ms: int) -> None:
    run.undo, run.begun_after, run.error, run.trace = fact.undo, fact.attempt, fact.error, fact.trace
    run.teardown, run.teardown_at_ms, run.parked, run.reason, run.child_still_running = "", 0, "", "", None
    run.idle_attempts, run.losses, run.retry_at_ms, run.lost_at_ms, run.ended_at_ms = 0, 0, 0, 0, 0
    run.wait, run.paused, run.reentries = None, False, 0
    _withdraw_asks(run, at_ms)


_KEEPERS: dict[type[Fact], Callable[[Run, Any, int], None]] = {
    JoinMet: _joined,
    AttemptStarted: _attempt_started,
    RunStarted: _started,
    ProgressReported: _progress,
    MilestoneReached: _milestone,
    ChunkEmitted: _chunk,
    RunSucceeded: _completed,
    RunErrored: _failed,
    RunAborted: _aborted,
    RunInterrupted: _interrupted,
    TeardownBegan: _teardown,
    AttemptLost: _lost,
    RunReattached: _reattached,
    RunCleared: _cleared,
    RunParked: _parked,
    RunWaiting: _waiting,
    RunPaused: _paused,
    EventTaken: _taken,
    UndoPromised: _undo_promised,
    UndoBegan: _undo_began,
    AskOpened: _ask_opened,
    **dict.fromkeys(_ASK_CHANGES, _ask_changed),
    RunRetried: _retried,
}
