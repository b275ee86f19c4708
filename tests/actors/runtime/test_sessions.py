"""A runtime that is opened, closed, opened again, forked and interrupted, in front of a supervisor in this process."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from _thread import interrupt_main
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from perdure.actors import Agent, Runtime, exposed, tell
from perdure.actors.ray_world.world import RayCluster
from perdure.ledger import BadRequest, RuntimeClosed, UnknownRun
from tests.actors.one_process import SMALL, OneProcess
from tests.actors.sync_cast import Endless, Leaf

FORKED = 7
"""How a child ends that was refused as it should be."""


class Counter(Agent):
    """Counts, and gives what it has counted bit by bit."""

    @exposed
    async def add(self) -> int:
        self.state["n"] = self.state.get("n", 0) + 1
        return int(self.state["n"])

    begun = threading.Event()  # of this process, for the test

    @exposed
    async def never(self) -> None:
        self.begun.set()
        await asyncio.Event().wait()


class Hub:
    """What serves a directory, on a loop and a thread of its own. Each opening of a runtime gets a cluster that leads there."""

    route = ""

    def __init__(self) -> None:
        self.closed = 0
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._run)
        self._begun = threading.Event()
        self._thread.start()
        self._begun.wait()

    def _run(self) -> None:
        with (
            asyncio.Runner() as runner
        ):  # what is under way is cancelled at the end, and not left to a collection of garbage
            self._loop = runner.get_loop()
            runner.run(self._serve())

    async def _serve(self) -> None:
        async def story(stage: OneProcess) -> None:
            self._stage = stage
            self._begun.set()
            await self._over.wait()

        await OneProcess(replace(SMALL, hosts_max=2)).play(story)

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    def cluster(self) -> RayCluster:
        deployment = SimpleNamespace(code_dir=None)
        return cast(
            "RayCluster",
            SimpleNamespace(
                deployment=deployment, is_local=True, ends_with_this=False, transport=lambda: self, close=self.left
            ),
        )

    def left(self) -> None:
        self.closed += 1

    async def exchange(self, frame: bytes) -> bytes:
        answer = asyncio.run_coroutine_threadsafe(self._stage.supervisor.exchange(frame), self._loop)
        return await asyncio.wrap_future(answer)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    hub = Hub()
    monkeypatch.setattr(Runtime, "_enter", lambda _runtime: hub.cluster())
    monkeypatch.setattr("perdure.actors.runtime.runtime.Packer", lambda *_, **__: None)
    yield hub
    hub.end()


@pytest.fixture
def runtime(hub: Hub, tmp_path: Path) -> Iterator[Runtime]:
    runtime = Runtime(tmp_path)
    runtime.open()
    yield runtime
    runtime.close()


def beside(job: Callable[[], Any]) -> Callable[[], Any]:
    """Do this on a thread; the way to what it gives or raises, for which nobody waits long."""
    told: list[Any] = []

    def main() -> None:
        try:
            told.append(job())
        except Exception as problem:
            told.append(problem)

    thread = threading.Thread(target=main)
    thread.start()

    def answer() -> Any:
        thread.join(20)
        return told[0] if told else "hangs"

    return answer


def test_handles_and_runs_from_before_a_close_work_after_the_next_opening(runtime: Runtime) -> None:
    handle: Any = runtime.agent(Counter, "c")
    started, events = runtime.start(Leaf, 1), runtime.events("later")
    assert handle.add() == 1
    for n in (2, 3):
        runtime.close()
        for call in (handle.add, started.result, runtime.ps, lambda: list(events), lambda: tell(handle.add)):
            with pytest.raises(RuntimeClosed, match="Open it again"):
                call()
        runtime.open()
        assert handle.add() == n
        assert started.result().output == 1
    runtime.run(Leaf, 2, run_id="later")
    assert list(events)
    tell(handle.add)


def test_a_runtime_that_was_never_open_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="call `open"):
        Runtime(tmp_path).ps()


def test_whoever_waits_when_it_is_closed_is_told_at_once(runtime: Runtime) -> None:
    handle: Any = runtime.agent(Counter, "c")
    started = runtime.start(Endless, 1, run_id="e")
    watched = iter(runtime.events("e"))
    next(watched)
    waiting = [
        beside(call)
        for call in (
            lambda: runtime.run(Endless, 2),
            started.result,
            handle.never,
            lambda: list(watched),
            lambda: asyncio.run(_awaited(lambda: runtime.asynchronous.run(Endless, 3))),
            lambda: asyncio.run(_followed(runtime)),
        )
    ]
    assert Counter.begun.wait(20)
    while len(runtime.list(status=["running"])) < 3:
        pass
    runtime.close()
    assert [type(answer()) for answer in waiting] == [RuntimeClosed] * len(waiting)


async def _awaited(call: Callable[[], Awaitable[Any]]) -> Any:
    return await call()


async def _followed(runtime: Runtime) -> list[Any]:
    return [each async for each in runtime.asynchronous.events("e")]


def test_an_iteration_ends_with_the_session_in_which_it_began(runtime: Runtime) -> None:
    runtime.start(Endless, 1, run_id="e")
    watched = iter(runtime.events("e"))
    next(watched)
    runtime.close()
    runtime.open()
    with pytest.raises(RuntimeClosed):
        list(watched)


def in_a_fork(job: Callable[[], Any]) -> int:
    """The exit code of a forked process that does this."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            job()
        except RuntimeClosed as refused:
            code = FORKED if "was forked" in str(refused) else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_process_is_refused_everything_and_ends_nothing(hub: Hub, runtime: Runtime) -> None:
    handle: Any = runtime.agent(Counter, "c")
    started, watched = runtime.start(Leaf, 1), iter(runtime.events("e"))
    runtime.start(Endless, 1, run_id="e")
    next(watched)
    calls: list[Callable[[], Any]] = [
        lambda: runtime.run(Leaf, 1),
        handle.add,
        started.result,
        runtime.ps,
        lambda: list(watched),
        lambda: list(runtime.events("e")),
        lambda: runtime.agent(Counter, "d"),
        lambda: tell(handle.add),
        lambda: runtime.subscribe("run", print),
        lambda: asyncio.run(_awaited(lambda: runtime.asynchronous.run(Leaf, 1))),
        runtime.kill_everything,
    ]
    assert [in_a_fork(call) for call in calls] == [FORKED] * len(calls)
    assert in_a_fork(runtime.close) == in_a_fork(lambda: runtime.__exit__(None, None, None)) == 1
    assert hub.closed == 0
    assert handle.add() == 1


@pytest.mark.parametrize("interrupt", [partial(os.kill, os.getpid(), signal.SIGINT), interrupt_main])
def test_an_interrupt_ends_the_wait_and_nothing_else(runtime: Runtime, interrupt: Callable[[], None]) -> None:
    timer = threading.Timer(0.3, interrupt)
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # what a shell has begun in the background ignores it
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            runtime.run(Endless, 1, run_id="e")
    finally:
        signal.signal(signal.SIGINT, before)
    assert runtime.run(Leaf, 1).output == 1
    runtime.cancel("e")
    assert (runtime.inspect("e") or {})["status"] == "aborted"


def test_several_threads_and_loops_use_one_runtime_at_once(runtime: Runtime) -> None:
    handle: Any = runtime.agent(Counter, "c")

    async def both() -> list[Any]:
        return await asyncio.gather(handle.add(), *(runtime.asynchronous.run(Leaf, n) for n in range(3)))

    waiting = [beside(handle.add) for _ in range(4)] + [beside(lambda: asyncio.run(both())) for _ in range(3)]
    told = [answer() for answer in waiting]
    counted = [each if isinstance(each, int) else each[0] for each in told]
    assert sorted(counted) == list(range(1, 8))


def test_a_question_blocks_in_sync_code_and_is_awaited_in_async_code(runtime: Runtime) -> None:
    async def asked() -> list[Any]:
        aside = runtime.asynchronous
        return await asyncio.gather(aside.audit(), aside.explain("q"), aside.ask("explain", "q"))

    runtime.run(Leaf, 1, run_id="q")
    audit, *explained = asyncio.run(asked())
    assert runtime.audit() == audit
    assert {lines[0] for lines in (*explained, runtime.explain("q"))} == {
        f"Run q of {Leaf.__module__}:Leaf is completed."
    }
    with pytest.raises(UnknownRun):
        runtime.explain("nobody")


def test_on_a_loop_a_run_is_a_future_for_gather_wait_and_wait_for_and_a_coroutine_of_ones_own_awaits_it_in_a_group(
    runtime: Runtime,
) -> None:
    async def leaf(number: int) -> int:
        return int((await runtime.asynchronous.run(Leaf, number)).output)

    async def story() -> list[int]:
        asked = runtime.asynchronous.run(Leaf, 0)
        assert asyncio.isfuture(asked)
        done, _ = await asyncio.wait([asked])
        waited = await asyncio.wait_for(runtime.asynchronous.run(Leaf, 1), 30)
        with pytest.raises(TypeError, match="a coroutine was expected"):
            await asyncio.create_task(asked)  # type: ignore[arg-type]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(leaf(number)) for number in (2, 3)]
        return [*(each.result().output for each in done), waited.output, *(task.result() for task in tasks)]

    assert asyncio.run(story()) == [1, 1, 1, 1]


def test_what_was_opened_on_one_loop_may_be_used_and_closed_on_others(hub: Hub, tmp_path: Path) -> None:
    runtime = Runtime(tmp_path)

    async def opened() -> Any:
        return await runtime.__aenter__()

    async def used(opened: Any) -> int:
        return int((await opened.run(Leaf, 1)).output)

    async def closed() -> None:
        await runtime.__aexit__(None, None, None)

    opened_runtime = asyncio.run(opened())
    assert asyncio.run(used(opened_runtime)) == 1
    asyncio.run(closed())
    assert hub.closed == 1


def test_a_sync_function_in_a_coroutine_of_an_agent_may_use_a_runtime_of_its_own(runtime: Runtime) -> None:
    Asker.runtime = runtime
    handle: Any = runtime.agent(Asker, "a")
    assert (handle.in_sync(), handle.in_async(), handle.in_own_loop()) == (1, 1, 1)


class Asker(Agent):
    """Asks a runtime for runs."""

    runtime: Any = None  # of this process, for the test

    @exposed
    def in_sync(self) -> int:
        return int(self.runtime.run(Leaf, 1).output)

    @exposed
    async def in_async(self) -> int:
        return int((await self.runtime.run(Leaf, 2)).output)

    @exposed
    def in_own_loop(self) -> int:
        async def ask() -> int:
            results = await asyncio.gather(*(self.runtime.run(Leaf, n) for n in range(3)))
            return int(results[0].output)

        return asyncio.run(ask())
