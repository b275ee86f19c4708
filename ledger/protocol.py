"""decide(view, stimulus) → facts and notes. Nothing becomes true in any other way.

The machine of the supervisor is: stimulus → decide → facts → append (durable) → outstanding → effects. This module is its first half. It
has no state, no clock and no die, and it changes nothing: time comes in, and what it yields is put into the view by `folds.enact`. A crash
at any line leaves nothing behind, because facts count only once they are appended, and notes are made again after a boot. A stimulus that
is doubled, late or from an earlier life yields no facts.

| stimulus | decided in |
|---|---|
| `Request`, `Cancel`, `Clear`, `Tell`, `Forget`, `StopLives`, `Retry` | `requests` |
| `Up`, `Progress`, `Milestone`, `Chunk`, `Ended`, `Unstarted`, `Released`, `Awake`, `Alarm`, `Handled` | `host_reports` |
| `Adopt` | `upgrades` |
| `Retire` | `retention` |
| `HostUp`, `HostLost` | `host_reports` |
| `Unhosted` | `placements` |
| `Tick` | `timeouts` |
| (after each group of stimuli) | `placements` |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from perdure.ledger import host_reports, placements, requests, retention, timeouts, upgrades
from perdure.ledger.facts import Fact
from perdure.ledger.notes import Note
from perdure.ledger.stimulus import (
    Adopt,
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
    Retire,
    Retry,
    Stimulus,
    StopLives,
    Tell,
    Tick,
    Unhosted,
    Unstarted,
    Up,
)
from perdure.ledger.view import View
from perdure.policies import Limits


def decide(view: View, stimulus: Stimulus, at_ms: int, limits: Limits) -> Iterator[Fact | Note]:
    """What a stimulus brings about. Reads the view and changes nothing: `folds.enact` puts each fact and note into the view before it takes
    the next one, so that later decisions see earlier ones.

    Raises:
        BadRequest, WorldError: a request that is refused, before its first fact.
    """
    return _DECISIONS[type(stimulus)](view, stimulus, at_ms, limits)


_DECISIONS: dict[type[Stimulus], Callable[[View, Any, int, Limits], Iterator[Fact | Note]]] = {
    Request: lambda view, said, _at_ms, limits: requests.request(view, said, limits),
    Cancel: lambda view, said, _at_ms, _limits: requests.cancel(view, said),
    Clear: lambda view, said, _at_ms, _limits: requests.clear(view, said),
    Tell: lambda view, said, _at_ms, _limits: requests.tell(view, said),
    Forget: lambda view, said, _at_ms, _limits: requests.forget(view, said),
    StopLives: lambda view, said, _at_ms, _limits: requests.stop_lives(view, said),
    Retire: lambda view, said, _at_ms, _limits: retention.retire(view, said),
    Retry: lambda view, said, _at_ms, _limits: requests.retry(view, said),
    Up: lambda view, said, _at_ms, _limits: host_reports.up(view, said),
    Progress: lambda view, said, _at_ms, _limits: host_reports.progress(view, said),
    Milestone: lambda view, said, _at_ms, _limits: host_reports.milestone(view, said),
    Chunk: lambda view, said, _at_ms, _limits: host_reports.chunk(view, said),
    Ended: lambda view, said, _at_ms, limits: host_reports.ended(view, said, limits),
    Unstarted: host_reports.unstarted,
    Released: host_reports.released,
    Awake: lambda view, said, _at_ms, _limits: host_reports.awake(view, said),
    Alarm: lambda view, said, _at_ms, _limits: host_reports.alarm(view, said),
    Handled: host_reports.handled,
    HostUp: host_reports.host_up,
    HostLost: host_reports.host_lost,
    Unhosted: lambda view, said, _at_ms, limits: placements.unhosted(view, said, limits),
    Adopt: lambda view, said, _at_ms, _limits: upgrades.adopt(view, said),
    Tick: timeouts.tick,
}
