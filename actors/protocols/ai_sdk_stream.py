"""Follows one turn for one client of the AI SDK, through every death behind the gateway, as batches of chunks.

A follower asks for the events from a number on, and asks again when its client has taken what came. So a slow client costs no memory. What
is durable when it comes is translated at once, so that nobody is told what was withdrawn by then.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Final

from perdure.actors.chat.stream import merged
from perdure.actors.gateway.backend import asked
from perdure.actors.gateway.problems import told as words_of
from perdure.actors.protocols.ai_sdk_chunks import Chunk, Translator
from perdure.ledger import BadRequest, PerdureError
from perdure.policies import TURN_ENDED, Event, TurnStatus

FORGOTTEN: Final = "The conversation was cleared, and this answer with it."
CANNOT_FOLLOW: Final = "The answer cannot be followed at the moment, and goes on: {}"


async def chunks_of(
    chat: Any, request_id: str, translator: Translator, opening: dict[str, Any] | None = None
) -> AsyncGenerator[list[Chunk], None]:
    """The chunks of a turn, from its start to its end, or until it waits for a person. What fails is told as the last chunk.

    Args:
        chat: the handle of the chat agent.
        translator: makes the chunks.
        opening: the first page of the turn's events, if it is known already.
    """
    try:
        async for page, events in _pages(chat, request_id, opening):
            chunks = translator.chunks(events)
            if not translator.is_over and page["status"] == TurnStatus.PARKED:
                chunks += translator.paused()
            if not translator.is_over and page["status"] in TURN_ENDED and page["next"] >= page["next_event"]:
                chunks += translator.failed(page["error"])  # its stream has no end of its own
            if chunks:
                yield chunks
            if translator.is_over:
                return
    except PerdureError as problem:
        is_gone = isinstance(problem, BadRequest) and problem.field == "request_id"
        yield translator.failed(FORGOTTEN if is_gone else CANNOT_FOLLOW.format(words_of(problem)["message"]))


async def _pages(
    chat: Any, request_id: str, opening: dict[str, Any] | None
) -> AsyncGenerator[tuple[dict[str, Any], list[Event]], None]:
    """The pages of the events of a turn. The first has all that is durable by now."""
    first, gathered = 0, list[Event]()
    while True:
        asking = chat._perdure_follow_turn  # noqa: SLF001 - the way of all followers
        page: dict[str, Any] = await asked(asking(request_id, first)) if opening is None else opening
        opening = None
        gathered += page["events"]
        first = page["next"]
        if first >= page["next_event"] or not page["events"]:
            yield page, merged(gathered)
            gathered = []
