"""Fibers that wait: with exact outcomes, with deaths before, in and after a wait, and without a process meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pytest

from perdure.actors import Agent, Client, FiberContext, FiberRecovery, KillPoint, Retries, exposed
from perdure.ledger import (
    AwaitedInsideHandler,
    BadRequest,
    EventRefused,
    FiberStopped,
    HostUnavailable,
    StepFailed,
    WaitTimedOut,
)
from perdure.ledger.storage.records import FIBER, FIBER_EVENT, FIBER_HEARD
from perdure.scenarios.swarm.explorer import explore
from perdure.scenarios.swarm.runner import swarm
from tests.actors.jobs.test_fiber_deaths import Strike, storage_write
from tests.actors.one_process import OneProcess
from tests.actors.one_process import play as play_here
from tests.actors.supervisor.test_deaths import at
from tests.kit import ROOMY, Stage, address, play, played, staged

LONG_S = 600
BRIEF = replace(ROOMY, wait_in_memory_ms=1_000)


class Clerk(Agent):
    """Has bodies that wait. What they did outside of the agent is in `seen`, of this process."""

    stands_alone = True
    seen: ClassVar[list[Any]] = []

    # bodies

    async def sleeper(self, fiber: FiberContext, input: float) -> None:
        await fiber.step("first", self.first)
        await fiber.sleep(input)
        fiber.stash(fiber.attempt)

    async def first(self) -> int:
        self.seen.append("first")
        return 1

    async def waiter(self, fiber: FiberContext) -> None:
        got = [await fiber.wait_for("go"), await fiber.wait_for("go")]
        try:
            await fiber.wait_for("never", timeout=60)
        except TimeoutError as late:
            fiber.stash([*got, str(late), fiber.attempt])

    async def until(self, fiber: FiberContext, input: str) -> None:
        await fiber.sleep_until(datetime.fromisoformat(input))
        fiber.stash(fiber.attempt)

    async def gathers(self, fiber: FiberContext) -> None:
        _, got, _ = await asyncio.gather(fiber.sleep(20), fiber.wait_for("go"), fiber.sleep(22))
        fiber.stash([got, fiber.attempt])

    async def groups(self, fiber: FiberContext) -> None:
        async with asyncio.TaskGroup() as group:
            both = [group.create_task(fiber.wait_for("go")) for _ in range(2)]
        fiber.stash([*(each.result() for each in both), fiber.attempt])

    async def busy(self, fiber: FiberContext) -> None:
        _, attempt = await asyncio.gather(fiber.sleep(20), self.work(fiber, 30))
        fiber.stash(attempt)

    async def work(self, fiber: FiberContext, seconds: float) -> int:
        await asyncio.sleep(seconds)
        return fiber.attempt

    async def swallows(self, fiber: FiberContext) -> None:
        for _ in range(3):
            with suppress(BaseException):
                await fiber.sleep(20)
            with suppress(BaseException):
                fiber.step("count", lambda: self.seen.append("count"))
        fiber.stash([len(self.seen), fiber.attempt])

    async def transacts(self, fiber: FiberContext) -> None:
        said = []
        for way in (lambda: fiber.sleep(20), lambda: fiber.wait_for("go")):
            try:
                with self.transaction():
                    self.state["kept"] = True
                    await way()
            except AwaitedInsideHandler as refusal:
                said.append("transaction cannot wait" in str(refusal))
        await fiber.sleep(20)
        fiber.stash([*said, self.state.get("kept"), fiber.attempt])

    async def nothing(self, fiber: FiberContext) -> None:
        await fiber.sleep_until(datetime(2020, 1, 1, tzinfo=UTC))
        await fiber.sleep(0)
        with suppress(TimeoutError):
            await fiber.wait_for("go", timeout=0)
        fiber.stash(fiber.attempt)

    async def retries(self, fiber: FiberContext) -> None:
        await fiber.step("flaky", self.flaky, retry=Retries(attempts_max=4, first_ms=600_000, most_ms=600_000))
        fiber.stash([self.seen.count("try"), fiber.attempt])

    async def flaky(self) -> None:
        self.seen.append("try")
        if self.seen.count("try") < 4:
            raise ValueError("not yet")

    async def gives_up(self, fiber: FiberContext) -> None:
        try:
            await fiber.step("never", self.never, retry=Retries(attempts_max=3, first_ms=600_000, most_ms=600_000))
        except StepFailed as failed:
            fiber.stash([failed.tries, self.seen.count("try"), fiber.attempt])

    def never(self) -> None:
        self.seen.append("try")
        raise ValueError("never")

    async def raises_after(self, fiber: FiberContext) -> None:
        await fiber.sleep(20)
        self.seen.append(fiber.attempt)
        raise ValueError("after the wait")

    async def often(self, fiber: FiberContext, input: int) -> None:
        for _ in range(input):
            await fiber.sleep(20)
        fiber.stash(fiber.attempt)

    async def one(self, fiber: FiberContext) -> None:
        fiber.stash(await fiber.wait_for("go"))

    async def waits_out(self, fiber: FiberContext, input: float) -> None:
        await fiber.step("first", self.first)
        with suppress(WaitTimedOut):
            await fiber.wait_for("never", timeout=input)
        fiber.stash(fiber.attempt)

    async def sends(self, fiber: FiberContext) -> None:
        for _ in range(2):
            self.fibers.send("f", "go", "a")
        await fiber.sleep(20)
        fiber.stash(fiber.attempt)

    async def edits(self, fiber: FiberContext) -> None:
        await fiber.sleep(20)
        got = []
        for _ in range(2):
            got.append(await fiber.wait_for("line"))
            fiber.step("edit", lambda: 1)
        async with asyncio.TaskGroup() as group:
            both = [
                group.create_task(fiber.wait_for("a")),
                group.create_task(fiber.wait_for("b", timeout=LONG_S)),
            ]
        got += [each.result() for each in both]
        try:
            await fiber.wait_for("never", timeout=30)
        except TimeoutError:
            fiber.stash([*got, "late"])

    async def refuses(self, fiber: FiberContext) -> None:
        said = []
        for bad, field in BAD:
            try:
                await bad(fiber)
            except BadRequest as refusal:
                said.append(refusal.field == field)
        fiber.stash(said)

    # calls

    @exposed(repeatable=True)
    async def start(self, fn_name: str, input: Any = None, retry: int | None = None, fiber_id: str = "f") -> None:
        self.start_fiber(fn_name, fn_name, input, fiber_id=fiber_id, retry=retry)

    @exposed(repeatable=True)
    async def start_many(self, count: int, seconds: float) -> None:
        self.fibers.start(
            [{"name": "many", "fn_name": "sleeper", "input": seconds, "fiber_id": f"f{n}"} for n in range(count)]
        )

    @exposed(repeatable=True)
    async def send(self, event: str = "go", value: Any = None, event_id: str | None = None, to: str = "f") -> None:
        self.fibers.send(to, event, value, event_id)

    @exposed
    async def send_in_one(self, count: int, *, fails: bool = False) -> str:
        with suppress(ZeroDivisionError), self.transaction():
            for number in range(count):
                self.fibers.send("f", "go", number)
            if fails:
                raise ZeroDivisionError
        return "rolled back" if fails else "sent"

    @exposed(repeatable=True)
    async def wait(self, fiber_id: str = "f") -> dict[str, Any]:
        return asdict(await self.fibers.wait(fiber_id))

    @exposed(repeatable=True)
    async def inspect(self, fiber_id: str = "f") -> dict[str, Any] | None:
        told = self.inspect_fiber(fiber_id)
        return None if told is None else asdict(told)

    @exposed(repeatable=True)
    async def listed(self, status: str) -> list[str]:
        return [each.fiber_id for each in self.list_fibers(status)]

    @exposed
    async def cancel(self, fiber_id: str = "f") -> bool:
        return self.cancel_fiber(fiber_id, "enough")

    @exposed
    async def resolve(self, fiber_id: str, status: str) -> bool:
        return self.resolve_fiber(fiber_id, status)

    @exposed
    async def forget(self) -> int:
        return self.delete_fibers()

    @exposed
    async def end(self) -> None:
        await self.destroy()

    @exposed(repeatable=True)
    async def kept(self) -> list[int]:
        records = self._perdure.storage.records()
        return [len(records.keys(kind)) for kind in (FIBER, FIBER_EVENT, FIBER_HEARD)]


class Guarded(Clerk):
    """Has a hook, which waits in memory."""

    async def on_fiber_recovered(self, fiber: FiberRecovery) -> str:
        await fiber.sleep(10)
        self.seen.append(["hook", await fiber.wait_for("hook", timeout=50)])
        return "retry"


@pytest.fixture(autouse=True)
def _nothing_happened_yet() -> None:
    Clerk.seen.clear()


def is_asleep(stage: Stage, kind: type[Agent] = Clerk) -> Callable[[], bool]:
    return lambda: not stage.host_of(address(kind, "p"))


# ---------------------------------------------------------------- ordinary programs


@staged(timeout_ms=3 * LONG_S * 1000)
async def test_a_fiber_that_sleeps_leaves_its_host_and_goes_on_at_its_time(stage: Stage) -> None:
    began_s = asyncio.get_running_loop().time()
    await stage.call(Clerk, "start", "sleeper", LONG_S)
    await stage.until(is_asleep(stage))
    assert asyncio.get_running_loop().time() - began_s < 15
    told = await stage.call(Clerk, "inspect")
    assert (told["status"], told["attempt"], told["is_recovering"], told["next_try_at_ms"]) == (
        "running",
        1,
        False,
        None,
    )
    assert told["waits"]["events"] == []
    assert LONG_S * 1000 - 6_000 < told["waits"]["until_ms"] - told["waits"]["since_ms"] <= LONG_S * 1000
    assert await stage.call(Clerk, "listed", "running") == ["f"]
    assert await stage.call(Clerk, "listed", "interrupted") == []
    told = await stage.call(Clerk, "wait")
    slept_s = asyncio.get_running_loop().time() - began_s
    assert LONG_S <= slept_s < LONG_S + 5
    assert told["snapshot"] == 2
    assert (told["status"], told["waits"]) == ("completed", None)
    assert Clerk.seen == ["first"]


@pytest.mark.parametrize("seconds", [0, 0.5, 4])
async def test_a_short_sleep_stays_in_memory(stage: Stage, seconds: float) -> None:
    began_s = asyncio.get_running_loop().time()
    await stage.call(Clerk, "start", "sleeper", seconds)
    assert (await stage.call(Clerk, "wait"))["snapshot"] == 1
    assert asyncio.get_running_loop().time() - began_s >= seconds


async def test_events_are_taken_in_their_order_early_late_and_sent_twice(stage: Stage) -> None:
    await stage.call(Clerk, "start", "waiter")
    await stage.call(Clerk, "send", "go", {"x": 1})
    await stage.until(is_asleep(stage))
    assert (await stage.call(Clerk, "inspect"))["waits"]["events"] == ["go"]
    assert (await stage.call(Clerk, "inspect"))["waits"]["until_ms"] is None
    await stage.call(Clerk, "send", "go", 2, "mine")
    await stage.call(Clerk, "send", "go", 3, "mine")
    words = "event 'never' did not come in time for fiber 'f'"
    assert (await stage.call(Clerk, "wait"))["snapshot"] == [{"x": 1}, 2, words, 3]
    with pytest.raises(EventRefused, match="has ended as completed"):
        await stage.call(Clerk, "send", "go", 4)
    await stage.call(Clerk, "send", "go", 2, "mine")
    with pytest.raises(BadRequest, match="no fiber"):
        await stage.call(Clerk, "send", "go", 4, to="nobody")
    assert await stage.call(Clerk, "kept") == [1, 0, 2]
    assert await stage.call(Clerk, "forget") == 1
    assert await stage.call(Clerk, "kept") == [0, 0, 0]


PROGRAMS: list[tuple[str, list[Any], Any]] = [
    ("gathers", ["g"], ["g", 4]),
    ("groups", ["a", "b"], ["a", "b", 2]),
    ("busy", [], 1),
    ("swallows", [], [3, 4]),
    ("transacts", [], [True, True, None, 2]),
    ("nothing", [], 1),
    ("retries", [], [4, 4]),
    ("gives_up", [], [3, 3, 3]),
    ("refuses", [], [True] * 14),
]


@pytest.mark.parametrize(("body", "events", "snapshot"), PROGRAMS, ids=[each[0] for each in PROGRAMS])
@staged(limits=BRIEF)
async def test_bodies_with_waits_come_to_what_they_say(
    stage: Stage, body: str, events: list[Any], snapshot: Any
) -> None:
    await stage.call(Clerk, "start", body)
    await asyncio.sleep(10)
    for value in events:
        await stage.call(Clerk, "send", "go", value)
    told = await stage.call(Clerk, "wait")
    assert (told["error"], told["status"], told["snapshot"]) == (None, "completed", snapshot)


BAD: list[tuple[Callable[[FiberContext], Any], str]] = [
    (lambda fiber: fiber.sleep(-1), "delay"),
    (lambda fiber: fiber.sleep(float("inf")), "delay"),
    (lambda fiber: fiber.sleep(float("nan")), "delay"),
    (lambda fiber: fiber.sleep("5"), "delay"),  # type: ignore[arg-type]
    (lambda fiber: fiber.sleep(None), "delay"),  # type: ignore[arg-type]
    (lambda fiber: fiber.sleep(timedelta(days=365 * 51)), "delay"),
    (lambda fiber: fiber.sleep_until(datetime(2030, 1, 1)), "when"),  # noqa: DTZ001 - that is what is refused
    (lambda fiber: fiber.sleep_until(5), "when"),  # type: ignore[arg-type]
    (lambda fiber: fiber.sleep_until(datetime(9999, 1, 1, tzinfo=UTC)), "when"),
    (lambda fiber: fiber.wait_for(""), "event"),
    (lambda fiber: fiber.wait_for(3), "event"),  # type: ignore[arg-type]
    (lambda fiber: fiber.wait_for("x", timeout=-1), "timeout"),
    (lambda fiber: fiber.wait_for("x", timeout="5"), "timeout"),  # type: ignore[arg-type]
    (lambda fiber: fiber.wait_for("x", timeout=float("nan")), "timeout"),
]


# ---------------------------------------------------------------- where it waits


async def test_a_fiber_that_waits_costs_no_attempt_and_one_that_raises_after_it_does(stage: Stage) -> None:
    await stage.call(Clerk, "start", "raises_after", None, 2)
    told = await stage.call(Clerk, "wait")
    assert (told["status"], told["error"], Clerk.seen) == ("error", "ValueError: after the wait", [2, 3])


@staged(limits=replace(BRIEF, attempts_max=2, recovery_work_max=3))
async def test_many_waits_are_not_all_the_attempts_that_a_fiber_may_have(stage: Stage) -> None:
    await stage.call(Clerk, "start", "often", 12, 1)
    told = await stage.call(Clerk, "wait")
    assert (told["status"], told["snapshot"]) == ("completed", 13)


@staged(limits=replace(BRIEF, fibers_at_once_max=1))
async def test_a_fiber_that_waits_gives_its_place_to_others(stage: Stage) -> None:
    await stage.call(Clerk, "start", "sleeper", LONG_S, fiber_id="long")
    await stage.call(Clerk, "start", "sleeper", 0)
    began_s = asyncio.get_running_loop().time()
    assert (await stage.call(Clerk, "wait"))["snapshot"] == 1
    assert asyncio.get_running_loop().time() - began_s < 10
    assert (await stage.call(Clerk, "inspect", "long"))["status"] == "running"


@pytest.mark.parametrize("asleep", [False, True])
@staged(timeout_ms=5 * LONG_S * 1000)
async def test_one_that_is_cancelled_while_it_waits_is_over_and_wakes_nobody(stage: Stage, *, asleep: bool) -> None:
    await stage.call(Clerk, "start", "sleeper", LONG_S)
    await (stage.until(is_asleep(stage)) if asleep else asyncio.sleep(1))
    assert not await stage.call(Clerk, "resolve", "f", "completed"), "it is not interrupted"
    assert await stage.call(Clerk, "cancel")
    assert not await stage.call(Clerk, "cancel")
    told = await stage.call(Clerk, "inspect")
    assert (told["status"], told["error"], told["waits"]) == ("aborted", "enough", None)
    with pytest.raises(EventRefused, match="has ended as aborted"):
        await stage.call(Clerk, "send")
    await stage.until(is_asleep(stage))
    assert address(Clerk, "p") not in stage.view.agents, "there is no alarm any more"
    await asyncio.sleep(2 * LONG_S)
    assert Clerk.seen == ["first"]


@staged(timeout_ms=5 * LONG_S * 1000)
async def test_an_agent_is_deleted_while_its_fibers_wait(stage: Stage) -> None:
    await stage.call(Clerk, "start", "sleeper", LONG_S)
    await stage.call(Clerk, "start", "waiter", fiber_id="w")
    await stage.until(is_asleep(stage))
    await stage.call(Clerk, "end")
    await stage.until(lambda: address(Clerk, "p") not in stage.view.agents)
    await asyncio.sleep(2 * LONG_S)
    assert Clerk.seen == ["first"]
    assert await stage.call(Clerk, "inspect") is None


@pytest.mark.thorough
@staged(timeout_ms=3 * LONG_S * 1000)
async def test_a_thousand_fibers_of_one_agent_wait_without_a_host_and_all_go_on(stage: Stage) -> None:
    await stage.call(Clerk, "start_many", 1_000, LONG_S)
    await stage.until(is_asleep(stage))
    assert len(Clerk.seen) == 1_000
    for _ in range(3):  # it is woken for something else, and leaves again
        assert (await stage.call(Clerk, "inspect", "f999"))["status"] == "running"
        await stage.until(is_asleep(stage))
    for number in (0, 1, 998, 999):
        told = await stage.call(Clerk, "wait", f"f{number}")
        assert (told["status"], told["snapshot"]) == ("completed", 2)
    await asyncio.sleep(10)
    assert await stage.call(Clerk, "listed", "running") == []
    assert len(Clerk.seen) == 1_000


@staged(limits=replace(BRIEF, events_max=3))
async def test_events_beyond_the_limit_are_refused_and_go_with_the_transaction(stage: Stage) -> None:
    await stage.call(Clerk, "start", "waiter")
    await stage.until(is_asleep(stage))
    assert await stage.call(Clerk, "send_in_one", 3, fails=True) == "rolled back"
    for number in range(3):
        await stage.call(Clerk, "send", "else", number)
    for way in ("send", "send_in_one"):
        with pytest.raises(EventRefused, match="events_max"):
            await stage.call(Clerk, way, *(["go"] if way == "send" else [1]))
    assert (await stage.call(Clerk, "kept"))[1] == 3


@staged(limits=BRIEF)
async def test_the_same_call_of_code_that_is_entered_again_sends_one_event(stage: Stage) -> None:
    await stage.call(Clerk, "start", "waiter")
    await stage.call(Clerk, "start", "sends", fiber_id="s")
    told = await stage.call(Clerk, "wait")
    assert told["snapshot"][:2] == ["a", "a"], "two calls are two events, whatever they say"
    assert (await stage.call(Clerk, "wait", "s"))["snapshot"] == 2
    assert await stage.call(Clerk, "kept") == [2, 0, 2]


# ---------------------------------------------------------------- clocks


@pytest.mark.parametrize("body", ["until", "sleeper"])
@pytest.mark.parametrize("by_s", [-300, 300])
@staged(timeout_ms=5 * LONG_S * 1000)
async def test_what_is_waited_for_without_a_process_comes_by_the_clock_as_it_is_set(
    stage: Stage, by_s: int, body: str
) -> None:
    loop = asyncio.get_running_loop()
    at_s = stage.client.world.clock.now_ms() / 1000 + LONG_S
    given = LONG_S if body == "sleeper" else datetime.fromtimestamp(at_s, UTC).isoformat()
    await stage.call(Clerk, "start", body, given)
    await stage.until(is_asleep(stage))
    began_s = loop.time()
    stage.simulation.set_clocks(by_s * 1000)
    await stage.call(Clerk, "wait")
    assert abs(loop.time() - began_s - (LONG_S - by_s)) < 30


async def test_a_clock_that_is_set_while_it_waits_in_memory_changes_no_sleep(stage: Stage) -> None:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await stage.call(Clerk, "start", "waits_out", 60)
    await asyncio.sleep(2)
    stage.simulation.set_clocks(-LONG_S * 1000)  # by this clock its moment lies further ahead now
    assert (await stage.call(Clerk, "wait"))["snapshot"] == 2
    assert 60 <= loop.time() - began_s < 70


# ---------------------------------------------------------------- deaths


MOMENTS = {
    "before its first line": at(KillPoint.BEFORE_RUN, about="fiber f"),
    "before the row says that it waits": at(KillPoint.BEFORE_REPORT, about="fiber f"),
    "after the row says that it waits": at(KillPoint.MID_RUN, about="fiber f waits"),
    "when it leaves": at(KillPoint.MID_PASSIVATION, about=""),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_fiber_that_waits_comes_to_its_end_whenever_it_is_killed(moment: str) -> None:
    strike = Strike(MOMENTS[moment])

    async def story(stage: Stage) -> None:
        await stage.call(Clerk, "start", "sleeper", 600, 3)
        await asyncio.sleep(620)
        told = await stage.call(Clerk, "wait")
        assert (told["status"], told["error"], told["snapshot"] in (2, 3)) == ("completed", None, True)
        assert 600_000 <= told["settled_at_ms"] - told["created_at_ms"] < 620_000, "a death does not begin it anew"
        assert Clerk.seen == ["first"]

    play(story, kill_when=strike)
    assert strike.struck


async def test_a_death_while_it_waits_calls_no_hook_and_one_in_memory_does(stage: Stage) -> None:
    await stage.call(Guarded, "start", "sleeper", 600)
    await asyncio.sleep(1)
    stage.kill_host_of(address(Guarded, "p"))
    await asyncio.sleep(30)
    told = await stage.call(Guarded, "inspect")
    assert (told["status"], told["is_recovering"], told["recoveries"]) == ("running", False, 0)
    assert (await stage.call(Guarded, "wait"))["snapshot"] == 2
    assert Clerk.seen == ["first"]
    await stage.call(Guarded, "start", "waits_out", 600, None, "g")
    await asyncio.sleep(1)
    stage.kill_host_of(address(Guarded, "p"))
    await asyncio.sleep(3)
    await stage.call(Guarded, "send", "hook", "told", to="g")
    assert (await stage.call(Guarded, "wait", "g"))["status"] == "completed"
    assert Clerk.seen == ["first", "first", ["hook", "told"]]


def test_an_event_whose_taking_dies_is_taken_once() -> None:
    async def story(stage: Stage) -> None:
        for number in range(8):
            strike.left, strike.here = 1, storage_write(number + 1)
            fiber_id = f"w{number}"
            await stage.call(Clerk, "start", "one", None, 3, fiber_id)
            await asyncio.sleep(5)
            await stage.call(Clerk, "send", "go", number, "the one", fiber_id)
            await stage.call(Clerk, "send", "go", "again", "the one", fiber_id)
            strike.left = 0
            told = await stage.call(Clerk, "wait", fiber_id)
            assert (told["status"], told["snapshot"]) == ("completed", number)
        assert (await stage.call(Clerk, "kept"))[1] == 0

    strike = Strike(storage_write(1), 0)
    play(story, kill_when=strike, limits=BRIEF)
    assert strike.struck > 4


async def told(client: Client) -> None:
    """May be played again, when all has been sent and the fiber has ended."""
    clerk: Any = client.agent(Clerk, "p")

    async def surely(call: Callable[[], Any]) -> Any:
        while True:
            try:
                return await call()
            except HostUnavailable:
                await asyncio.sleep(1)

    await surely(lambda: clerk.start("edits", None, 100))
    for number, (event, value) in enumerate([("line", 0), ("line", 1), ("b", "B"), ("a", "A")]):
        with suppress(EventRefused):
            await surely(lambda event=event, value=value, number=number: clerk.send(event, value, f"e{number}"))
        await asyncio.sleep(7)
    result = await surely(clerk.wait)
    assert (result["status"], result["snapshot"]) == ("completed", [0, 1, "A", "B", "late"]), result


@pytest.mark.thorough
def test_a_story_with_waits_and_events_survives_a_death_at_each_place() -> None:
    report = explore(told, stride=6)
    assert report.ok, report.failures[:1]


@pytest.mark.thorough
def test_a_story_with_waits_and_events_survives_the_weather_of_ten_seeds() -> None:
    report = swarm(10, story=told)
    assert report.ok, report.failures[:1]


# ---------------------------------------------------------------- sync code, and fibers without a record


class Sync(Agent):
    """Waits in plain sync code."""

    stands_alone = True
    seen: ClassVar[list[Any]] = []

    @exposed
    def start(self, fn_name: str) -> None:
        self.start_fiber(fn_name, fn_name, fiber_id="f")

    @exposed
    def wait(self) -> dict[str, Any]:
        return asdict(self.fibers.wait("f"))

    @exposed
    def send(self, value: Any, to: str = "f") -> None:
        self.fibers.send(to, "go", value)

    @exposed
    def cancel(self) -> bool:
        return self.cancel_fiber("f")

    @exposed
    def inspect(self) -> Any:
        told = self.inspect_fiber("f")
        return told and told.waits

    def sleeper(self, fiber: FiberContext) -> None:
        fiber.step("first", lambda: self.seen.append("first"))
        fiber.sleep(timedelta(seconds=0.5))
        fiber.stash([fiber.attempt, fiber.wait_for("go")])

    def short(self, fiber: FiberContext) -> None:
        try:
            fiber.wait_for("go", timeout=20)
        except FiberStopped:
            self.seen.append("stopped")

    @exposed
    def unmanaged(self) -> Any:
        return self.run_fiber("job", self.work)

    def work(self, fiber: FiberContext) -> Any:
        fiber.sleep(0.3)
        self.fibers.send(fiber.id, "go", "mine")
        with suppress(WaitTimedOut):
            fiber.wait_for("never", timeout=0.3)
        return [fiber.wait_for("go"), fiber.attempt]


@played(lambda story: play_here(story, wait_in_memory_ms=100))
async def test_sync_bodies_wait_without_await(world: OneProcess, /) -> None:
    Sync.seen.clear()
    agent: Any = world.client.agent(Sync, "s")
    await agent.start("sleeper")
    while (await agent.inspect() or {}).get("events") != ["go"]:
        await asyncio.sleep(0.05)
    await agent.send("went")
    told = await agent.wait()
    assert (told["status"], told["snapshot"][1], Sync.seen) == ("completed", "went", ["first"])
    assert told["snapshot"][0] >= 2


@played(play_here)
async def test_a_sync_body_that_is_cancelled_while_it_waits_in_memory_is_told_at_once(world: OneProcess, /) -> None:
    Sync.seen.clear()
    agent: Any = world.client.agent(Sync, "s")
    await agent.start("short")
    await asyncio.sleep(0.3)
    assert await agent.cancel()
    await world.until(lambda: Sync.seen == ["stopped"])


@played(lambda story: play_here(story, wait_in_memory_ms=50))
async def test_a_fiber_without_a_record_waits_in_memory(world: OneProcess, /) -> None:
    assert await world.client.agent(Sync, "s").unmanaged() == ["mine", 1]  # type: ignore[misc]
