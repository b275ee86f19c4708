from __future__ import annotations

import asyncio
import contextvars
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from perdure.actors.ports import KillPoint
from perdure.actors.ray_world.system import (
    NoFaults,
    bearing,
    children,
    commanded,
    descendants,
    faults_from,
    is_alive,
    strike,
    system_world,
    wait_for_death,
)
from perdure.ledger import BadRequest
from tests.tidy import IMPORT_PATH, ROOT

SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]
VISITOR = """
import sys
from perdure.actors.ports import KillPoint
from perdure.actors.ray_world.system import system_world
faults = system_world().faults
for visit in range(1, 5):
    print(visit, flush=True)
    faults.at(KillPoint.MID_RUN, "")
    faults.at(KillPoint.AFTER_COMMIT, "")
"""


def visits(order: str) -> tuple[str, int]:
    """How far a process comes that visits two kill points four times, and how it ends."""
    environment = {"PYTHONPATH": IMPORT_PATH, "PERDURE_KILL": order}
    done = subprocess.run([sys.executable, "-c", VISITOR], env=environment, capture_output=True, text=True, check=False)
    return "".join(done.stdout.split()), done.returncode


def test_a_process_dies_at_the_visit_that_was_ordered() -> None:
    assert visits("after_commit:3") == ("123", -9)
    assert visits("mid_run") == ("1", -9)
    assert visits("before_run:1") == ("1234", 0)
    assert visits("") == ("1234", 0)


def test_a_process_may_be_told_to_die_only_if_none_did_before(tmp_path: Path) -> None:
    order = f"mid_run:2:{tmp_path / 'once'}"
    assert visits(order) == ("12", -9)
    assert visits(order) == ("1234", 0)


@pytest.mark.parametrize("order", ["nowhere", "after_commit:x", "after_commit:-1", ":3"])
def test_an_order_that_cannot_be_carried_out_is_refused(order: str) -> None:
    with pytest.raises(BadRequest, match="PERDURE_KILL"):
        faults_from(order)


def test_without_an_order_nothing_happens() -> None:
    NoFaults().at(KillPoint.AFTER_COMMIT)


def test_the_ledger_s_jobs_run_on_one_thread_in_order_and_others_do_not_wait_for_them() -> None:
    async def story() -> None:
        threads = system_world().threads
        done: list[int] = []
        free = threading.Event()
        jobs = [threads.commit(lambda: free.wait(10) and threading.get_ident())]
        jobs += [threads.commit(lambda at=at: done.append(at) or threading.get_ident()) for at in range(50)]  # type: ignore[misc]
        waiting = asyncio.gather(*jobs)
        await asyncio.sleep(0)
        await threads.run(free.set)
        assert len(set(await waiting)) == 1
        assert done == list(range(50))

    asyncio.run(story())


def test_a_job_sees_its_caller_s_context() -> None:
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name")

    async def story() -> str:
        name.set("caller")
        return await system_world().threads.run(name.get)

    assert asyncio.run(story()) == "caller"


def test_an_error_of_a_job_is_its_caller_s() -> None:
    async def story() -> None:
        with pytest.raises(ZeroDivisionError):
            await system_world().threads.commit(lambda: 1 // 0)

    asyncio.run(story())


def test_dice_are_fair_enough_and_the_clock_goes() -> None:
    world = system_world()
    tokens = {world.dice.token() for _ in range(100)}
    assert {len(token) for token in tokens} == {20}
    assert len(tokens) == 100
    assert all(0 <= world.dice.roll() < 1 for _ in range(100))
    assert 1_600_000_000_000 < world.clock.now_ms() < 10_000_000_000_000


def test_processes_are_found_by_their_mark_and_struck_down() -> None:
    with subprocess.Popen([*SLEEPER, "mark-of-the-test"]) as marked, subprocess.Popen(SLEEPER) as other:
        assert descendants(os.getpid(), "mark-of-the-test") == [marked.pid]
        assert {marked.pid, other.pid} <= set(descendants(os.getpid()))
        assert wait_for_death([marked.pid], 0.01) == [marked.pid]
        strike([marked.pid, other.pid])
        assert wait_for_death([marked.pid, other.pid], 5.0) == []
        assert not is_alive(marked.pid)
    strike([marked.pid])


def test_processes_are_found_by_all_their_marks_and_by_their_environment() -> None:
    environment = {**os.environ, "MARK_OF_THE_TEST": "1"}
    with (
        subprocess.Popen([*SLEEPER, "one", "two"], env=environment) as both,
        subprocess.Popen([*SLEEPER, "one"]) as one,
    ):
        assert children(os.getpid(), "one ", "two ") == [both.pid]
        assert bearing("MARK_OF_THE_TEST=1") == [both.pid]
        assert commanded("one two ") == [both.pid]
        strike([both.pid, one.pid])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can do that")
def test_a_process_can_be_made_to_die_with_its_parent() -> None:
    child = "import time; from perdure.actors.ray_world.system import *; die_with_parent(); print(own_pid(), flush=True); time.sleep(60)"
    parent = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}]).wait()"
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, cwd=ROOT, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        strike([process.pid])
        assert wait_for_death([pid], 5.0) == []
