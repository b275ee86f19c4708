"""Observability: named events on channels, the events of facts, and metrics.

Nothing in Perdure depends on a subscriber. It is called after the fact, in the process where the event happened, and its errors are logged
once. Events may be lost with their process; facts in the ledger are not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from inspect import iscoroutinefunction
from operator import attrgetter
from threading import Lock
from typing import Any, NamedTuple, Protocol, cast

from perdure.actors.tasks import as_failure
from perdure.ledger import BadRequest, FactRow, MailFailed, Run, View, decode, name_of, type_of
from perdure.policies import JsonObject

_log = logging.getLogger(__name__)


class Channel(StrEnum):
    """Where events go. Subscribers of a channel get the events of that channel only."""

    AGENT_TOOL = "agent_tool"
    CHAT = "chat"
    TRANSCRIPT = "transcript"
    FIBER = "fiber"
    SCHEDULE = "schedule"
    MESSENGER = "messenger"
    SUPERVISOR = "supervisor"


class EventType(StrEnum):
    """The events of runs and of the supervisor, one for every transition. The comment beside each lists its payload.

    The payload of every event of a run has `run_id`, `agent_type` (the child's) and `attempt`; the event's agent is the parent, or
    the child if the run has no parent. `reason` is always one of the typed reasons; free text is under `error`.
    """

    AGENT_TOOL_DISPATCHED = "agent_tool:dispatched"  # detached, parent_tool_call_id
    AGENT_TOOL_ATTEMPT = "agent_tool:attempt"  # host_id: the attempt was placed there
    AGENT_TOOL_STARTED = "agent_tool:started"  # host_id: the attempt runs there
    AGENT_TOOL_RECOVERY_ROW = "agent_tool:recovery:row"  # status, error, elapsed_ms: the attempt was lost
    AGENT_TOOL_RECOVERY_REATTACH = "agent_tool:recovery:reattach"  # the parent attached again
    AGENT_TOOL_FINISHED = "agent_tool:finished"  # status, elapsed_ms, error
    AGENT_TOOL_CANCELLED = "agent_tool:cancelled"  # error: the reason that was given
    AGENT_TOOL_GAVE_UP = "agent_tool:gave_up"  # reason, child_still_running, error
    AGENT_TOOL_MILESTONE = "agent_tool:milestone"  # name, milestone_sequence
    AGENT_TOOL_UNFIT = "agent_tool:unfit"  # error: the run is parked until other code or a person comes
    AGENT_TOOL_RETRIED = "agent_tool:retried"  # it begins again
    AGENT_TOOL_CLEARED = "agent_tool:cleared"  # status at the time
    AGENT_TOOL_DELIVERY_FAILED = (
        "agent_tool:detached:delivery_failed"  # mail_id, kind, handler, tries, error; no attempt
    )
    AGENT_TOOL_PARKED = "agent_tool:detached:parked"  # the same

    SUPERVISOR_BOOTED = "supervisor:booted"  # epoch, live_runs, elapsed_ms, findings
    SUPERVISOR_HOST_SPAWNED = "supervisor:host_spawned"  # host_id, pool
    SUPERVISOR_HOST_LOST = "supervisor:host_lost"  # host_id, tenants, cause
    SUPERVISOR_HOST_BLOCKED = "supervisor:host_blocked"  # host_id, method, stack; the event's agent is at work there
    SUPERVISOR_OVERLOADED = "supervisor:overloaded"  # waiting, retry_after_ms


@dataclass(frozen=True, slots=True)
class ObservedEvent:
    """Something that happened, and to whom. `at_ms` is the emitter's wall clock."""

    type: str
    agent_type: str
    agent_name: str
    payload: Mapping[str, Any]
    at_ms: int


Callback = Callable[[ObservedEvent], object]


@dataclass(eq=False, slots=True)
class _Subscriber:
    # The same callback may be subscribed twice, so subscriptions are compared by identity.
    callback: Callback
    warned: bool = False


class Channels:
    """The channels with their subscribers. Each process has one set, used by `subscribe` and `emit`."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._subscribers: dict[str, tuple[_Subscriber, ...]] = {channel.value: () for channel in Channel}

    def subscribe(self, channel: str, callback: Callback) -> Callable[[], None]:
        """Call `callback` with every `ObservedEvent` of the channel in this process from now on.

        The callback runs in the emitter's thread, so it must be quick and synchronous. Returns the function that ends the subscription;
        calling that again does nothing. Raises `BadRequest` for an unknown channel, and for a callback that is not callable or is a
        coroutine function.
        """
        self._check(channel)
        if not callable(callback):
            raise BadRequest("callback", f"{callback!r} cannot be called")
        if iscoroutinefunction(callback):
            raise BadRequest("callback", "is a coroutine function; subscribers are called, not awaited")
        mine = _Subscriber(callback)
        with self._lock:
            self._subscribers[channel] = (*self._subscribers[channel], mine)

        def unsubscribe() -> None:
            with self._lock:
                self._subscribers[channel] = tuple(each for each in self._subscribers[channel] if each is not mine)

        return unsubscribe

    def emit(
        self, channel: str, type: str, *, agent: str = "", payload: Mapping[str, object] | None = None, at_ms: int
    ) -> None:
        self._check(channel)
        for subscriber in self._subscribers[channel]:  # a tuple: subscriptions made or ended meanwhile do not change it
            event = ObservedEvent(str(type), type_of(agent), name_of(agent), dict(payload or {}), at_ms)
            _tell(subscriber, event)

    def _check(self, channel: str) -> None:
        if not isinstance(channel, str) or channel not in self._subscribers:
            raise BadRequest("channel", f"{channel!r} is none of {', '.join(self._subscribers)}")


def _tell(subscriber: _Subscriber, event: ObservedEvent) -> None:
    try:
        subscriber.callback(event)
    except BaseException as raised:
        if as_failure(raised) is None:
            raise
        if subscriber.warned:
            return
        subscriber.warned = True
        _log.warning(
            "a subscriber raised on %s and was ignored; further errors of it are not reported",
            event.type,
            exc_info=True,
        )


_process = Channels()
subscribe = _process.subscribe
emit = _process.emit


Tags = Mapping[str, str]


class Metrics(Protocol):
    """Where metrics go. Names are snake_case and end with their unit; a series is a name with its tags."""

    def count(self, name: str, value: float = 1, tags: Tags | None = None) -> None:
        """Add to a counter."""

    def observe(self, name: str, value: float, tags: Tags | None = None) -> None:
        """Add an observation to a histogram."""

    def gauge(self, name: str, value: float, tags: Tags | None = None) -> None:
        """Set a gauge."""


class NoMetrics:
    def count(self, name: str, value: float = 1, tags: Tags | None = None) -> None: ...

    observe = gauge = count


# ---------------------------------------------------------------- events of facts
# The event of a fact on the `agent_tool` channel. Its agent is the parent of the run, or the child if no parent asked. `EventType` lists
# the payloads. A `reason` is always typed, and prose is under `error` (spec W-40).


class Happening(NamedTuple):
    # The agent is the one that the event is about.
    type: EventType
    agent: str
    payload: JsonObject


def happening_of(row: FactRow, view: View) -> Happening | None:
    # The view has folded the fact. None if the fact has no event.
    if row.kind == "MailFailed":
        return _of_mail(cast("MailFailed", decode(row.kind, row.body)), view)
    told, run = _TOLD.get(row.kind), view.runs.get(row.subject)
    if told is None or run is None:
        return None
    type, payload = told
    fact = decode(row.kind, row.body)
    attempt = getattr(fact, "attempt", run.attempt)
    always = {"run_id": run.run_id, "agent_type": run.agent_type, "attempt": attempt}
    return Happening(type, run.parent or run.child, always | payload(fact, run, row.at_ms))


def _of_mail(fact: MailFailed, view: View) -> Happening | None:
    mail = view.mail.get(fact.mail_id)
    run = view.runs.get(mail.run_id) if mail is not None else None
    if mail is None or run is None:
        return None
    type = EventType.AGENT_TOOL_PARKED if fact.retry_at_ms is None else EventType.AGENT_TOOL_DELIVERY_FAILED
    payload: JsonObject = {
        "run_id": mail.run_id,
        "agent_type": run.agent_type,
        "mail_id": mail.mail_id,
        "kind": mail.slot,
        "handler": mail.handler,
        "tries": mail.attempts,
        "error": fact.error,
    }
    return Happening(type, mail.recipient, payload)


Payload = Callable[[Any, Run, int], JsonObject]


def _ended(status: str, error: Callable[[Any], str]) -> Payload:
    # The payload of an end, or of a lost attempt; without a `status`, that of the run.
    return lambda fact, run, at_ms: {
        "status": status or str(run.status),
        "elapsed_ms": at_ms - run.requested_at_ms,
        "error": error(fact),
    }


_TOLD: dict[str, tuple[EventType, Payload]] = {
    "RunRequested": (
        EventType.AGENT_TOOL_DISPATCHED,
        lambda _fact, run, _: {
            "detached": not run.is_awaited,
            "parent_tool_call_id": run.options.get("tool_call"),
        },
    ),
    "AttemptStarted": (EventType.AGENT_TOOL_ATTEMPT, lambda fact, *_: {"host_id": fact.host_id}),
    "RunStarted": (EventType.AGENT_TOOL_STARTED, lambda _fact, run, _: {"host_id": run.host_id}),
    "AttemptLost": (EventType.AGENT_TOOL_RECOVERY_ROW, _ended("", attrgetter("cause"))),
    "RunReattached": (EventType.AGENT_TOOL_RECOVERY_REATTACH, lambda *_: {}),
    "RunSucceeded": (EventType.AGENT_TOOL_FINISHED, _ended("completed", lambda _: "")),
    "RunErrored": (EventType.AGENT_TOOL_FINISHED, _ended("error", attrgetter("error"))),
    "RunAborted": (EventType.AGENT_TOOL_CANCELLED, lambda fact, *_: {"error": fact.reason}),
    "RunInterrupted": (
        EventType.AGENT_TOOL_GAVE_UP,
        lambda fact, *_: {
            "reason": fact.reason,
            "child_still_running": fact.child_still_running,
            "error": fact.error,
        },
    ),
    "MilestoneReached": (
        EventType.AGENT_TOOL_MILESTONE,
        lambda fact, *_: {"name": fact.name, "milestone_sequence": fact.number},
    ),
    "RunParked": (EventType.AGENT_TOOL_UNFIT, lambda fact, *_: {"error": fact.error}),
    "RunRetried": (EventType.AGENT_TOOL_RETRIED, lambda *_: {}),
    "RunCleared": (EventType.AGENT_TOOL_CLEARED, lambda _fact, run, _: {"status": str(run.status)}),
}
