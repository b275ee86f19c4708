"""Who does it: agents and what they are given, the supervisor, hosts, and the runtime that ties them to a world.

`actors.ray_world` and `actors.sim_world` are imported by name, so that neither loads the other.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from actors.agent import Agent, exposed
from actors.chat.chat_agent import ChatAgent
from actors.chat.delegated_tools import agent_tool, client_tool
from actors.chat.model import close_models, resolve_model
from actors.chat.recovery_context import ChatRecoveryContext
from actors.chat.tool_schema import ToolContext
from actors.chat.tools import tool
from actors.chat.turn import ActiveTurn, TurnResult
from actors.client import Client
from actors.cluster_record import read_record
from actors.events import AgentToolEvents
from actors.handle import Handle
from actors.host import Host
from actors.jobs.fiber import FiberInspection, FiberPage
from actors.jobs.fiber_context import FiberContext, FiberRecovery
from actors.jobs.occurrence import Occurrence, Past, QueuedItem, Schedule
from actors.parts import apply_chunk
from actors.ports import Clock, Courier, Dice, Faults, Fleet, Killed, KillPoint, PoolSpec, Threads, World
from actors.results import AgentToolFailure, Detached, MilestoneInfo, RunHandle, RunInfo, RunResult
from actors.run_context import RunContext
from actors.supervisor import Supervisor
from actors.wire import RemoteError
from policies import ChatRecovery, FiberResult, FiberRetry, Retries

if TYPE_CHECKING:
    from actors.ray_baseline import PlainRay
    from actors.runtime import Runtime

__all__ = [
    "ActiveTurn",
    "Agent",
    "AgentToolEvents",
    "AgentToolFailure",
    "ChatAgent",
    "ChatRecovery",
    "ChatRecoveryContext",
    "Client",
    "Clock",
    "Courier",
    "Detached",
    "Dice",
    "Faults",
    "FiberContext",
    "FiberInspection",
    "FiberPage",
    "FiberRecovery",
    "FiberResult",
    "FiberRetry",
    "Fleet",
    "Handle",
    "Host",
    "KillPoint",
    "Killed",
    "MilestoneInfo",
    "Occurrence",
    "Past",
    "PlainRay",
    "PoolSpec",
    "QueuedItem",
    "RemoteError",
    "Retries",
    "RunContext",
    "RunHandle",
    "RunInfo",
    "RunResult",
    "Runtime",
    "Schedule",
    "Supervisor",
    "Threads",
    "ToolContext",
    "TurnResult",
    "World",
    "agent_tool",
    "apply_chunk",
    "client_tool",
    "close_models",
    "exposed",
    "read_record",
    "resolve_model",
    "tool",
]


_WITH_RAY = {"Runtime": "actors.runtime", "PlainRay": "actors.ray_baseline"}


def __getattr__(name: str) -> type[Runtime | PlainRay]:
    """What brings Ray with it is loaded when it is first asked for."""
    if name in _WITH_RAY:
        found: type[Runtime | PlainRay] = getattr(import_module(_WITH_RAY[name]), name)
        return found
    raise AttributeError(f"module 'actors' has no attribute {name!r}")
