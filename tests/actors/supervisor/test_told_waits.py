"""Whoever waits is told at its own terminal what keeps it waiting, once for each cause, and goes on waiting."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from perdure.actors import Agent, Client, PoolSpec, RunContext, exposed
from perdure.actors.link.messages import Abort
from perdure.actors.sim_world.simulation import NOTHING_LACKS, NodeGrowth
from perdure.ledger import AgentAborted
from perdure.scenarios.testing.laboratory import Laboratory, Weather
from tests.kit import Stage, address, play

UNDO_TRIES = 8
PARKED = "run 'r' is parked, and you go on waiting: "


class Trip(Agent):
    """Books, fails, and cannot be undone until it is mended."""

    is_mended = False
    tries = 0
    at_last_try: Callable[[], object] = staticmethod(lambda: None)

    async def run(self, input: str, run: RunContext) -> str:
        await run.step("book", lambda: 1, undo=self.cancel)
        raise ValueError("no way")

    async def cancel(self, _booking: int) -> None:
        Trip.tries += 1
        if Trip.tries == UNDO_TRIES:
            Trip.at_last_try()
        if not Trip.is_mended:
            raise OSError("the hotel\ndoes not answer")


class Traveller(Agent):
    """Waits for a `Trip`, and whoever calls it does, too."""

    stands_alone = True

    async def run(self, input: str) -> str:
        return str((await self.run_agent_tool(Trip, "", run_id=input)).status)

    @exposed
    async def travel(self, run_id: str) -> str:
        return await self.run(run_id)

    @exposed
    async def rest(self) -> str:
        return "rested"


class Far(Agent):
    """Needs what only another node has."""

    stands_alone = True
    resources = {"far": 1.0}  # noqa: RUF012

    async def run(self, input: str) -> str:
        return "here"

    @exposed
    async def greet(self) -> str:
        return "hello"


class Hoping(Agent):
    async def run(self, input: str) -> str:
        return str((await self.run_agent_tool(Far, "", run_id="f")).output)


class Stubborn(Agent):
    """Does not let itself be cancelled."""

    stands_alone = True

    async def run(self, input: str, run: RunContext) -> None:
        await run.step("book", lambda: 1, undo=self.take_back)
        await self.go_on()

    async def take_back(self, _booking: int) -> None: ...

    @exposed
    async def go_on(self) -> None:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + 200
        while loop.time() < end_s:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(end_s - loop.time())

    @exposed
    async def greet(self) -> str:
        return "hello"


class Sleeper(Agent):
    async def run(self, input: str, run: RunContext) -> None:
        await run.sleep(90)


@pytest.fixture(autouse=True)
def _broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trip, "is_mended", False)
    monkeypatch.setattr(Trip, "tries", 0)
    monkeypatch.setattr(Trip, "at_last_try", lambda: None)


class Terminal:
    """What the client prints."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    @property
    def lines(self) -> list[str]:
        return [each.getMessage() for each in self._caplog.records if each.name == "perdure.link"]

    async def says(self, words: str) -> None:
        async with asyncio.timeout(200):
            while not any(words in each for each in self.lines):
                await asyncio.sleep(1)


@pytest.fixture
def terminal(caplog: pytest.LogCaptureFixture) -> Terminal:
    caplog.set_level(logging.WARNING, "perdure.link")
    return Terminal(caplog)


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Laboratory]:
    with Laboratory(1, carried=tmp_path) as made:
        yield made


def growth(spec: PoolSpec) -> NodeGrowth:
    return NodeGrowth("no node has 1 far", 90_000) if spec.resources else NOTHING_LACKS


def waiting(stage: Stage, run_id: str = "r", kind: Any = Trip, input: str = "") -> asyncio.Future[Any]:
    return asyncio.ensure_future(stage.client.run(kind, input, run_id=run_id))


def is_parked(stage: Stage, run_id: str = "r") -> bool:
    run = stage.record(run_id)
    return run is not None and bool(run.parked)


async def mended(stage: Stage, run_id: str = "r") -> None:
    Trip.is_mended = True
    await stage.client.ask("retry", run_id)


async def test_whoever_waits_for_a_run_that_is_parked_is_told_once_and_goes_on_waiting(
    stage: Stage, terminal: Terminal
) -> None:
    wait = waiting(stage)
    await terminal.says(PARKED)
    link = stage.laboratory.supervisors[-1].sessions.by_peer[stage.client.client_id].link
    said = link.next_number
    await asyncio.sleep(60)
    assert link.next_number == said, "nothing more is said meanwhile"
    (line,) = terminal.lines
    assert "the hotel does not answer" in line
    assert line.endswith("`perdure explain r` says what can be done")
    assert not wait.done()
    await mended(stage)
    assert (await wait).status == "error"


async def test_so_is_whoever_begins_to_wait_when_it_has_long_been_parked(stage: Stage, terminal: Terminal) -> None:
    handle = await stage.client.start(Trip, "", run_id="r")
    await stage.until(lambda: is_parked(stage))
    await asyncio.sleep(60)
    assert not terminal.lines
    wait = asyncio.ensure_future(handle.result())
    await terminal.says(PARKED)
    await mended(stage)
    assert (await wait).status == "error"


async def test_so_is_whoever_waits_for_what_waits_for_it(stage: Stage, terminal: Terminal) -> None:
    run = waiting(stage, "p", Traveller, "r")
    call = asyncio.ensure_future(stage.call(Traveller, "travel", "s", name="home"))
    joined = asyncio.ensure_future(stage.client.run(Traveller, "t", run_id="j", after="p"))
    await terminal.says("run 'r', for which run 'p' waits, is parked")
    await terminal.says("run 'r', for which run 'j' waits, is parked")
    await terminal.says("run 's', for which agent '")
    assert await stage.call(Traveller, "rest", name="another") == "rested"
    await asyncio.sleep(60)
    assert len(terminal.lines) == 3
    await mended(stage)
    await mended(stage, "s")
    assert (await run).output == await call == "error"
    assert (await joined).ok


async def test_who_has_given_up_waiting_is_told_nothing_until_it_waits_again(stage: Stage, terminal: Terminal) -> None:
    waiting(stage).cancel()
    await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await stage.client.run(Trip, "", run_id="r")
    await stage.until(lambda: is_parked(stage))
    await asyncio.sleep(60)
    assert not terminal.lines
    wait = waiting(stage)
    await terminal.says(PARKED)
    await mended(stage)
    await wait


@pytest.mark.parametrize("cut", ["supervisor", "everything"])
def test_a_death_of_the_supervisor_does_not_say_it_twice(cut: str, terminal: Terminal) -> None:
    async def story(stage: Stage) -> None:
        wait = waiting(stage)
        await terminal.says(PARKED)
        if cut == "supervisor":
            stage.simulation.kill("supervisor")
        else:
            stage.simulation.cluster.power_off()
            stage.simulation.cluster.power_on()
        await asyncio.sleep(60)
        assert stage.client.kept_back.now["r"] == [terminal.lines[0].removeprefix("perdure: ")]
        assert len(terminal.lines) == 1
        await mended(stage)
        assert (await wait).status == "error"
        await asyncio.sleep(10)
        assert not stage.client.kept_back.now

    play(story)


async def test_whoever_waits_for_a_run_that_is_paused_is_told_how_it_goes_on(stage: Stage, terminal: Terminal) -> None:
    wait = waiting(stage, "r", Sleeper)
    await asyncio.sleep(30)
    assert not terminal.lines, "to wait for a time is its work"
    await stage.client.ask("pause", "r", True)
    await terminal.says("run 'r' is paused, and you go on waiting: ")
    await stage.client.ask("pause", "r", False)
    assert (await wait).ok


async def test_whoever_waits_for_a_node_that_an_autoscaler_is_to_bring_is_told_what_it_is_to_have(
    stage: Stage, terminal: Terminal
) -> None:
    """A run, what awaits one, and a call."""
    stage.simulation.cluster.growth = growth
    waits = [waiting(stage, "r", Far), waiting(stage, "p", Hoping)]
    call = asyncio.ensure_future(stage.call(Far, "greet"))
    lacks = "waits for a host, and you go on waiting: no host (1 far) can be had: no node has 1 far. "
    await terminal.says(f"run 'r' {lacks}`perdure explain r` says what can be done")
    await terminal.says("run 'f', for which run 'p' waits, waits for a host")
    await terminal.says(f"agent '{address(Far, 'p')}' {lacks}`perdure ps` tells more")
    assert [(await each).output for each in waits] == ["here", "here"]
    assert await call == "hello"
    assert len(terminal.lines) == 3


def test_a_bucket_that_stops_at_the_very_moment_of_a_call_keeps_nobody_waiting_in_silence(
    bucket: Laboratory, terminal: Terminal
) -> None:
    async def story(client: Client) -> None:
        assert (await client.run(Far, "")).ok
        bucket.simulation.change_weather(Weather(bucket_lost=1))
        call = asyncio.ensure_future(client.call(Far, "p", "greet", (), {}))
        await terminal.says(" has not answered for ")
        await asyncio.sleep(30)
        assert not call.done()
        (line,) = terminal.lines
        assert line.endswith("and you go on waiting: what was asked before takes effect when it answers")
        bucket.simulation.heal()
        assert await call == "hello"
        await asyncio.sleep(10)
        assert not client.kept_back.now

    bucket.play(story)
    bucket.settle()


async def test_of_many_runs_that_wait_for_the_same_a_person_reads_the_first(stage: Stage, terminal: Terminal) -> None:
    stage.simulation.cluster.growth = growth
    waits = [waiting(stage, f"r{n}", Far) for n in range(20)]
    await terminal.says("so it is with 12 more of what you wait for")
    assert len(terminal.lines) == 9
    assert all([(await each).ok for each in waits])


def test_nothing_is_told_that_is_not_durable_yet(bucket: Laboratory, terminal: Terminal) -> None:
    async def story(client: Client) -> None:
        Trip.at_last_try = lambda: bucket.simulation.change_weather(Weather(bucket_lost=1))
        wait = asyncio.ensure_future(client.run(Trip, "", run_id="r"))
        await terminal.says(" has not answered for ")
        assert bucket.supervisors[-1].view.runs["r"].parked
        await asyncio.sleep(30)
        assert len(terminal.lines) == 1
        bucket.simulation.heal()
        await terminal.says(PARKED)
        Trip.is_mended = True
        await client.ask("retry", "r")
        assert (await wait).status == "error"

    bucket.play(story)
    bucket.settle()


async def test_whoever_waits_for_what_was_told_to_stop_and_goes_on_is_told_where_that_is(
    stage: Stage, terminal: Terminal
) -> None:
    """A run whose steps are to be undone, and a call for the next life of an agent."""
    wait, at_work = waiting(stage, "r", Stubborn), asyncio.ensure_future(stage.call(Stubborn, "go_on", name="z"))
    await asyncio.sleep(10)
    await stage.client.ask("cancel", "r", None, "enough")
    await stage.client.supervisor.ask(Abort(address(Stubborn, "z"), "enough"))
    with pytest.raises(AgentAborted):
        await at_work
    call = asyncio.ensure_future(stage.call(Stubborn, "greet", name="z"))
    await asyncio.sleep(4)
    assert not terminal.lines, "it may yet stop"
    stopped = "cannot go on, and you go on waiting: it was told to stop on host "
    await terminal.says(
        f"run 'r' {stopped}{stage.host_of(address(Stubborn, 'r'))}, and its code does not let itself be "
    )
    await terminal.says(f"agent '{address(Stubborn, 'z')}' {stopped}{stage.host_of(address(Stubborn, 'z'))}")
    assert await call == "hello"
    assert (await wait).status == "aborted"
    await asyncio.sleep(10)
    assert not stage.client.kept_back.now
    assert len(terminal.lines) == 2
