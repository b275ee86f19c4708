"""What a chat agent's author is told when a turn of it is recovered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ChatRecoveryContext:
    """What `on_chat_recovery` is told (seed 000, and the spec's additions).

    Attributes:
        incident_id: the same for all interruptions of one turn.
        attempt: 1, 2, … of this incident; `max_attempts` is the limit.
        recovery_kind: `retry` (nothing was said yet) or `continue`.
        stream_id: the stream of the turn; empty if nothing was streamed.
        request_id: the turn; also `recovery_root_request_id`, because a recovery is no turn of its own.
        partial_text: what was said before the interruption; `partial_parts` with everything else.
        recovery_data: what `stash` remembered last, or None.
        messages: the conversation, a copy.
        last_body: the metadata that the turn was asked with.
        last_client_tools: the tools that its client brought.
        created_at: when the turn began, in milliseconds since the epoch.
        cause: `process_lost`, `stall`, `out_of_memory`.
    """

    incident_id: str
    attempt: int
    max_attempts: int
    recovery_kind: str
    stream_id: str
    request_id: str
    recovery_root_request_id: str
    partial_text: str
    partial_parts: list[dict[str, Any]]
    recovery_data: Any
    messages: list[dict[str, Any]]
    last_body: Any
    last_client_tools: Any
    created_at: int
    cause: str
