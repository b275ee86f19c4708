"""Follows one turn for one client of the AI SDK, through every death behind the gateway, as batches of chunks.

A follower asks for the events from a number on, and asks again when its client has taken what came. So a slow client costs no memory. What
is durable when it comes is translated at once, so that nobody is told what was withdrawn by then.

Each page costs its host a commit, and both processes a part of a call. So the more answers one gateway follows, the more rarely each
asks, and its pages are longer: never more than 2,500 pages a second in all, and one answer alone does not wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from typing import Final

from perdure.actors.ai_sdk.children import Children
from perdure.actors.ai_sdk.chunks import ENDS, Chunk, Translator, made
from perdure.actors.ai_sdk.client_turns import Following
from perdure.actors.chat.event_lists import merged
from perdure.actors.chat.turn import TurnPage
from perdure.actors.gateway.backend import asked
from perdure.actors.gateway.problems import told as words_of
from perdure.actors.life.handle import Handle
from perdure.actors.tasks import awaited
from perdure.ledger import BadRequest, PerdureError
from perdure.policies import TURN_ENDED, Event, TurnStatus

FORGOTTEN: Final = "The conversation was cleared, and this answer with it."
CANNOT_FOLLOW: Final = "The answer cannot be followed at the moment, and goes on: {}"


Pages = AsyncGenerator[tuple[TurnPage, list[Event]], None]

PAGE_S: Final = 0.0004
PAUSE_MOST_S: Final = 0.25


class PollPace:
    """How often the followers of one gateway ask."""

    def __init__(self) -> None:
        self._following = 0

    @contextmanager
    def followed(self) -> Iterator[None]:
        """An answer is followed within the block."""
        self._following += 1
        try:
            yield
        finally:
            self._following -= 1

    async def rest(self, asked_at_s: float) -> None:
        """Wait until it is time for the next page of an answer whose last one was asked for at this time of the loop."""
        until_s = asked_at_s + min(PAUSE_MOST_S, PAGE_S * (self._following - 1))
        left_s = until_s - asyncio.get_running_loop().time()
        if left_s > 0:
            await asyncio.sleep(left_s)


async def chunks_of(
    chat: Handle, following: Following, pace: PollPace, children: Children
) -> AsyncGenerator[list[Chunk], None]:
    """The chunks of a turn, from its start to its end, or until it waits for a person. What fails is told as the last chunk. There may be
    no chunk in a batch.

    Args:
        chat: the handle of the chat agent.
        following: the turn, and what makes its chunks.
        pace: of the gateway.
        children: the runs of its calls.
    """
    with pace.followed():
        async with (
            aclosing(_pages(chat, following, pace)) as pages,
            aclosing(_with_children(pages, following.translator, children)) as batches,
        ):
            async for batch in batches:
                yield batch


async def _with_children(pages: Pages, translator: Translator, children: Children) -> AsyncGenerator[list[Chunk], None]:
    """What the turn says, and what its children do meanwhile."""
    upcoming, news = awaited(_next_chunks(pages, translator)), awaited(children.news())
    try:
        while not translator.is_over:
            await asyncio.wait({upcoming, news}, return_when=asyncio.FIRST_COMPLETED)
            if upcoming.done():
                yield upcoming.result()
                await children.follow(translator)
                upcoming = awaited(_next_chunks(pages, translator))
            else:
                yield _of_children(children, translator)
                news = awaited(children.news())
    finally:
        for each in (upcoming, news):
            each.cancel()
        await asyncio.gather(upcoming, news, return_exceptions=True)
        await children.close()


async def _next_chunks(pages: Pages, translator: Translator) -> list[Chunk]:
    try:
        return _told(*await anext(pages), translator)
    except PerdureError as problem:
        is_gone = isinstance(problem, BadRequest) and problem.field == "request_id"
        return translator.failed(FORGOTTEN if is_gone else CANNOT_FOLLOW.format(words_of(problem)["message"]))


def _of_children(children: Children, translator: Translator) -> list[Chunk]:
    try:
        return children.chunks(translator)
    except PerdureError as problem:
        return translator.failed(CANNOT_FOLLOW.format(words_of(problem)["message"]))


def _told(page: TurnPage, events: list[Event], translator: Translator) -> list[Chunk]:
    chunks = translator.chunks(events)
    if not translator.is_over and page["status"] == TurnStatus.PARKED:
        chunks += translator.paused()
    if not translator.is_over and page["status"] in TURN_ENDED and page["next"] >= page["next_event"]:
        chunks += translator.failed(page["error"])  # its stream has no end of its own
    return chunks


async def _pages(chat: Handle, following: Following, pace: PollPace) -> Pages:
    """The pages of the events of a turn. The first has all that is durable by now."""
    request_id, opening, retells = following.request_id, following.opening, following.retells
    first, gathered = 0, list[Event]()
    loop = asyncio.get_running_loop()
    while True:
        asked_at_s = loop.time()
        asking = chat._perdure_follow_turn  # noqa: SLF001 - the way of all followers
        page: TurnPage = await asked(asking(request_id, first)) if opening is None else opening
        opening = None
        gathered += page["events"]
        first = page["next"]
        if first >= page["next_event"] or not page["events"]:
            yield page, settled(merged(gathered)) if retells else merged(gathered)
            gathered, retells = [], False
            await pace.rest(asked_at_s)


def settled(events: list[Event]) -> list[Event]:
    """Events of the past, in which a call that has its outcome is not told as one to be made. The client shows it all the same, and does
    not do it again: `tool-input-available` is what it hears by `onToolCall`."""
    over = {each["toolCallId"] for each in events if each["type"] in ENDS.values() and not each.get("preliminary")}
    found: list[Event] = []
    for event in events:
        if event.get("toolCallId") not in over or event.get("providerExecuted"):
            found.append(event)
        elif event["type"] == "tool-input-available":
            found += made(event)
        elif event["type"] not in ("tool-input-start", "tool-input-delta"):
            found.append(event)
    return found
