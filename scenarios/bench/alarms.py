"""Alarms of sleeping agents: their idle cost, the boot of their ledger, and how late they ring."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

from perdure.actors import Runtime
from perdure.ledger import (
    Alarm,
    FactRow,
    HostView,
    Released,
    SupervisorStarted,
    View,
    apply_fact,
    assign_hosts,
    decide,
    dirty_records,
    expand_rows,
    meta_of,
    record_fact,
)
from perdure.ledger.store.duckdb_store import DuckDBStore
from perdure.scenarios.bench.figures import Found
from perdure.scenarios.bench.ledger import AT_MS, CHUNK, HOST, LIMITS, boot_apart
from perdure.scenarios.bench.measuring import Bench, busy_share, handle, percentile, until_asleep, wait_for
from perdure.scenarios.cast.measured import Sleepyhead

PER_AGENT = 10  # alarms of one agent; they ring together
SLOWLY, PER_SECOND = 50, 500  # alarms that ring in one second
AT_ONCE = 32
PATIENCE_S = 120.0
QUIET_S = 5.0
FAR = timedelta(days=30)


def alarms(bench: Bench) -> Found:
    """Many sleeping agents with alarms, some of which ring at two rates."""
    agents, marks = bench.size(2_000, 100), bench.folder("alarms-marks")
    with bench.cluster("alarms", idle_ms=300) as runtime:
        _plan(runtime, agents, lambda _: (datetime.now(UTC) + FAR).timestamp(), marks / "never")
        bench.say(f"{agents * PER_AGENT:,} alarms of {agents:,} agents are set")
        until_asleep(runtime, PATIENCE_S)
        idle = busy_share(runtime.cluster.pids(), QUIET_S) * 100
        slow = _rung(runtime, marks / "slow", bench.size(50, 10), SLOWLY)
        fast = _rung(runtime, marks / "fast", bench.size(250, 25), PER_SECOND)
    late = [value for each in (slow, fast) for value in (statistics.median(each), percentile(each, 0.99))]
    wrong, asleep = sum(each < 0 for each in [*slow, *fast]), bench.size(10_000, 1_000)
    armed = {"alarms": agents * PER_AGENT, "count": asleep, "armed": asleep * PER_AGENT}
    return Found(idle, *late, wrong, _boots(bench, asleep), slow=SLOWLY, fast=PER_SECOND, **armed)


def _rung(runtime: Runtime, file: Path, agents: int, pace: int) -> list[float]:
    """How late each alarm was, at this rate. Raises if one did not ring once."""
    begin_s = time.time() + max(5.0, agents / 25)
    _plan(runtime, agents, lambda number: begin_s + number * PER_AGENT / pace, file)
    until_asleep(runtime, PATIENCE_S, begin_s)
    wait_for(lambda: len(_late(file)) >= agents * PER_AGENT, PATIENCE_S, pause_s=0.2)
    time.sleep(QUIET_S)
    late = _late(file)
    if len(late) != agents * PER_AGENT:
        raise RuntimeError(f"of {agents * PER_AGENT} alarms {len(late)} rang")
    return late


def _plan(runtime: Runtime, agents: int, at_s: Callable[[int], float], file: Path) -> None:
    def plan(number: int) -> None:
        handle(runtime, Sleepyhead, f"sleepyhead-{number}").plan(at_s(number), PER_AGENT, str(file))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(plan, range(agents)))


def _late(file: Path) -> list[float]:
    return [float(each) for each in file.read_text().split()] if file.exists() else []


def _boots(bench: Bench, count: int) -> list[float]:
    place = bench.data / "ledger-armed"
    build(place, count)
    told = [boot_apart(place) for _ in range(3)]
    if any(each["armed"] != count for each in told):
        raise RuntimeError(f"a boot did not find the {count} alarms: {told}")
    return [each["seconds"] for each in told]


def build(place: Path, count: int) -> None:
    """Fill a ledger with sleeping agents that set an alarm."""
    store, view = DuckDBStore(place, fsync=False), View()
    store.boot()
    store.append([record_fact(view, SupervisorStarted(1, {}), AT_MS)], [])
    view.hosts[HOST] = HostView(HOST, None, up=True)
    for first in range(0, count, CHUNK):
        names = [f"sleepyhead-{number}@perdure.bench:Sleepyhead" for number in range(first, min(first + CHUNK, count))]
        store.append([row for name in names for row in _asleep(view, name)], [])
        store.checkpoint(meta_of(view), view.seq, dirty_records(view), [])
        view.touched.clear()
    store.close()


def _asleep(view: View, name: str) -> Iterator[FactRow]:
    view.want(name)
    yield from expand_rows(apply_fact(view, assign_hosts(view, AT_MS, LIMITS), AT_MS))
    life = view.agents[name].incarnation
    for said in (Alarm(name, life, AT_MS + 86_400_000, None), Released(name, life)):
        yield from expand_rows(apply_fact(view, decide(view, said, AT_MS, LIMITS), AT_MS))
