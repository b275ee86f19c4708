"""Who does it: agents and what they are given, the supervisor, hosts, and the runtime that ties them to a world.

`actors.ray_world` and `actors.sim_world` are imported by name, so that neither loads the other.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from actors.agent import Agent, exposed
from actors.client import Client
from actors.cluster_record import read_record
from actors.events import AgentToolEvents
from actors.host import Host
from actors.observability import subscribe
from actors.ports import Clock, Courier, Dice, Faults, Fleet, Killed, KillPoint, PoolSpec, Threads, World
from actors.results import AgentToolFailure, Detached, MilestoneInfo, RunHandle, RunInfo, RunResult
from actors.run_context import RunContext
from actors.supervisor import Supervisor
from actors.wire import RemoteError

if TYPE_CHECKING:
    from actors.runtime import Runtime

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
    "Runtime",
    "Supervisor",
    "Threads",
    "World",
    "exposed",
    "read_record",
    "subscribe",
]


def __getattr__(name: str) -> type[Runtime]:
    """`Runtime` brings Ray with it, so it is loaded when it is first asked for."""
    if name == "Runtime":
        runtime: type[Runtime] = import_module("actors.runtime").Runtime
        return runtime
    raise AttributeError(f"module 'actors' has no attribute {name!r}")
