"""Recovery times: of children, supervisors, clusters, a parent during its handlers, and chats; and how soon a client reconnects."""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from perdure import Limits, Runtime, actors
from perdure.actors.ray_world.os_processes import kill
from perdure.ledger import LIVE
from perdure.scenarios.bench.chats import delay_ms
from perdure.scenarios.bench.figures import Compared, Found
from perdure.scenarios.bench.measuring import (
    Bench,
    Listener,
    calm,
    handle,
    host_of_agent,
    hosts_up,
    process_of,
    wait_for,
)
from perdure.scenarios.cast.measured import Keeper, Nap, Parent, Sleeper
from perdure.scenarios.cast.measured_chats import Broken, ChatParent, Mortal

LONG_S = 600.0
SOON_S = 0.005
STALL_MS = 100


def child_death(bench: Bench) -> Found:
    # From `SIGKILL` of a child's host until the child runs again, while another host is warm.
    marks = bench.folder("child-marks")
    with bench.cluster("child-death") as runtime:
        baseline = _plain_restart(unit_ms=1)
        times = [_kill_child(runtime, marks, f"child-{number}") for number in range(bench.size(9, 3))]
    return Found(Compared(times, baseline))


def _kill_child(runtime: Runtime, marks: Path, run_id: str) -> float:
    runtime.start(Sleeper, Nap(seconds=LONG_S, marks=str(marks)), run_id=run_id)
    wait_for((marks / f"{run_id}-1").exists)
    host = wait_for(lambda: _host_of(runtime, run_id))
    wait_for(lambda: any(each["up"] and each["host"] != host for each in runtime.ps()["hosts"]))
    process = process_of(runtime, host)
    killed_s = time.monotonic()
    kill([process])
    again_s = wait_for(partial(_first, marks, f"{run_id}-2"), pause_s=SOON_S)
    runtime.cancel(run_id)
    return float(again_s - killed_s) * 1000


def supervisor_death(bench: Bench) -> Found:
    # From `SIGKILL` of the supervisor until the next one has every host. Every live run keeps its first attempt.
    count = bench.size(1_000, 100)
    with bench.cluster("supervisor-death") as runtime:
        baseline = _plain_restart(unit_ms=1_000)
        handle(runtime, Parent, "parent").send_to_bed(count, Nap(seconds=LONG_S))
        wait_for(lambda: _is_running(runtime, count))
        times = [_kill_supervisor(runtime, count) for _ in range(3)]
    return Found(Compared(times, baseline), count=count)


def _kill_supervisor(runtime: Runtime, count: int) -> float:
    before = runtime.ps()
    supervisor = process_of(runtime, "supervisor")
    killed_s = time.monotonic()
    kill([supervisor])
    wait_for(lambda: _is_adopted(runtime.ask("ps", 0), before["epoch"], count), pause_s=SOON_S)
    took_s = time.monotonic() - killed_s
    live = runtime.ask("ps", count)["live"]
    if len(live) != count or any(run["attempt"] != 1 for run in live):
        raise RuntimeError(f"of {count} runs {len(live)} live, some in another attempt")
    return took_s


def _is_adopted(overview: dict[str, Any], epoch: int, count: int) -> bool:
    hosts = [host for host in overview["hosts"] if host["up"]]
    return bool(overview["epoch"] > epoch and sum(host["tenants"] for host in hosts) >= count)


def cluster_death(bench: Bench) -> Found:
    """Everything is killed, Ray included, and started again: from the supervisor's first answer to the first run."""
    marks, data = bench.folder("cluster-marks"), bench.data / "cluster-death"
    repeats, runs = 3, bench.size(100, 20)
    runtime = _opened(data)
    try:
        plain = actors.PlainRay()
        begun_s = time.monotonic()
        with plain.one_actor_each(b"", 1):
            new_actor_s = time.monotonic() - begun_s
        plain.close()
        handle(runtime, Parent, "parent").send_to_bed(runs, Nap(seconds=LONG_S, marks=str(marks)))
        wait_for(lambda: _is_running(runtime, runs))
        times = []
        for attempt in range(2, repeats + 2):
            runtime.kill_everything()
            runtime = _opened(data)
            up_s = time.monotonic()
            first_s = wait_for(partial(_first, marks, f"*-{attempt}"), pause_s=SOON_S)
            times.append(max(0.0, first_s - up_s))
            wait_for(partial(_has, marks, f"*-{attempt}", runs))
    finally:
        runtime.close()
    return Found(Compared(times, new_actor_s))


def handlers_death(bench: Bench) -> Found:
    # Each effect must happen once.
    count, later, wrong = 20, [], []
    with bench.cluster("handlers-death") as runtime:
        for repeat in range(3):
            marks = bench.folder(f"handler-marks-{repeat}")
            keeper = handle(runtime, Keeper, f"keeper-{repeat}")
            keeper.keep(count, time.monotonic() + 1.5, str(marks))
            wait_for(partial(_has, marks, "handler-*", count // 3))
            killed_s = time.monotonic()
            kill([process_of(runtime, host_of_agent(runtime, f"keeper-{repeat}"))])
            returned_s = wait_for(partial(_first, marks, "start-*", killed_s), pause_s=SOON_S)
            again_s = wait_for(partial(_first, marks, "handler-*", returned_s), pause_s=SOON_S)
            later.append((again_s - returned_s) * 1000)
            wait_for(partial(_has, marks, "handler-*", count))
            wait_for(lambda: runtime.audit()["pending"] == 0, pause_s=0.1)
            rows, distinct = keeper.kept()
            wrong.append(rows - distinct + count - distinct)
    return Found(later, wrong)


def chat_recovery(bench: Bench) -> Found:
    count = bench.size(20, 3)
    with bench.cluster("chat-recovery", hosts_warm=2) as runtime:
        agent = handle(runtime, Broken, "broken")
        resets = [_reset_ms(agent) for _ in range(count)]
        stalls = [_stall_ms(agent) for _ in range(count)]
        deaths = [_death_ms(runtime, bench.data, number) for number in range(bench.size(9, 2))]
        parent = handle(runtime, ChatParent, "parent")
        parent.one_by_one(2)
        delays = [delay_ms(runtime, parent) for _ in range(count)]
    return Found(resets, stalls, deaths, delays)


def _reset_ms(agent: Any) -> float:
    listener = Listener()
    assert agent.chat("Break.", listener).ok
    waited_ms = sum(event["data"]["waitsMs"] for _, event in listener.heard if event["type"] == "data-status")
    broke_s, again_s = agent.last_requests()
    return float((again_s - broke_s) * 1000 - waited_ms)


def _stall_ms(agent: Any) -> float:
    assert agent.chat("Break by silence.", None, chat_stream_stall_timeout_ms=STALL_MS).ok
    broke_s, again_s = agent.last_requests()
    return float((again_s - broke_s) * 1000 - STALL_MS)


def _death_ms(runtime: Runtime, place: Path, number: int) -> float:
    note, name = place / f"requests-{number}", f"mortal-{number}"
    wait_for(lambda: len(hosts_up(runtime)) > 1)
    calm(runtime)  # until the warm host has imported the library
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(lambda: handle(runtime, Mortal, name).chat(str(note), None))
        wait_for(note.exists)
        process = process_of(runtime, host_of_agent(runtime, name))
        killed_s = time.monotonic()
        kill([process])
        again_s = float(wait_for(lambda: note.read_text().split()[1:])[0])
        assert answer.result(60).status in ("completed", "interrupted")
    return (again_s - killed_s) * 1000


def reconnection(bench: Bench) -> Found:
    count = bench.size(2_000, 200)
    with bench.cluster("reconnection") as runtime:
        parent = handle(runtime, Parent, "parent")
        parent.fan_out(count)
        run_id = runtime.list(limit=1)[0]["run_id"]
        first, whole = [], []
        for _ in range(bench.size(20, 3)):
            with Runtime(runtime.data) as newcomer:
                begun_s = time.perf_counter()
                next(iter(newcomer.events(run_id)))
                first.append((time.perf_counter() - begun_s) * 1000)
                assert len(newcomer.list(limit=count)) >= count
                whole.append((time.perf_counter() - begun_s) * 1000)
    return Found(Compared(first, statistics.median(whole)), count=count)


def _plain_restart(unit_ms: int) -> float:
    # In units of `unit_ms`.
    plain = actors.PlainRay()
    restarts = [plain.restart_ms() / unit_ms for _ in range(3)]
    plain.close()
    return statistics.median(restarts)


# looking


def _opened(data: Path) -> Runtime:
    runtime = actors.Runtime(data, address="local", limits=Limits())
    runtime.open()
    return runtime


def _has(marks: Path, pattern: str, count: int) -> bool:
    return len(list(marks.glob(pattern))) >= count


def _first(marks: Path, pattern: str, after_s: float = 0.0) -> float | None:
    return min((time_s for path in marks.glob(pattern) if (time_s := float(path.read_text())) > after_s), default=None)


def _is_running(runtime: Runtime, count: int) -> bool:
    live = runtime.ask("ps", count)["live"]
    return sum(bool(run["status"] == "running") for run in live) >= count


def _host_of(runtime: Runtime, run_id: str) -> str:
    overview = runtime.ps()
    home = next((run["host"] for run in overview["live"] if run["run_id"] == run_id and run["status"] in LIVE), "")
    return next((each["host"] for each in overview["hosts"] if each["host"] == home and each["pid"]), "")
