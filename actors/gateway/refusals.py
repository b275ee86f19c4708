"""What a gateway refuses because of who asks, and for whom. Its client raises the same, where nothing of a server is installed."""

from __future__ import annotations

from perdure.ledger import OutcomeUnknown, PerdureError


class Unauthenticated(PerdureError):
    """Nobody knows who asks."""


class Forbidden(PerdureError):
    """Who asks may not do this."""


class NoSuchAgent(PerdureError):
    """Nothing has this address, or the one who asks may not know of it."""


class GatewayStopped(OutcomeUnknown):
    # The gateway was stopped before it had answered: what it was asked for may or may not have happened. `agent_id` is the path.

    def __str__(self) -> str:
        return f"the gateway was stopped before it answered {self.method} {self.agent_id}, which may or may not have taken effect"
