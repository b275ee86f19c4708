"""Who does it: agents and what they are given, the supervisor, hosts, and the runtime that ties them to a world.

Each name here brings its own module with it when it is first asked for. `actors.ray_world` and `actors.sim_world`
are imported by name, so that neither loads the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from perdure.lazy_names import lazy_names

if TYPE_CHECKING:
    from perdure.actors.agent.agent import Agent
    from perdure.actors.agent.blocking import awaiting, blocking
    from perdure.actors.agent.exposing import exposed
    from perdure.actors.chat.chat_agent import ChatAgent
    from perdure.actors.chat.delegated_tools import agent_tool, client_tool
    from perdure.actors.chat.model import close_models, resolve_model
    from perdure.actors.chat.tool_schema import ToolContext
    from perdure.actors.chat.tools import tool
    from perdure.actors.chat.turn import ActiveTurn, ChatRecoveryContext, TurnResult
    from perdure.actors.events.message_parts import apply_chunk
    from perdure.actors.events.reducer import AgentToolEvents
    from perdure.actors.host.host import Host
    from perdure.actors.jobs.fiber import FiberInspection, FiberPage
    from perdure.actors.jobs.fiber_context import FiberContext, FiberRecovery
    from perdure.actors.jobs.occurrence import Occurrence, Past, QueuedItem, Schedule
    from perdure.actors.life.handle import Handle, tell
    from perdure.actors.life.results import (
        AgentToolFailure,
        Detached,
        MilestoneInfo,
        RunCompleted,
        RunFailed,
        RunHandle,
        RunHandles,
        RunInfo,
        RunResult,
    )
    from perdure.actors.life.run_context import RunContext
    from perdure.actors.link.caller import Address
    from perdure.actors.link.wire import RemoteError
    from perdure.actors.messenger.adapter import (
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
    from perdure.actors.messenger.events import Kind, MessengerEvent, Person, conversation_name
    from perdure.actors.messenger.ingress import messenger_app
    from perdure.actors.messenger.messenger_agent import MessengerAgent, messengers_of
    from perdure.actors.messenger.state import ChatState, key_shard, shard_of
    from perdure.actors.messenger.telegram import Telegram
    from perdure.actors.ports import Clock, Courier, Dice, Faults, Fleet, Killed, KillPoint, PoolSpec, Threads, World
    from perdure.actors.ray_world.baseline import PlainRay
    from perdure.actors.ray_world.cluster_record import read_record
    from perdure.actors.runtime.async_runtime import AsyncRuntime
    from perdure.actors.runtime.client import Client
    from perdure.actors.runtime.runtime import Runtime
    from perdure.actors.runtime.stopping import Stopped, stop_serving
    from perdure.actors.supervisor.supervisor import Supervisor
    from perdure.policies import ChatRecovery, FiberResult, FiberRetry, Retries


_HOMES: Final = {
    "perdure.actors.agent.agent": "Agent",
    "perdure.actors.agent.blocking": "awaiting blocking",
    "perdure.actors.agent.exposing": "exposed",
    "perdure.actors.link.caller": "Address",
    "perdure.actors.chat.chat_agent": "ChatAgent",
    "perdure.actors.chat.delegated_tools": "agent_tool client_tool",
    "perdure.actors.chat.model": "close_models resolve_model",
    "perdure.actors.chat.turn": "ActiveTurn ChatRecoveryContext TurnResult",
    "perdure.actors.chat.tool_schema": "ToolContext",
    "perdure.actors.chat.tools": "tool",
    "perdure.actors.runtime.async_runtime": "AsyncRuntime",
    "perdure.actors.runtime.client": "Client",
    "perdure.actors.ray_world.cluster_record": "read_record",
    "perdure.actors.events.reducer": "AgentToolEvents",
    "perdure.actors.life.handle": "Handle tell",
    "perdure.actors.host.host": "Host",
    "perdure.actors.jobs.fiber": "FiberInspection FiberPage",
    "perdure.actors.jobs.fiber_context": "FiberContext FiberRecovery",
    "perdure.actors.jobs.occurrence": "Occurrence Past QueuedItem Schedule",
    "perdure.actors.messenger.adapter": (
        "Adapter MalformedUpdate MessageGone MessageUnchanged Messenger ProviderBusy ProviderRefused ProviderSilent"
        " ProviderTrouble ProviderUnreached TextLimits Webhook"
    ),
    "perdure.actors.messenger.events": "Kind MessengerEvent Person conversation_name",
    "perdure.actors.messenger.ingress": "messenger_app",
    "perdure.actors.messenger.messenger_agent": "MessengerAgent messengers_of",
    "perdure.actors.messenger.state": "ChatState key_shard shard_of",
    "perdure.actors.messenger.telegram": "Telegram",
    "perdure.actors.events.message_parts": "apply_chunk",
    "perdure.actors.ports": "Clock Courier Dice Faults Fleet KillPoint Killed PoolSpec Threads World",
    "perdure.actors.ray_world.baseline": "PlainRay",
    "perdure.actors.life.results": (
        "AgentToolFailure Detached MilestoneInfo RunCompleted RunFailed RunHandle RunHandles RunInfo RunResult"
    ),
    "perdure.actors.life.run_context": "RunContext",
    "perdure.actors.runtime.runtime": "Runtime",
    "perdure.actors.runtime.stopping": "Stopped stop_serving",
    "perdure.actors.supervisor.supervisor": "Supervisor",
    "perdure.actors.link.wire": "RemoteError",
    "perdure.policies": "ChatRecovery FiberResult FiberRetry Retries",
}
__getattr__, __dir__ = lazy_names(globals(), _HOMES)

if __name__ != "perdure.actors":  # a folder of a checkout: the same modules under two names would be two of everything
    raise ImportError("this folder is a part of the package `perdure`: import `perdure.actors`")
