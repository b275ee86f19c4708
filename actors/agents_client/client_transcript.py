"""The transcript of a conversation, whole."""

from __future__ import annotations

from typing import Final

from perdure.actors.chat.feed_follower import FeedCaller
from perdure.ledger import TooLarge
from perdure.policies import Message

PAGE: Final = 200


async def transcript(caller: FeedCaller) -> list[Message]:
    """All messages of a conversation, in pages of which none is too large for an answer."""
    pages: list[list[Message]] = []
    before, most = None, PAGE
    while True:
        try:
            page = await caller.call("get_messages", most, before)
        except TooLarge:
            if most == 1:
                raise
            most //= 2
            continue
        pages.append(page)
        if len(page) < most:
            return [message for each in reversed(pages) for message in each]
        before = page[0]["id"]
