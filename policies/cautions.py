"""What the model, and people, are told about a call whose outcome is not simply its result, and about a turn that gave up.

A text about a call is the *result* of that call, so that it travels wherever results travel. It says first what must not be lost, and
last what may be long: whoever cuts it at the end cuts partial output, never the warning (spec transport-recovery §4.3). At the system that
we answer partial output replaced the warning, and a cancelled command was reported as one that had never run (B2, B7).

| why | what happened | what the model is told |
|---|---|---|
| `died` | it was at work, and it is certain that it is gone | outcome unknown; verify or ask; do not repeat blindly |
| `still_running` | the connection is gone, the tool is not | do not repeat; its result will come; how to wait for it |
| `never_ran` | complete, but not begun | it had no effect; call it again if it is still needed |
| `cut_off` | its arguments broke off | it had no effect; write it again if it is still needed |
| `aborted` | a person cancelled it at work | outcome unknown, because a person stopped it |
| `aborted_before` | a person cancelled before it began | it had no effect; do not repeat it unasked |
| `unanswered` | a person cancelled instead of answering it | there is no answer; ask again only if it is needed |
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from perdure.policies.failures import Failure, one_line
from perdure.policies.phases import CallFacts, Stage

CAUTION_MAX = 4_000
EVIDENCE_MAX = 300


class NoResult(StrEnum):
    """What became of a call that has no result of its own."""

    DIED = "died"
    STILL_RUNNING = "still_running"
    NEVER_RAN = "never_ran"
    CUT_OFF = "cut_off"
    ABORTED = "aborted"
    ABORTED_BEFORE = "aborted_before"
    UNANSWERED = "unanswered"


@dataclass(frozen=True)
class CallEvidence:
    """What is known of such a call: facts that help to verify. Instants in ms since 1970; whatever is empty is not mentioned.

    `ended_by` says in a few words what ended it (`the connection to the provider broke`, `its process was killed`).
    """

    tool: str
    call_id: str
    effect: str = "once"
    ended_by: str = ""
    started_at_ms: float | None = None
    lost_at_ms: float | None = None
    exit_evidence: str = ""
    touched: str = ""
    idempotency_key: str = ""
    wait_with: str = ""
    output_tail: str = ""


def caution(why: NoResult, known: CallEvidence) -> str:
    """The result that stands in for one that does not exist. At most `CAUTION_MAX` characters; the warning comes first."""
    head = " ".join([*_OPENING[why](known), *_advice(why, known), *_evidence(known)])
    tail = known.output_tail.strip()
    room = CAUTION_MAX - len(head) - 40
    if why not in _MAY_HAVE_BEGUN or not tail or room <= 0:
        return head
    kept = tail if len(tail) <= room else "…" + tail[-(room - 1) :]
    return f"{head}\nLast output before that:\n{kept}"


_MAY_HAVE_BEGUN = frozenset({NoResult.DIED, NoResult.STILL_RUNNING, NoResult.ABORTED})


def _died(known: CallEvidence) -> list[str]:
    cause = one_line(known.ended_by or "the transport broke")
    return [
        f"OUTCOME UNKNOWN: {cause} while this call of {known.tool} was running; the user did not stop it.",
        "It had started. Its effects may be none, partial or complete.",
    ]


def _aborted(known: CallEvidence) -> list[str]:
    return [
        f"OUTCOME UNKNOWN: the user stopped this call of {known.tool} while it was running.",
        "It had started. Its effects may be none, partial or complete.",
    ]


def _still_running(known: CallEvidence) -> list[str]:
    cause = one_line(known.ended_by or "the transport broke")
    return [
        f"STILL RUNNING: {cause}, but this call of {known.tool} goes on (call id {known.call_id}).",
        "Its result will be given to you when it is there. Do not issue it again.",
    ]


def _never_ran(known: CallEvidence) -> list[str]:
    cause = one_line(known.ended_by or "the transport broke")
    return [f"NOT RUN: this call of {known.tool} was complete, but {cause} before it began, so it never ran."]


def _cut_off(known: CallEvidence) -> list[str]:
    return [f"NOT RUN: this call of {known.tool} was cut off while it was still being written; it never ran."]


def _aborted_before(known: CallEvidence) -> list[str]:
    return [f"NOT RUN: the user stopped the turn before this call of {known.tool} began. It had no effect."]


def _unanswered(known: CallEvidence) -> list[str]:
    return [f"NOT ANSWERED: the user stopped the turn while {known.tool} waited for their answer, so there is none."]


_OPENING = {
    NoResult.DIED: _died,
    NoResult.ABORTED: _aborted,
    NoResult.STILL_RUNNING: _still_running,
    NoResult.NEVER_RAN: _never_ran,
    NoResult.CUT_OFF: _cut_off,
    NoResult.ABORTED_BEFORE: _aborted_before,
    NoResult.UNANSWERED: _unanswered,
}


def _advice(why: NoResult, known: CallEvidence) -> list[str]:
    if why is NoResult.STILL_RUNNING:
        return [f"To wait for it: {one_line(known.wait_with)}."] if known.wait_with else []
    if why is NoResult.UNANSWERED:
        return ["Ask again only if it is still needed."]
    if why is NoResult.ABORTED_BEFORE:
        return ["Do not issue it again unless the user asks for it."]
    if why not in _MAY_HAVE_BEGUN:
        return ["It had no effect. Call it again if it is still needed."]
    if known.effect == "pure":
        return ["This tool only reads, so it is safe to call it again."]
    if known.effect == "idempotent":
        return [
            "Do not issue it again blindly: verify first. The same call with the same key has its effect at most once."
        ]
    return ["Do not issue it again blindly. First verify the state of what it touches, or ask the user."]


def _evidence(known: CallEvidence) -> list[str]:
    said = []
    if known.started_at_ms is not None:
        said.append(f"started {_instant(known.started_at_ms)}")
        if known.lost_at_ms is not None:
            said.append(f"lost {max(0.0, known.lost_at_ms - known.started_at_ms) / 1000:g} s later")
    for name, value in (
        ("evidence", known.exit_evidence),
        ("touched", known.touched),
        ("idempotency key", known.idempotency_key),
    ):
        if value:
            said.append(f"{name} {one_line(value)[:EVIDENCE_MAX]}")
    return [f"Known: {'; '.join(said)}."] if said else []


def _instant(at_ms: float) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")


def correction(known: CallEvidence, output: str) -> str:
    """What the model is told when a call that was declared dead reports after all (A17). The result follows the announcement."""
    return (
        f"CORRECTION: the call of {known.tool} with id {known.call_id}, reported above as lost, has finished after all. "
        f"What was said about its outcome no longer holds. Its result:\n{output}"
    )


# --- the end of a turn that could not be recovered ---------------------------------------------------------------


@dataclass(frozen=True)
class Notice:
    """What people are told when the budget is spent (§6). It is no error, and the model never reads it.

    `has_side_effects`: a call of this turn that may change something has finished, has died, or is still running.
    """

    text: str
    reason: str
    has_side_effects: bool
    uncertain: tuple[CallFacts, ...]

    def as_part(self) -> dict[str, Any]:
        """The notice as the data part that ends the assistant's message."""
        uncertain = [{"toolCallId": call.call_id, "toolName": call.tool} for call in self.uncertain]
        return {
            "type": "data-notice",
            "data": {
                "kind": "safe-retry-failed",
                "text": self.text,
                "reason": self.reason,
                "sideEffects": self.has_side_effects,
                "uncertain": uncertain,
            },
        }


def notice_of(failure: Failure, calls: Iterable[CallFacts]) -> Notice:
    """The notice for a turn that gave up. `calls` are those of the whole turn, in every step of it, and of no other turn."""
    known = tuple(calls)
    uncertain = tuple(call for call in known if call.may_have_effects and call.stage is not Stage.FINISHED)
    has_side_effects = any(call.may_have_effects for call in known)
    where = "the connection to the model provider" if failure.is_transport else "the model provider"
    if has_side_effects:
        text = (
            f"The reply is incomplete, because {where} failed repeatedly. Actions of this turn have already been carried out: check "
            "them before you ask for them again. Try again later, or with another model."
        )
    else:
        text = f"The reply is incomplete, because {where} failed repeatedly. Try again later, or with another model."
    return Notice(text, failure.text, has_side_effects, uncertain)


def error_text(failure: Failure, calls: Iterable[CallFacts]) -> str:
    """What a terminal failure says: the provider's own reason, and after a call with effects the advice to check it (case 37)."""
    touched = [call.tool for call in calls if call.may_have_effects]
    if not touched:
        return failure.text
    return f"{failure.text}. {touched[-1]} had already been called: check what it did before you ask for it again."
