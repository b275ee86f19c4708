"""Who does it: agents and what they are given, the supervisor, hosts, and the runtime that ties them to a world.

`actors.ray_world` and `actors.sim_world` are imported by name, so that neither loads the other.
"""

from actors.agent import Agent, exposed
from actors.client import Client
from actors.events import AgentToolEvents
from actors.host import Host
from actors.observability import subscribe
from actors.ports import Clock, Courier, Dice, Faults, Fleet, Killed, KillPoint, PoolSpec, Threads, World
from actors.results import AgentToolFailure, Detached, MilestoneInfo, RunHandle, RunInfo, RunResult
from actors.run_context import RunContext
from actors.supervisor import Supervisor
from actors.wire import RemoteError

__all__ = [
    "Agent",
    "AgentToolEvents",
    "AgentToolFailure",
    "Client",
    "Clock",
    "Courier",
    "Detached",
    "Dice",
    "Faults",
    "Fleet",
    "Host",
    "KillPoint",
    "Killed",
    "MilestoneInfo",
    "PoolSpec",
    "RemoteError",
    "RunContext",
    "RunHandle",
    "RunInfo",
    "RunResult",
    "Supervisor",
    "Threads",
    "World",
    "exposed",
    "subscribe",
]
