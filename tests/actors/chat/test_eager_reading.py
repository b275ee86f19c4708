"""Of what is there already several events are read in one turn of the loop, and what is not there is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from perdure.actors.chat.answer_stream import IN_A_ROW_MAX, EagerReading
from perdure.actors.sim_world.virtual_loop import VirtualLoop


async def polite(count: int, closed: list[str], wait_s: float | None = None) -> AsyncIterator[int]:
    """Lets others go first before each number, or waits."""
    try:
        for number in range(count):
            await asyncio.sleep(0 if wait_s is None else wait_s)
            yield number
    finally:
        closed.append("closed")


async def all_of(numbers: AsyncIterator[int]) -> list[int]:
    reading, read = EagerReading(numbers), list[int]()
    while (number := await reading.next()) is not None:
        read.append(number)
    return read


def run(story: object) -> None:
    loop = VirtualLoop()
    loop.run_until_complete(story)  # type: ignore[arg-type]
    loop.close()


def test_others_go_first_now_and_then_and_not_before_each_event() -> None:
    async def story() -> None:
        count, closed, turns = 20 * IN_A_ROW_MAX, list[str](), 0
        reader = asyncio.create_task(all_of(polite(count, closed)))
        while not reader.done():
            await asyncio.sleep(0)
            turns += 1
        assert reader.result() == list(range(count))
        assert closed == ["closed"]
        assert 20 <= turns <= 23

    run(story())


def test_an_event_that_is_not_there_is_waited_for() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        assert await all_of(polite(3, [], wait_s=10)) == [0, 1, 2]
        assert loop.time() - begun_s == pytest.approx(30)

    run(story())


def test_a_reader_that_is_cancelled_stops_the_iterator_where_it_stands() -> None:
    async def story() -> None:
        closed: list[str] = []
        reader = asyncio.create_task(all_of(polite(3, closed, wait_s=10)))
        await asyncio.sleep(15)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert closed == ["closed"]

    run(story())


def test_what_the_iterator_raises_is_raised_to_its_reader() -> None:
    async def broken() -> AsyncIterator[int]:
        yield 1
        await asyncio.sleep(0)
        raise ConnectionError("gone")

    async def story() -> None:
        reading = EagerReading(broken())
        assert await reading.next() == 1
        with pytest.raises(ConnectionError, match="gone"):
            await reading.next()
        assert await reading.next() is None

    run(story())


def test_an_iterator_that_outlives_a_cancelled_wait_goes_on() -> None:
    """A limit is told by a cancellation, which an iterator may answer with an event."""

    async def stubborn() -> AsyncIterator[str]:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            yield "late"
        await asyncio.sleep(1)
        yield "next"

    async def story() -> None:
        reading = EagerReading(stubborn())

        async def read() -> str | None:
            return await reading.next()

        task = asyncio.create_task(read())
        await asyncio.sleep(1)
        task.cancel()
        assert await task == "late"
        assert await read() == "next"

    run(story())
