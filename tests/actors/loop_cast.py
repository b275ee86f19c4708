"""Agents that do whatever they are told, in every kind of code: for the stories about loops and threads of authors' own."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from enum import StrEnum
from inspect import isawaitable
from itertools import islice
from typing import Any, ClassVar

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, FunctionModel

from perdure.actors import (
    Agent,
    Detached,
    FiberContext,
    Messenger,
    MessengerAgent,
    RunContext,
    RunInfo,
    RunResult,
    exposed,
    tell,
)
from perdure.actors.messenger.messenger_events import Kind
from perdure.ledger import AwaitedInsideHandler
from tests.actors.messenger.paper import Paper
from tests.actors.sync_cast import Endless, Leaf

Verb = Callable[[Any, Any], Any]


class Place(StrEnum):
    """The kind of code that asks."""

    LOOP = "async code"
    THREAD = "sync code"
    LOOP_IN_SYNC = "a loop of its own in sync code"
    THREAD_IN_SYNC = "a thread with a loop, of sync code"
    THREAD_IN_ASYNC = "a thread with a loop, of async code"
    POOL = "a pool of threads"


SYNC = (Place.THREAD, Place.LOOP_IN_SYNC, Place.THREAD_IN_SYNC, Place.POOL)


async def in_async(place: Place, verb: Verb, *given: Any) -> Any:
    """What a verb gives to async code."""
    if place is Place.THREAD_IN_ASYNC:
        return await asyncio.to_thread(asyncio.run, in_async(Place.LOOP, verb, *given))
    answer = verb(*given)  # type: ignore[call-arg]
    if hasattr(answer, "__aiter__"):
        values = []
        async for each in answer:
            values.append(each)
            if len(values) == getattr(verb, "most", None):
                break
        return values
    return await answer if isawaitable(answer) else answer


def in_sync(place: Place, verb: Verb, *given: Any) -> Any:
    """What a verb gives to sync code."""
    if place is Place.LOOP_IN_SYNC:
        return asyncio.run(in_async(Place.LOOP, verb, *given))
    if place is Place.THREAD_IN_SYNC:
        return on_a_thread(in_async(Place.LOOP, verb, *given))
    if place is Place.POOL:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(in_sync, Place.THREAD, verb, *given).result()
    answer = verb(*given)  # type: ignore[call-arg]
    if asyncio.iscoroutine(answer) or asyncio.isfuture(answer):
        raise AssertionError(f"sync code got {answer!r}, which only async code can use")
    return list(islice(answer, getattr(verb, "most", None))) if hasattr(answer, "__aiter__") else answer


def on_a_thread(job: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine gives on a thread with a loop of its own, for which this thread waits."""
    told = Future[Any]()

    def main() -> None:
        try:
            told.set_result(asyncio.run(job))
        except BaseException as problem:
            told.set_exception(problem)

    thread = threading.Thread(target=main)
    thread.start()
    thread.join()
    return told.result()


def shape(value: Any) -> str:
    """What stays the same of a value, whoever asked: names, ids and instants do not."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {shape(each)}' for key, each in sorted(value.items()))}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shape, value))}]"
    return str(value) if value is None or isinstance(value, bool) else type(value).__name__


class Doing:
    """Does what the test says, by its number."""

    verbs: ClassVar[list[Verb]] = []  # of this process, for the test

    @exposed
    async def do(self, place: str, number: int) -> str:
        return shape(await in_async(Place(place), self.verbs[number], self, None))

    @exposed
    def do_in_sync(self, place: str, number: int) -> str:
        return shape(in_sync(Place(place), self.verbs[number], self, None))

    async def body(self, fiber: FiberContext, given: list[Any]) -> None:
        place, number = given
        self.state["told"] = shape(await in_async(Place(place), self.verbs[number], self, fiber))  # type: ignore[attr-defined]

    def body_in_sync(self, fiber: FiberContext, given: list[Any]) -> None:
        place, number = given
        self.state["told"] = shape(in_sync(Place(place), self.verbs[number], self, fiber))  # type: ignore[attr-defined]

    @exposed
    def do_in_fiber(self, place: str, number: int) -> str:
        body = self.body_in_sync if Place(place) in SYNC else self.body
        ended: Any = self.start_fiber("f", body, [place, number], wait_for_completion=True)  # type: ignore[attr-defined]
        if ended.error is not None:
            return f"raised {ended.error}"
        return str(self.state["told"])  # type: ignore[attr-defined]

    begun: ClassVar[list[str]] = []  # of this process, for the test

    def until_cancelled(self, fiber: FiberContext) -> None:
        async def wait() -> None:
            self.begun.append("begun")
            assert await fiber.cancelled.wait()
            self.begun.append("cancelled")

        asyncio.run(wait())

    @exposed
    def begin_fiber(self) -> str:
        return str(self.start_fiber("u", self.until_cancelled, fiber_id="u").fiber_id)  # type: ignore[attr-defined]

    @exposed
    def end_fiber(self) -> bool:
        return bool(self.cancel_fiber("u"))  # type: ignore[attr-defined]

    def noted(self, given: Any = None, it: Any = None) -> None:
        """A callback."""


class Doer(Doing, Agent):
    """Does it, in its runs too."""

    stands_alone = True

    async def run(self, input: list[Any], run: RunContext) -> str:
        place, number = input
        return shape(await in_async(Place(place), self.verbs[number], self, run))


class SyncDoer(Doing, Agent):
    """The same in sync code."""

    stands_alone = True

    def run(self, input: list[Any], run: RunContext) -> str:
        place, number = input
        return shape(in_sync(Place(place), self.verbs[number], self, run))


async def _words(_messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[str]:
    yield "so it is"


class LoopTalker(Doing, MessengerAgent):
    """A chat behind a messenger that does it."""

    model = FunctionModel(stream_function=_words)

    @classmethod
    def messengers(cls) -> list[Messenger]:
        return [Messenger(id="paper", adapter=Paper(), respond_to=frozenset({Kind.DIRECT, Kind.MENTION}))]

    @exposed
    def counted(self, number: int) -> int:
        """What is asked over a handle."""
        self.state["n"] = self.state.get("n", 0) + number
        return int(self.state["n"])


class Branch(Agent):
    """Sync code that waits on a loop of its own for children that do so too."""

    def run(self, input: list[int]) -> int:
        async def work() -> int:
            asked = [(Branch, input[1:])] * input[0]
            first, others = await asyncio.gather(
                self.run_agent_tools(asked[:1]), on_thread_of_loop(lambda: self.run_agent_tools(asked[1:]))
            )
            return sum(1 + each.output for each in (*first, *others))

        return asyncio.run(work()) if input else 0


async def on_thread_of_loop(verb: Callable[[], Any]) -> Any:
    """What a verb gives on a thread with another loop."""
    return await asyncio.to_thread(on_a_thread, in_async(Place.LOOP, lambda *_: verb()))


class Waiter(Agent):
    """Waits on a loop of its own for a child that never ends."""

    heard: ClassVar[list[str]] = []  # of this process, for the test

    def run(self, input: str) -> str:
        async def wait() -> None:
            await self.run_agent_tool(Endless, run_id=input)

        async def work() -> None:
            if input == "late":
                await asyncio.wait_for(wait(), 0.2)
            waiting = asyncio.create_task(wait())
            done, _ = await asyncio.wait({waiting})
            self.heard += [type(each.exception()).__name__ for each in done]
            await wait()

        try:
            asyncio.run(work())
        except TimeoutError:
            return "given up"
        finally:
            self.heard.append("left")
        return "ended"


class Broken(Agent):
    """Fails."""

    async def run(self, input: Any) -> None:
        raise LookupError("no such thing")


class Keeper(Agent):
    """Its handlers and callbacks work on threads of their own."""

    @exposed
    def begin(self, how: str) -> None:
        self.run_agent_tool(Leaf, 1, detached=Detached(on_finish=f"on_{how}"))

    def on_sync(self, run: RunInfo, result: RunResult) -> None:
        on_a_thread(self._work())
        self._fail_once()

    async def on_async(self, run: RunInfo, result: RunResult) -> None:
        await asyncio.to_thread(on_a_thread, self._work())
        self._fail_once()

    def on_waiting(self, run: RunInfo, result: RunResult) -> None:
        async def wait() -> None:
            for ask in (self.run_agent_tool, lambda *asked: self.as_completed([asked])):
                try:
                    ask(Leaf, 2)
                except AwaitedInsideHandler as refusal:
                    self.state["refused"] = [*self.state.get("refused", []), refusal.field]

        on_a_thread(wait())

    async def _work(self) -> None:
        self.state["count"] = self.state.get("count", 0) + 1
        self.run_agent_tool(Leaf, self.state["count"], detached=True)
        self.queue(self.noted)
        await tell(self.sub_agent(Noter, "n").note)
        with self.transaction():
            self.sql("CREATE TABLE IF NOT EXISTS seen (n INT)")
            await asyncio.sleep(0)
            self.sql("INSERT INTO seen VALUES (1)")

    def _fail_once(self) -> None:
        self.tries[self.name] += 1
        if self.tries[self.name] == 1:
            raise ValueError("once")

    tries: ClassVar[Counter[str]] = Counter()  # of this process, for the test

    def noted(self, given: Any = None, it: Any = None) -> None:
        self.state["noted"] = self.state.get("noted", 0) + 1

    @exposed
    async def told(self) -> list[Any]:
        rows = self.sql("SELECT count(*) FROM seen") if "count" in self.state else [(0,)]
        return [self.state.get("count"), self.state.get("noted"), rows[0][0], self.state.get("refused")]


class Noter(Agent):
    """Counts what it is told."""

    @exposed
    def note(self) -> int:
        self.state["n"] = self.state.get("n", 0) + 1
        return int(self.state["n"])


class Stepping(Agent):
    """Steps, and a fiber, on a loop of its own."""

    def run(self, input: str, run: RunContext) -> list[Any]:
        async def work() -> list[Any]:
            lock = asyncio.Lock()  # of this loop
            await lock.acquire()

            async def job() -> str:
                async with lock:
                    return "done"

            asyncio.get_running_loop().call_later(0.05, lock.release)
            first = await asyncio.gather(run.step("a", job), self.run_fiber("f", lambda fiber: job()))
            return [*first, await run.step("a", job)]

        return asyncio.run(work())
