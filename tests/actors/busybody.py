"""An agent that does a little of everything, so that each kind of task is started for it. It stands here to be loaded by its name."""

from __future__ import annotations

import asyncio
from typing import Any

from perdure.actors import Agent, Detached, FiberContext, Occurrence, RunContext, RunInfo, RunResult, exposed, tell


class Errand(Agent):
    """Reports its progress and ends."""

    async def run(self, input: str, run: RunContext) -> str:
        await run.report_progress(0.5)
        await asyncio.sleep(1)
        return input


class Busybody(Agent):
    """Asks for one of everything in one transaction, and writes down what came of it."""

    async def on_start(self) -> None:
        self.sql("CREATE TABLE IF NOT EXISTS done(what VARCHAR)")

    @exposed(repeatable=True)
    async def begin(self) -> None:
        if self.state.get("begun"):
            return
        with self.transaction():
            self.state["begun"] = True
            self.run_agent_tool(Errand, "errand", run_id="errand", detached=Detached(on_finish="on_done"))
            self.schedule(1, "note", "schedule")
            self.queue("note", "queue")
            self.start_fiber("job", "job", fiber_id="job")
            tell(self.sub_agent(Busybody, "kid").hear, "tell")

    @exposed(repeatable=True)
    async def wait(self) -> str:
        result = await self.run_agent_tool(Errand, "awaited", run_id="awaited")
        return f"{result.status} {result.output_or(None)}"

    @exposed(repeatable=True)
    async def end_kid(self) -> None:
        await self.sub_agents.abort(Busybody, "kid")

    @exposed(repeatable=True)
    def done(self) -> list[str]:
        return sorted(row[0] for row in self.sql("SELECT what FROM done"))

    @exposed(repeatable=True)
    async def all_done(self) -> list[str]:
        return [*self.done(), *(await self.sub_agent(Busybody, "kid").done())]

    @exposed
    def hear(self, word: str) -> None:
        self._write(word)

    def on_done(self, run: RunInfo, result: RunResult) -> None:
        self._write(str(result.output_or(None)))

    def note(self, payload: Any, it: Occurrence) -> None:
        self._write(payload)

    async def job(self, fiber: FiberContext, input: Any) -> None:
        fiber.stash("begun")
        await asyncio.sleep(1)

    async def on_state_changed(self, state: dict[str, Any]) -> None:
        """Something to be told of."""

    async def on_progress(self, run: RunInfo, progress: dict[str, Any]) -> None:
        """Something to be told of."""

    def _write(self, what: str) -> None:
        self.sql("INSERT INTO done VALUES ($1)", [what])
