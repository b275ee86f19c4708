"""Who does it: agents and what they are given, the supervisor, hosts, and the runtime that ties them to a world.

Each name here brings its own module with it when it is first asked for. `actors.ray_world` and `actors.sim_world`
are imported by name, so that neither loads the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.lazy_names import lazy_names

if TYPE_CHECKING:
    from perdure.actors.agent.agent import Agent
    from perdure.actors.agent.exposing import awaiting, blocking, exposed
    from perdure.actors.chat.chat_agent import ChatAgent
    from perdure.actors.chat.durable_agent import DurableAgent
    from perdure.actors.chat.feed import FeedEvent
    from perdure.actors.chat.followers import Interrupted, StreamCallback, TurnOptions
    from perdure.actors.chat.model import UnusableModel, close_models, resolve_model
    from perdure.actors.chat.tool_schema import ToolContext
    from perdure.actors.chat.tools import Approval, BadToolOutput, ToolOptions, agent_tool, client_tool, tool
    from perdure.actors.chat.turn import ActiveTurn, ChatRecoveryContext, TurnResult
    from perdure.actors.chat.turn_failures import ChatTurnFailed
    from perdure.actors.code.known_types import by_type, mistakable
    from perdure.actors.code.signatures import gives_bit_by_bit
    from perdure.actors.events.message_parts import apply_chunk
    from perdure.actors.events.reducer import AgentToolEvents
    from perdure.actors.gateway.joining import joining
    from perdure.actors.gateway.plain_json import finite
    from perdure.actors.gateway.security import token_digest
    from perdure.actors.host.host import Host
    from perdure.actors.jobs.callback_rows import CallbackRow, Occurrence, Past, QueuedItem, Schedule
    from perdure.actors.jobs.fiber import FiberInspection, FiberPage
    from perdure.actors.jobs.fiber_context import FiberContext, FiberRecovery
    from perdure.actors.life.asks import Answer, Answering, NoAnswer, user_name
    from perdure.actors.life.child_types import AsyncChild, AsyncInputless, Child, Inputless
    from perdure.actors.life.class_options import check_asked, check_class
    from perdure.actors.life.conditions import all_of, any_of, n_of
    from perdure.actors.life.handle import Handle, tell
    from perdure.actors.life.results import (
        AgentToolFailure,
        BulkReport,
        Detached,
        MilestoneInfo,
        RunCompleted,
        RunFailed,
        RunHandle,
        RunHandles,
        RunInfo,
        RunResult,
    )
    from perdure.actors.life.run_context import RunContext, RunMessage
    from perdure.actors.link.caller import Address, given_by
    from perdure.actors.link.questions import (
        Books,
        Later,
        about_ask,
        deleted_with,
        question_of,
        requested_by,
        runs_named,
        sent_event,
    )
    from perdure.actors.link.wire import RemoteError
    from perdure.actors.log_files import ClusterLogs, LogFiles, WantedLogs
    from perdure.actors.mcp_server.offers import offers_of
    from perdure.actors.mcp_server.transports import serve_stdio
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
    from perdure.actors.messenger.chat_state import ChatState, key_shard, shard_of
    from perdure.actors.messenger.ingress import messenger_app
    from perdure.actors.messenger.messenger_agent import MessengerAgent, messengers_of
    from perdure.actors.messenger.messenger_events import Kind, MessengerEvent, Person, conversation_name
    from perdure.actors.messenger.telegram import Telegram
    from perdure.actors.ports import (
        BUCKET_POINTS,
        Clock,
        Dice,
        Faults,
        Fleet,
        KillPoint,
        PoolSpec,
        Threads,
        Transport,
        World,
    )
    from perdure.actors.ray_world.baseline import PlainRay
    from perdure.actors.ray_world.cluster_record import check_directory, nothing_serves, ray_of, read_record
    from perdure.actors.ray_world.deployment import LOGS, bucket_needed, bucket_store, check_bucket
    from perdure.actors.ray_world.gateways import Gateways
    from perdure.actors.runtime.bulk import PAST, BulkPass, RunFilter, chosen_by, wanted_by
    from perdure.actors.runtime.client import Client
    from perdure.actors.runtime.data_directory import data_directory
    from perdure.actors.runtime.directory_files import ServedSteward, findings_in, served_findings, standing_by
    from perdure.actors.runtime.inspecting import (
        KINDS_OF_WORK,
        NOT_AWAKE,
        RECORDS_OF_WORK,
        Everywhere,
        agent_told,
        begun_at_ms,
        cancelling,
        everywhere,
        newest_first,
        storages_in,
        version_in,
    )
    from perdure.actors.runtime.runtime import AsyncRuntime, Runtime
    from perdure.actors.runtime.stopping import Stopped, stop_serving
    from perdure.actors.serve.app import ServePlan
    from perdure.actors.serve.listening import bound, check_certificate
    from perdure.actors.supervisor.supervisor import Supervisor
    from perdure.actors.tasks import Killed
    from perdure.actors.telemetry.telemetry import Telemetry
    from perdure.actors.upkeep import upkeep_pause
    from perdure.policies import ChatRecovery, EndOf, FiberResult, FiberRetry, MilestoneOf, Retries

__getattr__, __dir__ = lazy_names(globals())

if __name__ != "perdure.actors":  # imported from a checkout: every module would exist twice
    raise ImportError("this folder is a part of the package `perdure`: import `perdure.actors`")
