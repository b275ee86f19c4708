"""`self.fibers`: what is rarely done with an agent's durable jobs. The verbs of every day are on `Agent` itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perdure.actors.host.tenant import Tenant
from perdure.actors.jobs.fiber import FiberInspection
from perdure.actors.tasks import Pending
from perdure.ledger import check_id, check_ms


class FiberGroup:
    """More about the fibers of one agent."""

    def __init__(self, tenant: Tenant) -> None:
        self._perdure = tenant

    def start(self, requests: Sequence[Mapping[str, object]]) -> list[FiberInspection]:
        """Accept many fibers in one commit: all or none. A request holds the arguments of `start_fiber`, without those for waiting."""
        fibers = self._perdure.fibers
        asked = [fibers.requests.named(fibers.requests.from_plain(each)) for each in requests]
        return [fibers.store.inspected(fiber, accepted=is_new) for fiber, is_new in fibers.requests.accept(asked)]

    def wait(self, fiber_id: str, timeout_ms: float | None = None) -> Pending[FiberInspection]:
        """Wait until a fiber has ended, at most `timeout_ms`. Returns its `FiberInspection`; await it in async code."""
        check_id("fiber_id", fiber_id, self._perdure.limits.id_max)
        if timeout_ms is not None:
            check_ms("timeout_ms", timeout_ms)
        return self._perdure.bridge(self._perdure.fibers.waiters.settled(fiber_id, timeout_ms))
