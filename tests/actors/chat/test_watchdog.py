"""The stall watchdog: who says something in time is left alone, and who does not is closed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from perdure.actors.chat.watchdog import Stalled, Watchdog
from perdure.scenarios.provider.faults import Fault, FaultKind, FaultPlan, Rule
from tests.actors.chat.desk import Adder, Outside
from tests.actors.chat.room import Room, visit, visiting

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


async def heard(numbers: AsyncIterator[int], first_ms: float, between_ms: float) -> list[int]:
    """The numbers that came in time, under a watchdog."""
    watchdog, found = Watchdog(first_ms, between_ms), list[int]()
    async with contextlib.aclosing(numbers):  # type: ignore[type-var]
        while (number := await watchdog.within(anext(numbers, None))) is not None:
            found.append(number)
            await asyncio.sleep(0.002)  # what is done with a number takes no time from the next one
            watchdog.heard()
    return found


@pytest.mark.shows(chat_recovery="C-0343 C-0344 C-1122 C-1123")
@pytest.mark.parametrize(("first_ms", "between_ms"), [(0, 0), (60_000, 60_000), (0, 60_000)])
def test_a_source_that_speaks_is_passed_on_whole(first_ms: float, between_ms: float) -> None:
    """C-0343, C-0344: with a limit and without one."""
    assert asyncio.run(heard(source(), first_ms, between_ms)) == [0, 1, 2]
    assert CLOSED == ["closed"]


@pytest.mark.shows(chat_recovery="C-0345")
@pytest.mark.parametrize(("hangs_after", "limits"), [(0, (1, 0)), (2, (0, 1)), (1, (60_000, 1))])
def test_a_source_that_falls_silent_is_closed_and_said_to_have(hangs_after: int, limits: tuple[float, float]) -> None:
    """C-0345: the first event has a limit of its own (W-42), and the error says how long was waited."""
    with pytest.raises(Stalled, match="said nothing for 1 ms") as stalled:
        asyncio.run(heard(source(hangs_after=hangs_after), *limits))
    assert (stalled.value.waited_ms, stalled.value.has_begun) == (1, hangs_after > 0)
    assert CLOSED == ["closed"]


def test_an_error_of_the_source_that_is_a_timeout_is_no_stall() -> None:
    """Only our own limit is."""

    async def late() -> None:
        raise TimeoutError("of a socket")

    async def wait() -> None:
        await Watchdog(60_000).within(late())

    with pytest.raises(TimeoutError, match="of a socket"):
        asyncio.run(wait())


@pytest.mark.shows(chat_recovery="C-0346")
@visiting(Adder, plan=FaultPlan.at({1: Fault(kind=FaultKind.STALL, event=2)}))
async def test_a_model_is_left_when_its_reader_leaves(room: Room, /) -> None:
    """C-0346: nobody listens any more, so nothing more is said."""
    asking = room.soon("chat", "words", request_id="asked")
    await room.until(lambda: Outside.provider.open)
    assert await room.do("cancel_chat", "asked") is True
    assert (await asking).status == "aborted"
    assert Outside.provider.counters().ended == {"gone": 1}


# ---------------------------------------------------------------- an answer that has ended


@pytest.mark.parametrize("patience_ms", [500, 5_000, 60_000])
@pytest.mark.parametrize("event", [-2, -1])
def test_a_finished_answer_is_finished_though_the_line_stays_open(event: int, patience_ms: int) -> None:
    """The reason is the end: the watchdog does not ask again, and nobody waits for a line that is left open."""
    fault = Fault(kind=FaultKind.STALL, event=event)

    async def story(room: Room) -> Any:
        await room.do("chat", "nothing that is scripted", request_id="before")
        begun_s = asyncio.get_running_loop().time()
        Outside.provider.set_plan(FaultPlan(rules=(Rule(fault=fault, times=None),)))
        result = await room.do("chat", "words", request_id="asked", chat_stream_stall_timeout_ms=patience_ms)
        assert asyncio.get_running_loop().time() - begun_s < 2
        return result

    result = visit(Adder, story)
    assert (result.status, result.text) == ("completed", "Only words: 0 results.\nThat is all. ∎")
    assert len(Outside.provider.log()) == 2
