"""How the view changes: what each fact does to it, records first, then the indexes that follow from them.

`apply_fact` consumes what `decide` yields. `record_fact` numbers one fact and hands back the row to be made durable. `fold` changes the
view by a fact that is durable already. A fact that is not in `_FOLDS` changes its run (`run.apply`), and then what `_FOLLOWS` says.

A batch changes each record by the fact for which it stands there, and each index once for all. What comes of it is what would come of its
members one after the other, now and at a boot; tests compare the two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

from perdure.ledger.activation import Activation
from perdure.ledger.asks import note_asks, note_calls
from perdure.ledger.codec import encode, pack
from perdure.ledger.facts import (
    AgentActivated,
    AgentDoomed,
    AgentForgotten,
    AgentLost,
    AgentReleased,
    AgentStopped,
    AlarmRang,
    AlarmSet,
    AskAnswered,
    AskEscalated,
    AskLapsed,
    AskOpened,
    AskWithdrawn,
    AttemptLost,
    AttemptStarted,
    CallsAsked,
    CodeAdopted,
    EventSent,
    EventTaken,
    Fact,
    JoinMet,
    MailDelivered,
    MailFailed,
    MailPosted,
    MailRequeued,
    MailSuppressed,
    MilestoneReached,
    RunAborted,
    RunCleared,
    RunErrored,
    RunInterrupted,
    RunParked,
    RunPaused,
    RunReattached,
    RunRequested,
    RunRetried,
    RunSucceeded,
    RunWaiting,
    SupervisorStarted,
    SupervisorStopped,
    UndoBegan,
)
from perdure.ledger.mail import ANSWER, EVENT, MILESTONE, Mail, MailEvent, Slot, permits
from perdure.ledger.notes import Note
from perdure.ledger.run import AskRecord, Run, begin_all, complete_all, open_run, outcome_of, run_of
from perdure.ledger.status import AskStatus
from perdure.ledger.store.batches import BATCH, AttemptsStarted, Batch, RunsRequested, RunsSucceeded, batch_of
from perdure.ledger.store.store import BatchRow, FactRow, Row
from perdure.ledger.transitions import TABLE
from perdure.ledger.view import View

_KEPT_ASKS: Final = 100  # closed ones of a run


def apply_fact(view: View, changes: Iterable[Fact | Batch | Note], at_ms: int) -> list[Row]:
    """Put each change into the view before the next one is decided. Returns the rows of the facts, to be made durable together."""
    rows: list[Row] = []
    for change in changes:
        if isinstance(change, Note):
            change.apply(view)
        elif isinstance(change, BATCH):
            rows.append(record_batch(view, change, at_ms))
        else:
            rows.append(record_fact(view, change, at_ms))
    return rows


def record_fact(view: View, fact: Fact, at_ms: int) -> FactRow:
    view.seq += 1
    frame = fold(view, fact, view.seq, at_ms)
    kind, body = encode(fact)
    return FactRow(view.seq, at_ms, _subject_of(fact), frame, kind, body)


def fold(view: View, fact: Fact, seq: int, at_ms: int) -> int | None:
    """Change the view by one fact. Returns its number in its run's event stream, if it is an event."""
    view.seq, view.at_ms = max(view.seq, seq), max(view.at_ms, at_ms)  # the ledger's time never runs backwards
    sequence = getattr(fact, "sequence", 0)
    if sequence:
        run = view.runs.get(_subject_of(fact)) if type(fact) in TABLE else None
        view.reached(_subject_of(fact) if run is None else run.child, sequence)
    special = _FOLDS.get(type(fact))
    if special is not None:
        return special(view, fact, seq, at_ms)
    run = view.runs[fact[0]]  # type: ignore[index]
    frame = view.advance(run, fact, seq, at_ms)
    follow = _FOLLOWS.get(type(fact))
    if follow is not None:
        follow(view, run, fact, at_ms)
    return frame


def _subject_of(fact: Fact) -> str:
    first = fact[0]
    return first if isinstance(first, str) else ""


def _supervisor_started(view: View, fact: SupervisorStarted, _seq: int, _at_ms: int) -> None:
    view.epoch, view.limits, view.stopped = fact.epoch, fact.limits, False


def _supervisor_stopped(view: View, _fact: SupervisorStopped, _seq: int, _at_ms: int) -> None:
    view.stopped = True


def _run_requested(view: View, fact: RunRequested, seq: int, at_ms: int) -> int:
    run = open_run(fact, seq, at_ms)
    view.open(run)
    if run.options.get("start_hook"):
        view.post(run, Slot.START, {}, at_ms)
    return 0


def _join_met(view: View, run: Run, _fact: JoinMet, _at_ms: int) -> None:
    view.follow_sources(run)
    view.enqueue(run)


def _attempt_started(view: View, run: Run, fact: AttemptStarted, _at_ms: int) -> None:
    view.dequeue(run)
    view.begins_anew.pop(run.run_id, None)
    activation = view.move(run.child, fact.host_id)
    activation.incarnation, activation.run_id, activation.owes = fact.incarnation, run.run_id, False
    view.incarnation = max(view.incarnation, fact.incarnation)


def _run_ended(view: View, run: Run, fact: RunSucceeded | RunErrored | RunAborted, at_ms: int) -> None:
    # The child of an aborted run is still to be stopped.
    if not isinstance(fact, RunAborted) and fact.released and run.child in view.agents:
        view.move(run.child, "")
        view.drop_agent(run.child)
    gave_up = run.slots.get(Slot.GIVE_UP)  # the true end supersedes one that is not delivered yet
    if gave_up is not None and permits(gave_up, MailEvent.OVERTAKEN):
        view.move_mail(MailEvent.OVERTAKEN, run.mail_id(Slot.GIVE_UP))
    if run.wants_mail:
        view.post(run, Slot.FINISH, None, at_ms)
    if run.run_id in view.events:  # nobody is left to take them
        view.move_mail(MailEvent.WITHDRAWN, *view.events[run.run_id])
    if run.asks:
        note_asks(view, run)


def _run_interrupted(view: View, run: Run, _fact: RunInterrupted, at_ms: int) -> None:
    if run.wants_mail:
        view.post(run, Slot.GIVE_UP, outcome_of(run), at_ms)


def _milestone_reached(view: View, run: Run, fact: MilestoneReached, at_ms: int) -> None:
    listed = (run.options.get("milestones") or {}).get("names", ())
    if fact.name in listed and run.parent:
        content = {"milestone": fact.name, "number": fact.number, "at_ms": at_ms, "body": fact.body}
        view.post(run, MILESTONE + fact.name, content, at_ms)


def _attempt_lost(view: View, run: Run, _fact: AttemptLost, _at_ms: int) -> None:
    view.move(run.child, "").run_id = ""
    view.drop_agent(run.child)
    if run.is_live and run.paused:
        view.rest(run)
    elif run.is_live:
        view.timers.arm(run.run_id, run.retry_at_ms)


def _run_parked(view: View, run: Run, _fact: RunParked, _at_ms: int) -> None:
    view.move(run.child, "").run_id = ""
    view.drop_agent(run.child)
    view.parked[run.run_id] = None


def _run_waiting(view: View, run: Run, fact: RunWaiting, _at_ms: int) -> None:
    if fact.released:
        view.move(run.child, "").run_id = ""
        view.drop_agent(run.child)
    else:  # it lives on for other work
        activation = view.agents[run.child]
        activation.run_id, activation.confirmed = "", True
        view.dirty_agents[run.child] = None
    view.rest(run)


def _run_paused(view: View, run: Run, _fact: RunPaused, _at_ms: int) -> None:
    if run.paused:
        view.paused[run.run_id] = None
    else:
        view.paused.pop(run.run_id, None)
    if not (run.is_placed or run.parked or run.teardown) and run.is_live:
        if run.paused or run.wait is not None:
            view.rest(run)
        else:
            view.rest_no_more(run)
            view.timers.arm(run.run_id, run.retry_at_ms)


def _event_sent(view: View, fact: EventSent, seq: int, at_ms: int) -> None:
    run = view.runs[fact.run_id]
    content = {"sender": fact.sender, "body": fact.body}
    view.put_event(run, Mail(fact.mail_id, run.child, run.run_id, EVENT + fact.name, "", content, at_ms, seq=seq))


def _event_taken(view: View, fact: EventTaken, seq: int, at_ms: int) -> int | None:
    view.move_mail(MailEvent.HANDLED, fact.mail_id)
    return view.advance(view.runs[fact.run_id], fact, seq, at_ms)


def _undo_began(view: View, fact: UndoBegan, seq: int, at_ms: int) -> int | None:
    run = view.runs[fact.run_id]
    for index in (view.parked, view.paused, view.begins_anew):
        index.pop(run.run_id, None)
    view.rest_no_more(run)
    frame = view.advance(run, fact, seq, at_ms)
    if run.asks:
        note_asks(view, run)
    if not run.is_placed:
        view.timers.arm(run.run_id, 0)
    return frame


def _ask_opened(view: View, fact: AskOpened, seq: int, at_ms: int) -> int | None:
    run = view.runs[fact.run_id]
    former = run.ask(fact.number)
    if former is not None and run.answer_mail(former) in view.mail:  # it answers what is asked no more
        view.move_mail(MailEvent.WITHDRAWN, run.answer_mail(former))
    frame = view.advance(run, fact, seq, at_ms)
    run.forget_asks(_KEPT_ASKS, {ask.number for ask in run.asks if run.answer_mail(ask) in view.mail})
    note_asks(view, run)
    return frame


def _ask_closed(view: View, run: Run, fact: AskAnswered | AskLapsed, at_ms: int) -> None:
    ask = run.ask(fact.number)
    if ask is not None and not ask.is_open:
        content = {"sender": "", "body": pack(_answer(ask))}
        slot = f"{EVENT}{ANSWER}{ask.number}:{ask.digest}"
        mail = Mail(run.answer_mail(ask), run.child, run.run_id, slot, "", content, at_ms, seq=run.last_seq)
        view.put_event(run, mail)
    note_asks(view, run)


def _answer(ask: AskRecord) -> dict[str, object]:
    if ask.status is AskStatus.EXPIRED:
        return {
            "value": ask.otherwise,
            "args": ask.args,
            "who": "",
            "channel": "",
            "at_ms": ask.closed_at_ms,
            "edited": False,
            "people": [],
        }
    latest = ask.answers[-1]
    agreed = [each.who for each in ask.answers if (each.value, each.edited) == (latest.value, latest.edited)]
    return {
        "value": latest.value,
        "args": ask.args if latest.edited is None else latest.edited,
        "who": latest.who,
        "channel": latest.channel,
        "at_ms": latest.at_ms,
        "edited": latest.edited is not None,
        "people": agreed,
    }


def _run_retried(view: View, fact: RunRetried, seq: int, at_ms: int) -> int | None:
    run = view.runs[fact.run_id]
    for slot in (Slot.FINISH, Slot.GIVE_UP):
        state = run.slots.get(slot)
        if state is not None and permits(state, MailEvent.OVERTAKEN):
            view.move_mail(MailEvent.OVERTAKEN, run.mail_id(slot))
    run.forget_ends(seq)  # its next end is told by other mail
    view.parked.pop(run.run_id, None)
    view.dequeue(run)  # it may change its pool
    frame = view.advance(run, fact, seq, at_ms)
    if run.begins_anew:
        view.begins_anew[run.run_id] = None
    view.enqueue(run)
    return frame


def _run_cleared(view: View, fact: RunCleared, seq: int, at_ms: int) -> int | None:
    view.lives.forget(seq)  # with its run, the attempts of a child are forgotten
    view.cleared[fact.run_id] = None
    run = view.runs[fact.run_id]
    view.tallied[run.status] -= not run.cleared
    child = view.agents.get(run.child)
    if child is not None:
        if child.unclean and run.child not in view.homes:  # nobody calls it
            view.want_no_more(run.child)
        _owe_nothing(view, child)
    return view.advance(run, fact, seq, at_ms)


# What is being deleted is woken no more for its alarm, nor because it ended uncleanly.
def _owe_nothing(view: View, activation: Activation) -> None:
    activation.owes = activation.unclean = False
    view.set_alarm(activation, 0)
    note_calls(view, activation, {})
    _forget_closed_calls(view, activation.agent_id)
    view.stir(activation)
    view.touched[activation.agent_id] = None


def _forget_closed_calls(view: View, agent: str) -> None:
    # An answer to one of them would bring an agent of that name to life.
    if agent in view.closed_calls.values():
        view.closed_calls = {ask_id: of for ask_id, of in view.closed_calls.items() if of != agent}


def _agent_activated(view: View, fact: AgentActivated, _seq: int, _at_ms: int) -> None:
    before, box = view.agents.get(fact.agent_id), view.mailbox.get(fact.agent_id, ())
    owes = before is not None and before.unclean
    # A call or a letter wakes it, and not an end that it must be told or what it owes.
    is_called = any(view.mail[key].slot == Slot.TELL for key in box) or not (box or owes)
    activation = view.move(fact.agent_id, fact.host_id)
    activation.incarnation, activation.run_id, activation.owes = fact.incarnation, "", False
    activation.called |= is_called
    activation.home = fact.home
    view.incarnation = max(view.incarnation, fact.incarnation)


def _agent_released(view: View, fact: AgentReleased, seq: int, _at_ms: int) -> None:
    activation = view.move(fact.agent_id, "")
    run = view.runs.get(activation.run_id)
    if run is not None and run.incarnation == fact.incarnation:
        was_placed = run.is_placed
        run.release(seq)
        view.settle(run)
        if was_placed:
            view.count_places(run, -1)
        view.stir_joins(run)
        view.touched[run.run_id] = view.dirty_runs[run.run_id] = None
    activation.cause = ""
    view.drop_agent(fact.agent_id)
    view.lives.ended(fact.agent_id, seq)


def _agent_lost(view: View, fact: AgentLost, seq: int, at_ms: int) -> None:
    activation = view.move(fact.agent_id, "")
    view.lives.ended(fact.agent_id, seq)
    if view.doomed_by(fact.agent_id):  # it is not woken again, whatever it owes
        view.drop_agent(fact.agent_id)
        return
    activation.unclean, activation.wake_at_ms = True, fact.wake_at_ms
    activation.cause, activation.excused = fact.cause, fact.excused
    view.stir(activation)
    if not fact.excused:
        activation.died(at_ms)
    own = run_of(view.runs, fact.agent_id)
    if activation.home is None and own is not None:
        activation.home = own.options.get("pool")
    view.timers.arm(fact.agent_id, fact.wake_at_ms)


def _alarm_set(view: View, fact: AlarmSet, _seq: int, _at_ms: int) -> None:
    activation = view.agents[fact.agent_id]
    activation.owes, activation.home = False, fact.home  # what it owed was to say when it must be awake next
    view.set_alarm(activation, fact.at_ms)


def _calls_asked(view: View, fact: CallsAsked, _seq: int, _at_ms: int) -> None:
    activation = view.agents[fact.agent_id]
    activation.home = fact.home
    note_calls(view, activation, fact.calls)


def _alarm_rang(view: View, fact: AlarmRang, _seq: int, at_ms: int) -> None:
    activation = view.agents[fact.agent_id]
    view.set_alarm(activation, 0)
    activation.forgive(at_ms)
    if activation.host_id:  # it may be leaving: only its next alarm shows that it has seen this one
        activation.owes = True
    elif not activation.unclean:
        activation.unclean, activation.wake_at_ms = True, at_ms
        view.stir(activation)
        view.want(fact.agent_id)


def _agent_doomed(view: View, fact: AgentDoomed, _seq: int, _at_ms: int) -> None:
    view.doomed[fact.agent_id] = None
    view.activation(fact.agent_id).doomed = True
    for activation in view.family(fact.agent_id):
        _owe_nothing(view, activation)
        if not activation.host_id and not activation.doomed:
            view.remove_agent(activation.agent_id)


def _agent_forgotten(view: View, fact: AgentForgotten, seq: int, _at_ms: int) -> None:
    view.doomed.pop(fact.agent_id, None)
    view.deleted[fact.agent_id] = None
    view.lives.ended(fact.agent_id, seq)
    view.asleep[fact.agent_id] = Activation(fact.agent_id, reported=0)
    view.dirty_agents[fact.agent_id] = None
    for agent in view.families.of(fact.agent_id):
        view.want_no_more(agent)  # callers that still wait want the next one of that name
        if view.remove_agent(agent) is not None:
            view.dirty_agents[agent] = None


def _agent_stopped(view: View, fact: AgentStopped, _seq: int, _at_ms: int) -> None:
    for activation in view.family(fact.agent_id):
        activation.stopping = bool(activation.host_id)
        view.dirty_agents[activation.agent_id] = view.touched[activation.agent_id] = None


def _mail_posted(view: View, fact: MailPosted, seq: int, at_ms: int) -> None:
    content = {"sender": fact.sender, "body": fact.body, "home": fact.home}
    view.put(Mail(fact.mail_id, fact.recipient, "", Slot.TELL, fact.method, content, at_ms, seq=seq))


def _mail_delivered(view: View, fact: MailDelivered, _seq: int, _at_ms: int) -> None:
    mails = [view.mail[key] for key in fact.mail_ids]
    view.move_mail(MailEvent.HANDLED, *fact.mail_ids)
    for mail in mails:
        run = view.runs[mail.run_id] if mail.slot == Slot.FINISH else None
        if run is None or not (run.overtaken or Slot.GIVE_UP in run.slots) or run.mail_id(Slot.FINISH) != mail.mail_id:
            continue
        for overtaken in (run.mail_id(Slot.GIVE_UP), *run.overtaken):
            if view.mail.pop(overtaken, None) is not None:  # it was superseded, and is not asked about any more
                view.dirty_mail[overtaken] = None
    activation = view.agents.get(fact.recipient)
    if activation is not None and activation.losses:
        activation.losses = 0
        view.dirty_agents[fact.recipient] = None


def _mail_failed(view: View, fact: MailFailed, _seq: int, _at_ms: int) -> None:
    mail = view.mail[fact.mail_id]
    mail.attempts += 1
    mail.error, mail.retry_at_ms = fact.error, fact.retry_at_ms or 0
    if fact.retry_at_ms is None:
        view.move_mail(MailEvent.GIVEN_UP, fact.mail_id)
    else:
        mail.state = mail.after(MailEvent.FAILED)
        view.box(mail.recipient).put_off(mail.mail_id, fact.retry_at_ms, mail.seq)
        view.dirty_mail[fact.mail_id] = None
        view.timers.arm(mail.recipient, fact.retry_at_ms)


def _mail_requeued(view: View, fact: MailRequeued, seq: int, _at_ms: int) -> None:
    mail = view.mail[fact.mail_id]
    mail.attempts, mail.retry_at_ms, mail.seq = 0, 0, seq
    view.move_mail(MailEvent.REQUEUED, fact.mail_id)


_FOLDS: dict[type[Fact], Callable[[View, Any, int, int], int | None]] = {
    SupervisorStarted: _supervisor_started,
    SupervisorStopped: _supervisor_stopped,
    CodeAdopted: lambda view, fact, _seq, at_ms: view.code.came(fact.package, fact.digests, at_ms),
    RunRequested: _run_requested,
    RunCleared: _run_cleared,
    EventSent: _event_sent,
    EventTaken: _event_taken,
    UndoBegan: _undo_began,
    AskOpened: _ask_opened,
    RunRetried: _run_retried,
    AgentActivated: _agent_activated,
    AgentReleased: _agent_released,
    AgentLost: _agent_lost,
    AlarmSet: _alarm_set,
    CallsAsked: _calls_asked,
    AlarmRang: _alarm_rang,
    AgentDoomed: _agent_doomed,
    AgentForgotten: _agent_forgotten,
    AgentStopped: _agent_stopped,
    MailPosted: _mail_posted,
    MailDelivered: _mail_delivered,
    MailFailed: _mail_failed,
    MailSuppressed: lambda view, fact, _seq, _at_ms: view.move_mail(MailEvent.WITHDRAWN, fact.mail_id),
    MailRequeued: _mail_requeued,
}

# What follows from a fact that has changed its run.
_FOLLOWS: dict[type[Fact], Callable[[View, Run, Any, int], None]] = {
    JoinMet: _join_met,
    AttemptStarted: _attempt_started,
    RunSucceeded: _run_ended,
    RunErrored: _run_ended,
    RunAborted: _run_ended,
    RunInterrupted: _run_interrupted,
    MilestoneReached: _milestone_reached,
    AttemptLost: _attempt_lost,
    # One that lost its place while it was interrupted waits for another.
    RunReattached: lambda view, run, _fact, _at_ms: view.timers.arm(run.run_id, 0),
    RunParked: _run_parked,
    RunWaiting: _run_waiting,
    RunPaused: _run_paused,
    AskAnswered: _ask_closed,
    AskLapsed: _ask_closed,
    AskEscalated: lambda view, run, _fact, _at_ms: note_asks(view, run),
    AskWithdrawn: lambda view, run, _fact, _at_ms: note_asks(view, run),
}

# ---------------------------------------------------------------- batches


def record_batch(view: View, batch: Batch, at_ms: int) -> BatchRow:
    first = view.seq + 1
    _fold_together(view, batch, first, at_ms)
    return BatchRow(first, at_ms, len(batch.run_ids), *encode(batch))


def fold_batch(view: View, row: BatchRow) -> None:
    _fold_together(view, batch_of(row), row.seq, row.at_ms)


def _fold_together(view: View, batch: Batch, first: int, at_ms: int) -> None:
    _BATCH_FOLDS[type(batch)](view, batch, first, at_ms)
    view.seq, view.at_ms = first + len(batch.run_ids) - 1, max(view.at_ms, at_ms)


def _runs_requested(view: View, batch: RunsRequested, first: int, at_ms: int) -> None:
    about = batch.agent_type, batch.parent, batch.parent_run
    options, life = batch.options, batch.life
    columns = zip(batch.run_ids, batch.digests, batch.inputs, strict=True)
    view.open_all(
        [
            Run(run_id, *about, digest, body, options, life, at_ms, seq, seq, frames=1, mark=seq)
            for seq, (run_id, digest, body) in enumerate(columns, first)
        ]
    )


def _attempts_started(view: View, batch: AttemptsStarted, first: int, at_ms: int) -> None:
    runs = [view.runs[run_id] for run_id in batch.run_ids]
    begin_all(runs, batch.incarnation, batch.host_id, first, at_ms)
    view.seat_all(runs, batch.host_id)


def _runs_completed(view: View, batch: RunsSucceeded, first: int, at_ms: int) -> None:
    runs = [view.runs[run_id] for run_id in batch.run_ids]
    before = Counter(run.status for run in runs)
    complete_all(runs, batch.outputs, batch.summaries, first, at_ms)
    view.tallied.subtract(before)
    view.end_all(runs)
    if runs[0].wants_mail:
        view.post_ends(runs, first, at_ms)


_BATCH_FOLDS: dict[type[Batch], Callable[[View, Any, int, int], None]] = {
    RunsRequested: _runs_requested,
    AttemptsStarted: _attempts_started,
    RunsSucceeded: _runs_completed,
}
