"""Lists of the events of a stream (`actors.chat.stream`), read and joined."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from perdure.actors.events.message_parts import RETRACT
from perdure.ledger import pack
from perdure.policies import Event

BATCH_EVENTS_MAX, BATCH_BYTES_MAX = 5_000, 1_000_000
UTF8_MOST = 4  # bytes of one character
_PLAIN = frozenset({"type", "id", "delta"})  # what a delta has that says nothing else
Numbered = TypeVar("Numbered", bound=Mapping[str, object])


def last_boundary(events: list[Event]) -> Event | None:
    """The last `start-step` or `finish-step` of a step that was not withdrawn."""
    withdrawn = 0
    event: Event
    for event in reversed(events):
        kind = event["type"]
        if kind == RETRACT and event["data"].get("step"):
            withdrawn += 1
        elif kind == "start-step" and withdrawn:
            withdrawn -= 1
        elif kind in ("start-step", "finish-step") and not withdrawn:
            return event
    return None


def step_ends(events: list[Event]) -> list[Event | None]:
    """The `finish-step` of each step that was not withdrawn, in order; None for one that is open."""
    ends: list[Event | None] = []
    for event in events:
        kind = event["type"]
        if kind == "start-step":
            ends.append(None)
        elif kind == "finish-step" and ends:
            ends[-1] = event
        elif kind == RETRACT and event["data"].get("step") and ends:
            ends.pop()
    return ends


def batch(events: list[Numbered]) -> list[Numbered]:
    """As many of the first events as one answer should carry, and at least one."""
    size = 0
    for count, event in enumerate(events[:BATCH_EVENTS_MAX]):
        delta = event.get("delta")
        size += len(delta) * UTF8_MOST if isinstance(delta, str) else len(pack(event))
        if size > BATCH_BYTES_MAX:
            return events[: count + 1]
    return events[:BATCH_EVENTS_MAX]


def merged(events: list[Event]) -> list[Event]:
    """The same events with neighbouring deltas of one text joined, so that a long text is not copied once per delta."""
    joined: list[Event] = []
    run: list[str] = []
    for event in events:
        last = joined[-1] if joined and event.get("type") in ("text-delta", "reasoning-delta") else None
        # asked for each delta of a long answer, so it compares no more than it must
        if (
            last is not None
            and last.keys() == _PLAIN == event.keys()
            and last["type"] == event["type"]
            and last["id"] == event["id"]
        ):
            run = run or [joined[-1]["delta"]]
            run.append(event["delta"])
            continue
        _join(joined, run)
        run = []
        joined.append(event)
    _join(joined, run)
    return joined


def _join(joined: list[Event], run: list[str]) -> None:
    if run:
        joined[-1] = {**joined[-1], "delta": "".join(run)}
