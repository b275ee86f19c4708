"""`perdure soak`: the stories of `perdure run`, drawn one after the other on one cluster, for as long as you like.

Each leg (`soak_legs`) kills what its story kills: hosts, the supervisor, now and then everything at once; or it lets the machine hinder the
work. In between the directory is backed up while it is served. After each leg the processes and the directory are measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, NamedTuple

import psutil
import typer

from perdure.scenarios.commands.options import AsJson, Data, duration_ms
from perdure.scenarios.commands.shown import in_words
from perdure.scenarios.faults.chaos import live_in, unbalanced
from perdure.scenarios.stories.engine import Scenario, perform
from perdure.scenarios.stories.soak_legs import REST_S, Legs, beside, waited_for
from perdure.scenarios.stories.stage import RayStage, Stage

# What is measured between legs. The growth of a measure is the slope of the straight line that fits its samples best, an hour, as a share
# of their mean. The first third of the time is the warm-up, and does not count. Memory and disk are those of one retained run: a ledger
# that keeps more may hold more, but not more for each. File descriptors and threads are those of one process.
#
# What lies within twice the standard error of the slope may be chance, and only what is beyond that is judged. Hosts come and go with the
# legs, so a slope says nothing about the number of processes. If some of them stayed for ever, the fewest that are ever there would rise.

WARM_UP: Final = 1 / 3
JUDGED_FROM_S: Final = 1_200.0  # of samples after the warm-up; in less, a step looks like a slope
GROWTH_MAX: Final = 0.02  # an hour
FEWEST_MAX: Final = 1.5  # the fewest processes in the later half, over the fewest in the earlier one
PROCESSES: Final = "processes"


class Sample(NamedTuple):
    """One moment between two legs."""

    at_s: float
    retained: int  # ended runs in the ledger
    memory_mb: float  # of the supervisor and the hosts
    disk_mb: float  # of the data directory
    descriptors: int
    threads: int
    processes: int


class Growth(NamedTuple):
    """By which share of its mean a measure grows in an hour: most likely, and at least, as far as the samples tell."""

    likely: float
    sure: float


class Curve(NamedTuple):
    """One measure over a soak. `growth` is None with too few samples."""

    name: str
    first: float
    last: float
    growth: Growth | None


def curves(samples: Sequence[Sample]) -> list[Curve]:
    """Every measure, after the warm-up."""
    warm = warmed_up(samples)
    measures = {
        "memory_mb_per_1000_retained": [each.memory_mb / max(1, each.retained) * 1000 for each in warm],
        "disk_mb_per_1000_retained": [each.disk_mb / max(1, each.retained) * 1000 for each in warm],
        "descriptors_per_process": [each.descriptors / max(1, each.processes) for each in warm],
        "threads_per_process": [each.threads / max(1, each.processes) for each in warm],
        PROCESSES: [float(each.processes) for each in warm],
    }
    at_s = [each.at_s for each in warm]
    return [Curve(name, round(v[0], 3), round(v[-1], 3), growth(at_s, v)) for name, v in measures.items() if v]


def warmed_up(samples: Sequence[Sample]) -> list[Sample]:
    if not samples:
        return []
    begin_s, end_s = samples[0].at_s, samples[-1].at_s
    return [each for each in samples if each.at_s >= begin_s + (end_s - begin_s) * WARM_UP]


def growth(at_s: Sequence[float], values: Sequence[float]) -> Growth | None:
    """The slope of the line that fits best, and the slope less twice its standard error."""
    mean = statistics.fmean(values) if values else 0.0
    if len(values) < 3 or at_s[-1] <= at_s[0] or not mean:  # noqa: PLR2004 - a line through two points fits always
        return None
    line = statistics.linear_regression(at_s, values)
    squares = sum((value - line.slope * at - line.intercept) ** 2 for at, value in zip(at_s, values, strict=True))
    error = math.sqrt(squares / (len(values) - 2) / (statistics.pvariance(at_s) * len(at_s)))
    return Growth(*(round(slope * 3600 / mean, 4) for slope in (line.slope, line.slope - 2 * error)))


def grown(samples: Sequence[Sample]) -> list[str]:
    """What grows, in words. Nothing is said about a soak that is too short to tell."""
    warm = warmed_up(samples)
    if not warm or warm[-1].at_s - warm[0].at_s < JUDGED_FROM_S:
        return []
    said = [
        f"{curve.name} grows by {curve.growth.likely:.1%} an hour, from {curve.first:,g} to {curve.last:,g}; "
        f"at most {GROWTH_MAX:.0%} may be"
        for curve in curves(samples)
        if curve.name != PROCESSES and curve.growth is not None and curve.growth.sure > GROWTH_MAX
    ]
    half = len(warm) // 2
    before, after = (min(each.processes for each in part) for part in (warm[:half], warm[half:]))
    if after > FEWEST_MAX * before:
        said.append(f"there were never fewer than {after} processes in the later half, and {before} in the earlier one")
    return said


def told(samples: Sequence[Sample]) -> dict[str, Any]:
    """As `--json` prints it."""
    return {
        "samples": [each._asdict() for each in samples],
        "curves": {
            curve.name: {
                "first": curve.first,
                "last": curve.last,
                "growth": curve.growth and curve.growth.likely,
                "sure_growth": curve.growth and curve.growth.sure,
            }
            for curve in curves(samples)
        },
    }


LOOK_S: Final = 0.2
GONE_S: Final = 20.0  # for the processes of the cluster, after its end


class Soak(Scenario):
    """One soak. `wrong` has what any leg finds, and what grows."""

    name: ClassVar[str] = "soak"
    needs_own_cluster: ClassVar[bool] = True

    def __init__(self, for_s: float, seed: int) -> None:
        super().__init__(seed)
        self._for_s, self._legs = for_s, Legs(self, for_s)
        self._samples: list[Sample] = []
        self._data = Path()
        self._is_stopped = False
        self._before = {child.pid for child in psutil.Process().children(recursive=True)}

    @contextlib.contextmanager
    def surroundings(self, data: Path | None) -> Iterator[None]:
        assert data is not None
        self._data = data.resolve()
        with self._legs.surroundings(self._data):
            yield

    async def play(self, stage: Stage) -> None:
        assert isinstance(stage, RayStage)
        begun_s = stage.now_s()
        try:
            while stage.now_s() - begun_s < self._for_s:
                await self._legs.play(stage)
                await self._rest(stage)
                self._samples.append(await self._sample(stage, stage.now_s() - begun_s))
        except asyncio.CancelledError:
            self._is_stopped = True
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            self.screen.say("stopped; this is the report so far")
        await self._audit(stage)

    # between legs

    async def _rest(self, stage: Stage) -> None:

        async def is_quiet() -> bool:
            overview = await stage.ask("ps", 0)
            return not (live_in(overview) or overview["audit"]["pending"])

        if not await stage.until(is_quiet, REST_S, LOOK_S):
            left = await waited_for(stage, self._data / "agents")
            self.wrong.append(f"under way {REST_S:.0f} s after leg {self._legs.played.total()}: {left}")

    async def _sample(self, stage: RayStage, at_s: float) -> Sample:
        overview, pids = await stage.ask("ps", 0), await stage.pids()
        memory_mb, descriptors, threads, count = 0.0, 0, 0, 0
        for pid in pids:
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                memory_mb += process.memory_full_info().pss / 2**20
                descriptors += process.num_fds()
                threads += process.num_threads()
                count += 1
        retained = sum(overview["runs"].values()) - live_in(overview)
        disk_mb = await asyncio.to_thread(size_mb, self._data)
        return Sample(round(at_s, 1), retained, round(memory_mb, 1), round(disk_mb, 2), descriptors, threads, count)

    # the end

    async def _audit(self, stage: Stage) -> None:
        audit = await stage.ask("audit")
        self.wrong += unbalanced(audit)
        self.wrong += [f"a mail is parked: {each['mail_id']}, {each['error']}" for each in audit["parked_mail"]]
        self.wrong += grown(self._samples)

    def figures(self) -> dict[str, Any]:
        """See `perdure soak --help`. The cluster is gone: its processes must be too, and its files must be whole."""
        left = self._left_behind()
        self.wrong += [f"a process was left behind: {each}" for each in left]
        asyncio.run(self._examine())
        return {
            "legs": dict(self._legs.played),
            "kills": dict(self.kills),
            "seconds": round(self.seconds, 1),
            "stopped": self._is_stopped,
            **told(self._samples),
            "left_behind": left,
        }

    async def _examine(self) -> None:
        await self._legs.command("doctor", "--data", str(self._data))
        if self._legs.played["backup"]:
            target, copy = beside(self._data, "backups"), beside(self._data, "restored")
            await self._legs.command("restore", str(target), str(copy), "--replace")

    def _left_behind(self) -> list[str]:
        children = [each for each in psutil.Process().children(recursive=True) if each.pid not in self._before]
        _, alive = psutil.wait_procs(children, GONE_S)
        return [f"{each.pid} {each.name()}" for each in alive if each.is_running()]

    def sentences(self, told: dict[str, Any]) -> list[str]:
        said = [
            f"{in_words(told['legs'])} in {told['seconds']:.0f} s. Killed: {in_words(told['kills'])}.",
            *(
                f"{curve.name}: {curve.first:,g} to {curve.last:,g}"
                + (f", {curve.growth.likely:+.1%} an hour" if curve.growth is not None else "")
                for curve in curves(self._samples)
            ),
        ]
        if told["verified"]:
            said.append(
                "Verified: every leg, the audit, the doctor on the directory and on a restored backup; no process is left."
            )
        return said


def size_mb(directory: Path) -> float:
    total = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_blocks * 512
    return total / 2**20


def soak(
    lasting: Annotated[str, typer.Option("--for", help="How long legs are begun: 10m, 2h.", metavar="TIME")] = "30m",
    seed: Annotated[int, typer.Option(help="Decides the legs, their sizes and their kills.")] = 0,
    data: Data = Path("perdure-soak"),
    as_json: AsJson = False,
) -> None:
    """Play stories one after the other on one cluster, with kills, restarts and backups, and look whether anything grows.

    A leg is a fan-out, jobs, a turn of a chat agent or exchanges of people with a messenger agent, whose models are scripted. Each is
    checked as `perdure run` does. A drill is a fan-out that is struck as `perdure chaos` does it. In a stall the supervisor and all hosts
    stand still; in a leg `clock` the clocks of all processes are set forward and back while children, queues, schedules and fibers are at
    work. Either must cost no attempt, and lose nothing. In an upgrade a program comes with newer code while its agents are at work. With a
    full disk nothing can be written for a while: that is played only if DIR lies on a file system of at most 4 GB, which is then filled.
    A leg that does not end is given up, and what it waited for is told.

    After each leg the memory, file descriptors and threads of the supervisor and the hosts, and the disk, are measured. At the end come the
    audit, `doctor` on the directory and on a restored backup, and a look for processes left behind. Ctrl-C ends the soak with the report so
    far. The exit code is 1 if anything is wrong.

    The first third of the time is a warm-up. After it memory and disk for each retained run, and file descriptors and threads for each
    process, may grow by 2 % an hour, by the line that fits the samples best, less twice its standard error. Hosts come and go; the fewest
    processes in the later half may be half as many again as in the earlier one. Under 30 minutes that is told and not judged.

    With --json the object has legs, kills, seconds, stopped, samples, curves (first, last, and growth and sure_growth an hour as shares),
    left_behind and verified. Beside the directory lie DIR-backups, DIR-restored and DIR-clock.

    Examples:
        perdure soak --for 3m --seed 7
        perdure soak --for 2h --json
        mount -t tmpfs -o size=2g none small && perdure soak --data small/soak
    """
    perform(Soak(duration_ms(lasting, "for") / 1000, seed), "ray", data, as_json=as_json)
