"""decide(view, stimulus) → facts. The one door through which anything becomes true.

The machine of the supervisor is: stimulus → decide → facts → append (durable) → outstanding → effects. This module is its first half. It
has no state, no clock and no die; time comes in, and a crash at any line leaves nothing behind, because facts count only
once they are appended. A stimulus that is doubled, late or from an earlier life yields no facts.

| stimulus | decided in |
|---|---|
| `Request`, `Cancel`, `Clear`, `Tell`, `Forget`, `StopLives`, `Requeue` | `requests` |
| `Up`, `Progress`, `Milestone`, `Chunk`, `Ended`, `Unstarted`, `Released`, `Awake`, `Alarm`, `Handled`, `HostUp`, `HostLost` | `reports` |
| `Tick` | `clockwork` |
| (after each group) | `seating` |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from perdure.ledger import host_reports as reports
from perdure.ledger import requests
from perdure.ledger import timeouts as clockwork
from perdure.ledger.facts import Fact
from perdure.ledger.stimulus import (
    Alarm,
    Awake,
    Cancel,
    Chunk,
    Clear,
    Ended,
    Forget,
    Handled,
    HostLost,
    HostUp,
    Milestone,
    Progress,
    Released,
    Request,
    Requeue,
    Stimulus,
    StopLives,
    Tell,
    Tick,
    Unstarted,
    Up,
)
from perdure.ledger.view import View
from perdure.policies import Limits


def decide(view: View, stimulus: Stimulus, at_ms: int, limits: Limits) -> Iterator[Fact]:
    """The facts that a stimulus brings about. Each must be folded into the view before the next is asked for."""
    return _DECISIONS[type(stimulus)](view, stimulus, at_ms, limits)


def _awake(view: View, said: Awake) -> Iterator[Fact]:
    """An agent that came up is not woken again. This is seen, not a fact: after a boot its host says so anew."""
    activation = view.agents.get(said.agent_id)
    if activation is not None and activation.incarnation == said.incarnation:
        activation.confirmed = True
    return iter(())


_DECISIONS: dict[type[Stimulus], Callable[[View, Any, int, Limits], Iterator[Fact]]] = {
    Request: lambda view, said, _at_ms, limits: requests.request(view, said, limits),
    Cancel: lambda view, said, _at_ms, _limits: requests.cancel(view, said),
    Clear: lambda view, said, _at_ms, _limits: requests.clear(view, said),
    Tell: lambda view, said, _at_ms, _limits: requests.tell(view, said),
    Forget: lambda view, said, _at_ms, _limits: requests.forget(view, said),
    StopLives: lambda view, said, _at_ms, _limits: requests.stop_lives(view, said),
    Requeue: lambda view, said, _at_ms, _limits: requests.requeue(view, said),
    Up: lambda view, said, _at_ms, _limits: reports.up(view, said),
    Progress: lambda view, said, _at_ms, _limits: reports.progress(view, said),
    Milestone: lambda view, said, _at_ms, _limits: reports.milestone(view, said),
    Chunk: lambda view, said, _at_ms, _limits: reports.chunk(view, said),
    Ended: lambda view, said, _at_ms, limits: reports.ended(view, said, limits),
    Unstarted: reports.unstarted,
    Released: reports.released,
    Awake: lambda view, said, _at_ms, _limits: _awake(view, said),
    Alarm: lambda view, said, _at_ms, _limits: reports.alarm(view, said),
    Handled: reports.handled,
    HostUp: reports.host_up,
    HostLost: reports.host_lost,
    Tick: lambda view, _said, at_ms, limits: clockwork.tick(view, at_ms, limits),
}
