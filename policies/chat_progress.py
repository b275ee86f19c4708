"""Which chunks of a stream count as progress of the turn that produces them.

Progress is credited when a chunk is *produced*: never on replay, on storing, or on a reader's reconnect, so that neither a compacted
transcript nor a storm of reconnects can feign or lose it. The counter belongs to one turn (weakness W-26): another turn's chunks credit
and charge nothing here.

- A milestone counts at once: a part begins, a call is complete, a call has its result.
- Content counts at most once in five seconds: a model that writes is alive, but a loop of deltas is not much work.
- The first content after a restart counts, because the instant of the last credit is not carried over a death.
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


def is_milestone(chunk_type: object) -> bool:
    """Whether a chunk of this type is progress by itself."""
    return isinstance(chunk_type, str) and chunk_type in _MILESTONES


def is_content(chunk_type: object) -> bool:
    """Whether a chunk of this type is progress now and then."""
    return isinstance(chunk_type, str) and chunk_type in _CONTENT


def earns_credit(chunk_type: object, at_ms: float, credited_at_ms: float | None) -> bool:
    """Whether this chunk raises the turn's counter by one. `credited_at_ms` is when content last did, in this life."""
    if is_milestone(chunk_type):
        return True
    return is_content(chunk_type) and (credited_at_ms is None or at_ms - credited_at_ms >= CONTENT_WINDOW_MS)
