"""Ray's part in the simulated world: it starts hosts, notices deaths, and restarts a supervisor that died.

What Ray promises is little, and this is as little: a host lives some time after it was asked for, whether or not the
asker still lives; once dead, it stays dead; its death is told some milliseconds later. A supervisor that dies is
started again after a while, unless its `serve` returned or the power is off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from perdure.actors.ports import Courier, Fleet, PoolSpec, Pulse, World
from perdure.actors.sim_world.mail import HOST, SUPERVISOR, SimCourier, Wire
from perdure.actors.sim_world.ports import KillPlan, make_world
from perdure.actors.sim_world.process import Failure, Nature, Process
from perdure.ledger import HostUnavailable, NoSuchNode

CLIENT: Final = "client"


class SupervisorLike(Protocol):
    """What the simulation needs of a supervisor."""

    async def serve(self) -> None:
        """Boot and run. Raising is a crash, returning is a stop."""

    async def exchange(self, frame: bytes) -> bytes:
        """Answer a host or a client; may take long."""


class HostLike(Protocol):
    """What the simulation needs of a host."""

    async def serve(self) -> str:
        """Run until retired, orphaned or stopped, and say why it ended."""

    async def look(self, frame: bytes) -> bytes:
        """Answer somebody who asks the host itself."""


MakeSupervisor = Callable[[World, Fleet], SupervisorLike]
MakeHost = Callable[[World, Courier, str], HostLike]


class Machine:
    """A host as Ray knows it, dead or alive."""

    def __init__(self, process: Process, spec: PoolSpec, death: asyncio.Future[str]) -> None:
        self.process = process
        self.spec = spec
        self.death = death


class Cluster:
    """The supervisor and the hosts of a simulation, and who starts them."""

    def __init__(self, nature: Nature, plan: KillPlan, make_supervisor: MakeSupervisor, make_host: MakeHost) -> None:
        self.nature = nature
        self.wire = Wire(nature, plan, self.stand_still)
        self.machines: dict[str, Machine] = {}
        self.broken: Callable[[PoolSpec], str] = lambda _spec: ""  # why hosts of this pool fail as they start
        self.lack: Callable[[PoolSpec], str] = lambda _spec: ""  # what no node has of what they ask for
        self.elsewhere: dict[str, str] = {}  # nodes that do not see the directory, and what each has instead
        self.crashes: list[Failure] = []
        self.restarts = 0
        self._plan = plan
        self._make_supervisor = make_supervisor
        self._make_host = make_host
        self._supervisor: Process | None = None
        self._powered = True

    def processes(self) -> list[Process]:
        """Those that live, the supervisor first, then hosts in order of creation."""
        all_of_them = [self._supervisor, *(machine.process for machine in self.machines.values())]
        return [process for process in all_of_them if process is not None and process.alive]

    def start(self) -> None:
        """Start the first supervisor, unless that has happened."""
        if self._supervisor is None and self._powered:
            self._start_supervisor()

    def start_host(self, host_id: str, spec: PoolSpec) -> None:
        """Ask for a host. A name is used only once."""
        if host_id in self.machines:
            raise HostUnavailable(f"the name {host_id} was used before")
        process = Process(self.nature, host_id, HOST, self._ended)
        self.machines[host_id] = Machine(process, spec, self.nature.loop.create_future())
        self.nature.note(host_id, "is asked for")
        self.nature.later(self.nature.draw_ms(self.nature.weather.spawn_ms), self._boot_host, process)

    def stand_still(self, ms: float) -> None:
        """The machine stops everything on it for a while."""
        for process in self.processes():
            process.stop(ms)

    def power_off(self) -> None:
        """Kill supervisor and hosts at once; nothing is started from now on."""
        self._powered = False
        for process in self.processes():
            self._plan.strike(process, "the cluster lost power")

    def power_on(self) -> None:
        """Start a supervisor again."""
        self._powered = True
        self._restart_later()

    def _start_supervisor(self) -> None:
        process = Process(self.nature, SUPERVISOR, SUPERVISOR, self._ended)
        self._supervisor = process
        self.nature.note(SUPERVISOR, "starts")
        process.start(_life(process, self._live_supervisor))

    def _restart_later(self) -> None:
        self.nature.later(self.nature.draw_ms(self.nature.weather.restart_ms), self._restart)

    def _restart(self) -> None:
        if self._powered and (self._supervisor is None or not self._supervisor.alive):
            self.restarts += 1
            self._start_supervisor()

    def _boot_host(self, process: Process) -> None:
        if not process.alive:
            return
        broken = self.broken(self.machines[process.name].spec)
        if broken:
            process.end(broken, clean=True)
            return
        self.nature.note(process.name, "starts")
        process.start(_life(process, self._live_host))

    async def _live_supervisor(self, process: Process) -> str:
        supervisor = self._make_supervisor(make_world(process, self._plan), SimFleet(process, self))
        self.wire.connect(process, supervisor.exchange)
        await supervisor.serve()
        return "stopped"

    async def _live_host(self, process: Process) -> str:
        courier = SimCourier(process, self.wire)
        host = self._make_host(make_world(process, self._plan), courier, process.name)
        self.wire.connect(process, host.look)
        return await host.serve()

    def _ended(self, process: Process) -> None:
        """A process is no more: tell those who wait for it, and start what must be started."""
        if not process.clean:
            self.crashes.append(Failure(self.nature.now_ms(), process.name, process.cause, process.error))
        self.wire.disconnect(process)
        if process.kind == HOST:
            death = self.machines[process.name].death
            self.nature.later(self.nature.draw_ms(self.nature.weather.death_seen_ms), death.set_result, process.cause)
            return
        if self._powered and not process.clean:
            self._restart_later()


async def _life(process: Process, live: Callable[[Process], Awaitable[str]]) -> None:
    """The boundary of a process: whatever comes out of its main coroutine ends it, and nothing else."""
    try:
        cause = await live(process)
    except KeyboardInterrupt:  # a person has had enough
        raise
    except BaseException as error:
        if process.end(f"crashed: {type(error).__name__}", error):
            process.nature.blame(process.name, "crashed", error)
    else:
        process.end(cause, clean=True)


class SimFleet:
    """The supervisor's way to hosts."""

    def __init__(self, process: Process, cluster: Cluster) -> None:
        self._process = process
        self._cluster = cluster
        self._nature = cluster.nature
        self.elsewhere = cluster.elsewhere

    async def spawn(self, host_id: str, spec: PoolSpec) -> str:
        """Ask for a host; it lives later. Who dies while asking has asked: the next life finds the host by `survivors`."""
        self._process.check()
        if lack := self._cluster.lack(spec):
            raise NoSuchNode(lack)
        weather = self._nature.weather
        refused = self._nature.chance(weather.spawn_refused)
        if not refused:
            self._cluster.start_host(host_id, spec)
        await asyncio.sleep(self._nature.draw_ms(weather.spawn_asked_ms) / 1000)
        if refused:
            raise HostUnavailable(f"no room for {host_id}")
        return ""

    async def survivors(self) -> dict[str, PoolSpec]:
        """All hosts that live or are starting."""
        self._process.check()
        await asyncio.sleep(self._nature.draw_ms(self._nature.weather.mail_ms) / 1000)
        return {name: machine.spec for name, machine in self._cluster.machines.items() if machine.process.alive}

    async def death(self, host_id: str) -> str:
        """Wait until Ray has noticed the host's death, and say why it died."""
        self._process.check()
        machine = self._cluster.machines.get(host_id)
        return "never existed" if machine is None else await asyncio.shield(machine.death)

    async def pulse(self, host_id: str) -> Pulse | None:
        """Ask a host beside its event loop. The weather loses such a question no more often than the hosts' own calls."""
        self._process.check()
        weather, machine = self._nature.weather, self._cluster.machines.get(host_id)
        await asyncio.sleep(self._nature.draw_ms(weather.mail_ms) / 1000)
        if machine is None or self._nature.chance(weather.lost):
            return None
        return machine.process.pulse()

    async def kill(self, host_id: str) -> None:
        """End a host at once."""
        self._process.check()
        machine = self._cluster.machines.get(host_id)
        if machine is not None:
            machine.process.end("killed by the supervisor")
