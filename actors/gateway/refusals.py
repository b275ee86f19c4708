"""What a gateway refuses because of who asks, and for whom. Its client raises the same, where nothing of a server is installed."""

from __future__ import annotations

from perdure.ledger import PerdureError


class Unauthenticated(PerdureError):
    """Nobody knows who asks."""


class Forbidden(PerdureError):
    """Who asks may not do this."""


class NoSuchAgent(PerdureError):
    """Nothing has this address, or the one who asks may not know of it."""
