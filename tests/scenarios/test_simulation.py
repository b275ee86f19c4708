"""The simulated world as an author uses it, with agents that know nothing of being tested."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import count, islice
from random import Random
from typing import Any, cast

import pytest

from perdure.actors import Agent, Client, Detached, RunContext, RunInfo, RunResult, awaiting, exposed
from perdure.actors.sim_world.simulation import BUSY_MAX_S, Deadlock, Overdue
from perdure.ledger import BadRequest, HostUnavailable, OutcomeUnknown, Overloaded, UnknownRun, WaitTimedOut
from perdure.ledger.storage.agent_storages import Transaction
from perdure.scenarios.swarm.explorer import explore
from perdure.scenarios.swarm.runner import play, swarm
from perdure.scenarios.testing.checks import unlike_the_inboxes
from perdure.scenarios.testing.laboratory import QUICK, Laboratory, Story, Violation, Weather
from tests.actors.cast import Sleeper
from tests.kit import some


class Adder(Agent):
    """Adds up what its children return, and has a table `told` that is about something else."""

    async def on_start(self) -> None:
        self.sql("CREATE TABLE IF NOT EXISTS told(whom VARCHAR)")

    @exposed(repeatable=True)
    def add(self, count: int) -> None:
        asked = [{"agent_class": Sleeper, "input": 100, "run_id": f"s{number}"} for number in range(count)]
        with self.transaction():
            self.run_agent_tools(asked, detached=Detached(on_finish="on_done"))

    def on_done(self, run: RunInfo, result: RunResult) -> None:
        self.state["sum"] = self.state.get("sum", 0) + 1

    @exposed(repeatable=True)
    async def total(self) -> int:
        return self.state.get("sum", 0)

    @exposed
    def fragile(self) -> int:
        return 1


class Calendar(Agent):
    """Rings every six hours, or as it is told, and counts."""

    @exposed
    async def plan(self, when: str | float = "0 */6 * * *") -> None:
        self.schedule(when, "ring")

    async def ring(self, *_: object) -> None:
        self.state["rings"] = self.state.get("rings", 0) + 1

    @exposed
    async def rings(self) -> int:
        return int(self.state.get("rings", 0))


class Patient(Agent):
    """Sleeps for so many seconds, with its place or without it."""

    async def run(self, input: float, run: RunContext) -> str:
        await (asyncio.sleep(input) if self.name.startswith("awake") else run.sleep(input))
        return "rested"


class Asker(Agent):
    """Waits for what its name says, without a limit or for an hour."""

    async def run(self, input: float | None, run: RunContext) -> str:
        try:
            match self.name:
                case "answer":
                    limit: Any = {} if input is None else {"expires": input, "otherwise": False}
                    return str((await run.ask("Go on?", **limit)).value)
                case "event":
                    return str(await run.wait_for("go", timeout=input))
            return str((await run.receive(timeout=input)).value)
        except WaitTimedOut:
            return "False"


class Counter(Agent):
    """Counts for as long as somebody listens."""

    @exposed
    def numbers(self, first: int) -> Iterator[int]:
        try:
            yield from count(first)
        finally:
            self.state["closed"] = True

    @exposed
    async def up_to(self, last: int) -> AsyncIterator[int]:
        for number in range(last):
            yield number
        if last > 200:
            raise LookupError("no more")

    @exposed
    async def is_closed(self) -> bool:
        return bool(self.state.get("closed"))


async def add_five(client: Client) -> None:
    await client.agent(Adder, "a").add(5)
    while await client.agent(Adder, "a").total() < 5:
        await client.ask("audit")
    assert await client.agent(Adder, "a").total() == 5, "each once"


def test_a_handle_answers_outside_of_a_story_and_gives_awaitables_within() -> None:
    async def story(client: Client) -> None:
        assert await laboratory.agent(Adder, "a").total() == 3
        assert await client.agent(Adder, "a").total() == 3

    with Laboratory(1) as laboratory:
        adder = laboratory.agent(Adder, "a")
        assert adder.total() == 0
        adder.add(3)
        laboratory.rest()
        laboratory.play(story)
        assert adder.total() == 3
        laboratory.settle()


def test_what_an_agent_gives_bit_by_bit_is_iterated_over_outside_of_a_story_and_only_as_far_as_is_wanted() -> None:
    async def story(client: Client) -> list[int]:
        return [number async for number in client.agent(Counter, "a").up_to(3)]

    with Laboratory(1) as laboratory:
        counter = laboratory.agent(Counter, "a")
        assert laboratory.play(story) == [0, 1, 2]
        assert list(counter.up_to(150)) == [*range(150)]
        assert [*islice(counter.numbers(7), 2)] == [7, 8]
        assert counter.is_closed()
        with pytest.raises(LookupError, match="no more"):
            list(counter.up_to(201))
        with pytest.raises(BadRequest, match="first"):
            counter.numbers(cast("Any", "seven"))
        laboratory.settle()


def test_handlers_that_keep_no_diary_are_held_to_account_all_the_same() -> None:
    report = swarm(8, story=add_five)
    assert report.ok, report.failures
    assert report.kills
    assert list(report.stories) == ["tests.scenarios.test_simulation.add_five"]


@pytest.mark.thorough
def test_a_swarm_with_a_story_of_one_s_own_can_have_processes() -> None:
    alone, together = swarm(4, 100, story=add_five), swarm(4, 100, story=add_five, processes=2)
    assert together.ok, together.failures
    assert (alone.kills, alone.visits) == (together.kills, together.visits)


def test_every_place_to_die_is_tried_for_a_story_without_diaries() -> None:
    report = explore(add_five, stride=9)
    assert report.ok, report.failures


def test_with_diaries_a_handler_that_keeps_none_is_found() -> None:
    with Laboratory(1, diaries=True) as laboratory:
        laboratory.agent(Boss, "b").add(2)
        with pytest.raises(Violation, match="its handler left no trace"):
            laboratory.settle()


class Boss(Adder):
    """Has a table for its diary, and leaves it empty."""

    async def on_start(self) -> None:
        self.sql("CREATE TABLE IF NOT EXISTS told(delivery_id VARCHAR)")


def test_a_delivery_that_is_not_in_the_inbox_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Transaction, "record_inbox", lambda _transaction, _mail_ids: None)
    with Laboratory(1) as laboratory:
        laboratory.agent(Adder, "a").add(2)
        laboratory.rest()
        view = laboratory.store.shadow
        laboratory.simulation.close()
        (complaint, _) = unlike_the_inboxes(laboratory.disk, view, ["a@tests.scenarios.test_simulation:Adder"])
        assert "counts as delivered, and its handler left no trace" in complaint


async def raises(client: Client) -> None:
    await add_five(client)
    raise LookupError("of the author's own")


def test_whatever_a_story_raises_is_a_finding_with_the_line_that_plays_it_again() -> None:
    report = play(3, raises)
    assert "LookupError: of the author's own" in report.problem
    assert "in raises" in report.trace
    assert report.replay == "perdure.scenarios.swarm.runner.play(3, tests.scenarios.test_simulation.raises)"
    assert play(3, raises).digest == report.digest


FAILED, SKIPPED = pytest.fail.Exception, pytest.skip.Exception


def _ends(by: type[BaseException]) -> Story:
    async def story(client: Client) -> None:
        with suppress(OutcomeUnknown, HostUnavailable):
            await client.agent(Adder, "a").total()
        raise by("enough")

    return story


@pytest.mark.parametrize("outcome", [FAILED, SKIPPED, KeyboardInterrupt, SystemExit])
def test_a_story_ends_by_what_ends_a_test_or_by_ctrl_c_as_a_test_does(outcome: type[BaseException]) -> None:
    with Laboratory(1) as laboratory, pytest.raises(outcome, match=r"^enough$"):
        laboratory.play(_ends(outcome))


def test_a_story_that_says_pytest_fail_is_a_finding_and_one_that_is_skipped_or_stopped_is_none() -> None:
    assert "Failed: enough" in swarm(1, story=_ends(FAILED)).failures[0].problem
    for outcome in (SKIPPED, pytest.xfail.Exception, KeyboardInterrupt, SystemExit):
        with pytest.raises(outcome, match=r"^enough$"):
            swarm(1, story=_ends(outcome))


def test_what_a_test_says_of_a_death_is_a_finding_of_the_explorer() -> None:
    dead: list[str] = []

    async def story(client: Client) -> None:
        await client.agent(Adder, "a").add(1)
        dead.append("once")
        if len(dead) > 1:
            with pytest.raises(LookupError):
                pass

    report = explore(story, stride=1_000)
    assert "Failed: DID NOT RAISE" in report.failures[0].problem


def plain(_client: Client) -> int:
    return 1


@pytest.mark.parametrize(
    ("field", "words", "door"),
    [
        ("kill", "'hosts' is none of host, supervisor", lambda: explore(add_five, kill="hosts")),
        ("stride", "at least 1", lambda: explore(add_five, stride=0)),
        ("stride", "at least 1", lambda: explore(add_five, stride=-1)),
        ("seeds", "at least 1", lambda: swarm(0, story=add_five)),
        ("seeds", "at least 1", lambda: swarm(-1)),
        ("story", "'nope' is not one of .*trees", lambda: swarm(1, story="nope")),
        ("story", "'nope' is not one of .*trees", lambda: play(1, "nope")),
        ("weather", "5 is int; give `Weather", lambda: Laboratory(1, cast("Any", 5))),
        ("limits", "is dict; give `Limits", lambda: Laboratory(1, limits=cast("Any", {"hosts_max": 3}))),
        ("timeout_ms", "milliseconds", lambda: swarm(1, timeout_ms=cast("Any", "5"))),
        ("timeout_ms", "milliseconds", lambda: explore(add_five, timeout_ms=cast("Any", "5"))),
        ("limits", "is dict; give `Limits", lambda: swarm(1, limits=cast("Any", {"hosts_max": 3}), carried=True)),
    ],
)
def test_what_would_check_nothing_is_refused_with_what_may_be_said(field: str, words: str, door: Any) -> None:
    with pytest.raises(BadRequest, match=f"^{field}: .*{words}"):
        door()


@pytest.mark.parametrize("story", [plain, 5, None])
def test_what_is_no_story_is_refused_and_told_how_one_is_written(story: Any) -> None:
    doors = [
        lambda laboratory: laboratory.play(story),
        lambda _: explore(story),
        *([lambda _: swarm(1, story=story)] if story is not None else []),
    ]
    for door in doors:
        with (
            Laboratory(1) as laboratory,
            pytest.raises(BadRequest, match=r"^story: .*is no coroutine function; write `async def story\(client\)`"),
        ):
            door(laboratory)


def test_a_limit_of_time_that_is_no_number_is_refused() -> None:
    with Laboratory(1) as laboratory:
        with pytest.raises(BadRequest, match=r"^timeout_ms: .*milliseconds"):
            laboratory.run(Sleeper, 1, timeout_ms=cast("Any", "5"))
        assert laboratory.run(Sleeper, 1, timeout_ms=5_000).ok


async def never(client: Client) -> None:
    await client.start(Sleeper, 10_000_000, run_id="long")


def test_what_does_not_come_to_rest_says_what_is_left() -> None:
    with Laboratory(1) as laboratory:
        laboratory.play(never)
        with pytest.raises(Overdue) as overdue:
            laboratory.rest(timeout_ms=20_000)
        assert any("left to do: run long is running" in note for note in overdue.value.__notes__)


def test_what_a_client_is_refused_is_raised_to_the_test() -> None:
    with Laboratory(1) as laboratory, pytest.raises(UnknownRun):
        laboratory.play(lambda client: client.ask("show", "nothing"))


async def calls_what_may_not_be_repeated(client: Client) -> None:
    for _ in range(30):
        try:
            await client.agent(Adder, "a").fragile()
        except (OutcomeUnknown, HostUnavailable):  # in bad weather there may be no room for four hosts in a row
            continue


def test_a_story_may_expect_interrupted_calls() -> None:
    report = swarm(3, story=calls_what_may_not_be_repeated)
    assert report.ok, report.failures


REFUSALS = [
    OutcomeUnknown("a@m:A", "total", "killed"),
    HostUnavailable("no host comes up, after 4 tries: killed by the weather"),
    Overloaded(8, 8, 100),
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda each: type(each).__name__)
def test_what_the_weather_does_to_a_story_under_fire_is_no_failure_and_in_calm_it_is_one(refusal: Exception) -> None:
    plays: list[str] = []

    def story(times: int) -> Story:
        async def refused(client: Client) -> None:
            plays.append("played")
            if len(plays) <= times:
                raise refusal

        plays.clear()
        return refused

    assert swarm(1, story=story(1)).ok
    assert len(plays) == 2
    assert type(refusal).__name__ in swarm(1, story=story(2)).failures[0].problem


DAY_S = 86_400.0


@pytest.mark.parametrize("run_id", ["asleep", "awake"])
def test_a_day_in_which_nothing_happens_costs_as_little_as_a_minute(run_id: str) -> None:
    with Laboratory(1) as laboratory:
        assert laboratory.run(Patient, DAY_S, run_id=run_id).output == "rested"
        assert 0 <= laboratory.simulation.now_ms() / 1000 - DAY_S < 10
        assert laboratory.simulation.loop.steps < 8_000
        assert not laboratory.simulation.crashes
        laboratory.settle()


async def rests_for_a_day(client: Client) -> None:
    while True:
        with suppress(OutcomeUnknown, HostUnavailable):
            assert (await client.run(Patient, DAY_S, run_id="asleep")).ok
            return


def test_a_swarm_and_the_explorer_play_a_story_that_sleeps_for_days_if_they_are_given_the_time() -> None:
    in_short = swarm(1, story=rests_for_a_day).failures[0]
    assert "`timeout_ms=` gives another limit" in in_short.problem
    assert in_short.replay.endswith(".rests_for_a_day)")
    report = swarm(1, story=rests_for_a_day, timeout_ms=2_000 * DAY_S)
    assert report.ok, report.failures
    in_short = swarm(1, story=rests_for_a_day, timeout_ms=60_000).failures[0]
    assert in_short.replay.endswith(".rests_for_a_day, timeout_ms=60000)")
    with pytest.raises(Overdue, match="900 s"):
        explore(rests_for_a_day)
    deaths = explore(rests_for_a_day, stride=30, timeout_ms=2_000 * DAY_S)
    assert deaths.ok, deaths.failures
    assert deaths.kills


def test_schedules_ring_in_time_for_days(caplog: pytest.LogCaptureFixture) -> None:
    async def story(client: Client) -> list[int]:
        counts = []
        for _ in range(3):
            await asyncio.sleep(DAY_S)
            counts.append(await client.agent(Calendar, "c").rings())
        return counts

    with Laboratory(1) as laboratory:
        laboratory.agent(Calendar, "c").plan()
        assert laboratory.play(story) == [4, 8, 12]
        assert not laboratory.simulation.crashes
        laboratory.settle()
    assert "late" not in caplog.text


def test_an_hour_of_a_schedule_costs_few_steps_and_no_more_work_than_its_ring() -> None:
    with Laboratory(1) as laboratory:
        calendar = laboratory.agent(Calendar, "c")
        calendar.plan("0 * * * *")
        laboratory.play(lambda _: asyncio.sleep(2 * DAY_S))
        loop = laboratory.simulation.loop
        assert loop.steps < 48 * 550
        assert 48 < BUSY_MAX_S - (loop.busy_until_s - loop.time() + loop.leapt_s) < 48 * 8
        assert calendar.rings() == 48


def test_an_agent_that_stays_awake_for_a_while_goes_to_sleep_after_that_while_and_not_after_a_leap() -> None:
    with Laboratory(1, limits=replace(QUICK, idle_ms=20_000)) as laboratory:
        laboratory.agent(Adder, "a").total()
        laboratory.rest()
        assert 20 < laboratory.simulation.now_ms() / 1000 < 40


@pytest.mark.parametrize("what", ["answer", "event", "message"])
def test_at_rest_a_run_may_wait_for_a_person_or_an_event_and_goes_on_when_that_comes(what: str) -> None:
    with Laboratory(1) as laboratory:
        laboratory.play(lambda client: client.start(Asker, None, run_id=what))
        laboratory.rest()
        assert laboratory.simulation.now_ms() < 60_000
        if what == "answer":
            laboratory.answer("answer:1", True)
        else:
            laboratory.play(lambda client: client.send(what, "go" if what == "event" else "mail", "True"))
        laboratory.rest()
        assert laboratory.play(lambda client: client.ask("show", what))["status"] == "completed"
        assert laboratory.run(Asker, None, run_id=what).output == "True"
        laboratory.settle()


@pytest.mark.parametrize("what", ["answer", "event", "message"])
def test_there_is_no_rest_before_a_limit_that_such_a_wait_has_nor_before_an_alarm_that_may_end_it(what: str) -> None:
    with Laboratory(1) as laboratory:
        laboratory.play(lambda client: client.start(Asker, 3_600, run_id=what))
        laboratory.settle()
        assert 0 <= laboratory.simulation.now_ms() / 1000 - 3_600 < 60
    with Laboratory(1) as laboratory:
        laboratory.agent(Calendar, "c").plan(3_600)
        laboratory.play(lambda client: client.start(Asker, None, run_id=what))
        laboratory.rest()
        assert laboratory.simulation.now_ms() / 1000 > 3_600
        with pytest.raises(Violation, match=f"run {what} is running"):
            laboratory.settle()


def test_a_play_that_waits_for_what_will_never_come_ends_at_once_and_says_who_waits_for_what() -> None:
    with Laboratory(1) as laboratory, pytest.raises(Deadlock, match="nothing is due") as caught:
        laboratory.run(Asker, None, run_id="answer")
    assert "It asks anybody" in str(caught.value)
    assert "of work" not in str(caught.value)
    assert laboratory.simulation.loop.steps < 8_000


def test_a_death_and_a_host_that_hangs_are_noticed_in_the_midst_of_a_long_sleep() -> None:
    async def story(client: Client) -> float:
        begun = await client.start(Patient, DAY_S, run_id="awake")
        for strike in (laboratory.simulation.kill, lambda name: laboratory.simulation.stop(name, DAY_S * 1000)):
            await asyncio.sleep(DAY_S / 4)
            strike(next(name for name, host in laboratory.hosts.items() if host.tenants))
        assert (await begun.result()).output == "rested"
        return asyncio.get_running_loop().time()

    with Laboratory(1) as laboratory:
        assert DAY_S * 1.5 < laboratory.play(story) < DAY_S * 1.5 + 30
        assert laboratory.simulation.loop.leapt_s > DAY_S
        laboratory.settle()


def test_no_time_is_leapt_over_in_weather_that_may_strike_in_it() -> None:
    with Laboratory(1, Weather.drawn(Random(3))) as laboratory:
        laboratory.play(lambda _: asyncio.sleep(600))
        assert laboratory.simulation.loop.leapt_s == 0
        laboratory.heal()
        laboratory.play(lambda _: asyncio.sleep(600))
        assert laboratory.simulation.loop.leapt_s > 300


def test_a_run_that_does_not_end_in_time_is_told_of_with_what_it_waits_for_and_how_to_give_it_more() -> None:
    with Laboratory(1) as laboratory, pytest.raises(Overdue) as overdue:
        laboratory.run(Patient, DAY_S, run_id="asleep", timeout_ms=3_600_000)
    words = str(overdue.value)
    assert "Run asleep of tests.scenarios.test_simulation:Patient is running. It waits until its time comes" in words
    assert "It had 3600 s, of virtual time. `timeout_ms=` gives another limit." in words
    assert "tasks pending" not in words


@pytest.mark.thorough
def test_a_play_without_a_limit_ends_when_it_was_at_work_for_hours() -> None:
    async def story(_: Client) -> Any:
        while True:
            await asyncio.sleep(10)

    with Laboratory(1) as laboratory, pytest.raises(Overdue, match="at work for too long"):
        laboratory.play(story)


def _plays(door: str) -> Any:
    async def story(client: Client) -> int:
        return await client.agent(Adder, "a").total()

    with Laboratory(7) as laboratory:
        doors = {
            "a run": lambda: laboratory.run(Sleeper, 100),
            "a call": lambda: laboratory.agent(Adder, "a").fragile(),
            "a story": lambda: laboratory.play(story),
            "rest": laboratory.settle,
            "explore": lambda: explore(story),
            "swarm": lambda: swarm(1, story=story),
        }
        return doors[door]()


class Asking(Agent):
    async def run(self) -> bool:
        return (await self.ask("Now?")).value


def test_a_laboratory_answers_what_people_are_asked() -> None:
    async def story(client: Client) -> bool:
        await client.start(Asking, run_id="r")
        while not (asked := await laboratory.asks()):
            await asyncio.sleep(1)
        assert (await laboratory.answer(asked[0]["ask_id"], True, who="ada"))["status"] == "answered"
        return (await client.run(Asking, run_id="r")).output

    with Laboratory(7) as laboratory:
        assert laboratory.play(story)
        assert laboratory.asks() == []


def test_a_laboratory_plays_within_its_with_statement_until_it_is_settled() -> None:
    laboratory = Laboratory(7)
    with pytest.raises(BadRequest, match=r"^laboratory: it plays within a `with` statement: "):
        laboratory.run(Sleeper, 1)
    with laboratory:
        assert laboratory.run(Sleeper, 1).ok
        laboratory.settle()
        with pytest.raises(BadRequest, match=r"^laboratory: it is over: .* make another one"):
            laboratory.agent(Adder, "a").fragile()
    with pytest.raises(BadRequest, match=r"^laboratory: it is over: "):
        laboratory.rest()


@pytest.mark.parametrize("door", some(2, ["a run", "a story", "a call", "rest", "explore", "swarm"]))
@pytest.mark.filterwarnings("error")
async def test_async_code_is_told_to_play_from_sync_code_and_leaves_nothing_that_is_never_awaited(door: str) -> None:
    with pytest.raises(BadRequest, match=r"^laboratory: an event loop is running here already.* `def test_it\(\)`"):
        _plays(door)
    gc.collect()


def test_a_story_that_plays_another_one_is_refused_and_goes_on() -> None:
    with Laboratory(7) as laboratory:

        async def story(_client: Client) -> int:
            with pytest.raises(BadRequest, match="a story awaits the client that it is given"):
                laboratory.play(story)
            return await awaiting(laboratory.agent(Adder, "a").fragile())

        assert laboratory.play(story) == 1


def test_a_thread_beside_a_loop_may_play() -> None:
    with Laboratory(7) as laboratory:
        assert asyncio.run(asyncio.to_thread(laboratory.run, Sleeper, 100)).ok
