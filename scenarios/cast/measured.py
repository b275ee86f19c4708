"""The agents of `perdure bench`, but for those that chat. Instant ones are async, so that no thread is measured."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

from pydantic import BaseModel

from perdure import (
    Agent,
    Detached,
    FiberContext,
    FiberRecovery,
    FiberResult,
    Occurrence,
    RunContext,
    RunInfo,
    RunResult,
    exposed,
)
from perdure.actors.ray_world.os_processes import this_process

LOOK_S = 0.005
STEP_S = 1.0
WAITERS_AT_ONCE: Final = 5_000
BATCH: Final = 500  # fibers that are accepted at once
EVENTS_A_SECOND: Final = 1_000
STEPS: Final = 6  # of a turn


class Nap(BaseModel):
    """How long to sleep. With `marks` the sleeper leaves the time of its begin in that directory."""

    seconds: float
    marks: str = ""


def mark(directory: str, name: str) -> None:
    """Write the monotonic time of the machine to a file."""
    draft = Path(f"{directory}.{name}")
    draft.write_text(repr(time.monotonic()))
    draft.rename(Path(directory, name))


async def async_ms(job: Awaitable[object]) -> float:
    begun_s = time.perf_counter()
    await job
    return (time.perf_counter() - begun_s) * 1000


async def until(is_so: Callable[[], bool], look_s: float = LOOK_S) -> None:
    while not is_so():  # noqa: ASYNC110 - what is durable, or another method counts, has no event
        await asyncio.sleep(look_s)


class Instant(Agent):
    async def run(self, input: int) -> int:
        return input


class Sleeper(Agent):
    async def run(self, input: Nap, run: RunContext) -> None:
        if input.marks:
            mark(input.marks, f"{run.run_id}-{run.attempt}")
        end_s = time.monotonic() + input.seconds
        while (left_s := end_s - time.monotonic()) > 0:
            await asyncio.sleep(min(STEP_S, left_s))
            await run.report_progress(min(0.99, 1 - left_s / input.seconds), phase="asleep")


# Without a word of progress.
class Dozer(Agent):
    async def run(self, input: float, run: RunContext) -> int:
        await run.sleep(input)
        return run.attempt


class Asker(Agent):
    async def run(self, run: RunContext) -> bool:
        return bool((await run.ask("Go?")).value)


# By the wall clock, as the sender does.
class Waiter(Agent):
    async def run(self, run: RunContext) -> float:
        await run.wait_for("go")
        return time.time()


class Parent(Agent):
    """Requests runs in every way, and measures them."""

    def _perdure_children(self, count: int) -> list[tuple[Any, Any]]:
        return [(Instant, number) for number in range(count)]

    @exposed
    async def one_by_one(self, count: int) -> list[float]:
        # Milliseconds of each.
        return [await async_ms(self.run_agent_tool(*child)) for child in self._perdure_children(count)]

    @exposed
    async def fan_out(self, count: int) -> float:
        # Seconds until all results have arrived.
        begun_s = time.perf_counter()
        results: list[RunResult] = await self.run_agent_tools(self._perdure_children(count))
        took_s = time.perf_counter() - begun_s
        wrong = [result for result in results if not result.ok]
        if wrong:
            raise RuntimeError(f"{len(wrong)} runs failed; the first is {wrong[0]}")
        return took_s

    @exposed
    async def detach(self, count: int) -> float:
        # Seconds until each completion is counted in `state`.
        target = self.state.get("count", 0) + count
        begun_s = time.perf_counter()
        with self.transaction():
            self.run_agent_tools(self._perdure_children(count), detached=Detached(on_finish="on_done"))
        await until(lambda: self.state.get("count", 0) >= target)
        return time.perf_counter() - begun_s

    def on_done(self, run: RunInfo, result: RunResult) -> None:
        self.state["count"] = self.state.get("count", 0) + 1

    @exposed
    async def nap(self, count: int, nap: Nap) -> float:
        # Seconds until all have woken.
        return await async_ms(self.run_agent_tools([(Sleeper, nap)] * count)) / 1000

    @exposed
    async def doze(self, count: int, seconds: float) -> float:
        # Seconds until all have woken.
        return await async_ms(self.run_agent_tools([(Dozer, seconds)] * count)) / 1000

    @exposed
    async def wait(self, count: int) -> None:
        # Returns when they are accepted.
        for first in range(0, count, WAITERS_AT_ONCE):
            some = [{"agent_class": Waiter}] * min(WAITERS_AT_ONCE, count - first)
            await self.run_agent_tools(some, detached=True)

    @exposed
    async def think(self, count: int, seconds: float, first_s: float) -> list[float]:
        # Seconds of each turn. They begin one after the other, within the time of a step.
        turns = [
            ThinkingTurn(seconds=seconds, first_s=first_s + number / count * seconds / STEPS) for number in range(count)
        ]
        return [float(each.output) for each in await self.run_agent_tools([(Thinker, turn) for turn in turns])]

    @exposed
    async def send_to_bed(self, count: int, nap: Nap) -> None:
        # Returns when they are accepted.
        await self.run_agent_tools([(Sleeper, nap)] * count, detached=True)


class Writer(Agent):
    async def run(self, input: int, run: RunContext) -> int:
        for number in range(input):
            await run.step(f"step {number}", self.nothing)
        return run.attempt

    async def nothing(self) -> None:
        """Writing it down is the work."""


class Item(Writer):
    async def run(self, input: int, run: RunContext) -> int:
        await run.step("first", self.nothing)
        await run.report_progress(milestone="half-way")
        await asyncio.sleep(STEP_S)
        await run.step("second", self.nothing)
        return run.attempt


class ThinkingTurn(BaseModel):
    """How many seconds to think, and how many to wait before."""

    seconds: float
    first_s: float = 0.0


# Its steps wait as for a model, and give 2 KB each.
class Thinker(Agent):
    async def run(self, input: ThinkingTurn, run: RunContext) -> float:
        await asyncio.sleep(input.first_s)
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        for number in range(STEPS):
            await run.step(f"step {number}", partial(self.think, input.seconds / STEPS))
        return loop.time() - begun_s

    async def think(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "x" * 2_000


class ManyRunner(Parent):
    def _perdure_children(self, count: int) -> list[tuple[Any, Any]]:
        return [(Item, number) for number in range(count)]

    @exposed
    async def write(self, count: int, times: int) -> tuple[float, int]:
        # Seconds, and attempts beyond the first.
        begun_s = time.perf_counter()
        results: list[RunResult] = await self.run_agent_tools([(Writer, times)] * count)
        return time.perf_counter() - begun_s, sum(result.output - 1 for result in results)

    def on_done(self, run: RunInfo, result: RunResult) -> None:
        super().on_done(run, result)
        self.state["again"] = self.state.get("again", 0) + result.output - 1

    @exposed
    async def again(self) -> int:
        # Attempts beyond the first, of detached children until now.
        return int(self.state.get("again", 0))


class Idler(Agent):
    @exposed
    async def ping(self) -> bool:
        return True

    @exposed
    async def write(self) -> bool:
        self.state["written"] = "something"
        return True


class Punctual(Agent):
    async def run(self, input: float) -> None:
        await asyncio.sleep(input - time.monotonic())


class Keeper(Agent):
    """Takes a while for each completion, and keeps a row of it. The table has no key, so a second effect would show."""

    async def on_start(self) -> None:
        self.sql("CREATE TABLE IF NOT EXISTS kept(run_id VARCHAR)")
        if marks := self.state.get("marks"):
            mark(marks, f"start-{time.monotonic_ns()}")

    @exposed
    async def keep(self, count: int, at_s: float, marks: str) -> None:
        # They all finish at one instant of the monotonic clock.
        with self.transaction():
            self.state["marks"] = marks
            self.run_agent_tools([(Punctual, at_s)] * count, detached=Detached(on_finish="on_done"))

    def on_done(self, run: RunInfo, result: RunResult) -> None:
        # Slow, so that the kill interrupts it.
        mark(self.state["marks"], f"handler-{time.monotonic_ns()}")
        self.sql("INSERT INTO kept VALUES ($1)", [run.run_id])
        time.sleep(0.05)

    @exposed(repeatable=True)
    async def kept(self) -> tuple[int, int]:
        ((rows, distinct),) = self.sql("SELECT count(*), count(DISTINCT run_id) FROM kept")
        return rows, distinct


def append(file: Path, line: str) -> None:
    # By one write, so that no other one comes in between.
    with file.open("ab", buffering=0) as lines:
        lines.write(line.encode())


# Each call writes to a file how late it was.
class Sleepyhead(Agent):
    @exposed(repeatable=True)
    async def plan(self, at_s: float, count: int, file: str) -> int:
        when = datetime.fromtimestamp(at_s, UTC)
        with self.transaction():
            for number in range(count):
                self.schedule(when, self.ring, file, schedule_id=f"{at_s:.3f}-{number}")
        return len(self.schedules.list())

    async def ring(self, file: str, occurrence: Occurrence) -> None:
        late_ms = time.time() * 1000 - occurrence.scheduled_at_ms
        append(Path(file), f"{late_ms:.1f}\n")


async def each_ms(count: int, act: Callable[[int], object]) -> list[float]:
    # Other tasks run in between.
    times = []
    for number in range(count):
        begun_s = time.perf_counter()
        act(number)
        times.append((time.perf_counter() - begun_s) * 1000)
        await asyncio.sleep(0)
    return times


class Jobber(Agent):
    """Has fibers that end at once, and some that do not."""

    done: ClassVar[int] = 0  # of this process
    recovered: ClassVar[int] = 0

    async def quick(self, fiber: FiberContext, input: Any) -> None:
        type(self).done += 1

    async def endless(self, fiber: FiberContext) -> None:
        await asyncio.sleep(86_400)

    async def on_fiber_recovered(self, fiber: FiberRecovery) -> FiberResult:
        type(self).recovered += 1
        return FiberResult("completed")

    @exposed
    async def one_by_one(self, count: int) -> list[float]:
        # Milliseconds. The bodies run in between.
        return await each_ms(count, lambda number: self.start_fiber("quick", "quick", {"number": number}))

    @exposed
    async def commit_alone(self, count: int) -> list[float]:
        # Milliseconds of the smallest durable write.
        return await each_ms(count, partial(self.state.__setitem__, "number"))

    @exposed
    async def in_batches(self, count: int) -> list[float]:
        # Seconds until all were accepted, and until all were done.
        begun_s, before = time.perf_counter(), self.done
        asked = [{"name": "quick", "fn_name": "quick", "input": {"number": number}} for number in range(count)]
        for first in range(0, count, BATCH):
            self.fibers.start(asked[first : first + BATCH])
        accepted_s = time.perf_counter() - begun_s
        await until(lambda: self.done >= before + count)
        return [accepted_s, time.perf_counter() - begun_s]

    @exposed
    async def begin_endless(self, count: int) -> None:
        for first in range(0, count, BATCH):
            size = min(BATCH, count - first)
            self.fibers.start([{"name": "endless", "fn_name": "endless", "input": first + n} for n in range(size)])
            await asyncio.sleep(0)
        await until(lambda: not self.list_fibers("pending", limit=1).fibers, look_s=0.1)

    @exposed
    def process(self) -> tuple[int, int]:
        return this_process()

    @exposed(repeatable=True)
    async def came_back(self) -> int:
        return self.recovered


class SpeechOrder(BaseModel):
    """How many seconds to speak, once there is a file of this name."""

    seconds: float
    cue: str


class Herald(Agent):
    async def run(self, input: SpeechOrder, run: RunContext) -> int:
        while not await asyncio.to_thread(Path(input.cue).exists):  # noqa: ASYNC110 - another process makes the file
            await asyncio.sleep(LOOK_S)
        begun_s, said = time.monotonic(), 0
        while said < input.seconds * EVENTS_A_SECOND:
            now_s = time.monotonic()
            for _ in range(said, int((now_s - begun_s) * EVENTS_A_SECOND)):
                run.emit({"at_s": now_s})
                said += 1
            await asyncio.sleep(LOOK_S)
        return said
