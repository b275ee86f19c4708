"""The view: the records that facts are folded into, and the indexes by which they are found without a look at all the others.

What a fact does here is said in `folds`, and what a note does in `notes`. Records are entered, changed and removed by methods of the view,
so that each index follows its records. The indexes are made anew from the records at every boot, and tests compare them with the records
after every step of many stories. Hosts are not in the ledger: a boot asks which are there.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Collection
from itertools import islice
from typing import Any

from perdure.ledger.activation import Activation, HostSpec, HostView, Lives, PoolTrouble, package_of, with_package
from perdure.ledger.code import Code
from perdure.ledger.facts import Fact
from perdure.ledger.ids import is_within, origin_of, parent_of, root_of, type_of
from perdure.ledger.indexes import Families, LineKey, PendingMail, Timers, WaitQueues, ancestors, line_for
from perdure.ledger.mail import EVENT, Mail, MailEvent, MailState, Slot, handler_of
from perdure.ledger.run import Run, RunWait, apply, run_of
from perdure.ledger.store.store import Record
from perdure.policies import Leap, NodeDrain, runs_of

ALARM_OF_RUN = "\0run "
"""Before the id of a run that waits for an instant of the wall clock, among the agents that do (`View.alarms`)."""
_BLOCKERS_MAX = 1_000
_COUNTED = (MailState.DELIVERED, MailState.SUPERSEDED, MailState.SUPPRESSED, MailState.PARKED)
_DROPPED = (MailState.DELIVERED, MailState.SUPPRESSED)


class View:
    """What is true after all facts until now, as far as it is in memory: ended runs may be in the snapshot alone.

    Decisions read it. Facts and notes change it (`folds.apply_fact`). Besides, the supervisor enters the hosts that it starts or adopts
    and the agents that are called and those that block their hosts, arms the timers of the runs it touched, and takes out what it has
    performed, made durable or deleted. When it was late itself, it begins to be awake anew.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.stopped = False  # the last life ended on purpose, with all hosts
        self.seq = 0
        self.incarnation = 0
        self.at_ms = 0
        self.awake_at_ms = 0
        self.leaps: tuple[Leap, ...] = ()  # of this life
        self.code_due_ms = 0  # until then the first program of this life may come, and bring code
        self.limits: dict[str, float] = {}
        self.code = Code()
        self.tally: dict[str, int] = dict.fromkeys(("enqueued", *map(str, _COUNTED)), 0)
        self.runs: dict[str, Run] = {}
        self.mail: dict[str, Mail] = {}
        self.agents: dict[str, Activation] = {}
        self.lives = Lives()
        self.closed_calls: dict[str, str] = {}  # the latest ones, as `asked_calls`
        self.asleep: dict[str, Activation] = {}  # what is kept of agents that sleep, until the snapshot has it
        self.deleted: dict[str, None] = {}  # agents, with their descendants, until the snapshot has it
        self.archived: Counter[str] = Counter()  # ended runs by status that only the snapshot has
        self.hosts: dict[str, HostView] = {}
        self.served_at_ms: dict[str, int] = {}  # by pool: when a host that was up went last
        self.elsewhere: dict[str, str] = {}  # nodes that do not see the directory, and what each has instead
        self.draining: dict[str, NodeDrain] = {}  # nodes that drain
        self.troubles: dict[str, PoolTrouble] = {}  # by pool, of those whose last host did not come up
        self.blockers: dict[str, None] = {}  # agents whose code was seen to block the event loop of their host
        self.homes: dict[str, HostSpec] = {}  # of agents that are called, until they are awake
        self.touched: dict[str, None] = {}
        self.dirty_agents: dict[str, None] = {}
        self.kept: dict[str, None] = {}
        self.dirty_runs: dict[str, Record | None] = {}  # with the row, if it was made since the last change
        self.dirty_mail: dict[str, None] = {}
        self.make_indexes()

    def make_indexes(self) -> None:
        """Make empty indexes, to be filled again by entering every record."""
        self.tallied: Counter[str] = Counter()  # runs in memory by status, but for cleared ones
        self.live = 0
        self.settled: dict[str, None] = {}  # runs in memory for which nothing is left to do, the longest so first
        self.asked_for: dict[str, dict[str, None]] = {}  # runs in memory by parent
        self.children: dict[str, dict[str, None]] = {}  # live ones
        self.placed: dict[str, int] = {}
        self.awaiting: dict[str, int] = {}
        self.queues = WaitQueues()
        self.held: dict[str, OrderedDict[str, None]] = {}
        self.sources: dict[str, dict[str, None]] = {}  # runs that live runs need, in memory or not, each with those
        self.due_joins: dict[str, None] = {}  # runs whose condition is to be looked at
        self.awake: dict[str, None] = {}  # agents that are on a host, or ended uncleanly
        self.alarmed: dict[str, None] = {}
        self.wanted: dict[str, LineKey | None] = {}  # agents to be woken, with their line unless they are put off
        self.wakes = WaitQueues()
        self.mailbox: dict[str, PendingMail] = {}
        self.parked_mail: dict[str, dict[str, None]] = {}
        self.families = Families()
        self.timers = Timers()
        self.alarms = Timers()  # by the wall clock
        self.cleared: dict[str, None] = {}
        self.parked: dict[str, None] = {}  # runs
        self.paused: dict[str, None] = {}  # runs, also those that have not come to rest yet
        self.waiting: dict[str, None] = {}  # runs that wait without a process or are paused, until they are queued
        self.events: dict[str, PendingMail] = {}  # by run
        self.asks: dict[str, None] = {}  # runs that ask people something
        self.asks_stand: tuple[int, int] | None = None  # how many questions are open, as of which fact
        self.asked_calls: dict[str, str] = {}  # questions about calls of chats, each with its agent
        self.begins_anew: dict[str, None] = {}  # runs that were tried again, and have begun no attempt since
        self.doomed: dict[str, None] = {}

    # runs

    def enter_run(self, run: Run) -> None:
        self.runs[run.run_id] = run
        self.tallied[run.status] += not run.cleared
        self.asked_for.setdefault(run.parent, {})[run.run_id] = None
        self.families.add(run.parent)
        self.settle(run)

    def remove_run(self, run_id: str) -> Run | None:
        run = self.runs.pop(run_id, None)
        if run is None:
            return None
        self.tallied[run.status] -= not run.cleared
        self.settled.pop(run_id, None)
        self.events.pop(run_id, None)
        siblings = self.asked_for[run.parent]
        del siblings[run_id]
        if not siblings:
            del self.asked_for[run.parent]
            self.leave_family(run.parent)
        return run

    def settle(self, run: Run) -> None:
        if run.has_ended and run.is_settled and not run.cleared and run.run_id not in self.sources:
            self.settled.setdefault(run.run_id)
        else:
            self.settled.pop(run.run_id, None)

    # runs that wait for others

    def follow_sources(self, run: Run) -> None:
        # What a run that waits for others, or is given their results, needs of them stays in memory.
        condition = run.condition
        needed = set(run.sources if run.is_live else ())
        for source in () if condition is None else runs_of(condition):
            if source in needed:
                self.sources.setdefault(source, {})[run.run_id] = None
            elif run.run_id in self.sources.get(source, ()):
                del self.sources[source][run.run_id]
                if not self.sources[source]:
                    del self.sources[source]
            if source in self.runs:
                self.settle(self.runs[source])

    def stir_joins(self, run: Run) -> None:
        # This may decide about those that need the run, or about its own condition.
        self.due_joins.update(self.sources.get(run.run_id, ()))
        if "after" in run.options and run.is_live and not run.is_placed:
            self.due_joins[run.run_id] = None

    # mail

    def box(self, agent: str) -> PendingMail:
        box = self.mailbox.get(agent)
        if box is None:
            box = self.mailbox[agent] = PendingMail()
            self.families.add(agent)
        return box

    def shelve(self, *mails: Mail) -> None:
        """Put mails of one recipient where their states say: into its mailbox, among the parked, or nowhere. An event goes to its run."""
        for event in [mail for mail in mails if mail.is_event]:
            self._shelve_event(event)
        mails = tuple(mail for mail in mails if not mail.is_event)
        if not mails:
            return
        agent = mails[0].recipient
        box, parked = self.box(agent), self.parked_mail.setdefault(agent, {})
        for mail in mails:
            if mail.state is MailState.PENDING:
                box.add(mail.mail_id)
            else:
                box.remove(mail.mail_id)
            if mail.state is MailState.PARKED:
                parked[mail.mail_id] = None
                self.families.add(agent)
            else:
                parked.pop(mail.mail_id, None)
        if not box:
            del self.mailbox[agent]
        if not parked:
            del self.parked_mail[agent]
        self.leave_family(agent)

    def _shelve_event(self, mail: Mail) -> None:
        events = self.events.setdefault(mail.run_id, PendingMail())
        if mail.state is MailState.PENDING:
            events.add(mail.mail_id)
        else:
            events.remove(mail.mail_id)
        if not events:
            del self.events[mail.run_id]

    # agents

    def activation(self, agent: str) -> Activation:
        known = self.agents.get(agent)
        if known is None:
            kept = self.asleep.pop(agent, None)
            known = self.agents[agent] = Activation(agent)
            if kept is not None:
                known.reported, known.called = kept.reported, kept.called
            self.families.add(agent)
        return known

    def remove_agent(self, agent: str) -> Activation | None:
        """Forget where an agent lives, and its alarm. Returns what was known of it."""
        gone = self.agents.pop(agent, None)
        self.awake.pop(agent, None)
        self.alarmed.pop(agent, None)
        self.alarms.disarm(agent)
        for ask_id in () if gone is None else gone.calls or ():
            del self.asked_calls[ask_id]
            self.asks_stand = None
        # Mailboxes, wanted agents and runs of that name are armed under the same key.
        if not (agent in self.mailbox or agent in self.wanted or agent in self.runs):
            self.timers.disarm(agent)
        self.leave_family(agent)
        return gone

    def leave_family(self, agent: str) -> None:
        known = (self.agents, self.mailbox, self.wanted, self.parked_mail, self.asked_for)
        if ">" in agent and not any(agent in index for index in known):
            self.families.remove(agent)

    def stir(self, activation: Activation) -> None:
        if activation.host_id or activation.unclean:
            self.awake[activation.agent_id] = None
        else:
            self.awake.pop(activation.agent_id, None)

    def set_alarm(self, activation: Activation, at_ms: int) -> None:
        # The last alarm does not count any more; with 0, the agent has none.
        agent = activation.agent_id
        activation.alarm_at_ms = at_ms
        self.dirty_agents[agent] = None
        self.alarms.disarm(agent)
        if at_ms:
            self.alarmed[agent] = None
            self.alarms.arm(agent, at_ms)
        else:
            self.alarmed.pop(agent, None)

    def home_of(self, agent: str) -> HostSpec | None:
        """What an agent's class asks of its host, as told by its last activation, or by the call or mail that waits for it; with the code
        that it takes now."""
        home = self._told_home(agent)
        if not self.code.newest:
            return home
        run = run_of(self.runs, root_of(agent))
        package: str | None = self.code.newest.get(origin_of(type_of(agent)))
        if run is not None:
            package = package_of(run.options.get("pool"))
        return home if package is None else with_package(home, package)

    def _told_home(self, agent: str) -> HostSpec | None:
        activation = self.agents.get(agent)
        if activation is not None and activation.home is not None:
            return activation.home
        if agent in self.homes:
            return self.homes[agent]
        for key in self.mailbox.get(agent, ()):
            mail = self.mail[key]
            run = self.runs.get(mail.run_id)
            return run.options.get("home") if run is not None else (mail.content or {}).get("home")
        return None

    def want(self, agent: str) -> None:
        activation = self.agents.get(agent)
        if activation is not None and activation.host_id:
            return
        line, before = line_for(self.home_of(agent)), self.wanted.get(agent)
        if before != line:
            self.put_off(agent)
            self.wanted[agent] = line
            self.wakes.join(line, agent)

    def put_off(self, agent: str) -> None:
        # It cannot be woken now. It is wanted again when that changes.
        line = self.wanted.get(agent)
        if line is not None:
            self.wakes.leave(line, agent)
        elif agent not in self.wanted:
            self.families.add(agent)
        self.wanted[agent] = None

    def want_no_more(self, agent: str) -> None:
        if agent in self.wanted:
            self.put_off(agent)
            del self.wanted[agent]
            self.homes.pop(agent, None)
            self.leave_family(agent)

    def is_begun_anew(self, agent: str) -> bool:
        """Whether what the snapshot says of an agent is of an earlier one of that name, which was deleted."""
        return bool(_within(agent, self.deleted))

    def doomed_by(self, agent: str) -> str:
        """The agent whose deletion includes this one: itself or an ancestor; empty if there is none."""
        return _within(agent, self.doomed)

    def family(self, agent: str) -> list[Activation]:
        return [self.agents[each] for each in self.families.of(agent) if each in self.agents]

    # ---------------------------------------------------------------- what facts and notes do

    def open(self, run: Run) -> None:
        self.enter_run(run)
        self.touched[run.run_id] = self.dirty_runs[run.run_id] = None
        self.enqueue(run)
        self.count_live(run)
        self.stir_joins(run)

    def open_all(self, runs: list[Run]) -> None:
        # They were requested together: of one parent, with the same options.
        first, ids = runs[0], [run.run_id for run in runs]
        self.runs.update(zip(ids, runs, strict=True))
        self.tallied[first.status] += len(runs)
        self.asked_for.setdefault(first.parent, {}).update(dict.fromkeys(ids))
        self.families.add(first.parent)
        self.touched.update(dict.fromkeys(ids))
        self.dirty_runs.update(dict.fromkeys(ids))
        self.queues.join_all(line_for(first.options.get("pool")), ids)
        self.children.setdefault(first.parent, {}).update(dict.fromkeys(ids))
        self.live += len(ids)
        if first.is_awaited and first.parent:
            self.count_waits(first.parent, len(ids))

    def seat_all(self, runs: list[Run], host_id: str) -> None:
        # Nothing was known of the children.
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
        status, was_live, was_placed, stones = run.status, run.is_live, run.is_placed, len(run.milestones)
        frame = apply(run, fact, seq, at_ms)
        self.touched[run.run_id] = self.dirty_runs[run.run_id] = None
        if status is not run.status:
            self.tallied[status] -= 1
            self.tallied[run.status] += 1
        if was_live != run.is_live:
            self.count_live(run)
        if was_placed != run.is_placed:
            self.count_places(run, 1 if run.is_placed else -1)
        if status is not run.status or was_placed != run.is_placed or stones != len(run.milestones) or run.cleared:
            self.stir_joins(run)
        self.settle(run)
        return frame

    def recall(self, run: Run) -> Run:
        if run.run_id not in self.runs:
            self.enter_run(run)
            self.archived[run.status] -= 1
        return self.runs[run.run_id]

    def let_go_of_oldest(self, kept: int, most: int | None = None) -> int:
        """Drop settled runs beyond `kept` from memory, those that have been settled for longest first, and not more than `most`. The
        snapshot has them. Returns how many were dropped."""
        # Of a dirty one the snapshot has an older row, or none.
        clean = (run_id for run_id in self.settled if run_id not in self.dirty_runs)
        beyond = max(0, len(self.settled) - kept)
        due = list(islice(clean, beyond if most is None else min(most, beyond)))
        for run_id in due:
            run = self.remove_run(run_id)
            assert run is not None
            self.archived[run.status] += 1
        return len(due)

    def rest(self, run: Run) -> None:
        # It stands in no queue until its time or its event comes. What has come already counts.
        self.dequeue(run)
        if run.run_id not in self.agents:
            self.timers.disarm(run.run_id)  # those were of the attempt
        self.rest_again(run)

    def rest_again(self, run: Run) -> None:
        # It stands in no queue, and no timer looks at it.
        wait = run.wait
        if not run.paused and (wait is None or wait.is_for_nothing or self.come_to(run)):
            self.enqueue(run)
            return
        self.waiting[run.run_id] = None
        if wait is not None and wait.by_wall and not math.isinf(wait.until_ms):
            self.alarms.arm(ALARM_OF_RUN + run.run_id, wait.until_ms)

    def rest_no_more(self, run: Run) -> None:
        if self.waiting.pop(run.run_id, 0) is None:
            self.alarms.disarm(ALARM_OF_RUN + run.run_id)

    def come_to(self, run: Run) -> list[str]:
        # Which of the events that it waits for have come.
        come, wait = [self.mail[key] for key in self.events.get(run.run_id, ())], run.wait
        return [each.slot.removeprefix(EVENT) for each in come if wait is not None and _is_awaited(each, wait)]

    def enqueue(self, run: Run) -> None:
        if run.waits_for_others:
            return
        if run.paused:
            self.waiting[run.run_id] = None
            return
        self.rest_no_more(run)
        self.queues.join(line_for(run.options.get("pool")), run.run_id)

    def hold(self, run: Run) -> None:
        self.dequeue(run)  # until another run of its parent gives up its place (`max_concurrent_agent_tools`)
        self.held.setdefault(run.parent, OrderedDict())[run.run_id] = None

    def dequeue(self, run: Run) -> None:
        self.queues.leave(line_for(run.options.get("pool")), run.run_id)
        held = self.held.get(run.parent)
        if held is not None and held.pop(run.run_id, 0) is None and not held:
            del self.held[run.parent]

    def post(self, run: Run, slot: str, content: dict[str, Any] | None, at_ms: int) -> None:
        # A slot takes one mail.
        if slot in run.slots:
            return
        key, handler = run.mail_id(slot), handler_of(slot, run.options)
        mail = Mail(key, run.parent, run.run_id, slot, handler, content, at_ms, seq=self.seq)
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
        recipient, keys = mails[0].recipient, [mail.mail_id for mail in mails]
        self.tally["enqueued"] += len(mails)
        self.mail.update(zip(keys, mails, strict=True))
        self.box(recipient).add(*keys)
        self.touched[recipient] = None
        self.dirty_mail.update(dict.fromkeys(keys))
        self.want(recipient)

    def put_event(self, run: Run, mail: Mail) -> None:
        self.tally["enqueued"] += 1
        self.mail[mail.mail_id] = mail
        self._shelve_event(mail)
        self.touched[run.run_id] = self.dirty_mail[mail.mail_id] = None
        if run.run_id in self.waiting and run.wait is not None and _is_awaited(mail, run.wait):
            self.rest(run)

    def move_mail(self, event: MailEvent, *keys: str) -> None:
        mails = [self.mail[key] for key in keys]
        if not mails:
            return
        for mail in mails:
            self._move(mail, event)
        self.dirty_mail.update(dict.fromkeys(keys))
        self.touched[mails[0].recipient] = None
        self.shelve(*mails)
        if any(mail.state is MailState.PENDING and not mail.is_event for mail in mails):
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
        # From its next placement on it is alone. It is entered again at the end: the oldest is the first.
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
        if self.events:
            self.take_back_events(agent)
        new = self.hosts.get(host_id)
        if new is not None:
            new.tenants[agent] = None
            new.load += weight
            new.tenancies += 1
        return activation

    def take_back_events(self, agent: str) -> None:
        run = run_of(self.runs, agent)
        if run is not None and run.run_id in self.events:
            self.events[run.run_id].take_back()

    def drop_agent(self, agent: str) -> None:
        """Forget an activation that owes nothing, has no alarm, and asks nobody anything. The agent is wanted again if it has mail that
        is due; for mail that waits for its retry, a timer is armed already."""
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
        elif activation is not None and (activation.alarm_at_ms or activation.calls):
            activation.run_id, activation.losses = "", 0
            activation.forgive(self.at_ms)
        else:
            gone = self.remove_agent(agent)
            # those below another one go with its file
            if gone is not None and gone.reported is not None and not parent_of(agent):
                self.asleep[agent] = gone.at_rest()
        self.dirty_agents[agent] = None
        if agent in self.mailbox and self.mailbox[agent].is_outstanding(self.at_ms):
            self.want(agent)

    def is_new(self, agent: str) -> bool:
        activation = self.agents.get(agent)
        run = None if activation is None else self.runs.get(activation.run_id)
        return run is not None and run.attempt == 1

    def reached(self, agent: str, sequence: int) -> None:
        activation = self.agents.get(agent)
        if activation is not None and sequence > (activation.reported or 0):
            activation.reported = sequence
            self.dirty_agents[agent] = None

    def may_be_forgotten(self, run_id: str) -> bool:
        run = self.runs.get(run_id)
        if run is None or not run.cleared or any(is_within(each, run.child) for each in self.doomed):
            return False
        awake = self.agents.get(run.child)
        return awake is None or not awake.host_id

    def forget_run(self, run_id: str) -> None:
        run = self.remove_run(run_id)
        self.cleared.pop(run_id, None)
        child = None if run is None else self.agents.get(run.child)
        if run is not None and (child is None or not child.host_id):  # else somebody has called that agent meanwhile
            self.remove_agent(run.child)
            self.asleep.pop(run.child, None)
            self.want_no_more(run.child)

    def newest_code(self, run: Run) -> str | None:
        """The newest package with the code of a run; None if no code came since the run began."""
        return self.code.newest.get(self.origin_of_code(run))

    def origin_of_code(self, run: Run) -> str:
        mine = origin_of(run.agent_type)
        # a tool's run has its parent's code
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
            self.rest_no_more(run)
            for index in (self.begins_anew, self.parked, self.paused):
                index.pop(run.run_id, None)
            if run.run_id not in self.agents:
                self.timers.disarm(run.run_id)
            if run.child in self.wanted:
                self.want(run.child)
        if not family:
            del self.children[run.parent]
        if run.is_awaited and run.parent:
            self.count_waits(run.parent, 1 if run.is_live else -1)
        if "after" in run.options:
            self.follow_sources(run)

    def count_places(self, run: Run, change: int) -> None:
        self.placed[run.parent] = self.placed.get(run.parent, 0) + change
        if not self.placed[run.parent]:
            del self.placed[run.parent]
        held = self.held.get(run.parent)
        if change < 0 and held:  # the next run that its parent's limit held back
            follower = self.runs[next(iter(held))]
            self.dequeue(follower)
            self.enqueue(follower)

    def count_waits(self, agent: str, change: int) -> None:
        # An agent that merely waits is no load to its host.
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
    """The number of the fact after which no life of this agent has ended."""
    # The child of a run also lives in its attempts. Their ends are not kept one by one: only while the first attempt lasts is it certain
    # that none has ended.
    end = view.lives.last_end(agent)
    run = run_of(view.runs, agent)
    if run is None or not run.attempt or (run.attempt == 1 and run.is_placed):
        return end
    return max(end, run.last_seq)


def _is_awaited(event: Mail, wait: RunWait) -> bool:
    return event.slot.removeprefix(EVENT) in wait.events


def _within(agent: str, among: Collection[str]) -> str:
    """The nearest of these agents that this one is, or is below; empty if there is none."""
    return next((each for each in (agent, *ancestors(agent)) if each in among), "") if among else ""
