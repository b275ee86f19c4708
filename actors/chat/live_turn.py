"""A turn while this life of its agent has to do with it, and where it stands.

Where a turn stands is read from its events alone, so a lost connection and a death are mended by the same rules. A step is one request to
the model with everything that it said. `start-step` opens it, `finish-step` closes it with the reason that the provider gave, and a step
without that broke off. What becomes of a broken step (transport spec §4.1):

    arguments still being written    withdrawn: nobody may act on half of them; before a whole call they stay, and are said to be cut off
    reasoning, and nothing after it  withdrawn: half a signed thought cannot be sent back
    text                             kept, and the model goes on in the very same part
    a call with whole arguments      kept; the ledger knows whether it began, and it begins at most once
    nothing                          withdrawn, and the same request is sent again
"""

from __future__ import annotations

from perdure.actors.chat.conversation_state import ConversationState
from perdure.actors.chat.toolbox import Toolbox
from perdure.actors.chat.turn import Turn
from perdure.actors.events.message_parts import BROKEN, RETRACT
from perdure.policies import CallEvidence, Event, NoResult, Part, caution, is_tool_part, tool_name


class LiveTurn:
    """One turn in this life of its agent: its row, its stream, and its tools."""

    def __init__(self, state: ConversationState, turn: Turn) -> None:
        self.turn, self.stream = turn, state.stream_of(turn)
        self.toolbox = Toolbox(state, turn, self.stream)

    @property
    def parts(self) -> list[Part]:
        """The parts of its message so far."""
        return self.stream.parts

    @property
    def own_parts(self) -> list[Part]:
        """Those that this turn wrote: of a message that it goes on with, the parts after the earlier ones."""
        return self.stream.parts[self.turn.base :]

    @property
    def is_broken(self) -> bool:
        """Whether the last step broke off."""
        boundary = last_boundary(self.stream.events)
        return boundary is not None and boundary["type"] == "start-step"

    @property
    def steps_taken(self) -> int:
        """How many steps this turn has taken, in all its lives. A step that broke off in its text goes on, and is not counted yet."""
        begun: int = sum(part["type"] == "step-start" for part in self.own_parts)
        return begun - self.is_broken

    @property
    def is_answered(self) -> bool:
        """Whether the model has said all it wants: its last step closed of itself and called no tool."""
        boundary = last_boundary(self.stream.events)
        if boundary is None or boundary["type"] == "start-step" or boundary.get("finishReason") == BROKEN:
            return False
        return not any(is_tool_part(part) and not part.get("providerExecuted") for part in last_step(self.parts))

    @property
    def open_text(self) -> Part | None:
        """The text that broke off and can be gone on with: the last part of all."""
        last = self.parts[-1] if self.parts else None
        is_open = last is not None and last["type"] == "text" and last.get("state") == "streaming" and last.get("text")
        return last if is_open else None

    def mend(self, *, replay: bool = False) -> None:
        """Make a broken step a legal half of the message, by events. With `replay` all of it is withdrawn that no call forbids."""
        if not self.is_broken:
            return
        base, parts = step_base(self.parts), self.parts
        kept = _kept(parts[base + 1 :], replay=replay)
        if not kept:
            self._retract(base, step=True)
            return
        if base + 1 + kept < len(parts):
            self._retract(base + 1 + kept)
        for part in self.parts[base + 1 :]:
            if is_tool_part(part) and part.get("state") == "input-streaming":
                words = caution(NoResult.CUT_OFF, CallEvidence(tool=tool_name(part), call_id=part["toolCallId"]))
                self.stream.add({"type": "tool-input-error", "toolCallId": part["toolCallId"], "errorText": words})
        if self.open_text is None:
            self.stream.add({"type": "finish-step", "finishReason": BROKEN})

    def _retract(self, count: int, *, step: bool = False) -> None:
        """Withdraw the parts from this one on; with `step` the opening of the step is among them."""
        self.stream.add({"type": RETRACT, "data": {"parts": count, "step": step}, "transient": True})


def last_boundary(events: list[Event]) -> Event | None:
    """The last event that opened or closed a step, of steps that were not withdrawn."""
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


def last_step(parts: list[Part]) -> list[Part]:
    """The parts of the last step."""
    return parts[step_base(parts) + 1 :]


def step_base(parts: list[Part]) -> int:
    """Where the last step begins; -1 if there is none."""
    return max((index for index, part in enumerate(parts) if part["type"] == "step-start"), default=-1)


def _kept(step: list[Part], *, replay: bool) -> int:
    """How many of the parts of a broken step stay."""
    calls = [index for index, part in enumerate(step) if is_tool_part(part) and part.get("state") != "input-streaming"]
    if replay:
        return calls[-1] + 1 if calls else 0
    kept = len(step)
    while kept and _is_void(step[kept - 1]):
        kept -= 1
    return kept


def _is_void(part: Part) -> bool:
    if is_tool_part(part):
        return part.get("state") == "input-streaming"
    return part["type"] == "reasoning" or (part["type"] == "text" and not part.get("text"))
