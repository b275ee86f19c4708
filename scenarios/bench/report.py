"""Figures with goals and baselines, what measurements share, and the report."""

from __future__ import annotations

import gc
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil
from rich.console import Console
from rich.table import Table

from perdure import actors
from perdure.actors import Agent
from perdure.actors.ray_world.os_processes import ProcessId, cpu_s
from perdure.ledger import BadRequest
from perdure.policies import Limits

if TYPE_CHECKING:
    from perdure.actors import Runtime

CALM_S, CALM_SHARE = 0.5, 0.2  # less than this share of a core for so long is quiet
SPINNER = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"


@dataclass(frozen=True)
class Goal:
    """A bound for the median."""

    bound: float
    at_least: bool = False

    def is_met(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.bound:,g}"


def at_most(bound: float) -> Goal:
    return Goal(bound)


def at_least(bound: float) -> Goal:
    return Goal(bound, at_least=True)


@dataclass(frozen=True)
class Baseline:
    """The same without Perdure, measured in the same run."""

    name: str
    median: float


@dataclass(frozen=True)
class Figure:
    """One measured quantity, with the value of each repeat."""

    name: str
    unit: str
    values: Sequence[float]
    goal: Goal | None = None
    baseline: Baseline | None = None

    @property
    def median(self) -> float:
        """The value that is compared with the goal."""
        return statistics.median(self.values)

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None without one."""
        return None if self.goal is None else self.goal.is_met(self.median)

    def to_plain(self) -> dict[str, Any]:
        """As `--json` prints it."""
        baseline = (
            None if self.baseline is None else {"name": self.baseline.name, "median": rounded(self.baseline.median)}
        )
        return {
            "name": self.name,
            "unit": self.unit,
            "min": rounded(min(self.values)),
            "median": rounded(self.median),
            "max": rounded(max(self.values)),
            "goal": None if self.goal is None else f"{self.goal} {self.unit}".rstrip(),
            "baseline": baseline,
            "met": self.met,
        }


def rounded(value: float) -> float:
    return float(f"{value:.4g}")


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclass(frozen=True)
class Bench:
    """The context of a measurement: its directory, its size, and where it reports progress."""

    data: Path
    quick: bool = False
    say: Callable[[str], None] = print
    load: int = 0

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    @contextmanager
    def spinning(self) -> Iterator[None]:
        """With `load` processes beside it that only compute. They end with this one, or with the block."""
        spinners = [subprocess.Popen([sys.executable, "-c", SPINNER]) for _ in range(self.load)]
        try:
            yield
        finally:
            for each in spinners:
                each.kill()
                each.wait()

    @contextmanager
    def cluster(self, name: str, **limits: Any) -> Iterator[Runtime]:
        """A new Ray on a new directory, with its warm hosts up. The heap of this process is left alone meanwhile."""
        runtime = actors.Runtime(self.data / name, address="local", limits=Limits(**limits))
        with runtime:
            wait_for(lambda: hosts_up(runtime) >= runtime.limits.hosts_warm)
            calm(runtime)
            with own_heap_left_alone():
                yield runtime


class Listener:
    """A callback that keeps each event of a stream, with the time when it came."""

    def __init__(self) -> None:
        self.heard: list[tuple[float, dict[str, Any]]] = []

    async def on_event(self, event: dict[str, Any]) -> None:
        self.heard.append((time.monotonic(), event))


@contextmanager
def own_heap_left_alone() -> Iterator[None]:
    """Inside, the garbage collector passes over what is in memory now. A search through it held up what is measured here for 0.17 s."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def repeatedly(measure: Callable[[], float], pause_s: float) -> Iterator[list[float]]:
    """Measure again and again on a thread of its own, as long as the block lasts."""
    seen: list[float] = []
    over = threading.Event()

    def go_on() -> None:
        while not over.wait(pause_s):
            seen.append(measure())

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def took_ms(call: Callable[[], object]) -> float:
    """How long a call takes."""
    begun_s = time.perf_counter()
    call()
    return (time.perf_counter() - begun_s) * 1000


def handle(runtime: Runtime, agent_class: type[Agent], name: str) -> Any:
    """A handle whose methods block: this is sync code."""
    return runtime.agent(agent_class, name)


def hosts_up(runtime: Runtime) -> int:
    return sum(host["up"] for host in runtime.ps()["hosts"])


def process_of(runtime: Runtime, key: str) -> ProcessId:
    """The process of a host or of the `supervisor`."""
    return runtime.cluster.processes()[key].process


def host_of_agent(runtime: Runtime, name: str) -> str:
    """The id of the host in which an agent lives. Raises `StopIteration` if it sleeps."""
    return str(next(host for agent, host, _ in runtime.ps()["agents"] if agent.partition("@")[0] == name and host))


def until_asleep(runtime: Runtime, patience_s: float, until_s: float = 0.0) -> None:
    """Wait until no agent is awake, or until that time."""

    def is_so() -> bool:
        return not any(host["tenants"] for host in runtime.ps()["hosts"]) or 0 < until_s <= time.time()

    wait_for(is_so, patience_s)


def calm(runtime: Runtime, patience_s: float = 20.0) -> None:
    """Wait until the supervisor and the hosts are idle, at most for a while."""
    before_s, end_s = cpu_s(runtime.cluster.pids()), time.monotonic() + patience_s
    while time.monotonic() < end_s:
        time.sleep(CALM_S)
        now_s = cpu_s(runtime.cluster.pids())
        if now_s - before_s < CALM_S * CALM_SHARE:
            return
        before_s = now_s


def wait_for(condition: Callable[[], Any], patience_s: float = 60.0, pause_s: float = 0.01) -> Any:
    """Return the first true value of the condition. Raises `TimeoutError`."""
    end_s = time.monotonic() + patience_s
    while not (found := condition()):
        if time.monotonic() > end_s:
            raise TimeoutError(f"nothing came of it within {patience_s:.0f} s")
        time.sleep(pause_s)
    return found


def pss_mb(pids: Sequence[int]) -> float:
    """The memory of these processes. Shared memory counts once, and ended processes do not count."""
    total = 0
    for pid in pids:
        with suppress(psutil.Error):
            total += psutil.Process(pid).memory_full_info().pss
    return total / 2**20


def machine() -> dict[str, Any]:
    return {
        "cores": len(psutil.Process().cpu_affinity()),
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "cpu": _cpu(),
        "python": platform.python_version(),
        "ray": version("ray"),
        "duckdb": version("duckdb"),
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def report(figures: Sequence[dict[str, Any]], failures: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """The object that `--json` prints."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {"machine": machine(), "date": now, "figures": list(figures), "failures": list(failures)}


class Shape(NamedTuple):
    """How the figures of a report are shown.

    Args:
        line: a figure in a pipe.
        columns: the headings on a terminal.
        cells: a figure's row there.
    """

    line: Callable[[dict[str, Any]], str]
    columns: tuple[str, ...]
    cells: Callable[[dict[str, Any]], Iterable[str]]


def show(told: dict[str, Any], shape: Shape | None = None) -> None:
    """A table on a terminal, plain lines in a pipe."""
    shape = shape or Shape(line, ("figure", "", "min", "median", "max", "goal", "baseline"), _cells)
    if not sys.stdout.isatty():
        print(where(told))
        for figure in told["figures"]:
            print(shape.line(figure))
        for failure in told["failures"]:
            print(f"{failure['group']}: FAILED, {failure['cause']}")
        return
    table, blanks = Table(*shape.columns, caption=where(told)), [""] * (len(shape.columns) - 3)
    for figure in told["figures"]:
        table.add_row(*shape.cells(figure), style="yellow" if figure.get("met") is False else "")
    for failure in told["failures"]:
        before, after = blanks[: len(blanks) // 2], blanks[len(blanks) // 2 :]
        table.add_row(failure["group"], *before, "failed", *after, failure["cause"], style="red")
    Console().print(table)


def where(told: dict[str, Any]) -> str:
    """The machine and the date of a report."""
    about = told["machine"]
    software = f"Python {about['python']}, Ray {about['ray']}, DuckDB {about['duckdb']}"
    return f"{about['cores']} cores ({about['cpu']}), {about['memory_gb']} GB, {software}, {told['date']}"


def line(figure: dict[str, Any]) -> str:
    """A figure in one line."""
    told = f"{figure['name']}: {figure['median']:,g} {figure['unit']} ({figure['min']:,g} to {figure['max']:,g})"
    if figure["goal"] is not None:
        told += f"; goal {figure['goal']}, {'met' if figure['met'] else 'MISSED'}"
    if figure["baseline"] is not None:
        told += f"; {figure['baseline']['name']}: {figure['baseline']['median']:,g}"
    return told


def _cells(figure: dict[str, Any]) -> Iterator[str]:
    yield figure["name"]
    yield figure["unit"]
    for key in ("min", "median", "max"):
        yield f"{figure[key]:,g}"
    yield "" if figure["goal"] is None else f"{figure['goal']} {'✓' if figure['met'] else '✗'}"
    yield "" if figure["baseline"] is None else f"{figure['baseline']['name']}: {figure['baseline']['median']:,g}"


def known(name: str, names: Sequence[str]) -> str:
    """Return the name. Raises `BadRequest` for an unknown one."""
    if name not in names:
        raise BadRequest("only", f"{name!r} is not one of {', '.join(names)}")
    return name
