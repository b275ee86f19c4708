"""What a life of the supervisor promises by itself: its time, what its snapshot says, and which hosts it sends away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from perdure.actors import Agent, Client, RunContext, Supervisor, exposed, tell
from perdure.actors.link.messages import HostHello, InboxKept, MailSettled, Message, Prepare, Stop
from perdure.actors.link.wire import messages_in
from perdure.actors.ray_world.system import system_world
from perdure.actors.sim_world.simulation import EPOCH_MS, Span, Weather
from perdure.actors.supervisor.calls import CallRouter, Calls
from perdure.actors.supervisor.intake import Intake
from perdure.actors.supervisor.sessions import PeerSession, Sessions
from perdure.ledger import Fact, Verb, record_fact, restore
from perdure.ledger.facts import (
    AgentActivated,
    MailDelivered,
    MailFailed,
    MailRequeued,
    MailSuppressed,
    RunCleared,
    RunInterrupted,
    RunSucceeded,
    SupervisorStarted,
)
from perdure.ledger.storage.agent_storages import AgentStorages, MemoryDisk
from perdure.ledger.store.memory_store import MemoryStore
from perdure.ledger.view import View
from perdure.policies import Limits
from perdure.scenarios.testing.laboratory import Laboratory
from tests.actors.cast import Sleeper
from tests.kit import PARENT, ROOMY, Ledger, Stage, address, asked, begun, placed, play, staged


class Hermit(Sleeper):
    """Wants a host to itself."""

    exclusive = True


class Reader(Agent):
    """Reads for a while."""

    async def run(self, input: str) -> int:
        await asyncio.sleep(5)
        return len(input)


class Demanding(Agent):
    """Asks for a host of a pool of its own."""

    stands_alone = True

    num_cpus = 0.5

    async def run(self, input: float, run: RunContext) -> int:
        await asyncio.sleep(input / 1000)
        return run.attempt

    @exposed
    def hear(self) -> None:
        """Nothing comes of it."""


def test_the_time_of_the_ledger_is_steady_and_never_runs_backwards_though_clocks_are_set_back() -> None:
    behind = 0

    async def story(stage: Stage) -> None:
        nonlocal behind
        latest_ms = 0
        for epoch in range(1, 6):
            await stage.until(lambda epoch=epoch: stage.view.epoch == epoch)
            supervisor = stage.laboratory.supervisors[-1]
            behind += supervisor.world.clock.now_ms() < latest_ms
            assert supervisor.view.awake_at_ms >= latest_ms
            began_ms = supervisor.clock.now_ms()
            await asyncio.sleep(5)
            assert supervisor.clock.now_ms() - began_ms == 5_000
            await stage.client.run(Sleeper, 1)
            latest_ms = stage.view.at_ms
            stage.simulation.kill("supervisor")
            await stage.until(lambda: not stage.laboratory.supervisors)

    skewed = replace(
        Weather.calm(), clock_skew_ms=3_600_000, clock_jump_every_ms=1_000, clock_jump_ms=Span(-60_000, -60_000)
    )
    play(story, weather=skewed)
    assert behind, "some machine was behind the ledger"


async def tells(stage: Stage) -> None:
    await tell(cast("Any", stage.client.agent(Demanding, "d")).hear)


async def cancels(stage: Stage) -> None:
    await stage.client.ask("cancel", "r", None, "enough")


async def clears(stage: Stage) -> None:
    await stage.client.ask("clear", ["r"])


async def starts(stage: Stage) -> None:
    await stage.client.start(Sleeper, 1)


@pytest.mark.parametrize("ask", [tells, cancels, clears, starts])
@staged(weather=replace(Weather.calm(), commit_ms=Span(1000, 1000)))
async def test_what_is_asked_is_answered_when_it_is_durable_and_not_before(
    stage: Stage, ask: Callable[[Stage], Awaitable[None]]
) -> None:
    """A commit takes a second, and the client's last exchange is held open: the supervisor could answer at any time."""
    await stage.client.start(Sleeper, 3_600_000, run_id="r")
    await asyncio.sleep(15)
    facts = stage.laboratory.store.facts_count
    asking = asyncio.create_task(ask(stage))
    await asyncio.sleep(0.9)
    assert stage.view.seq > facts, "it is decided"
    assert not asking.done()
    await asking
    assert stage.laboratory.store.facts_count > facts


@staged(weather=replace(Weather.calm(), commit_ms=Span(1000, 1000)))
async def test_turns_go_on_while_the_storages_of_cleared_runs_are_deleted(stage: Stage) -> None:
    """Six deletions take a second each. Nobody's question waits for one of them, and no turn is long."""
    for number in range(6):
        await stage.client.run(Sleeper, 1, run_id=f"r{number}")
    assert (await stage.client.steer_runs(Verb.CLEAR, {}, everything=True)).hit == 6
    clock, waits = asyncio.get_running_loop(), []
    while stage.view.runs:
        asked_s = clock.time()
        told = (await stage.client.ask("ps"))["supervisor"]
        waits.append(clock.time() - asked_s)
        await asyncio.sleep(0.1)
    assert len(waits) > 20
    assert max(waits) < 0.5
    assert told["longest_turn_ms"] < 500 < told["commit_ms"] / told["commits"]


@staged(weather=replace(Weather.calm(), commit_ms=Span(100, 100)))
async def test_neither_a_turn_nor_a_question_waits_for_a_checkpoint(stage: Stage) -> None:
    """The archive's thread has a minute of work to do when an input must be read again, because the supervisor that knew it has died."""
    reading = asyncio.ensure_future(stage.client.run(Reader, "x" * 100_000, run_id="r"))
    await stage.until(lambda: stage.status("r") == "running")
    stage.kill_host_of(address(Reader, "r"))
    stage.simulation.kill("supervisor")
    await stage.until(lambda: bool(stage.laboratory.supervisors))
    threads = stage.laboratory.supervisors[-1].world.threads
    jobs = [asyncio.ensure_future(threads.archive(lambda: None)) for _ in range(600)]
    began_s = asyncio.get_running_loop().time()
    await stage.until(lambda: stage.status("r") == "running" and stage.run("r").attempt == 2)
    told = await stage.client.ask("page", [], 10)
    assert ([each["run_id"] for each in told["runs"]], told["next"]) == (["r"], None)
    assert asyncio.get_running_loop().time() - began_s < 10
    assert not all(job.done() for job in jobs)
    assert (await reading).output == 100_000
    await asyncio.wait(jobs)


def test_mail_of_a_cleared_run_does_not_come_back_by_way_of_the_snapshot() -> None:
    facts: list[Fact] = [
        SupervisorStarted(1, {}),
        asked(detached=True, on_finish="f"),
        placed(),
        begun(),
        RunInterrupted("r", "no-progress", True, ""),
        RunSucceeded("r", 1, None, "", released=True),
        MailSuppressed("r!finish"),
        RunCleared("r"),
    ]
    with Laboratory(1) as laboratory:
        view = View()
        laboratory.store.append([record_fact(view, fact, EPOCH_MS) for fact in facts], [])
        assert view.mail["r!give-up"].state == "superseded"

        async def story(_client: Client) -> None:
            await asyncio.sleep(60)

        laboratory.play(story)
        assert restore(laboratory.store.boot()).runs == {}
        assert restore(laboratory.store.boot()).mail == {}


@staged(limits=replace(ROOMY, retained_in_memory=0))
async def test_only_settled_runs_leave_the_memory(stage: Stage) -> None:
    await stage.client.run(Sleeper, 1, run_id="settled")
    running = asyncio.create_task(stage.client.run(Sleeper, 60_000, run_id="live"))
    await asyncio.sleep(30)
    assert stage.record("settled") is None
    stage.kill_host_of(address(Sleeper, "live"))
    assert (await running).output == 2


@staged(limits=replace(ROOMY, tenancies_max=1))
async def test_only_an_empty_host_is_retired_however_worn_it_is(stage: Stage) -> None:
    running = asyncio.create_task(stage.client.run(Sleeper, 30_000, run_id="r"))
    await stage.until(lambda: bool(stage.host_of(address(Sleeper, "r"))))
    host = stage.host_of(address(Sleeper, "r"))
    assert (await running).output == 1, "it needed no second attempt"
    await stage.until(lambda: host not in stage.simulation.live_hosts())


@staged(limits=replace(ROOMY, host_idle_ms=15000))
async def test_a_host_of_a_pool_of_its_own_is_retired_when_it_has_been_empty_for_so_long(stage: Stage) -> None:
    running = asyncio.create_task(stage.client.run(Demanding, 30_000, run_id="r"))
    await stage.until(lambda: bool(stage.host_of(address(Demanding, "r"))))
    host = stage.host_of(address(Demanding, "r"))
    assert (await running).output == 1
    await asyncio.sleep(10)
    assert host in stage.simulation.live_hosts()
    await asyncio.sleep(20)
    assert host not in stage.simulation.live_hosts()


@staged(limits=replace(ROOMY, hosts_max=2, host_idle_ms=15000))
async def test_hosts_that_some_had_alone_end_when_they_are_empty_and_too_many(stage: Stage) -> None:
    asked = [(Hermit, 20_000), *[(Sleeper, 20_000)] * 4]
    running = [asyncio.create_task(stage.client.run(kind, ms)) for kind, ms in asked]
    await stage.until(lambda: len(stage.simulation.live_hosts()) > 2)
    await asyncio.gather(*running)
    await asyncio.sleep(5)
    assert len(stage.simulation.live_hosts()) > 2
    await asyncio.sleep(30)
    assert len(stage.simulation.live_hosts()) == 2


@staged(weather=replace(Weather.calm(), restart_ms=Span(60000, 60000)))
async def test_a_host_that_nobody_leads_any_more_ends_itself(stage: Stage) -> None:
    await stage.client.run(Sleeper, 1)
    stage.simulation.kill("supervisor")
    await asyncio.sleep(ROOMY.orphan_ms / 1000 - 5)
    assert stage.simulation.live_hosts()
    await asyncio.sleep(15)
    assert not stage.simulation.live_hosts()


class Reception:
    """The intake of one life of the supervisor, which knows one agent in its ninth life on `h1`, with mail that is pending."""

    def __init__(self, *more: Fact) -> None:
        facts: list[Fact] = [
            asked(detached=True, on_finish="f"),
            placed(),
            begun(),
            RunSucceeded("r", 1, None, "", released=True),
            AgentActivated(PARENT, 9, "h1"),
            *more,
        ]
        view, sessions, nobody = Ledger().given(*facts).view, Sessions(), cast("Any", SimpleNamespace(observers=()))
        self.session = PeerSession("h1", 1)
        ways = CallRouter(view, lambda _agent: False)
        self.intake = Intake(view, sessions, ROOMY, Calls(view, sessions, ways), nobody, nobody, ways)

    def said_after(self, message: Message) -> list[Message]:
        """What is said to the host because of a message of it, but for the code that it should load."""
        list(self.intake.receive(self.session, message))
        self.intake.tell_settled()
        return [said for said in messages_in(self.session.link.take()[1]) if not isinstance(said, Prepare)]


def test_mail_that_may_come_again_is_not_forgotten_by_its_recipient_and_earlier_lives_are_told_nothing() -> None:
    parked = MailFailed("r!finish", "raised", None)
    for more in ([], [parked], [parked, MailRequeued("r!finish")]):
        assert Reception(*more).said_after(InboxKept(PARENT, 9, ["r!finish", "old"])) == [
            MailSettled(PARENT, 9, ["old"])
        ]
    handled = MailDelivered(PARENT, ["r!finish"])
    assert Reception(handled).said_after(InboxKept(PARENT, 9, ["r!finish"])) == [MailSettled(PARENT, 9, ["r!finish"])]
    assert Reception().said_after(InboxKept(PARENT, 8, ["old"])) == []


def test_a_host_that_still_has_an_earlier_life_of_an_agent_is_told_to_stop_it() -> None:
    for life, expected in ((8, [Stop(PARENT, 8)]), (9, [])):
        assert Reception().said_after(HostHello(1, "", 1, [(PARENT, life)], [], [])) == expected


def test_a_list_of_runs_has_every_run_while_they_leave_memory() -> None:
    async def story(stage: Stage) -> None:
        every = [f"r{number}" for number in range(5)]
        for run_id in every:
            await stage.client.run(Sleeper, 1, run_id=run_id)
        asked = []
        while stage.view.runs or len(asked) < 100:
            asked.append(asyncio.ensure_future(stage.client.ask("list", None, None, None, 100)))
            await asyncio.sleep(0.02)
        for told in await asyncio.gather(*asked):
            assert [each["run_id"] for each in cast("list[dict[str, Any]]", told)] == every

    weather = replace(Weather.calm(), thread_ms=Span(50, 500))
    play(story, weather=weather, limits=replace(ROOMY, checkpoint_idle_ms=500, retained_in_memory=0))


def test_lives_that_are_too_short_for_a_quiet_moment_take_a_snapshot_nevertheless() -> None:
    """What the lives before have left counts, so that a boot never has many more facts to fold than a checkpoint waits for."""

    async def story(stage: Stage) -> None:
        behind = []
        for life in range(6):
            await stage.client.run(Sleeper, 1, run_id=f"r{life}")
            stage.simulation.kill("supervisor")
            await stage.until(lambda at=life: stage.view.epoch > at + 1)
            behind.append(len(stage.laboratory.store.boot().rows))
        assert max(behind) < 1.5 * facts, behind
        assert await stage.client.ask("inspect", "r0") is not None

    facts = 12
    play(story, limits=replace(ROOMY, checkpoint_facts=facts, checkpoint_idle_ms=60_000, sweep_ms=60_000))


@pytest.mark.parametrize("cores", [2, 3, 8])
def test_a_pool_has_a_host_for_each_core(cores: int) -> None:
    world = system_world()._replace(cores=cores)
    supervisor = Supervisor(world, cast("Any", None), MemoryStore(), AgentStorages(MemoryDisk()), Limits(pack_max=7))
    assert supervisor.limits == Limits(pack_max=7, hosts_max=cores)
