"""A story of trips for the swarm and the explorer: whatever dies, what is booked is cancelled if and only if the trip does not complete."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, ClassVar

from perdure.actors import Agent, Client, RunContext, RunResult
from perdure.ledger import HostUnavailable
from perdure.policies import Retries

TRIPS = [("arrive", 0), ("fail", 0), ("linger", 2.4), ("linger", 1.6), ("fail", 1.2), ("arrive", 0.9), ("linger", 0.3)]
"""What each trip comes to, and after how many seconds somebody cancels it, if at all."""


class Desk:
    """What is outside: it takes bookings and their cancellations under keys, each once, and refuses what was cancelled before it came."""

    diary: ClassVar[list[tuple[str, str]]] = []
    flaky: ClassVar[set[str]] = set()

    @classmethod
    def begin_anew(cls) -> None:
        """Another world begins."""
        cls.diary.clear()
        cls.flaky.clear()

    @classmethod
    def take(cls, word: str, key: str) -> None:
        if ("cancelled", key) not in cls.diary and (word, key) not in cls.diary:
            cls.diary.append((word, key))
        elif word == "booked" and ("cancelled", key) in cls.diary:
            raise OSError(f"{key} was cancelled")

    @classmethod
    def fails_first(cls, what: str) -> None:
        if what not in cls.flaky:
            cls.flaky.add(what)
            raise OSError(f"{what}: not this time")


class Traveller(Agent):
    async def run(self, input: str, run: RunContext) -> str:
        tries = Retries(attempts_max=10, first_ms=50, most_ms=500)
        for item in "abc":
            key = f"{run.run_id}/{item}"
            probe = partial(self.look, key) if item == "b" else None
            await run.step(item, partial(self.book, key), retry=tries, undo=partial(self.cancel, key), probe=probe)
        await asyncio.sleep(1 if input != "linger" else 3_600)
        if input == "fail":
            raise ValueError("no way")
        return input

    async def book(self, key: str) -> str:
        Desk.fails_first(f"booking {key}")
        await asyncio.sleep(0.1)
        Desk.take("booked", key)
        await asyncio.sleep(0.1)
        return key

    async def look(self, key: str) -> Any:
        Desk.fails_first(f"looking for {key}")
        return key if ("booked", key) in Desk.diary else False

    async def cancel(self, key: str, value: str | None) -> None:
        assert value in (key, None)
        Desk.fails_first(f"cancelling {key}")
        await asyncio.sleep(0.1)
        Desk.take("cancelled", key)
        await asyncio.sleep(0.1)


async def trip_story(client: Client) -> None:
    """Ask for all trips, cancel some, and look what stands outside when they are over."""

    async def travelled(number: int, way: str) -> RunResult[str]:
        while True:
            try:
                return await client.run(Traveller, way, run_id=f"trip {number}")
            except HostUnavailable:
                await asyncio.sleep(1)

    async def trip(number: int, way: str, cancelled_s: float) -> None:
        asked = asyncio.ensure_future(travelled(number, way))
        if cancelled_s:
            await asyncio.sleep(cancelled_s)
            await client.ask("cancel", f"trip {number}", None, "enough")
        ended = await asked
        own = {"fail": "error", "arrive": "completed"}.get(way, "aborted")
        assert ended.status in (own, "aborted" if cancelled_s else own)
        booked = [key for word, key in Desk.diary if word == "booked" and key.startswith(f"trip {number}/")]
        undone = [key for word, key in Desk.diary if word == "cancelled" and key in booked]
        if ended.status == "completed":
            assert [key[-1] for key in booked] == ["a", "b", "c"], Desk.diary
            assert undone == [], Desk.diary
        else:
            assert undone == booked[::-1], Desk.diary

    await asyncio.gather(*(trip(at, way, cancelled_s) for at, (way, cancelled_s) in enumerate(TRIPS)))
