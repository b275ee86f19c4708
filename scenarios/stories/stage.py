"""Where a scenario plays: under Ray or in the simulated world."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from perdure import Agent, Client, Limits, RunResult, actors
from perdure.actors import Address
from perdure.policies import Answerer
from perdure.scenarios.exits import heed_sigterm
from perdure.scenarios.faults.strikes import Victim, kill_by
from perdure.scenarios.testing.laboratory import Laboratory

ANSWER_S: Final = 5.0  # for a process to say who it is
POWER_CUT_S: Final = 1.0  # how long the simulated cluster stays dark


class Stage(ABC):
    """What a story needs of a world, `ray` or `sim`. Time is that of the running loop, so in the simulated world it is virtual."""

    world: ClassVar[str]
    _code_dir: Path | None

    @property
    @abstractmethod
    def client(self) -> Any:
        """A client, or a runtime as async code sees it: both have the same calls."""

    @abstractmethod
    async def kill(self, victim: Victim) -> str:
        """Kill a process, and say how. Empty if it had ended before."""

    @abstractmethod
    async def cold_restart(self) -> None:
        """Kill everything at once, and start again on the same data. Calls that are open get no answer."""

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def ask(self, name: str, *args: object) -> Any:
        """Ask the supervisor, or the next one if it dies meanwhile."""
        return await self.client.ask(name, *args)

    @abstractmethod
    async def answer(self, ask_id: str, value: object, who: str) -> None:
        """Answer a question of a run to people. Raises `AlreadyAnswered`."""

    async def call(self, agent_class: type[Agent], name: str, method: str, *args: object, **options: object) -> Any:
        return await getattr(self.client.agent(agent_class, name), method)(*args, **options)

    async def run(self, agent_class: type[Agent], content: object, run_id: str) -> RunResult:
        result: RunResult = await self.client.run(agent_class, content, run_id=run_id)
        return result

    def agent_id(self, agent_class: type[Agent], name: str) -> str:
        # An old directory has its own names for types.
        return Address.of(agent_class, name, self._code_dir).agent_id

    async def until(self, condition: Callable[[], Awaitable[object]], within_s: float, look_s: float) -> bool:
        until_s = self.now_s() + within_s
        while self.now_s() < until_s:
            if await condition():
                return True
            await asyncio.sleep(look_s)
        return False


class RayStage(Stage):
    """A real cluster: the one that serves the directory, the one at `address`, or a new one that ends with this."""

    world = "ray"

    def __init__(
        self, data: Path, address: str | None, *, take_over: bool = False, limits: Limits | None = None
    ) -> None:
        self.data, self._address, self._limits = data, address, limits
        self.start_s = 0.0  # to start or join the cluster
        self._runtime = actors.Runtime(data, address=address, take_over=take_over, limits=limits)

    def __enter__(self) -> Self:
        self._open()
        return self

    def _open(self) -> None:
        began_s = time.monotonic()
        heed_sigterm()
        self._runtime.open()
        self._code_dir = self._runtime.client.code_dir
        heed_sigterm()
        self.start_s = time.monotonic() - began_s

    def __exit__(self, *_: object) -> None:
        self._runtime.close()

    @property
    def is_own(self) -> bool:
        return self._runtime.cluster.own

    @property
    def client(self) -> Any:
        return self._runtime.asynchronous

    async def kill(self, victim: Victim) -> str:
        return await kill_by(self._runtime, victim)

    async def answer(self, ask_id: str, value: object, who: str) -> None:
        await self.client.answer(ask_id, value, who=who)

    async def pids(self) -> list[int]:
        found = await asyncio.to_thread(self._runtime.cluster.processes, ANSWER_S)
        return [info.pid for info in found.values()]

    async def cold_restart(self) -> None:
        # This blocks, because Ray must be started by the main thread: calls from another one hang.
        self._runtime.kill_everything()
        self._runtime = actors.Runtime(self.data, address=self._address, limits=self._limits)
        self._open()


class SimStage(Stage):
    """The simulated world, with virtual time and nothing on disk."""

    world = "sim"

    def __init__(self, laboratory: Laboratory, client: Client) -> None:
        self._simulation, self._client, self._code_dir = laboratory.simulation, client, client.code_dir

    @property
    def client(self) -> Client:
        return self._client

    async def answer(self, ask_id: str, value: object, who: str) -> None:
        await self._client.answer(ask_id, value, Answerer(who, is_operator=True), "runtime")

    async def kill(self, victim: Victim) -> str:
        self._simulation.kill(victim.name)
        return "in the simulation"

    async def cold_restart(self) -> None:
        self._simulation.cluster.power_off()
        await asyncio.sleep(POWER_CUT_S)
        self._simulation.cluster.power_on()
