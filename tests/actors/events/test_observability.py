"""Events reach those who listen on their channel, and nobody who listens can do harm."""

from __future__ import annotations

import logging
import pickle
from threading import Thread
from typing import Any

import pytest

from perdure.actors import Killed
from perdure.actors.events.observability import (
    Channel,
    Channels,
    EventType,
    Metrics,
    NoMetrics,
    ObservedEvent,
    emit,
    subscribe,
)
from perdure.ledger import BadRequest, agent_id


@pytest.mark.shows(agent_tools="61", sub_agents="B163 B165")
def test_an_event_of_a_run_and_one_of_a_fiber_are_heard_on_their_own_channels_only() -> None:
    """Case 61: `agent_tool:recovery:row` reaches only the agent_tool channel, `fiber:*` only the fiber channel."""
    channels = Channels()
    heard: dict[str, list[str]] = {channel.value: [] for channel in Channel}
    for channel, types in heard.items():
        channels.subscribe(channel, lambda event, types=types: types.append(event.type))  # type: ignore[misc]
    channels.emit("agent_tool", EventType.AGENT_TOOL_RECOVERY_ROW, payload={"run_id": "r"}, at_ms=1)
    channels.emit("fiber", "fiber:run:started", payload={"fiber_id": "f"}, at_ms=2)
    assert heard.pop("agent_tool") == ["agent_tool:recovery:row"]
    assert heard.pop("fiber") == ["fiber:run:started"]
    assert not any(heard.values())


def test_the_envelope_says_what_happened_to_whom_and_when() -> None:
    channels, heard = Channels(), list[ObservedEvent]()
    channels.subscribe(Channel.AGENT_TOOL, heard.append)
    payload = {"run_id": "r", "reason": "no-progress", "child_still_running": True}
    channels.emit(
        "agent_tool", EventType.AGENT_TOOL_GAVE_UP, agent=agent_id("jobs:Importer", "nightly"), payload=payload, at_ms=7
    )
    assert heard == [ObservedEvent("agent_tool:gave_up", "jobs:Importer", "nightly", payload, 7)]
    assert type(heard[0].type) is str
    assert pickle.loads(pickle.dumps(heard[0])) == heard[0]
    with pytest.raises(AttributeError):
        heard[0].at_ms = 8  # type: ignore[misc]


def test_every_process_has_one_set_of_channels_behind_the_two_functions() -> None:
    heard: list[ObservedEvent] = []
    unsubscribe = subscribe("supervisor", heard.append)
    emit("supervisor", EventType.SUPERVISOR_BOOTED, payload={"epoch": 3}, at_ms=1)
    unsubscribe()
    emit("supervisor", EventType.SUPERVISOR_HOST_LOST, payload={"host_id": "h"}, at_ms=2)
    assert [event.payload for event in heard] == [{"epoch": 3}]


@pytest.mark.shows(sub_agents="B164")
def test_a_subscription_ends_once_and_leaves_the_same_callback_subscribed_elsewhere() -> None:
    channels, heard = Channels(), list[ObservedEvent]()
    first, second = channels.subscribe("chat", heard.append), channels.subscribe("chat", heard.append)
    first()
    first()
    channels.emit("chat", "chat:turn:start", at_ms=1)
    assert len(heard) == 1
    second()
    channels.emit("chat", "chat:turn:start", at_ms=2)
    assert len(heard) == 1


def test_a_raising_subscriber_neither_breaks_the_emitter_nor_deafens_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Spec W-54. It is reported once, whatever it goes on to do."""
    channels, heard = Channels(), list[int]()

    def broken(event: ObservedEvent) -> None:
        raise RuntimeError(f"cannot take {event.type}")

    channels.subscribe("agent_tool", broken)
    channels.subscribe("agent_tool", lambda event: heard.append(event.at_ms))
    with caplog.at_level(logging.WARNING, logger="perdure.actors.events.observability"):
        for at_ms in range(3):
            channels.emit("agent_tool", EventType.AGENT_TOOL_FINISHED, at_ms=at_ms)
    assert heard == [0, 1, 2]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "agent_tool:finished" in caplog.text
    assert "cannot take" in caplog.text


def test_death_is_not_an_error_of_the_subscriber() -> None:
    """A simulated kill derives from BaseException; swallowing it would keep a dead process alive."""

    def dies(_event: ObservedEvent) -> None:
        raise Killed

    channels = Channels()
    channels.subscribe("chat", dies)
    with pytest.raises(Killed):
        channels.emit("chat", "chat:turn:start", at_ms=1)


def test_a_subscriber_may_subscribe_emit_and_leave_while_it_is_told() -> None:
    channels, heard = Channels(), list[str]()

    def meddler(event: ObservedEvent) -> None:
        leave()
        channels.subscribe("chat", lambda later: heard.append(f"late {later.type}"))
        channels.emit("chat", "second", at_ms=event.at_ms)

    leave = channels.subscribe("chat", meddler)
    channels.subscribe("chat", lambda event: heard.append(event.type))
    channels.emit("chat", "first", at_ms=1)
    assert heard == ["second", "late second", "first"]


def test_a_subscriber_that_changes_the_payload_changes_only_its_own() -> None:
    channels, heard = Channels(), list[Any]()
    payload = {"run_id": "r"}
    channels.subscribe("agent_tool", lambda event: event.payload.clear())  # type: ignore[attr-defined]
    channels.subscribe("agent_tool", lambda event: heard.append(event.payload))
    channels.emit("agent_tool", EventType.AGENT_TOOL_STARTED, payload=payload, at_ms=1)
    assert heard == [{"run_id": "r"}]
    assert payload == {"run_id": "r"}


@pytest.mark.parametrize("channel", ["agent-tool", "", None, ["chat"]])
def test_an_unknown_channel_is_refused_by_name(channel: Any) -> None:
    channels = Channels()
    for attempt in (lambda: channels.subscribe(channel, print), lambda: channels.emit(channel, "x", at_ms=1)):
        with pytest.raises(BadRequest) as refusal:
            attempt()
        assert refusal.value.field == "channel"
        assert "agent_tool" in str(refusal.value)


def test_a_callback_that_cannot_be_called_or_would_never_be_awaited_is_refused() -> None:
    async def later(_event: ObservedEvent) -> None: ...

    for callback in (None, "print", later):
        with pytest.raises(BadRequest) as refusal:
            Channels().subscribe("chat", callback)  # type: ignore[arg-type]
        assert refusal.value.field == "callback"


def test_threads_may_subscribe_emit_and_leave_at_once() -> None:
    channels, heard = Channels(), list[int]()
    channels.subscribe("fiber", lambda event: heard.append(event.at_ms))

    def work() -> None:
        for at_ms in range(200):
            leave = channels.subscribe("fiber", lambda _event: None)
            channels.emit("fiber", "fiber:run:started", at_ms=at_ms)
            leave()

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(heard) == sorted(list(range(200)) * 4)


def test_every_transition_of_a_run_has_an_event() -> None:
    """Spec W-41: dispatch, finish, give-up, cancel, milestone and clear have events like everything else."""
    types = {event.value for event in EventType}
    for what in "dispatched started attempt finished cancelled gave_up milestone cleared".split():
        assert f"agent_tool:{what}" in types
    assert all(each.partition(":")[0] in set(Channel) for each in types)


# --- metrics


def test_what_nobody_wants_to_know_may_be_counted_all_the_same() -> None:
    metrics: Metrics = NoMetrics()
    metrics.count("a")
    metrics.observe("b", 1)
    metrics.gauge("c", 2, {"tag": "value"})
