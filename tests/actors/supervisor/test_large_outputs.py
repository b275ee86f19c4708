"""What the supervisor does with outputs of many bytes."""

from __future__ import annotations

import asyncio

from perdure.actors import Agent
from perdure.ledger.store.memory_store import MemoryStore
from tests.actors.one_process import SMALL, OneProcess


class Followed(MemoryStore):
    """Counts how often it was let catch up."""

    times = 0

    def follow(self) -> None:
        self.times += 1


class Page(Agent):
    """Returns so many characters."""

    async def run(self, input: int) -> str:
        return "x" * input


async def test_the_archive_follows_few_facts_when_their_payloads_have_many_bytes() -> None:
    store = Followed()
    one = OneProcess(SMALL, store)

    async def story(one: OneProcess) -> None:
        await one.client.run(Page, 600)
        assert not store.times
        await asyncio.gather(*(one.client.run(Page, 3_000_000) for _ in range(6)))
        await one.until(lambda: store.times > 0)

    await one.play(story)
