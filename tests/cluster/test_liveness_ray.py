"""Processes that are busy, blocked or stopped: which of them is ended, and what is told of it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.actors import Agent, RunContext, Runtime
from perdure.policies import Limits

pytestmark = pytest.mark.shared_ray

SOON_S = 60.0
SWIFT = Limits(hosts_max=1, hosts_warm=1, heartbeat_ms=500, blocked_warn_ms=1_000, blocked_max_ms=60_000)


class Napper(Agent):
    """Sleeps, and lets others work meanwhile."""

    async def run(self, input: float, run: RunContext) -> int:
        await asyncio.sleep(input)
        return run.attempt


class Blocker(Agent):
    """Sleeps, and lets nobody work meanwhile; in its first attempt only."""

    async def run(self, input: float, run: RunContext) -> int:
        if run.attempt == 1:
            time.sleep(input)  # noqa: ASYNC251 - the mistake that is found
        return run.attempt


def until(condition: Callable[[], Any]) -> None:
    end_s = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.1)


def said_of(runtime: Runtime, run_id: str) -> str:
    return " ".join(runtime.explain(run_id))


@pytest.fixture
def happened() -> list[Any]:
    return []


@pytest.fixture
def runtime(tmp_path: Path, request: pytest.FixtureRequest, happened: list[Any]) -> Iterator[Runtime]:
    with Runtime(tmp_path, limits=getattr(request, "param", SWIFT)) as opened:
        opened.subscribe("supervisor", happened.append)
        yield opened


def causes(happened: list[Any]) -> list[str]:
    return [event.payload["cause"] for event in happened if event.type == "supervisor:host_lost"]


def test_async_code_that_keeps_the_loop_is_named_and_its_host_lives(runtime: Runtime, happened: list[Any]) -> None:
    runtime.start(Napper, 3.0, run_id="nap")
    until(lambda: runtime.inspect("nap")["status"] == "running")
    runtime.start(Blocker, 8.0, run_id="block")
    until(lambda: "event loop stands in Blocker.run of block@" in said_of(runtime, "nap"))
    assert runtime.run(Napper, 3.0, run_id="nap").output == 1
    assert runtime.run(Blocker, 8.0, run_id="block").output == 1
    blocked = [event for event in happened if event.type == "supervisor:host_blocked"]
    assert [(event.agent_name, event.payload["method"]) for event in blocked] == [("block", "Blocker.run")]
    assert "time.sleep(input)" in blocked[0].payload["stack"]
    assert not causes(happened)


@pytest.mark.parametrize(
    "runtime",
    [Limits(hosts_max=1, hosts_warm=1, heartbeat_ms=500, blocked_warn_ms=1_000, blocked_max_ms=4_000)],
    indirect=True,
)
def test_a_loop_that_never_comes_back_is_ended_with_that_cause(runtime: Runtime, happened: list[Any]) -> None:
    assert runtime.run(Blocker, 600.0, run_id="block").output == 2
    (cause,) = causes(happened)
    assert cause.startswith("its event loop stands in Blocker.run of block@")
    assert cause.endswith("and had not turned for 4000 ms")
    assert cause in said_of(runtime, "block")


def test_a_machine_that_stands_still_costs_no_attempt(runtime: Runtime, happened: list[Any]) -> None:
    for number in range(5):
        runtime.start(Napper, 10.0, run_id=f"nap{number}")
    until(lambda: all(runtime.inspect(f"nap{number}")["status"] == "running" for number in range(5)))
    pids = [info.pid for info in runtime.cluster.processes().values()]
    assert len(pids) > 1
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(20)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    assert [runtime.run(Napper, 10.0, run_id=f"nap{number}").output for number in range(5)] == [1] * 5
    assert not causes(happened)


def test_a_host_that_alone_is_stopped_is_ended(runtime: Runtime, happened: list[Any]) -> None:
    runtime.start(Napper, 2.0, run_id="nap")
    until(lambda: runtime.inspect("nap")["status"] == "running")
    for name, info in runtime.cluster.processes().items():
        if name != "supervisor":
            os.kill(info.pid, signal.SIGSTOP)
    assert runtime.run(Napper, 2.0, run_id="nap").output == 2
    assert "neither answered nor computed" in causes(happened)[0]
