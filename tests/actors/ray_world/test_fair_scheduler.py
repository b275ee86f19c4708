"""The scheduler of a host's loop. A slice of no length has room for one turn, so each order is certain."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any

import pytest

from perdure.actors.ray_world.fair_scheduler import FairScheduler
from perdure.actors.tasks import RANK, NotAnException
from perdure.policies import Rank
from tests.kit import played

Job = Coroutine[Any, Any, Any]


def play(story: Callable[[FairScheduler], Job], slice_s: float = 0.0) -> None:
    async def whole() -> None:
        await story(FairScheduler(slice_s))

    asyncio.run(whole())


def start(job: Job, rank: Rank = Rank.WORK) -> asyncio.Task[Any]:
    context = copy_context()
    context.run(RANK.set, rank)
    return asyncio.get_running_loop().create_task(job, context=context)


async def child(name: str, said: list[str], turns: int = 3) -> None:
    RANK.set(Rank.WORK)
    for turn in range(turns):
        said.append(f"{name}{turn}")
        await asyncio.sleep(0)


@played(play)
async def test_the_host_s_own_work_comes_between_any_two_turns_of_agents(scheduler: FairScheduler, /) -> None:
    said: list[str] = []
    batch = [start(child("a", said)) for _ in range(50)]
    between = []
    while not all(task.done() for task in batch):
        before = len(said)
        await asyncio.sleep(0)
        between.append(len(said) - before)
    assert len(said) == 150
    assert max(between) == 1


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 begins no task eagerly")
@played(play)
async def test_a_task_may_be_begun_eagerly_and_still_has_its_turns(scheduler: FairScheduler, /) -> None:
    loop, said = asyncio.get_running_loop(), list[str]()
    make: Any = loop.get_task_factory()
    context = copy_context()
    context.run(RANK.set, Rank.WORK)
    eager = make(loop, child("a", said), context=context, name="eager", eager_start=True)
    assert (said, eager.get_name()) == (["a0"], "eager")
    later = make(loop, child("b", said), context=context, eager_start=None)  # as some loops say it
    await asyncio.gather(eager, later)
    assert sorted(said) == ["a0", "a1", "a2", "b0", "b1", "b2"]


@played(lambda story: play(story, slice_s=60.0))
async def test_in_a_slice_are_as_many_turns_as_there_is_time_for(scheduler: FairScheduler, /) -> None:
    said: list[str] = []
    batch = [start(child("a", said, turns=1)) for _ in range(50)]
    await asyncio.sleep(0)
    assert len(said) == 50
    await asyncio.gather(*batch)


@played(play)
async def test_who_is_at_work_goes_on_before_others_are_begun(scheduler: FairScheduler, /) -> None:
    said: list[str] = []
    await asyncio.gather(*(start(child(f"{name}/", said), Rank.OPENING) for name in range(20)))
    begun = {name: said.index(f"{name}/0") for name in range(20)}
    ended = {name: said.index(f"{name}/2") for name in range(20)}
    assert list(begun.values()) == sorted(begun.values())
    assert max(sum(begun[other] <= begun[name] < ended[other] for other in begun) for name in begun) <= 3


@played(play)
async def test_a_call_does_not_wait_for_the_batch(scheduler: FairScheduler, /) -> None:
    said: list[str] = []
    batch = [start(child("a", said)) for _ in range(50)]
    await asyncio.sleep(0)
    call = start(child("call", said, turns=1), Rank.CALL)
    await call
    assert said.index("call0") <= 2
    await asyncio.gather(*batch)


@played(play)
async def test_what_an_agent_waits_for_reaches_it_although_it_stood_in_line(scheduler: FairScheduler, /) -> None:
    async def waits(answer: asyncio.Future[int]) -> int:
        return await answer + 1

    async def fails(answer: asyncio.Future[int]) -> int:
        raise ValueError(await answer)

    answers = [asyncio.get_running_loop().create_future() for _ in range(20)]
    tasks = [start(waits(answer)) for answer in answers[:-1]]
    failing = start(fails(answers[-1]))
    await asyncio.sleep(0.01)
    for number, answer in enumerate(answers):
        answer.set_result(number)
    assert await asyncio.gather(*tasks) == list(range(1, 20))
    with pytest.raises(ValueError, match="19"):
        await failing


@played(play)
async def test_who_is_cancelled_in_line_hears_it_and_keeps_no_place(scheduler: FairScheduler, /) -> None:
    said: list[str] = []
    batch = [start(child(f"{name}/", said), Rank.OPENING) for name in range(20)]
    await asyncio.sleep(0)
    batch[10].cancel()
    done = await asyncio.gather(*batch, return_exceptions=True)
    assert [number for number, each in enumerate(done) if isinstance(each, asyncio.CancelledError)] == [10]
    assert not any(each.startswith("10/") for each in said)
    assert scheduler.is_free


@played(play)
async def test_it_tells_how_long_a_newcomer_has_waited(scheduler: FairScheduler, /) -> None:
    assert scheduler.waited_ms == 0
    batch = [start(child("a", []), Rank.OPENING) for _ in range(20)]
    await asyncio.sleep(0)
    threshold = asyncio.get_running_loop().time() + 0.005
    while asyncio.get_running_loop().time() < threshold:
        pass
    assert scheduler.waited_ms >= 4
    await asyncio.gather(*batch)
    assert scheduler.waited_ms == 0


@played(play)
async def test_tasks_of_the_host_itself_have_no_gate(scheduler: FairScheduler, /) -> None:
    own, agents = asyncio.ensure_future(asyncio.sleep(0)), start(asyncio.sleep(0))
    assert type(own.get_coro()) is not type(agents.get_coro())
    await asyncio.gather(own, agents)


@pytest.mark.parametrize("raised", [KeyboardInterrupt("by hand"), SystemExit(3), GeneratorExit("by hand")], ids=repr)
def test_what_a_task_of_an_agent_raises_ends_neither_the_loop_nor_who_waits_for_it(raised: BaseException) -> None:
    """Python's own tasks let the first two out of the loop, and close whoever waits for the third."""

    async def raising() -> None:
        await asyncio.sleep(0)
        raise raised

    async def waiting() -> str:
        try:
            await asyncio.create_task(raising())
        except Exception as problem:
            return type(problem).__name__
        return "nothing"

    async def story(_: FairScheduler) -> None:
        assert await start(waiting()) == ("RuntimeError" if isinstance(raised, SystemExit) else NotAnException.__name__)

    play(story)
