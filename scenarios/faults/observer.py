"""A directory that other processes serve, looked at for as long as one likes, whatever dies meanwhile.

An observer starts no Ray and no supervisor. What it asks is answered in time or refused with `SupervisorUnreachable`. If the Ray that it
has joined is gone, it lets go of it, and joins the next one that serves the directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from perdure import NoLongerServed, SupervisorUnreachable, actors
from perdure.actors import nothing_serves, ray_of
from perdure.actors.ray_world.os_processes import strike
from perdure.ledger import given_as
from perdure.scenarios.faults.strikes import Victim, kill_by

if TYPE_CHECKING:
    from perdure import Runtime  # which brings Ray with it
    from perdure.actors.ray_world.os_processes import ProcessId

PATIENCE_S: Final = 2.0  # for an answer
KNOCKS: Final = 5  # at a Ray that is late


class NotServed(SupervisorUnreachable):
    """Nothing serves the directory: there is nobody who might answer later."""


class Observer:
    """Looks at a directory from outside. Use it as an async context, within one event loop."""

    def __init__(self, data: Path, patience_s: float = PATIENCE_S) -> None:
        self._data, self._patience_s = data, patience_s
        self._runtime: Runtime | None = None
        self._vital: dict[str, ProcessId] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._let_go()

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def ask(self, name: str, *args: object) -> Any:
        """Ask the supervisor. Raises `SupervisorUnreachable` if nothing serves the directory, or nobody answers in time."""
        runtime = await self._joined()
        try:
            async with asyncio.timeout(self._patience_s):
                return await runtime.asynchronous.ask(name, *args)
        except TimeoutError:
            if not await asyncio.to_thread(self._is_still_there, runtime):
                await self._let_go()
                raise NotServed(f"what served {given_as(self._data)} has ended") from None
            raise SupervisorUnreachable(f"the supervisor of {given_as(self._data)} does not answer") from None
        except (SupervisorUnreachable, NoLongerServed) as problem:
            await self._let_go()
            kind = NotServed if isinstance(problem, NoLongerServed) else SupervisorUnreachable
            raise kind(str(problem)) from problem

    async def kill(self, victim: Victim) -> str:
        """Kill a process wherever it runs, and say how; empty if it has ended since."""
        known = self._vital.get(victim.name)
        if known is not None:
            return "SIGKILL" if known.pid == victim.pid and strike(known) else ""
        return await kill_by(await self._joined(), victim)

    async def vital(self) -> list[Victim]:
        # Of a Ray that was started for this directory alone. Raises `BadRequest` if it was not.
        runtime = await self._joined()
        self._vital = await asyncio.to_thread(runtime.cluster.vital)
        return [Victim(name, process.pid, platform.node()) for name, process in self._vital.items()]

    async def _joined(self) -> Runtime:
        if self._runtime is None:
            if await asyncio.to_thread(ray_of, self._data) is None:
                raise NotServed(nothing_serves(self._data))
            runtime = actors.Runtime(self._data, may_start=False)
            opening = asyncio.ensure_future(asyncio.to_thread(runtime.open))
            try:
                await asyncio.shield(opening)
            except asyncio.CancelledError:
                with contextlib.suppress(SupervisorUnreachable, NoLongerServed):
                    await opening
                await asyncio.to_thread(runtime.close)
                raise
            except NoLongerServed as problem:
                raise NotServed(str(problem)) from problem
            self._runtime = runtime
        return self._runtime

    def _is_still_there(self, runtime: Runtime) -> bool:
        with contextlib.suppress(SupervisorUnreachable):
            return serves(runtime.cluster.address, self._data)
        return False

    async def _let_go(self) -> None:
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            await asyncio.to_thread(runtime.close)


def serves(address: str, data: Path) -> bool:
    # On a busy machine it may answer late; one that has ended refuses at once.
    found = (ray_of(data) for _ in range(KNOCKS))
    record = next((each for each in found if each is not None), None)
    return record is not None and record.address in (address, "auto")
