"""The view: what is true now, folded from the facts, and the indexes by which the supervisor finds it.

`record` is the only way in: it numbers a fact, folds it, and hands back the row to be made durable. Everything under *indexes*
can be rebuilt from the records, and is after a boot. Hosts are not in the ledger: they are seen, not remembered.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Any

from ledger.codec import encode
from ledger.facts import (
    AgentActivated,
    AgentLost,
    AgentReleased,
    AttemptLost,
    AttemptStarted,
    Fact,
    MailDelivered,
    MailFailed,
    MailRequeued,
    MailSuppressed,
    MilestoneReached,
    RunAborted,
    RunCleared,
    RunCompleted,
    RunFailed,
    RunInterrupted,
    RunRequested,
    SupervisorStarted,
)
from ledger.ids import mail_id
from ledger.mail import DELIVERED, FINISH, GIVE_UP, MILESTONE, PARKED, PENDING, SUPERSEDED, SUPPRESSED, Mail, handler_of
from ledger.run import Run, apply, open_run
from ledger.store import FactRow


@dataclass(slots=True)
class Activation:
    """Where an agent lives, or that it must be woken. `run_id` names the run it executes, if any."""

    agent_id: str
    incarnation: int = 0
    host_id: str = ""
    run_id: str = ""
    unclean: bool = False
    wake_at_ms: int = 0
    losses: int = 0
    home: list[Any] | None = None
    confirmed: bool = False


@dataclass(slots=True)
class HostView:
    """A host as the supervisor sees it now. `load` counts the tenants that are not merely waiting for children."""

    host_id: str
    spec: Any
    up: bool = False
    draining: bool = False
    worn: bool = False
    pid: int = 0
    node: str = ""
    rss_mb: int = 0
    tenancies: int = 0
    load: int = 0
    exclusive: bool = False
    seen_at_ms: int = 0
    tenants: dict[str, None] = field(default_factory=dict)


class View:
    """All records in memory, and their indexes."""

    def __init__(self) -> None:
        self.epoch = 0
        self.seq = 0
        self.incarnation = 0
        self.at_ms = 0
        self.awake_at_ms = 0
        self.tally: dict[str, int] = dict.fromkeys(("enqueued", DELIVERED, SUPERSEDED, SUPPRESSED, PARKED), 0)
        self.runs: dict[str, Run] = {}
        self.mail: dict[str, Mail] = {}
        self.agents: dict[str, Activation] = {}
        # indexes
        self.hosts: dict[str, HostView] = {}
        self.homes: dict[str, list[Any]] = {}
        self.mailbox: dict[str, dict[str, None]] = {}
        self.children: dict[str, dict[str, None]] = {}
        self.placed: dict[str, int] = {}
        self.awaiting: dict[str, int] = {}
        self.queues: dict[str, dict[str, None]] = {}
        self.held: dict[str, dict[str, None]] = {}
        self.wanted: dict[str, None] = {}
        self.timers: list[tuple[int, str]] = []
        self.armed: dict[str, int] = {}
        self.cleared: dict[str, None] = {}
        self.touched: dict[str, None] = {}
        self.dirty_agents: dict[str, None] = {}
        self.dirty_runs: dict[str, None] = {}
        self.dirty_mail: dict[str, None] = {}

    def record(self, fact: Fact, at_ms: int) -> FactRow:
        """Number the fact, fold it, and return its row."""
        self.seq += 1
        frame = self.fold(fact, self.seq, at_ms)
        kind, body = encode(fact)
        return FactRow(self.seq, at_ms, subject_of(fact), frame, kind, body)

    def fold(self, fact: Fact, seq: int, at_ms: int) -> int | None:
        """Change the records by one fact. Returns its number in its run's event stream, if it is an event."""
        self.seq, self.at_ms = max(self.seq, seq), max(self.at_ms, at_ms)
        special = _FOLDS.get(type(fact))
        if special is not None:
            return special(self, fact, seq, at_ms)  # type: ignore[no-any-return]
        return self.advance(self.runs[fact[0]], fact, seq, at_ms)  # type: ignore[index]

    def advance(self, run: Run, fact: Fact, seq: int, at_ms: int) -> int | None:
        """Change one run by a fact, and keep the indexes with it."""
        was_live, was_placed = run.is_live, run.is_placed
        frame = apply(run, fact, seq, at_ms)
        self.touched[run.run_id] = self.dirty_runs[run.run_id] = None
        if was_live != run.is_live:
            self._live(run)
        if was_placed != run.is_placed:
            self._places(run, 1 if run.is_placed else -1)
        return frame

    def enqueue(self, run: Run) -> None:
        """Let a live run wait for a place in the queue of its pool."""
        self.queues.setdefault(pool_key(run.options.get("pool")), {})[run.run_id] = None

    def hold(self, run: Run) -> None:
        """Let a run wait until another run of its parent gives up its place (`max_concurrent_agent_tools`)."""
        self.dequeue(run)
        self.held.setdefault(run.parent, {})[run.run_id] = None

    def dequeue(self, run: Run) -> None:
        """Let a run wait no longer."""
        for waiting, key in ((self.queues, pool_key(run.options.get("pool"))), (self.held, run.parent)):
            line = waiting.get(key)
            if line is not None and line.pop(run.run_id, 0) is None and not line:
                del waiting[key]

    def want(self, agent: str) -> None:
        """Wake this agent, unless it is awake."""
        activation = self.agents.get(agent)
        if activation is None or not activation.host_id:
            self.wanted[agent] = None

    def arm(self, key: str, at_ms: float) -> None:
        """Look at this run, agent or mail again at that time."""
        self.armed[key] = int(at_ms)
        heapq.heappush(self.timers, (int(at_ms), key))

    def due(self, at_ms: int) -> list[str]:
        """The keys whose time has come, in order; each is armed again by whoever looks at it."""
        keys: dict[str, None] = {}
        while self.timers and self.timers[0][0] <= at_ms:
            keys[heapq.heappop(self.timers)[1]] = None
        for key in keys:
            self.armed.pop(key, None)
        return list(keys)

    def post(self, run: Run, slot: str, content: dict[str, Any] | None, at_ms: int) -> None:
        """Put a mail into a slot of a run, unless the slot was used before."""
        if slot in run.slots:
            return
        options = run.options
        mail = Mail(
            mail_id(run.run_id, slot), run.parent, run.run_id, slot, handler_of(slot, options), content, at_ms, seq=self.seq
        )
        self.tally["enqueued"] += 1
        run.slots[slot] = PENDING
        self.mail[mail.mail_id] = mail
        self.mailbox.setdefault(mail.recipient, {})[mail.mail_id] = None
        self.touched[mail.recipient] = self.dirty_mail[mail.mail_id] = None
        self.want(mail.recipient)

    def settle(self, key: str, state: str) -> None:
        """Move a mail out of the mailbox (or back in, for `pending`), and its slot with it."""
        mail = self.mail[key]
        if mail.state in self.tally:
            self.tally[mail.state] -= 1
        mail.state = state
        if state in self.tally:
            self.tally[state] += 1
        if mail.run_id in self.runs:
            self.runs[mail.run_id].slots[mail.slot] = state
            self.dirty_runs[mail.run_id] = None
        self.dirty_mail[key] = self.touched[mail.recipient] = None
        box = self.mailbox.setdefault(mail.recipient, {})
        if state == PENDING:
            box[key] = None
            self.want(mail.recipient)
        else:
            box.pop(key, None)
        if not box:
            del self.mailbox[mail.recipient]
        if state in (DELIVERED, SUPPRESSED):
            del self.mail[key]

    def move(self, agent: str, host_id: str) -> Activation:
        """Put an agent on a host, or (with an empty host) off its host. Hosts that are not seen yet are kept in mind."""
        activation = self.agents.setdefault(agent, Activation(agent))
        self.dirty_agents[agent] = self.touched[agent] = None
        weight = 0 if self.awaiting.get(agent) else 1
        old = self.hosts.get(activation.host_id)
        if old is not None and agent in old.tenants:
            del old.tenants[agent]
            old.load -= weight
            old.exclusive = old.exclusive and bool(old.tenants)
        activation.host_id, activation.confirmed = host_id, False
        new = self.hosts.get(host_id)
        if new is not None:
            new.tenants[agent] = None
            new.load += weight
            new.tenancies += 1
        return activation

    def drop_agent(self, agent: str) -> None:
        """Forget an activation that owes nothing."""
        self.agents.pop(agent, None)
        self.dirty_agents[agent] = None
        if agent in self.mailbox:
            self.want(agent)

    def _live(self, run: Run) -> None:
        """A run became live or ceased to be: its parent's children, and who merely waits, follow."""
        family = self.children.setdefault(run.parent, {})
        if run.is_live:
            family[run.run_id] = None
        else:
            family.pop(run.run_id, None)
            self.dequeue(run)
        if not family:
            del self.children[run.parent]
        if run.is_awaited and run.parent:
            self._waits(run.parent, 1 if run.is_live else -1)

    def _places(self, run: Run, change: int) -> None:
        """A run took or left a place; the next one that its parent's limit held back may go on."""
        self.placed[run.parent] = self.placed.get(run.parent, 0) + change
        if not self.placed[run.parent]:
            del self.placed[run.parent]
        held = self.held.get(run.parent)
        if change < 0 and held:
            follower = self.runs[next(iter(held))]
            self.dequeue(follower)
            self.enqueue(follower)

    def _waits(self, agent: str, change: int) -> None:
        before = self.awaiting.get(agent, 0)
        after = before + change
        self.awaiting[agent] = after
        if not after:
            del self.awaiting[agent]
        activation = self.agents.get(agent)
        host = self.hosts.get(activation.host_id) if activation else None
        if host is not None and agent in host.tenants:
            host.load += (before > 0) - (after > 0)


def pool_key(spec: Any) -> str:  # noqa: ANN401 - plain data
    """The name of the pool for what an agent class asks of its host; the default pool's is empty. Who wants a host to
    itself (the last item) finds it in the same pool."""
    return "" if spec is None or not any(spec[:3]) else repr(spec[:3])


def subject_of(fact: Fact) -> str:
    """The run, agent or mail that a fact is about."""
    first = fact[0]
    return first if isinstance(first, str) else ""


def outcome_of(run: Run) -> dict[str, Any]:
    """The end of a run as plain data, for whoever is told about it."""
    told: dict[str, Any] = {"status": str(run.status), "summary": run.summary, "error": run.error, "output": run.output}
    if run.large_output:
        told["large"] = True
    if run.reason:
        told["reason"], told["child_still_running"] = run.reason, run.child_still_running
    return told


def _supervisor_started(view: View, fact: SupervisorStarted, _seq: int, _at_ms: int) -> None:
    view.epoch = fact.epoch


def _run_requested(view: View, fact: RunRequested, seq: int, at_ms: int) -> int:
    run = view.runs[fact.run_id] = open_run(fact, seq, at_ms)
    view.touched[run.run_id] = view.dirty_runs[run.run_id] = None
    view.enqueue(run)
    view._live(run)  # noqa: SLF001 - the folds below are the view's own, set apart for length
    return 0


def _attempt_started(view: View, fact: AttemptStarted, seq: int, at_ms: int) -> int | None:
    run = view.runs[fact.run_id]
    frame = view.advance(run, fact, seq, at_ms)
    view.dequeue(run)
    activation = view.move(run.child, fact.host_id)
    activation.incarnation, activation.run_id, activation.unclean = fact.incarnation, run.run_id, False
    view.incarnation = max(view.incarnation, fact.incarnation)
    return frame


def _run_ended(view: View, fact: RunCompleted | RunFailed | RunAborted, seq: int, at_ms: int) -> int | None:
    run = view.runs[fact.run_id]
    frame = view.advance(run, fact, seq, at_ms)
    if not isinstance(fact, RunAborted) and fact.released and run.child in view.agents:
        view.move(run.child, "")
        view.drop_agent(run.child)
    if run.slots.get(GIVE_UP) in (PENDING, PARKED):
        view.settle(mail_id(run.run_id, GIVE_UP), SUPERSEDED)
    if run.wants_mail:
        view.post(run, FINISH, None, at_ms)
    return frame


def _run_interrupted(view: View, fact: RunInterrupted, seq: int, at_ms: int) -> int | None:
    run = view.runs[fact.run_id]
    frame = view.advance(run, fact, seq, at_ms)
    if run.wants_mail:
        view.post(run, GIVE_UP, outcome_of(run), at_ms)
    return frame


def _milestone_reached(view: View, fact: MilestoneReached, seq: int, at_ms: int) -> int | None:
    run = view.runs[fact.run_id]
    frame = view.advance(run, fact, seq, at_ms)
    listed = (run.options.get("milestones") or {}).get("names", ())
    if fact.name in listed and run.parent:
        content = {"milestone": fact.name, "number": fact.number, "at_ms": at_ms, "body": fact.body}
        view.post(run, MILESTONE + fact.name, content, at_ms)
    return frame


def _attempt_lost(view: View, fact: AttemptLost, seq: int, at_ms: int) -> int | None:
    run = view.runs[fact.run_id]
    frame = view.advance(run, fact, seq, at_ms)
    view.move(run.child, "").run_id = ""
    view.drop_agent(run.child)
    if run.is_live:
        view.arm(run.run_id, run.retry_at_ms)
    return frame


def _run_cleared(view: View, fact: RunCleared, seq: int, at_ms: int) -> int | None:
    view.cleared[fact.run_id] = None
    return view.advance(view.runs[fact.run_id], fact, seq, at_ms)


def _agent_activated(view: View, fact: AgentActivated, _seq: int, _at_ms: int) -> None:
    activation = view.move(fact.agent_id, fact.host_id)
    activation.incarnation, activation.unclean, activation.run_id = fact.incarnation, False, ""
    activation.home = fact.home
    view.incarnation = max(view.incarnation, fact.incarnation)
    view.wanted.pop(fact.agent_id, None)


def _agent_released(view: View, fact: AgentReleased, seq: int, at_ms: int) -> None:
    activation = view.move(fact.agent_id, "")
    run = view.runs.get(activation.run_id)
    if run is not None and run.incarnation == fact.incarnation:
        was_placed = run.is_placed
        run.host_id, run.last_seq, run.teardown = "", seq, "" if run.is_hard else run.teardown
        if was_placed:
            view._places(run, -1)  # noqa: SLF001
        view.touched[run.run_id] = view.dirty_runs[run.run_id] = None
    view.drop_agent(fact.agent_id)
    if fact.agent_id in view.mailbox:
        view.want(fact.agent_id)


def _agent_lost(view: View, fact: AgentLost, _seq: int, _at_ms: int) -> None:
    activation = view.move(fact.agent_id, "")
    activation.unclean, activation.wake_at_ms = True, fact.wake_at_ms
    activation.losses += 1
    view.arm(fact.agent_id, fact.wake_at_ms)


def _mail_delivered(view: View, fact: MailDelivered, _seq: int, _at_ms: int) -> None:
    for key in fact.mail_ids:
        view.settle(key, DELIVERED)
    activation = view.agents.get(fact.recipient)
    if activation is not None:
        activation.losses = 0


def _mail_failed(view: View, fact: MailFailed, _seq: int, _at_ms: int) -> None:
    mail = view.mail[fact.mail_id]
    mail.attempts += 1
    mail.error, mail.retry_at_ms = fact.error, fact.retry_at_ms or 0
    if fact.retry_at_ms is None:
        view.settle(fact.mail_id, PARKED)
    else:
        view.dirty_mail[fact.mail_id] = None
        view.arm(mail.recipient, fact.retry_at_ms)


def _mail_suppressed(view: View, fact: MailSuppressed, _seq: int, _at_ms: int) -> None:
    view.settle(fact.mail_id, SUPPRESSED)


def _mail_requeued(view: View, fact: MailRequeued, seq: int, _at_ms: int) -> None:
    mail = view.mail[fact.mail_id]
    mail.attempts, mail.retry_at_ms, mail.seq = 0, 0, seq
    view.settle(fact.mail_id, PENDING)


_FOLDS: dict[type[Fact], Any] = {
    SupervisorStarted: _supervisor_started,
    RunRequested: _run_requested,
    AttemptStarted: _attempt_started,
    RunCompleted: _run_ended,
    RunFailed: _run_ended,
    RunAborted: _run_ended,
    RunInterrupted: _run_interrupted,
    MilestoneReached: _milestone_reached,
    AttemptLost: _attempt_lost,
    RunCleared: _run_cleared,
    AgentActivated: _agent_activated,
    AgentReleased: _agent_released,
    AgentLost: _agent_lost,
    MailDelivered: _mail_delivered,
    MailFailed: _mail_failed,
    MailSuppressed: _mail_suppressed,
    MailRequeued: _mail_requeued,
}
