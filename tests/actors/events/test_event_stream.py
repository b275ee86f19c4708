"""The events of a run, read from another thread than the one that hears them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from perdure.actors.event_stream import EventSource as Events
from perdure.actors.event_stream import EventStream
from perdure.ledger import UnknownRun


class Source:
    """A loop on a thread of its own, on which a run says `count` things and then perhaps goes on for ever."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.left: list[int] = []
        self.is_open = True

    async def follow(self, count: int, *, ends: bool = True) -> AsyncGenerator[dict[str, int], None]:
        assert threading.current_thread() is self.thread
        number = 0
        try:
            for number in range(count):
                yield {"sequence": number}
            if not ends:
                await asyncio.Event().wait()
        finally:
            assert threading.current_thread() is self.thread
            self.left.append(number)

    def submit(self, job: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(job, self.loop)

    def stream(self, count: int, *, ends: bool = True) -> EventStream[dict[str, int]]:
        return EventStream(lambda: Events(self.follow(count, ends=ends), self.submit, lambda: self.is_open))


@pytest.fixture
def source() -> Iterator[Source]:
    source = Source()
    source.thread.start()
    yield source
    source.loop.call_soon_threadsafe(source.loop.stop)
    source.thread.join()
    source.loop.run_until_complete(source.loop.shutdown_asyncgens())
    source.loop.close()


def test_a_loop_reads_to_the_end_and_reads_all_of_it_again(source: Source) -> None:
    stream = source.stream(3)
    assert [frame["sequence"] for frame in stream] == [0, 1, 2]
    assert [frame["sequence"] for frame in stream] == [0, 1, 2]
    assert source.left == [2, 2]


def test_a_loop_that_is_left_early_leaves_the_run(source: Source) -> None:
    for frame in source.stream(3, ends=False):
        if frame["sequence"] == 1:
            break
    assert source.left == [1]


def test_what_next_has_begun_a_loop_goes_on_with_and_it_is_left_with_its_stream(source: Source) -> None:
    stream = source.stream(3)
    assert next(stream) == {"sequence": 0}
    assert [frame["sequence"] for frame in stream] == [1, 2]
    assert next(stream, None) is None
    assert source.left == [2]
    assert next(source.stream(3, ends=False)) == {"sequence": 0}
    assert source.left == [2, 0], "nobody could read on"


def test_async_code_may_take_one_after_the_other(source: Source) -> None:
    async def read() -> list[int]:
        stream = source.stream(3)
        assert await anext(stream) == {"sequence": 0}
        return [frame["sequence"] async for frame in stream]

    async def take_one() -> None:
        assert await anext(source.stream(3, ends=False)) == {"sequence": 0}

    assert asyncio.run(read()) == [1, 2]
    asyncio.run(take_one())
    assert source.left == [2, 0]


def test_async_code_reads_in_the_same_way(source: Source) -> None:
    async def read() -> list[int]:
        return [frame["sequence"] async for frame in source.stream(3)]

    assert asyncio.run(read()) == [0, 1, 2]
    assert source.left == [2]


def test_other_tasks_go_on_while_async_code_waits_and_it_can_be_cancelled(source: Source) -> None:
    heard: list[int] = []

    async def read() -> None:
        async for frame in source.stream(2, ends=False):
            heard.append(frame["sequence"])

    async def both() -> None:
        reading = asyncio.create_task(read())
        while len(heard) < 2:
            await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    asyncio.run(both())
    assert source.left == [1]


def test_what_the_run_refuses_is_raised_to_the_reader(source: Source) -> None:
    async def refused() -> AsyncGenerator[dict[str, int], None]:
        raise UnknownRun("run_id", "no run 'x' is known")
        yield {}

    stream = EventStream(lambda: Events(refused(), source.submit, lambda: True))
    with pytest.raises(UnknownRun):
        list(stream)


def test_a_reader_may_leave_when_everything_is_closed_already(source: Source) -> None:
    reading = iter(source.stream(2, ends=False))
    assert next(reading) == {"sequence": 0}
    source.is_open = False
    reading.close()  # type: ignore[attr-defined]
