"""The agents of `perdure run jobs`: desks that accept jobs, and whose reports are compared with a plain loop.

A job is a fiber of its desk, a schedule that starts one, or a queued item. Some fail at first, some always, and some are cancelled.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from functools import partial
from typing import Any, Final, Literal

from pydantic import BaseModel

from perdure import Agent, FiberContext, FiberRetry, Occurrence, exposed
from perdure.actors import QueuedItem, Schedule

Kind = Literal["plain", "flaky", "hopeless", "cancelled", "scheduled", "queued"]
KINDS: Final[dict[Kind, int]] = {"plain": 50, "flaky": 12, "hopeless": 4, "cancelled": 8, "scheduled": 16, "queued": 10}
"""The kinds of a hundred jobs."""

STEPS: Final = 3
HOPELESS_TRIES: Final = 3
PATIENT: Final = FiberRetry(attempts_max=1_000, first_ms=50, most_ms=1_000)
HOPELESS: Final = FiberRetry(attempts_max=HOPELESS_TRIES, first_ms=50, most_ms=200)

TABLES: Final = (
    "CREATE TABLE IF NOT EXISTS accepted (key VARCHAR PRIMARY KEY)",
    "CREATE TABLE IF NOT EXISTS results (key VARCHAR, total BIGINT)",
    "CREATE TABLE IF NOT EXISTS fired (key VARCHAR, early_ms BIGINT)",
    "CREATE TABLE IF NOT EXISTS served (place BIGINT, key VARCHAR)",
)


FRUITLESS: Final = ("hopeless", "cancelled")
PROGRESS: Final = """
    SELECT (SELECT count(*) FROM results) + (SELECT count(*) FROM served),
        (SELECT count(*) FROM accepted WHERE NOT regexp_matches(key, $1))
"""


class Job(BaseModel):
    """One job. `rest_ms` is the pause of each step, or before an item is served, and `delay_ms` the delay of a scheduled job."""

    key: str
    kind: Kind
    number: int
    fails: int = 0
    rest_ms: int = 0
    delay_ms: int = 0


class JobsLeft(BaseModel):
    """How many jobs of a desk are left."""

    left: int


class Report(BaseModel):
    """Everything that a desk knows of its jobs."""

    statuses: dict[str, str]
    results: list[tuple[str, int]]
    fired: list[tuple[str, int]]
    served: list[str]
    parked: list[str]


def part_of(number: int, step: int) -> int:
    return sum(value * value % 97 for value in range(number % 500 + step))


def total_of(number: int) -> int:
    return sum(part_of(number, step) for step in range(STEPS))


def draw_jobs(count: int, seed: int, spread_s: float, *, drained: bool = False) -> list[Job]:
    """Draw jobs. Their delays and pauses are spread over `spread_s`, and with `drained` the draining of the queue too."""
    die = random.Random(f"{seed} jobs")
    kinds = die.choices(list(KINDS), list(KINDS.values()), k=count)
    jobs = []
    for number, kind in enumerate(kinds):
        job = Job(key=f"{kind}-{seed}-{number}", kind=kind, number=number)
        job.fails = die.randint(1, 2) if kind == "flaky" else 0
        job.rest_ms = int(die.random() * spread_s * 1000 / STEPS) if kind in ("plain", "flaky") else 0
        job.delay_ms = int(die.random() * spread_s * 1000) if kind == "scheduled" else 0
        jobs.append(job)
    if drained:
        items = [job for job in jobs if job.kind == "queued"]
        for job in items:
            job.rest_ms = int(spread_s * 1000 / len(items))
    return jobs


class JobDesk(Agent):
    """Accepts each job once, and does it."""

    @exposed(repeatable=True)
    def accept(self, jobs: list[Job]) -> int:
        """Accept these jobs, all or none. Returns how many are new."""
        with self.transaction():
            for table in TABLES:
                self.sql(table)
            known = {key for (key,) in self.sql("SELECT key FROM accepted")}
            fresh = [job for job in jobs if job.key not in known]
            self.sql("INSERT INTO accepted SELECT unnest($1)", [[job.key for job in fresh]])
            self.fibers.start([self._fiber(job) for job in fresh if job.kind not in ("scheduled", "queued")])
            for job in fresh:
                if job.kind == "scheduled":
                    self.schedule(job.delay_ms / 1000, "due", job.model_dump(), key=job.key)
                elif job.kind == "queued":
                    self.queue("serve_slowly" if job.rest_ms else "serve", job.model_dump(), key=job.key)
        return len(fresh)

    def _fiber(self, job: Job) -> dict[str, Any]:
        retry = HOPELESS if job.kind == "hopeless" else PATIENT
        body = "wait" if job.kind == "cancelled" else "work"
        given = job.model_dump()
        return {"name": job.kind, "fn_name": body, "input": given, "idempotency_key": job.key, "retry": retry}

    async def work(self, fiber: FiberContext, input: dict[str, Any]) -> int:
        # Its result is written once.
        job, total = Job(**input), 0
        if job.kind == "hopeless" or fiber.attempt <= job.fails:
            raise RuntimeError(f"attempt {fiber.attempt} of {job.key} fails")
        for step in range(STEPS):
            total += await fiber.step(f"part {step}", partial(self._part, job, step))
        with self.transaction():
            if not self.sql("SELECT 1 FROM results WHERE key = $1", [job.key]):
                self.sql("INSERT INTO results VALUES ($1, $2)", [job.key, total])
        return total

    async def _part(self, job: Job, step: int) -> int:
        await asyncio.sleep(job.rest_ms / 1000)
        return part_of(job.number, step)

    async def wait(self, fiber: FiberContext, input: dict[str, Any]) -> None:
        # It will be cancelled, and never ends of itself.
        await fiber.cancelled.wait()

    def due(self, payload: dict[str, Any], occurrence: Occurrence) -> None:
        # The record and the fiber become durable together.
        early_ms = occurrence.scheduled_at_ms - self._perdure.now_ms()
        self.sql("INSERT INTO fired VALUES ($1, $2)", [payload["key"], early_ms])
        self.fibers.start([self._fiber(Job(**payload))])

    async def serve_slowly(self, payload: dict[str, Any], occurrence: Occurrence) -> None:
        await asyncio.sleep(payload["rest_ms"] / 1000)
        self.serve(payload, occurrence)

    def serve(self, payload: dict[str, Any], occurrence: Occurrence) -> None:
        self.sql("INSERT INTO served SELECT count(*), $1 FROM served", [payload["key"]])

    @exposed(repeatable=True)
    def cancel(self, keys: list[str]) -> int:
        """Cancel these. Returns how many were open."""
        return sum(self.cancel_fiber_by_key(key, "not wanted any more") for key in keys)

    @exposed(repeatable=True)
    def progress(self) -> JobsLeft:
        done, wanted = self.sql(PROGRESS, [f"^({'|'.join(FRUITLESS)})-"])[0]
        left = wanted - done
        if not left:  # fruitless jobs take longer to look at
            left = sum(not each.is_settled for each in self._fibers())
        return JobsLeft(left=left)

    @exposed(repeatable=True)
    def report(self) -> Report:
        parked: list[Schedule | QueuedItem] = [
            *self.schedules.list(status="parked", limit=1_000),
            *self.queued.list(status="parked"),
        ]
        return Report(
            statuses={str(each.idempotency_key): each.status for each in self._fibers()},
            results=self.sql("SELECT key, total FROM results"),
            fired=self.sql("SELECT key, early_ms FROM fired"),
            served=[key for (key,) in self.sql("SELECT key FROM served ORDER BY place")],
            parked=[str(row.key) for row in parked],
        )

    def _fibers(self) -> list[Any]:
        found, cursor = list[Any](), None
        while True:
            page = self.list_fibers(limit=500, cursor=cursor)
            found += page
            cursor = page.cursor
            if cursor is None:
                return found


ENDS: Final[dict[str, tuple[str, ...]]] = {
    "hopeless": ("error", "interrupted"),  # its last try may die instead of failing
    "cancelled": ("aborted",),
    "queued": ("unknown",),  # no fiber does it
}


def wrong_jobs(jobs: list[Job], told: Report) -> list[str]:
    """The problems in the report of a desk, in sentences."""
    wrong = [f"{key} is parked" for key in told.parked]
    results = Counter(key for key, _ in told.results)
    totals, fired = dict(told.results), Counter(key for key, _ in told.fired)
    wrong += [f"{key} fired {early_ms} ms before its time" for key, early_ms in told.fired if early_ms > 0]
    for job in jobs:
        status, written = told.statuses.get(job.key, "unknown"), results[job.key]
        expected = ENDS.get(job.kind, ("completed",))
        if status not in expected:
            wrong.append(f"{job.key} is {status}, and should be {' or '.join(expected)}")
        if written != (expected == ("completed",)):
            wrong.append(f"{job.key} has {written} results")
        elif written and totals[job.key] != total_of(job.number):
            wrong.append(f"{job.key} came to {totals[job.key]}, and should come to {total_of(job.number)}")
        if fired[job.key] != (job.kind == "scheduled"):
            wrong.append(f"{job.key} fired {fired[job.key]} times")
    queued = [job.key for job in jobs if job.kind == "queued"]
    if told.served != queued:
        missing, twice = set(queued) - set(told.served), len(told.served) - len(set(told.served))
        wrong.append(
            f"the queue served {len(told.served)} of {len(queued)}, {twice} twice, {len(missing)} never, or out of order"
        )
    return wrong
