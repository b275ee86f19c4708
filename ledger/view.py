"""The view: the records that facts are folded into, the indexes by which they are found, and the steps that keep both in line.

What a fact does here is said in `folds`, and what a note does in `notes`. The indexes are made anew from the records at every boot. Hosts
are not in the ledger: a boot asks which are there.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from itertools import islice
from typing import Any

from perdure.ledger.activation import Activation
from perdure.ledger.facts import Fact
from perdure.ledger.holdings import Holdings
from perdure.ledger.ids import is_within, name_of, origin_of, parent_of, type_of
from perdure.ledger.lines import line_for
from perdure.ledger.mail import Mail, MailEvent, MailState, Slot, handler_of
from perdure.ledger.run import Run, apply

_BLOCKERS_MAX = 1_000
_DROPPED = (MailState.DELIVERED, MailState.SUPPRESSED)


class View(Holdings):
    """What is true after all facts until now, as far as it is in memory: ended runs may be in the snapshot alone.

    Decisions read it. Facts and notes change it (`folds.enact`). Besides, the supervisor enters the hosts that it starts or adopts and the
    agents that are called and those that block their hosts, arms the timers of the runs it touched, and takes out what it has performed,
    made durable or deleted. When it was late itself, it begins to be awake anew.
    """

    def open(self, run: Run) -> None:
        """Enter a run that was requested."""
        self.enter_run(run)
        self.touched[run.run_id] = self.dirty_runs[run.run_id] = None
        self.enqueue(run)
        self.count_live(run)

    def open_all(self, runs: list[Run]) -> None:
        """Enter runs that were requested together: of one parent, with the same options."""
        first, ids = runs[0], [run.run_id for run in runs]
        self.enter_all(runs, ids)
        self.touched.update(dict.fromkeys(ids))
        self.dirty_runs.update(dict.fromkeys(ids))
        self.queues.join_all(line_for(first.options.get("pool")), ids)
        self.children.setdefault(first.parent, {}).update(dict.fromkeys(ids))
        self.live += len(ids)
        if first.is_awaited and first.parent:
            self.count_waits(first.parent, len(ids))

    def seat_all(self, runs: list[Run], host_id: str) -> None:
        """Put the children of runs, of which nothing was known, on a host."""
        ids, agents = [run.run_id for run in runs], [run.child for run in runs]
        self.touched.update(dict.fromkeys(ids))
        self.dirty_runs.update(dict.fromkeys(ids))
        for parent, count in Counter(run.parent for run in runs).items():
            self.placed[parent] = self.placed.get(parent, 0) + count
        self.queues.leave_all(line_for(runs[0].options.get("pool")), ids)
        self.incarnation = runs[-1].incarnation
        for run in runs:
            self.agents[run.child] = Activation(run.child, run.incarnation, host_id, run.run_id)
        self.dirty_agents.update(dict.fromkeys(agents))
        self.awake.update(dict.fromkeys(agents))
        host = self.hosts.get(host_id)
        if host is not None:
            host.tenants.update(dict.fromkeys(agents))
            host.load += len(agents)
            host.tenancies += len(agents)

    def end_all(self, runs: list[Run]) -> None:
        """Runs of one parent have ended, and their children have left their hosts and owe nothing."""
        first, ids, agents = runs[0], [run.run_id for run in runs], [run.child for run in runs]
        self.touched.update(dict.fromkeys(ids))
        self.dirty_runs.update(dict.fromkeys(ids))
        self.tallied[first.status] += len(runs)
        self.live -= len(runs)
        self.timers.disarm_all([run_id for run_id in ids if run_id not in self.agents])
        family = self.children[first.parent]
        for run_id in ids:
            del family[run_id]
        if not family:
            del self.children[first.parent]
        if first.is_awaited and first.parent:
            self.count_waits(first.parent, -len(runs))
        self.placed[first.parent] -= len(runs)
        if not self.placed[first.parent]:
            del self.placed[first.parent]
        for agent in agents:
            self._left_at_once(agent)
        self.timers.disarm_all([agent for agent in agents if agent not in self.runs])
        self.dirty_agents.update(dict.fromkeys(agents))
        self.settled.update(dict.fromkeys(ids))

    def _left_at_once(self, agent: str) -> None:
        gone = self.agents.pop(agent)
        del self.awake[agent]
        host = self.hosts.get(gone.host_id)
        if host is not None and host.tenants.pop(agent, 0) is None:
            host.load -= 1
            host.exclusive = host.exclusive and bool(host.tenants)
        if gone.reported is not None:
            self.asleep[agent] = gone.at_rest()

    def advance(self, run: Run, fact: Fact, seq: int, at_ms: int) -> int | None:
        """Change one run by a fact, and keep the indexes with it."""
        status, was_live, was_placed = run.status, run.is_live, run.is_placed
        frame = apply(run, fact, seq, at_ms)
        self.touched[run.run_id] = self.dirty_runs[run.run_id] = None
        if status is not run.status:
            self.tallied[status] -= 1
            self.tallied[run.status] += 1
        if was_live != run.is_live:
            self.count_live(run)
        if was_placed != run.is_placed:
            self.count_places(run, 1 if run.is_placed else -1)
        self.settle(run)
        return frame

    def recall(self, run: Run) -> Run:
        """Bring an ended run back from the snapshot, unless it is in memory."""
        if run.run_id not in self.runs:
            self.enter_run(run)
            self.archived[run.status] -= 1
        return self.runs[run.run_id]

    def let_go_of_oldest(self, kept: int, most: int | None = None) -> int:
        """Drop settled runs beyond so many from memory, those that have been settled for longest first, and not more than `most`. The
        snapshot has them. Returns how many were dropped."""
        clean = (run_id for run_id in self.settled if run_id not in self.dirty_runs)
        beyond = max(0, len(self.settled) - kept)
        due = list(islice(clean, beyond if most is None else min(most, beyond)))
        for run_id in due:
            run = self.remove_run(run_id)
            assert run is not None
            self.archived[run.status] += 1
        return len(due)

    def enqueue(self, run: Run) -> None:
        """Put a live run into the queue of its pool."""
        self.queues.join(line_for(run.options.get("pool")), run.run_id)

    def hold(self, run: Run) -> None:
        """Hold a run back until another run of its parent gives up its place (`max_concurrent_agent_tools`)."""
        self.dequeue(run)
        self.held.setdefault(run.parent, OrderedDict())[run.run_id] = None

    def dequeue(self, run: Run) -> None:
        """Take a run out of its queue, or out of those that are held back."""
        self.queues.leave(line_for(run.options.get("pool")), run.run_id)
        held = self.held.get(run.parent)
        if held is not None and held.pop(run.run_id, 0) is None and not held:
            del self.held[run.parent]

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
        self.settle(run)
        self.put(mail)

    def post_ends(self, runs: list[Run], first: int, at_ms: int) -> None:
        """Put the mail about its end into the slot of each of these runs, which are alike and have ended just now. `first` is the number of
        the first end."""
        slot, parent, handler = Slot.FINISH, runs[0].parent, handler_of(Slot.FINISH, runs[0].options)
        mails = [
            Mail(run.mail_id(slot), parent, run.run_id, slot, handler, None, at_ms, seq=seq)
            for seq, run in enumerate(runs, first)
        ]
        for run in runs:
            run.mark_slot(slot, MailState.PENDING)
            del self.settled[run.run_id]
        self.put(*mails)

    def put(self, *mails: Mail) -> None:
        """Put mails into the mailbox of their recipient."""
        recipient, keys = mails[0].recipient, [mail.mail_id for mail in mails]
        self.tally["enqueued"] += len(mails)
        self.mail.update(zip(keys, mails, strict=True))
        self.box(recipient).add(*keys)
        self.touched[recipient] = None
        self.dirty_mail.update(dict.fromkeys(keys))
        self.want(recipient)

    def move_mail(self, event: MailEvent, *keys: str) -> None:
        """Move mails of one recipient by the table, their slots with them, and into its mailbox or out of it."""
        mails = [self.mail[key] for key in keys]
        if not mails:
            return
        for mail in mails:
            self._move(mail, event)
        self.dirty_mail.update(dict.fromkeys(keys))
        self.touched[mails[0].recipient] = None
        self.shelve(*mails)
        if any(mail.state is MailState.PENDING for mail in mails):
            self.want(mails[0].recipient)
        for mail in mails:
            if mail.state in _DROPPED:
                del self.mail[mail.mail_id]

    def _move(self, mail: Mail, event: MailEvent) -> None:
        if mail.state in self.tally:
            self.tally[mail.state] -= 1
        mail.state = state = mail.after(event)
        if state in self.tally:
            self.tally[state] += 1
        run = self.runs.get(mail.run_id)
        if run is not None and run.mail_id(mail.slot) == mail.mail_id:  # else it tells of an end before a retry
            run.mark_slot(mail.slot, state)
            self.settle(run)
            self.dirty_runs[mail.run_id] = None

    def blocks(self, agent: str) -> None:
        """Remember that this agent blocks its host: from its next placement on it is alone."""
        self.blockers.pop(agent, None)
        self.blockers[agent] = None
        if len(self.blockers) > _BLOCKERS_MAX:
            del self.blockers[next(iter(self.blockers))]

    def move(self, agent: str, host_id: str) -> Activation:
        """Put an agent on a host; with an empty `host_id`, take it off its host. The host need not be known yet."""
        activation = self.activation(agent)
        self.dirty_agents[agent] = self.touched[agent] = None
        weight = 0 if self.awaiting.get(agent) else 1
        old = self.hosts.get(activation.host_id)
        if old is not None and agent in old.tenants:
            del old.tenants[agent]
            old.load -= weight
            old.exclusive = old.exclusive and bool(old.tenants)
        activation.host_id, activation.begun_in, activation.confirmed, activation.stopping = host_id, 0, False, False
        if host_id:
            self.want_no_more(agent)
            activation.unclean = False
        self.stir(activation)
        if agent in self.mailbox:
            self.mailbox[agent].take_back()
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
                self.remove_agent(agent)
        elif activation is not None and activation.owes:
            activation.owes, activation.unclean, activation.wake_at_ms = False, True, self.at_ms
            self.stir(activation)
            self.want(agent)
        elif activation is not None and activation.alarm_at_ms:
            activation.run_id, activation.losses = "", 0
            activation.forgive(self.at_ms)
        else:
            gone = self.remove_agent(agent)
            if (
                gone is not None and gone.reported is not None and not parent_of(agent)
            ):  # those below go with the file of another
                self.asleep[agent] = gone.at_rest()
        self.dirty_agents[agent] = None
        if agent in self.mailbox and self.mailbox[agent].is_outstanding(self.at_ms):
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

    def may_be_forgotten(self, run_id: str) -> bool:
        """Whether a run is cleared, its child is on no host, and none of the child's sub-agents is still being deleted."""
        run = self.runs.get(run_id)
        if run is None or not run.cleared or any(is_within(each, run.child) for each in self.doomed):
            return False
        awake = self.agents.get(run.child)
        return awake is None or not awake.host_id

    def forget_run(self, run_id: str) -> None:
        """Drop a cleared run that was deleted, and the activation of its child, unless somebody has called that agent meanwhile."""
        run = self.remove_run(run_id)
        self.cleared.pop(run_id, None)
        child = None if run is None else self.agents.get(run.child)
        if run is not None and (child is None or not child.host_id):
            self.remove_agent(run.child)
            self.asleep.pop(run.child, None)
            self.want_no_more(run.child)

    def newest_code(self, run: Run) -> str | None:
        """The newest package with the code of a run; None if no code came since the run began. What is ours, such as a tool's run, has
        the code of its parent."""
        return self.code.newest.get(self.origin_of_code(run))

    def origin_of_code(self, run: Run) -> str:
        """What a run's code is sent with (`origin_of`)."""
        mine = origin_of(run.agent_type)
        return mine if mine in self.code.newest else origin_of(type_of(run.parent))

    def count_live(self, run: Run) -> None:
        """Update the indexes of its parent after a run became live or ended."""
        family = self.children.setdefault(run.parent, {})
        self.live += 1 if run.is_live else -1
        if run.is_live:
            family[run.run_id] = None
        else:
            family.pop(run.run_id, None)
            self.dequeue(run)
            self.begins_anew.pop(run.run_id, None)
            if run.run_id not in self.agents:
                self.timers.disarm(run.run_id)
            if run.child in self.wanted:
                self.want(run.child)
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
