"""Who waits for a fiber waits for its row: through recoveries and cancellations, and whoever began it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from perdure.actors.jobs.fiber import Fiber, FiberInspection
from perdure.actors.jobs.fiber_context import CURRENT, FiberContext
from perdure.actors.jobs.fiber_store import FiberStore
from perdure.actors.life.life import Life
from perdure.ledger import AwaitedInsideHandler, BadRequest
from perdure.policies import INFINITY


class Waiters:
    """Those who wait for fibers of one agent, in one life of it.

    Args:
        at_work: the code that is at fibers just now.
        give_place: gives places to fibers that are due, or takes them back.
    """

    def __init__(
        self, life: Life, store: FiberStore, at_work: Mapping[str, FiberContext], give_place: Callable[[int], None]
    ) -> None:
        self._life, self._store, self._at_work, self._give_place = life, store, at_work, give_place
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}

    def tell(self, fiber_id: str) -> None:
        """The fiber is over."""
        for waiter in self._waiting.pop(fiber_id, ()):
            if not waiter.done():
                waiter.set_result(None)

    async def settled(self, fiber_id: str, timeout_ms: float | None, *, accepted: bool = False) -> FiberInspection:
        """Wait until the fiber is over, or for so long; then it is shown as it is.

        A fiber that waits for another one lends its place, so that however many do, those that they wait for can begin.
        """
        if self._life.transaction is not None:
            raise AwaitedInsideHandler(
                "wait_for_completion",
                "nobody can wait inside a transaction or a handler: the fiber begins with its commit",
            )
        mine = CURRENT.get()
        is_lending = mine is not None and mine.is_managed and self._at_work.get(mine.id) is mine
        if is_lending:
            self._give_place(1)
        try:
            async with asyncio.timeout(None if timeout_ms is None or timeout_ms == INFINITY else timeout_ms / 1000):
                await self._until_settled(fiber_id)
        except TimeoutError:
            pass
        finally:
            if is_lending:
                self._give_place(-1)
        return self._store.inspected(self._found(fiber_id), accepted=accepted)

    async def _until_settled(self, fiber_id: str) -> None:
        while not self._found(fiber_id).is_settled:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(fiber_id, []).append(waiter)
            await waiter

    def _found(self, fiber_id: str) -> Fiber:
        fiber = self._store.find(fiber_id)
        if fiber is None:
            raise BadRequest("fiber_id", f"{fiber_id!r} is no fiber of {self._life.agent_id}, or was deleted")
        return fiber
