"""What follows a failed model request: its phase and the cause give one action.

The phase is how far this attempt had come when it failed. Only calls that the model made count, not the tools that the request offered.

| phase of the failed attempt | lost connection, stall | passing refusal | terminal refusal | cancel, clear |
|---|---|---|---|---|
| P0 nothing received | REPLAY | REPLAY | STOP | STOP |
| P1 reasoning only | REPLAY, the reasoning is withdrawn | same | STOP | STOP |
| P2 text, no call | CONTINUE after the text, or REPLAY without it | same | STOP | STOP, text kept |
| P3 a call is being written | REPLAY; CONTINUE if text was shown | same | STOP | STOP, it never ran |
| P4 a call is complete, not dispatched | CONTINUE; the call is dispatched, once | same | STOP, it never ran | STOP, it never ran |
| P5 a tool is at work | drain, CONTINUE | same | drain, STOP | STOP, tools aborted |
| P6 a tool has finished | CONTINUE | same | STOP, result kept | STOP |
| P7 several calls, in several states | each call as above; CONTINUE | same | drain, STOP | STOP, tools aborted |
| P8 a tool has died | CONTINUE with the caution, never run again | same | STOP, caution kept | STOP |
| P9 nothing received, after tools of this turn | REPLAY of this request | REPLAY | STOP | STOP |
| any, budget spent | drain, EXHAUSTED | same | – | – |

REPLAY sends the same request and withdraws what the attempt had shown. CONTINUE sends a request made from what is left. Both use one budget
per turn, which is stored in the turn's row: five failures in a row without durable progress, and twenty in all. The drain gives each tool
its own deadline, and is no failure.

A call that waits for a person goes on waiting. The outcome of a tool that the provider runs cannot be found out, so such an attempt stops.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from perdure.policies.failures import Failure, FailureKind

CONSECUTIVE_MAX = 5
FAILURES_MAX = 20


class CallStage(StrEnum):
    """How far a call had come. It is READY when its arguments are complete; until then it is being written."""

    WRITING = "writing"
    READY = "ready"
    ASKED = "asked"
    RUNNING = "running"
    FINISHED = "finished"
    DEAD = "dead"


@dataclass(frozen=True)
class CallFacts:
    """One call of the failed attempt. `effect` is declared by its tool: `pure`, `idempotent` or `once`; unknown is `once`."""

    call_id: str
    tool: str
    stage: CallStage
    effect: str = "once"
    is_providers: bool = False

    @property
    def may_have_effects(self) -> bool:
        """Whether it may have changed something: it started, and its tool does more than read."""
        return self.effect != "pure" and self.stage in _STARTED


_STARTED = frozenset({CallStage.RUNNING, CallStage.FINISHED, CallStage.DEAD})


@dataclass(frozen=True)
class AttemptFacts:
    """What had happened when an attempt failed. `is_after_tools`: an earlier step of the turn had settled calls."""

    has_text: bool = False
    has_reasoning: bool = False
    calls: tuple[CallFacts, ...] = ()
    is_after_tools: bool = False


class Phase(StrEnum):
    """How far the failed attempt had come."""

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
    """The phase of an attempt. Calls outrank text, and text outranks reasoning."""
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


class Cause(StrEnum):
    """The column of the table. `CLOSE`: the conversation was cleared, or its agent destroyed."""

    TRANSIENT = "T"
    PASSING_REFUSAL = "A"
    TERMINAL = "X"
    CANCEL = "C"
    CLOSE = "L"


def cause_of(failure: Failure, stop: Cause | None = None) -> Cause:
    """The column of a failure. `stop` is a cancel or a close that was requested before, which outranks the failure."""
    if stop is not None:
        return stop
    if failure.kind is FailureKind.ABORTED:
        return Cause.CANCEL
    if not failure.is_transient:
        return Cause.TERMINAL
    return Cause.PASSING_REFUSAL if failure.api is not None and not failure.is_transport else Cause.TRANSIENT


@dataclass(frozen=True)
class TurnBudget:
    """The failures of one turn: in a row without durable progress, and in all."""

    consecutive: int = 0
    total: int = 0

    @property
    def is_spent(self) -> bool:
        """Whether no further failure is allowed."""
        return self.consecutive >= CONSECUTIVE_MAX or self.total >= FAILURES_MAX

    def charged(self, failure: Failure) -> TurnBudget:
        """After a recovery from this failure."""
        if not failure.burns_budget:
            return self
        return TurnBudget(self.consecutive + 1, self.total + 1)

    def progressed(self) -> TurnBudget:
        """After durable progress: a complete step or a new tool result."""
        return replace(self, consecutive=0)


class Mode(StrEnum):
    """What happens to the turn."""

    REPLAY = "replay"
    CONTINUE = "continue"
    STOP = "stop"
    EXHAUSTED = "exhausted"


@dataclass(frozen=True)
class TurnAction:
    """What to do now, in this order: abort, or dispatch and drain; then settle the parts; then what `mode` says.

    `budget` is stored with the decision. Its `consecutive` is the attempt number for the next pause. `drain` names the calls to wait for,
    and `dispatch` those to begin now.
    """

    mode: Mode
    phase: Phase
    cause: Cause
    budget: TurnBudget
    why: str
    drain: tuple[str, ...] = field(default=())
    dispatch: tuple[str, ...] = field(default=())
    aborts_tools: bool = False

    @property
    def withdraws(self) -> bool:
        """Whether the text of the attempt is withdrawn."""
        return self.mode is Mode.REPLAY


def decide(
    facts: AttemptFacts, failure: Failure, budget: TurnBudget, *, stop: Cause | None = None, keeps_text: bool = True
) -> TurnAction:
    """The cell of the table. `keeps_text=False` is for providers that cannot continue after their own text."""
    cause = cause_of(failure, stop)
    running = _ids(facts, CallStage.RUNNING)
    plain = TurnAction(Mode.STOP, phase_of(facts), cause, budget, failure.text, drain=running)
    if cause in (Cause.CANCEL, Cause.CLOSE):
        why = "the turn was cancelled" if cause is Cause.CANCEL else "the conversation was closed"
        return replace(plain, why=why, drain=(), aborts_tools=bool(running))
    if cause is Cause.TERMINAL:
        return plain
    hosted = [call.tool for call in facts.calls if call.is_providers and call.stage is not CallStage.FINISHED]
    if hosted:
        return replace(plain, why=f"{failure.text}; the provider was running {hosted[0]}, and its outcome is unknown")
    if failure.burns_budget and budget.is_spent:
        return replace(plain, mode=Mode.EXHAUSTED)
    mode = Mode.CONTINUE if _has_something_to_keep(facts, keeps_text=keeps_text) else Mode.REPLAY
    return replace(plain, mode=mode, budget=budget.charged(failure), dispatch=_ids(facts, CallStage.READY))


def _ids(facts: AttemptFacts, stage: CallStage) -> tuple[str, ...]:
    return tuple(call.call_id for call in facts.calls if call.stage is stage and not call.is_providers)


def _has_something_to_keep(facts: AttemptFacts, *, keeps_text: bool) -> bool:
    """Whether something is left to continue from: a complete call, or shown text."""
    return (facts.has_text and keeps_text) or any(call.stage is not CallStage.WRITING for call in facts.calls)
