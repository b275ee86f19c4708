"""What a world must offer. Two worlds do: `ray_world` (processes that truly die) and `sim_world` (one seeded die, virtual time).

All code of `actors/` is written against these ports and plain `asyncio`; in the simulated world the event loop itself runs on
virtual time, so `asyncio.sleep` and timeouts need no port.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, Self, TypeAlias, TypeVar

from perdure.actors.events.observability import Metrics, NoMetrics
from perdure.actors.tasks import Pending
from perdure.actors.telemetry.telemetry import OFF, Telemetry
from perdure.policies import NodeDrain, Rank

T = TypeVar("T")
Pairs: TypeAlias = "Iterable[Sequence[Any]]"


class KillPoint(StrEnum):
    """The named places where a process may be killed. In the simulation they raise `Killed`; under Ray they `SIGKILL`."""

    BEFORE_COMMIT = "before_commit"
    AFTER_COMMIT = "after_commit"
    BEFORE_EFFECT = "before_effect"
    AFTER_EFFECT = "after_effect"
    BEFORE_CHECKPOINT = "before_checkpoint"
    AFTER_CHECKPOINT = "after_checkpoint"
    BEFORE_RUN = "before_run"
    MID_RUN = "mid_run"
    AFTER_RESULT_COMMIT = "after_result_commit"
    BEFORE_REPORT = "before_report"
    MID_STREAM = "mid_stream"
    MID_TOOL = "mid_tool"
    MID_HANDLER = "mid_handler"
    BEFORE_HANDLER_COMMIT = "before_handler_commit"
    AFTER_HANDLER_COMMIT = "after_handler_commit"
    MID_STORAGE = "mid_storage"
    MID_CANCEL = "mid_cancel"
    MID_CLEAR = "mid_clear"
    MID_PASSIVATION = "mid_passivation"
    BEFORE_PUT = "before_put"
    AFTER_PUT = "after_put"
    BEFORE_ROOT = "before_root"
    MID_COLLECT = "mid_collect"


BUCKET_POINTS: Final = (KillPoint.BEFORE_PUT, KillPoint.AFTER_PUT, KillPoint.BEFORE_ROOT, KillPoint.MID_COLLECT)
"""Those around the requests to a bucket. Only the simulated bucket visits them."""


class Faults(Protocol):
    """Kills on purpose. Production code calls `at` at each kill point; in production nothing happens there."""

    def at(self, point: KillPoint, detail: str = "") -> None: ...


class Clock(Protocol):
    """Wall time, which may jump, and a time that does not (`policies.ledger_time`)."""

    def now_ms(self) -> int:
        """What the wall clock says, in milliseconds since 1970, UTC."""

    def steady_ms(self) -> int:
        """Milliseconds since some instant, whatever clocks are set to. It stands still while the machine sleeps."""


class Dice(Protocol):
    """The only source of chance."""

    def roll(self) -> float:
        """A number in [0, 1)."""

    def token(self) -> str:
        """A short random identifier (20 hexadecimal digits)."""


class Threads(Protocol):
    """Runs blocking code beside the event loop. In the simulation one of them runs at a time, and the other stands still."""

    async def run(self, job: Callable[[], T], turn: object = None) -> T:
        """Run `job` on a shared thread with the caller's context variables. One that has begun cannot be stopped, only left behind."""

    def turn(self, owner: object) -> AbstractAsyncContextManager[object]:
        """A block that one at a time enters. A job that is run with what it gives lets the next one in while it waits for the runtime."""

    async def write(self, job: Callable[[], T], rank: Rank) -> T:
        """Run `job` on a thread for the storages of agents, when its turn comes. A caller that is cancelled waits for its end."""

    async def commit(self, job: Callable[[], T], *, is_brief: bool = False) -> T:
        """Run `job` on the one thread that makes the ledger durable, in call order. A brief one may be run at once, by the loop itself."""

    async def archive(self, job: Callable[[], T]) -> T:
        """Run `job` on the one thread that keeps what the ledger retains, in call order. Commits do not wait for it."""

    async def read(self, job: Callable[[], T]) -> T:
        """Run `job` on the one thread that reads what the ledger retains, in call order. It waits for neither of the others."""

    def bridge(self, job: Pending[T], loop: AbstractEventLoop) -> Future[T]:
        """Have the loop do what code on a thread waits for. In the simulation it is done when this returns; raises `BadRequest` there if
        that code is none that this runs."""

    @property
    def writes_waiting(self) -> int:
        """How many jobs of `write` are under way, or stand in line."""

    @property
    def left_behind(self) -> int:
        """How many jobs on shared threads go on although their caller has given them up."""


class LoopTurns(Protocol):
    """Whose turn it is on the event loop of a host."""

    @property
    def is_free(self) -> bool: ...

    @property
    def waited_ms(self) -> int:
        """How long the agent that is to be begun next has waited for that."""


# A loop that no code occupies for long.
class NoTurns:
    is_free = True
    waited_ms = 0


class Vitals(Protocol):
    def pid(self) -> int: ...

    def node(self) -> str: ...

    def rss_mb(self) -> int: ...


class Transport(Protocol):
    """A peer's (a host's or a client's) ways to the supervisor, and to hosts. `route` is the name under which others find it, if it is a
    host that they may ask."""

    route: str

    async def exchange(self, frame: bytes) -> bytes:
        """Hand over a frame and wait for the answer, which may take long. Raises `SupervisorUnreachable` when the outcome is unknown."""

    async def look(self, route: str, frame: bytes) -> bytes:
        """Ask a host, and wait for the answer, which may take long. Raises `HostUnavailable` when there is none."""


def _pairs(given: Pairs) -> tuple[tuple[str, Any], ...]:
    return tuple((name, value) for name, value in given)


class PoolSpec(NamedTuple):
    """What a class of hosts asks of Ray: a pool of hosts exists per distinct value. `runtime_env` is JSON; in it, `package` names what the
    agents' code comes in (`packing`). GPUs, bytes of memory and types of accelerators are `resources`, by Ray's names. `labels` is a label
    selector."""

    num_cpus: float = 0.0
    resources: tuple[tuple[str, float], ...] = ()
    runtime_env: str = ""
    labels: tuple[tuple[str, str], ...] = ()

    # From lists, which JSON made of the tuples.
    @classmethod
    def of(cls, num_cpus: float, resources: Pairs, runtime_env: str, labels: Pairs = ()) -> Self:
        return cls(num_cpus, _pairs(resources), runtime_env, _pairs(labels))


class Pulse(NamedTuple):
    """What a host's process says of its event loop, from beside it.

    `step` tells one piece of work in which the loop stands from the next; it is 0 while the loop turns. `agent` is the address of the agent
    whose code is at work there, if it is one's. `method` and `stack` say where it is.
    """

    step: int = 0
    agent: str = ""
    method: str = ""
    stack: str = ""


STOPPED: Final = "with its whole system, on purpose"  # why a supervisor and its hosts end
MOVED: Final = "its node drains"  # why a supervisor ends that is to live on another node


class Fleet(Protocol):
    """The supervisor's way to hosts: create, list, watch, kill. Commands to a host travel as answers to its own exchanges.

    Attributes:
        elsewhere: the nodes of the cluster that do not see the data directory, and what each has at its path instead. No host goes there.
            It changes as they are looked at.
        draining: the nodes that drain, likewise.
    """

    elsewhere: dict[str, str]
    draining: dict[str, NodeDrain]

    async def spawn(self, host_id: str, spec: PoolSpec) -> str:
        """Start a host; returns when its creation was asked for, and tells what that has to wait for, if anything. Raises
        `HostUnavailable`, and `NoSuchNode` if nothing will come."""

    async def survivors(self) -> dict[str, PoolSpec]:
        """The hosts that an earlier supervisor life left running."""

    async def death(self, host_id: str) -> str:
        """Wait until the host has died and say why. Raises `NoSuchNode` if it waited for what will never come."""

    async def bare_nodes(self, hosts: Sequence[str]) -> dict[str, str]:
        """The nodes on which neither this process nor any of these hosts is: their names, by their ids."""

    async def read_logs(self, place: str, asked: Sequence[object]) -> bytes | None:
        """Read the logs (`LogsOf`) of a node, named by its id or by a host there, without a host. None if that cannot be done."""

    async def pulse(self, host_id: str) -> Pulse | None:
        """How a host is, soon, whatever occupies its event loop. None if its process neither answers nor computes."""

    async def kill(self, host_id: str) -> None:
        """End a host at once. Idempotent."""


class World(NamedTuple):
    """What every process of Perdure is given: its clock, dice, threads, faults, vitals and turns, and where its numbers and spans go.

    Attributes:
        cores: how many the cluster has. Only the supervisor asks; in Ray's world it is told what Ray counts.
        logs: where the processes of this machine keep their logs, if other machines do not see it.
    """

    clock: Clock
    dice: Dice
    threads: Threads
    faults: Faults
    vitals: Vitals
    metrics: Metrics = NoMetrics()
    turns: LoopTurns = NoTurns()
    telemetry: Telemetry = OFF
    cores: int = 4
    logs: Path | None = None
