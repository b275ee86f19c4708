"""The agents of `perdure run fan-out`: a census of the Python standard library, with one child for each source file.

`count_plainly` does the same in one process.
"""

from __future__ import annotations

import ast
import asyncio
import os
import sysconfig
from hashlib import blake2b
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from perdure import Agent, Detached, RunContext, RunInfo, RunResult, exposed

BRANCHES = (ast.If, ast.For, ast.While, ast.Try, ast.With, ast.Match, ast.IfExp, ast.BoolOp, ast.comprehension)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class SourceFile(BaseModel):
    """One file to read. `copy_number` tells runs over the same file apart. `rest_ms` stands for the time of a model or a network."""

    path: str
    copy_number: int = 0
    rest_ms: int = 0


class Findings(BaseModel):
    """What a file contains. `digest` is the start of a hash of its bytes."""

    definitions: int
    branches: int
    lines: int
    digest: str


class CensusOrder(BaseModel):
    """Which files to count."""

    files: list[SourceFile]


class Totals(BaseModel):
    """The sum over all files. `digest` is the exclusive or of their digests, so the order does not matter."""

    files: int = 0
    definitions: int = 0
    branches: int = 0
    lines: int = 0
    digest: int = 0

    def plus(self, findings: Findings) -> Totals:
        return Totals(
            files=self.files + 1,
            definitions=self.definitions + findings.definitions,
            branches=self.branches + findings.branches,
            lines=self.lines + findings.lines,
            digest=self.digest ^ int(findings.digest, 16),
        )


def standard_library() -> list[Path]:
    skipped = {"site-packages", "test", "tests", "lib2to3", "__pycache__", "idle_test"}
    found: list[Path] = []
    for folder, below, names in os.walk(sysconfig.get_path("stdlib")):
        below[:] = [name for name in below if name not in skipped]
        found.extend(Path(folder, name) for name in names if name.endswith(".py"))
    return sorted(found)


def files_for(count: int) -> list[SourceFile]:
    # Files repeat when there are more children.
    paths = standard_library()
    return [SourceFile(path=str(paths[index % len(paths)]), copy_number=index // len(paths)) for index in range(count)]


def examine(source: bytes) -> Findings:
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    return Findings(
        definitions=sum(isinstance(node, DEFINITIONS) for node in nodes),
        branches=sum(isinstance(node, BRANCHES) for node in nodes),
        lines=source.count(b"\n"),
        digest=blake2b(source, digest_size=7).hexdigest(),
    )


def count_plainly(files: list[SourceFile]) -> Totals:
    known: dict[str, Findings] = {}
    totals = Totals()
    for file in files:
        if file.path not in known:
            known[file.path] = examine(Path(file.path).read_bytes())
        totals = totals.plus(known[file.path])
    return totals


class Reader(Agent):
    """Reads one file, with progress, two milestones, and its findings in its storage."""

    async def run(self, input: SourceFile, run: RunContext) -> Findings:
        source = Path(input.path).read_bytes()  # noqa: ASYNC240 - a small local file
        await run.report_progress(0.2, phase="reading", message=f"{len(source)} bytes")
        self.sql("CREATE TABLE IF NOT EXISTS findings(name VARCHAR PRIMARY KEY, amount BIGINT)")
        await run.report_progress(milestone="read", data={"bytes": len(source)})
        if input.rest_ms:
            await run.report_progress(0.4, phase="resting", message=f"{input.rest_ms} ms")
            await self._rest(input.rest_ms / 1000, run)
        found = examine(source)
        await run.report_progress(0.7, phase="counting", message=f"{found.definitions} definitions")
        with self.transaction():
            for name in ("definitions", "branches", "lines"):
                self.sql("INSERT OR REPLACE INTO findings VALUES ($1, $2)", [name, getattr(found, name)])
        await run.report_progress(milestone="counted")
        rows = dict(self.sql("SELECT name, amount FROM findings"))
        await run.report_progress(1.0, phase="done")
        return Findings(digest=found.digest, **rows)

    async def _rest(self, rest_s: float, run: RunContext) -> None:
        # A later attempt waits for the rest of it, and at least for a quarter of it.
        clock = asyncio.get_running_loop()
        until_s = run.step("rest", lambda: clock.time() + rest_s)
        least_s = 0.0 if run.attempt == 1 else rest_s / 4
        await asyncio.sleep(min(rest_s, max(least_s, until_s - clock.time())))


class Census(Agent):
    """Has a child count each file, and adds their findings up in its storage."""

    stands_alone = True

    async def on_start(self) -> None:
        # Without a key, so that a second delivery would show.
        self.sql("CREATE TABLE IF NOT EXISTS delivered(run_id VARCHAR, status VARCHAR)")

    @exposed(repeatable=True)
    async def take(self, order: CensusOrder) -> int:
        """Request all runs, detached, in one transaction and only once."""
        with self.transaction():
            if self.state.get("asked"):
                return len(order.files)
            self.run_agent_tools([(Reader, file) for file in order.files], detached=Detached(on_finish="on_read"))
            self.state["asked"] = len(order.files)
        return len(order.files)

    def on_read(self, run: RunInfo, result: RunResult) -> None:
        # In the transaction that consumes the completion.
        self.sql("INSERT INTO delivered VALUES ($1, $2)", [run.run_id, result.status])
        if result.ok:
            self.state["totals"] = Totals(**self.state.get("totals", {})).plus(result.output).model_dump()

    @exposed(repeatable=True)
    def report(self) -> dict[str, Any]:
        deliveries, distinct = self.sql("SELECT count(*), count(DISTINCT run_id) FROM delivered")[0]
        totals = self.state.get("totals", {})
        return {"asked": self.state.get("asked", 0), "deliveries": deliveries, "distinct": distinct, "totals": totals}

    async def run(self, input: CensusOrder, run: RunContext) -> Totals:
        # After a death it requests the same runs, and takes existing results.
        totals = Totals()
        count = len(input.files)
        async for result in self.as_completed([(Reader, file) for file in input.files]):
            totals = totals.plus(result.output)
            await run.report_progress(
                totals.files / max(count, 1), phase="counting", message=f"{totals.files} of {count} files"
            )
        return totals
