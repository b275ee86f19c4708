"""What the model is told about a call without a normal result, and people about a turn that gave up.

Such a text is the *result* of the call. The warning comes first and the evidence last, so truncation never removes the warning.

| why | what happened | what the model is told |
|---|---|---|
| `died` | it was running, and is certainly gone | outcome unknown; verify or ask before repeating it |
| `still_running` | only the connection is gone | do not repeat it; its result will come |
| `never_ran` | it was complete, but had not begun | it had no effect; call it again if it is still needed |
| `cut_off` | its arguments broke off | it had no effect; write it again if it is still needed |
| `aborted` | a person cancelled it while it ran | outcome unknown, because a person stopped it |
| `aborted_before` | a person cancelled it before it began | it had no effect; repeat it only if asked |
| `unanswered` | a person cancelled instead of answering it | there is no answer; ask again only if it is needed |
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from perdure.policies.failures import ApiKind, Failure, FailureKind, one_line
from perdure.policies.phases import CallFacts, CallStage

EVIDENCE_MAX = 300


class NoResult(StrEnum):
    DIED = "died"
    STILL_RUNNING = "still_running"
    NEVER_RAN = "never_ran"
    CUT_OFF = "cut_off"
    ABORTED = "aborted"
    ABORTED_BEFORE = "aborted_before"
    UNANSWERED = "unanswered"


def caution(
    why: NoResult,
    tool: str,
    call_id: str,
    *,
    effect: str = "once",
    ended_by: str = "the transport broke",
    evidence: str = "",
    idempotency_key: str = "",
) -> str:
    """The text that replaces the result. `ended_by` is a phrase such as `its process was killed`."""
    cause = one_line(ended_by)
    opening = _OPENING[why].format(cause=cause, tool=tool, call_id=call_id)
    known = (("evidence", evidence), ("idempotency key", idempotency_key))
    said = "; ".join(f"{name} {one_line(value)[:EVIDENCE_MAX]}" for name, value in known if value)
    advice = _ADVICE[why] if why in _ADVICE else _ADVICE_BY_EFFECT.get(effect, _VERIFY)
    return " ".join(filter(None, (opening, advice, f"Known: {said}." if said else "")))


_OPENING = {
    NoResult.DIED: "OUTCOME UNKNOWN: {cause} while this call of {tool} was running; the user did not stop it. "
    "It had started. Its effects may be none, partial or complete.",
    NoResult.ABORTED: "OUTCOME UNKNOWN: the user stopped this call of {tool} while it was running. "
    "It had started. Its effects may be none, partial or complete.",
    NoResult.STILL_RUNNING: "STILL RUNNING: {cause}, but this call of {tool} goes on (call id {call_id}). "
    "Its result will be given to you when it is there. Do not issue it again.",
    NoResult.NEVER_RAN: "NOT RUN: this call of {tool} was complete, but {cause} before it began, so it never ran.",
    NoResult.CUT_OFF: "NOT RUN: this call of {tool} was cut off while it was still being written; it never ran.",
    NoResult.ABORTED_BEFORE: "NOT RUN: the user stopped the turn before this call of {tool} began. It had no effect.",
    NoResult.UNANSWERED: "NOT ANSWERED: the user stopped the turn while {tool} waited for their answer, so there is none.",
}


_ADVICE = {
    NoResult.STILL_RUNNING: "",
    NoResult.UNANSWERED: "Ask again only if it is still needed.",
    NoResult.ABORTED_BEFORE: "Do not issue it again unless the user asks for it.",
    NoResult.NEVER_RAN: "It had no effect. Call it again if it is still needed.",
    NoResult.CUT_OFF: "It had no effect. Call it again if it is still needed.",
}
_ADVICE_BY_EFFECT = {  # of a call that may have begun
    "pure": "This tool only reads, so it is safe to call it again.",
    "idempotent": "Do not issue it again blindly: verify first. The same call with the same key has its effect at most once.",
}
_VERIFY = "Do not issue it again blindly. First verify the state of what it touches, or ask the user."


def correction(tool: str, call_id: str, output: str) -> str:
    return (
        f"CORRECTION: the call of {tool} with id {call_id}, reported above as lost, has finished after all. "
        f"What was said about its outcome no longer holds. Its result:\n{output}"
    )


# --- the end of a turn that could not be recovered ---------------------------------------------------------------


@dataclass(frozen=True)
class Notice:
    """What people are told when the budget is spent. It is no error, and the model never reads it.

    `has_side_effects`: a call of this turn that may change something has started.
    """

    text: str
    reason: str
    has_side_effects: bool
    uncertain: tuple[CallFacts, ...]

    @property
    def data(self) -> dict[str, Any]:
        # Of the part that ends the assistant's message.
        return {
            "kind": "safe-retry-failed",
            "text": self.text,
            "reason": self.reason,
            "sideEffects": self.has_side_effects,
            "uncertain": [{"toolCallId": call.call_id, "toolName": call.tool} for call in self.uncertain],
        }


def notice_of(failure: Failure, calls: Iterable[CallFacts]) -> Notice:
    """The notice for a turn that gave up. `calls` are all calls of that turn."""
    known = tuple(calls)
    uncertain = tuple(call for call in known if call.may_have_effects and call.stage is not CallStage.FINISHED)
    has_side_effects = any(call.may_have_effects for call in known)
    where = "the connection to the model provider" if failure.is_transport else "the model provider"
    opening = f"The reply is incomplete, because {where} failed repeatedly ({failure.text})."
    if has_side_effects:
        text = (
            f"{opening} Actions of this turn have already been carried out: check "
            "them before you ask for them again. Try again later, or with another model."
        )
    else:
        text = f"{opening} Try again later, or with another model."
    return Notice(text, failure.text, has_side_effects, uncertain)


def error_text(failure: Failure, calls: Iterable[CallFacts]) -> str:
    meaning = _MEANING_OF_KIND.get(failure.kind) or _MEANING_OF_ANSWER.get(failure.api)
    text = f"{meaning} ({failure.text})" if meaning else failure.text
    touched = [call.tool for call in calls if call.may_have_effects]
    if not touched:
        return text
    return f"{text}. {touched[-1]} had already been called: check what it did before you ask for it again."


_MEANING_OF_KIND = {
    FailureKind.MISSING_KEY: "The model has no key. Set `model_key`, or the variable of its provider.",
    FailureKind.CONTEXT_OVERFLOW: "The conversation is too long for this model. Delete messages of it, or take a model that reads more.",
    FailureKind.TOO_LARGE: "The request is larger than the provider takes. Delete large messages or files of the conversation.",
}
_MEANING_OF_ANSWER: dict[ApiKind | None, str] = {
    ApiKind.AUTH: "The provider does not accept the key of this model, or does not allow it this model.",
    ApiKind.QUOTA_EXHAUSTED: "The account at the provider has no credit or quota left.",
    ApiKind.INVALID_REQUEST: "The provider refused the request, and would refuse it again.",
    ApiKind.RATE_LIMIT: "The provider takes no more requests of this account for now.",
    ApiKind.SERVER_OVERLOAD: "The provider is overloaded or has failed.",
}
