"""What a gateway refuses by itself. Its client raises the same, where nothing of a server is installed."""

from __future__ import annotations

from perdure.ledger import BadRequest, OutcomeUnknown, PerdureError


class Unauthenticated(PerdureError):
    """Nobody knows who asks."""


class Forbidden(PerdureError):
    """Who asks may not do this."""


class NoSuchAgent(PerdureError):
    """Nothing has this address, or the one who asks may not know of it."""


def nothing_known(address: str) -> NoSuchAgent:
    return NoSuchAgent(f"{address!r:.200} is asleep or unknown: it has no storage, and the ledger holds nothing for it")


class NotNow(PerdureError):
    """What is asked for does not fit to the present state of the agent."""


class TooManyRequests(PerdureError):
    # One principal asks too often, or for too much at the same time. It may ask again after `again_s` seconds.

    def __init__(self, message: str, again_s: float = 1.0) -> None:
        super().__init__(message, again_s)
        self.again_s = again_s

    def __str__(self) -> str:
        return str(self.args[0])


class TooSlow(PerdureError):
    """A request did not arrive in time."""


class UnknownEncoding(BadRequest):
    """A body is encoded in a way that is not read here."""


class GatewayStopped(OutcomeUnknown):
    # The gateway was stopped before it had answered: what it was asked for may or may not have happened. `agent_id` is the path.

    def __str__(self) -> str:
        return f"the gateway was stopped before it answered {self.method} {self.agent_id}, which may or may not have taken effect"


class AnswerOverdue(OutcomeUnknown):
    """A client had no answer to a call, or to a request that is not repeated. Of the agent's host it knows nothing."""

    # `cause` is what the client has seen. If it was no call, `agent_id` is the path.

    def __str__(self) -> str:
        what = (
            f"{self.method} {self.agent_id}" if self.agent_id.startswith("/") else f"{self.method}() of {self.agent_id}"
        )
        known = "It may or may not have taken effect, or may be at work still, and was not repeated"
        return f"{what} was not answered: {self.cause}. {known}"
