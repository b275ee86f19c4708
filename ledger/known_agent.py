"""Which agents should have a storage, by the ledger, and how far each must have come."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from perdure.ledger.activation import Activation
from perdure.ledger.codec import unpack
from perdure.ledger.view import View


class KnownAgent(NamedTuple):
    """What the ledger knows of an agent: its last life that it knows of (0 if none), the highest `sequence` that it has reported (0 if it
    has reported none, so it need not have a storage), and whether it is on a host."""

    incarnation: int
    reported: int
    is_awake: bool = False


class KnownAgents(NamedTuple):
    """What the ledger says of its agents: of those that it knows something of; which others it has seen (None if it was not asked); and the
    highest number of a life that it has begun (None if lives may have begun since)."""

    standing: dict[str, KnownAgent]
    seen: Collection[str] | None = None
    incarnation: int | None = None


def standing_of(view: View, rows: Iterable[tuple[str, bytes]]) -> dict[str, KnownAgent]:
    """What is known of each agent. `rows` are the snapshot's, as `(agent, body)`; what is in memory is newer."""
    known = {agent: _of(Activation(*unpack(body))) for agent, body in rows if body}
    for activation in (*view.asleep.values(), *view.agents.values()):
        before = known.get(activation.agent_id)
        reported = activation.reported
        if reported is None:  # not looked up since it woke
            reported = before.reported if before is not None else 0
        known[activation.agent_id] = _of(activation)._replace(reported=reported)
    return known


def _of(activation: Activation) -> KnownAgent:
    return KnownAgent(activation.incarnation, activation.reported or 0, bool(activation.host_id))
