"""Runs that wait: what a stranger writes with sleeps, events, messages and pauses, with exact outcomes, and with deaths at each place."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar
from zoneinfo import ZoneInfo

import pytest

from perdure.actors import Agent, Client, Detached, RunContext, exposed, tell
from perdure.ledger import (
    AwaitedInsideHandler,
    BadRequest,
    EventRefused,
    PauseRefused,
    UnknownRun,
    receipt,
    unpack_value,
)
from perdure.scenarios.swarm.explorer import explore
from perdure.scenarios.swarm.runner import swarm
from tests.kit import ROOMY, Stage, address, staged

HOUR_S = 3_600
BRIEF = replace(ROOMY, wait_in_memory_ms=1_000)


def output_of(stage: Stage, run_id: str) -> Any:
    output = stage.run(run_id).output
    return None if output is None else unpack_value(output)


def rests(stage: Stage, run_id: str) -> Callable[[], bool]:
    return lambda: run_id in stage.view.waiting


class Sleeper(Agent):
    async def run(self, seconds: float, run: RunContext) -> int:
        run.step("first", lambda: 1)
        await run.sleep(seconds)
        return run.attempt


class Waiter(Agent):
    async def run(self, run: RunContext) -> list[Any]:
        first = await run.wait_for("approve")
        second = await run.wait_for("approve")
        try:
            await run.wait_for("never", timeout=60)
        except TimeoutError as late:
            return [first, second, str(late)]
        return []


class Diary(Agent):
    """Does what it is asked beside its run."""

    async def run(self, run: RunContext) -> list[Any]:
        self.state["entered"] = [*self.state.get("entered", []), run.attempt]
        got = await run.wait_for("go")
        await asyncio.sleep(10)
        return [got, run.attempt, self.state.get("notes", [])]

    @exposed
    async def note(self, what: str, seconds: float = 0) -> int:
        await asyncio.sleep(seconds)
        self.state["notes"] = [*self.state.get("notes", []), what]
        return len(self.state["notes"])


# ---------------------------------------------------------------- ordinary programs


@staged(timeout_ms=3 * HOUR_S * 1000)
async def test_a_run_that_sleeps_leaves_its_host_and_goes_on_at_its_time(stage: Stage) -> None:
    began_s = asyncio.get_running_loop().time()
    await stage.client.start(Sleeper, HOUR_S, run_id="r")
    await stage.until(rests(stage, "r"))
    assert asyncio.get_running_loop().time() - began_s < 10
    assert stage.host_of(address(Sleeper, "r")) == ""
    told = (await stage.client.ask("show", "r"))["waits"]
    assert (told["events"], told["paused"]) == ([], False)
    assert told["until_ms"] - told["since_ms"] <= HOUR_S * 1000
    assert (await stage.client.run(Sleeper, HOUR_S, run_id="r")).output == 2
    slept_s = asyncio.get_running_loop().time() - began_s
    assert HOUR_S <= slept_s < HOUR_S + 5
    assert (stage.run("r").counted_attempts, stage.run("r").losses) == (1, 0)


@pytest.mark.parametrize("seconds", [0, 0.5, 4])
async def test_a_short_sleep_stays_in_memory(stage: Stage, seconds: float) -> None:
    began_s = asyncio.get_running_loop().time()
    assert (await stage.client.run(Sleeper, seconds)).output == 1
    assert asyncio.get_running_loop().time() - began_s >= seconds


async def test_events_are_taken_in_their_order_by_the_waits_for_their_name(stage: Stage) -> None:
    await stage.client.start(Waiter, run_id="w")
    await stage.client.send("w", "approve", {"x": 1})
    await stage.until(rests(stage, "w"))
    assert (await stage.client.ask("show", "w"))["waits"]["events"] == ["approve"]
    await stage.client.send("w", "approve", 2, "mine")
    await stage.client.send("w", "approve", 3, "mine")
    words = "event 'never' did not come in time for run 'w'"
    assert (await stage.client.run(Waiter, run_id="w")).output == [{"x": 1}, 2, words]
    assert (stage.run("w").counted_attempts, stage.run("w").losses) == (1, 0)
    with pytest.raises(EventRefused, match="has ended"):
        await stage.client.send("w", "approve", 4)
    await stage.client.send("w", "approve", 2, "mine")
    with pytest.raises(UnknownRun, match="sent to nobody"):
        await stage.client.send("nobody", "approve", 4)


class Gather(Agent):
    async def run(self, run: RunContext) -> list[Any]:
        _, got, _ = await asyncio.gather(run.sleep(20), run.wait_for("go"), run.sleep(22))
        return [got, run.attempt]


class Group(Agent):
    async def run(self, run: RunContext) -> list[Any]:
        async with asyncio.TaskGroup() as group:
            first = group.create_task(run.wait_for("go"))
            second = group.create_task(run.wait_for("go"))
        return [first.result(), second.result(), run.attempt]


class Busy(Agent):
    async def run(self, run: RunContext) -> list[Any]:
        async def work() -> str:
            await asyncio.sleep(30)
            return "worked"

        _, done = await asyncio.gather(run.sleep(20), work())
        return [done, run.attempt]


class TimesOut(Agent):
    async def run(self, run: RunContext) -> list[Any]:
        ends = []
        for way in (self.scope, self.bound):
            with suppress(TimeoutError):
                await way(run)
                ends.append("it came")
        return [*ends, run.attempt]

    async def scope(self, run: RunContext) -> None:
        async with asyncio.timeout(20):
            await run.wait_for("never")

    async def bound(self, run: RunContext) -> None:
        await asyncio.wait_for(run.wait_for("never"), 20)


class Final(Agent):
    async def run(self, run: RunContext) -> list[Any]:
        try:
            await run.sleep(20)
        finally:
            run.step("release", self.release)
        return [self.state["released"], run.attempt]

    def release(self) -> None:
        self.state["released"] = self.state.get("released", 0) + 1


class Swallow(Agent):
    async def run(self, run: RunContext) -> list[Any]:
        try:
            await run.sleep(20)
        except BaseException:
            return ["swallowed"]
        return ["slept", run.attempt]


class SwallowsAll(Agent):
    """Goes on after the end of the attempt, as if nothing were."""

    async def run(self, run: RunContext) -> list[Any]:
        for _ in range(3):
            with suppress(BaseException):
                await run.sleep(20)
            with suppress(BaseException):
                run.step("count", self.count)
        return [self.state["count"], run.attempt]

    def count(self) -> None:
        self.state["count"] = self.state.get("count", 0) + 1


class Once(Agent):
    attempts_max = 1

    async def run(self, run: RunContext) -> int:
        await run.sleep(20)
        return run.attempt


class Poll(Agent):
    async def run(self, run: RunContext) -> list[Any]:
        for _ in range(4):
            run.step("poll", self.poll)
            await run.sleep(10)
        return [run.attempt]

    def poll(self) -> int:
        return 1


class Parent(Agent):
    async def run(self, run: RunContext) -> list[Any]:
        result: Any = await self.run_agent_tool(Poll)  # type: ignore[arg-type]
        return [result.output, run.attempt]


class Transacts(Agent):
    async def run(self, run: RunContext) -> list[Any]:
        said = []
        for way in (lambda: run.sleep(20), lambda: run.wait_for("go"), run.receive):
            try:
                with self.transaction():
                    self.state["kept"] = True
                    await way()
            except AwaitedInsideHandler as refusal:
                said.append("transaction cannot wait" in str(refusal))
        with self.transaction():
            self.state["number"] = 1
        await run.sleep(20)
        with self.transaction():
            self.state["number"] = self.state["number"] + 1
        return [*said, self.state.get("kept"), self.state["number"], run.attempt]


class Nothing(Agent):
    async def run(self, run: RunContext) -> list[Any]:
        await run.sleep_until(datetime(2020, 1, 1, tzinfo=ZoneInfo("Europe/Berlin")))
        await run.sleep(0)
        got = []
        with suppress(TimeoutError):
            got.append(await run.wait_for("go", timeout=0))
        async for message in run.messages(timeout=0):
            got.append(message.value)
        return [*got, run.attempt]


PROGRAMS: list[tuple[type[Agent], list[Any], Any]] = [
    (Gather, ["g"], ["g", 4]),
    (Group, ["a", "b"], ["a", "b", 2]),
    (Busy, [], ["worked", 1]),
    (TimesOut, [], [1]),
    (Final, [], [1, 2]),
    (Swallow, [], ["slept", 2]),
    (SwallowsAll, [], [3, 4]),
    (Once, [], 1),
    (Poll, [], [5]),
    (Parent, [], [[5], 1]),
    (Transacts, [], [True, True, True, None, 2, 2]),
    (Nothing, [], [1]),
]


@pytest.mark.parametrize(("program", "events", "output"), PROGRAMS, ids=[each[0].__name__ for each in PROGRAMS])
@staged(limits=BRIEF)
async def test_programs_with_waits_come_to_what_they_say(
    stage: Stage, program: type[Agent], events: list[Any], output: Any
) -> None:
    await stage.client.start(program, run_id="r")
    await asyncio.sleep(10)
    for value in events:
        await stage.client.send("r", "go", value)
    result = await stage.client.run(program, run_id="r")
    assert (result.error, result.output) == ("", output)


BAD: list[tuple[Callable[[RunContext], object], str]] = [
    (lambda run: run.sleep(-1), "delay"),
    (lambda run: run.sleep(float("inf")), "delay"),
    (lambda run: run.sleep(float("nan")), "delay"),
    (lambda run: run.sleep("5"), "delay"),  # type: ignore[arg-type]
    (lambda run: run.sleep(None), "delay"),  # type: ignore[arg-type]
    (lambda run: run.sleep(timedelta(seconds=-1)), "delay"),
    (lambda run: run.sleep(timedelta(days=365 * 51)), "delay"),
    (lambda run: run.sleep_until(datetime(2030, 1, 1)), "when"),  # noqa: DTZ001 - that is what is refused
    (lambda run: run.sleep_until(5), "when"),  # type: ignore[arg-type]
    (lambda run: run.sleep_until(datetime(9999, 1, 1, tzinfo=UTC)), "when"),
    (lambda run: run.wait_for(""), "event"),
    (lambda run: run.wait_for(3), "event"),  # type: ignore[arg-type]
    (lambda run: run.wait_for("x" * 5_000), "event"),
    (lambda run: run.wait_for("x", timeout=-1), "timeout"),
    (lambda run: run.wait_for("x", timeout="1"), "timeout"),  # type: ignore[arg-type]
    (lambda run: run.receive(timeout=True), "timeout"),
]


class Refused(Agent):
    async def run(self, run: RunContext) -> list[str]:
        said = []
        for asks, _ in BAD:
            try:
                asks(run)
            except BadRequest as refusal:
                said.append(str(refusal))
        return said


async def test_bad_waits_are_refused_where_they_are_asked_for_and_name_the_field(stage: Stage) -> None:
    said = (await stage.client.run(Refused)).output
    assert len(said) == len(BAD), said
    assert [field for (_, field), words in zip(BAD, said, strict=True) if not words.startswith(field)] == []


@pytest.mark.parametrize(
    ("event", "value", "event_id"),
    [("", 1, None), (3, 1, None), ("go", object(), None), ("go", b"x" * 10**8, None), ("go", 1, ""), ("go", 1, 5)],
)
async def test_a_bad_event_is_refused_where_it_is_sent(stage: Stage, event: Any, value: Any, event_id: Any) -> None:
    await stage.client.start(Sleeper, 1, run_id="r")
    with pytest.raises((BadRequest, TypeError)):
        await stage.client.send("r", event, value, event_id)
    assert "r" not in stage.view.events
    await stage.ended("r")


# ---------------------------------------------------------------- messages


class Worker(Agent):
    async def run(self, run: RunContext) -> list[Any]:
        run.step("draft", lambda: 1)
        got = []
        async for message in run.messages(timeout=timedelta(minutes=5)):
            got.append([message.value, message.sender])
            run.step("revise", lambda: 1)
            if message.value == "last":
                break
        return got


class Boss(Agent):
    async def run(self, run: RunContext) -> str:
        worker = await self.run_agent_tool(Worker, detached=True, run_id="w")  # type: ignore[call-overload]
        await tell(worker, "one")
        await run.sleep(20)
        await tell(worker, "two")
        with self.transaction():
            tell(worker, "three")
        with suppress(ZeroDivisionError), self.transaction():
            tell(worker, "never")
            raise ZeroDivisionError
        await run.sleep(20)
        await worker.send("mail", "last")
        return "done"


TOLD = ["one", "two", "three", "last"]


@staged(limits=BRIEF)
async def test_messages_reach_a_run_once_and_in_their_order_also_if_their_sender_is_entered_again(stage: Stage) -> None:
    await stage.client.run(Boss, run_id="b")
    run = await stage.ended("w", "completed")
    assert stage.run("b").attempt > 1
    assert output_of(stage, "w") == [[value, address(Boss, "b")] for value in TOLD]
    receipts = [receipt(stage.view, run, key) for key in run.receipts]
    assert [told["status"] for told in receipts] == ["read"] * 4
    assert [told["after_step"] for told in receipts] == ["draft", "revise", "revise", "revise"]


async def test_a_message_to_no_run_and_two_messages_at_once_are_refused_in_words(stage: Stage) -> None:
    run = await stage.client.start(Sleeper, 1, run_id="r")
    with pytest.raises(BadRequest, match="one message"):
        tell(run, 1, 2)  # type: ignore[call-overload]
    with pytest.raises(BadRequest, match="one message"):
        tell(run)  # type: ignore[call-overload]
    with pytest.raises(BadRequest, match="nor a run"):
        tell("r", 1)  # type: ignore[call-overload]
    await tell(run, "fine")
    await stage.ended("r")


# ---------------------------------------------------------------- beside other work


@pytest.mark.parametrize("busy_s", [0.5, 3, 8])
@staged(limits=BRIEF)
async def test_a_child_that_is_called_while_its_run_waits_goes_on_beside_the_call_when_the_event_comes(
    stage: Stage, busy_s: float
) -> None:
    await stage.client.start(Diary, run_id="d")
    await stage.until(rests(stage, "d"))
    calling = asyncio.create_task(stage.call(Diary, "note", "a", busy_s, name="d"))
    await stage.until(lambda: stage.host_of(address(Diary, "d")) != "")
    assert rests(stage, "d")(), "a call does not end the wait"
    await asyncio.sleep(0.2)
    await stage.client.send("d", "go", "now")
    assert await calling == 1
    assert await stage.call(Diary, "note", "b", name="d") == 2
    assert (await stage.client.run(Diary, run_id="d")).output == ["now", 2, ["a", "b"]]
    assert (stage.run("d").counted_attempts, stage.run("d").losses) == (1, 0)


@staged(limits=BRIEF)
async def test_an_event_at_each_moment_of_a_child_that_comes_up_for_a_call_and_leaves_ends_the_wait_once(
    stage: Stage,
) -> None:
    for number in range(12):
        run_id = f"d{number}"
        await stage.client.start(Diary, run_id=run_id)
        await stage.until(rests(stage, run_id))
        calling = asyncio.create_task(stage.call(Diary, "note", "a", name=run_id))
        await asyncio.sleep(0.25 * number)
        await stage.client.send(run_id, "go", number)
        assert await calling == 1
        assert (await stage.client.run(Diary, run_id=run_id)).output[0] == number


class Sitter(Agent):
    """Waits, and handles the ends of its children meanwhile."""

    async def run(self, run: RunContext) -> list[Any]:
        for number in range(3):
            await self.run_agent_tool(Sleeper, 5 * number, detached=Detached(on_finish=self.heard), run_id=f"c{number}")
        got = await run.wait_for("go")
        return [got, self.state["heard"], run.attempt]

    def heard(self, run: Any, result: Any) -> None:
        self.state["heard"] = self.state.get("heard", 0) + 1


@staged(limits=BRIEF)
async def test_handlers_of_an_agent_whose_run_waits_are_called_and_end_no_wait(stage: Stage) -> None:
    await stage.client.start(Sitter, run_id="s")
    for number in range(3):
        await stage.ended(f"c{number}", "completed")
    await asyncio.sleep(20)
    assert rests(stage, "s")()
    assert stage.run("s").attempt == 1
    await stage.client.send("s", "go", "now")
    assert (await stage.client.run(Sitter, run_id="s")).output == ["now", 3, 2]


class Both(Agent):
    async def run(self, run: RunContext) -> list[Any]:
        result = await self.run_agent_tool(Sleeper, 60, run_id="child")
        return [result.output, await run.wait_for("go"), run.attempt]


async def test_an_event_goes_to_a_parent_that_waits_for_its_child_and_is_there_afterwards(stage: Stage) -> None:
    await stage.client.start(Both, run_id="p")
    await stage.until(rests(stage, "child"))
    await stage.client.send("p", "go", "now")
    assert (await stage.client.run(Both, run_id="p")).output == [2, "now", 1]


@pytest.mark.thorough
async def test_hundreds_of_sleeping_runs_leave_their_hosts_empty(stage: Stage) -> None:
    for number in range(300):
        await stage.client.start(Sleeper, HOUR_S, run_id=f"s{number}")
    await stage.until(lambda: len(stage.view.waiting) == 300)
    await asyncio.sleep(1)
    assert [len(host.tenants) for host in stage.view.hosts.values() if host.tenants] == []
    assert [host.load for host in stage.view.hosts.values() if host.load] == []
    assert (await stage.client.run(Prompt, run_id="now")).output == "now"
    for number in range(300):
        await stage.client.ask("cancel", f"s{number}", None, "enough")
    assert stage.view.waiting == {}


class Prompt(Agent):
    async def run(self) -> str:
        return "now"


# ---------------------------------------------------------------- pause


@staged(limits=BRIEF, timeout_ms=3 * HOUR_S * 1000)
async def test_a_run_is_paused_at_its_next_step_and_goes_on_there(stage: Stage) -> None:
    await stage.client.start(Poll, run_id="r")
    await stage.until(lambda: stage.status("r") == "running")
    await stage.client.ask("pause", "r", True)
    await stage.until(rests(stage, "r"))
    assert (await stage.client.ask("show", "r"))["waits"]["paused"]
    attempt = stage.run("r").attempt
    await asyncio.sleep(HOUR_S)
    assert (stage.run("r").attempt, stage.host_of(address(Poll, "r"))) == (attempt, "")
    await stage.client.ask("pause", "r", False)
    assert (await stage.client.run(Poll, run_id="r")).status == "completed"
    assert stage.run("r").counted_attempts == 1
    with pytest.raises(PauseRefused, match="only a live run"):
        await stage.client.ask("pause", "r", True)


class Stubborn(Agent):
    entered: ClassVar[list[int]] = []

    async def run(self, run: RunContext) -> int:
        self.entered.append(run.attempt)
        await asyncio.sleep(60)
        return run.attempt


@staged(timeout_ms=600000)
async def test_an_event_that_comes_with_a_pause_is_taken_once_and_is_not_waited_for_again(stage: Stage) -> None:
    await stage.client.start(Diary, run_id="r")
    await stage.until(lambda: stage.run("r").confirmed)
    await asyncio.gather(stage.client.send("r", "go", 1), stage.client.ask("pause", "r", True))
    await stage.ended("r", "completed")  # it had begun to go on, and does nothing at which it could pause
    assert output_of(stage, "r")[0] == 1


async def test_a_paused_run_stays_paused_over_the_death_of_its_host(stage: Stage) -> None:
    await stage.client.start(Stubborn, run_id="r")
    await stage.until(lambda: stage.host_of(address(Stubborn, "r")) != "")
    await asyncio.sleep(1)
    await stage.client.ask("pause", "r", True)
    stage.kill_host_of(address(Stubborn, "r"))
    await asyncio.sleep(600)
    assert Stubborn.entered == [1]
    await stage.client.ask("pause", "r", False)
    assert (await stage.client.run(Stubborn, run_id="r")).output == 2


# ---------------------------------------------------------------- clocks


class Instants(Agent):
    async def run(self, at_s: float, run: RunContext) -> int:
        await run.sleep_until(datetime.fromtimestamp(at_s, UTC))
        return run.attempt


@pytest.mark.parametrize("by_s", [-1800, 1800])
@staged(timeout_ms=5 * HOUR_S * 1000)
async def test_an_instant_of_the_calendar_comes_by_the_clock_as_it_is_set(stage: Stage, by_s: int) -> None:
    loop = asyncio.get_running_loop()
    at_s = stage.client.world.clock.now_ms() / 1000 + HOUR_S
    await stage.client.start(Instants, at_s, run_id="r")
    await stage.until(rests(stage, "r"))
    began_s = loop.time()
    stage.simulation.set_clocks(by_s * 1000)
    await stage.client.run(Instants, at_s, run_id="r")
    assert abs(loop.time() - began_s - (HOUR_S - by_s)) < 30


class TwoSleeps(Agent):
    async def run(self, run: RunContext) -> int:
        await run.sleep(HOUR_S)
        await run.sleep(60)
        return run.attempt


@pytest.mark.parametrize("by_s", [-3 * HOUR_S, 3 * HOUR_S])
@staged(timeout_ms=9 * HOUR_S * 1000)
async def test_a_while_lasts_as_long_whatever_is_made_of_the_clocks_and_so_does_the_next(
    stage: Stage, by_s: int
) -> None:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await stage.client.start(TwoSleeps, run_id="r")
    await stage.until(rests(stage, "r"))
    stage.simulation.set_clocks(by_s * 1000)
    assert (await stage.client.run(TwoSleeps, run_id="r")).output == 3
    slept_s = loop.time() - began_s
    assert HOUR_S + 60 <= slept_s < HOUR_S + 90


# ---------------------------------------------------------------- limits of the runtime


@staged(limits=replace(BRIEF, attempts_max=1))
async def test_a_run_that_may_be_entered_once_by_the_limits_of_the_runtime_waits_in_memory(stage: Stage) -> None:
    assert (await stage.client.run(Sleeper, 60)).output == 1


class Flooded(Agent):
    async def run(self, run: RunContext) -> list[Any]:
        return [await run.wait_for("go"), run.attempt]


@staged(limits=replace(BRIEF, turn_max=1000), timeout_ms=60000)
async def test_the_event_that_a_run_waits_for_reaches_it_past_thousands_that_it_has_not_taken(stage: Stage) -> None:
    await stage.client.start(Flooded, run_id="f")
    await stage.until(rests(stage, "f"))
    for _ in range(50):
        await asyncio.gather(*(stage.client.send("f", "else") for _ in range(100)))
    await stage.client.send("f", "go", 1)
    assert (await stage.client.run(Flooded, run_id="f")).output == [1, 2]
    assert stage.view.events == {}


# ---------------------------------------------------------------- deaths


class Editor(Agent):
    async def run(self, run: RunContext) -> list[Any]:
        got: list[Any] = []
        run.step("begin", lambda: 1)
        await run.sleep(20)
        for _ in range(2):
            got.append(await run.wait_for("line"))
            run.step("edit", lambda: 1)
        async with asyncio.TaskGroup() as group:
            first = group.create_task(run.wait_for("a"))
            second = group.create_task(run.wait_for("b", timeout=HOUR_S))
        got += [first.result(), second.result()]
        async for message in run.messages(timeout=30):
            got.append(message.value)
        return got


async def edited(client: Client) -> None:
    """May be played again, when all has been sent and the run has ended."""
    run = await client.start(Editor, run_id="e")
    with suppress(PauseRefused):
        await client.ask("pause", "e", True)
        await asyncio.sleep(3)
        await client.ask("pause", "e", False)
    sends: list[Callable[[], Awaitable[None]]] = [
        lambda: client.send("e", "line", 0, "l0"),
        lambda: client.send("e", "line", 1, "l1"),
        lambda: client.send("e", "b", "B", "b"),
        lambda: client.send("e", "mail", "m", "m"),
        lambda: client.send("e", "a", "A", "a"),
    ]
    for send in sends:
        with suppress(EventRefused):
            await send()
        await asyncio.sleep(7)
    result = await client.run(Editor, run_id="e")
    assert result.output == [0, 1, "A", "B", "m"], result
    assert run.run_id == "e"


@pytest.mark.thorough
def test_a_story_with_waits_events_and_a_pause_survives_a_death_at_each_place() -> None:
    report = explore(edited, stride=6)
    assert report.ok, report.failures[:1]


@pytest.mark.thorough
def test_a_story_with_waits_survives_the_weather_of_ten_seeds() -> None:
    report = swarm(10, story=edited)
    assert report.ok, report.failures[:1]
