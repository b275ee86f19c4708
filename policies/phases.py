"""What is done after a model request has failed: the phase it had reached, times the cause, gives one action.

The phase comes from what had already happened in the failed attempt, up to the instant of the failure and in no other (spec
transport-recovery §1.6). Only calls that the model actually made are judged: that a tool with effects merely *stands in the request* says
nothing (weakness B3). The table is §1.9 in the columns that we want:

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

REPLAY sends the same request and withdraws whatever the attempt had shown. CONTINUE sends a request that is made from what is left. Both
come out of one budget per turn, which stands in the turn's row, so that no restart fills it up again (§5, weaknesses B4 and B9): five
failures in a row without durable progress, and twenty in all. The drain gives each tool its own deadline, and its time is no failure.

A call that waits for a person (its approval, its answer) goes on waiting: a lost connection is no reason to withdraw a question (A14).
A tool that the provider itself was running cannot be asked what became of it, so such an attempt stops.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from perdure.policies.failures import Failure, FailureKind

CONSECUTIVE_MAX = 5
FAILURES_MAX = 20


class Stage(StrEnum):
    """How far one call had come. A call is READY only when its arguments are proven complete; until then it is being written."""

    WRITING = "writing"
    READY = "ready"
    ASKED = "asked"
    RUNNING = "running"
    FINISHED = "finished"
    DEAD = "dead"


@dataclass(frozen=True)
class CallFacts:
    """One call of the failed attempt. `effect` is what its tool declares: `pure`, `idempotent` or `once`; unknown is `once`."""

    call_id: str
    tool: str
    stage: Stage
    effect: str = "once"
    is_providers: bool = False

    @property
    def may_have_effects(self) -> bool:
        """Whether something outside may have changed: it started, and its tool does more than read."""
        return self.effect != "pure" and self.stage in _STARTED


_STARTED = frozenset({Stage.RUNNING, Stage.FINISHED, Stage.DEAD})


@dataclass(frozen=True)
class AttemptFacts:
    """What had happened in one attempt when it failed. `is_after_tools`: an earlier step of the turn had settled calls."""

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
    Stage.WRITING: Phase.CALL_WRITING,
    Stage.READY: Phase.CALL_READY,
    Stage.ASKED: Phase.CALL_READY,
    Stage.RUNNING: Phase.TOOL_RUNNING,
    Stage.FINISHED: Phase.TOOL_FINISHED,
    Stage.DEAD: Phase.TOOL_DEAD,
}


def phase_of(facts: AttemptFacts) -> Phase:
    """How far the attempt had come. Calls outrank text, text outranks reasoning."""
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
    """The column of the table. `CLOSE` is the end of the conversation itself: cleared, or its agent destroyed."""

    TRANSIENT = "T"
    PASSING_REFUSAL = "A"
    TERMINAL = "X"
    CANCEL = "C"
    CLOSE = "L"


def cause_of(failure: Failure, stop: Cause | None = None) -> Cause:
    """The column of a failure. `stop` is a cancel or a close that had been asked for by then; it outranks what broke because of it."""
    if stop is not None:
        return stop
    if failure.kind is FailureKind.ABORTED:
        return Cause.CANCEL
    if not failure.is_transient:
        return Cause.TERMINAL
    return Cause.PASSING_REFUSAL if failure.api is not None and not failure.is_transport else Cause.TRANSIENT


@dataclass(frozen=True)
class TurnBudget:
    """What recovery has cost one turn so far: failures in a row without durable progress, and failures in all."""

    consecutive: int = 0
    total: int = 0

    @property
    def is_spent(self) -> bool:
        """Whether one more failure is one too many."""
        return self.consecutive >= CONSECUTIVE_MAX or self.total >= FAILURES_MAX

    def charged(self, failure: Failure) -> TurnBudget:
        """After a recovery from this failure."""
        if not failure.burns_budget:
            return self
        return TurnBudget(self.consecutive + 1, self.total + 1)

    def progressed(self) -> TurnBudget:
        """After durable progress: a step is complete, or a new result of a tool is stored. The total never falls."""
        return replace(self, consecutive=0)


class Mode(StrEnum):
    """What happens to the turn."""

    REPLAY = "replay"
    CONTINUE = "continue"
    STOP = "stop"
    EXHAUSTED = "exhausted"


@dataclass(frozen=True)
class Action:
    """What to do now, in this order: abort, or dispatch and drain; then settle the parts; then what `mode` says.

    `budget` is to be stored with the decision; its `consecutive` is the attempt number that the pause before the next request counts by.
    `drain` names the calls that are waited for under their own deadlines; `dispatch` those that are begun now, once.
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
        """Whether what the attempt had shown is taken back: its answer begins anew."""
        return self.mode is Mode.REPLAY


def decide(
    facts: AttemptFacts, failure: Failure, budget: TurnBudget, *, stop: Cause | None = None, keeps_text: bool = True
) -> Action:
    """The cell of the table. `keeps_text=False` is for providers that cannot continue after text of their own (§4.4)."""
    cause = cause_of(failure, stop)
    running = _ids(facts, Stage.RUNNING)
    plain = Action(Mode.STOP, phase_of(facts), cause, budget, failure.text, drain=running)
    if cause in (Cause.CANCEL, Cause.CLOSE):
        why = "the turn was cancelled" if cause is Cause.CANCEL else "the conversation was closed"
        return replace(plain, why=why, drain=(), aborts_tools=bool(running))
    if cause is Cause.TERMINAL:
        return plain
    hosted = [call.tool for call in facts.calls if call.is_providers and call.stage is not Stage.FINISHED]
    if hosted:
        return replace(plain, why=f"{failure.text}; the provider was running {hosted[0]}, and its outcome is unknown")
    if failure.burns_budget and budget.is_spent:
        return replace(plain, mode=Mode.EXHAUSTED)
    mode = Mode.CONTINUE if _has_something_to_keep(facts, keeps_text=keeps_text) else Mode.REPLAY
    return replace(plain, mode=mode, budget=budget.charged(failure), dispatch=_ids(facts, Stage.READY))


def _ids(facts: AttemptFacts, stage: Stage) -> tuple[str, ...]:
    return tuple(call.call_id for call in facts.calls if call.stage is stage and not call.is_providers)


def _has_something_to_keep(facts: AttemptFacts, *, keeps_text: bool) -> bool:
    """Whether the next request is made from what the attempt left: a call that is complete, or text that people have read."""
    return (facts.has_text and keeps_text) or any(call.stage is not Stage.WRITING for call in facts.calls)
