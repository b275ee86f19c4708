"""Fibers as the author of an agent uses them: durable jobs of its own (seed 002).

    class Mailer(Agent):
        @exposed
        def accept(self, letter: dict) -> str:
            return self.start_fiber("send", "send", letter, idempotency_key=letter["id"], retry=True).fiber_id

        async def send(self, fiber: FiberContext, input: dict) -> None:
            text = await fiber.step("write", lambda: self.write(input))
            await fiber.step("post", lambda: post(text, idempotency_key=fiber.id))

What is started is durable on return, or with the transaction that is open. A body is entered at least once; what its steps remember is not
done again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from perdure.actors.code.author_call import hook
from perdure.actors.host.tenant import Tenant
from perdure.actors.jobs.fiber import FiberInspection, FiberPage
from perdure.actors.jobs.fiber_context import CURRENT, FiberContext, FiberRecovery
from perdure.ledger import AwaitedInsideHandler, BadRequest, check_id, check_ms
from perdure.policies import FiberResult, FiberRetry


class RunsFibers:
    """The methods of `Agent` about fibers."""

    _perdure: Tenant

    # what an author overrides

    @hook
    async def on_fiber_recovered(self, fiber: FiberRecovery) -> FiberResult | str | None:
        """Called for a fiber whose process died, after the agent has come up: what becomes of it?

        Return a `FiberResult`, or `"retry"` to enter it again. None leaves it to its `retry`; without one it stays interrupted until
        somebody resolves it. The hook is called at least once for an interruption, and again after a pause when it raises, takes longer
        than `Limits.fiber_recovery_timeout_ms`, or dies; `fiber.recoveries` counts. For one of `run_fiber` what it returns does not
        matter. If you do not override this, `retry` decides alone.
        """
        return None

    # running

    def run_fiber(self, name: str, fn: Callable[[FiberContext], Any]) -> Any:
        """Do something now, in a way that is noticed if its process dies: `await self.run_fiber("import", self.work)`.

        Gives what `fn` gives. Nothing is kept of it afterwards. If the process dies meanwhile, `on_fiber_recovered` is told, with what was
        stashed last; the function itself cannot be entered again. `start_fiber` can.
        """
        check_id("name", name, self._perdure.limits.id_max)
        if not callable(fn):
            raise BadRequest("fn", f"{fn!r} cannot be called")
        if self._perdure.transaction is not None:
            raise AwaitedInsideHandler(
                "fn", "a transaction cannot wait for a fiber; start_fiber begins one when it commits"
            )
        return self._perdure.bridge(self._perdure.fibers.run(name, fn))

    def stash(self, data: Any) -> Any:
        """Remember a value with the fiber that the current code belongs to; see `FiberContext.stash`."""
        fiber = CURRENT.get()
        if fiber is None:
            raise BadRequest("stash", "stash() was called outside of a fiber")
        return fiber.stash(data)

    def start_fiber(
        self,
        name: str,
        fn_name: str | Callable[..., Any],
        input: Any = None,
        *,
        idempotency_key: str | None = None,
        fiber_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        wait_for_completion: bool = False,
        timeout_ms: float | None = None,
        retry: FiberRetry | int | bool | None = None,
        on_recovered: str | Callable[..., Any] | None = None,
    ) -> Any:
        """Accept a durable job: a method of this agent, called with `(fiber, input)`. Gives its `FiberInspection`.

        Under an id or a key that is known nothing new begins: `accepted` is False, and the fiber is shown as it is. Other content under it
        is a `ConflictingRequest`. Without both, an id is derived from where and what is asked.

        Args:
            wait_for_completion: come back when the fiber is over, whoever began it and whatever dies; then this is to be awaited.
            timeout_ms: wait only for so long; then the fiber is shown as it is, and goes on.
            retry: whether the body may be entered again, and how often (`FiberRetry`).
            on_recovered: the method that is asked after a death, in place of `on_fiber_recovered`.
        """
        tenant, fibers = self._perdure, self._perdure.fibers
        if timeout_ms is not None:
            check_ms("timeout_ms", timeout_ms)
        if wait_for_completion and tenant.transaction is not None:
            raise AwaitedInsideHandler(
                "wait_for_completion",
                "nobody can wait inside a transaction or a handler: the fiber begins with its commit",
            )
        asked = fibers.requests.checked(
            name,
            fn_name,
            input,
            idempotency_key=idempotency_key,
            fiber_id=fiber_id,
            metadata=metadata,
            retry=retry,
            on_recovered=on_recovered,
        )
        ((fiber, is_new),) = fibers.requests.accept([fibers.requests.named(asked)])
        if wait_for_completion:
            return tenant.bridge(fibers.waiters.settled(fiber.fiber_id, timeout_ms, accepted=is_new))
        return fibers.store.inspected(fiber, accepted=is_new)

    def start_fibers(self, requests: Sequence[Mapping[str, Any]]) -> list[FiberInspection]:
        """Accept many in one commit: all or none. Each request holds the arguments of `start_fiber`, without those for waiting."""
        fibers = self._perdure.fibers
        asked = [fibers.requests.named(fibers.requests.from_plain(each)) for each in requests]
        return [fibers.store.inspected(fiber, accepted=is_new) for fiber, is_new in fibers.requests.accept(asked)]

    def wait_for_fiber(self, fiber_id: str, timeout_ms: float | None = None) -> Any:
        """Wait until a fiber is over, or for so long. Gives its `FiberInspection`; await it in async code."""
        check_id("fiber_id", fiber_id, self._perdure.limits.id_max)
        if timeout_ms is not None:
            check_ms("timeout_ms", timeout_ms)
        return self._perdure.bridge(self._perdure.fibers.waiters.settled(fiber_id, timeout_ms))

    # looking

    def inspect_fiber(self, fiber_id: str) -> FiberInspection | None:
        """A fiber as it is, or None if there is none under this id."""
        return self._perdure.fibers.store.inspect(check_id("fiber_id", fiber_id, self._perdure.limits.id_max))

    def inspect_fiber_by_key(self, idempotency_key: str) -> FiberInspection | None:
        """The fiber that was accepted under a key, or None."""
        check_id("idempotency_key", idempotency_key, self._perdure.limits.id_max)
        fiber_id = self._perdure.fibers.store.id_of_key(idempotency_key)
        return None if fiber_id is None else self._perdure.fibers.store.inspect(fiber_id)

    def list_fibers(
        self,
        status: str | Sequence[str] | None = None,
        name: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> FiberPage:
        """The fibers of this agent, the newest first, up to 500 at a time; `cursor` is that of the page before."""
        return self._perdure.fibers.records.page(status, name, limit, cursor)

    # deciding

    def cancel_fiber(self, fiber_id: str, reason: str | None = None) -> bool:
        """End a fiber at once as `aborted`, durably; whether there was one that was open.

        Its async code is cancelled, sync code finds `fiber.is_cancelled`. Code that goes on all the same changes nothing of the fiber any
        more, but what it does outside cannot be stopped (spec §11, 17).
        """
        check_id("fiber_id", fiber_id, self._perdure.limits.id_max)
        return self._perdure.fibers.cancel(fiber_id, None if reason is None else str(reason))

    def cancel_fiber_by_key(self, idempotency_key: str, reason: str | None = None) -> bool:
        """The same for the fiber that was accepted under a key."""
        check_id("idempotency_key", idempotency_key, self._perdure.limits.id_max)
        fiber_id = self._perdure.fibers.store.id_of_key(idempotency_key)
        return fiber_id is not None and self.cancel_fiber(fiber_id, reason)

    def resolve_fiber(self, fiber_id: str, result: FiberResult | str) -> bool:
        """Decide about an interrupted fiber; `"retry"` enters it again. False if it is not interrupted (any more)."""
        check_id("fiber_id", fiber_id, self._perdure.limits.id_max)
        return self._perdure.fibers.resolve(fiber_id, result)

    def delete_fibers(
        self,
        settled_before: float | datetime | None = None,
        status: str | Sequence[str] | None = None,
        limit: int = 100,
    ) -> int:
        """Delete the records of settled fibers, the longest settled first; returns how many. Their ids and keys are free again.

        Args:
            settled_before: only those settled before this instant: milliseconds since the epoch, or an aware datetime.
            status: of which statuses. By default not `interrupted`: those wait for somebody to look at them.
        """
        return self._perdure.fibers.records.delete(settled_before, status, limit)
