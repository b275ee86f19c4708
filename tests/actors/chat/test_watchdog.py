"""The stall watchdog: who says something in time is left alone, and who does not is closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from perdure.actors.chat.play import Stalled, watched

CLOSED: list[str] = []


async def source(*, hangs_after: int | None = None, length: int = 3) -> AsyncIterator[int]:
    """Numbers; it may fall silent for ever."""
    CLOSED.clear()
    try:
        for number in range(length):
            if number == hangs_after:
                await asyncio.Event().wait()
            yield number
    finally:
        CLOSED.append("closed")


async def heard(numbers: AsyncIterator[int]) -> list[int]:
    return [number async for number in numbers]


@pytest.mark.parametrize(("first_ms", "between_ms"), [(0, 0), (60_000, 60_000), (0, 60_000)])
def test_a_source_that_speaks_is_passed_on_whole(first_ms: float, between_ms: float) -> None:
    """C-0343, C-0344: with a limit and without one."""
    assert asyncio.run(heard(watched(source(), first_ms, between_ms))) == [0, 1, 2]
    assert CLOSED == ["closed"]


@pytest.mark.parametrize(("hangs_after", "limits"), [(0, (1, 0)), (2, (0, 1)), (1, (60_000, 1))])
def test_a_source_that_falls_silent_is_closed_and_said_to_have(hangs_after: int, limits: tuple[float, float]) -> None:
    """C-0345: the first event has a limit of its own (W-42), and the error says how long was waited."""
    with pytest.raises(Stalled, match="said nothing for 1 ms") as stalled:
        asyncio.run(heard(watched(source(hangs_after=hangs_after), *limits)))
    assert stalled.value.waited_ms == 1
    assert CLOSED == ["closed"]


def test_a_source_is_closed_when_its_reader_leaves() -> None:
    """C-0346: nobody listens any more, so nothing more is said."""

    async def first() -> int:
        numbers = watched(source(), 60_000, 60_000)
        async for number in numbers:
            await numbers.aclose()  # type: ignore[attr-defined]
            return number
        return -1

    assert asyncio.run(first()) == 0
    assert CLOSED == ["closed"]
