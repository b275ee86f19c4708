"""Sync code on threads: what runs is bounded, what waits is not, and what cannot be stopped is not forgotten."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import pytest

from perdure.actors.life import host_services
from perdure.actors.life.life import cached_once
from perdure.actors.threads import Crew, inherit_contexts, lent, wait_for, within
from perdure.ledger import StartTimedOut
from tests.actors.one_process import OneProcess, play
from tests.actors.sync_cast import Clockwork, Family, Leaf, Stuck, StuckAtFirst, Till, Tree, Waiting
from tests.kit import played

T = TypeVar("T")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0)


class Meter:
    """How many are at it at the same time, and at most."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now = self.most = self.times = 0

    def __enter__(self) -> None:
        with self._lock:
            self.now += 1
            self.times += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.now -= 1


def test_a_recursive_sync_fan_out_deeper_and_wider_than_the_threads_finishes() -> None:
    async def story(stage: OneProcess) -> int:
        return int((await stage.client.run(Tree, [3, 3, 3, 3])).output)

    assert play(story, threads_max=2) == 3 + 9 + 27 + 81


def test_one_thread_is_enough_for_sync_parents_that_wait_one_by_one_and_in_handlers_calls_and_batches() -> None:
    async def story(stage: OneProcess) -> list[Any]:
        told = await stage.client.call(Family, "home", "gather", (3,), {})
        await stage.until(lambda: stage.supervisor.view.tally["delivered"] == 3)
        return [told, await stage.client.call(Family, "home", "seen", (), {})]

    assert play(story, threads_max=1) == [[1, 1, 1], ["completed"] * 3]


def test_a_turn_that_a_collection_of_garbage_ends_while_the_crew_is_at_work_is_passed_on() -> None:
    crew = Crew(1, "crew")

    async def works() -> str:
        async with crew.turn("owner"):
            await asyncio.sleep(0)
        return "done"

    left = works()
    left.send(None)
    with crew._locked():  # noqa: SLF001 - a collection may come at any place, in any thread
        left.close()
    assert asyncio.run(works()) == "done"


def test_no_more_jobs_run_at_once_than_there_are_slots_however_many_wait() -> None:
    meter, waiting, gate = Meter(), Meter(), Future[None]()

    def job() -> None:
        with meter:
            sum(range(50_000))
        with waiting:
            wait_for(gate)
        with meter:
            sum(range(50_000))

    async def story() -> None:
        crew = Crew(2, "test")
        jobs = [asyncio.create_task(crew.run(job)) for _ in range(20)]
        await until(lambda: waiting.now == 20)
        gate.set_result(None)
        await asyncio.gather(*jobs)

    asyncio.run(story())
    assert (meter.times, waiting.most) == (40, 20)
    assert meter.most <= 2


def test_who_waited_goes_on_before_who_never_began() -> None:
    order: list[str] = []
    gate, busy = Future[None](), threading.Event()

    def first() -> None:
        wait_for(gate)
        order.append("waited")

    async def story() -> None:
        crew = Crew(1, "test")
        jobs = [crew.run(first), crew.run(busy.wait), crew.run(partial(order.append, "new"))]
        running = [asyncio.create_task(job) for job in jobs]
        await asyncio.sleep(0)
        gate.set_result(None)
        await until(lambda: len(crew._returning) == 1)  # noqa: SLF001
        busy.set()
        await asyncio.gather(*running)

    asyncio.run(story())
    assert order == ["waited", "new"]


def test_a_job_that_goes_on_in_the_context_of_an_earlier_one_lends_its_own_slot() -> None:
    crew, context = Crew(1, "test"), contextvars.copy_context()

    def waits() -> int:
        with lent():
            return crew.jobs

    async def story() -> list[int]:
        return [await crew.run(lambda: within(context, waits)) for _ in range(2)]

    assert asyncio.run(story()) == [0, 0]


def test_threads_are_used_again_and_those_beyond_the_slots_end() -> None:
    gate = Future[None]()

    async def story() -> int:
        crew = Crew(2, "crew-of-the-test")
        jobs = [asyncio.create_task(crew.run(lambda: wait_for(gate))) for _ in range(10)]
        await until(lambda: len(threads()) == 10)
        gate.set_result(None)
        await asyncio.gather(*jobs)
        await until(lambda: len(threads()) == 2)
        known = threads()
        for _ in range(10):
            await crew.run(lambda: None)
        return len(threads() - known)

    def threads() -> set[threading.Thread]:
        return {each for each in threading.enumerate() if each.name == "crew-of-the-test"}

    assert asyncio.run(story()) == 0


def test_threads_that_nobody_needs_any_more_end_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.actors.threads.RESTS_S", 0.01)

    async def story() -> None:
        crew = Crew(2, "brief-crew-of-the-test")
        await crew.run(lambda: None)
        await until(lambda: not [each for each in threading.enumerate() if each.name == "brief-crew-of-the-test"])
        assert await crew.run(lambda: 1) == 1

    asyncio.run(story())


def test_a_job_that_is_given_up_in_line_never_begins_and_leaves_nothing_behind() -> None:
    done: list[str] = []
    busy = threading.Event()

    async def story() -> int:
        crew = Crew(1, "test")
        first = asyncio.create_task(crew.run(busy.wait))
        second = asyncio.create_task(crew.run(partial(done.append, "second")))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait({second})
        left = crew.left_behind
        busy.set()
        await first
        await crew.run(lambda: None)
        return left

    assert asyncio.run(story()) == 0
    assert done == []


def test_a_job_that_is_left_behind_is_counted_until_it_ends_and_keeps_no_slot() -> None:
    stuck, began = threading.Event(), threading.Event()

    def job() -> None:
        began.set()
        stuck.wait()

    async def story() -> None:
        crew = Crew(1, "test")
        abandoned = asyncio.create_task(crew.run(job))
        await until(began.is_set)
        abandoned.cancel()
        await asyncio.wait({abandoned})
        assert crew.left_behind == 1
        assert await crew.run(lambda: "goes on") == "goes on"
        stuck.set()
        await until(lambda: crew.left_behind == 0)
        assert await crew.run(lambda: "goes on") == "goes on"

    asyncio.run(story())


def test_who_is_left_behind_while_it_waits_comes_back_without_a_slot() -> None:
    gate, meter = Future[None](), Meter()

    def job() -> None:
        wait_for(gate)

    def measured() -> None:
        with meter:
            pass

    async def story() -> None:
        crew = Crew(1, "test")
        abandoned = asyncio.create_task(crew.run(job))
        await crew.run(lambda: None)
        abandoned.cancel()
        await asyncio.wait({abandoned})
        gate.set_result(None)
        await until(lambda: crew.left_behind == 0)
        await asyncio.gather(*(crew.run(measured) for _ in range(5)))

    asyncio.run(story())
    assert (meter.times, meter.most) == (5, 1)


def test_a_job_sees_its_caller_s_context() -> None:
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name")

    async def story() -> str:
        name.set("caller")
        return await Crew(1, "test").run(name.get)

    assert asyncio.run(story()) == "caller"


@pytest.mark.parametrize("raised", [StopIteration, CancelledError, asyncio.CancelledError])
def test_what_would_mean_something_else_to_who_waits_arrives_as_an_error(raised: type[BaseException]) -> None:
    def job() -> None:
        raise raised

    async def story() -> None:
        with pytest.raises(RuntimeError, match=f"sync code raised {raised.__name__}"):
            await Crew(1, "test").run(job)

    asyncio.run(story())


def test_when_the_system_gives_no_more_threads_the_job_is_told_and_the_next_one_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        crew = Crew(2, "test")
        with monkeypatch.context() as poor:
            poor.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="no more"):
                await crew.run(lambda: None)
        assert await asyncio.gather(crew.run(lambda: 1), crew.run(lambda: 2)) == [1, 2]

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("no more")

    asyncio.run(story())


async def in_turn(crew: Crew, owner: object, job: Callable[[], T]) -> T:
    async with asyncio.timeout(20), crew.turn(owner) as turn:
        return await crew.run(job, turn)


def test_jobs_of_one_owner_run_one_at_a_time_and_in_order_beside_those_of_others() -> None:
    order: list[int] = []
    meters = {"a": Meter(), "b": Meter()}
    both = threading.Barrier(2)

    def job(owner: str, number: int) -> None:
        with meters[owner]:
            both.wait(30)  # the other owner's job of this number is at work, too
            if owner == "a":
                order.append(number)

    async def story() -> None:
        crew = Crew(4, "test")
        jobs = [in_turn(crew, owner, partial(job, owner, number)) for number in range(50) for owner in "ab"]
        await asyncio.gather(*jobs)
        assert crew._in_turn == {}  # noqa: SLF001

    asyncio.run(story())
    assert order == list(range(50))
    assert {name: (meter.times, meter.most) for name, meter in meters.items()} == {"a": (50, 1), "b": (50, 1)}


def test_who_waits_for_the_runtime_lends_the_turn_too_and_goes_on_before_who_never_began() -> None:
    order: list[str] = []
    gate, busy = Future[None](), threading.Event()

    def first() -> None:
        order.append("first")
        wait_for(gate)
        order.append("first again")

    def second() -> None:
        order.append("second")
        busy.wait(30)
        order.append("second again")

    async def story() -> None:
        crew = Crew(4, "test")
        jobs = [in_turn(crew, "a", job) for job in (first, second, partial(order.append, "third"))]
        running = [asyncio.create_task(job) for job in jobs]
        await until(lambda: "second" in order)
        gate.set_result(None)
        await until(lambda: len(crew._in_turn["a"].back) == 1)  # noqa: SLF001
        busy.set()
        await asyncio.gather(*running)
        assert crew._in_turn == {}  # noqa: SLF001

    asyncio.run(story())
    assert order == ["first", "second", "second again", "first again", "third"]


def test_threads_of_one_job_that_wait_again_and_again_share_its_turn() -> None:
    meter, bodies = Meter(), 40

    def job() -> None:
        def wait_often() -> None:
            for _ in range(20):
                answer = Future[None]()
                threading.Timer(0.0005, answer.set_result, [None]).start()
                wait_for(answer)

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda _: wait_often(), range(3)))
        with meter:
            sum(range(1000))

    async def story() -> None:
        inherit_contexts()
        crew = Crew(3, "test")
        await asyncio.gather(*(in_turn(crew, number % 2, job) for number in range(bodies)))
        assert crew._in_turn == {}  # noqa: SLF001
        await until(lambda: (crew._running, len(crew._returning)) == (0, 0))  # noqa: SLF001

    asyncio.run(story())
    assert (meter.times, meter.most <= 2) == (bodies, True)


@pytest.mark.parametrize("waits", [False, True])
def test_the_turn_of_a_job_that_is_left_behind_is_the_next_one_s(waits: bool) -> None:
    gate, stuck, began = Future[None](), threading.Event(), threading.Event()

    def job() -> None:
        began.set()
        if waits:
            wait_for(gate)
        else:
            stuck.wait(30)

    async def story() -> None:
        crew = Crew(4, "test")
        abandoned = asyncio.create_task(in_turn(crew, "a", job))
        await until(began.is_set)
        in_line = asyncio.create_task(in_turn(crew, "a", lambda: "never"))
        following = asyncio.create_task(in_turn(crew, "a", lambda: "goes on"))
        await asyncio.sleep(0)
        in_line.cancel()
        abandoned.cancel()
        await asyncio.wait({abandoned, in_line})
        assert await following == "goes on"
        stuck.set()
        gate.set_result(None)
        await until(lambda: crew.left_behind == 0)
        assert crew._in_turn == {}  # noqa: SLF001

    asyncio.run(story())


async def collected(values: AsyncIterator[int]) -> list[int]:
    return [value async for value in values]


def test_sync_methods_and_handlers_of_an_agent_lose_no_update() -> None:
    async def story(stage: OneProcess) -> tuple[int, int]:
        calls = [stage.client.call(Till, "home", "add", (), {}) for _ in range(60)]
        follows = [stage.client.call(Till, "home", "follow", (number,), {}) for number in range(20)]
        numbers: Any = stage.client.agent(Till, "home").add_often(20)
        given, *_ = await asyncio.gather(collected(numbers), *calls, *follows)
        await stage.until(lambda: stage.supervisor.view.tally["delivered"] == 20)
        return len(given), await stage.client.call(Till, "home", "counted", (), {})

    assert play(story) == (20, 100)


def test_an_agent_that_waits_for_another_can_be_called_back_by_it() -> None:
    async def story(stage: OneProcess) -> Any:
        return await stage.client.call(Till, "home", "there_and_back", (3,), {})

    assert play(story, threads_max=1) == 3


def test_what_a_sync_method_gives_to_be_awaited_takes_no_turn() -> None:
    async def story(stage: OneProcess) -> int:
        await stage.client.call(Till, "home", "in_two_parts", (), {})
        return await stage.client.call(Till, "home", "counted", (), {})

    assert play(story) == 2


def test_who_waits_long_for_a_turn_is_told_why_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(stage: OneProcess) -> None:
        calls = [stage.client.call(Till, name, "add", (), {}) for name in ("home", "home", "home", "afar", "afar")]
        await asyncio.gather(*calls)

    monkeypatch.setattr(host_services, "LONG_TURN_S", 0.0005)
    play(story)
    (told,) = [each.getMessage() for each in caplog.records if "for its turn" in each.getMessage()]
    assert "@exposed(concurrent=True)" in told


def test_a_concurrent_method_runs_beside_the_others() -> None:
    async def story(stage: OneProcess) -> list[Any]:
        calls = [stage.client.call(Till, "home", method, (), {}) for method in ("meet", "meet", "meet_in_turn")]
        return await asyncio.gather(*calls)

    Till.meeting = threading.Barrier(3)
    assert play(story, threads_max=3) == [None, None, None]


def test_outside_of_a_crew_waiting_is_just_waiting() -> None:
    done = Future[int]()
    done.set_result(3)
    assert wait_for(done) == 3


def test_a_sync_run_that_is_cancelled_while_it_waits_is_told_and_its_thread_comes_back() -> None:
    async def story(stage: OneProcess) -> None:
        running = asyncio.create_task(stage.client.run(Waiting, "forever", run_id="w"))
        await stage.until(lambda: "forever" in stage.supervisor.view.runs)
        await stage.client.ask("cancel", "w", None, "enough")
        assert (await running).status == "aborted"
        await stage.until(lambda: Waiting.heard == ["StaleIncarnation", "StaleIncarnation"])
        await stage.until(lambda: all(world.threads.left_behind == 0 for world in stage.worlds))

    Waiting.heard = []
    play(story)


@pytest.fixture
def free() -> Iterator[threading.Event]:
    Stuck.free, Stuck.hangs = threading.Event(), Counter()
    yield Stuck.free
    Stuck.free.set()


@played(play)
async def test_a_sync_run_that_hangs_when_it_is_cancelled_costs_its_host(
    stage: OneProcess, /, free: threading.Event
) -> None:
    (first,) = await running(stage, stage.client.run(Stuck, "x", run_id="s"), "run")
    await stage.client.ask("cancel", "s", None, "enough")
    await retired(stage, first)
    assert (await stage.client.run(Stuck, "x")).output == "done"


@played(lambda story: play(story, handler_timeout_ms=100, retry_first_ms=10))
async def test_a_sync_handler_that_times_out_is_called_again_and_its_host_is_retired(
    stage: OneProcess, /, free: threading.Event
) -> None:
    (first,) = await running(stage, stage.client.call(Stuck, "home", "follow", (), {}), "handler")
    await stage.until(lambda: stage.supervisor.view.tally["delivered"] == 1)
    await retired(stage, first)
    assert await stage.client.call(Stuck, "home", "told", (), {}) == 1


@played(play)
async def test_a_sync_on_start_that_hangs_when_its_run_is_cancelled_costs_its_host(
    stage: OneProcess, /, free: threading.Event
) -> None:
    (first,) = await running(stage, stage.client.run(StuckAtFirst, "x", run_id="s"), "start")
    await stage.client.ask("cancel", "s", None, "enough")
    await retired(stage, first)


@played(lambda story: play(story, on_start_timeout_ms=200))
async def test_a_sync_on_start_that_does_not_return_in_time_is_told_and_costs_its_host(
    stage: OneProcess, /, free: threading.Event
) -> None:
    calling = asyncio.create_task(stage.client.call(StuckAtFirst, "home", "told", (), {}))
    await stage.until(lambda: Stuck.hangs["start"] > 0)
    (first,) = stage.hosts
    with pytest.raises(StartTimedOut, match="did not return within 200 ms"):
        await calling
    await retired(stage, first)
    assert await stage.client.call(StuckAtFirst, "home", "told", (), {}) == 0


@played(lambda story: play(story, sweep_ms=60000, checkpoint_idle_ms=60000))
async def test_a_host_whose_thread_came_back_in_time_stays(stage: OneProcess, /, free: threading.Event) -> None:
    (first,) = await running(stage, stage.client.run(Stuck, "x", run_id="s"), "run")
    await stage.client.ask("cancel", "s", None, "enough")
    await stage.until(lambda: stage.supervisor.view.hosts[first].worn)
    free.set()
    await stage.until(lambda: not stage.supervisor.view.hosts[first].worn)
    assert (await stage.client.run(Leaf, 1)).ok
    assert list(stage.hosts) == [first]


async def running(stage: OneProcess, job: Coroutine[Any, Any, Any], where: str) -> list[str]:
    """Let it come as far as where it hangs; returns the hosts."""
    task = asyncio.create_task(job)
    await stage.until(lambda: Stuck.hangs[where] > 0)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return list(stage.hosts)


async def retired(stage: OneProcess, host_id: str) -> None:
    """Wait until this host is gone, and another one has its place."""
    await stage.until(lambda: host_id not in stage.hosts and len(stage.hosts) == 1)
    assert stage.ended == ["retired"]


def test_callbacks_on_threads_that_meet_each_other_count_once_each() -> None:
    async def story(stage: OneProcess) -> list[int]:
        async def call(method: str, *args: Any) -> Any:
            return await stage.client.call(Clockwork, "clock", method, args, {})

        await asyncio.gather(call("plan", 20), *(call("plan_together", 5) for _ in range(4)))
        async with asyncio.timeout(30):
            while (counted := await call("counted")) < 41:
                await asyncio.sleep(0.05)
        return [counted, await call("counted")]

    assert play(story, threads_max=8) == [41, 41]


def test_a_part_is_made_once_whichever_thread_looks_first() -> None:
    made, ready = list[object](), threading.Barrier(8)

    class Whole:
        @cached_once
        def part(self) -> object:
            """Slow to make."""
            made.append(object())
            return made[-1]

    whole, seen = Whole(), list[object]()

    def look() -> None:
        ready.wait()
        seen.append(whole.part)

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [whole.part]
    assert seen == made * 8
