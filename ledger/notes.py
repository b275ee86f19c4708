"""Notes: what a decision changes in the view and no journal keeps.

A fact is durable. A note is not: it is about a host, which is seen and not remembered, or about an index, which a boot makes anew from the
records. Both are yielded by `decide` and put into the view by `enact` alone, so that deciding itself changes nothing.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from perdure.ledger.activation import pool_key
from perdure.ledger.view import View


class Note:
    """One change of the view that is not durable."""

    __slots__ = ()

    @abstractmethod
    def apply(self, view: View) -> None: ...


@dataclass(frozen=True, slots=True)
class AgentSeen(Note):
    """The agent came up on its host: it need not be woken again."""

    agent_id: str

    def apply(self, view: View) -> None:
        view.agents[self.agent_id].confirmed = True


@dataclass(frozen=True, slots=True)
class HostSeen(Note):
    """The host answers."""

    host_id: str

    def apply(self, view: View) -> None:
        host = view.hosts[self.host_id]
        host.up = True
        view.troubles.pop(pool_key(host.spec), None)


@dataclass(frozen=True, slots=True)
class TenantSeen(Note):
    """The agent's host answers: what the agent still has to be told is told again, and its run likewise."""

    agent_id: str

    def apply(self, view: View) -> None:
        run_id = view.agents[self.agent_id].run_id
        view.touched[self.agent_id] = None
        if self.agent_id in view.mailbox:
            view.mailbox[self.agent_id].take_back()
        view.take_back_events(self.agent_id)
        if run_id in view.runs:
            view.touched[run_id] = None


@dataclass(frozen=True, slots=True)
class HostGone(Note):
    """The host is dead, and everybody left it."""

    host_id: str

    def apply(self, view: View) -> None:
        del view.hosts[self.host_id]


@dataclass(frozen=True, slots=True)
class HostReserved(Note):
    """The host is for one tenant alone, until it is empty again."""

    host_id: str

    def apply(self, view: View) -> None:
        view.hosts[self.host_id].exclusive = True


@dataclass(frozen=True, slots=True)
class TimersFired(Note):
    """It is that late, by the ledger and by the wall. `View.timers.fired` and `View.alarms.fired` hold what is due by then, each to be
    armed again by the look at it."""

    at_ms: int
    wall_ms: int

    def apply(self, view: View) -> None:
        view.timers.fire(self.at_ms)
        view.alarms.fire(self.wall_ms)


@dataclass(frozen=True, slots=True)
class TimerArmed(Note):
    """The run is looked at again at `at_ms` at the latest; with infinity, nothing is due for it."""

    run_id: str
    at_ms: float

    def apply(self, view: View) -> None:
        view.timers.arm_by(self.run_id, self.at_ms)


@dataclass(frozen=True, slots=True)
class AgentDue(Note):
    """The agent has mail that is due, or ended uncleanly: it is woken if it is not awake, and its mail is delivered."""

    agent_id: str

    def apply(self, view: View) -> None:
        view.want(self.agent_id)
        view.touched[self.agent_id] = None


@dataclass(frozen=True, slots=True)
class WakePutOff(Note):
    """The agent cannot be woken now: its pause is not over, an attempt of its run will wake it, or it is being deleted."""

    agent_id: str

    def apply(self, view: View) -> None:
        view.put_off(self.agent_id)


@dataclass(frozen=True, slots=True)
class RunQueued(Note):
    """The pause after a loss is over: the run waits for a place in the queue of its pool."""

    run_id: str

    def apply(self, view: View) -> None:
        view.enqueue(view.runs[self.run_id])


@dataclass(frozen=True, slots=True)
class JoinLooked(Note):
    """The condition of the run is looked at."""

    run_id: str

    def apply(self, view: View) -> None:
        view.due_joins.pop(self.run_id, None)


@dataclass(frozen=True, slots=True)
class RunHeld(Note):
    """The run's parent has as many runs at work as it allows. The run leaves the queue until one of them gives up its place."""

    run_id: str

    def apply(self, view: View) -> None:
        view.hold(view.runs[self.run_id])
