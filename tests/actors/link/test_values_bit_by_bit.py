"""An exposed generator is followed over a handle: it goes on only when it is asked, and is closed when nobody wants more."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, ClassVar

import anyio
import pytest
from pydantic import BaseModel

from perdure.actors import Agent, awaiting, blocking, exposed, tell
from perdure.actors.life.call_streams import PAGE_BYTES
from perdure.actors.link.wire import RemoteError
from perdure.ledger import BadRequest, OutcomeUnknown, TooLarge
from tests.actors import one_process
from tests.actors.one_process import OneProcess
from tests.kit import Stage, address, played


class Point(BaseModel):
    x: int


class Source(Agent):
    closed: ClassVar[list[str]] = []
    given: ClassVar[list[int]] = []

    @exposed
    async def numbers(self, count: int, fails: bool = False) -> AsyncGenerator[int | None, None]:
        try:
            for number in range(count):
                self.given.append(number)
                yield number or None
            if fails:
                raise ValueError("no more numbers")
        finally:
            self.closed.append("numbers")

    @exposed
    async def points(self, start: Point) -> AsyncIterator[Point]:
        yield start
        yield Point(x=start.x + 1)

    @exposed
    def letters(self, text: str) -> Generator[bytes, None, None]:
        for letter in text:
            yield letter.encode()

    @exposed
    async def pages(self, sizes: list[int]) -> AsyncIterator[str]:
        for size in sizes:
            yield "x" * size


who = ContextVar("who", default="nobody")


class Scoped(Agent):
    """Its generators enter before one value what they leave after another."""

    left: ClassVar[list[str]] = []
    gate: ClassVar[threading.Event] = threading.Event()

    @exposed
    async def in_time(self, wait_s: float) -> AsyncIterator[int]:
        async with asyncio.timeout(0.5):
            yield 1
            await asyncio.sleep(wait_s)
            yield 2
            yield 3

    @exposed
    async def in_a_scope(self) -> AsyncIterator[int]:
        with anyio.move_on_after(0.5):
            yield 1
            await asyncio.sleep(0.1)
            yield 2
            yield 3
        self.left.append("the scope")
        yield 4

    @exposed
    async def by_whom(self) -> AsyncIterator[str]:
        token = who.set("alice")
        yield who.get()
        yield who.get()
        who.reset(token)
        yield who.get()

    @exposed
    def by_whom_in_sync_code(self) -> Generator[str, None, None]:
        token = who.set("alice")
        yield who.get()
        who.reset(token)
        yield who.get()

    @exposed
    async def in_a_group(self) -> AsyncIterator[int]:
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.sleep_forever)
                for number in range(1000):
                    yield number
        finally:
            self.left.append("the group")

    @exposed
    async def holds_out(self) -> AsyncIterator[int]:
        try:
            yield 1
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(1000)
            yield 2
        finally:
            self.left.append("it held out")

    @exposed
    def stuck(self) -> Generator[int, None, None]:
        who.set("alice")
        yield 1
        self.gate.wait()
        self.left.append(who.get())

    @exposed
    async def gives_itself_up(self) -> AsyncIterator[int]:
        yield 1
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)


class Reader(Agent):
    @exposed
    async def read(self) -> Any:
        source = self.sub_agent(Source, "below")
        letters = [each async for each in source.letters("ab")]
        assert letters == [each async for each in awaiting(source.letters("ab"))]
        return [[each async for each in source.numbers(3)], letters]

    @exposed
    def read_in_sync_code(self) -> Any:
        source = self.sub_agent(Source, "below")
        first: list[Any] = []
        for each in blocking(source.numbers(1000)):
            first.append(each)
            if each == 2:
                break
        return [first, list(source.letters("ab"))]


@pytest.fixture(autouse=True)
def _nothing_given() -> None:
    Source.closed.clear()
    Source.given.clear()
    Scoped.left.clear()


async def test_values_come_as_they_were_given(stage: Stage) -> None:
    source: Any = stage.client.agent(Source, "s")
    assert [each async for each in source.numbers(3)] == [None, 1, 2]
    assert [each async for each in source.points(Point(x=1))] == [Point(x=1), Point(x=2)]
    assert [each async for each in source.letters("ab")] == [b"a", b"b"]
    assert [each async for each in source.numbers(200)][-1] == 199
    assert [each async for each in source.numbers(0)] == []


async def test_what_a_generator_raises_comes_after_its_values(stage: Stage) -> None:
    source: Any = stage.client.agent(Source, "s")
    heard: list[Any] = []
    with pytest.raises(RemoteError, match="no more numbers"):
        heard.extend([heard.append(each) async for each in source.numbers(2, fails=True)])
    assert heard == [None, 1]


async def test_whoever_follows_a_generator_whose_host_dies_is_told_its_name(stage: Stage) -> None:
    source: Any = stage.client.agent(Source, "s")
    values = source.numbers(10_000)
    assert await anext(values) is None
    stage.kill_host_of(address(Source, "s"))
    with pytest.raises(OutcomeUnknown, match=r"may have died during numbers\(\)"):
        async for _ in values:
            pass


async def test_values_that_together_are_too_large_for_an_answer_come_in_several(stage: Stage) -> None:
    source: Any = stage.client.agent(Source, "s")
    most, heard = stage.client.limits.output_bytes_max, list[int]()
    sizes = [most // 3] * 10 + [most - PAGE_BYTES - 100] * 2 + [1]
    assert [len(each) async for each in source.pages(sizes)] == sizes
    with pytest.raises(TooLarge, match="yield"):
        heard.extend([heard.append(len(each)) or 0 async for each in source.pages([1, 2, most])])
    assert heard == [1, 2], "those before it have come"


async def test_a_generator_is_closed_when_nobody_wants_more(stage: Stage) -> None:
    source: Any = stage.client.agent(Source, "s")
    values = source.numbers(10_000)
    assert await anext(values) is None
    await values.aclose()
    await stage.until(lambda: bool(Source.closed))
    assert len(Source.given) < 1000, "the generator ran ahead of its reader"


async def test_arguments_are_checked_at_once_and_what_is_followed_cannot_be_told(stage: Stage) -> None:
    source: Any = stage.client.agent(Source, "s")
    with pytest.raises(BadRequest, match="count"):
        source.numbers("many")
    with pytest.raises(BadRequest, match=r"numbers gives its values bit by bit.*cannot be told"):
        await tell(source.numbers, 3)
    assert Source.given == []


@played(one_process.play)
async def test_agents_follow_generators_of_others(world: OneProcess, /) -> None:
    reader: Any = world.client.agent(Reader, "r")
    assert await reader.read() == [[None, 1, 2], [b"a", b"b"]]
    assert await reader.read_in_sync_code() == [[None, 1, 2], [b"a", b"b"]]
    async with asyncio.timeout(10):
        while Source.closed != ["numbers"] * 2:
            await asyncio.sleep(0.01)


async def test_a_timeout_around_values_ends_the_generator_in_time(stage: Stage) -> None:
    scoped: Any = stage.client.agent(Scoped, "s")
    heard: list[int] = []
    began_s = asyncio.get_running_loop().time()
    with pytest.raises(RemoteError, match="TimeoutError"):
        heard.extend([heard.append(each) or 0 async for each in scoped.in_time(300)])
    assert heard == [1]
    assert asyncio.get_running_loop().time() - began_s < 100


async def test_a_timeout_that_is_over_between_two_values_is_raised_at_the_next_one(stage: Stage) -> None:
    scoped: Any = stage.client.agent(Scoped, "s")
    values = scoped.in_time(0.1)
    assert await anext(values) == 1
    await asyncio.sleep(5)
    heard: list[int] = []
    with pytest.raises(RemoteError, match="TimeoutError"):
        heard.extend([heard.append(each) or 0 async for each in values])
    assert heard == [2], "what came in time"


async def test_a_generator_whose_time_is_over_between_two_values_is_told_before_it_is_asked(stage: Stage) -> None:
    values = stage.client.agent(Scoped, "s").in_a_scope()
    assert await anext(values) == 1
    await stage.until(lambda: Scoped.left == ["the scope"])
    assert [each async for each in values] == [2, 4]


async def test_a_context_variable_is_what_the_generator_has_set(stage: Stage) -> None:
    scoped: Any = stage.client.agent(Scoped, "s")
    assert [each async for each in scoped.by_whom()] == ["alice", "alice", "nobody"]
    assert [each async for each in scoped.by_whom_in_sync_code()] == ["alice", "nobody"]


async def test_a_task_group_is_left_when_nobody_has_asked_for_long_and_the_agent_goes_on(stage: Stage) -> None:
    scoped: Any = stage.client.agent(Scoped, "s")
    values = scoped.in_a_group()
    assert await anext(values) == 0
    await stage.until(lambda: bool(Scoped.left))
    assert Scoped.left == ["the group"]
    with pytest.raises(BadRequest, match="nobody asked for a while"):
        assert [each async for each in values] == []


@played(one_process.play)
async def test_a_task_group_is_left_when_nobody_wants_more(world: OneProcess, /) -> None:
    values = world.client.agent(Scoped, "s").in_a_group()
    assert await anext(values) == 0
    await values.aclose()
    assert Scoped.left == ["the group"]


async def test_a_generator_that_is_at_work_is_cancelled_and_closed_when_nobody_wants_more(stage: Stage) -> None:
    values = stage.client.agent(Scoped, "s").holds_out()
    assert await anext(values) == 1
    began_s = asyncio.get_running_loop().time()
    await values.aclose()
    assert Scoped.left == ["it held out"]
    assert asyncio.get_running_loop().time() - began_s < 100


@played(one_process.play)
async def test_a_sync_generator_that_is_stuck_is_left_to_its_thread(world: OneProcess, /) -> None:
    values = world.client.agent(Scoped, "s").stuck()
    assert await anext(values) == 1
    await values.aclose()
    assert Scoped.left == []
    Scoped.gate.set()
    await world.until(lambda: Scoped.left == ["alice"])


async def test_a_generator_that_cancels_its_own_task_is_over(stage: Stage) -> None:
    scoped: Any = stage.client.agent(Scoped, "s")
    with pytest.raises(RemoteError, match="cancelled"):
        assert [each async for each in scoped.gives_itself_up()] == []
    assert [each async for each in scoped.by_whom()] == ["alice", "alice", "nobody"], "the agent goes on"
