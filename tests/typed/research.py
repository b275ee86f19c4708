"""Authors of agents: what their classes are to a type checker."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Iterator
from datetime import timedelta
from typing import Any, assert_type

from pydantic import BaseModel

from perdure import (
    Agent,
    Answer,
    ChatAgent,
    Detached,
    FiberContext,
    MilestoneInfo,
    NoAnswer,
    Retries,
    RunCompleted,
    RunContext,
    RunFailed,
    RunHandle,
    RunInfo,
    RunResult,
    TurnResult,
    any_of,
    awaiting,
    blocking,
    exposed,
    tell,
)
from perdure.actors import FiberInspection, RunHandles, Schedule


class Topic(BaseModel):
    title: str


class Notes(BaseModel):
    title: str
    words: int


class Researcher(Agent):
    """Async, with the input and the context."""

    async def run(self, input: Topic, run: RunContext) -> Notes:
        words = await run.step("read", self.read)
        assert_type(words, int)
        again = await run.step(
            "read", self.read, retry=Retries(attempts_max=3), timeout=5, undo=self.forget, probe="known"
        )
        assert_type(again, int)
        assert_type(await run.step("size", lambda: 1, timeout=timedelta(seconds=5)), int)
        assert_type(run.step("size", lambda: 1), int)
        await run.step("size", lambda: 1)  # error: mypy[misc] pyright[reportGeneralTypeIssues]
        return Notes(title=input.title, words=words)

    async def forget(self, words: int | None) -> None: ...

    def known(self) -> bool:
        return False

    async def read(self) -> int:
        return 100


class Reader(Agent):
    """Sync, with the input."""

    def run(self, text: str) -> int:
        return len(text.split())


class Clerk(Agent):
    """Sync, with both."""

    def run(self, text: list[str], run: RunContext) -> dict[str, int]:
        return dict.fromkeys(text, 1)


class Clock(Agent):
    """Async, without input."""

    async def run(self) -> float:
        return 1.0


class Bell(Agent):
    """Sync, without input."""

    def run(self) -> str:
        return "ding"


class Helpdesk(ChatAgent):
    """A chat agent: `run` is inherited, its output is the text of the answer."""


class Planner(ChatAgent[Notes]):
    """A chat agent that makes something else of its answer."""

    def get_agent_tool_output(self, result: TurnResult, run: RunContext) -> Notes:
        return Notes(title=run.run_id, words=len(result.text.split()))


class Idle(Agent):
    """No `run`: it can be called, and is nobody's child."""


class Survey(Agent):
    async def run(self, input: list[Topic]) -> int:
        first = await self.run_agent_tool(Researcher, input[0], run_id="first")
        assert_type(first, RunResult[Notes])
        others = await self.run_agent_tools([(Researcher, topic) for topic in input[1:]])
        assert_type(others, list[RunResult[Notes]])
        assert_type(await self.run_agent_tool(Clerk, ["a"]), RunResult[dict[str, int]])
        assert_type(await self.run_agent_tool(Clock), RunResult[float])
        assert_type(await self.run_agent_tool(Bell), RunResult[str])
        assert_type(await self.run_agent_tools([(Reader, "a"), (Reader, "b")]), list[RunResult[int]])
        several = [{"agent_class": Reader, "input": "a"}, {"agent_class": Researcher, "input": input[0], "run_id": "b"}]
        assert_type(await self.run_agent_tools(several), list[RunResult[Any]])
        assert_type(await self.run_agent_tools([{"agent_class": Reader}, {"agent_class": Clock}]), list[RunResult[Any]])
        assert_type(await self.first_ok(1, several), list[RunResult[Any]])
        assert_type(await self.run_agent_tool(Helpdesk, "Where is order 17?"), RunResult[str])
        assert_type(await self.run_agent_tool(Planner, "Plan it."), RunResult[Notes])
        assert_type(await self.first_ok(1, [(Reader, "a"), (Reader, "b")]), list[RunResult[int]])
        assert_type(await self.ask("Ship?", to="ops"), Answer)
        assert_type(self.ask("Ship?", Notes, then=self.decided, expires=timedelta(hours=1)), RunHandle)
        begun = await self.run_agent_tool(Reader, "a", detached=True)
        later = await self.run_agent_tool(Reader, "b", after=any_of(begun.end, begun.milestone("read"), "run-3"))
        assert_type(later, RunResult[int])
        async for result in self.as_completed([(Researcher, topic) for topic in input]):
            assert_type(result, RunResult[Notes])
            print(result.output.title if result.ok else result.failure.error)
        return sum(result.output.words for result in (first, *others) if result.ok)

    def decided(self, answer: Answer | NoAnswer) -> None:
        assert_type(answer.run_id, str)
        print(answer.value if answer else answer.run_id)

    async def begin(self, topics: list[Topic]) -> list[str]:
        handle = await self.run_agent_tool(Researcher, topics[0], detached=Detached(on_finish="on_notes"))
        assert_type(handle, RunHandle)
        handles = await self.run_agent_tools([(Researcher, topic) for topic in topics], detached=True)
        assert_type(handles, RunHandles)
        with self.transaction():  # here nothing needs to be awaited
            return [each.run_id for each in self.run_agent_tools([(Reader, "a")], detached=True)]

    def on_notes(self, run: RunInfo, result: RunResult[Notes]) -> None:
        if result.status == "completed":
            assert_type(result.output, Notes)
        else:
            assert_type(result.failure.retryable, bool)

    def on_any(self, given: RunResult[Notes] | Topic) -> None:
        if isinstance(given, RunResult):  # error: pyright[reportArgumentType]
            assert_type(given, RunResult[Notes])
        if isinstance(given, RunCompleted | RunFailed):
            assert_type(given, RunResult[Notes])
        match given:
            case RunCompleted() | RunFailed():
                assert_type(given, RunResult[Notes])
            case _:
                assert_type(given, Topic)

    def on_read(self, run: RunInfo, milestone: MilestoneInfo) -> None:
        assert_type(milestone.name, str)

    def wait(self, topic: Topic) -> int:
        result = blocking(self.run_agent_tool(Researcher, topic))  # sync code
        assert_type(result, RunResult[Notes])
        return result.output.words if result.ok else 0

    async def jobs(self) -> None:
        assert_type(self.start_fiber("ship", self.ship, {"to": "me"}), FiberInspection)
        assert_type(await self.start_fiber("ship", self.ship, wait_for_completion=True), FiberInspection)
        assert_type(await self.run_fiber("ship", self.unload), int)
        assert_type(self.schedule("30 8 * * mon-fri", "jobs"), Schedule)
        assert_type(self.schedules.get("it"), Schedule | None)
        assert_type(await self.clear_agent_tool_runs(status=["error"]), int)
        self.start_fiber("ship")  # error: mypy[call-overload] pyright[reportCallIssue]
        self.schedules.cancel(3)  # error: mypy[arg-type] pyright[reportArgumentType]

    async def ship(self, fiber: FiberContext, input: dict[str, str]) -> str:
        return await fiber.step("label", self.label)

    async def label(self) -> str:
        return "a label"

    async def unload(self, fiber: FiberContext) -> int:
        return fiber.attempt

    async def wrong(self, topic: Topic) -> None:
        await self.run_agent_tool(Researcher, "a")  # error: mypy[misc] pyright[reportArgumentType, reportCallIssue]
        await self.run_agent_tool(Researcher)  # error: mypy[arg-type] pyright[reportArgumentType, reportCallIssue]
        await self.run_agent_tool(Clock, 3)  # error: mypy[arg-type] pyright[reportArgumentType, reportCallIssue]
        await self.run_agent_tool(Idle)  # error: mypy[arg-type] pyright[reportArgumentType, reportCallIssue]
        await self.run_agent_tool(Reader, "a", run_it="x")  # error: mypy[call-overload] pyright[reportCallIssue]
        await self.run_agent_tools([(Reader, 3)])  # error: mypy[arg-type] pyright[reportArgumentType, reportCallIssue]
        self.run_agent_tool(Reader, "a")  # error: mypy[unused-coroutine] pyright[reportUnusedCoroutine]
        await self.ask("Ship?", expire=5)  # error: mypy[call-overload] pyright[reportCallIssue]
        await self.ask("Ship?", then=5)  # error: mypy[call-overload] pyright[reportArgumentType, reportCallIssue]
        self.ask("Ship?")  # error: mypy[unused-coroutine] pyright[reportUnusedCoroutine]
        result = await self.run_agent_tool(Researcher, topic)
        text: str = result.output  # error: mypy[assignment] pyright[reportAssignmentType]
        print(result.failure.eror, text)  # error: mypy[union-attr] pyright[reportAttributeAccessIssue]
        if result.status == "completed":
            print(result.output.wrods)  # error: mypy[attr-defined] pyright[reportAttributeAccessIssue]


class Librarian(Agent):
    @exposed
    async def pages(self, count: int) -> AsyncGenerator[str, None]:
        for number in range(count):
            yield str(number)

    @exposed
    def numbers(self, count: int) -> Iterator[int]:
        assert_type(next(self.numbers(count)), int)
        yield from range(count)

    @exposed
    async def count(self, texts: list[str]) -> int:
        """Count the words of all texts."""
        assert_type(await self.count([]), int)
        assert_type(self.shelf("a"), str)
        results = await self.run_agent_tools([(Reader, text) for text in texts])
        return sum(result.output for result in results)

    @exposed(repeatable=True)
    def shelf(self, title: str, *, upper: bool = False) -> str:
        """Say where a title stands."""
        return title

    @exposed
    @classmethod
    def signs(cls, title: str) -> list[str]:
        return [cls.__name__, title]

    @exposed
    @staticmethod
    def initial(title: str) -> str:  # to a checker this is a method whose `self` is called `title`
        return title[0]

    async def lend(self) -> None:
        branch = self.sub_agent(Librarian, "branch")
        assert_type(await branch.count(["a"]), int)
        await tell(branch.shelf, "a", upper=True)
        assert_type(tell(branch.count, ["a"]), Awaitable[None])
        run = self.run_agent_tool(Reader, "x", detached=True)
        assert_type(tell(run, {"page": 1}), Awaitable[None])
        assert_type([each.name for each in self.sub_agents.list(Librarian)], list[str])
        async for number in branch.numbers(3):
            assert_type(number, int)
        async for number in awaiting(branch.numbers(3)):
            assert_type(number, int)
        async for page in branch.pages(3):
            assert_type(page, str)
        await tell(branch.shelf, 3)  # error: mypy[call-overload] pyright[reportCallIssue, reportArgumentType]
        await branch.count("a")  # error: mypy[arg-type] pyright[reportArgumentType]
        branch.coutn(["a"])  # error: mypy[attr-defined] pyright[reportAttributeAccessIssue]

    def lend_at_once(self) -> None:  # sync code
        branch = self.sub_agent(Librarian, "branch")
        for page in blocking(branch.pages(3)):
            assert_type(page, str)
        for number in branch.numbers(3):
            assert_type(number, int)
        for page in branch.pages(3):  # error: mypy[attr-defined] pyright[reportGeneralTypeIssues]
            print(page)


class Branch(Librarian):
    @exposed
    async def count(self, texts: list[str]) -> int:
        return await super().count(texts)
