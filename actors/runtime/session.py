"""A session: what an open runtime has. It ends with `close`, and everything that waits then is told.

The conversation with the supervisor is served by one thread with a loop of its own. A process that is forked meanwhile has a copy of the
session, and none of its threads, so a copy refuses every call and ends nothing.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Final, TypeVar

from perdure.actors.ray_world.driver import FORKED
from perdure.actors.ray_world.lifetime import Lifetime
from perdure.actors.ray_world.system import system_world
from perdure.actors.ray_world.world import RayCluster
from perdure.actors.runtime.client import Client
from perdure.actors.runtime.packing import Packer
from perdure.actors.tasks import Pending, awaited
from perdure.actors.threads import wait_for
from perdure.ledger import BadRequest, RuntimeClosed
from perdure.policies import Limits

T = TypeVar("T")

CLOSED: Final = "it was closed. Open it again, or use it within `with Runtime(…)`; handles from before work then"
CLOSED_MEANWHILE: Final = (
    "it was closed meanwhile; what was asked for may have begun, and goes on if another program serves it"
)


class Session:
    """One opening of a runtime.

    Args:
        offers: whether the supervisor is told with which code the agents of this process go on.
    """

    def __init__(self, cluster: RayCluster, limits: Limits, *, offers: bool) -> None:
        self.cluster = cluster
        self._process = os.getpid()
        self._lifetime, started = Lifetime(), threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._serve, args=(limits, offers, started), name="perdure-client", daemon=True
        )
        self.client: Client
        self._thread.start()
        started.wait()

    @property
    def is_ours(self) -> bool:
        """Whether this process has opened it, and is no fork of that one."""
        return os.getpid() == self._process

    @property
    def is_open(self) -> bool:
        """Whether something can be asked."""
        return self.is_ours and not self._lifetime.is_over

    def submit(self, job: Pending[T]) -> Future[T]:
        """Do this on its loop. Raises `RuntimeClosed`."""
        if not self.is_ours or self._loop.is_closed():
            job.close()
            raise RuntimeClosed("runtime", CLOSED if self.is_ours else FORKED)
        return self._lifetime.bound(asyncio.run_coroutine_threadsafe(job, self._loop))

    def do(self, job: Callable[[], T]) -> T:
        """Call a function on its loop."""
        if threading.current_thread() is self._thread:
            return job()
        return wait_for(self.submit(_as_coroutine(job)))

    def close(self) -> None:
        """End it, and tell all who wait. A copy in a forked process ends nothing."""
        if not self.is_ours:
            return
        self._lifetime.end(RuntimeClosed("runtime", CLOSED_MEANWHILE))
        with suppress(RuntimeError):  # the loop was closed before
            self._loop.call_soon_threadsafe(self._loop.stop)
        if self._thread is not threading.current_thread():
            self._thread.join()

    # on its own thread

    def _serve(self, limits: Limits, offers: bool, started: threading.Event) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        loop.call_soon(self._begin, limits, offers, started)
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.close()

    def _begin(self, limits: Limits, offers: bool, started: threading.Event) -> None:
        deployment = self.cluster.deployment
        packer = Packer(deployment.code_dir, sources_only=self.cluster.is_local)
        self.client = Client(system_world(), self.cluster.courier(), limits, deployment.code_dir, packer)
        if offers:
            with suppress(BadRequest):  # then whoever asks for such an agent is told
                self.client.offer_code()
        self._serving = awaited(self.client.serve())
        self._serving.add_done_callback(self._ended)
        started.set()

    def _ended(self, serving: asyncio.Task[None]) -> None:
        """Tell all waiting callers why the conversation ended."""
        problem = None if serving.cancelled() else serving.exception()
        while isinstance(problem, ExceptionGroup):
            problem = problem.exceptions[0]
        if isinstance(problem, Exception):
            self._lifetime.end(problem)


async def _as_coroutine(job: Callable[[], T]) -> T:
    return job()
