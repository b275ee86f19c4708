"""An agent's transactions, and the outbox: what a transaction asks of the runtime goes out after its commit, however often.

The rows of the outbox are written in the transaction itself. Killed before the commit, nothing was asked. Killed after it, the next life of
the agent finds the rows and asks again, under the same ids. A row goes when the supervisor has made what it asks for durable.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from actors.wire import message
from ledger import Request, pack, unpack
from ledger.storage import Transaction, bound_to

if TYPE_CHECKING:
    from actors.tenant import Tenant


class Outbox:
    """The transactions of one life of an agent, and what they leave to be said."""

    def __init__(self, tenant: Tenant) -> None:
        self._tenant = tenant
        self._sent = 0

    @property
    def transaction(self) -> Transaction | None:
        """The transaction in which the current code runs, if it runs in one."""
        return bound_to(self._tenant.storage) if self._tenant.is_storage_open else None

    @contextmanager
    def transact(self) -> Iterator[Transaction]:
        """An author's transaction; inside another it joins that one."""
        outermost = self.transaction is None
        with self._tenant.storage.transaction() as transaction:
            yield transaction
        if outermost:
            self._tenant.on_loop(self.flush)

    def commit(self, transaction: Transaction) -> None:
        """Commit, then say what the transaction left to be said."""
        transaction.commit()
        self._tenant.on_loop(self.flush)

    def post(self, request: Request) -> None:
        """Ask for a detached run as part of the open transaction. The author's start hook is called by mail, once it is accepted."""
        transaction = self.transaction
        assert transaction is not None, "post is for open transactions"
        if self._tenant.overrides("on_agent_tool_start"):
            request.options["start_hook"] = True
        transaction.add_outbox(pack(message(request)))

    def flush(self) -> None:
        """Say what the last commits left; the rows go when it is durable with the supervisor."""
        fresh = [(number, unpack(body)) for number, body in self._tenant.storage.outbox() if number > self._sent]
        if fresh:
            self._sent = fresh[-1][0]
            self._tenant.spawn(self._say(fresh))

    async def _say(self, fresh: list[tuple[int, list[Any]]]) -> None:
        for _, said in fresh[:-1]:
            self._tenant.host.peer.push(said)
        await self._tenant.host.peer.durable(fresh[-1][1])
        if not self._tenant.is_leaving:
            self._tenant.storage.forget_outbox([number for number, _ in fresh])
