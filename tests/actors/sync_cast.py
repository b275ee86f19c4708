"""Agents in plain sync code, for the stories about threads."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar

from perdure.actors import Agent, Detached, Occurrence, RunContext, RunInfo, RunResult, blocking, exposed
from perdure.ledger import StaleIncarnation


class Tree(Agent):
    """Waits for as many children as the first number says, each of which does so with the rest. Returns how many there are below it."""

    def run(self, input: list[int]) -> int:
        if not input:
            return 0
        asked = [{"agent_class": Tree, "input": input[1:], "run_id": f"{self.name}/{n}"} for n in range(input[0])]
        return sum(1 + result.output for result in self.run_agent_tools(asked))


class Leaf(Agent):
    """Ends at once."""

    def run(self, input: int) -> int:
        return 1


class Family(Agent):
    """Waits for its children one by one, and hears of others."""

    @exposed
    def gather(self, count: int) -> list[int]:
        for number in range(count):
            self.run_agent_tool(Leaf, 10 + number, detached=Detached(on_finish="on_leaf"))
        return [self.run_agent_tool(Leaf, number).output for number in range(count)]

    def on_leaf(self, run: RunInfo, result: RunResult) -> None:
        known: Any = self.inspect_agent_tool_run(run.run_id)
        self.state[run.run_id] = known["status"]

    @exposed
    def seen(self) -> list[str]:
        return list(self.state.values())


class Endless(Agent):
    """Never ends of itself."""

    async def run(self, input: Any, run: RunContext) -> None:
        await asyncio.Event().wait()


class Waiting(Agent):
    """Waits for a child that never ends, and asks once more when it is told to stop."""

    heard: ClassVar[list[str]] = []  # of this process, for the test

    def run(self, input: str) -> None:
        for _ in range(2):
            try:
                self.run_agent_tool(Endless, run_id=input)
            except StaleIncarnation as told:
                self.heard.append(type(told).__name__)


class Stuck(Agent):
    """Hangs in sync code, wherever it is told to, until the test lets it go."""

    stands_alone = True

    free = threading.Event()  # of this process; a test makes it anew
    hangs: ClassVar[Counter[str]] = Counter()

    def _hang(self, where: str) -> None:
        self.hangs[where] += 1
        if self.hangs[where] == 1:
            self.free.wait(60)

    def run(self, input: str) -> str:
        self._hang("run")
        return "done"

    @exposed
    def follow(self) -> None:
        self.run_agent_tool(Leaf, 1, detached=Detached(on_finish="on_leaf"))

    def on_leaf(self, run: RunInfo, result: RunResult) -> None:
        self.state["told"] = self.state.get("told", 0) + 1
        self._hang("handler")

    @exposed
    def told(self) -> int:
        return int(self.state.get("told", 0))


class StuckAtFirst(Stuck):
    """Hangs as it comes up."""

    def on_start(self) -> None:  # type: ignore[override]
        self._hang("start")


class Clockwork(Agent):
    """Plans on a thread, and its callbacks count on threads, all in the same key."""

    @exposed
    def plan(self, count: int) -> None:
        for number in range(count):
            self.schedule(0.05, self.on_time, number)
            self.queue("on_time", number)

    @exposed
    def plan_together(self, count: int) -> int:
        for _ in range(count):
            self.schedule(0.2, self.on_time, "together", key="the same")
        return len(self.schedules.list())

    def on_time(self, payload: Any, occurrence: Occurrence) -> None:
        self.state["count"] = self.state.get("count", 0) + 1

    @exposed
    def counted(self) -> int:
        return int(self.state.get("count", 0))


class Postman(Agent):
    """Goes back to where it comes from."""

    def run(self, input: int, run: RunContext) -> int:
        return 1 + blocking(self.agent(Till, "home").there_and_back(input - 1))


class Till(Agent):
    """Reads, waits and writes, in no transaction, as whoever writes sync code does."""

    meeting: ClassVar[threading.Barrier]  # of this process; a test makes it
    pause = threading.Event()

    @exposed
    def add(self) -> None:
        count = self.state.get("count", 0)
        self.pause.wait(0.001)
        self.state["count"] = count + 1

    @exposed
    def add_often(self, times: int) -> Iterator[int]:
        for number in range(times):
            self.add()
            yield number

    @exposed
    def follow(self, number: int) -> None:
        self.run_agent_tool(Leaf, number, detached=Detached(on_finish="on_leaf"))

    def on_leaf(self, run: RunInfo, result: RunResult) -> None:
        self.add()

    @exposed
    def counted(self) -> int:
        return int(self.state.get("count", 0))

    @exposed
    def there_and_back(self, times: int) -> int:
        return self.run_agent_tool(Postman, times).output if times else 0

    @exposed
    def in_two_parts(self) -> Any:
        self.add()
        return self._second_part()

    async def _second_part(self) -> None:
        await self.agent(Till, "home").add()

    @exposed(concurrent=True)
    def meet(self) -> None:
        self.meeting.wait(30)

    @exposed
    def meet_in_turn(self) -> None:
        self.meeting.wait(30)
