"""Who does it: agents and what they are given, the supervisor, hosts, and the runtime that ties them to a world.

`actors.ray_world` and `actors.sim_world` are imported by name, so that neither loads the other.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from actors.agent import Agent, exposed
from actors.calling import Address
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
from actors.handle import Handle, tell
from actors.host import Host
from actors.jobs.fiber import FiberInspection, FiberPage
from actors.jobs.fiber_context import FiberContext, FiberRecovery
from actors.jobs.occurrence import Occurrence, Past, QueuedItem, Schedule
from actors.messenger.adapter import (
    Adapter,
    MalformedUpdate,
    MessageGone,
    MessageUnchanged,
    Messenger,
    ProviderBusy,
    ProviderRefused,
    ProviderSilent,
    ProviderTrouble,
    ProviderUnreached,
    TextLimits,
    Webhook,
)
from actors.messenger.events import Kind, MessengerEvent, Person, conversation_name
from actors.messenger.messenger_agent import MessengerAgent, messengers_of
from actors.messenger.state import ChatState, key_shard, shard_of
from actors.parts import apply_chunk
from actors.ports import Clock, Courier, Dice, Faults, Fleet, Killed, KillPoint, PoolSpec, Threads, World
from actors.results import AgentToolFailure, Detached, MilestoneInfo, RunHandle, RunInfo, RunResult
from actors.run_context import RunContext
from actors.supervisor import Supervisor
from actors.wire import RemoteError
from policies import ChatRecovery, FiberResult, FiberRetry, Retries

if TYPE_CHECKING:
    from actors.messenger.ingress import messenger_app
    from actors.messenger.telegram import Telegram
    from actors.ray_baseline import PlainRay
    from actors.runtime import Runtime

__all__ = [
    "ActiveTurn",
    "Adapter",
    "Address",
    "Agent",
    "AgentToolEvents",
    "AgentToolFailure",
    "ChatAgent",
    "ChatRecovery",
    "ChatRecoveryContext",
    "ChatState",
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
    "Kind",
    "MalformedUpdate",
    "MessageGone",
    "MessageUnchanged",
    "Messenger",
    "MessengerAgent",
    "MessengerEvent",
    "MilestoneInfo",
    "Occurrence",
    "Past",
    "Person",
    "PlainRay",
    "PoolSpec",
    "ProviderBusy",
    "ProviderRefused",
    "ProviderSilent",
    "ProviderTrouble",
    "ProviderUnreached",
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
    "Telegram",
    "TextLimits",
    "Threads",
    "ToolContext",
    "TurnResult",
    "Webhook",
    "World",
    "agent_tool",
    "apply_chunk",
    "client_tool",
    "close_models",
    "conversation_name",
    "exposed",
    "key_shard",
    "messenger_app",
    "messengers_of",
    "read_record",
    "resolve_model",
    "shard_of",
    "tell",
    "tool",
]


_LATER = {
    "Runtime": "actors.runtime",
    "PlainRay": "actors.ray_baseline",
    "Telegram": "actors.messenger.telegram",
    "messenger_app": "actors.messenger.ingress",
}


def __getattr__(name: str) -> Any:
    """What brings Ray, a provider's library or a web framework with it is loaded when it is first asked for."""
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'actors' has no attribute {name!r}")
