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
    __slots__ = ()

    @abstractmethod
    def apply(self, view: View) -> None: ...


# The agent came up on its host, so it need not be woken again.
@dataclass(frozen=True, slots=True)
class AgentSeen(Note):
    agent_id: str

    def apply(self, view: View) -> None:
        view.agents[self.agent_id].confirmed = True


@dataclass(frozen=True, slots=True)
class HostSeen(Note):
    host_id: str

    def apply(self, view: View) -> None:
        host = view.hosts[self.host_id]
        host.up = True
        view.troubles.pop(pool_key(host.spec), None)


# The agent's host answers: what the agent still has to be told is told again, and its run likewise.
@dataclass(frozen=True, slots=True)
class TenantSeen(Note):
    agent_id: str

    def apply(self, view: View) -> None:
        run_id = view.agents[self.agent_id].run_id
        view.touched[self.agent_id] = None
        if self.agent_id in view.mailbox:
            view.mailbox[self.agent_id].take_back()
        view.take_back_events(self.agent_id)
        if run_id in view.runs:
            view.touched[run_id] = None


# The host is dead, and everybody has left it.
@dataclass(frozen=True, slots=True)
class HostGone(Note):
    host_id: str
    at_ms: int

    def apply(self, view: View) -> None:
        host = view.hosts.pop(self.host_id)
        if host.up:
            view.served_at_ms[pool_key(host.spec)] = self.at_ms


# The host is for one tenant alone, until it is empty again.
@dataclass(frozen=True, slots=True)
class HostReserved(Note):
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


# The run is looked at again at `at_ms` at the latest; with infinity, nothing is due for it.
@dataclass(frozen=True, slots=True)
class TimerArmed(Note):
    run_id: str
    at_ms: float

    def apply(self, view: View) -> None:
        view.timers.arm_by(self.run_id, self.at_ms)


# The agent has mail that is due, or ended uncleanly: it is woken if it is not awake, and its mail is delivered.
@dataclass(frozen=True, slots=True)
class AgentDue(Note):
    agent_id: str

    def apply(self, view: View) -> None:
        view.want(self.agent_id)
        view.touched[self.agent_id] = None


# The agent cannot be woken now: its pause is not over, an attempt of its run will wake it, or it is being deleted.
@dataclass(frozen=True, slots=True)
class WakePutOff(Note):
    agent_id: str

    def apply(self, view: View) -> None:
        view.put_off(self.agent_id)


# The pause after a loss, or a wait, is over: the run waits for a place in the queue of its pool.
@dataclass(frozen=True, slots=True)
class RunQueued(Note):
    run_id: str

    def apply(self, view: View) -> None:
        view.enqueue(view.runs[self.run_id])


@dataclass(frozen=True, slots=True)
class JoinLooked(Note):
    run_id: str

    def apply(self, view: View) -> None:
        view.due_joins.pop(self.run_id, None)


# The run's parent has as many runs at work as it allows. The run leaves the queue until one of them gives up its place.
@dataclass(frozen=True, slots=True)
class RunHeld(Note):
    run_id: str

    def apply(self, view: View) -> None:
        view.hold(view.runs[self.run_id])
