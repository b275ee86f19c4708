"""The wall clocks of all machines are set back, or forward, while something is at work: at one reading of a clock after the other.

A clock that was set back stays so. So what was taken out of a line, and is not due any more, must be
done when it is due again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from perdure.actors import Occurrence
from perdure.actors.sim_world.sim_ports import SimClock
from tests.actors.cast import Boss
from tests.actors.chat.room import SCRIPT, Room
from tests.actors.chat.room import visit as visit_room
from tests.actors.chat.test_chat_weaknesses import MORE, Slow
from tests.actors.chat.test_message_order import Patient
from tests.actors.fiber_cast import Jobs
from tests.actors.jobs.test_alarm_clock import Ringer
from tests.actors.messenger.paper import Board, Chat, answer_to, visit
from tests.actors.messenger.test_delivery import Waiting
from tests.actors.planners import Planner, do, payloads
from tests.actors.stories import Told, told_by
from tests.kit import Stage, address, play

BACK_MS = -100_000
PLACES = 6

Story = Callable[[Stage], Awaitable[None]]


class Readings:
    """How often a host has looked at its clock, and at which reading all clocks are set."""

    def __init__(self, at: int, by_ms: int) -> None:
        self.at, self.by_ms, self.count = at, by_ms, 0


@contextmanager
def clocks_set(by_ms: int, at: int) -> Iterator[Readings]:
    """All clocks are set by so much before a host reads one for this time."""
    readings, real = Readings(at, by_ms), SimClock.now_ms

    def now_ms(clock: SimClock) -> int:
        process = clock._process  # noqa: SLF001 - a clock that a test sets in the middle of a reading
        if process.kind == "host":
            readings.count += 1
            if readings.count == readings.at:
                process.nature.clocks_off_ms += by_ms
        return real(clock)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimClock, "now_ms", now_ms)
        yield readings


def at_each_reading(by_ms: int, played: Callable[[], object], places: int = PLACES) -> None:
    """Play it with the clocks set at one reading after the other, from the first to the last, in so many places."""
    with clocks_set(0, 0) as calm:
        played()
    for at in sorted({1 + (calm.count - 1) * place // places for place in range(places)}):
        with clocks_set(by_ms, at) as readings:
            played()
        assert readings.count >= at


async def queue(stage: Stage) -> None:
    for first in (0, 6):
        await stage.call(Planner, "do_all", [["queue", ["note", first + n], {}] for n in range(6)])
        await asyncio.sleep(0.05)
    await do(stage, "queue", "flaky", 12, retry={"attempts_max": 3, "first_ms": 10, "most_ms": 10})
    await do(stage, "queue", "slow", 100)
    await asyncio.sleep(12)
    assert sorted(map(int, await payloads(stage))) == [*range(13), 100]
    assert await do(stage, "queued.list") == []


async def schedules(stage: Stage) -> None:
    await stage.call(Planner, "do_all", [["schedule", [n % 3, "note", n], {}] for n in range(9)])
    await do(stage, "schedule", 1, "slow", 100)
    await do(stage, "schedule_every", 2, "counts", 0)
    await asyncio.sleep(12)
    noted = await payloads(stage)
    assert sorted(each for each in noted if each != "0") == sorted([*map(str, range(1, 9)), "100"])
    assert 4 <= noted.count("0") <= 10


async def fibers(stage: Stage) -> None:
    Jobs.effects.clear()
    for n in range(3):
        await stage.call(Jobs, "start", "flaky", 2, {"fiber_id": f"f{n}", "retry": {"first_ms": 50, "most_ms": 50}})
    await stage.call(Jobs, "start", "slow", None, {"fiber_id": "slow"})
    await asyncio.sleep(12)
    for fiber_id in ("f0", "f1", "f2", "slow"):
        assert (await stage.call(Jobs, "inspect", fiber_id))["status"] == "completed"
    assert Jobs.effects["flaky"] == 9


async def mail_and_calls(stage: Stage) -> None:
    for n in range(4):
        assert await stage.call(Boss, "wait_for", "Doubler", {"n": n}, f"w{n}")
        await stage.call(Boss, "detach", "Doubler", {"n": n}, f"d{n}")
    await asyncio.sleep(12)
    told = [each for each in await told_by(stage, Boss) if each.what == "done"]
    assert sorted(told) == [Told("done", f"d{n}", "completed") for n in range(4)]


async def alarms(stage: Stage) -> None:
    due_ms = await stage.call(Ringer, "wake_in", 1_500)
    await asyncio.sleep(12)
    (rung_ms,) = await stage.call(Ringer, "rung")
    assert rung_ms >= due_ms


STORIES: list[Story] = [queue, schedules, fibers, mail_and_calls, alarms]


@pytest.fixture(autouse=True)
def _one_failure() -> Iterator[None]:
    yield
    Planner.failures = 0


@pytest.mark.thorough
@pytest.mark.parametrize("by_ms", [-5_000, 5_000])
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_what_is_at_work_is_done_once_whenever_the_clocks_are_set(story: Story, by_ms: int) -> None:
    def played() -> None:
        Planner.failures = 1
        play(story)

    at_each_reading(by_ms, played)


class Stumbler(Planner):
    """Its items fail when they are first called, and then take a second."""

    async def stumble(self, payload: Any, it: Occurrence) -> None:
        if it.attempt == 1:
            raise RuntimeError("not yet")
        await asyncio.sleep(1)
        self._write(payload, it)


@pytest.mark.parametrize("lives", [1, 2])
async def test_a_retry_that_is_not_due_any_more_waits_with_an_alarm_and_its_agent_may_sleep(
    stage: Stage, lives: int
) -> None:
    """The clock goes back in the middle of a drain, behind what was taken out of the line together, or stands in it still. The ledger knows
    when to wake the agent, whatever becomes of it."""
    soon = {"retry": {"attempts_max": 9, "first_ms": 10, "most_ms": 10}}
    asked = [["queue", [method, payload], soon] for method, payload in (("stumble", 1), ("stumble", 2), ("slow", 500))]
    await stage.call(Stumbler, "do_all", asked)
    await asyncio.sleep(0.3)
    if lives > 1:
        stage.kill_host_of(address(Stumbler, "p"))
        await stage.until(lambda: stage.host_of(address(Stumbler, "p")) != "")
        await asyncio.sleep(0.3)
    await asyncio.sleep(0.6)
    stage.simulation.set_clocks(BACK_MS)
    await asyncio.sleep(20)
    known = stage.view.agents.get(address(Stumbler, "p"))
    assert known is not None
    assert known.alarm_at_ms, "whoever looks at the agent now wakes it, and does not know whether it would have woken"
    assert "2" not in await payloads(stage, Stumbler)
    await asyncio.sleep(-BACK_MS / 1_000)
    assert sorted(await payloads(stage, Stumbler)) == ["1", "2", "500"]


async def test_items_that_were_not_tried_yet_are_served_in_order_whatever_the_clock_says(stage: Stage) -> None:
    await do(stage, "queue", "slow", 1_000)
    for number, by_ms in enumerate((0, BACK_MS, 0, BACK_MS, -BACK_MS)):
        await do(stage, "queue", "note", number)
        stage.simulation.set_clocks(by_ms)
    await asyncio.sleep(3)
    assert await payloads(stage) == ["1000", *map(str, range(5))]


# ---------------------------------------------------------------- chats and messengers


@pytest.mark.parametrize("by_ms", [BACK_MS, -BACK_MS])
def test_a_question_whose_time_is_over_by_the_clock_is_over_and_no_other(by_ms: int) -> None:
    """Set back, it waits until the clock says so, and can be answered until then; set forward, it is over within seconds."""

    async def story(room: Room) -> None:
        await room.do("submit_messages", "ask", request_id="asked")
        await room.until(lambda: room.is_("parked"))
        room.laboratory.simulation.set_clocks(by_ms)
        await asyncio.sleep(5 if by_ms > 0 else 60)
        assert await room.is_("error" if by_ms > 0 else "parked")
        if by_ms < 0:
            await asyncio.sleep(65)
            assert await room.is_("error")

    visit_room(Slow, story, MORE)


def test_who_waits_for_more_messages_waits_no_longer_because_the_clock_was_set_back() -> None:
    async def story(room: Room) -> None:
        jobs = []
        for number in range(3):
            jobs.append(room.soon("chat", f"words {number}", request_id=f"r{number}"))
            await asyncio.sleep(0.5)
        room.laboratory.simulation.set_clocks(BACK_MS)
        async with asyncio.timeout(30):
            assert [(await job).status for job in jobs] == ["completed", "skipped", "completed"]

    visit_room(Patient, story, SCRIPT)


def test_the_burst_of_a_messenger_is_no_longer_because_the_clock_was_set_back() -> None:
    async def story(chat: Chat) -> Any:
        for number in range(2):
            await chat.hear(f"short {number}", key=str(number))
            await asyncio.sleep(0.4)
        chat.laboratory.simulation.set_clocks(BACK_MS)
        async with asyncio.timeout(30):
            return await chat.rest()

    Board.begin()
    rows, _ = visit(story, Waiting)
    assert [len(row["heard"]) for row in rows] == [2]
    assert Board.thread() == [answer_to("short")]
