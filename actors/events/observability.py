"""What the runtime lets an operator see: named events on channels, and numbers.

Events are for people and their tools; nothing in Perdure depends on one being heard. So a subscriber cannot hurt: it
is called after the fact, in the process where the thing happened, and what it raises is logged once and goes no
further (spec W-54). What must not be lost is a fact in the ledger; what is here may be lost with its process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from inspect import iscoroutinefunction
from threading import Lock
from typing import Any, Protocol

from perdure.ledger import BadRequest, name_of, type_of

_log = logging.getLogger(__name__)


class Channel(StrEnum):
    """Where events go. An event is heard on its own channel only (spec case 61)."""

    AGENT_TOOL = "agent_tool"
    CHAT = "chat"
    TRANSCRIPT = "transcript"
    FIBER = "fiber"
    SCHEDULE = "schedule"
    MESSENGER = "messenger"
    SUPERVISOR = "supervisor"


class EventType(StrEnum):
    """The events of runs and of the supervisor: every transition has one (spec W-41). The payload stands beside each.

    `run_id`, `agent_type` (the child's) and `attempt` are in the payload of every event of a run; the event's agent is the parent, or
    the child where none asked. A `reason` is always one of the typed reasons, never prose; prose is under `error` (spec W-40).
    """

    AGENT_TOOL_DISPATCHED = "agent_tool:dispatched"  # detached, parent_tool_call_id
    AGENT_TOOL_ATTEMPT = "agent_tool:attempt"  # host_id: it was given a place
    AGENT_TOOL_STARTED = "agent_tool:started"  # host_id: the attempt is at work there
    AGENT_TOOL_RECOVERY_ROW = "agent_tool:recovery:row"  # status, error, elapsed_ms: the attempt was lost
    AGENT_TOOL_RECOVERY_REATTACH = "agent_tool:recovery:reattach"  # its parent came back to it
    AGENT_TOOL_FINISHED = "agent_tool:finished"  # status, elapsed_ms, error
    AGENT_TOOL_CANCELLED = "agent_tool:cancelled"  # the cancel's text under `error`
    AGENT_TOOL_GAVE_UP = "agent_tool:gave_up"  # reason, child_still_running, error
    AGENT_TOOL_MILESTONE = "agent_tool:milestone"  # name, milestone_sequence
    AGENT_TOOL_CLEARED = "agent_tool:cleared"  # status at the time
    AGENT_TOOL_DELIVERY_FAILED = (
        "agent_tool:detached:delivery_failed"  # mail_id, kind, handler, tries, error; no attempt
    )
    AGENT_TOOL_PARKED = "agent_tool:detached:parked"  # the same

    SUPERVISOR_BOOTED = "supervisor:booted"  # epoch, live_runs, elapsed_ms, findings
    SUPERVISOR_HOST_SPAWNED = "supervisor:host_spawned"  # host_id, pool
    SUPERVISOR_HOST_LOST = "supervisor:host_lost"  # host_id, tenants, cause
    SUPERVISOR_OVERLOADED = "supervisor:overloaded"  # waiting, retry_after_ms


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, and to whom. `at_ms` is the emitter's wall clock."""

    type: str
    agent_type: str
    agent_name: str
    payload: Mapping[str, Any]
    at_ms: int


Callback = Callable[[Event], object]


@dataclass(eq=False, slots=True)
class _Subscriber:
    """One subscription; the same callback may be subscribed twice, so identity is that of this object."""

    callback: Callback
    warned: bool = False


class Channels:
    """The channels with their subscribers. A process has one set, behind `subscribe` and `emit`; tests make one."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._subscribers: dict[str, tuple[_Subscriber, ...]] = {channel.value: () for channel in Channel}

    def subscribe(self, channel: str, callback: Callback) -> Callable[[], None]:
        """Call `callback` with every `Event` that happens on the channel in this process from now on.

        The callback runs in the emitter's thread, so it must be quick, and synchronous. Returns the function that
        ends the subscription; calling it again does nothing. Raises `BadRequest` for an unknown channel and for a
        callback that cannot be called or would have to be awaited.
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
        self,
        channel: str,
        type: str,
        *,
        agent: str = "",
        payload: Mapping[str, Any] | None = None,
        at_ms: int,
    ) -> None:
        """Tell the channel's subscribers what happened to the agent at an address. Costs next to nothing unheard."""
        self._check(channel)
        subscribers = self._subscribers[channel]  # a tuple: who comes or goes meanwhile does not disturb this round
        if not subscribers:
            return
        for subscriber in subscribers:
            event = Event(str(type), type_of(agent), name_of(agent), dict(payload or {}), at_ms)
            _tell(subscriber, event)

    def _check(self, channel: str) -> None:
        if not isinstance(channel, str) or channel not in self._subscribers:
            raise BadRequest("channel", f"{channel!r} is none of {', '.join(self._subscribers)}")


def _tell(subscriber: _Subscriber, event: Event) -> None:
    try:
        subscriber.callback(event)
    except Exception:
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
    """Where numbers go. Names are snake_case with their unit at the end; a series is a name with its tags."""

    def count(self, name: str, value: float = 1, tags: Tags | None = None) -> None:
        """Add to a number that only grows."""

    def observe(self, name: str, value: float, tags: Tags | None = None) -> None:
        """Add one observation to a distribution."""

    def gauge(self, name: str, value: float, tags: Tags | None = None) -> None:
        """Set a number that goes up and down, such as the detached runs that are alive (spec W-53)."""


class NoMetrics:
    """Nobody counts."""

    def count(self, name: str, value: float = 1, tags: Tags | None = None) -> None:
        """Do nothing."""

    def observe(self, name: str, value: float, tags: Tags | None = None) -> None:
        """Do nothing."""

    def gauge(self, name: str, value: float, tags: Tags | None = None) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What is kept of a distribution, however many observations it had."""

    count: int
    total: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Tally:
    """All series at one moment. The keys look like `runs_ended{status=completed}`, the tags in alphabetical order."""

    counts: Mapping[str, float] = field(default_factory=dict)
    observations: Mapping[str, Observed] = field(default_factory=dict)
    gauges: Mapping[str, float] = field(default_factory=dict)


class TallyMetrics:
    """Counts in memory: for tests, simulations and the command's live table. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: dict[str, float] = {}
        self._observations: dict[str, Observed] = {}
        self._gauges: dict[str, float] = {}

    def count(self, name: str, value: float = 1, tags: Tags | None = None) -> None:
        """Add to a number that only grows."""
        series = _series(name, tags)
        with self._lock:
            self._counts[series] = self._counts.get(series, 0) + value

    def observe(self, name: str, value: float, tags: Tags | None = None) -> None:
        """Add one observation to a distribution."""
        series = _series(name, tags)
        with self._lock:
            seen = self._observations.get(series, Observed(0, 0, value, value))
            self._observations[series] = Observed(
                seen.count + 1, seen.total + value, min(seen.least, value), max(seen.most, value)
            )

    def gauge(self, name: str, value: float, tags: Tags | None = None) -> None:
        """Set a number that goes up and down."""
        with self._lock:
            self._gauges[_series(name, tags)] = value

    def snapshot(self) -> Tally:
        """Everything counted so far; it does not change any more."""
        with self._lock:
            return Tally(dict(self._counts), dict(self._observations), dict(self._gauges))


def _series(name: str, tags: Tags | None) -> str:
    if not tags:
        return name
    return f"{name}{{{','.join(f'{tag}={tags[tag]}' for tag in sorted(tags))}}}"
