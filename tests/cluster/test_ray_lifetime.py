"""The runtime as its user has it: limits in force, events of a run, and what happens in the whole runtime."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import ray

from perdure.actors import Runtime
from perdure.actors.events.observability import ObservedEvent
from perdure.ledger import BadRequest
from perdure.policies import Limits
from tests.actors.cast import Sleeper, Talker
from tests.tidy import IMPORT_PATH

pytestmark = pytest.mark.shared_ray

ROOT = Path(__file__).resolve().parents[2]
JOIN = """
import sys
from perdure.actors import Runtime
from perdure.actors.events.observability import ObservedEvent
from perdure.ledger import BadRequest
from perdure.policies import Limits
for limits in (None, Limits(hosts_warm=1), Limits(hosts_max=3), Limits(hosts_max=2, idle_ms=9_000)):
    try:
        with Runtime(sys.argv[1], limits=limits) as runtime:
            print("joined", runtime.limits.hosts_max)
    except BadRequest as refused:
        print(refused.field)
"""


def test_who_joins_has_the_limits_in_force_and_is_refused_with_others(tmp_path: Path) -> None:
    with Runtime(tmp_path, limits=Limits(hosts_max=3, hosts_warm=1)) as runtime:
        assert runtime.limits == Limits(hosts_max=3, hosts_warm=1)
        environment = {**os.environ, "PYTHONPATH": IMPORT_PATH}
        done = subprocess.run(
            [sys.executable, "-c", JOIN, str(tmp_path)], env=environment, capture_output=True, text=True, check=True
        )
    assert done.stdout.splitlines() == ["joined 3", "joined 3", "limits.hosts_warm", "limits.hosts_max"]


def test_a_pool_has_a_host_for_each_core_that_ray_counts(tmp_path: Path) -> None:
    with Runtime(tmp_path) as runtime:
        cores = int(ray.cluster_resources()["CPU"])  # type: ignore[no-untyped-call]
        assert runtime.limits == Limits().for_cores(cores)
        assert runtime.limits.hosts_max == min(max(cores, 2), 16)


def test_events_are_read_in_sync_and_in_async_code_and_happenings_are_told_once(tmp_path: Path) -> None:
    signals = [{"chunk": number, "after_ms": 20} for number in range(5)]
    kinds = ["started", *["chunk"] * 5, "finished"]
    heard: list[list[ObservedEvent]] = [[], []]

    async def read(runtime: Runtime) -> list[str]:
        return [frame["event"]["kind"] async for frame in runtime.events("talk")]

    with Runtime(tmp_path, limits=Limits(hosts_max=1, hosts_warm=1)) as runtime:
        runtime.subscribe("agent_tool", lambda event: event.payload["no such thing"])
        both = [threading.Thread(target=runtime.subscribe, args=("agent_tool", each.append)) for each in heard]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
        runtime.start(Talker, signals, run_id="talk")
        assert [frame["event"]["kind"] for frame in runtime.events("talk")] == kinds
        assert asyncio.run(read(runtime)) == kinds
        first = next(iter(runtime.events("talk", after=4)))
        assert first["sequence"] == 5
        until = time.monotonic() + 60
        while not all(events and events[-1].type == "agent_tool:finished" for events in heard):
            assert time.monotonic() < until, heard
            time.sleep(0.05)
        assert len({event.type for event in heard[0]}) == len(heard[0]) == len(heard[1])
        leave = runtime.subscribe("supervisor", heard[0].append)
        assert runtime.run(Sleeper, 1).ok
    leave()


@pytest.mark.long
def test_a_runtime_that_was_refused_can_be_opened_with_the_limits_in_force(tmp_path: Path) -> None:
    with Runtime(tmp_path, limits=Limits(hosts_max=3, hosts_warm=1)):
        pass
    with Runtime(tmp_path) as again:
        given = Limits(hosts_max=again.limits.hosts_max)  # as many as this machine has cores
        assert again.limits == given, "a new supervisor has what it is given"
        with pytest.raises(BadRequest, match=r"limits\.idle_ms"), Runtime(tmp_path, limits=Limits(idle_ms=1)):
            pass
        with Runtime(tmp_path) as beside:
            assert beside.limits == given
