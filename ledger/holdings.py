"""What the view holds: records, and the indexes by which they are found without a look at all the others.

Whoever enters, changes or removes a record says so here, so that each index follows its records. All are made anew from the records at
every boot, and tests compare them with the records after every step of many stories.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection
from typing import Any

from perdure.ledger.activation import Activation, HostView, Lives, Trouble, package_of, with_package
from perdure.ledger.code import Code
from perdure.ledger.families import Families, ancestors
from perdure.ledger.ids import name_of, origin_of, root_of, type_of
from perdure.ledger.lines import LineKey, Lines, line_for
from perdure.ledger.mail import Mail, MailState
from perdure.ledger.mailbox import Mailbox
from perdure.ledger.run import Run
from perdure.ledger.store.store import Record
from perdure.ledger.timers import Timers
from perdure.policies import Leap

_COUNTED = (MailState.DELIVERED, MailState.SUPERSEDED, MailState.SUPPRESSED, MailState.PARKED)


class Holdings:
    """Records and indexes. What a fact means for them is said in `View`."""

    def __init__(self) -> None:
        self.epoch = 0
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
        self.asleep: dict[str, Activation] = {}  # what is kept of agents that sleep, until the snapshot has it
        self.deleted: dict[str, None] = {}  # agents, with their descendants, until the snapshot has it
        self.archived: Counter[str] = Counter()  # ended runs by status that only the snapshot has
        self.hosts: dict[str, HostView] = {}
        self.elsewhere: dict[str, str] = {}  # nodes that do not see the directory, and what each has instead
        self.troubles: dict[str, Trouble] = {}  # by pool, of those whose last host did not come up
        self.blockers: dict[str, None] = {}  # agents whose code was seen to block the event loop of their host
        self.homes: dict[str, list[Any]] = {}
        self.touched: dict[str, None] = {}
        self.dirty_agents: dict[str, None] = {}
        self.kept: dict[str, None] = {}
        self.dirty_runs: dict[str, Record | None] = {}  # with the row, if it was made since the last change
        self.dirty_mail: dict[str, None] = {}
        self.make_indexes()

    def make_indexes(self) -> None:
        """Have indexes that say nothing. Whoever fills them again enters every record."""
        self.tallied: Counter[str] = Counter()  # runs in memory by status, but for cleared ones
        self.live = 0
        self.settled: dict[str, None] = {}  # runs in memory for which nothing is left to do, the longest so first
        self.asked_for: dict[str, dict[str, None]] = {}  # runs in memory by parent
        self.children: dict[str, dict[str, None]] = {}  # live ones
        self.placed: dict[str, int] = {}
        self.awaiting: dict[str, int] = {}
        self.queues = Lines()
        self.held: dict[str, OrderedDict[str, None]] = {}
        self.awake: dict[str, None] = {}  # agents that are on a host, or ended uncleanly
        self.alarmed: dict[str, None] = {}
        self.wanted: dict[
            str, LineKey | None
        ] = {}  # agents that are to be woken, with their line unless they are put off
        self.wakes = Lines()
        self.mailbox: dict[str, Mailbox] = {}
        self.parked_mail: dict[str, dict[str, None]] = {}
        self.families = Families()
        self.timers = Timers()
        self.alarms = Timers()  # by the wall clock
        self.cleared: dict[str, None] = {}
        self.parked: dict[str, None] = {}  # runs
        self.begins_anew: dict[str, None] = {}  # runs that were tried again, and have begun no attempt since
        self.doomed: dict[str, None] = {}

    # runs

    def enter_run(self, run: Run) -> None:
        """Have a run in memory, among those of its parent."""
        self.runs[run.run_id] = run
        self.tallied[run.status] += not run.cleared
        self.asked_for.setdefault(run.parent, {})[run.run_id] = None
        self.families.add(run.parent)
        self.settle(run)

    def enter_all(self, runs: list[Run], ids: list[str]) -> None:
        """The same for new runs of one parent."""
        first = runs[0]
        self.runs.update(zip(ids, runs, strict=True))
        self.tallied[first.status] += len(runs)
        self.asked_for.setdefault(first.parent, {}).update(dict.fromkeys(ids))
        self.families.add(first.parent)

    def remove_run(self, run_id: str) -> Run | None:
        """Have a run in memory no more."""
        run = self.runs.pop(run_id, None)
        if run is None:
            return None
        self.tallied[run.status] -= not run.cleared
        self.settled.pop(run_id, None)
        siblings = self.asked_for[run.parent]
        del siblings[run_id]
        if not siblings:
            del self.asked_for[run.parent]
            self.leave_family(run.parent)
        return run

    def settle(self, run: Run) -> None:
        """Know whether a run is among those that may leave memory."""
        if run.has_ended and run.is_settled and not run.cleared:
            self.settled.setdefault(run.run_id)
        else:
            self.settled.pop(run.run_id, None)

    # mail

    def box(self, agent: str) -> Mailbox:
        """The mailbox of an agent, which has or gets mail."""
        box = self.mailbox.get(agent)
        if box is None:
            box = self.mailbox[agent] = Mailbox()
            self.families.add(agent)
        return box

    def shelve(self, *mails: Mail) -> None:
        """Put mails of one recipient where their states say: into its mailbox, among the parked, or nowhere."""
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

    # agents

    def activation(self, agent: str) -> Activation:
        """Where an agent lives, or is going to live."""
        known = self.agents.get(agent)
        if known is None:
            kept = self.asleep.pop(agent, None)
            known = self.agents[agent] = Activation(agent)
            if kept is not None:
                known.reported, known.called = kept.reported, kept.called
            self.families.add(agent)
        return known

    def remove_agent(self, agent: str) -> Activation | None:
        """Forget where an agent lives, and its alarm."""
        gone = self.agents.pop(agent, None)
        self.awake.pop(agent, None)
        self.alarmed.pop(agent, None)
        self.alarms.disarm(agent)
        if not (agent in self.mailbox or agent in self.wanted or agent in self.runs):
            self.timers.disarm(agent)
        self.leave_family(agent)
        return gone

    def leave_family(self, agent: str) -> None:
        """Let an agent's relatives forget it, if nothing is known of it any more."""
        known = (self.agents, self.mailbox, self.wanted, self.parked_mail, self.asked_for)
        if ">" in agent and not any(agent in index for index in known):
            self.families.remove(agent)

    def stir(self, activation: Activation) -> None:
        """Know whether an agent is awake, or is to be woken because it ended uncleanly."""
        if activation.host_id or activation.unclean:
            self.awake[activation.agent_id] = None
        else:
            self.awake.pop(activation.agent_id, None)

    def set_alarm(self, activation: Activation, at_ms: int) -> None:
        """Wake this agent at that time, and not at that of its last alarm; with 0, it has none."""
        agent = activation.agent_id
        activation.alarm_at_ms = at_ms
        self.dirty_agents[agent] = None
        self.alarms.disarm(agent)
        if at_ms:
            self.alarmed[agent] = None
            self.alarms.arm(agent, at_ms)
        else:
            self.alarmed.pop(agent, None)

    def home_of(self, agent: str) -> list[Any] | None:
        """What an agent's class asks of its host, as told by its last activation, or by the call or mail that waits for it; with the code
        that it takes now."""
        home = self._told_home(agent)
        if not self.code.newest:
            return home
        root = root_of(agent)
        run = self.runs.get(name_of(root))
        package: str | None = self.code.newest.get(origin_of(type_of(agent)))
        if run is not None and run.child == root:
            package = package_of(run.options.get("pool"))
        return home if package is None else with_package(home, package)

    def _told_home(self, agent: str) -> list[Any] | None:
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
        """Wake this agent, unless it is awake. It waits where its class says."""
        activation = self.agents.get(agent)
        if activation is not None and activation.host_id:
            return
        line, before = line_for(self.home_of(agent)), self.wanted.get(agent)
        if before != line:
            self.put_off(agent)
            self.wanted[agent] = line
            self.wakes.join(line, agent)

    def put_off(self, agent: str) -> None:
        """An agent cannot be woken now. It is wanted again when that changes."""
        line = self.wanted.get(agent)
        if line is not None:
            self.wakes.leave(line, agent)
        elif agent not in self.wanted:
            self.families.add(agent)
        self.wanted[agent] = None

    def want_no_more(self, agent: str) -> None:
        """An agent is awake, or nobody asks for it any more."""
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
        """The activations of the agent and its descendants."""
        return [self.agents[each] for each in self.families.of(agent) if each in self.agents]


def _within(agent: str, among: Collection[str]) -> str:
    """The nearest of these agents that this one is, or is below; empty if there is none."""
    return next((each for each in (agent, *ancestors(agent)) if each in among), "") if among else ""
