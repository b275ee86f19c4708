"""What is said about a call without a result says the needed things first (spec transport-recovery §4.3), and a notice is honest (§6)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perdure.policies import (
    CallFacts,
    CallStage,
    Failure,
    FailureKind,
    NoResult,
    caution,
    correction,
    error_text,
    notice_of,
)
from perdure.policies.cautions import EVIDENCE_MAX
from perdure.policies.failures import ApiKind

LEFT = ("deploy", "call-7")
LOST = Failure(FailureKind.TRANSPORT, "the connection was lost", is_transient=True)
REFUSED = Failure(FailureKind.HTTP, "the provider answered 401: no such key", False, ApiKind.AUTH)


def call(stage: CallStage, effect: str = "once", tool: str = "deploy") -> CallFacts:
    return CallFacts("call-7", tool, stage, effect)


def test_case_5_a_dead_call_is_reported_with_all_that_a_caution_needs() -> None:
    text = caution(NoResult.DIED, *LEFT)
    assert "transport broke while this call of deploy was running" in text  # (a)
    assert "the user did not stop it" in text
    assert "had started" in text  # (b)
    assert "none, partial or complete" in text
    assert "Do not issue it again blindly" in text  # (c)
    assert "verify the state of what it touches, or ask the user" in text  # (d)


def test_case_5_the_evidence_that_helps_to_verify_is_in_the_caution() -> None:
    text = caution(NoResult.DIED, *LEFT, ended_by="its process was killed", evidence="signal 9", idempotency_key="k-1")
    for said in (
        "its process was killed while",
        "evidence signal 9",
        "idempotency key k-1",
    ):
        assert said in text


def test_a_call_that_only_reads_may_be_repeated() -> None:
    text = caution(NoResult.DIED, "grep", "c", effect="pure")
    assert "safe to call it again" in text
    assert "blindly" not in text


def test_an_idempotent_call_may_be_repeated_after_a_look() -> None:
    assert "at most once" in caution(NoResult.DIED, "pay", "c", effect="idempotent")


def test_case_10_a_call_that_a_person_stopped_says_so_and_admits_that_effects_may_exist() -> None:
    """Weakness B7: the system we answer told the model that a stopped command had never run."""
    text = caution(NoResult.ABORTED, *LEFT)
    assert "the user stopped" in text
    assert "transport" not in text
    assert "none, partial or complete" in text


NEVER = {
    "case 6 input captured only": (NoResult.NEVER_RAN, "complete"),
    "case 15 half-streamed arguments": (NoResult.CUT_OFF, "still being written"),
    "case 16 a cancel with a materialised call": (NoResult.ABORTED_BEFORE, "the user stopped the turn"),
}


@pytest.mark.shows(transport_recovery="52")
@pytest.mark.parametrize(("why", "said"), NEVER.values(), ids=NEVER)
def test_a_call_that_never_began_is_no_reason_for_caution(why: NoResult, said: str) -> None:
    text = caution(why, *LEFT)
    assert text.startswith("NOT RUN")
    assert said in text
    assert "no effect" in text
    assert "UNKNOWN" not in text


def test_a3_a_tool_that_goes_on_is_not_declared_dead() -> None:
    text = caution(NoResult.STILL_RUNNING, "build", "call-7")
    assert text.startswith("STILL RUNNING")
    assert "Do not issue it again" in text


@pytest.mark.parametrize("why", NoResult)
def test_the_fates_are_told_apart_in_their_first_words(why: NoResult) -> None:
    openings = {other: caution(other, *LEFT)[:60] for other in NoResult}
    assert sum(opening == openings[why] for opening in openings.values()) == 1


@pytest.mark.shows(transport_recovery="A4")
@pytest.mark.parametrize("why", [NoResult.DIED, NoResult.ABORTED])
def test_a4_the_caution_comes_before_the_evidence_of_which_the_beginning_is_told(why: NoResult) -> None:
    text = caution(why, "shell", "c", evidence="word " * 1_000)
    before, _, evidence = text.partition("Known: evidence ")
    assert before.startswith("OUTCOME UNKNOWN")
    assert "Do not issue it again blindly" in before
    assert len(evidence) == EVIDENCE_MAX + 1


def test_a17_a_late_result_corrects_what_was_said() -> None:
    text = correction(*LEFT, "deployed 4 files")
    assert "call-7" in text
    assert "no longer holds" in text
    assert text.endswith("deployed 4 files")


# --- notices -----------------------------------------------------------------------------------------------------

FLAGS = {
    "a tool that only reads": (call(CallStage.FINISHED, "pure"), False),
    "a finished tool of unknown effect": (call(CallStage.FINISHED), True),
    "a dead tool": (call(CallStage.DEAD), True),
    "a tool still at work": (call(CallStage.RUNNING), True),
    "an idempotent tool": (call(CallStage.FINISHED, "idempotent"), True),
    "a call that never began": (call(CallStage.READY), False),
    "a call that was being written": (call(CallStage.WRITING), False),
    "a question to a person": (call(CallStage.ASKED), False),
}


@pytest.mark.shows(transport_recovery="61")
@pytest.mark.parametrize(("made", "expected"), FLAGS.values(), ids=FLAGS)
def test_case_61_a_notice_says_whether_something_may_have_changed(made: CallFacts, expected: bool) -> None:
    """B: dead and running tools count too; the system we answer looked at completed ones only."""
    notice = notice_of(LOST, [call(CallStage.FINISHED, "pure"), made])
    assert notice.has_side_effects is expected
    assert ("already been carried out" in notice.text) is expected


def test_a_notice_names_the_reason_and_the_calls_whose_outcome_is_unknown() -> None:
    done, dead = call(CallStage.FINISHED), CallFacts("call-9", "pay", CallStage.DEAD)
    data = notice_of(LOST, [done, dead]).data
    assert data["reason"] == "the connection was lost"
    assert data["uncertain"] == [{"toolCallId": "call-9", "toolName": "pay"}]
    assert data["sideEffects"] is True


def test_both_variants_of_a_notice_name_the_cause_and_what_to_do() -> None:
    for text in (notice_of(LOST, []).text, notice_of(LOST, [call(CallStage.DEAD)]).text):
        assert "connection" in text
        assert f"({LOST.text})" in text
        assert "another model" in text


@pytest.mark.shows(transport_recovery="37")
def test_case_37_a_terminal_refusal_keeps_its_own_message_and_advises_to_check_what_had_run() -> None:
    plain = error_text(REFUSED, [call(CallStage.FINISHED, "pure")])
    assert plain.endswith("(the provider answered 401: no such key)")
    hinted = error_text(REFUSED, [call(CallStage.FINISHED)])
    assert hinted.startswith(plain)
    assert "check what it did" in hinted


@pytest.mark.parametrize(
    ("failure", "meaning"),
    [
        (REFUSED, "does not accept the key"),
        (replace(REFUSED, api=ApiKind.QUOTA_EXHAUSTED), "no credit"),
        (replace(REFUSED, api=ApiKind.INVALID_REQUEST), "would refuse it again"),
        (replace(REFUSED, kind=FailureKind.CONTEXT_OVERFLOW), "too long for this model"),
        (replace(REFUSED, kind=FailureKind.TOO_LARGE), "larger than the provider takes"),
        (replace(REFUSED, kind=FailureKind.MISSING_KEY), "has no key"),
    ],
)
def test_a_refusal_is_told_in_our_words_with_the_providers_beside_them(failure: Failure, meaning: str) -> None:
    said = error_text(failure, [])
    assert meaning in said
    assert said.endswith(f"({failure.text})")


def test_what_is_in_our_words_already_is_told_as_it_is() -> None:
    ours = Failure(FailureKind.UNKNOWN, "the answer has more than 9 bytes, so it was broken off", is_transient=False)
    assert error_text(ours, []) == ours.text
