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

pytestmark = [pytest.mark.shared_ray, pytest.mark.thorough]

SOON_S = 60.0
SWIFT = Limits(hosts_max=1, hosts_warm=1, heartbeat_ms=500, blocked_warn_ms=1_000, blocked_max_ms=60_000)


class Napper(Agent):
    """Sleeps until there is a file, and lets others work meanwhile; in its first attempt only."""

    async def run(self, input: str, run: RunContext) -> int:
        while run.attempt == 1 and not Path(input).exists():  # noqa: ASYNC240 - a look takes no time
            await asyncio.sleep(0.1)
        return run.attempt


class Blocker(Agent):
    """Sleeps until there is a file, and lets nobody work meanwhile; in its first attempt only."""

    async def run(self, input: str, run: RunContext) -> int:
        while run.attempt == 1 and not Path(input).exists():  # noqa: ASYNC240 - the mistake that is found
            time.sleep(0.1)  # noqa: ASYNC251 - the same
        return run.attempt


def until(condition: Callable[[], Any]) -> None:
    end_s = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.1)


def said_of(runtime: Runtime, run_id: str) -> str:
    return " ".join(runtime.explain(run_id))


@pytest.fixture
def morning(tmp_path: Path) -> Path:
    """The file until which everybody sleeps."""
    return tmp_path / "morning"


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


def test_async_code_that_keeps_the_loop_is_named_and_its_host_lives(
    runtime: Runtime, happened: list[Any], morning: Path
) -> None:
    runtime.start(Napper, str(morning), run_id="nap")
    until(lambda: runtime.inspect("nap")["status"] == "running")
    runtime.start(Blocker, str(morning), run_id="block")
    until(lambda: "event loop stands in Blocker.run of block@" in said_of(runtime, "nap"))
    until(lambda: any(event.type == "supervisor:host_blocked" for event in happened))
    morning.touch()
    assert runtime.run(Napper, str(morning), run_id="nap").output == 1
    assert runtime.run(Blocker, str(morning), run_id="block").output == 1
    blocked = [event for event in happened if event.type == "supervisor:host_blocked"]
    assert [(event.agent_name, event.payload["method"]) for event in blocked] == [("block", "Blocker.run")]
    assert "time.sleep(0.1)" in blocked[0].payload["stack"]
    assert not causes(happened)


@pytest.mark.parametrize(
    "runtime",
    [Limits(hosts_max=1, hosts_warm=1, heartbeat_ms=500, blocked_warn_ms=1_000, blocked_max_ms=4_000)],
    indirect=True,
)
def test_a_loop_that_never_comes_back_is_ended_with_that_cause(
    runtime: Runtime, happened: list[Any], morning: Path
) -> None:
    assert runtime.run(Blocker, str(morning), run_id="block").output == 2
    (cause,) = causes(happened)
    assert cause.startswith("its event loop stands in Blocker.run of block@")
    assert cause.endswith("and had not turned for 4000 ms")
    assert cause in said_of(runtime, "block")


def test_a_machine_that_stands_still_costs_no_attempt(runtime: Runtime, happened: list[Any], morning: Path) -> None:
    for number in range(5):
        runtime.start(Napper, str(morning), run_id=f"nap{number}")
    until(lambda: all(runtime.inspect(f"nap{number}")["status"] == "running" for number in range(5)))
    pids = [info.pid for info in runtime.cluster.processes().values()]
    assert len(pids) > 1
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(2 * SWIFT.heartbeat_misses_max * SWIFT.heartbeat_ms / 1_000)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    morning.touch()
    assert [runtime.run(Napper, str(morning), run_id=f"nap{number}").output for number in range(5)] == [1] * 5
    assert not causes(happened)


def test_a_host_that_alone_is_stopped_is_ended(runtime: Runtime, happened: list[Any], morning: Path) -> None:
    runtime.start(Napper, str(morning), run_id="nap")
    until(lambda: runtime.inspect("nap")["status"] == "running")
    for name, info in runtime.cluster.processes().items():
        if name != "supervisor":
            os.kill(info.pid, signal.SIGSTOP)
    assert runtime.run(Napper, str(morning), run_id="nap").output == 2
    assert "neither answered nor computed" in causes(happened)[0]
