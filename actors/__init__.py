"""Who does it: agents and what they are given, the supervisor, hosts, and the runtime that ties them to a world.

Each name here brings its own module with it when it is first asked for. `actors.ray_world` and `actors.sim_world` are imported by name, so
that neither loads the other.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
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
    from actors.messenger.ingress import messenger_app
    from actors.messenger.messenger_agent import MessengerAgent, messengers_of
    from actors.messenger.state import ChatState, key_shard, shard_of
    from actors.messenger.telegram import Telegram
    from actors.parts import apply_chunk
    from actors.ports import Clock, Courier, Dice, Faults, Fleet, Killed, KillPoint, PoolSpec, Threads, World
    from actors.ray_baseline import PlainRay
    from actors.results import AgentToolFailure, Detached, MilestoneInfo, RunHandle, RunInfo, RunResult
    from actors.run_context import RunContext
    from actors.runtime import Runtime
    from actors.stopping import Stopped, stop_serving
    from actors.supervisor import Supervisor
    from actors.wire import RemoteError
    from policies import ChatRecovery, FiberResult, FiberRetry, Retries

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
    "Stopped",
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
    "stop_serving",
    "tell",
    "tool",
]


_HOMES: Final = {
    "actors.agent": "Agent exposed",
    "actors.calling": "Address",
    "actors.chat.chat_agent": "ChatAgent",
    "actors.chat.delegated_tools": "agent_tool client_tool",
    "actors.chat.model": "close_models resolve_model",
    "actors.chat.recovery_context": "ChatRecoveryContext",
    "actors.chat.tool_schema": "ToolContext",
    "actors.chat.tools": "tool",
    "actors.chat.turn": "ActiveTurn TurnResult",
    "actors.client": "Client",
    "actors.cluster_record": "read_record",
    "actors.events": "AgentToolEvents",
    "actors.handle": "Handle tell",
    "actors.host": "Host",
    "actors.jobs.fiber": "FiberInspection FiberPage",
    "actors.jobs.fiber_context": "FiberContext FiberRecovery",
    "actors.jobs.occurrence": "Occurrence Past QueuedItem Schedule",
    "actors.messenger.adapter": (
        "Adapter MalformedUpdate MessageGone MessageUnchanged Messenger ProviderBusy ProviderRefused ProviderSilent"
        " ProviderTrouble ProviderUnreached TextLimits Webhook"
    ),
    "actors.messenger.events": "Kind MessengerEvent Person conversation_name",
    "actors.messenger.ingress": "messenger_app",
    "actors.messenger.messenger_agent": "MessengerAgent messengers_of",
    "actors.messenger.state": "ChatState key_shard shard_of",
    "actors.messenger.telegram": "Telegram",
    "actors.parts": "apply_chunk",
    "actors.ports": "Clock Courier Dice Faults Fleet KillPoint Killed PoolSpec Threads World",
    "actors.ray_baseline": "PlainRay",
    "actors.results": "AgentToolFailure Detached MilestoneInfo RunHandle RunInfo RunResult",
    "actors.run_context": "RunContext",
    "actors.runtime": "Runtime",
    "actors.stopping": "Stopped stop_serving",
    "actors.supervisor": "Supervisor",
    "actors.wire": "RemoteError",
    "policies": "ChatRecovery FiberResult FiberRetry Retries",
}
_PLACES: Final = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Load what is asked for: Ray, a database, a provider's library or a web framework only with what needs them."""
    if name not in _PLACES:
        raise AttributeError(f"module 'actors' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_PLACES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
