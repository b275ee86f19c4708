"""Many short waits under one timer: each has its own limit, and nobody else's end is taken for it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from perdure.actors.chat.watchdog import ShortWaits, WaitedTooLong
from perdure.actors.sim_world.virtual_loop import VirtualLoop

T = TypeVar("T")


def played(story: Coroutine[Any, Any, T]) -> T:
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(story)
    finally:
        loop.close()


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def failing() -> None:
    raise TimeoutError("its own")


def test_each_wait_has_its_own_limit() -> None:
    async def story() -> list[float]:
        waits, begun_s, cut_at_s = ShortWaits(), now_s(), []
        for taken_s, limit_s in ((1, 5), (3, 100), (8, 2), (1, 2), (500, 4)):
            before_s = now_s()
            try:
                await waits.within(asyncio.sleep(taken_s), before_s + limit_s)
            except WaitedTooLong:
                cut_at_s.append(now_s() - begun_s)
        assert await waits.within(asyncio.sleep(1_000, "for ever")) == "for ever"
        waits.close()
        return cut_at_s

    assert played(story()) == pytest.approx([6.0, 11.0])


def test_a_hundred_waits_set_one_timer() -> None:
    async def story() -> int:
        loop, waits = asyncio.get_running_loop(), ShortWaits()
        real, calls = loop.call_at, list[float]()

        def counted(when: float, *args: Any, **more: Any) -> asyncio.TimerHandle:
            calls.append(when)
            return real(when, *args, **more)

        loop.call_at = counted  # type: ignore[method-assign]
        for _ in range(100):
            await waits.within(asyncio.sleep(0), now_s() + 90)
        waits.close()
        return len(calls)

    assert played(story()) == 1


def test_a_timeout_of_the_job_and_a_cancellation_from_outside_are_not_the_limit() -> None:
    async def story() -> None:
        waits = ShortWaits()
        with pytest.raises(TimeoutError, match="its own") as raised:
            await waits.within(failing(), now_s() + 1)
        assert not isinstance(raised.value, WaitedTooLong)
        task = asyncio.ensure_future(waits.within(asyncio.sleep(100), now_s() + 50))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(TimeoutError) as late:
            async with asyncio.timeout(2):
                await waits.within(asyncio.sleep(100), now_s() + 50)
        assert not isinstance(late.value, WaitedTooLong)
        waits.close()

    played(story())


def test_a_wait_that_is_cut_leaves_its_task_uncancelled() -> None:
    async def story() -> int:
        waits = ShortWaits()
        asyncio.get_running_loop().call_later(1, waits.cut)
        with pytest.raises(WaitedTooLong):
            await waits.within(asyncio.sleep(100))
        waits.cut()  # nothing is waited for any more
        await asyncio.sleep(1)
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    assert played(story()) == 0


def test_who_is_cancelled_as_the_limit_passes_is_cancelled() -> None:
    async def story() -> None:
        waits = ShortWaits()
        task = asyncio.ensure_future(waits.within(asyncio.sleep(100)))
        await asyncio.sleep(1)
        waits.cut()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    played(story())
