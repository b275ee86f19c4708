"""An unexpected error in a task ends the life that owns it, or is answered to whoever waits. Either way it is logged, and work goes on.

One error is planted in each kind of task, the first time that one is started.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from perdure.actors import Client
from perdure.actors.host.host import Host
from perdure.actors.host.tenant import Tenant
from perdure.actors.jobs.fiber_store import GroupCommit
from perdure.actors.jobs.fibers import FiberAgenda
from perdure.actors.jobs.queue import CallbackQueue
from perdure.actors.jobs.schedules import Schedules
from perdure.actors.life.mailbox import Mailbox
from perdure.actors.life.outbox import Outbox
from perdure.actors.life.state_watch import StateWatch
from perdure.actors.link.peer import Peer
from perdure.actors.link.supervisor_client import SupervisorClient
from perdure.actors.link.wire import RemoteError
from perdure.actors.supervisor.pool import Heartbeat, Pool
from perdure.actors.supervisor.queries import Queries
from perdure.actors.supervisor.supervisor import Supervisor
from perdure.actors.tasks import AGENT, Tasks
from perdure.ledger import OutcomeUnknown
from perdure.scenarios.testing.laboratory import QUICK, Laboratory
from tests.actors.busybody import Busybody
from tests.actors.cast import Doubler

Story = Callable[[Client], Awaitable[Any]]
PLANTED = "planted by a test"
LIMITS = replace(QUICK, hosts_max=4)


class Plant:
    """An error in place of the first call of a coroutine method, of objects that fit."""

    def __init__(self, owner: type, name: str, fits: Callable[[Any], bool] = lambda _: True) -> None:
        self.owner, self.name, self.fits = owner, name, fits
        self.count = 0

    @contextmanager
    def planted(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        real = getattr(self.owner, self.name)

        async def planted(this: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.count and self.fits(this):
                self.count += 1
                raise KeyError(PLANTED)
            return await real(this, *args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(self.owner, self.name, planted)
            yield


def found(problem: BaseException | None) -> bool:
    """Whether this is the planted error, or a group of it alone."""
    if isinstance(problem, BaseExceptionGroup):
        return all(map(found, problem.exceptions))
    return isinstance(problem, KeyError) and PLANTED in str(problem)


def is_of_client(peer: Peer) -> bool:
    """Whether a peer is a client's."""
    return peer.peer_id.startswith("client")


def converges(story: Story, plant: Plant, monkeypatch: pytest.MonkeyPatch) -> Laboratory:
    """Play a story with an error in it: it ends, everything comes to rest, the error was logged, and nothing else was."""
    plant.count = 0
    with plant.planted(monkeypatch), Laboratory(5, limits=LIMITS) as laboratory:
        laboratory.play(story)
        laboratory.settle()
    assert plant.count, "the task was never started"
    errors = laboratory.simulation.errors
    assert [error for error in errors if not found(error.error)] == []
    return laboratory


async def persist(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Ask until there is an answer: a call whose agent's life ended may have taken effect."""
    while True:
        try:
            return await ask()
        except OutcomeUnknown:
            await asyncio.sleep(0.05)


async def everything(client: Client) -> None:
    """A little of everything, whose effects are each there once."""
    busy = client.agent(Busybody, "b")
    await persist(busy.begin)
    assert await persist(busy.wait) == "completed awaited"
    while (done := await persist(busy.done)) != ["errand", "queue", "schedule"]:
        assert len(done) == len(set(done))
        await asyncio.sleep(0.5)
    while await persist(busy.all_done) != ["errand", "queue", "schedule", "tell"]:
        await asyncio.sleep(0.5)
    await persist(busy.end_kid)
    await asyncio.sleep(20)
    assert await persist(busy.all_done) == ["errand", "queue", "schedule", "tell"]


AGENTS = [
    Plant(Tenant, "wake"),
    Plant(Tenant, "_carry"),
    Plant(Tenant, "_carry", lambda tenant: tenant.name == "awaited"),
    Plant(Tenant, "answer"),
    Plant(Tenant, "signal"),
    Plant(Mailbox, "_handle"),
    Plant(Outbox, "_say"),
    Plant(Outbox, "_done"),
    Plant(StateWatch, "_notify"),
    Plant(Schedules, "_run"),
    Plant(CallbackQueue, "_drain_all"),
    Plant(FiberAgenda, "_attend"),
    Plant(GroupCommit, "_commit_all"),
]
HOSTS = [
    Plant(Host, "_tidy"),
    Plant(Host, "_load"),
    Plant(Tenant, "stop"),
    Plant(Peer, "serve", lambda peer: not peer.peer_id.startswith("client")),
    Plant(Peer, "_exchange", lambda peer: not peer.peer_id.startswith("client")),
]
SUPERVISORS = [
    Plant(Supervisor, "_turns"),
    Plant(Supervisor, "_sweeps"),
    Plant(Supervisor, "_timers"),
    Plant(Heartbeat, "serve"),
    Plant(Pool, "_watch"),
    Plant(Pool, "_start"),
]


def label(value: object) -> str | None:
    return f"{value.owner.__name__}.{value.name}" if isinstance(value, Plant) else None


@pytest.mark.parametrize("plant", AGENTS, ids=label)
def test_an_error_in_a_task_of_an_agent_ends_that_life_and_the_next_one_does_the_work(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    laboratory = converges(everything, plant, monkeypatch)
    assert not laboratory.simulation.crashes, "neither its host nor the supervisor is concerned"


def test_a_task_of_an_agent_that_was_cancelled_ends_that_life_unless_it_is_ending() -> None:
    async def story() -> None:
        failures = list[BaseException]()
        tasks = Tasks(AGENT + "a", failures.append)
        task = tasks.start(asyncio.sleep(60))
        task.cancel()
        await asyncio.wait({task})
        assert [type(each) for each in failures] == [RuntimeError]
        task = tasks.start(asyncio.sleep(60))
        tasks.cancel()
        await asyncio.wait({task})
        assert len(failures) == 1

    asyncio.run(story())


@pytest.mark.parametrize("plant", HOSTS, ids=label)
def test_an_error_in_a_task_of_a_host_ends_the_host_and_its_agents_go_on_elsewhere(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    laboratory = converges(everything, plant, monkeypatch)
    assert len(laboratory.simulation.crashes) == 1
    assert found(laboratory.simulation.crashes[0].error)


@pytest.mark.parametrize("plant", SUPERVISORS, ids=label)
def test_an_error_in_a_task_of_the_supervisor_ends_its_life_and_the_next_one_takes_over(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    laboratory = converges(everything, plant, monkeypatch)
    assert [(crash.process, found(crash.error)) for crash in laboratory.simulation.crashes] == [("supervisor", True)]


def test_a_question_that_fails_is_answered_with_its_error_and_the_supervisor_lives_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(client: Client) -> None:
        await client.run(Doubler, {"n": 1}, run_id="r")
        with pytest.raises(RemoteError, match=PLANTED) as told:
            await client.ask("explain", "r")
        assert isinstance(told.value, KeyError)
        assert await client.ask("explain", "r")

    assert not converges(story, Plant(Queries, "_answer_to"), monkeypatch).simulation.crashes


def test_an_agent_that_cannot_come_up_by_our_fault_says_so_to_who_called_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(client: Client) -> None:
        with pytest.raises(KeyError, match=PLANTED):
            await client.agent(Busybody, "b").done()
        assert await client.agent(Busybody, "b").done() == []

    assert not converges(story, Plant(Tenant, "_come_up"), monkeypatch).simulation.crashes


@pytest.mark.parametrize(
    "plant",
    [Plant(SupervisorClient, "_accept"), Plant(Peer, "serve", is_of_client), Plant(Peer, "_exchange", is_of_client)],
    ids=label,
)
def test_an_error_in_a_task_of_a_client_is_raised_to_everybody_who_waits_and_who_asks_from_then_on(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(client: Client) -> None:
        waiting = asyncio.gather(client.start(Doubler, {"n": 1}), client.ask("ps"), return_exceptions=True)
        assert all(map(found, await waiting))
        with pytest.raises(KeyError, match=PLANTED):
            await client.run(Doubler, {"n": 2})
        await asyncio.sleep(5)

    assert not converges(story, plant, monkeypatch).simulation.crashes
