"""The spans of replies: one from the acceptance of a reply to its end, whichever lives brought it there, and one for each request to the
provider.

    reply MESSENGER                    below whatever handed the message over
        fiber perdure:reply            each attempt at the delivery
            invoke_agent CLASS         the turn
            post MESSENGER, edit …     each request to the provider, with what went wrong

A reply that a person tries again has a span of its own, with a link to the one before. A request that was under way at a death is not
told: nobody knows what became of it, and the attempt at the delivery says that its process was lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from perdure.actors.host.tenant import Tenant
from perdure.actors.messenger.reply_rows import ReplyRow
from perdure.actors.telemetry.telemetry import TRACE
from perdure.policies import Attribute, Outcome, Span, TraceContext, within


class ReplySpans:
    """Tells of the replies of one agent, in one life of it."""

    def __init__(self, tenant: Tenant) -> None:
        self._tenant, self._telemetry = tenant, tenant.services.world.telemetry
        self._requests = 0

    def _place(self, reply: ReplyRow, before: int = 0) -> TraceContext:
        return within(self._above(reply), "reply", self._tenant.agent_id, reply.reply_id, reply.round - before)

    def _above(self, reply: ReplyRow) -> TraceContext:
        return self._telemetry.above(reply.trace, "reply", self._tenant.agent_id, reply.reply_id)

    @contextmanager
    def within(self, reply: ReplyRow) -> Iterator[None]:
        """What is asked for in the block is asked for by the reply."""
        if not self._telemetry.is_on:
            yield
            return
        with self._telemetry.entered(self._place(reply)):
            yield

    def ended(self, reply: ReplyRow) -> None:
        """A reply is settled or parked. It is durable."""
        if not self._telemetry.is_on:
            return
        error = "" if reply.outcome == Outcome.ANSWERED else reply.outcome or str(reply.status)
        told = self._about(reply) | {"perdure.reply.status": reply.outcome or str(reply.status)}
        told |= {"perdure.reply.messages": len(reply.heard)}
        times = reply.ready_at_ms if reply.round else reply.opened_at_ms, reply.settled_at_ms
        links = (self._place(reply, 1),) if reply.round else ()
        name, above = f"reply {reply.messenger_id}", self._above(reply).span_id
        self._telemetry.tell(Span(name, self._place(reply), above, *times, told, links, error))

    def asked(self, reply: ReplyRow, what: str, begun_ms: int, error: str) -> None:
        """A request to the provider is over; `error` is what went wrong, in a word."""
        if not self._telemetry.is_on:
            return
        self._requests += 1
        above = TRACE.get() or self._place(reply)
        place = within(above, what, self._tenant.agent_id, reply.reply_id, begun_ms, self._requests)
        times = begun_ms, self._tenant.now_ms()
        name = f"{what} {reply.messenger_id}"
        self._telemetry.tell(Span(name, place, above.span_id, *times, self._about(reply), (), error, "client"))

    def _about(self, reply: ReplyRow) -> dict[str, Attribute]:
        return {
            "perdure.agent.id": self._tenant.agent_id,
            "perdure.messenger.id": reply.messenger_id,
            "perdure.reply.id": reply.reply_id,
        }
