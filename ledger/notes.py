"""Notes: what a decision changes in the view and no journal keeps.

A fact is durable. A note is not: it is about a host, which is seen and not remembered, or about an index, which a boot makes anew from the
records. Both are yielded by `decide` and put into the view by `enact` alone, so that deciding itself changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, NamedTuple, ParamSpec

from perdure.ledger.activation import pool_key
from perdure.ledger.view import View

P = ParamSpec("P")


class Note(NamedTuple):
    apply: Callable[[View], None]


def _note(change: Callable[Concatenate[View, P], None]) -> Callable[P, Note]:
    def noted(*about: P.args, **named: P.kwargs) -> Note:
        return Note(lambda view: change(view, *about, **named))

    return noted


# The agent came up on its host, so it need not be woken again.
@_note
def agent_seen(view: View, agent: str) -> None:
    view.agents[agent].confirmed = True


@_note
def host_seen(view: View, host_id: str) -> None:
    host = view.hosts[host_id]
    host.up = True
    view.troubles.pop(pool_key(host.spec), None)


# The agent's host answers: what the agent still has to be told is told again, and its run likewise.
@_note
def tenant_seen(view: View, agent: str) -> None:
    run_id = view.agents[agent].run_id
    view.touched[agent] = None
    if agent in view.mailbox:
        view.mailbox[agent].take_back()
    view.take_back_events(agent)
    if run_id in view.runs:
        view.touched[run_id] = None


# The host is dead, and everybody has left it.
@_note
def host_gone(view: View, host_id: str, at_ms: int) -> None:
    host = view.hosts.pop(host_id)
    if host.up:
        view.served_at_ms[pool_key(host.spec)] = at_ms


# The host is for one tenant alone, until it is empty again.
@_note
def host_reserved(view: View, host_id: str) -> None:
    view.hosts[host_id].exclusive = True


# It is that late, by the ledger and by the wall. `View.timers.fired` and `View.alarms.fired` hold what is due by then, each to be armed
# again by the look at it.
@_note
def timers_fired(view: View, at_ms: int, wall_ms: int) -> None:
    view.timers.fire(at_ms)
    view.alarms.fire(wall_ms)


# The run is looked at again at `at_ms` at the latest; with infinity, nothing is due for it.
@_note
def timer_armed(view: View, run_id: str, at_ms: float) -> None:
    view.timers.arm_by(run_id, at_ms)


# The agent has mail that is due, or ended uncleanly: it is woken if it is not awake, and its mail is delivered.
@_note
def agent_due(view: View, agent: str) -> None:
    view.want(agent)
    view.touched[agent] = None


# The agent cannot be woken now: its pause is not over, an attempt of its run will wake it, or it is being deleted.
@_note
def wake_put_off(view: View, agent: str) -> None:
    view.put_off(agent)


# The pause after a loss, or a wait, is over: the run waits for a place in the queue of its pool.
@_note
def run_queued(view: View, run_id: str) -> None:
    view.enqueue(view.runs[run_id])


@_note
def join_looked(view: View, run_id: str) -> None:
    view.due_joins.pop(run_id, None)


# The run's parent has as many runs at work as it allows. The run leaves the queue until one of them gives up its place.
@_note
def run_held(view: View, run_id: str) -> None:
    view.hold(view.runs[run_id])
