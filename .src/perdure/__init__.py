"""Perdure: a durable runtime for AI agents on Ray. Whatever dies, every run reaches an end, exactly once.

Authors need this module alone. Beside it are `perdure.messengers` (agents behind Telegram and the like), `perdure.testing` (the simulated
world) and `perdure.cli` (the command). Each name here loads its own module when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.lazy_names import lazy_names

if TYPE_CHECKING:
    from perdure.actors import (
        ActiveTurn,
        Agent,
        AgentToolEvents,
        AgentToolFailure,
        AsyncRuntime,
        ChatAgent,
        ChatRecoveryContext,
        Client,
        Detached,
        FiberContext,
        FiberRecovery,
        Handle,
        MilestoneInfo,
        Occurrence,
        RemoteError,
        RunContext,
        RunHandle,
        RunInfo,
        RunResult,
        Runtime,
        ToolContext,
        TurnResult,
        agent_tool,
        awaiting,
        blocking,
        client_tool,
        exposed,
        tell,
        tool,
    )
    from perdure.ledger import (
        AdmissionRefused,
        AgentAborted,
        AgentUnreachable,
        BadRequest,
        ConflictingRequest,
        NoLongerServed,
        OutcomeUnknown,
        Overloaded,
        PerdureError,
        Secret,
        StaleIncarnation,
        StorageConflict,
        StorageLost,
        SupervisorUnreachable,
        UnknownRun,
        provide_secrets,
    )
    from perdure.policies import ChatRecovery, FiberResult, FiberRetry, Limits, Retries

__all__ = [
    "ActiveTurn",
    "AdmissionRefused",
    "Agent",
    "AgentAborted",
    "AgentToolEvents",
    "AgentToolFailure",
    "AgentUnreachable",
    "AsyncRuntime",
    "BadRequest",
    "ChatAgent",
    "ChatRecovery",
    "ChatRecoveryContext",
    "Client",
    "ConflictingRequest",
    "Detached",
    "FiberContext",
    "FiberRecovery",
    "FiberResult",
    "FiberRetry",
    "Handle",
    "Limits",
    "MilestoneInfo",
    "NoLongerServed",
    "Occurrence",
    "OutcomeUnknown",
    "Overloaded",
    "PerdureError",
    "RemoteError",
    "Retries",
    "RunContext",
    "RunHandle",
    "RunInfo",
    "RunResult",
    "Runtime",
    "Secret",
    "StaleIncarnation",
    "StorageConflict",
    "StorageLost",
    "SupervisorUnreachable",
    "ToolContext",
    "TurnResult",
    "UnknownRun",
    "agent_tool",
    "awaiting",
    "blocking",
    "client_tool",
    "exposed",
    "provide_secrets",
    "tell",
    "tool",
]

__getattr__, __dir__ = lazy_names(globals())
