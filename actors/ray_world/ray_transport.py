"""The ways to the supervisor and to hosts, from a host or from a driver.

A call for which Ray has no answer, whatever it raises, has an unknown outcome: `SupervisorUnreachable`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import ray
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from perdure.actors.ray_world.deployment import Deployment
from perdure.actors.ray_world.lifetime import Lifetime, on_own_thread
from perdure.actors.ray_world.named_actors import Handle, call
from perdure.actors.ray_world.ray_connection import NAMESPACE, cause_of
from perdure.ledger import DirectoryElsewhere, HostUnavailable, PerdureError, SupervisorUnreachable


class RayTransport:
    """Exchanges frames with the supervisor, and asks hosts. `find` looks it up by its name, and blocks meanwhile.

    A host is in one Ray for life. A driver may see several; `living` returns the present one. With `replaces`, `find` creates another
    supervisor for one that cannot begin where Ray has restarted it.
    """

    def __init__(
        self,
        find: Callable[[], Handle],
        living: Callable[[], Lifetime] | None = None,
        *,
        route: str = "",
        replaces: bool = False,
    ) -> None:
        self._find, self._living, self._life = find, living, Lifetime()
        self._handle: Handle | None = None
        self._hosts: dict[str, Handle] = {}
        self.route, self._replaces = route, replaces

    async def exchange(self, frame: bytes) -> bytes:
        """Hand over a frame and wait for the answer. Raises `SupervisorUnreachable`, or what the supervisor itself raised."""
        life = self._present()
        try:
            if self._handle is None:
                self._handle = await asyncio.wrap_future(life.bound(on_own_thread(self._find)))
            answer = await self._answer(self._handle, "exchange", frame)
        except RayTaskError as error:
            if isinstance(error.cause, DirectoryElsewhere) and self._replaces:
                self._handle = None
                raise SupervisorUnreachable(str(error.cause)) from None
            if isinstance(error.cause, PerdureError):
                raise error.cause from None
            # Any other error is our bug, and then the outcome is unknown.
            raise SupervisorUnreachable(f"the supervisor failed: {cause_of(error)}") from None
        except (RayError, ValueError, OSError, RuntimeError) as error:
            if isinstance(error, ActorDiedError):  # for good: one that Ray restarts keeps its handle
                self._handle = None
            raise SupervisorUnreachable(cause_of(error)) from error
        return answer

    async def look(self, route: str, frame: bytes) -> bytes:
        """Ask a host. Raises `HostUnavailable`, whatever the cause."""
        life = self._present()
        try:
            if route not in self._hosts:
                looking = on_own_thread(partial(ray.get_actor, route, NAMESPACE))
                self._hosts[route] = await asyncio.wrap_future(life.bound(looking))
            return await self._answer(self._hosts[route], "look", frame)
        except (RayError, ValueError, OSError, RuntimeError) as error:
            self._hosts.pop(route, None)
            raise HostUnavailable(cause_of(error)) from error

    # Handles of an earlier connection are of no use in this one.
    def _present(self) -> Lifetime:
        life = self._life if self._living is None else self._living()
        if life is not self._life:
            self._life, self._handle = life, None
            self._hosts.clear()
        return life

    async def _answer(self, handle: Handle, method: str, frame: bytes) -> bytes:
        reference = call(handle, method, frame)
        if self._living is not None:  # Ray never answers a call of a cluster that is gone
            reference = asyncio.wrap_future(self._life.bound(reference.future()))
        answer: bytes = await reference
        return answer


def find_supervisor(deployment: Deployment) -> Handle:
    """The supervisor of a directory. Raises `ValueError` if there is none, `SupervisorUnreachable` if this process is in no Ray."""
    if not ray.is_initialized():  # or Ray would start a cluster in order to look there
        raise SupervisorUnreachable("Ray is not running")
    return ray.get_actor(deployment.supervisor, NAMESPACE)
