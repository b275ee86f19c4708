"""Where a turn stands, read from its events alone: so a lost connection and a death are mended by the same rules.

A step is one request to the model with everything that it said. `start-step` opens it, `finish-step` closes it with the reason that
the provider gave, and a step without it broke off. What becomes of a broken step (transport spec §4.1):

    arguments still being written    withdrawn: nobody may act on half of them; before a whole call they stay, and are said to be cut off
    reasoning, and nothing after it  withdrawn: half a signed thought cannot be sent back
    text                             kept, and the model goes on in the very same part
    a call with whole arguments      kept; the ledger knows whether it began, and it begins at most once
    nothing                          withdrawn, and the same request is sent again
"""

from __future__ import annotations

from typing import Any

from perdure.actors.chat.store import Event
from perdure.actors.chat.stream import Stream
from perdure.actors.events.message_parts import BROKEN, RETRACT, Part
from perdure.policies import Fate, Remains, caution, is_tool_part, tool_name


def last_boundary(events: list[Event]) -> Event | None:
    """The last event that opened or closed a step, of steps that were not withdrawn."""
    withdrawn = 0
    for event in reversed(events):
        if event.get("type") == RETRACT and event["data"].get("step"):
            withdrawn += 1
        elif event.get("type") == "start-step" and withdrawn:
            withdrawn -= 1
        elif event.get("type") in ("start-step", "finish-step") and not withdrawn:
            return event
    return None


def is_broken(stream: Stream) -> bool:
    """Whether the last step broke off."""
    boundary = last_boundary(stream.events)
    return boundary is not None and boundary["type"] == "start-step"


def last_step(parts: list[Part]) -> list[Part]:
    """The parts of the last step."""
    return parts[step_base(parts) + 1 :]


def step_base(parts: list[Part]) -> int:
    """Where the last step begins; -1 if there is none."""
    return max((index for index, part in enumerate(parts) if part["type"] == "step-start"), default=-1)


def steps_taken(stream: Stream) -> int:
    """How many steps this turn has taken, in all its lives; one that broke off in its text is gone on with, and not counted yet."""
    begun: int = sum(part["type"] == "step-start" for part in stream.parts[stream.turn.base :])
    return begun - is_broken(stream)


def is_answered(stream: Stream) -> bool:
    """Whether the model has said all it wants: its last step closed of itself and called no tool."""
    boundary = last_boundary(stream.events)
    if boundary is None or boundary["type"] == "start-step" or boundary.get("finishReason") == BROKEN:
        return False
    return not any(is_tool_part(part) and not part.get("providerExecuted") for part in last_step(stream.parts))


def open_text(parts: list[Part]) -> Part | None:
    """The text that broke off and can be gone on with: the last part of all."""
    last = parts[-1] if parts else None
    is_open = last is not None and last["type"] == "text" and last.get("state") == "streaming" and last.get("text")
    return last if is_open else None


def mend(stream: Stream, *, replay: bool) -> None:
    """Make a broken step a legal half of the message, by events. With `replay` all of it is withdrawn that no call forbids."""
    if not is_broken(stream):
        return
    base, parts = step_base(stream.parts), stream.parts
    kept = _kept(parts[base + 1 :], replay=replay)
    if not kept:
        _retract(stream, base, step=True)
        return
    if base + 1 + kept < len(parts):
        _retract(stream, base + 1 + kept)
    for part in stream.parts[base + 1 :]:
        if is_tool_part(part) and part.get("state") == "input-streaming":
            words = caution(Fate.CUT_OFF, Remains(tool=tool_name(part), call_id=part["toolCallId"]))
            stream.add({"type": "tool-input-error", "toolCallId": part["toolCallId"], "errorText": words})
    if open_text(stream.parts) is None:
        stream.add({"type": "finish-step", "finishReason": BROKEN})


def _kept(step: list[Part], *, replay: bool) -> int:
    """How many of the parts of a broken step stay."""
    calls = [index for index, part in enumerate(step) if is_tool_part(part) and part.get("state") != "input-streaming"]
    if replay:
        return calls[-1] + 1 if calls else 0
    kept = len(step)
    while kept and _is_void(step[kept - 1]):
        kept -= 1
    return kept


def _is_void(part: dict[str, Any]) -> bool:
    if is_tool_part(part):
        return part.get("state") == "input-streaming"
    return part["type"] == "reasoning" or (part["type"] == "text" and not part.get("text"))


def _retract(stream: Stream, count: int, *, step: bool = False) -> None:
    """Withdraw the parts from this one on; with `step` the opening of the step is among them."""
    stream.add({"type": RETRACT, "data": {"parts": count, "step": step}, "transient": True})
