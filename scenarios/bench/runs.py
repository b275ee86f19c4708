"""Speed and size: of runs, also beside another system or in a bucket, of agents that sleep, wake, ring or share a busy host, of fibers, and
of the swarm.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, NamedTuple

import psutil

from perdure import Runtime, UnknownAsk, actors, ledger
from perdure.actors.ray_world.os_processes import ProcessId, kill
from perdure.ledger import pack
from perdure.scenarios.bench.figures import Compared, Found
from perdure.scenarios.bench.ledger import boot_apart, build
from perdure.scenarios.bench.measuring import (
    Bench,
    busy_share,
    calm,
    disk_bytes,
    handle,
    hosts_up,
    peak_mb,
    percentile,
    process_of,
    pss_mb,
    repeatedly,
    took_ms,
    until_asleep,
    wait_for,
)
from perdure.scenarios.bench.peers import AWAITED, FAN_OUT, PeerProcess
from perdure.scenarios.cast.measured import (
    BATCH,
    STEPS,
    Asker,
    Idler,
    Instant,
    Jobber,
    ManyRunner,
    Nap,
    Parent,
    Sleepyhead,
    Waiter,
)
from perdure.scenarios.swarm.runner import swarm

PAYLOAD = pack(7)
PATIENCE_S = 30.0
CALM_CALLS = 50
AWHILE_MS: Final = 200


def awaited(bench: Bench) -> Found:
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

    def at(share: float) -> Compared:
        calls = statistics.median(percentile(each, share) for each in raw)
        return Compared([percentile(each, share) for each in times], calls)

    return Found(at(0.5), at(0.99))


def fan_out(bench: Bench) -> Found:
    count, rates, calls, new_actors = _against_plain_calls(bench, "fan-out", "fan_out")
    beside = Compared([rate / new_actors for rate in rates], new_actors)
    return Found(Compared(rates, calls), [rate / calls for rate in rates], beside, count=count)


def detached(bench: Bench) -> Found:
    count, rates, calls, _ = _against_plain_calls(bench, "detached", "detach")
    return Found(Compared(rates, calls), count=count)


def _against_plain_calls(bench: Bench, name: str, method: str) -> tuple[int, list[float], float, float]:
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


def sustained(bench: Bench) -> Found:
    # Over many more runs than stay in memory.
    count, times = bench.size(10_000, 2_000), bench.size(20, 4)
    with bench.cluster("sustained") as runtime:
        parent = handle(runtime, Parent, "sustained")
        parent.fan_out(count // 5)
        with repeatedly(lambda: took_ms(lambda: runtime.ask("limits")), 0.1) as waits:
            rates = [count / parent.fan_out(count) for _ in range(times)]
        longest_ms = runtime.ps()["supervisor"]["longest_turn_ms"]
    burst = statistics.median(rates[:3])
    later = [rate / burst for rate in rates[times // 2 :]]
    wait = Compared([max(waits)], statistics.median(waits))
    return Found(Compared(rates, burst), later, longest_ms, wait, times=times, count=count)


def sleepers(bench: Bench) -> Found:
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
    return Found(Compared(times, seconds), Compared(peaks, actor_mb * count), count=count, seconds=seconds)


def waits(bench: Bench) -> Found:
    """Runs that wait without a process: how soon an event or an answer reaches them, what they hold, in memory and for a boot, and many
    short sleeps in few hosts."""
    count, many, times, seconds = bench.size(10_000, 1_000), bench.size(100_000, 2_000), bench.size(40, 10), 1.0
    with bench.cluster("waits", hosts_max=2) as runtime:
        parent = handle(runtime, Parent, "waits")
        parent.fan_out(count // 5)
        naps = [parent.doze(count, seconds) for _ in range(bench.size(3, 1))]
    with bench.cluster("waiting", hosts_max=2, wait_in_memory_ms=AWHILE_MS) as runtime:
        parent = handle(runtime, Parent, "waiting")
        awake = [_reached_ms(runtime, f"awake-{each}", 0.0) for each in range(times)]
        asleep = [_reached_ms(runtime, f"asleep-{each}", AWHILE_MS * 3 / 1000) for each in range(times)]
        asked, plain = [], []
        for each in range(times):
            asked.append(took_ms(lambda each=each: _answered(runtime, f"asks-{each}")))  # type: ignore[misc]
            plain.append(took_ms(lambda: runtime.run(Instant, 1).output))
        ratio = Compared([statistics.median(asked) / statistics.median(plain)], statistics.median(plain))
        parent.wait(many // 10)
        before = _resting_kb(runtime)
        parent.wait(many)
        held = (_resting_kb(runtime) - before) / many
    booted = _boots_s(bench, many)
    return Found(Compared(naps, seconds), awake, asleep, ratio, held, booted, count=count, many=many, seconds=seconds)


def _reached_ms(runtime: Runtime, run_id: str, pause_s: float) -> float:
    run = runtime.start(Waiter, run_id=run_id)
    time.sleep(AWHILE_MS / 2000 + pause_s)
    sent_s = time.time()
    run.send("go")
    return float(run.result().output - sent_s) * 1000


def _answered(runtime: Runtime, run_id: str) -> object:
    run = runtime.start(Asker, run_id=run_id)

    def is_answered() -> bool:
        with suppress(UnknownAsk):
            return bool(runtime.answer(f"{run_id}:1", True))
        return False

    wait_for(is_answered, pause_s=0)
    return run.result().output


def _boots_s(bench: Bench, many: int) -> list[float]:
    took_s: dict[int, list[float]] = {}
    for count in (0, many):
        place = bench.data / f"waiting-ledger-{count}"
        build(place, 0, 0, bench.say, waiting=count)
        took_s[count] = [boot_apart(place)["seconds"] for _ in range(bench.size(3, 1))]
    return [each - statistics.median(took_s[0]) for each in took_s[many]]


def _resting_kb(runtime: Runtime) -> float:
    until_asleep(runtime, PATIENCE_S * 10)
    return _held_kb(runtime)[1]


def passivated(bench: Bench) -> Found:
    count = bench.size(30, 10)
    with bench.cluster("passivated", idle_ms=300) as runtime:
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
    waking_beside = Compared(waking, statistics.median(live))
    return Found(held, written / count / 1024, unwritten / count / 1024, waking_beside)


def awake(bench: Bench) -> Found:
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
    return Found(*((end - begin) / count for begin, end in zip(before, after, strict=True)), count=count)


def _held_kb(runtime: Runtime) -> tuple[float, float]:
    # Of all hosts, and of the supervisor: their own pages, without files that are mapped.
    calm(runtime)
    held = {key: psutil.Process(info.process.pid).memory_info() for key, info in runtime.cluster.processes().items()}
    own_kb = {key: (each.rss - each.shared) / 1024 for key, each in held.items()}
    supervisor = own_kb.pop("supervisor")
    return sum(own_kb.values()), supervisor


def busy_host(bench: Bench) -> Found:
    """One host of writing agents that is called meanwhile, then detached items with the default limits; both beside `--load` spinners."""
    count, times, total = bench.size(1_000, 60), 20, bench.size(2_000, 60)
    with bench.spinning():
        with bench.cluster("busy-host", hosts_max=1, hosts_warm=1) as runtime:
            control, crowder = handle(runtime, Idler, "control"), handle(runtime, ManyRunner, "crowder")
            crowder.write(2, 1)
            calm_ms = [took_ms(control.ping) for _ in range(CALM_CALLS)]
            before = hosts_up(runtime)
            with repeatedly(lambda: took_ms(control.ping), 0.05) as calls_ms:
                seconds, again = crowder.write(count, times)
            writers = again + len(before - hosts_up(runtime))
        with bench.cluster("items") as runtime:
            crowder = handle(runtime, ManyRunner, "crowder")
            crowder.detach(2)
            before = hosts_up(runtime)
            items_s = crowder.detach(total)
            items = crowder.again() + len(before - hosts_up(runtime))
    p99 = Compared([percentile(calls_ms, 0.99)], percentile(calm_ms, 0.99))
    rate = count * times / seconds
    return Found(percentile(calls_ms, 0.5), p99, rate, writers, items_s, items, count=count, times=times, total=total)


def simulated_kills(bench: Bench) -> Found:
    seeds, repeats = bench.size(100, 10), 3
    reports = [swarm(seeds, seeds * repeat, processes=os.cpu_count() or 1) for repeat in range(repeats)]
    return Found([each.kills / each.seconds for each in reports], sum(len(each.failures) for each in reports))


def fibers(bench: Bench) -> Found:
    count, total, repeats = bench.size(500, 50), bench.size(10_000, 500), bench.size(5, 2)
    with bench.cluster("fibers", fibers_at_once_max=total) as runtime:
        agent = handle(runtime, Jobber, "jobber")
        agent.in_batches(count)
        commits = percentile(agent.commit_alone(count), 0.5)
        singles = [percentile(agent.one_by_one(count), 0.5) for _ in range(repeats)]
        batches = [agent.in_batches(total) for _ in range(repeats)]
        victim = handle(runtime, Jobber, "victim")
        victim.begin_endless(total)
        kill([ProcessId(*victim.process())])
        delays = calls_during_recovery(victim, total)
    accepted, done = ([total / each[at] for each in batches] for at in (0, 1))
    return Found(
        Compared(singles, commits), accepted, done, max(delays), percentile(delays, 0.5), total=total, batch=BATCH
    )


def calls_during_recovery(victim: Any, count: int) -> list[float]:
    times, recovered = [], victim.came_back()
    while recovered < count:
        begun_s = time.perf_counter()
        recovered = victim.came_back()
        times.append((time.perf_counter() - begun_s) * 1000)
    return times or [0.0]


def versus(module: str, bench: Bench) -> Found:
    """Each repeat measures Perdure, the peer and plain Ray calls one after the other, so that they share what the machine does meanwhile.
    The module is the peer's end of the conversation."""
    one_by_one, total, repeats = bench.size(200, 20), bench.size(1_000, 50), bench.size(5, 3)
    place = bench.data / module.rpartition(".")[2]
    place.mkdir(parents=True, exist_ok=True)
    with bench.cluster("perdure") as runtime, PeerProcess([sys.executable, "-m", module, str(place)]) as peer:
        parent, plain = handle(runtime, Parent, "parent"), actors.PlainRay()
        sides: list[tuple[Callable[[int], list[float]], Callable[[int], float]]] = [
            (parent.one_by_one, lambda count: count / parent.fan_out(count)),
            (
                lambda count: [each * 1000 for each in peer.ask(AWAITED, count)],
                lambda count: count / peer.ask(FAN_OUT, count)[0],
            ),
            (partial(plain.round_trips_ms, PAYLOAD), partial(plain.calls_per_second, PAYLOAD)),
        ]
        for each_ms, a_second in sides:  # the first of each is slower
            each_ms(one_by_one // 10)
            a_second(total // 10)
        waits, rates = [], []
        for number in range(repeats):
            bench.say(f"round {number + 1} of {repeats} against {peer.version} …")
            both = [(statistics.median(each_ms(one_by_one)), a_second(total)) for each_ms, a_second in sides]
            waits.append([wait for wait, _ in both])
            rates.append([rate for _, rate in both])
        plain.close()
    found = (*beside(*zip(*waits, strict=True)), *beside(*zip(*rates, strict=True), is_rate=True))
    return Found(*found, peer=peer.version, total=total)


def beside(
    ours: Sequence[float], theirs: Sequence[float], rays: Sequence[float], *, is_rate: bool = False
) -> tuple[Compared, Compared, float]:
    """Perdure beside plain Ray calls, the peer beside Perdure, and how many times as fast as the peer Perdure is, by the medians."""
    own, other = statistics.median(ours), statistics.median(theirs)
    faster = own / other if is_rate else other / own
    return Compared(ours, statistics.median(rays)), Compared(theirs, own), faster


# ---------------- alarms of sleeping agents


PER_AGENT = 10  # alarms of one agent; they ring together
SLOWLY, PER_SECOND = 50, 500  # alarms that ring in one second
AT_ONCE = 32
RING_S = 120.0
QUIET_S = 5.0
FAR = timedelta(days=30)


def alarms(bench: Bench) -> Found:
    agents, marks = bench.size(2_000, 100), bench.folder("alarms-marks")
    with bench.cluster("alarms", idle_ms=300) as runtime:
        _plan(runtime, agents, lambda _: (datetime.now(UTC) + FAR).timestamp(), marks / "never")
        bench.say(f"{agents * PER_AGENT:,} alarms of {agents:,} agents are set")
        until_asleep(runtime, RING_S)
        idle = busy_share(runtime.cluster.pids(), QUIET_S) * 100
        slow = _rung(runtime, marks / "slow", bench.size(50, 10), SLOWLY)
        fast = _rung(runtime, marks / "fast", bench.size(250, 25), PER_SECOND)
    late = [value for each in (slow, fast) for value in (statistics.median(each), percentile(each, 0.99))]
    wrong, asleep = sum(each < 0 for each in [*slow, *fast]), bench.size(10_000, 1_000)
    armed = {"alarms": agents * PER_AGENT, "count": asleep, "armed": asleep * PER_AGENT}
    return Found(idle, *late, wrong, _boots(bench, asleep), slow=SLOWLY, fast=PER_SECOND, **armed)


def _rung(runtime: Runtime, file: Path, agents: int, pace: int) -> list[float]:
    # How late each alarm was, at this rate. Raises if one did not ring once.
    begin_s = time.time() + max(5.0, agents / 25)
    _plan(runtime, agents, lambda number: begin_s + number * PER_AGENT / pace, file)
    until_asleep(runtime, RING_S, begin_s)
    wait_for(lambda: len(_late(file)) >= agents * PER_AGENT, RING_S, pause_s=0.2)
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
    build(place, 0, 0, bench.say, armed=count)
    told = [boot_apart(place) for _ in range(3)]
    if any(each["armed"] != count for each in told):
        raise RuntimeError(f"a boot did not find the {count} alarms: {told}")
    return [each["seconds"] for each in told]


# ---------------- a bucket beside a directory in the same run


SETTLED_S = 2.0  # for busy agents to be there, and to have begun


class MeasuredPlace(NamedTuple):
    awaited_ms: list[float]
    fan_outs: list[float]
    commits: list[float]
    detached: list[float]
    a_second: float
    turns_s: list[float]
    killed_ms: list[float]


def bucket(bench: Bench) -> Found:
    """What it costs in time and in requests that no machine owns the place of record: awaited runs, fan-outs, detached runs, busy agents,
    and deaths of the supervisor."""
    count, agents = bench.size(10_000, 500), bench.size(1_000, 60)
    turn_s = bench.size(30, 6)
    fresh = f"{bench.bucket}/bench-{token_hex(4)}"
    puts = [took_s * 1000 for took_s in ledger.Bucket(f"{fresh}/puts").puts_s(bench.size(200, 40))]
    on_disk = _side(bench, "directory", count, agents, turn_s)
    there = _side(bench, f"{fresh}/runs", count, agents, turn_s)
    put_ms, pair_ms = statistics.median(puts), statistics.median(map(sum, zip(puts[::2], puts[1::2], strict=True)))
    awaited, before = percentile(there.awaited_ms, 0.5), percentile(on_disk.awaited_ms, 0.5)
    rate, detached = statistics.median(on_disk.fan_outs), statistics.median(on_disk.detached)
    return Found(
        puts,
        Compared([awaited], pair_ms),
        Compared([awaited - 2 * put_ms], before),
        Compared([percentile(there.awaited_ms, 0.99)], percentile(on_disk.awaited_ms, 0.99)),
        Compared(there.fan_outs, rate),
        [each / rate for each in there.fan_outs],
        there.commits,
        Compared(there.detached, detached),
        [each / detached for each in there.detached],
        Compared(there.killed_ms, statistics.median(on_disk.killed_ms)),
        there.a_second,
        Compared(there.turns_s, statistics.median(on_disk.turns_s)),
        count=count,
        agents=agents,
        seconds=turn_s,
    )


def _side(bench: Bench, place: str, count: int, agents: int, turn_s: int) -> MeasuredPlace:
    bench.say(f"on {place} …")
    repeats = bench.size(5, 2)
    with bench.cluster(place) as runtime:
        parent = handle(runtime, Parent, "parent")
        parent.one_by_one(50)
        awaited_ms = [each for _ in range(repeats) for each in parent.one_by_one(bench.size(100, 20))]
        parent.fan_out(count // 5)
        fan_outs, commits, detached = [], [], []
        for _ in range(repeats):
            before = _commits(runtime)
            fan_outs.append(count / parent.fan_out(count))
            commits.append(float(_commits(runtime) - before))
            detached.append(count / parent.detach(count))
        return MeasuredPlace(
            awaited_ms, fan_outs, commits, detached, *_busy(runtime, agents, turn_s), _deaths_ms(runtime)
        )


def _busy(runtime: Runtime, agents: int, turn_s: int) -> tuple[float, list[float]]:
    calm(runtime)
    with ThreadPoolExecutor(1) as thread:
        turns = thread.submit(handle(runtime, Parent, "thoughts").think, agents, turn_s, SETTLED_S)
        time.sleep(SETTLED_S + turn_s / STEPS + SETTLED_S)
        begun_s, before = time.monotonic(), _commits(runtime)
        time.sleep(turn_s - turn_s / STEPS - SETTLED_S)
        a_second = (_commits(runtime) - before) / (time.monotonic() - begun_s)
        return a_second, turns.result()


def _commits(runtime: Runtime) -> int:
    return int(runtime.ps()["supervisor"]["commits"])


def _deaths_ms(runtime: Runtime) -> list[float]:
    # From `SIGKILL` until a run has come back that is asked for then.
    times = []
    for number in range(3):
        calm(runtime)
        kill([process_of(runtime, "supervisor")])
        times.append(took_ms(partial(runtime.run, Instant, number)))
    return times
