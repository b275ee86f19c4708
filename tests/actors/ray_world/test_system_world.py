from __future__ import annotations

import asyncio
import contextvars
import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from perdure.actors.ports import KillPoint
from perdure.actors.ray_world.os_processes import (
    ProcessId,
    children,
    cpu_s,
    descendants,
    is_alive,
    kill,
    parent_process,
    process_of,
    this_process,
    this_process_info,
    wait_until_gone,
    with_command,
    with_environment,
)
from perdure.actors.ray_world.system import (
    STORAGE_THREADS,
    LoopThreads,
    NoFaults,
    clock_from,
    faults_from,
    shift_clocks,
    system_world,
)
from perdure.ledger import BadRequest
from perdure.policies import Rank
from tests.tidy import IMPORT_PATH

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

CLOCK_READER = "from perdure.actors.ray_world.system import system_world; print(system_world().clock.now_ms())"


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


def test_clocks_jump_at_once_in_every_process_that_looks_at_their_file(tmp_path: Path) -> None:
    file = tmp_path / "shift"
    shift_clocks(file, 0)
    clock, right = clock_from(str(file)), clock_from("")
    for shift_ms in (3_600_000, -3_600_000, 0):
        shift_clocks(file, shift_ms)
        assert abs(clock.now_ms() - right.now_ms() - shift_ms) < 1_000
        environment = {"PYTHONPATH": IMPORT_PATH, "PERDURE_CLOCK": str(file)}
        told = subprocess.run([sys.executable, "-c", CLOCK_READER], env=environment, capture_output=True, check=True)
        assert abs(int(told.stdout) - right.now_ms() - shift_ms) < 10_000


def test_a_clock_without_its_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "short").touch()
    for name in ("nothing", "short"):
        with pytest.raises(BadRequest, match="PERDURE_CLOCK"):
            clock_from(str(tmp_path / name))


def test_without_an_order_nothing_happens() -> None:
    NoFaults().at(KillPoint.AFTER_COMMIT)


async def test_the_ledger_s_jobs_run_on_one_thread_in_order_and_others_do_not_wait_for_them() -> None:
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


async def test_a_brief_commit_is_done_by_the_loop_while_the_disk_is_quick_and_overtakes_nothing() -> None:
    threads = system_world().threads

    async def is_done_here(pause_s: float = 0.0) -> bool:
        def job() -> int:
            threading.Event().wait(pause_s)
            return threading.get_ident()

        return await threads.commit(job, is_brief=True) == threading.get_ident()

    async def quick() -> None:
        async with asyncio.timeout(30):
            while not await is_done_here():
                pass

    assert not await is_done_here()  # how quick the disk is must be seen first
    await quick()
    free = threading.Event()
    before = asyncio.ensure_future(threads.commit(lambda: free.wait(10)))
    await asyncio.sleep(0)
    behind = asyncio.ensure_future(is_done_here())
    await asyncio.sleep(0)
    free.set()
    assert await before
    assert not await behind
    await quick()
    await is_done_here(0.003)
    assert not await is_done_here()  # one was slow


def test_a_job_sees_its_caller_s_context() -> None:
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name")

    async def story() -> str:
        name.set("caller")
        return await system_world().threads.run(name.get)

    assert asyncio.run(story()) == "caller"


async def test_an_error_of_a_job_is_its_caller_s() -> None:
    with pytest.raises(ZeroDivisionError):
        await system_world().threads.commit(lambda: 1 // 0)


def test_dice_are_fair_enough_and_the_clock_goes() -> None:
    world = system_world()
    tokens = {world.dice.token() for _ in range(100)}
    assert {len(token) for token in tokens} == {20}
    assert len(tokens) == 100
    assert all(0 <= world.dice.roll() < 1 for _ in range(100))
    assert 1_600_000_000_000 < world.clock.now_ms() < 10_000_000_000_000


def started(popen: subprocess.Popen[Any]) -> ProcessId:
    found = process_of(popen.pid)
    assert found is not None
    return found


def test_processes_are_found_by_their_mark_and_killed() -> None:
    with subprocess.Popen([*SLEEPER, "mark-of-the-test"]) as first, subprocess.Popen(SLEEPER) as second:
        marked, other = started(first), started(second)
        assert descendants(this_process(), "mark-of-the-test") == [marked]
        assert {marked, other} <= set(descendants(this_process()))
        assert wait_until_gone([marked], 0.01) == [marked]
        kill([marked, other])
        assert wait_until_gone([marked, other], 5.0) == []
        assert not is_alive(marked)
    kill([marked])
    assert process_of(marked.pid) is None
    assert (first.returncode, second.returncode) == (-9, -9), "who waits for a death leaves the exit code to the parent"


def test_a_process_that_has_the_number_of_another_one_is_neither_killed_nor_waited_for() -> None:
    with subprocess.Popen(SLEEPER) as process:
        present = started(process)
        earlier = present._replace(started_ms=present.started_ms - 10)
        assert not is_alive(earlier)
        assert wait_until_gone([earlier], 5.0) == []
        assert children(earlier) == []
        kill([earlier])
        assert is_alive(present)
        kill([present])


def test_processes_are_found_by_all_their_marks_and_by_their_environment() -> None:
    environment = {**os.environ, "MARK_OF_THE_TEST": "1"}
    with (
        subprocess.Popen([*SLEEPER, "one", "two"], env=environment) as first,
        subprocess.Popen([*SLEEPER, "one"]) as second,
    ):
        both, one = started(first), started(second)
        assert children(this_process(), "one ", "two ") == [both]
        assert with_environment("MARK_OF_THE_TEST", "1") == [both]
        assert with_command("one two ") == [both]
        kill([both, one])


def test_a_process_knows_itself_and_its_parent_and_is_within_its_own_reach() -> None:
    info = this_process_info()
    assert info.here == [this_process()] == [process_of(os.getpid())]
    assert info._replace(machine="elsewhere").here == []
    parent = parent_process()
    assert parent is not None
    assert parent.pid == os.getppid()
    assert this_process() in children(parent)
    assert cpu_s([os.getpid()]) > 0 == cpu_s([2**22 + 1])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can do that")
def test_a_process_can_be_made_to_die_with_its_parent() -> None:
    child = """
from perdure.actors.ray_world.os_processes import die_with_parent, this_process
import time
die_with_parent()
print(*this_process(), flush=True)
time.sleep(60)
"""
    parent = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}]).wait()"
    environment = {**os.environ, "PYTHONPATH": IMPORT_PATH}
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdout=subprocess.PIPE, env=environment, text=True
    ) as process:
        assert process.stdout is not None
        orphan = ProcessId(*map(int, process.stdout.readline().split()))
        assert is_alive(orphan)
        kill([started(process)])
        assert wait_until_gone([orphan], 5.0) == []


async def test_a_write_is_done_to_its_end_whoever_gives_it_up_meanwhile() -> None:
    threads, begun, go_on, done = LoopThreads(1), threading.Event(), threading.Event(), []

    def write() -> None:
        begun.set()
        go_on.wait()
        done.append(threading.current_thread().name)

    task = asyncio.create_task(threads.write(write, Rank.WORK))
    await asyncio.to_thread(begun.wait)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == ["perdure-storage"]


async def test_a_write_that_fails_says_so_also_to_one_who_gave_it_up() -> None:
    threads, begun, go_on = LoopThreads(1), threading.Event(), threading.Event()

    def write() -> None:
        begun.set()
        go_on.wait()
        raise OSError("the disk")

    task = asyncio.create_task(threads.write(write, Rank.WORK))
    await asyncio.to_thread(begun.wait)
    task.cancel()
    go_on.set()
    with pytest.raises(OSError, match="the disk"):
        await task


def test_a_write_that_a_call_waits_for_comes_first_and_a_new_storage_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.actors.ray_world.system.STORAGE_THREADS", 1)

    async def story() -> None:
        threads, go_on, order = LoopThreads(1), threading.Event(), list[str]()
        busy = asyncio.create_task(threads.write(go_on.wait, Rank.WORK))
        await asyncio.sleep(0)
        ranks = [Rank.OPENING] * 3 + [Rank.WORK] * 3 + [Rank.CALL]
        later = [asyncio.create_task(threads.write(partial(order.append, rank.name), rank)) for rank in ranks]
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(busy, *later)
        assert order == ["CALL"] + ["WORK"] * 3 + ["OPENING"] * 3

    asyncio.run(story())


async def test_writes_in_line_are_counted() -> None:
    threads, go_on = LoopThreads(1), threading.Event()
    writing = [asyncio.create_task(threads.write(go_on.wait, Rank.WORK)) for _ in range(STORAGE_THREADS + 3)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert threads.writes_waiting == STORAGE_THREADS + 3
    go_on.set()
    await asyncio.gather(*writing)
    async with asyncio.timeout(30):  # the thread tells that it is free after it has told the result
        while threads.writes_waiting:
            await asyncio.sleep(0)
