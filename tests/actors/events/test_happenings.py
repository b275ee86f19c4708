"""Who subscribes hears what happens in the whole runtime, with the payload that is promised, and can do no harm."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest

from perdure.actors import Agent, exposed
from perdure.actors.events.observability import EventType, ObservedEvent, emit
from perdure.ledger import Overloaded
from tests.actors.cast import Boss, Sleeper, Talker
from tests.actors.crew import Clumsy
from tests.actors.stories import settled
from tests.kit import ROOMY, Stage, address, play, staged

RUN = {"run_id", "agent_type", "attempt"}
MAIL = {"run_id", "agent_type", "mail_id", "kind", "handler", "tries", "error"}
PROMISED: dict[str, set[str]] = {
    EventType.AGENT_TOOL_DISPATCHED: RUN | {"detached", "parent_tool_call_id"},
    EventType.AGENT_TOOL_ATTEMPT: RUN | {"host_id"},
    EventType.AGENT_TOOL_STARTED: RUN | {"host_id"},
    EventType.AGENT_TOOL_RECOVERY_ROW: RUN | {"status", "error", "elapsed_ms"},
    EventType.AGENT_TOOL_RECOVERY_REATTACH: RUN,
    EventType.AGENT_TOOL_FINISHED: RUN | {"status", "elapsed_ms", "error"},
    EventType.AGENT_TOOL_CANCELLED: RUN | {"error"},
    EventType.AGENT_TOOL_GAVE_UP: RUN | {"reason", "child_still_running", "error"},
    EventType.AGENT_TOOL_MILESTONE: RUN | {"name", "milestone_sequence"},
    EventType.AGENT_TOOL_CLEARED: RUN | {"status"},
    EventType.AGENT_TOOL_DELIVERY_FAILED: MAIL,
    EventType.AGENT_TOOL_PARKED: MAIL,
    EventType.SUPERVISOR_BOOTED: {"epoch", "live_runs", "elapsed_ms", "findings"},
    EventType.SUPERVISOR_HOST_SPAWNED: {"host_id", "pool"},
    EventType.SUPERVISOR_HOST_LOST: {"host_id", "tenants", "cause"},
    EventType.SUPERVISOR_HOST_BLOCKED: {"host_id", "method", "stack"},
    EventType.SUPERVISOR_OVERLOADED: {"waiting", "retry_after_ms"},
}


class Ears:
    """Hears everything on some channels."""

    def __init__(self, stage: Stage, *channels: str) -> None:
        self.events: list[ObservedEvent] = []
        self.leave = [stage.client.subscribe(channel, self.events.append) for channel in channels]

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.events]

    def of(self, type: str) -> list[dict[str, Any]]:
        return [dict(event.payload) for event in self.events if event.type == type]


@pytest.mark.shows(sub_agents="B173")
@staged(limits=replace(ROOMY, waiting_max=20, pack_max=2))
async def test_every_event_is_told_with_the_payload_that_is_promised(stage: Stage) -> None:
    ears = Ears(stage, "agent_tool", "supervisor")
    await stage.call(Boss, "detach", "Sleeper", 3_600_000, "given up", {"max_budget_ms": 500})
    await settled(stage, Boss, 1, quiet_s=1)
    await stage.call(Boss, "cancel", "given up")
    signals: list[dict[str, Any]] = [{"milestone": "half", "after_ms": 3_000}, {"fraction": 1.0}]
    telling = asyncio.create_task(stage.call(Boss, "wait_for", "Talker", signals, "told"))
    await stage.until(lambda: stage.status("told") == "running")
    stage.kill_host_of(address(Talker, "told"))
    await telling
    await stage.call(Boss, "wait_for", "Failing", "no", "failed")
    Clumsy.failures = 1
    await stage.call(Clumsy, "detach", "Sleeper", 10, "poison", {"on_finish": "on_poison"})
    await stage.until(lambda: stage.deliveries()["parked"] == 1)
    waiting = asyncio.create_task(stage.call(Boss, "wait_for", "Sleeper", 30_000, "again"))
    await stage.until(lambda: stage.status("again") == "running")
    stage.simulation.hang(stage.run("again").host_id, 10_000, culprit=address(Sleeper, "again"))
    await asyncio.sleep(10)
    stage.kill_host_of(address(Boss, "p"))
    waiting.cancel()
    await stage.until(lambda: not stage.host_of(address(Boss, "p")))
    stage.simulation.kill("supervisor")
    await asyncio.sleep(5)
    patient = asyncio.create_task(stage.call(Boss, "wait_for", "Sleeper", 30_000, "again"))
    await patient
    await stage.call(Boss, "clear")
    with pytest.raises(Overloaded):
        await asyncio.gather(*(stage.client.start(Sleeper, 10, run_id=f"s{n}") for n in range(40)))
    await asyncio.sleep(1)
    assert {event.type: set(event.payload) for event in ears.events} == PROMISED
    assert {event.agent_name for event in ears.events if event.type == EventType.AGENT_TOOL_MILESTONE} == {"p"}
    assert {kept["error"] for kept in ears.of(EventType.AGENT_TOOL_FINISHED)} == {"", "ValueError: no"}
    assert [kept["handler"] for kept in ears.of(EventType.AGENT_TOOL_PARKED)] == ["on_poison"]
    assert ears.of(EventType.AGENT_TOOL_GAVE_UP)[0]["reason"] == "budget-exceeded"


async def test_a_run_that_nobody_s_agent_asked_for_is_told_as_its_child_s(stage: Stage) -> None:
    ears = Ears(stage, "agent_tool")
    await stage.client.run(Sleeper, 100, run_id="mine")
    await asyncio.sleep(1)
    assert {(event.agent_type, event.agent_name) for event in ears.events} == {("tests.actors.cast:Sleeper", "mine")}


async def test_the_deaths_of_hosts_and_of_the_supervisor_are_told(stage: Stage) -> None:
    ears = Ears(stage, "supervisor")
    await stage.client.start(Sleeper, 60_000, run_id="s")
    await stage.until(lambda: stage.status("s") == "running")
    stage.kill_host_of(address(Sleeper, "s"))
    await stage.until(lambda: EventType.SUPERVISOR_HOST_LOST in ears.types)
    (lost,) = ears.of(EventType.SUPERVISOR_HOST_LOST)
    assert (lost["tenants"], lost["cause"]) == (1, "killed")
    await stage.until(lambda: EventType.SUPERVISOR_HOST_SPAWNED in ears.types)
    assert ears.of(EventType.SUPERVISOR_HOST_SPAWNED)[-1]["pool"] == ""
    assert EventType.SUPERVISOR_BOOTED not in ears.types, "this life was there before"
    stage.simulation.kill("supervisor")
    await stage.until(lambda: EventType.SUPERVISOR_BOOTED in ears.types)
    (booted,) = ears.of(EventType.SUPERVISOR_BOOTED)
    assert (booted["epoch"], booted["live_runs"], booted["findings"]) == (2, 1, [])


async def test_who_subscribes_twice_is_told_twice_and_each_of_two_only_once(stage: Stage) -> None:
    first, second = Ears(stage, "agent_tool"), Ears(stage, "agent_tool")
    await stage.client.run(Sleeper, 100, run_id="s")
    await asyncio.sleep(1)
    names = [f"agent_tool:{name}" for name in ("dispatched", "attempt", "started", "finished")]
    assert [first.types, second.types] == [names, names]
    first.leave[0]()
    first.leave[0]()
    await stage.client.run(Sleeper, 100, run_id="t")
    await asyncio.sleep(1)
    assert [first.types, second.types] == [names, names * 2]
    second.leave[0]()
    await asyncio.sleep(1)
    assert not stage.laboratory.supervisors[-1].publisher.observers, "nobody is told for nothing"
    third = Ears(stage, "agent_tool")
    await stage.client.run(Sleeper, 100, run_id="u")
    await asyncio.sleep(1)
    assert third.types == names


def test_a_callback_that_raises_breaks_nothing_and_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    async def story(stage: Stage) -> None:
        stage.client.subscribe("agent_tool", lambda event: event.payload["nothing of that name"])
        ears = Ears(stage, "agent_tool")
        assert (await stage.client.run(Sleeper, 100, run_id="s")).ok
        await asyncio.sleep(1)
        assert len(ears.events) == 4

    with caplog.at_level(logging.WARNING, logger="perdure.actors.events.observability"):
        play(story)
    assert len(caplog.records) == 1


class Crier(Agent):
    """Emits on the channel of chats, as a chat agent does."""

    @exposed
    def cry(self, what: Any, agent: str) -> None:
        emit("chat", "chat:turn:start", agent=agent, payload={"what": what}, at_ms=7)

    @exposed
    def cry_badly(self) -> None:
        emit("chat", "chat:turn:start", agent=address(Crier, self.name), payload={"what": object()}, at_ms=7)


async def test_what_happens_in_a_host_s_process_is_heard_by_the_driver(stage: Stage) -> None:
    await cry(stage, "unheard", "one")
    ears = Ears(stage, "chat")
    for name in ("one", "two"):
        await cry(stage, name, name)
    await stage.call(Crier, "cry", "of somebody else", address(Crier, "elsewhere"), name="one")
    await stage.call(Crier, "cry_badly", name="one")
    await asyncio.sleep(1)
    assert [(event.agent_name, event.payload, event.at_ms) for event in ears.events] == [
        ("one", {"what": "one"}, 7),
        ("two", {"what": "two"}, 7),
    ]
    stage.simulation.kill("supervisor")
    await asyncio.sleep(5)
    await cry(stage, "after the death", "one")
    await asyncio.sleep(1)
    assert ears.events[-1].payload == {"what": "after the death"}
    assert len(ears.events) == 3


async def cry(stage: Stage, what: str, name: str) -> None:
    await stage.call(Crier, "cry", what, address(Crier, name), name=name)


async def test_a_follower_hears_the_end_that_came_while_nobody_could_tell_it(stage: Stage) -> None:
    await stage.client.start(Sleeper, 3_000, run_id="s")
    following = asyncio.create_task(collect(stage, "s"))
    await stage.until(lambda: stage.status("s") == "running")
    stage.simulation.partition("client", 20_000)
    stage.simulation.kill("supervisor")
    await stage.ended("s")
    async with asyncio.timeout(60):
        heard = await following
    assert heard[-1]["event"]["kind"] == "finished"
    assert [frame["sequence"] for frame in heard] == list(range(len(heard)))


async def collect(stage: Stage, run_id: str) -> list[dict[str, Any]]:
    return [frame async for frame in stage.client.follow(run_id)]


async def test_a_follower_that_has_left_is_sent_nothing_more(stage: Stage) -> None:
    await stage.client.start(Sleeper, 60_000, run_id="s")
    stream = stage.client.follow("s")
    await anext(stream)
    followers = stage.laboratory.supervisors[-1].publisher.followers
    assert list(followers) == ["s"]
    await stream.aclose()
    await asyncio.sleep(1)
    assert not followers
