"""`perdure run fan-out`: one child agent for each file, while processes are killed (`by_progress`).

The work can be requested again after any death: `take` counts only once, and an awaited census is a run with its own id. The order and its
progress are kept in the directory, so another command can resume it.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

import typer
from pydantic import BaseModel, Field

from perdure import BadRequest, RunResult
from perdure.ledger import keep_whole
from perdure.scenarios.cast.census import (
    Census,
    CensusOrder,
    Totals,
    count_plainly,
    files_for,
    standard_library,
)
from perdure.scenarios.commands.options import AsJson, Data, TakeOver, World, WorldName
from perdure.scenarios.commands.shown import in_words, percentiles, rate
from perdure.scenarios.faults.chaos import MAIL, unbalanced
from perdure.scenarios.faults.strikes import Victim
from perdure.scenarios.stories.by_progress import Due, Scene, StruckScenario, draw_kills, left_of
from perdure.scenarios.stories.engine import perform, unwritable
from perdure.scenarios.stories.stage import RayStage, Stage

RECORD: Final = "scenario.json"


class Order(BaseModel):
    """The options of a fan-out.

    `number` tells the fan-outs of a directory apart. Each child rests a little longer over its file than the one before, up to `pace_s`,
    so the ends are spread.
    """

    children: int
    kills: int = 0
    seed: int = 0
    awaited: bool = False
    cold_restart: bool = False
    pace_s: float = 0.0
    number: int = 1

    @property
    def parent(self) -> str:
        return f"fan-out-{self.number}"


# It outlives the command. `before` is the account of mail at the begin.
class FanOutProgress(BaseModel):
    before: dict[str, int] | None = None
    struck: list[str] = []
    recovery_ms: list[float] = []
    seconds: float = 0.0


# Kept in a directory, or nowhere, for the simulated world.
class Logbook(BaseModel):
    order: Order
    progress: FanOutProgress = Field(default_factory=FanOutProgress)
    finished: bool = False
    path: Path | None = Field(default=None, exclude=True)

    def save(self) -> None:
        if self.path is None:
            return
        try:
            keep_whole(self.path, self.model_dump_json(indent=1).encode())
        except OSError as problem:
            raise unwritable(self.path.parent, problem) from problem


def read_book(data: Path) -> Logbook | None:
    """The last fan-out of this directory. Raises `BadRequest` if its record cannot be read."""
    path = data / RECORD
    try:
        return Logbook.model_validate_json(path.read_bytes()).model_copy(update={"path": path})
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as problem:
        raise BadRequest(
            "data", f"{path} cannot be read ({problem}); delete it to begin anew, the ledger is not touched"
        ) from problem


def begin_book(data: Path, order: Order, known: Logbook | None) -> Logbook:
    order.number = known.order.number + 1 if known is not None else 1
    book = Logbook(order=order, path=data / RECORD)
    book.save()
    return book


# `end` is the report of the census, or the result of the awaited one.
@dataclass
class Harvest:
    seconds: float
    audit: dict[str, Any]
    end: dict[str, Any] | RunResult
    statuses: Counter[str]
    left_out: Counter[str]

    def sums(self) -> tuple[Totals, int, int]:
        # The totals, the number of completions, and the number of different ones.
        if isinstance(self.end, dict):
            return Totals(**self.end["totals"]), self.end["deliveries"], self.end["distinct"]
        totals: Totals = self.end.output_or(Totals())
        return totals, totals.files, min(totals.files, self.statuses.total())


def account(order: Order, progress: FanOutProgress, harvest: Harvest) -> dict[str, int]:
    """The account of mail since the fan-out began, with doubled and lost completions."""
    assert progress.before is not None
    _, delivered, distinct = harvest.sums()
    since = {key: harvest.audit[key] - progress.before[key] for key in MAIL}
    return since | {"duplicated": delivered - distinct, "lost": order.children - distinct}


def wrong_of(order: Order, progress: FanOutProgress, harvest: Harvest) -> Iterator[str]:
    mail, statuses = account(order, progress, harvest), harvest.statuses
    totals, plain = harvest.sums()[0].model_dump(), count_plainly(files_for(order.children)).model_dump()
    for name, want in plain.items():
        if totals[name] != want:
            yield f"{name}: the agents counted {totals[name]}, a plain loop {want}"
    yield from unbalanced(harvest.audit)
    if mail["duplicated"]:
        yield f"{mail['duplicated']} completions were delivered twice"
    if mail["lost"]:
        yield f"{mail['lost']} completions were lost"
    if statuses["completed"] != order.children:
        yield f"{statuses['completed']} of {order.children} runs completed"
    if not isinstance(harvest.end, dict) and not harvest.end.ok:
        yield f"the census ended {harvest.end.status}: {harvest.end.error}"
    if statuses.total() != order.children:
        yield f"{statuses.total()} runs are known, {order.children} were asked for"


CHILDREN_MAX: Final = 200_000  # as many as may wait for a place
KILLS_MAX: Final = 1_000
PACE_MAX_S: Final = 3_600.0
KINDS: Final = ("child", "parent", "supervisor", "cluster")
KILL_S: Final = 2.0  # for a kill and its recovery, with a reserve
SLOWNESS: Final = 0.5  # of the start time of the world, for a kill on a slow machine


def kills_of(order: Order) -> Due:
    due = draw_kills(KINDS[:3], order.kills, order.children, order.seed)
    if order.cold_restart:
        due.append((order.children // 2, "cluster"))
    return sorted(due, key=lambda each: each[0])


def pace_for(order: Order, start_s: float = 0.0) -> float:
    kills = order.kills + 4 * order.cold_restart
    return kills * max(KILL_S, SLOWNESS * start_s)


async def runs_of(stage: Stage, order: Order) -> list[dict[str, Any]]:
    # One more than were asked for, if there are too many.
    parent = stage.agent_id(Census, order.parent)
    rows: list[dict[str, Any]] = await stage.ask("list", parent, None, None, order.children + 1)
    return rows


class FanOut(StruckScenario):
    """One fan-out. Without `pace_s` the order gets a pace that leaves time for the kills."""

    name: ClassVar[str] = "fan-out"

    def __init__(self, order: Order, pace_s: float | None = None, *, resume: bool = False) -> None:
        super().__init__(order.seed)
        self._is_paced, self._resume = pace_s is not None, resume
        order.pace_s = pace_s if pace_s is not None else pace_for(order)
        self._book = Logbook(order=order)
        self._work: asyncio.Task[Any] | None = None

    @property
    def _order(self) -> Order:
        return self._book.order

    @property
    def _progress(self) -> FanOutProgress:
        return self._book.progress

    # carrying on

    def joined(self, stage: RayStage) -> None:
        """Resume the fan-out that was interrupted here, or begin a new one."""
        known = read_book(stage.data)
        carried = known if self._resume and known is not None and not known.finished else None
        order = self._order if carried is None else carried.order
        if order.cold_restart and not stage.is_own:
            words = f"the cluster of {stage.data} was started by another process; stop that one first"
            raise BadRequest("cold-restart", words)
        if self._resume and carried is None:
            print("There is nothing to resume here, so a new fan-out begins.", file=sys.stderr)
        if not self._is_paced:
            self._order.pace_s = pace_for(self._order, stage.start_s)
        self._book = carried or begin_book(stage.data, order, known)
        self.seed = order.seed

    def stopped(self, data: Path) -> str:
        known = read_book(data)
        if known is None or known.finished:
            return "Stopped before it began."
        return f"Stopped. `{shlex.join(['perdure', 'run', self.name, '--resume', '--data', str(data)])}` carries on."

    # the work

    async def play(self, stage: Stage) -> None:
        self._stage, self._parent = stage, self._order.parent
        self.kills, self._earlier_s, self._began_s = (
            Counter(self._progress.struck),
            self._progress.seconds,
            stage.now_s(),
        )
        self.scene = Scene(self._order.children, kills=self.kills, recovery_ms=self._progress.recovery_ms)
        if self._progress.before is None:
            audit = await stage.ask("audit")
            self._progress.before = {key: audit[key] for key in MAIL}
            self._book.save()
        due = left_of(kills_of(self._order), self._progress.struck)
        self._begin_work()
        try:
            await self.direct(stage, due)
            self._harvest = await self._harvested(self.due)
            self._book.finished = True
        finally:
            self._end_work()
            self._progress.seconds = self._seconds()
            self._book.save()
        self.wrong += wrong_of(self._order, self._progress, self._harvest)

    def _begin_work(self) -> None:
        step_ms = self._order.pace_s * 1000 / self._order.children
        files = enumerate(files_for(self._order.children), 1)
        order = CensusOrder(files=[file.model_copy(update={"rest_ms": int(step_ms * at)}) for at, file in files])
        work = (
            self._stage.run(Census, order, self._parent)
            if self._order.awaited
            else self._stage.call(Census, self._parent, "take", order)
        )
        self._work = asyncio.get_running_loop().create_task(work)

    def _end_work(self) -> None:
        for task in (self._work, self.waking):
            if task is not None:
                task.cancel()

    def _seconds(self) -> float:
        return self._earlier_s + self._stage.now_s() - self._began_s

    async def _harvested(self, left: Due) -> Harvest:
        assert self._work is not None
        seconds, audit = self._seconds(), await self._stage.ask("audit")
        end = self._work.result() if self._order.awaited else await self._stage.call(Census, self._parent, "report")
        rows = await runs_of(self._stage, self._order)
        self.screen.show(self.scene)
        return Harvest(seconds, audit, end, Counter(row["status"] for row in rows), Counter(kind for _, kind in left))

    # what the kills ask

    async def look(self) -> None:
        overview = await self._stage.ask("ps", self._order.children + 1)
        overview["live"] = [
            row for row in overview["live"] if self._parent in (row["run_id"], row["parent"].partition("@")[0])
        ]
        scene = self.scene
        scene.overview, scene.seconds = overview, self._seconds()
        scene.ended = max(scene.ended, self._ended(overview))
        self.screen.show(scene)

    def _ended(self, overview: dict[str, Any]) -> int:
        # Each end is a mail, or is counted by the awaited run.
        if not self._order.awaited:
            assert self._progress.before is not None
            return int(overview["audit"]["enqueued"] - self._progress.before["enqueued"])
        own = next((row for row in overview["live"] if row["run_id"] == self._parent), None)
        fraction = ((own or {}).get("progress") or {}).get("fraction") or 0.0
        return round(fraction * self._order.children)

    def is_over(self) -> bool:
        assert self._work is not None
        scene = self.scene
        if self._work.done():
            self._work.result()  # what it raises ends the story
        if self._order.awaited:
            return self._work.done()
        return self._work.done() and scene.ended >= scene.requested and scene.overview["audit"]["pending"] == 0

    def hosts_of(self, kind: str, overview: dict[str, Any]) -> set[str]:
        # If possible without the parent's, which is of another kind.
        parents = {host for agent, host, _ in overview["agents"] if agent.partition("@")[0] == self._parent}
        busy = {row["host"] for row in overview["live"] if row["status"] == "running" and row["run_id"] != self._parent}
        return parents if kind == "parent" else (busy - parents or busy)

    def wake(self, kinds: set[str]) -> None:
        # While the parent sleeps it has no process.
        if "parent" in kinds and not self._order.awaited:
            self.wake_by(self._stage, Census, self._parent, "report")

    async def strike(self, stage: Stage, kind: str, victim: Victim, aside: str) -> None:
        if kind == "cluster":
            self._end_work()
        await self.kill(stage, kind, victim, aside)
        if kind == "cluster":
            self._begin_work()
        self._progress.struck.append(kind)
        self._book.save()

    # the end

    def figures(self) -> dict[str, Any]:
        harvest = self._harvest
        runs = {"requested": sum(harvest.statuses.values())}
        runs |= {status: harvest.statuses[status] for status in ("completed", "error", "aborted", "interrupted")}
        return {
            "runs": runs,
            "deliveries": account(self._order, self._progress, harvest),
            "kills": {kind: self.kills[kind] for kind in KINDS},
            "kills_left_out": dict(harvest.left_out),
            "seconds": round(harvest.seconds, 3),
            "runs_per_second": rate(runs["completed"], harvest.seconds),
            "recovery_ms": percentiles(self._progress.recovery_ms),
        }

    def sentences(self, told: dict[str, Any]) -> list[str]:
        runs, mail, recovery = told["runs"], told["deliveries"], told["recovery_ms"]
        took = f"{told['seconds']:.1f} s ({told['runs_per_second']:.3g} a second)"
        ways = " + ".join(f"{mail[way]} {way}" for way in MAIL[1:])
        said = [
            f"{runs['completed']} of {runs['requested']} runs completed in {took}.",
            f"Killed: {in_words(told['kills'])}.",
            f"Mail: {mail['enqueued']} enqueued = {ways}; {mail['duplicated']} duplicated, {mail['lost']} lost.",
        ]
        if recovery["max"]:
            said[1] += f" At work again after {recovery['p50']:.0f} ms (worst {recovery['max']:.0f} ms)."
        if told["kills_left_out"]:
            said.insert(
                2,
                f"Not killed, although asked for: {in_words(told['kills_left_out'])}. The work was done before that was due, or had"
                " anybody to hit; more --children or a longer --pace leave time for it.",
            )
        if told["verified"]:
            said.append("Verified: the agents' totals equal those of a plain loop over the same files.")
        return said


def run_fan_out(
    children: Annotated[
        int | None, typer.Option(min=1, max=CHILDREN_MAX, help="Number of child agents; by default one for each file.")
    ] = None,
    kills: Annotated[
        int, typer.Option(min=0, max=KILLS_MAX, help="Number of processes to kill: hosts and the supervisor.")
    ] = 3,
    seed: Annotated[int, typer.Option(help="Decides which process is killed when.")] = 0,
    awaited: Annotated[
        bool, typer.Option("--awaited", help="The parent awaits its runs; by default they are detached.")
    ] = False,
    cold_restart: Annotated[
        bool, typer.Option("--cold-restart", help="Half-way, kill everything, Ray included, and start again.")
    ] = False,
    pace: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=PACE_MAX_S,
            help="Seconds over which the children end, because each rests over its file;"
            " by default 2 for each kill, and more on a machine that is slow to start.",
        ),
    ] = None,
    world: World = WorldName.RAY,
    address: Annotated[
        str | None, typer.Option(help="A Ray cluster to join, as host:port; by default one is started.")
    ] = None,
    data: Data = Path("perdure-data"),
    take_over: TakeOver = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Carry on the fan-out that was interrupted in this directory.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Count the Python standard library with one child agent for each file, while processes are killed.

    It kills the host of a child, the host of the parent, and the supervisor, each kind once before any is repeated. When little work is
    left, the remaining kills follow at once; kills that could not be made are reported. At the end the result is compared with a plain loop
    over the same files, and every completion is accounted for. The exit code is 1 if anything differs.

    With --json the object has runs and deliveries (counts), kills and kills_left_out (counts by kind), seconds, runs_per_second,
    recovery_ms (p50, p99 and max of the time until everything was at work again), and verified.

    Examples:
        perdure run fan-out
        perdure run fan-out --children 60 --kills 5 --seed 7 --awaited
        perdure run fan-out --cold-restart --data ./census --json
        perdure run fan-out --resume --data ./census
        perdure run fan-out --address 10.0.0.1:6379 --data /mnt/perdure
        perdure run fan-out --world sim --children 20 --kills 10
    """
    count = len(standard_library()) if children is None else children
    order = Order(children=count, kills=kills, seed=seed, awaited=awaited, cold_restart=cold_restart)
    if world is WorldName.SIM:
        for given, option in ((resume, "resume"), (address, "address")):
            if given:
                raise BadRequest(option, "the simulated world keeps nothing and joins nothing; use it with --world ray")
    if address is not None and not address.strip():
        raise BadRequest("address", "is blank; name host:port of a Ray cluster, or leave it out")
    if cold_restart and address:
        raise BadRequest(
            "cold-restart", f"it would kill the whole cluster at {address}, which others may use; leave --address out"
        )
    perform(FanOut(order, pace, resume=resume), world, data, address, as_json=as_json, take_over=take_over)
