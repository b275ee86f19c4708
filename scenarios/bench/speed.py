"""Speed and size: awaited runs, fan-outs, detached runs, a thousand sleepers, and passivated agents."""

from __future__ import annotations

import statistics
from contextlib import AbstractContextManager
from pathlib import Path

import psutil

from perdure import actors
from perdure.actors import Runtime
from perdure.ledger import pack
from perdure.scenarios.bench.report import (
    Baseline,
    Bench,
    Figure,
    at_least,
    at_most,
    calm,
    handle,
    percentile,
    pss_mb,
    repeatedly,
    took_ms,
    until_asleep,
)
from perdure.scenarios.cast.measured import Idler, Nap, Parent

PAYLOAD = pack(7)
PATIENCE_S = 30.0


def awaited(bench: Bench) -> list[Figure]:
    """Awaited runs one by one, compared with calls of a plain actor."""
    count, repeats = bench.size(500, 100), bench.size(5, 3)
    with bench.cluster("awaited") as runtime:
        parent = handle(runtime, Parent, "awaited")
        parent.one_by_one(50)
        plain = actors.PlainRay()
        times, raw = [], []
        for _ in range(repeats):
            times.append(parent.one_by_one(count))
            raw.append(plain.round_trips_ms(PAYLOAD, count))
        plain.close()
    figures = []
    for share, bound in ((0.5, 5), (0.99, 20)):
        baseline = Baseline(
            "round trip of a plain Ray call", statistics.median(percentile(each, share) for each in raw)
        )
        values = [percentile(each, share) for each in times]
        figures.append(Figure(f"awaited run, p{share * 100:.0f}", "ms", values, at_most(bound), baseline))
    return figures


def fan_out(bench: Bench) -> list[Figure]:
    """Instant children, compared with a plain call each and with a new actor each."""
    count, rates, calls_a_second, actors_a_second = _against_plain_calls(bench, "fan-out", "fan_out")
    name = f"fan-out of {count:,} instant children"
    new_actors = Baseline("new Ray actors/s", actors_a_second)
    return [
        Figure(name, "runs/s", rates, at_least(20_000), Baseline("plain Ray calls/s", calls_a_second)),
        Figure(f"{name}, ratio to plain Ray calls", "×", [rate / calls_a_second for rate in rates]),
        Figure(
            f"{name}, ratio to one new Ray actor each",
            "×",
            [rate / actors_a_second for rate in rates],
            None,
            new_actors,
        ),
    ]


def detached(bench: Bench) -> list[Figure]:
    """Detached runs whose completions a handler counts in `state`."""
    count, rates, calls_a_second, _ = _against_plain_calls(bench, "detached", "detach")
    name, baseline = (
        f"{count:,} detached runs with a handler that updates state",
        Baseline("plain Ray calls/s", calls_a_second),
    )
    return [Figure(name, "deliveries/s", rates, at_least(5_000), baseline)]


def sustained(bench: Bench) -> list[Figure]:
    """Fan-outs in a row, over many more runs than stay in memory, and how long the supervisor keeps a question waiting meanwhile."""
    count, times = bench.size(10_000, 2_000), bench.size(20, 4)
    with bench.cluster("sustained") as runtime:
        parent = handle(runtime, Parent, "sustained")
        parent.fan_out(count // 5)
        with repeatedly(lambda: took_ms(lambda: runtime.ask("limits")), 0.1) as waits:
            rates = [count / parent.fan_out(count) for _ in range(times)]
        longest_ms = runtime.ps()["supervisor"]["longest_turn_ms"]
    burst = statistics.median(rates[:3])
    return [
        Figure(f"{times} fan-outs of {count:,} in a row", "runs/s", rates, None, Baseline("the first three", burst)),
        Figure(
            "the later half, as a share of the first three",
            "",
            [rate / burst for rate in rates[times // 2 :]],
            at_least(0.8),
        ),
        Figure("longest turn of the supervisor, beside its commit", "ms", [longest_ms], at_most(100)),
        Figure("longest wait of a question", "ms", [max(waits)], None, Baseline("median", statistics.median(waits))),
    ]


def _against_plain_calls(bench: Bench, name: str, method: str) -> tuple[int, list[float], float, float]:
    """The number of runs, and the rates of runs, of plain calls and of new actors."""
    count, repeats = bench.size(10_000, 2_000), bench.size(5, 3)
    with bench.cluster(name) as runtime:
        ask = getattr(handle(runtime, Parent, name), method)
        ask(count // 5)
        plain = actors.PlainRay()
        plain.calls_per_second(PAYLOAD, 200)
        rates, calls = [], []
        for _ in range(repeats):
            rates.append(count / ask(count))
            calls.append(plain.calls_per_second(PAYLOAD, count // 5))
        with plain.one_actor_each(PAYLOAD, bench.size(6, 3)) as (actors_a_second, _):
            pass
        plain.close()
    return count, rates, statistics.median(calls), actors_a_second


def sleepers(bench: Bench) -> list[Figure]:
    """Children that sleep and report progress each second: their time and their memory."""
    count, seconds, repeats = bench.size(1_000, 100), bench.size(10, 3), bench.size(3, 1)
    with bench.cluster("sleepers") as runtime:
        plain = actors.PlainRay()
        with plain.one_actor_each(PAYLOAD, 3) as (_, pids):
            actor_mb = pss_mb(pids) / len(pids)
        plain.close()
        parent = handle(runtime, Parent, "sleepers")
        parent.fan_out(10)
        idle_mb = pss_mb(runtime.cluster.pids())
        times, peaks = [], []
        for _ in range(repeats):
            with peak_mb(runtime) as seen:
                times.append(parent.nap(count, Nap(seconds=seconds)))
            peaks.append(max(0.0, max(seen, default=0.0) - idle_mb))
    name = f"{count:,} children that sleep {seconds} s"
    each = Baseline(f"{count:,} Ray actors, from the memory of one", actor_mb * count)
    return [
        Figure(f"{name}, all done", "s", times, at_most(seconds + 2), Baseline("one sleep", seconds)),
        Figure(f"{name}, memory above idle", "MB", peaks, at_most(1_536), each),
    ]


def peak_mb(runtime: Runtime) -> AbstractContextManager[list[float]]:
    """The memory of the supervisor and all hosts, about twice a second."""
    return repeatedly(lambda: pss_mb(runtime.cluster.pids()), 0.5)


def passivated(bench: Bench) -> list[Figure]:
    """Passivated agents: what they hold, and how soon they answer."""
    count, idle_ms = bench.size(30, 10), 300
    with bench.cluster("passivated", idle_ms=idle_ms) as runtime:
        writers = [handle(runtime, Idler, f"writer-{number}") for number in range(count)]
        others = [handle(runtime, Idler, f"other-{number}") for number in range(count)]
        for agent in writers:
            agent.write()
        until_asleep(runtime, PATIENCE_S)
        written = disk_bytes(runtime.data / "agents")
        for agent in others:
            agent.ping()
        until_asleep(runtime, PATIENCE_S)
        unwritten = disk_bytes(runtime.data / "agents") - written
        held = sum(host["tenants"] for host in runtime.ps()["hosts"])
        waking, live = [], []
        for agent in writers:
            waking.append(took_ms(agent.ping))
            live.append(took_ms(agent.ping))
    return [
        Figure("passivated agents in a process", "", [held], at_most(0)),
        Figure("disk of a passivated agent that wrote", "KB", [written / count / 1024], at_most(100)),
        Figure("disk of a passivated agent that did not write", "KB", [unwritten / count / 1024], at_most(0)),
        Figure(
            "call of a passivated agent",
            "ms",
            waking,
            at_most(20),
            Baseline("call of a live agent", statistics.median(live)),
        ),
    ]


def awake(bench: Bench) -> list[Figure]:
    """What agents hold that are awake and do nothing: in their hosts, and in the supervisor."""
    count = bench.size(4_000, 200)
    with bench.cluster("awake", idle_ms=3_600_000, pack_max=count) as runtime:
        for number in range(count // 10):
            handle(runtime, Idler, f"first-{number}").ping()
        before = _held_kb(runtime)
        for number in range(count):
            handle(runtime, Idler, f"agent-{number}").ping()
        after = _held_kb(runtime)
        if sum(host["tenants"] for host in runtime.ps()["hosts"]) < count:
            raise RuntimeError("not all agents are awake")
    name = f"memory of one of {count:,} agents that are awake and at rest"
    return [
        Figure(f"{name}, in {where}", "KB", [(end - begin) / count], at_most(bound))
        for where, begin, end, bound in zip(("its host", "the supervisor"), before, after, (6, 3), strict=True)
    ]


def _held_kb(runtime: Runtime) -> tuple[float, float]:
    """The memory of all hosts, and that of the supervisor: their own pages, without files that are mapped."""
    calm(runtime)
    held = {key: psutil.Process(info.process.pid).memory_info() for key, info in runtime.cluster.processes().items()}
    own_kb = {key: (each.rss - each.shared) / 1024 for key, each in held.items()}
    supervisor = own_kb.pop("supervisor")
    return sum(own_kb.values()), supervisor


def disk_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()) if directory.exists() else 0
