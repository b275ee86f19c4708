"""A busy host is not a dead host: what a crowd of writers costs others, and whether anybody is lost under load."""

from __future__ import annotations

from perdure.actors import Runtime
from perdure.scenarios.bench.report import Baseline, Bench, Figure, at_most, handle, percentile, repeatedly, took_ms
from perdure.scenarios.cast.measured import Crowder, Idler

CALM_CALLS = 50


def busy_host(bench: Bench) -> list[Figure]:
    """One host of writing agents that is called meanwhile, then detached items with the default limits; both beside `--load` spinners."""
    with bench.spinning():
        return [*_writers(bench), *_items(bench)]


def _writers(bench: Bench) -> list[Figure]:
    count, times = bench.size(1_000, 60), 20
    with bench.cluster("busy-host", hosts_max=1, hosts_warm=1) as runtime:
        control, crowder = handle(runtime, Idler, "control"), handle(runtime, Crowder, "crowder")
        crowder.write(2, 1)
        calm_ms = [took_ms(control.ping) for _ in range(CALM_CALLS)]
        before = hosts(runtime)
        with repeatedly(lambda: took_ms(control.ping), 0.05) as calls_ms:
            seconds, again = crowder.write(count, times)
        lost = len(before - hosts(runtime))
    name = f"{count:,} agents on one host that write {times} times each"
    calm = Baseline("the same call on an idle host", percentile(calm_ms, 0.99))
    return [
        Figure(f"{name}: a call of another agent there, p50", "ms", [percentile(calls_ms, 0.5)]),
        Figure("the same, p99", "ms", [percentile(calls_ms, 0.99)], at_most(100), calm),
        Figure("the same: writes", "writes/s", [count * times / seconds]),
        Figure("the same: attempts beyond the first, and hosts lost", "", [again + lost], at_most(0)),
    ]


def _items(bench: Bench) -> list[Figure]:
    count = bench.size(2_000, 60)
    with bench.cluster("items") as runtime:
        crowder = handle(runtime, Crowder, "crowder")
        crowder.detach_items(2)
        before = hosts(runtime)
        seconds, again = crowder.detach_items(count)
        lost = len(before - hosts(runtime))
    name = f"{count:,} detached items of two steps, a milestone and a second's sleep"
    return [
        Figure(f"{name}, all handled", "s", [seconds]),
        Figure("the same: attempts beyond the first, and hosts lost", "", [again + lost], at_most(0)),
    ]


def hosts(runtime: Runtime) -> set[str]:
    """The hosts that are up."""
    return {str(host["host"]) for host in runtime.ps()["hosts"] if host["up"]}
