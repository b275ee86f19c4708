"""The stall watchdog: who says something in time is left alone, and who does not is closed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.wrapper import WrapperModel

from perdure.actors.chat.model import heard as heard_bytes
from perdure.actors.chat.model import listen_to
from perdure.actors.chat.watchdog import Limit, Stalled, Watchdog
from perdure.scenarios.provider.events import Comment, Done, Event, Finish, Role, Text, Usage
from perdure.scenarios.provider.faults import Fault, FaultKind, FaultPlan, Pace, Rule
from perdure.scenarios.provider.script import Script, ScriptedQuestion
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
    watchdog, found = Watchdog(Limit(first_ms), Limit(between_ms)), list[int]()
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
        await Watchdog(Limit(60_000)).within(late())

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


# ---------------------------------------------------------------- a line that is kept alive


class Pressed(Adder):
    """Wants the first event within seconds, and gives up at once."""

    chat_first_token_timeout_ms = 7_000
    chat_recovery = False


class Unrecovered(Adder):
    """Waits five seconds, and gives up at once."""

    chat_recovery = False


def kept_alive(*before: Event, pings: int) -> Script:
    """A model that thinks for as many seconds, of which its provider keeps the line alive."""
    said = (Role(), *before, *[Comment(text="ping")] * pings, Text(text="there"), Finish(), Usage(), Done())
    return Script(questions=(ScriptedQuestion(asks="words", rounds=(), verbatim=(said,)),))


@pytest.mark.parametrize("before", [[], [Text(text="almost ")]])
def test_a_line_that_is_kept_alive_is_not_cut_off(before: list[Event]) -> None:
    """Neither before the first word nor after it; else what a model thinks about for long is asked and paid for again and again."""

    async def story(room: Room) -> Any:
        return await room.do("chat", "words", request_id="asked")

    result = visit(Adder, story, kept_alive(*before, pings=30), pace=Pace(between_ms=1_000))
    assert (result.status, result.text) == ("completed", "almost there" if before else "there")
    assert len(Outside.provider.log()) == 1


@pytest.mark.parametrize(
    ("agent", "before", "words"),
    [
        (
            Unrecovered,
            [],
            "nothing but keep-alives came from the provider for 600 s, the limit of chat_first_token_timeout_ms",
        ),
        (
            Unrecovered,
            [Text(text="almost ")],
            "nothing more but keep-alives came from the provider for 600 s, the limit of chat_stream",
        ),
        (
            Pressed,
            [],
            "nothing but keep-alives came from the provider for 7 s, the limit of chat_first_token_timeout_ms",
        ),
    ],
)
def test_keep_alives_stand_for_events_for_ten_minutes_at_most_and_never_for_a_first_one_that_has_a_limit(
    agent: type[Adder], before: list[Event], words: str
) -> None:
    async def story(room: Room) -> Any:
        return await room.do("chat", "words", request_id="asked")

    result = visit(agent, story, kept_alive(*before, pings=700), pace=Pace(between_ms=1_000), timeout_ms=900_000)
    assert result.status == "error"
    assert words in result.error


def test_a_first_frame_without_a_word_is_no_keep_alive() -> None:
    async def story(room: Room) -> Any:
        return await room.do("chat", "words", request_id="asked")

    result = visit(Pressed, story, plan=FaultPlan.at({1: Fault(kind=FaultKind.STALL, event=1)}))
    assert "nothing came from the provider for 7 s" in result.error


def test_a_client_of_an_author_is_heard_once_and_for_our_requests_alone() -> None:
    """However it is wrapped; whoever else uses it sees nothing of that."""
    model = Outside.model
    for _ in range(2):
        listen_to(FallbackModel(WrapperModel(model), model))
    client = model.client._client  # noqa: SLF001 - an author may use it for other things
    assert client.event_hooks["response"].count(heard_bytes) == 1

    async def stranger() -> Any:
        async with client.stream("GET", "http://provider.invalid/nothing") as response:
            return type(response.stream).__name__

    assert asyncio.run(stranger()) != "Heard"


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
