"""What follows a failed model request: its phase and the kind of the failure give one action.

The phase is how far this attempt had come when it failed. Only calls that the model made count, not the tools that the request offered.

| phase of the failed attempt | lost connection, stall, passing refusal | terminal refusal | aborted by us |
|---|---|---|---|
| P0 nothing received | REPLAY | STOP | STOP |
| P1 reasoning only | REPLAY, the reasoning is withdrawn | STOP | STOP |
| P2 text, no call | CONTINUE after the text | STOP | STOP, text kept |
| P3 a call is being written | REPLAY; CONTINUE if text was shown | STOP | STOP, it never ran |
| P4 a call is complete, not dispatched | CONTINUE; the call is dispatched, once | STOP, it never ran | STOP, it never ran |
| P5 a tool is at work | drain, CONTINUE | drain, STOP | STOP |
| P6 a tool has finished | CONTINUE | STOP, result kept | STOP |
| P7 several calls, in several states | each call as above; CONTINUE | drain, STOP | STOP |
| P8 a tool has died | CONTINUE with the caution, never run again | STOP, caution kept | STOP |
| P9 nothing received, after tools of this turn | REPLAY of this request | STOP | STOP |
| any, budget spent | drain, EXHAUSTED | – | – |

REPLAY sends the same request and withdraws what the attempt had shown. CONTINUE sends a request made from what is left. Both use one budget
per turn, which is stored in the turn's row: five failures in a row without durable progress, and twenty in all. A response that ended and
held no answer is the third in a row at most: its connection was fine, and a page for people or a server that cannot stream stays what it
is. The drain gives each tool its own deadline, and is no failure.

A call that waits for a person goes on waiting. The outcome of a tool that the provider runs cannot be found out, so such an attempt stops.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from perdure.policies.failures import Failure, FailureKind

CONSECUTIVE_MAX = 5
NO_ANSWER_MAX = 2
FAILURES_MAX = 20


# A call is READY when its arguments are complete; until then it is being written.
class CallStage(StrEnum):
    WRITING = "writing"
    READY = "ready"
    ASKED = "asked"
    RUNNING = "running"
    FINISHED = "finished"
    DEAD = "dead"


# One call of the failed attempt. `effect` is declared by its tool: `pure`, `idempotent` or `once`; unknown is `once`.
@dataclass(frozen=True)
class CallFacts:
    call_id: str
    tool: str
    stage: CallStage
    effect: str = "once"
    is_providers: bool = False

    @property
    def may_have_effects(self) -> bool:
        return self.effect != "pure" and self.stage in _STARTED


_STARTED = frozenset({CallStage.RUNNING, CallStage.FINISHED, CallStage.DEAD})


# `is_after_tools`: an earlier step of the turn had settled calls.
@dataclass(frozen=True)
class AttemptFacts:
    has_text: bool = False
    has_reasoning: bool = False
    calls: tuple[CallFacts, ...] = ()
    is_after_tools: bool = False


class Phase(StrEnum):
    NOTHING = "P0"
    REASONING = "P1"
    TEXT = "P2"
    CALL_WRITING = "P3"
    CALL_READY = "P4"
    TOOL_RUNNING = "P5"
    TOOL_FINISHED = "P6"
    SEVERAL_CALLS = "P7"
    TOOL_DEAD = "P8"
    NOTHING_AFTER_TOOLS = "P9"


_PHASE_OF_STAGE = {
    CallStage.WRITING: Phase.CALL_WRITING,
    CallStage.READY: Phase.CALL_READY,
    CallStage.ASKED: Phase.CALL_READY,
    CallStage.RUNNING: Phase.TOOL_RUNNING,
    CallStage.FINISHED: Phase.TOOL_FINISHED,
    CallStage.DEAD: Phase.TOOL_DEAD,
}


def phase_of(facts: AttemptFacts) -> Phase:
    # Calls outrank text, and text outranks reasoning.
    phases = {_PHASE_OF_STAGE[call.stage] for call in facts.calls}
    if len(phases) > 1:
        return Phase.SEVERAL_CALLS
    if phases:
        return phases.pop()
    if facts.has_text:
        return Phase.TEXT
    if facts.has_reasoning:
        return Phase.REASONING
    return Phase.NOTHING_AFTER_TOOLS if facts.is_after_tools else Phase.NOTHING


# The failures of one turn: in a row without durable progress (a complete step or a new tool result), and in all.
@dataclass(frozen=True)
class TurnBudget:
    consecutive: int = 0
    total: int = 0

    def is_spent(self, failure: Failure) -> bool:
        in_a_row = NO_ANSWER_MAX if failure.kind is FailureKind.NO_ANSWER else CONSECUTIVE_MAX
        return self.consecutive >= in_a_row or self.total >= FAILURES_MAX

    def charged(self, failure: Failure) -> TurnBudget:
        if not failure.burns_budget:
            return self
        return TurnBudget(self.consecutive + 1, self.total + 1)


class Mode(StrEnum):
    REPLAY = "replay"
    CONTINUE = "continue"
    STOP = "stop"
    EXHAUSTED = "exhausted"


@dataclass(frozen=True)
class TurnAction:
    """What to do now: wait for the tools that are at work, if it `drains`, then what `mode` says.

    `budget` is stored with the decision. Its `consecutive` is the attempt number for the next pause.
    """

    mode: Mode
    phase: Phase
    budget: TurnBudget
    drains: bool = False

    @property
    def withdraws(self) -> bool:
        return self.mode is Mode.REPLAY  # what the attempt had shown


def decide(facts: AttemptFacts, failure: Failure, budget: TurnBudget) -> TurnAction:
    ours = [call.stage for call in facts.calls if not call.is_providers]
    plain = TurnAction(Mode.STOP, phase_of(facts), budget, drains=CallStage.RUNNING in ours)
    if failure.kind is FailureKind.ABORTED:
        return replace(plain, drains=False)
    # The outcome of a tool that the provider runs cannot be found out.
    is_unknown = any(call.is_providers and call.stage is not CallStage.FINISHED for call in facts.calls)
    if is_unknown or not failure.is_transient:
        return plain
    if failure.burns_budget and budget.is_spent(failure):
        return replace(plain, mode=Mode.EXHAUSTED)
    has_complete_call = any(call.stage is not CallStage.WRITING for call in facts.calls)
    mode = Mode.CONTINUE if has_complete_call or facts.has_text else Mode.REPLAY
    return replace(plain, mode=mode, budget=budget.charged(failure))
