"""The view: the records that facts are folded into, the indexes by which they are found, and the steps that keep both in line.

What a fact does here is said in `folds`, and what a note does in `notes`. The indexes are made anew from the records at every boot. Hosts
are not in the ledger: a boot asks which are there.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from perdure.ledger.activation import Activation, HostView, Lives, pool_key
from perdure.ledger.facts import Fact
from perdure.ledger.ids import is_within, name_of, origin_of, parent_of, type_of
from perdure.ledger.mail import Mail, MailEvent, MailState, handler_of
from perdure.ledger.run import Run, apply
from perdure.ledger.store.store import Record
from perdure.ledger.timers import Timers

_COUNTED = (MailState.DELIVERED, MailState.SUPERSEDED, MailState.SUPPRESSED, MailState.PARKED)
_BLOCKERS_MAX = 1_000
_DROPPED = (MailState.DELIVERED, MailState.SUPPRESSED)


class View:
    """What is true after all facts until now, as far as it is in memory: ended runs may be in the snapshot alone.

    Decisions read it. Facts and notes change it (`folds.enact`). Besides, the supervisor enters the hosts that it starts or adopts and the
    agents that are called and those that block their hosts, arms the timers of the runs it touched, and takes out what it has performed,
    made durable or deleted. When it was late itself, it begins to be awake anew.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.seq = 0
        self.incarnation = 0
        self.at_ms = 0
        self.awake_at_ms = 0
        self.limits: dict[str, float] = {}
        self.warm = ""  # the package that came last; hosts with it are kept warm
        self.code: dict[str, str] = {}  # the newest package of code, by what it is the code of (`origin_of`)
        self.tally: dict[str, int] = dict.fromkeys(("enqueued", *map(str, _COUNTED)), 0)
        self.runs: dict[str, Run] = {}
        self.mail: dict[str, Mail] = {}
        self.agents: dict[str, Activation] = {}
        self.lives = Lives()
        self.asleep: dict[str, Activation] = {}  # what is kept of agents that sleep, until the snapshot has it
        self.archived: Counter[str] = Counter()  # ended runs by status that only the snapshot has
        # indexes
        self.hosts: dict[str, HostView] = {}
        self.blockers: dict[str, None] = {}  # agents whose code was seen to block the event loop of their host
        self.homes: dict[str, list[Any]] = {}
        self.mailbox: dict[str, dict[str, None]] = {}
        self.children: dict[str, dict[str, None]] = {}
        self.placed: dict[str, int] = {}
        self.awaiting: dict[str, int] = {}
        self.queues: dict[str, dict[str, None]] = {}
        self.held: dict[str, dict[str, None]] = {}
        self.wanted: dict[str, None] = {}
        self.timers = Timers()
        self.cleared: dict[str, None] = {}
        self.parked: dict[str, None] = {}
        self.doomed: dict[str, None] = {}
        self.touched: dict[str, None] = {}
        self.dirty_agents: dict[str, None] = {}
        self.kept: dict[str, None] = {}
        self.dirty_runs: dict[str, Record | None] = {}  # with the row, if it was made since the last change
        self.dirty_mail: dict[str, None] = {}

    def advance(self, run: Run, fact: Fact, seq: int, at_ms: int) -> int | None:
        """Change one run by a fact, and keep the indexes with it."""
        was_live, was_placed = run.is_live, run.is_placed
        frame = apply(run, fact, seq, at_ms)
        self.touched[run.run_id] = self.dirty_runs[run.run_id] = None
        if was_live != run.is_live:
            self.count_live(run)
        if was_placed != run.is_placed:
            self.count_places(run, 1 if run.is_placed else -1)
        return frame

    def recall(self, run: Run) -> Run:
        """Bring an ended run back from the snapshot, unless it is in memory."""
        if run.run_id not in self.runs:
            self.runs[run.run_id] = run
            self.archived[run.status] -= 1
        return self.runs[run.run_id]

    def let_go(self, run_id: str) -> None:
        """Drop an ended run from memory. The snapshot has it."""
        self.archived[self.runs.pop(run_id).status] += 1

    def enqueue(self, run: Run) -> None:
        """Put a live run into the queue of its pool."""
        self.queues.setdefault(pool_key(run.options.get("pool")), {})[run.run_id] = None

    def hold(self, run: Run) -> None:
        """Hold a run back until another run of its parent gives up its place (`max_concurrent_agent_tools`)."""
        self.dequeue(run)
        self.held.setdefault(run.parent, {})[run.run_id] = None

    def dequeue(self, run: Run) -> None:
        """Take a run out of its queue, or out of those that are held back."""
        _leave(self.queues, pool_key(run.options.get("pool")), run.run_id)
        _leave(self.held, run.parent, run.run_id)

    def want(self, agent: str) -> None:
        """Wake this agent, unless it is awake."""
        activation = self.agents.get(agent)
        if activation is None or not activation.host_id:
            self.wanted[agent] = None

    def post(self, run: Run, slot: str, content: dict[str, Any] | None, at_ms: int) -> None:
        """Put a mail into a slot of a run, unless the slot was used before."""
        if slot in run.slots:
            return
        options = run.options
        mail = Mail(
            run.mail_id(slot),
            run.parent,
            run.run_id,
            slot,
            handler_of(slot, options),
            content,
            at_ms,
            seq=self.seq,
        )
        run.mark_slot(slot, MailState.PENDING)
        self.put(mail)

    def put(self, mail: Mail) -> None:
        """Put a mail into its recipient's mailbox."""
        self.tally["enqueued"] += 1
        self.mail[mail.mail_id] = mail
        self.mailbox.setdefault(mail.recipient, {})[mail.mail_id] = None
        self.touched[mail.recipient] = self.dirty_mail[mail.mail_id] = None
        self.want(mail.recipient)

    def move_mail(self, key: str, event: MailEvent) -> None:
        """Move a mail by the table, its slot with it, and into the mailbox or out of it."""
        mail = self.mail[key]
        state = mail.after(event)
        if mail.state in self.tally:
            self.tally[mail.state] -= 1
        mail.state = state
        if state in self.tally:
            self.tally[state] += 1
        run = self.runs.get(mail.run_id)
        if run is not None and run.mail_id(mail.slot) == key:  # else it tells of an end before a retry
            run.mark_slot(mail.slot, state)
            self.dirty_runs[mail.run_id] = None
        self.dirty_mail[key] = self.touched[mail.recipient] = None
        box = self.mailbox.setdefault(mail.recipient, {})
        if state is MailState.PENDING:
            box[key] = None
            self.want(mail.recipient)
        else:
            box.pop(key, None)
        if not box:
            del self.mailbox[mail.recipient]
        if state in _DROPPED:
            del self.mail[key]

    def blocks(self, agent: str) -> None:
        """Remember that this agent blocks its host: from its next placement on it is alone."""
        self.blockers.pop(agent, None)
        self.blockers[agent] = None
        if len(self.blockers) > _BLOCKERS_MAX:
            del self.blockers[next(iter(self.blockers))]

    def move(self, agent: str, host_id: str) -> Activation:
        """Put an agent on a host; with an empty `host_id`, take it off its host. The host need not be known yet."""
        if agent not in self.agents:
            self.agents[agent] = self.asleep.pop(agent, Activation(agent))
        activation = self.agents[agent]
        self.dirty_agents[agent] = self.touched[agent] = None
        weight = 0 if self.awaiting.get(agent) else 1
        old = self.hosts.get(activation.host_id)
        if old is not None and agent in old.tenants:
            del old.tenants[agent]
            old.load -= weight
            old.exclusive = old.exclusive and bool(old.tenants)
        activation.host_id, activation.confirmed, activation.stopping = host_id, False, False
        new = self.hosts.get(host_id)
        if new is not None:
            new.tenants[agent] = None
            new.load += weight
            new.tenancies += 1
        return activation

    def drop_agent(self, agent: str) -> None:
        """Forget an activation that owes nothing and has no alarm. The agent is wanted again if it has mail that is due; for mail that
        waits for its retry, a timer is armed already."""
        activation = self.agents.get(agent)
        ancestor = self.doomed_by(agent)
        if ancestor:
            self.touched[ancestor] = None
            if agent != ancestor:
                self.agents.pop(agent, None)
        elif activation is not None and activation.owes:
            activation.owes, activation.unclean, activation.wake_at_ms = False, True, self.at_ms
            self.want(agent)
        elif activation is not None and activation.alarm_at_ms:
            activation.run_id, activation.losses = "", 0
            activation.forgive(self.at_ms)
        else:
            gone = self.agents.pop(agent, None)
            if (
                gone is not None and gone.reported is not None and not parent_of(agent)
            ):  # those below go with the file of another
                self.asleep[agent] = gone.at_rest()
        self.dirty_agents[agent] = None
        box = self.mailbox.get(agent)
        if box and any(self.mail[key].retry_at_ms <= self.at_ms for key in box):
            self.want(agent)

    def is_new(self, agent: str) -> bool:
        """Whether it is the child of a run in its first attempt."""
        activation = self.agents.get(agent)
        run = None if activation is None else self.runs.get(activation.run_id)
        return run is not None and run.attempt == 1

    def reached(self, agent: str, sequence: int) -> None:
        """The agent has reported something that is in its storage, which had come so far by then."""
        activation = self.agents.get(agent)
        if activation is not None and sequence > (activation.reported or 0):
            activation.reported = sequence
            self.dirty_agents[agent] = None

    def doomed_by(self, agent: str) -> str:
        """The agent whose deletion includes this one: itself or an ancestor; empty if there is none."""
        return next((each for each in self.doomed if is_within(agent, each)), "")

    def family(self, agent: str) -> list[Activation]:
        """The activations of the agent and its descendants."""
        return [activation for key, activation in self.agents.items() if is_within(key, agent)]

    def may_be_forgotten(self, run_id: str) -> bool:
        """Whether a run is cleared, its child is on no host, and none of the child's sub-agents is still being deleted."""
        run = self.runs.get(run_id)
        if run is None or not run.cleared or any(is_within(each, run.child) for each in self.doomed):
            return False
        awake = self.agents.get(run.child)
        return awake is None or not awake.host_id

    def forget_run(self, run_id: str) -> None:
        """Drop a cleared run that was deleted, and the activation of its child."""
        run = self.runs.pop(run_id, None)
        self.cleared.pop(run_id, None)
        if run is not None:
            self.agents.pop(run.child, None)
            self.asleep.pop(run.child, None)
            self.wanted.pop(run.child, None)

    def newest_code(self, run: Run) -> str | None:
        """The newest package with the code of a run; None if no code came since the run began. What is ours, such as a tool's run, has
        the code of its parent."""
        mine = self.code.get(origin_of(run.agent_type))
        return self.code.get(origin_of(type_of(run.parent))) if mine is None else mine

    def count_live(self, run: Run) -> None:
        """Update the indexes of its parent after a run became live or ended."""
        family = self.children.setdefault(run.parent, {})
        if run.is_live:
            family[run.run_id] = None
        else:
            family.pop(run.run_id, None)
            self.dequeue(run)
        if not family:
            del self.children[run.parent]
        if run.is_awaited and run.parent:
            self.count_waits(run.parent, 1 if run.is_live else -1)

    def count_places(self, run: Run, change: int) -> None:
        """Count a place that a run took or left. When one is left, the next run that its parent's limit held back is queued."""
        self.placed[run.parent] = self.placed.get(run.parent, 0) + change
        if not self.placed[run.parent]:
            del self.placed[run.parent]
        held = self.held.get(run.parent)
        if change < 0 and held:
            follower = self.runs[next(iter(held))]
            self.dequeue(follower)
            self.enqueue(follower)

    def count_waits(self, agent: str, change: int) -> None:
        """Count the runs that an agent waits for. An agent that merely waits is no load to its host."""
        before = self.awaiting.get(agent, 0)
        after = before + change
        self.awaiting[agent] = after
        if not after:
            del self.awaiting[agent]
        activation = self.agents.get(agent)
        host = self.hosts.get(activation.host_id) if activation else None
        if host is not None and agent in host.tenants:
            host.load += (before > 0) - (after > 0)


def last_end(view: View, agent: str) -> int:
    """The number of the fact after which no life of this agent has ended.

    The child of a run also lives in its attempts. Their ends are not kept one by one: only while the first attempt lasts is it certain that
    none has ended.
    """
    end = view.lives.last_end(agent)
    run = view.runs.get(name_of(agent))
    if run is None or run.child != agent or not run.attempt or (run.attempt == 1 and run.is_placed):
        return end
    return max(end, run.last_seq)


def _leave(lines: dict[str, dict[str, None]], key: str, run_id: str) -> None:
    """Remove a run from a queue, and the queue when it is empty."""
    line = lines.get(key)
    if line is not None and line.pop(run_id, 0) is None and not line:
        del lines[key]
