"""The simulated world: the same Supervisor and Host as under Ray, on virtual time, from one seeded die.

Theory of operation
-------------------
There is one event loop (`virtual_loop`), on which nothing waits: time jumps from timer to timer. On it live
*processes* (`sim_process`): the supervisor, hosts, and the client that `run` is given. What a process reaches the
world by are its ports (`sim_ports`, `sim_mail`, and the fleet in `sim_cluster`), and every port asks first whether
the process is alive.

    client, host ── Courier.exchange ──► wire (late, lost, doubled, cut) ──► Supervisor.exchange
    Supervisor ── Fleet.spawn, kill, death, survivors ──► Ray's part, played by `sim_cluster`: it starts hosts, notices
                  deaths, restarts a supervisor that died (but no host, and no supervisor whose `serve` returned)

Sync code of authors, and all threads of a process whose ledger is in a bucket, may wait in the middle (`Strand`): for the loop, or for
what `sim_bucket` answers.

A process ends in one of four ways: its `serve` returns, its `serve` raises, somebody kills it, or it is killed at a
kill point that it visits. All four are the same moment (`SimProcess.end`): dead ports, then `on_death` callbacks, then
tasks.

Whatever must survive a process is made outside of it by the caller, and captured by the factories: the ledger's store, the
disk with the agents' storages. A factory runs inside the new process, so that it may say `on_death(agent_storages.crash)` there:

    def make_host(world, transport, host_id):
        agent_storages = AgentStorages(disk)
        on_death(agent_storages.crash)
        return Host(world, transport, host_id, agent_storages)

    with Simulation(seed, Weather.drawn(random.Random(seed)), make_supervisor, make_host) as simulation:
        simulation.run(story, timeout_ms=600_000)      # safety, under fire
        simulation.heal()
        simulation.run(converge, timeout_ms=600_000)   # liveness
    simulation.raise_errors()

The same seed gives the same `digest()`. Everything random comes from one die, one thing happens at a time in asyncio's order, and no
set, `id()` or `hash()` decides anything. The garbage collector is off inside `run` (see `virtual_loop`).

Not simulated: signals, memory, `sys.exit`, orders of callbacks inside one process other than asyncio's. Plain
`call_later` callbacks of a process that hangs or is dead do run, but find its ports dead, and so touch nothing but
its own memory.
"""

from __future__ import annotations

import asyncio
import gc
import math
import signal
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import current_thread, main_thread
from types import FrameType, TracebackType
from typing import Any, Final, NamedTuple, Protocol, Self, TypeAlias, TypeVar

from perdure.actors.ports import MOVED, Fleet, PoolSpec, Pulse, Transport, World
from perdure.actors.sim_world.exchanges import HOST, SUPERVISOR, ExchangeWire, SimTransport
from perdure.actors.sim_world.process import (
    ChronicleEntry,
    SimContext,
    SimFailure,
    SimProcess,
    begin_beside,
    current_process,
    gated_task,
    is_of_authors,
    on_death,
    owner_of,
)
from perdure.actors.sim_world.sim_ports import EPOCH_MS, KillPlan, KillRule, make_world
from perdure.actors.sim_world.virtual_loop import STEPS_MAX, Deadlock, Lull, Overdue, Runaway, Stuck, VirtualLoop
from perdure.actors.sim_world.weather import DiskFault, Span, Weather
from perdure.actors.tasks import Killed
from perdure.ledger import BadRequest, HostUnavailable, NoSuchNode
from perdure.policies import NodeDrain

# ---------------------------------------------------------------- cluster
# Ray's part in the simulated world: it starts hosts, notices deaths, and restarts a supervisor that died.
#
# What Ray promises is little, and this is as little: a host lives some time after it was asked for, whether or not the
# asker still lives; once dead, it stays dead; its death is told some milliseconds later. A supervisor that dies is
# started again after a while, unless its `serve` returned or the power is off. There are no nodes, but for those that
# drain: which hosts are on them is said by the story.


CLIENT: Final = "client"


class SupervisorLike(Protocol):
    async def serve(self) -> str | None:
        """Boot and run. Raising is a crash, returning `MOVED` asks for a life on another node, and returning anything else is a stop."""

    async def exchange(self, frame: bytes) -> bytes: ...


class HostLike(Protocol):
    async def serve(self) -> str:
        """Run until retired, orphaned or stopped, and say why it ended."""

    async def look(self, frame: bytes) -> bytes: ...


MakeSupervisor = Callable[[World, Fleet], SupervisorLike]
MakeHost = Callable[[World, Transport, str], HostLike]


class NodeGrowth(NamedTuple):
    waits_for: str = ""
    after_ms: float = 0


NOTHING_LACKS: Final = NodeGrowth()


class Machine(NamedTuple):
    process: SimProcess
    spec: PoolSpec
    death: asyncio.Future[str]


class Cluster:
    """The supervisor and the hosts of a simulation, and who starts them."""

    def __init__(
        self, nature: SimContext, plan: KillPlan, make_supervisor: MakeSupervisor, make_host: MakeHost
    ) -> None:
        self.nature = nature
        self.wire = ExchangeWire(nature, plan, self.stand_still)
        self.machines: dict[str, Machine] = {}
        # What a story may set: of the hosts of a pool, why they fail as they start, what no node has of what they ask for, and what they
        # wait for; empty where all is well.
        self.broken: Callable[[PoolSpec], str] = lambda _spec: ""
        self.lack: Callable[[PoolSpec], str] = lambda _spec: ""
        self.growth: Callable[[PoolSpec], NodeGrowth] = lambda _spec: NOTHING_LACKS
        self.elsewhere: dict[str, str] = {}  # nodes that do not see the directory, and what each has instead
        self.draining: dict[str, NodeDrain] = {}
        self.crashes: list[SimFailure] = []
        self.restarts = 0
        self._plan = plan
        self._make_supervisor = make_supervisor
        self._make_host = make_host
        self._supervisor: SimProcess | None = None
        self._powered = True

    def processes(self) -> list[SimProcess]:
        all_of_them = [self._supervisor, *(machine.process for machine in self.machines.values())]
        return [process for process in all_of_them if process is not None and process.alive]

    def start(self) -> None:
        if self._supervisor is None and self._powered:
            self._start_supervisor()

    def start_host(self, host_id: str, spec: PoolSpec) -> None:
        if host_id in self.machines:
            raise HostUnavailable(f"the name {host_id} was used before")
        process = SimProcess(self.nature, host_id, HOST, self._ended)
        self.machines[host_id] = Machine(process, spec, self.nature.loop.create_future())
        self.nature.note(host_id, "is asked for")
        ready_ms = self.growth(spec).after_ms + self.nature.draw_ms(self.nature.weather.spawn_ms)
        self.nature.later(ready_ms, self._boot_host, process)

    def stand_still(self, ms: float) -> None:
        for process in self.processes():
            process.stop(ms)

    def power_off(self) -> None:
        """Supervisor and hosts die, and nothing starts until the power is on again. The client lives."""
        self._powered = False
        for process in self.processes():
            self._plan.strike(process, "the cluster lost power")

    def power_on(self) -> None:
        self._powered = True
        self._restart_later()

    def _start_supervisor(self) -> None:
        process = SimProcess(self.nature, SUPERVISOR, SUPERVISOR, self._ended)
        self._supervisor = process
        self.nature.note(SUPERVISOR, "starts")
        process.start(_life(process, self._live_supervisor))

    def _restart_later(self) -> None:
        self.nature.later(self.nature.draw_ms(self.nature.weather.restart_ms), self._restart)

    def _restart(self) -> None:
        if self._powered and (self._supervisor is None or not self._supervisor.alive):
            self.restarts += 1
            self._start_supervisor()

    def _boot_host(self, process: SimProcess) -> None:
        if not process.alive:
            return
        broken = self.broken(self.machines[process.name].spec)
        if broken:
            process.end(broken, clean=True)
            return
        self.nature.note(process.name, "starts")
        process.start(_life(process, self._live_host))

    async def _live_supervisor(self, process: SimProcess) -> str:
        supervisor = self._make_supervisor(make_world(process, self._plan), SimFleet(process, self))
        self.wire.connect(process, supervisor.exchange)
        return await supervisor.serve() or "stopped"

    async def _live_host(self, process: SimProcess) -> str:
        transport = SimTransport(process, self.wire)
        host = self._make_host(make_world(process, self._plan), transport, process.name)
        self.wire.connect(process, host.look)
        return await host.serve()

    def _ended(self, process: SimProcess) -> None:
        if not process.clean:
            self.crashes.append(SimFailure(self.nature.now_ms(), process.name, process.cause, process.error))
        self.wire.disconnect(process)
        if process.kind == HOST:
            death = self.machines[process.name].death
            self.nature.later(self.nature.draw_ms(self.nature.weather.death_seen_ms), death.set_result, process.cause)
            return
        if process.cause == MOVED:
            self.draining.update({node: drain._replace(is_here=False) for node, drain in self.draining.items()})
        if self._powered and (not process.clean or process.cause == MOVED):
            self._restart_later()


# Whatever comes out of the main coroutine of a process ends it, and nothing else.
async def _life(process: SimProcess, live: Callable[[SimProcess], Awaitable[str]]) -> None:
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

    def __init__(self, process: SimProcess, cluster: Cluster) -> None:
        self._process = process
        self._cluster = cluster
        self._nature = cluster.nature
        self.elsewhere, self.draining = cluster.elsewhere, cluster.draining

    # Ask for a host, which lives later. If this life dies meanwhile, the next one finds the host by `survivors`.
    async def spawn(self, host_id: str, spec: PoolSpec) -> str:
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
        return self._cluster.growth(spec).waits_for

    async def survivors(self) -> dict[str, PoolSpec]:
        self._process.check()
        await asyncio.sleep(self._nature.draw_ms(self._nature.weather.mail_ms) / 1000)
        return {name: machine.spec for name, machine in self._cluster.machines.items() if machine.process.alive}

    async def death(self, host_id: str) -> str:
        self._process.check()
        machine = self._cluster.machines.get(host_id)
        return "never existed" if machine is None else await asyncio.shield(machine.death)

    # The weather loses such a question no more often than the hosts' own calls.
    async def pulse(self, host_id: str) -> Pulse | None:
        self._process.check()
        weather, machine = self._nature.weather, self._cluster.machines.get(host_id)
        await asyncio.sleep(self._nature.draw_ms(weather.mail_ms) / 1000)
        if machine is None or self._nature.chance(weather.lost):
            return None
        return machine.process.pulse()

    async def bare_nodes(self, _hosts: Sequence[str]) -> dict[str, str]:
        return {}

    async def read_logs(self, _place: str, _asked: Sequence[object]) -> None:
        return None

    async def kill(self, host_id: str) -> None:
        self._process.check()
        machine = self._cluster.machines.get(host_id)
        if machine is not None:
            machine.process.end("killed by the supervisor")


__all__ = [
    "EPOCH_MS",
    "ChronicleEntry",
    "Deadlock",
    "DiskFault",
    "HostLike",
    "Lull",
    "Overdue",
    "Runaway",
    "SimFailure",
    "Simulation",
    "Span",
    "Stuck",
    "SupervisorLike",
    "Weather",
    "check_no_loop",
    "current_process",
    "is_of_authors",
    "on_death",
    "stopped_by_signals",
]

T = TypeVar("T")

TRACE_MAX: Final = 20_000
CALM: Final = Weather.calm()
BUSY_MAX_S: Final = 3 * 3_600.0
SHUTDOWN_TURNS_MAX: Final = 200
ERRORS_SHOWN_MAX: Final = 5


# ---------------------------------------------------------------- signals
# Ctrl-C, and whatever else the handler of a signal raises: it ends what a person or a test waits for, in whatever code it hit.
#
# Python calls a handler in the middle of the code that is at work, so what it raises is raised there. In a simulation that is mostly the
# code of an agent, whose errors are the run's, or code of ours that a simulated process may crash by.


Handler: TypeAlias = Callable[[int, FrameType | None], object]


@contextmanager
def stopped_by_signals() -> Iterator[list[BaseException]]:
    """What handlers of signals have raised meanwhile, and are to be asked for often. The first of it is raised at the end, instead of what
    has become of it. Handlers that are set within do as they like, and only the main thread has any."""
    raised: list[BaseException] = []
    found = {number: signal.getsignal(number) for number in signal.valid_signals()}
    before = {number: each for number, each in found.items() if callable(each) and current_thread() is main_thread()}
    noting = {number: _noting(handler, raised) for number, handler in before.items()}
    try:
        for number, handler in noting.items():
            signal.signal(number, handler)
        yield raised
    finally:
        for number in [each for each in noting if signal.getsignal(each) is noting[each]]:
            signal.signal(number, before[number])
        if raised:
            raise raised[0]


def _noting(handler: Handler, raised: list[BaseException]) -> Handler:

    def note(number: int, frame: FrameType | None) -> None:
        try:
            handler(number, frame)
        except BaseException as error:
            raised.append(error)
            raise

    return note


# ---------------------------------------------------------------- world


def check_no_loop() -> None:
    """Raise `BadRequest` where an event loop is running: a simulation has its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise BadRequest(
        "laboratory",
        "an event loop is running here already, and a simulation plays on one of its own. Call it from sync code: `def test_it()`, not "
        "`async def`. What awaits goes into a story, `laboratory.play(story)`; a story awaits the client that it is given",
    )


class Simulation:
    """One simulated cluster. See the head of the module.

    `kill_at` kills the visitor of the n-th kill point (counted from 1, over all processes), `kill_when(process,
    point, detail)` whoever it says. `after_step` is called after every `step_stride`-th iteration of the loop; what
    it raises comes out of `run`. Exceptions of the types in `harmless`, and those raised from them, are not reported
    as errors. Wall clocks begin at `begins_ms`.
    """

    def __init__(
        self,
        seed: int,
        weather: Weather,
        make_supervisor: MakeSupervisor,
        make_host: MakeHost,
        *,
        kill_at: int | None = None,
        kill_when: KillRule | None = None,
        after_step: Callable[[], None] | None = None,
        step_stride: int = 1,
        steps_max: int = STEPS_MAX,
        trace_max: int = TRACE_MAX,
        harmless: tuple[type[BaseException], ...] = (),
        begins_ms: int = EPOCH_MS,
    ) -> None:
        self.seed = seed
        self.loop = VirtualLoop(steps_max)
        self.loop.after_step = after_step
        self.loop.step_stride = step_stride
        self.loop.begin = begin_beside
        self.loop.set_task_factory(gated_task)
        self.loop.set_exception_handler(self._unhandled)
        self._nature = SimContext(seed, weather, self.loop, trace_max)
        self._nature.harmless += harmless
        self._nature.clocks_off_ms = begins_ms - EPOCH_MS
        self._plan = KillPlan(kill_at, kill_when)
        self.cluster = Cluster(self._nature, self._plan, make_supervisor, make_host)
        self._client: SimProcess | None = None
        # Unexpected exceptions: of processes, and of tasks for which nobody waited. Complete after `close`.
        self.errors = self._nature.errors
        self.crashes = self.cluster.crashes  # every death, in order, except that of a process whose `serve` returned
        self.kills, self.visits = self._plan.kills, self._plan.visits  # by kind of process

    # How many visits there were: `kill_at` from 1 to here are the places to die.
    @property
    def visit_count(self) -> int:
        return self._plan.visit_count

    @property
    def weather(self) -> Weather:
        return self._nature.weather

    @property
    def is_calm(self) -> bool:
        # Nothing goes wrong now, so that nobody has to notice it.
        all_well = all(process.running and not process.is_cut() for process in self._processes())
        return all_well and self._nature.weather == CALM and not self.cluster.draining

    @property
    def trace(self) -> list[ChronicleEntry]:
        return list(self._nature.trace)

    def digest(self) -> str:
        return self._nature.digest()

    def now_ms(self) -> float:
        return self._nature.now_ms()

    def note(self, what: str) -> None:
        self._nature.note("story", what)

    def live_hosts(self) -> list[str]:
        return [process.name for process in self.cluster.processes() if process.kind == "host"]

    def raise_errors(self) -> None:
        if self.errors:
            told = [failure.error or RuntimeError(failure.cause) for failure in self.errors]
            raise BaseExceptionGroup("\n".join([f"seed {self.seed}", *map(str, self.errors)]), told)

    def run(self, main: Callable[[World, Transport], Awaitable[T]], timeout_ms: float | None = 600_000) -> T:
        """Run a client to its end and return its result; the cluster stays as it then is, for the next `run`.

        Raises what the client raises, `Killed` if it was killed, and `Deadlock`, `Overdue` or `Runaway` if it cannot end. What the handler
        of a signal raises, such as Ctrl-C, comes out too, in whatever code it hit. Without a time limit it has `BUSY_MAX_S`, in which no
        leap counts. Raises `BadRequest` in async code, before anything begins.
        """
        check_no_loop()
        client = SimProcess(self._nature, CLIENT, CLIENT, lambda _: None)
        self._client = client
        answer: asyncio.Future[T] = self.loop.create_future()
        client.on_death(partial(_refuse, answer, client))
        client.start(self._live_client(client, main, answer))
        self.cluster.start()
        self.loop.deadline_s = self.loop.busy_until_s = math.inf
        if timeout_ms is None:
            self.loop.busy_until_s = self.loop.time() - self.loop.leapt_s + BUSY_MAX_S
        else:
            self.loop.deadline_s = self.loop.time() + timeout_ms / 1000
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            with stopped_by_signals() as self.loop.stopped_by:
                result = self.loop.run_until_complete(answer)
                if self.loop.after_step is not None:
                    self.loop.after_step()  # whatever the stride, the last state is checked
        except Stuck as stuck:
            shown = map(str, self.errors[:ERRORS_SHOWN_MAX])
            stuck.add_note("\n  ".join([f"seed {self.seed}, errors so far: {len(self.errors)}", *shown]))
            raise
        finally:
            self.loop.stopped_by = ()
            client.end("its run is over", clean=True)
            gc.collect(1)
            if was_enabled:
                gc.enable()
        return result

    async def _live_client(
        self, process: SimProcess, main: Callable[[World, Transport], Awaitable[T]], answer: asyncio.Future[T]
    ) -> None:
        transport = SimTransport(process, self.cluster.wire)
        try:
            answer.set_result(await main(make_world(process, self._plan), transport))
        except (KeyboardInterrupt, SystemExit):  # they end the loop by themselves
            raise
        except BaseException as error:  # also what ends a test
            answer.set_exception(error)

    def heal(self) -> None:
        """Calm from now on: no faults, no kill plan, nobody cut off or hung. The dead stay dead, clocks as they are."""
        self.change_weather(Weather.calm())
        self._plan.kill_at = self._plan.kill_when = None
        for process in self._processes():
            process.heal()

    def change_weather(self, weather: Weather) -> None:
        self._nature.note("world", "the weather changes")
        self._nature.weather = weather

    def drain_node(self, node: str, after_ms: int, hosts: Iterable[str], *, is_here: bool = False) -> None:
        """Announce that a node ends then, or at no time (0), with these hosts, and with the supervisor if it is there: they are killed."""
        wall_ms = EPOCH_MS + self._nature.clocks_off_ms + round(self.now_ms())
        until_ms = wall_ms + after_ms if after_ms else 0
        self._nature.note("world", f"node {node} drains")
        self.cluster.draining[node] = NodeDrain(until_ms, tuple(hosts), is_here)
        if after_ms:
            self._nature.later(after_ms, self._end_node, node)

    def _end_node(self, node: str) -> None:
        drain = self.cluster.draining.pop(node)
        for name in (*drain.hosts, *([SUPERVISOR] if drain.is_here else [])):
            self.kill(name)

    def kill(self, name: str) -> bool:
        """SIGKILL; False if there is no such live process. May be called from anywhere, also from within the victim."""
        return [self._plan.strike(process, "killed") for process in self._named(name)] == [True]

    def hang(self, name: str, ms: float, culprit: str | None = "") -> None:
        """Block a process's event loop: in one piece of work, of this agent, or (None) in one after the other."""
        for process in self._named(name):
            process.hang(ms, culprit)

    def stop(self, name: str, ms: float) -> None:
        for process in self._named(name):
            process.stop(ms)

    def stand_still(self, ms: float) -> None:
        """Stop supervisor and hosts, and let them go on. The client goes on meanwhile."""
        self._nature.note("world", f"stands still for {ms:.0f} ms")
        self.cluster.stand_still(ms)

    def set_clocks(self, by_ms: int) -> None:
        """Set the wall clocks of all processes forward, or back: as a machine does that slept, or that asks for the time."""
        self._nature.note("world", f"clocks are set by {by_ms} ms")
        self._nature.clocks_off_ms += by_ms
        self.loop.put_off_leap()

    def partition(self, name: str, ms: float) -> None:
        for process in self._named(name):
            process.partition(ms)

    def close(self) -> None:
        """End everything, leaving no task and no noise behind. What happens from here on is not in the trace."""
        if self.loop.is_closed():
            return
        self._nature.sealed = True
        self.loop.deadline_s = self.loop.busy_until_s = math.inf
        self.loop.after_step, self.loop.steps_max = None, self.loop.steps + STEPS_MAX
        for process in self._processes():
            process.end("the simulation is over", clean=True)
        for _ in range(SHUTDOWN_TURNS_MAX):
            if not asyncio.all_tasks(self.loop):
                break
            self.loop.turn()
        self.loop.close()
        self._nature.threads.close()
        gc.collect(1)  # what failed without being heard reports itself when it is collected

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _processes(self) -> list[SimProcess]:
        client = [self._client] if self._client is not None and self._client.alive else []
        return [*self.cluster.processes(), *client]

    def _named(self, name: str) -> list[SimProcess]:
        return [process for process in self._processes() if process.name == name]

    def _unhandled(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        owner = owner_of(context.get("task") or context.get("future"))
        self._nature.blame(owner, str(context.get("message")), context.get("exception"))


def _refuse(answer: asyncio.Future[T], client: SimProcess) -> None:
    if not answer.done():
        answer.set_exception(Killed(client.cause))
