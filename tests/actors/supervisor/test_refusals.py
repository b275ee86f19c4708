"""A ledger that cannot go on, its disk being full, say: whoever waits for an answer is told so instead of waiting for ever."""

from __future__ import annotations

import asyncio

import pytest

from perdure.actors import Client, Transport, World
from perdure.ledger import LedgerUnwritable
from perdure.scenarios.testing.laboratory import Laboratory
from tests.actors.cast import Sleeper


class Failing:
    """A transport whose supervisor can be told to have no space left."""

    def __init__(self, transport: Transport) -> None:
        self._transport, self.full = transport, False

    async def exchange(self, frame: bytes) -> bytes:
        if not self.full:
            return await self._transport.exchange(frame)
        raise LedgerUnwritable("/data/ledger", "the disk is full", "free some space and start again")


async def followed_to_its_end(client: Client, run_id: str) -> int:
    return len([frame async for frame in client.follow(run_id)])


def test_when_the_disk_is_full_whoever_waits_is_told_and_whoever_asks_later_too_until_it_is_freed() -> None:
    async def story(world: World, transport: Transport) -> None:
        failing = Failing(transport)
        client = Client(world, failing, laboratory.limits)
        serving = asyncio.get_running_loop().create_task(client.serve())
        waiting = asyncio.ensure_future(client.run(Sleeper, 60_000, run_id="long"))
        followed = asyncio.ensure_future(followed_to_its_end(client, "long"))
        assert (await client.ask("ps", 1))["epoch"] == 1
        failing.full = True
        with pytest.raises(LedgerUnwritable, match="free some space"):
            await client.ask("ps", 1)
        with pytest.raises(LedgerUnwritable):
            await waiting
        for later in (client.run(Sleeper, 1), client.start(Sleeper, 1), client.ask("audit")):
            with pytest.raises(LedgerUnwritable):
                await later
        with pytest.raises(LedgerUnwritable):
            await followed
        for number in range(50):  # whatever is asked meanwhile is refused within moments, and is not done later
            with pytest.raises(LedgerUnwritable):
                async with asyncio.timeout(3):
                    await client.start(Sleeper, 1, run_id=f"refused-{number}")
        failing.full = False
        assert (await client.run(Sleeper, 60_000, run_id="long")).status == "completed"
        assert (await client.run(Sleeper, 1)).status == "completed"
        assert [frame async for frame in client.follow("long")]
        assert [run["run_id"] for run in await client.ask("list", None, None, None, 100)].count("refused-0") == 0
        assert not serving.done()
        serving.cancel()

    with Laboratory(1) as laboratory:
        laboratory.simulation.run(story)
