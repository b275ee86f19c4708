"""Which chunks of a stream count as progress of their turn.

A chunk counts when it is *produced*, never when it is replayed, stored or read again. The counter belongs to one turn.

- A milestone always counts: a part begins, a call is complete, a call has its result.
- Content counts at most once in five seconds, and first after a restart: many deltas are not much work.
"""

from __future__ import annotations

CONTENT_WINDOW_MS = 5_000

_MILESTONES = frozenset(
    {
        "text-start",
        "reasoning-start",
        "tool-input-available",
        "tool-output-available",
        "tool-output-error",
        "tool-output-denied",
    }
)
_CONTENT = frozenset({"text-delta", "reasoning-delta", "tool-input-delta"})


def earns_credit(chunk_type: object, at_ms: float, credited_at_ms: float | None) -> bool:
    """Whether this chunk counts. `credited_at_ms` is when content last did, in this life."""
    if chunk_type in _MILESTONES:
        return True
    return chunk_type in _CONTENT and (credited_at_ms is None or at_ms - credited_at_ms >= CONTENT_WINDOW_MS)
