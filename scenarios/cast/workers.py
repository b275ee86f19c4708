"""The agents on which the swarm and the explorer try the runtime: small, driven by data, and easy to check afterwards.

A `Worker` does what its `Task` says: steps that it remembers, progress, milestones, children that it waits for, and children that it
sets off. A `Boss` starts tasks detached and writes down whatever it is told. Neither table has a key, on purpose: an effect that
happened twice would show as two rows. The `FamilyHead` of a family tells its members what each must hear once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

from pydantic import BaseModel

from perdure import Agent, Detached, MilestoneInfo, RunContext, RunInfo, RunResult, any_of, exposed, tell

TOLD = "CREATE TABLE IF NOT EXISTS told(delivery_id VARCHAR, run_id VARCHAR, status VARCHAR)"
ASKED = "CREATE TABLE IF NOT EXISTS asked(run_id VARCHAR)"
TEMPER = 2  # how often a handler that is out of temper raises, in each life of its agent


class Task(BaseModel):
    """What a worker shall do, and the workers below it. `weight` is what it adds to the sum that comes out on top.

    `fault` is empty, `raise` (the run fails), or `hang` (it never ends of itself).
    """

    weight: int = 1
    steps: int = 0
    pause_ms: int = 0
    milestones: bool = False
    chunks: bool = False
    fault: str = ""
    output_bytes: int = 0
    padding: str = ""
    awaited: list[Task] = []
    detached: list[Task] = []

    def total(self) -> int:
        # What comes out if nobody interferes.
        return 0 if self.fault else self.weight + sum(child.total() for child in self.awaited)


class Outcome(BaseModel):
    """What a worker returns. `blob` makes it as large as was asked for."""

    total: int
    blob: str = ""


class BossJob(BaseModel):
    """A task that a boss sets off under a run id of its own, and how it follows it."""

    run_id: str
    task: Task
    handler: str = "on_done"
    give_up_handler: str | None = None
    max_budget_ms: float | None = None
    no_progress_budget_ms: float | None = None
    milestones: bool = False
    follow_ups: int = 0
    after: list[str] = []

    def detached(self) -> Detached:
        return Detached(
            on_finish=self.handler,
            on_give_up=self.give_up_handler,
            max_budget_ms=self.max_budget_ms,
            no_progress_budget_ms=self.no_progress_budget_ms,
            on_milestones=("first", "last") if self.milestones else (),
            on_milestone="on_milestone" if self.milestones else None,
        )


# It writes a row for each time that it is told something.
class Diary(Agent):
    def write_down(self, run: RunInfo, status: str) -> None:
        self.sql(TOLD)
        self.sql("INSERT INTO told VALUES ($1, $2, $3)", [run.delivery_id, run.run_id, status])

    def on_done(self, run: RunInfo, result: RunResult) -> None:
        self.write_down(run, result.status)


class Worker(Diary):
    """Does its task. Entered again after a death, it goes on after the last step that it stashed."""

    async def run(self, input: Task, run: RunContext) -> Outcome:
        for number in range(run.stashed or 0, input.steps):
            pause: Callable[[], Any] = partial(_pause, input.pause_ms, number)
            await run.step(f"step-{number}", pause)
            run.step(f"note-{number}", partial(str, number))
            run.stash(number + 1)
            await run.report_progress((number + 1) / input.steps, phase=f"step {number}")
            if input.chunks:
                run.emit({"step": number})
        if input.milestones:
            await run.report_progress(milestone="first", data={"attempt": run.attempt})
        for number, task in enumerate(input.detached):
            await self.run_agent_tool(
                Worker, task, run_id=f"{run.run_id}/d{number}", detached=Detached(on_finish="on_done")
            )
        total = 0 if input.fault else input.weight + await self._wait_for(input, run)
        if input.milestones:
            await run.report_progress(milestone="last")
        await _misbehave(input)
        return Outcome(total=total, blob="x" * input.output_bytes)

    async def _wait_for(self, task: Task, run: RunContext) -> int:
        requests = [
            {"agent_class": Worker, "input": each, "run_id": f"{run.run_id}/{number}"}
            for number, each in enumerate(task.awaited)
        ]
        results = await self.run_agent_tools(requests) if requests else []
        return sum(result.output.total for result in results if result.ok)


async def _pause(duration_ms: int, number: int) -> int:
    await asyncio.sleep(duration_ms / 1000)
    return number


async def _misbehave(task: Task) -> None:
    if task.fault == "raise":
        raise RuntimeError("as it was told")
    if task.fault == "hang":
        await asyncio.Event().wait()


class LoneWorker(Worker):
    exclusive = True


class OnceWorker(Worker):
    attempts_max = 1


class Boss(Diary):
    """Sets jobs off and writes down what comes of them."""

    worker: type[Worker] = Worker

    def __init__(self) -> None:
        super().__init__()
        self.tempers: Counter[str] = Counter()

    @exposed(repeatable=True)
    def begin(self, jobs: list[BossJob]) -> int:
        """Ask for all jobs, in one transaction. Asking again for the same jobs changes nothing."""
        with self.transaction():
            self.sql(ASKED)
            known = {run_id for (run_id,) in self.sql("SELECT run_id FROM asked")}
            fresh = [job for job in jobs if job.run_id not in known]
            for job in fresh:
                self.run_agent_tool(
                    self.worker, job.task, run_id=job.run_id, detached=job.detached(), input_preview=job.follow_ups,
                    after=any_of(*job.after) if job.after else None,
                )  # fmt: skip
                self.sql("INSERT INTO asked VALUES ($1)", [job.run_id])
        return len(fresh)

    @exposed(repeatable=True)
    async def begin_one_by_one(self, jobs: list[BossJob]) -> int:
        # Each is durable before the next.
        for job in jobs:
            await self.run_agent_tool(
                self.worker, job.task, run_id=job.run_id, detached=job.detached(), input_preview=job.follow_ups
            )
        return len(jobs)

    async def on_done_slowly(self, run: RunInfo, result: RunResult) -> None:
        # With an await in the middle of the transaction.
        self.sql(TOLD)
        await asyncio.sleep(0.02)
        self.write_down(run, result.status)

    async def on_done_chained(self, run: RunInfo, result: RunResult) -> None:
        # The next run is set off in the same transaction.
        self.write_down(run, result.status)
        left = int(run.input_preview or 0)
        if left > 0:
            next_task = Task(weight=left)
            self.run_agent_tool(
                self.worker, next_task, detached=Detached(on_finish="on_done_chained"), input_preview=left - 1
            )

    def on_done_in_bad_temper(self, run: RunInfo, result: RunResult) -> None:
        self.write_down(run, result.status)
        self.tempers[run.run_id] += 1
        if self.tempers[run.run_id] <= TEMPER:
            raise RuntimeError(f"not yet ({self.tempers[run.run_id]})")

    def on_poison(self, run: RunInfo, result: RunResult) -> None:
        # Its mail ends parked.
        self.write_down(run, result.status)
        raise RuntimeError("never")

    def on_give_up(self, run: RunInfo, result: RunResult) -> None:
        self.write_down(run, result.status)

    def on_milestone(self, run: RunInfo, milestone: MilestoneInfo) -> None:
        self.write_down(run, milestone.name)


class StrictBoss(Boss):
    max_concurrent_agent_tools = 2


class LonelyBoss(Boss):
    exclusive = True
    worker = LoneWorker


class CautiousBoss(Boss):
    worker = OnceWorker

    def on_agent_tool_start(self, run: RunInfo) -> None:  # type: ignore[override]
        # A run that a transaction asked for has one.
        if run.delivery_id:
            self.write_down(run, run.status)


BOSSES: tuple[type[Boss], ...] = (Boss, StrictBoss, LonelyBoss, CautiousBoss)
HANDLERS = ("on_done", "on_done_slowly", "on_done_chained", "on_done_in_bad_temper", "on_poison")


class Member(Agent):
    async def on_start(self) -> None:
        self.sql("CREATE TABLE IF NOT EXISTS heard (word VARCHAR)")

    @exposed
    def hear(self, word: str) -> None:
        self.sql("INSERT INTO heard VALUES ($1)", [word])

    @exposed(repeatable=True)
    def heard(self) -> list[str]:
        return [word for (word,) in self.sql("SELECT word FROM heard")]


class CallCounter(Agent):
    @exposed
    def count(self, *, in_table: bool) -> int:
        if not in_table:
            self.state["count"] = self.state.get("count", 0) + 1
            return int(self.state["count"])
        self.sql("CREATE TABLE IF NOT EXISTS counted (n INTEGER)")
        self.sql("INSERT INTO counted SELECT count(*) + 1 FROM counted")
        return int(self.sql("SELECT max(n) FROM counted")[0][0])


class FamilyHead(Agent):
    """Tells the members of its family each word once, however often it is asked to."""

    @exposed(repeatable=True)
    def spread(self, words: list[str], names: list[str]) -> None:
        # New words are told with this transaction.
        with self.transaction():
            self.sql("CREATE TABLE IF NOT EXISTS spread (word VARCHAR PRIMARY KEY)")
            known = {word for (word,) in self.sql("SELECT word FROM spread")}
            fresh = [word for word in words if word not in known]
            self.sql("INSERT INTO spread SELECT unnest($1)", [fresh])
            for word, name in product(fresh, names):
                tell(self.sub_agent(Member, name).hear, word)

    @exposed(repeatable=True)
    async def heard(self, name: str) -> list[str]:
        member: Any = self.sub_agent(Member, name)
        return list(await member.heard())

    @exposed(repeatable=True)
    def drop(self, name: str) -> None:
        self.sub_agents.delete(Member, name)
