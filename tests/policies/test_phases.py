"""Phase times cause gives one action (spec transport-recovery §1.7 and §1.9), out of one budget for the whole turn (§5)."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.policies import (
    AttemptFacts,
    CallFacts,
    CallStage,
    Failure,
    FailureKind,
    Mode,
    TurnBudget,
    decide,
    next_delay_ms,
    no_answer,
    notice_of,
)
from perdure.policies.failures import ApiKind
from perdure.policies.phases import Phase, TurnAction, phase_of
from perdure.policies.transport import FIRST_DELAY_MS

FRESH = TurnBudget()
SPENT = TurnBudget(consecutive=5, total=5)
LOST = Failure(FailureKind.TRANSPORT, "the connection was lost", is_transient=True)
BUSY = Failure(FailureKind.HTTP, "the provider answered 429: busy", True, ApiKind.RATE_LIMIT)
REFUSED = Failure(FailureKind.HTTP, "the provider answered 401: no key", False, ApiKind.AUTH)
ABORTED = Failure(FailureKind.ABORTED, "aborted", is_transient=False)
FULL = Failure(FailureKind.LOCAL_PRESSURE, "no connection was free", is_transient=True)


def call(stage: CallStage, call_id: str = "c", **more: object) -> CallFacts:
    return CallFacts(call_id, "write_file", stage, **more)  # type: ignore[arg-type]


def calls(*stages: CallStage) -> AttemptFacts:
    return AttemptFacts(calls=tuple(call(stage, f"c{index}") for index, stage in enumerate(stages)))


# --- the phases --------------------------------------------------------------------------------------------------

PHASES = {
    Phase.NOTHING: AttemptFacts(),
    Phase.REASONING: AttemptFacts(has_reasoning=True),
    Phase.TEXT: AttemptFacts(has_text=True, has_reasoning=True),
    Phase.CALL_WRITING: calls(CallStage.WRITING),
    Phase.CALL_READY: calls(CallStage.READY),
    Phase.TOOL_RUNNING: calls(CallStage.RUNNING),
    Phase.TOOL_FINISHED: calls(CallStage.FINISHED),
    Phase.SEVERAL_CALLS: calls(CallStage.FINISHED, CallStage.RUNNING, CallStage.WRITING),
    Phase.TOOL_DEAD: calls(CallStage.DEAD),
    Phase.NOTHING_AFTER_TOOLS: AttemptFacts(is_after_tools=True),
}


@pytest.mark.shows(transport_recovery="50")
@pytest.mark.parametrize(("phase", "facts"), PHASES.items())
def test_case_50_each_picture_of_an_attempt_has_its_phase(phase: Phase, facts: AttemptFacts) -> None:
    assert phase_of(facts) is phase


def test_case_50_every_phase_occurs() -> None:
    assert set(PHASES) == set(Phase)


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("stages", [pair for size in (1, 2) for pair in combinations(CallStage, size)])
def test_case_50_calls_outrank_text_and_their_order_does_not_matter(text: bool, stages: tuple[CallStage, ...]) -> None:
    made = tuple(call(stage, f"c{index}") for index, stage in enumerate(stages))
    there, back = AttemptFacts(has_text=text, calls=made), AttemptFacts(has_text=text, calls=made[::-1])
    assert phase_of(there) is phase_of(back)
    assert phase_of(there) not in {Phase.NOTHING, Phase.REASONING, Phase.TEXT, Phase.NOTHING_AFTER_TOOLS}


def test_case_48_an_earlier_attempt_is_not_judged_again() -> None:
    """AttemptFacts hold the calls of the failed attempt only: what an earlier step settled is one flag, and poisons nothing."""
    assert decide(AttemptFacts(is_after_tools=True), LOST, FRESH).mode is Mode.REPLAY


# --- the table ---------------------------------------------------------------------------------------------------

R, C, S = Mode.REPLAY, Mode.CONTINUE, Mode.STOP
# phase: (lost, passing refusal, terminal refusal, cancel), and the calls that each drains
TABLE = {
    Phase.NOTHING: (R, R, S, S),
    Phase.REASONING: (R, R, S, S),
    Phase.TEXT: (C, C, S, S),
    Phase.CALL_WRITING: (R, R, S, S),
    Phase.CALL_READY: (C, C, S, S),
    Phase.TOOL_RUNNING: (C, C, S, S),
    Phase.TOOL_FINISHED: (C, C, S, S),
    Phase.SEVERAL_CALLS: (C, C, S, S),
    Phase.TOOL_DEAD: (C, C, S, S),
    Phase.NOTHING_AFTER_TOOLS: (R, R, S, S),
}
COLUMNS = (LOST, BUSY, REFUSED, ABORTED)


@pytest.mark.shows(transport_recovery="46 B3")
@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("column", range(4), ids=["T", "A", "X", "C"])
def test_case_46_every_cell_of_the_table(phase: Phase, column: int) -> None:
    action = decide(PHASES[phase], COLUMNS[column], FRESH)
    assert action.mode is TABLE[phase][column]
    assert action.phase is phase
    is_recovery = action.mode in (R, C)
    assert action.budget == (TurnBudget(1, 1) if is_recovery else FRESH)
    assert action.withdraws is (action.mode is R)


@pytest.mark.shows(transport_recovery="45")
@pytest.mark.parametrize("phase", Phase)
def test_case_45_once_the_budget_is_spent_nothing_is_sent_again_in_any_phase(phase: Phase) -> None:
    """B: replay and continuation share the budget, so there is a notice from both."""
    for failure in (LOST, BUSY):
        action = decide(PHASES[phase], failure, SPENT)
        assert (action.mode, action.budget) == (Mode.EXHAUSTED, SPENT)
    assert decide(PHASES[phase], REFUSED, SPENT).mode is S


def test_a_response_without_an_answer_is_asked_for_twice_more_and_counts_like_any_failure() -> None:
    nothing = no_answer("text/html: <html>Login</html>")
    modes = [decide(AttemptFacts(), nothing, TurnBudget(before, before)).mode for before in range(3)]
    assert modes == [Mode.REPLAY, Mode.REPLAY, Mode.EXHAUSTED]
    assert decide(AttemptFacts(), nothing, FRESH).budget == TurnBudget(1, 1)
    notice = notice_of(nothing, [])
    assert (
        "because the model provider failed repeatedly (what came has no answer in it: text/html: <html>" in notice.text
    )
    assert "connection" not in notice.text


def test_case_45_five_failures_in_a_row_are_recovered_and_the_sixth_is_not() -> None:
    budget, modes = FRESH, []
    for _ in range(6):
        action = decide(AttemptFacts(), LOST, budget)
        budget = action.budget
        modes.append(action.mode)
    assert modes == [R] * 5 + [Mode.EXHAUSTED]


def test_case_26_a_provider_that_stays_busy_is_asked_six_times_in_all() -> None:
    budget, requests = FRESH, 1
    while (action := decide(AttemptFacts(), BUSY, budget)).mode is R:
        budget, requests = action.budget, requests + 1
    assert (requests, action.mode) == (6, Mode.EXHAUSTED)


@pytest.mark.shows(transport_recovery="A5 B4")
def test_a5_twenty_disconnects_each_after_a_new_result_are_bounded_and_none_is_without_a_pause() -> None:
    budget, pauses = FRESH, list[float]()
    while (action := decide(calls(CallStage.FINISHED), LOST, budget)).mode is C:
        pauses.append(next_delay_ms(action.budget.consecutive, LOST, 0.0))
        budget = replace(action.budget, consecutive=0)
    assert (pauses, action.mode) == ([FIRST_DELAY_MS / 2] * 20, Mode.EXHAUSTED)


def test_a_full_pool_of_our_own_is_retried_without_being_charged() -> None:
    action = decide(AttemptFacts(), FULL, SPENT)
    assert (action.mode, action.budget) == (R, SPENT)


# --- the single rows ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [LOST, BUSY, REFUSED])
def test_p5_a_tool_at_work_is_drained_whatever_broke(failure: Failure) -> None:
    action = decide(calls(CallStage.RUNNING, CallStage.RUNNING), failure, FRESH)
    assert action.drains


def test_p5_a_tool_at_work_is_drained_even_when_the_budget_is_spent() -> None:
    assert decide(calls(CallStage.RUNNING), LOST, SPENT).drains


def test_an_abort_of_ours_waits_for_no_tool() -> None:
    assert not decide(calls(CallStage.RUNNING, CallStage.FINISHED), ABORTED, FRESH).drains


def test_p3_a_half_written_call_continues_after_text_that_was_read() -> None:
    assert decide(AttemptFacts(has_text=True, calls=(call(CallStage.WRITING),)), LOST, FRESH).mode is C


@pytest.mark.parametrize("failure", [LOST, BUSY])
def test_a14_a_call_that_waits_for_a_person_goes_on_waiting(failure: Failure) -> None:
    action = decide(calls(CallStage.ASKED), failure, FRESH)
    assert (action.mode, action.drains) == (C, False)


@pytest.mark.shows(transport_recovery="A10")
def test_a10_a_refusal_after_a_finished_tool_waits_exactly_as_long_as_it_says_and_keeps_the_result() -> None:
    patient = replace(BUSY, retry_after_ms=60_000)
    action = decide(calls(CallStage.FINISHED), patient, FRESH)
    assert (action.mode, action.budget, action.withdraws) == (C, TurnBudget(1, 1), False)
    assert next_delay_ms(action.budget.consecutive, patient, 0.3) == 60_000


def test_a19_the_budget_counts_failures_and_knows_no_time_so_a_clock_that_jumps_costs_nothing() -> None:
    assert {each.name for each in fields(TurnBudget)} == {"consecutive", "total"}


def test_p8_a_dead_call_is_never_run_again() -> None:
    action = decide(calls(CallStage.DEAD, CallStage.FINISHED), LOST, FRESH)
    assert (action.mode, action.withdraws) == (C, False)


@pytest.mark.parametrize("stage", [stage for stage in CallStage if stage is not CallStage.FINISHED])
def test_a_tool_that_the_provider_ran_cannot_be_asked_so_the_attempt_stops(stage: CallStage) -> None:
    hosted = AttemptFacts(calls=(call(stage, is_providers=True),))
    action = decide(hosted, LOST, FRESH)
    assert (action.mode, action.drains) == (S, False)


def test_a_result_of_the_providers_own_tool_lets_the_attempt_continue() -> None:
    assert decide(AttemptFacts(calls=(call(CallStage.FINISHED, is_providers=True),)), LOST, FRESH).mode is C


@pytest.mark.parametrize(("effects", "expected"), [(("pure", "once"), C), (("once", "pure"), C), (("pure", "pure"), C)])
def test_case_49_effects_in_any_order_never_make_recovery_ask_a_person(
    effects: tuple[str, str], expected: Mode
) -> None:
    """Weakness B3: a tool of unknown effect halted the turn. Here its call is kept, drained, and never repeated."""
    made = tuple(call(CallStage.RUNNING, f"c{index}", effect=effect) for index, effect in enumerate(effects))
    assert decide(AttemptFacts(calls=made), LOST, FRESH).mode is expected


# --- properties --------------------------------------------------------------------------------------------------

CALLS = st.builds(
    CallFacts,
    call_id=st.text("abc", min_size=1, max_size=3),
    tool=st.just("t"),
    stage=st.sampled_from(CallStage),
    effect=st.sampled_from(["pure", "idempotent", "once"]),
    is_providers=st.booleans(),
)
FACTS = st.builds(AttemptFacts, st.booleans(), st.booleans(), st.lists(CALLS, max_size=4).map(tuple), st.booleans())
BUDGETS = st.builds(TurnBudget, st.integers(0, 7), st.integers(0, 25))
FAILURES = st.sampled_from([LOST, BUSY, REFUSED, ABORTED, FULL])


@pytest.mark.shows(transport_recovery="47")
@given(FACTS, FAILURES, BUDGETS)
def test_whatever_the_facts_no_call_that_is_complete_is_withdrawn(
    facts: AttemptFacts, failure: Failure, budget: TurnBudget
) -> None:
    action = decide(facts, failure, budget)
    assert not (action.withdraws and any(each.stage is not CallStage.WRITING for each in facts.calls))


@given(FACTS, FAILURES, BUDGETS)
def test_a_budget_only_ever_shrinks_and_a_spent_one_sends_nothing(
    facts: AttemptFacts, failure: Failure, budget: TurnBudget
) -> None:
    action: TurnAction = decide(facts, failure, budget)
    assert action.budget.total >= budget.total
    if budget.is_spent(failure) and failure.burns_budget:
        assert action.mode in (Mode.STOP, Mode.EXHAUSTED)


@given(FACTS)
def test_the_same_failure_later_in_the_turn_is_answered_the_same_way(facts: AttemptFacts) -> None:
    actions = [decide(facts, LOST, TurnBudget(n, n)).mode for n in range(5)]
    assert len(set(actions)) == 1
