"""More of the cast: parents that fan out, nest, compare and refuse."""

from __future__ import annotations

import asyncio
from typing import Any

from perdure.actors import Agent, Detached, RunContext, RunInfo, RunResult, exposed
from tests.actors.cast import Boss, Doubler, Number, Sleeper


class Wordy(Agent):
    """Gives back what it was given."""

    async def run(self, input: str | None, run: RunContext) -> str | None:
        return input


class Summariser(Agent):
    """Has its own idea of a summary."""

    async def run(self, input: int, run: RunContext) -> list[int]:
        return list(range(input))

    async def get_agent_tool_summary(self, output: list[int], run: RunContext) -> str:
        return f"{len(output)} numbers"


class CrewFanOut(Agent):
    """Asks for children without naming them, waits a little, and adds nothing up."""

    async def run(self, input: int, run: RunContext) -> list[int]:
        results = await self.run_agent_tools([(Doubler, {"n": number}) for number in range(input)])
        await asyncio.sleep(5)
        return [result.output for result in results]


class Mixed(Agent):
    """Asks for children of several classes at once."""

    @exposed
    async def ask(self) -> list[object]:
        batch = [(Doubler, Number(n=4)), (Wordy, "four"), (Doubler, Number(n=4)), (Wordy, "x" * 2_000)]
        results = await self.run_agent_tools([*batch, {"agent_class": Summariser, "input": 2, "run_id": "named"}])
        return [[result.agent_type.rpartition(":")[2], result.output] for result in results]

    @exposed
    async def ask_wrongly(self) -> str:
        try:
            await self.run_agent_tools([(Doubler, Number(n=1)), (Wordy, 4)])
        except Exception as problem:
            return str(problem)
        return "nothing was wrong"


class Narrow(Agent):
    """Allows two runs at a time."""

    max_concurrent_agent_tools = 2

    @exposed
    async def fan_out(self, count: int) -> list[str]:
        results = await self.run_agent_tools([(Sleeper, 100 + number) for number in range(count)])
        return [result.status for result in results]

    @exposed
    async def sleep(self, ms: float, run_id: str, on_limit: str = "queue") -> str:
        result = await self.run_agent_tool(Sleeper, ms, run_id=run_id, on_limit=on_limit)  # type: ignore[arg-type]
        return str(result.status)


class Middle(Agent):
    """In the middle of a chain: allows one child at a time."""

    max_concurrent_agent_tools = 1

    async def run(self, input: int, run: RunContext) -> list[str]:
        return [result.status async for result in self.as_completed([(Doubler, {"n": n}) for n in range(input)])]


class Starter(Agent):
    """Refuses one run, compares two, and asks for the same twice."""

    async def on_agent_tool_start(self, run: RunInfo) -> None:
        if run.run_id == "never":
            raise RuntimeError("not today")

    @exposed
    async def refused(self) -> Any:
        return (await self.run_agent_tool(Doubler, {"n": 1}, run_id="never")).status

    @exposed
    async def twice(self) -> list[int]:
        results = await self.run_agent_tools([(Doubler, {"n": 1}), (Doubler, {"n": 1})])
        return [result.output for result in results]

    @exposed
    async def compare(self, tool_call: str) -> list[str]:
        asked = [
            {
                "agent_class": Doubler,
                "input": {"n": 1},
                "run_id": name,
                "parent_tool_call_id": tool_call,
                "display_order": n,
            }
            for n, name in enumerate(("first", "second"))
        ]
        return [result.status for result in await self.run_agent_tools(asked)]


class Clumsy(Boss):
    """Has handlers that fail in every way."""

    failures = 0  # of this process; a test sets it

    def on_flaky(self, run: RunInfo, result: RunResult) -> None:
        self._write("flaky", run, result.status)
        if type(self).failures:
            type(self).failures -= 1
            raise RuntimeError("not yet")

    def on_poison(self, run: RunInfo, result: RunResult) -> None:
        self._write("poison", run, result.status)
        if type(self).failures:
            raise RuntimeError("never")

    async def on_hang(self, run: RunInfo, result: RunResult) -> None:
        self._write("hang", run, result.status)
        if type(self).failures:
            type(self).failures -= 1
            await asyncio.Event().wait()

    async def on_waiting(self, run: RunInfo, result: RunResult) -> None:
        await self.run_agent_tool(Doubler, {"n": 1}, run_id="inside")

    async def on_chain(self, run: RunInfo, result: RunResult) -> None:
        self._write("chain", run, result.status)
        self.run_agent_tool(Doubler, {"n": 1}, detached=Detached(on_finish="on_done"))

    async def on_count(self, run: RunInfo, result: RunResult) -> None:
        count = self.state.get("count", 0)
        await asyncio.sleep(0.01)
        self.state["count"] = count + 1

    @exposed(repeatable=True)
    async def count_too(self) -> int:
        with self.transaction():
            self.state["mine"] = self.state.get("mine", 0) + 1
        return int(self.state.get("count", 0))

    @exposed(repeatable=True)
    async def busy(self, ms: float) -> str:
        await asyncio.sleep(ms / 1000)
        return "done"

    @exposed
    async def broken(self) -> None:
        self.sql("SELECT * FROM nowhere")

    @exposed
    async def shout(self) -> Any:
        return await self.run_agent_tool(Doubler, {"n": 1}, on_limit="shout")  # type: ignore[arg-type]

    def on_output(self, run: RunInfo, result: RunResult) -> None:
        self._write(f"{type(result.output_or(None)).__name__} {run.delivery_id}", run, result.status)


class BadHook(Clumsy):
    """Its hook fails as often as it is told."""

    async def on_agent_tool_finish(self, run: RunInfo, result: RunResult) -> None:
        if type(self).failures:
            type(self).failures -= 1
            raise RuntimeError("the meter is broken")
        self._write("hook", run, result.status)

    async def on_progress(self, run: RunInfo, progress: dict[str, Any]) -> None:
        raise RuntimeError("nobody looks at this")


class Numbers(Agent):
    """Returns a typed, large value."""

    async def run(self, input: int, run: RunContext) -> Number:
        return Number(n=input)


class Hasty(Agent):
    """Waits for a task that it has cancelled itself: in its run, and in its handler as often as it is told."""

    stands_alone = True

    failures = 0  # of this process; a test sets it

    async def run(self, input: str, run: RunContext) -> None:
        await _cancelled()

    @exposed(repeatable=True)
    async def follow(self) -> None:
        await self.run_agent_tool(Doubler, {"n": 1}, run_id="d", detached=Detached(on_finish="on_double"))

    async def on_double(self, run: RunInfo, result: RunResult) -> None:
        self.state["told"] = self.state.get("told", 0) + 1
        if type(self).failures:
            type(self).failures -= 1
            await _cancelled()

    @exposed(repeatable=True)
    async def told(self) -> int:
        return int(self.state.get("told", 0))


async def _cancelled() -> None:
    task = asyncio.create_task(asyncio.sleep(3600))
    await asyncio.sleep(0)
    task.cancel()
    await task


class Large(Agent):
    """Returns as many characters as it is told."""

    async def run(self, input: int, run: RunContext) -> str:
        return "x" * input


class Batch(Agent):
    """Asks for runs inside a transaction, and may change its mind."""

    @exposed
    async def ask_for(self, count: int, regret: bool) -> None:
        with self.transaction():
            self.run_agent_tools([(Doubler, {"n": n}) for n in range(count)], detached=True)
            self.state["asked"] = count
            if regret:
                raise RuntimeError("changed my mind")

    @exposed
    async def ask_under(self, run_ids: list[str], on_limit: str = "queue") -> None:
        with self.transaction():
            for run_id in run_ids:
                self.run_agent_tool(Doubler, {"n": 4}, run_id=run_id, detached=True, on_limit=on_limit)  # type: ignore[arg-type]

    @exposed(repeatable=True)
    async def asked(self) -> int:
        return int(self.state.get("asked", 0))


class Mute(Agent):
    """Reports when nobody may: outside of a run, and after its end."""

    stands_alone = True

    @exposed
    async def report(self) -> None:
        await self.report_progress(0.5)

    async def run(self, input: Any, run: RunContext) -> int:
        asyncio.get_running_loop().call_later(1, lambda: run.emit("too late"))
        asyncio.get_running_loop().call_later(1, lambda: run.report_progress(0.5).close())
        return 1
