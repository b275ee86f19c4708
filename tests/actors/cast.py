"""The cast of the stories: small agents, each with one habit. They are loaded by name, so they stand in a module of their own."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from pydantic import BaseModel

from perdure.actors import Agent, Detached, MilestoneInfo, RunContext, RunInfo, RunResult, exposed


class Number(BaseModel):
    """A typed input."""

    n: int = 0


class Doubler(Agent):
    """Ends at once."""

    async def run(self, input: Number, run: RunContext) -> int:
        return input.n * 2


class Worker(Agent):
    """Works in steps of its own length, writes each into its storage, and says how far it is."""

    async def run(self, input: dict[str, Any], run: RunContext) -> dict[str, Any]:
        steps, pause_ms = input.get("steps", 3), input.get("pause_ms", 100)
        self.sql("CREATE TABLE IF NOT EXISTS done(step BIGINT, attempt BIGINT)")
        for step in range(steps):
            run.step(f"step {step}", lambda step=step: self._do(step, run.attempt))
            await asyncio.sleep(pause_ms / 1000)
            await run.report_progress((step + 1) / steps, phase=f"step {step}")
        rows = self.sql("SELECT step, attempt FROM done ORDER BY step")
        return {"steps": [row[0] for row in rows], "attempt": run.attempt}

    def _do(self, step: int, attempt: int) -> int:
        self.sql("INSERT INTO done VALUES ($1, $2)", [step, attempt])
        return step


class Sleeper(Agent):
    """Says nothing for as long as it is told, then returns its attempt."""

    async def run(self, input: float, run: RunContext) -> int:
        await asyncio.sleep(input / 1000)
        return run.attempt


class Stubborn(Agent):
    """Does not let itself be cancelled for a while."""

    async def run(self, input: float, run: RunContext) -> str:
        until = asyncio.get_running_loop().time() + input / 1000
        while (rest := until - asyncio.get_running_loop().time()) > 0:
            try:
                await asyncio.sleep(rest)
            except asyncio.CancelledError:
                continue
        return "done"


class Failing(Agent):
    """Raises."""

    async def run(self, input: str, run: RunContext) -> str:
        raise ValueError(input)


class Liar(Agent):
    """Promises a number."""

    async def run(self, input: str, run: RunContext) -> int:
        return input  # type: ignore[return-value]


class Talker(Agent):
    """Reports what it is told to: a list of signals, each after its pause."""

    async def run(self, input: list[dict[str, Any]], run: RunContext) -> int:
        for signal in input:
            said = dict(signal)
            await asyncio.sleep(said.pop("after_ms", 0) / 1000)
            if "chunk" in said:
                run.emit(said["chunk"])
            elif said:
                await run.report_progress(said.pop("fraction", None), **said)
        return len(input)


class Once(Agent):
    """At most once: one attempt."""

    attempts_max = 1

    async def run(self, input: float, run: RunContext) -> int:
        self.state["began"] = run.attempt
        await asyncio.sleep(input / 1000)
        return run.attempt


class Boss(Agent):
    """Asks for runs, waits for them or not, and writes down what it is told."""

    stands_alone = True

    async def on_start(self) -> None:
        self.sql("CREATE TABLE IF NOT EXISTS told(what VARCHAR, run_id VARCHAR, status VARCHAR, reason VARCHAR)")

    def _write(self, what: str, run: RunInfo, status: str, reason: str | None = None) -> None:
        self.sql("INSERT INTO told VALUES ($1, $2, $3, $4)", [what, run.run_id, status, reason])

    @exposed(repeatable=True)
    async def detach(self, kind: str, value: Any, run_id: str, options: dict[str, Any] | None = None) -> str:
        followed = Detached(**{"on_finish": "on_done", **(options or {})})
        handle = await self.run_agent_tool(kind_of(kind), value, run_id=run_id, detached=followed)
        return str(handle.status)

    @exposed(repeatable=True)
    async def wait_for(self, kind: str, value: Any, run_id: str) -> dict[str, Any]:
        return plain(await self.run_agent_tool(kind_of(kind), value, run_id=run_id))

    @exposed(repeatable=True)
    async def cancel(self, run_id: str, reason: str = "cancelled") -> None:
        await self.cancel_agent_tool(run_id, reason)

    @exposed(repeatable=True)
    async def clear(self, status: list[str] | None = None, older_than: int | None = None) -> int:
        return int(await self.clear_agent_tool_runs(status=status, older_than=older_than))

    @exposed(repeatable=True)
    async def inspect(self, run_id: str) -> dict[str, Any] | None:
        return await self.inspect_agent_tool_run(run_id)

    @exposed(repeatable=True)
    async def has(self, kind: str, run_id: str) -> bool:
        return bool(await self.has_agent_tool_run(kind_of(kind), run_id))

    @exposed(repeatable=True)
    async def gate(self, agent_type: str, run_id: str) -> bool:
        return await self.on_before_sub_agent(agent_type, run_id)

    @exposed(repeatable=True)
    def told(self) -> list[list[Any]]:
        return [list(row) for row in self.sql("SELECT what, run_id, status, reason FROM told")]

    def on_done(self, run: RunInfo, result: RunResult) -> None:
        self._write("done", run, result.status, result.reason)

    def on_gone(self, run: RunInfo, result: RunResult) -> None:
        self._write("gone", run, result.status, result.reason)

    def on_stone(self, run: RunInfo, milestone: MilestoneInfo) -> None:
        self._write("stone", run, milestone.name)

    async def run(self, input: dict[str, Any], run: RunContext) -> Any:
        """Wait for one child: `[kind, value, run id]`."""
        kind, value, run_id = input["wait"]
        return plain(await self.run_agent_tool(kind_of(kind), value, run_id=run_id))


def plain(result: RunResult) -> dict[str, Any]:
    """A result as plain data."""
    told = {"status": result.status, "output": result.output_or(None), "summary": result.summary, "error": result.error}
    return {**told, "reason": result.reason, "still": result.child_still_running}


class Windowed(Boss):
    """Waits for no more than a second after it had to re-attach."""

    agent_tool_reattach_max_window_ms = 1_000


class Patient(Boss):
    """Never gives up on silence."""

    agent_tool_reattach_no_progress_timeout_ms = float("inf")
    agent_tool_reattach_max_window_ms = 600_000


class Impatient(Boss):
    """Does not wait when it has to re-attach."""

    agent_tool_reattach_no_progress_timeout_ms = 0


class Hooked(Boss):
    """Has every hook, and writes down that it was called."""

    refusals = 0  # how often its start hook raises, in this process; a test sets it

    async def on_agent_tool_start(self, run: RunInfo) -> None:
        self._write("start", run, run.status)
        if type(self).refusals:
            type(self).refusals -= 1
            raise RuntimeError("not today")

    @exposed(repeatable=True)
    def detach_together(self, count: int, handler: str = "on_done") -> None:
        asked = [{"agent_class": Sleeper, "input": 10, "run_id": f"s{n}"} for n in range(count)]
        with self.transaction():
            self.run_agent_tools(asked, detached=Detached(on_finish=handler))

    def on_chain(self, run: RunInfo, result: RunResult) -> None:
        self.run_agent_tool(Sleeper, 10, run_id=f"after {run.run_id}", detached=Detached(on_finish="on_done"))

    async def on_agent_tool_finish(self, run: RunInfo, result: RunResult) -> None:
        self._write("hook", run, result.status, result.reason)

    async def on_progress(self, run: RunInfo, progress: dict[str, Any]) -> None:
        self._write("progress", run, str(progress.get("milestone") or progress.get("fraction")))


class Wedged(Agent):
    """Never comes up."""

    async def on_start(self) -> None:
        await asyncio.Event().wait()

    async def run(self, input: Any, run: RunContext) -> int:
        return 1


class Vanishing(Agent):
    """Tests take its code away between two attempts."""

    async def run(self, input: float, run: RunContext) -> int:
        await asyncio.sleep(input / 1000)
        return run.attempt


def kind_of(name: str) -> type[Agent]:
    """A class of the cast, of the crew or of a test beside them, by its name."""
    return next(kind for kind in _family(Agent) if kind.__name__ == name and _FOLDER.fullmatch(kind.__module__))


_FOLDER = re.compile(r"tests\.actors\.\w+")


def _family(kind: type[Agent]) -> list[type[Agent]]:
    return [kind, *(each for child in kind.__subclasses__() for each in _family(child))]
