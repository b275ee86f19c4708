"""Agents on which the swarm tries runs that wait for others, and the first good answers of many.

An `Heir` waits, and gives back what it was given. It writes that down at each attempt, and so does a `Racer` with its winners: an attempt
that was given something else than the one before it shows.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from perdure import Agent, Detached, MilestoneOf, RunContext, RunFailed, all_of, any_of, n_of
from perdure.ledger import pack
from perdure.policies import Condition
from perdure.scenarios.cast.workers import Task, Worker

LOSERS: tuple[Literal["leave", "cancel"], ...] = ("leave", "cancel")


class JoinJob(BaseModel):
    """Tasks, and a run that waits for so many of them: for their ends, or for the first milestones of those that have one."""

    tasks: list[Task]
    count: int
    stones: bool = False
    nested: bool = False
    losers: Literal["leave", "cancel"] = "leave"
    max_budget_ms: float | None = None

    def condition(self, run_ids: list[str]) -> Condition:
        leaves: list[Condition | str] = [
            MilestoneOf(run_id, "first") if self.stones and task.milestones else run_id
            for run_id, task in zip(run_ids, self.tasks, strict=True)
        ]
        if self.nested:
            return all_of(n_of(self.count, *leaves), any_of(*leaves))
        return n_of(self.count, *leaves)

    def unlike(self, given: list[int | None]) -> str:
        """What is wrong with what an heir was given; empty if nothing is. A milestone is given as -1."""
        expected = [-1 if self.stones and task.milestones else task.total() for task in self.tasks]
        expected *= 2 if self.nested else 1
        if len(given) != len(expected) or any(had not in (None, due) for had, due in zip(given, expected, strict=True)):
            return f"it was given {given}, and the tasks give {expected}"
        found = sum(had is not None for had in given[: len(self.tasks)])
        return "" if found >= self.count else f"it began with {found} of {self.count}"


class JoinAccount(BaseModel):
    """What became of a run that waited, and of the runs for which it did."""

    status: str
    error: str = ""
    given: list[int | None] = []
    ends: list[str] = []


class JoinKeeper(Agent):
    """Writes down what an attempt was told, and refuses to go on if an earlier one was told something else."""

    def keep(self, told: object) -> None:
        with self.transaction():
            self.sql("CREATE TABLE IF NOT EXISTS kept (told BLOB)")
            self.sql("INSERT INTO kept VALUES ($1)", [pack(told)])
            every = {bytes(row) for (row,) in self.sql("SELECT told FROM kept")}
        if len(every) > 1:
            raise AssertionError(f"attempts were told different things: {told!r} is the last of {len(every)}")


# Totals of runs, -1 for a milestone, and None for what had not come true.
class Heir(JoinKeeper):
    async def run(self, input: None, run: RunContext) -> list[int | None]:
        given: list[int | None] = []
        for each in run.joined:
            if isinstance(each, dict) and "attempt" in each:
                given.append(-1)
            else:
                given.append(None if each is None else each.output["total"])
        self.keep(given)
        await run.report_progress(0.5, phase="was given it")
        return given


class Joiner(Agent):
    async def run(self, input: JoinJob, run: RunContext) -> JoinAccount:
        run_ids = [f"{run.run_id}/s{number}" for number in range(len(input.tasks))]
        for run_id, task in zip(run_ids, input.tasks, strict=True):
            await self.run_agent_tool(Worker, task, run_id=run_id, detached=Detached(max_budget_ms=input.max_budget_ms))
        after = input.condition(run_ids)
        heir = await self.run_agent_tool(Heir, None, run_id=f"{run.run_id}/heir", after=after, losers=input.losers)
        known = [await self.inspect_agent_tool_run(run_id) for run_id in run_ids]
        ends = ["cleared" if each is None else str(each["status"]) for each in known]
        return JoinAccount(status=heir.status, error=heir.error, given=heir.output_or([]), ends=ends)


class Racer(JoinKeeper):
    async def run(self, input: JoinJob, run: RunContext) -> JoinAccount:
        requests = [
            {"agent_class": Worker, "input": task, "run_id": f"{run.run_id}/r{number}"}
            for number, task in enumerate(input.tasks)
        ]
        try:
            winners = await self.first_ok(input.count, requests)
        except RunFailed as failed:
            return JoinAccount(status="error", error=failed.error)
        self.keep([each.run_id for each in winners])
        await run.report_progress(0.5, phase="has winners")
        totals = {f"{run.run_id}/r{number}": task.total() for number, task in enumerate(input.tasks)}
        fine = all(each.output.total == totals[each.run_id] for each in winners)
        return JoinAccount(status="completed" if fine else "wrong", given=[each.output.total for each in winners])
