"""Leaving the nodes of a cluster that drain, step by step (`policies.nodes`).

Nothing of it is durable: what a life has not done its next one does, and what is done twice does no harm. A node that ends sooner than it
said takes its hosts with it, as every death of a node does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from perdure.actors.link.messages import Passivate, RetireHost
from perdure.actors.ports import Clock, Fleet
from perdure.actors.supervisor.sessions import Sessions
from perdure.ledger import HostView, View
from perdure.policies import DrainStep, drain_step, moves_at_ms

log = logging.getLogger("perdure.supervisor")


class NodeDrains:
    """The draining nodes, as one supervisor life sees them.

    Args:
        give_up: ends a host with what is at work there, given the cause.
        move: ends this life, so that the next one begins on another node.
    """

    def __init__(
        self,
        fleet: Fleet,
        view: View,
        sessions: Sessions,
        clock: Clock,
        give_up: Callable[[str, str], None],
        move: Callable[[], None],
    ) -> None:
        view.draining = fleet.draining
        self._fleet, self._view, self._sessions, self._clock = fleet, view, sessions, clock
        self._give_up, self._move = give_up, move
        self._moves_at_ms: dict[tuple[str, int], float] = {}
        self._said: dict[str, DrainStep] = {}  # the last step with each host

    def look(self) -> None:
        """Take the next step with each host on such a node. The supervisor leaves its own when its hosts have been told."""
        now_ms, draining = self._clock.now_ms(), dict(self._fleet.draining)
        for node, drain in draining.items():
            key = node, drain.until_ms
            if key not in self._moves_at_ms:
                self._moves_at_ms[key] = moves_at_ms(now_ms, drain.until_ms)
                log.info("node %s drains: %d hosts leave it", node, len(drain.hosts))
            for host in [self._view.hosts[each] for each in drain.hosts if each in self._view.hosts]:
                self._leave(host, node, is_late=now_ms >= self._moves_at_ms[key])
        self._sessions.flush()
        if any(drain.is_here for drain in draining.values()):
            self._move()

    def _leave(self, host: HostView, node: str, *, is_late: bool) -> None:
        host.draining = True
        session, said = self._sessions.by_peer.get(host.host_id), self._said.get(host.host_id)
        if session is None:  # it is told when it has come up
            return
        step = drain_step(is_up=host.up, is_told=said is not None, has_tenants=bool(host.tenants), is_late=is_late)
        if step in (DrainStep.WAIT, said):
            return
        self._said[host.host_id] = step
        match step:
            case DrainStep.LEAVE:
                session.say(Passivate(list(host.tenants)))
            case DrainStep.RETIRE:
                session.say(RetireHost())
            case DrainStep.MOVE:
                self._give_up(host.host_id, f"node {node} is about to end")
