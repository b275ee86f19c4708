"""What measurements share: a place to measure in, clocks, waits, and looks at processes."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import psutil

from perdure import Agent, Limits, actors
from perdure.actors.ray_world.os_processes import ProcessId, cpu_s
from perdure.ledger import is_url

if TYPE_CHECKING:
    from perdure import Runtime

T = TypeVar("T")

CALM_S, CALM_SHARE = 0.5, 0.2  # less than this share of a core for so long is quiet
CALM_MAX_S = 20.0  # the longest wait for that
SPINNER = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclass(frozen=True)
class Bench:
    """The context of a measurement: its directory, its size, where it reports progress, and the bucket that it measures, if any."""

    data: Path
    quick: bool = False
    say: Callable[[str], None] = print
    load: int = 0
    bucket: str = ""

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def folder(self, name: str) -> Path:
        place = self.data / name
        place.mkdir(parents=True)
        return place

    @contextmanager
    def spinning(self) -> Iterator[None]:
        # They end with this process, too.
        spinners = [subprocess.Popen([sys.executable, "-c", SPINNER]) for _ in range(self.load)]
        try:
            yield
        finally:
            for each in spinners:
                each.kill()
                each.wait()

    @contextmanager
    def cluster(self, name: str, **limits: Any) -> Iterator[Runtime]:
        """A new Ray on a new directory, or on that bucket if the name is its URL, with its warm hosts up. The heap of this process is left
        alone meanwhile."""
        runtime = actors.Runtime(name if is_url(name) else self.data / name, address="local", limits=Limits(**limits))
        with runtime:
            wait_for(lambda: len(hosts_up(runtime)) >= runtime.limits.hosts_warm)
            calm(runtime)
            with own_heap_left_alone():
                yield runtime


class Listener:
    def __init__(self) -> None:
        self.heard: list[tuple[float, dict[str, Any]]] = []

    async def on_event(self, event: dict[str, Any]) -> None:
        self.heard.append((time.monotonic(), event))


@contextmanager
def own_heap_left_alone() -> Iterator[None]:
    # A search through the heap held up what is measured here for 0.17 s.
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def repeatedly(measure: Callable[[], float], pause_s: float) -> Iterator[list[float]]:
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
    begun_s = time.perf_counter()
    call()
    return (time.perf_counter() - begun_s) * 1000


def handle(runtime: Runtime, agent_class: type[Agent], name: str) -> Any:
    # This is sync code, where its methods block.
    return runtime.agent(agent_class, name)


def hosts_up(runtime: Runtime) -> set[str]:
    return {str(host["host"]) for host in runtime.ps()["hosts"] if host["up"]}


def process_of(runtime: Runtime, key: str) -> ProcessId:
    return runtime.cluster.processes()[key].process


def host_of_agent(runtime: Runtime, name: str) -> str:
    """The id of the host in which an agent lives. Raises `StopIteration` if it sleeps."""
    return str(next(host for agent, host, _ in runtime.ps()["agents"] if agent.partition("@")[0] == name and host))


def until_asleep(runtime: Runtime, patience_s: float, until_s: float = 0.0) -> None:

    def is_so() -> bool:
        return not any(host["tenants"] for host in runtime.ps()["hosts"]) or 0 < until_s <= time.time()

    wait_for(is_so, patience_s)


def busy_share(pids: Sequence[int], seconds: float) -> float:
    before_s = cpu_s(pids)
    time.sleep(seconds)
    return (cpu_s(pids) - before_s) / seconds


def calm(runtime: Runtime) -> None:
    before_s, end_s = cpu_s(runtime.cluster.pids()), time.monotonic() + CALM_MAX_S
    while time.monotonic() < end_s:
        time.sleep(CALM_S)
        now_s = cpu_s(runtime.cluster.pids())
        if now_s - before_s < CALM_S * CALM_SHARE:
            return
        before_s = now_s


def wait_for(condition: Callable[[], T | None], patience_s: float = 60.0, pause_s: float = 0.01) -> T:
    """Return the first true value of the condition. Raises `TimeoutError`."""
    end_s = time.monotonic() + patience_s
    while not (found := condition()):
        if time.monotonic() > end_s:
            raise TimeoutError(f"nothing came of it within {patience_s:.0f} s")
        time.sleep(pause_s)
    return found


def pss_mb(pids: Sequence[int]) -> float:
    # Shared memory counts once, and ended processes do not count.
    total = 0
    for pid in pids:
        with suppress(psutil.Error):
            total += psutil.Process(pid).memory_full_info().pss
    return total / 2**20


def disk_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()) if directory.exists() else 0


def peak_mb(runtime: Runtime) -> AbstractContextManager[list[float]]:
    return repeatedly(lambda: pss_mb(runtime.cluster.pids()), 0.5)
