"""A call whose outcome is unknown is not made again until somebody has looked, or has been asked (cases A6 and 49, weakness B8)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.policies import RepeatGuard, stop_text
from perdure.policies.repeats import UnknownOutcome, call_key

DEPLOY = {"to": "prod", "count": 2}
LOST = RepeatGuard().lost("deploy", DEPLOY, "c1")


def test_a6_the_same_call_is_stopped_however_its_arguments_are_written() -> None:
    for same in ({"count": 2, "to": "prod"}, {"to": "prod", "count": 2.0}):
        loss = LOST.blocked("deploy", same, "once")
        assert loss is not None
        assert loss.call_id == "c1"


@pytest.mark.parametrize(
    ("tool", "arguments"), [("deploy", {"to": "test"}), ("build", DEPLOY), ("deploy", {**DEPLOY, "x": None})]
)
def test_another_call_goes_ahead(tool: str, arguments: dict[str, object]) -> None:
    assert LOST.blocked(tool, arguments, "once") is None


@pytest.mark.parametrize("effect", ["pure", "idempotent"])
def test_a_call_that_may_be_repeated_goes_ahead(effect: str) -> None:
    assert LOST.blocked("deploy", DEPLOY, effect) is None


@pytest.mark.parametrize("effect", ["once", "unknown", ""])
def test_a_tool_of_unknown_effect_is_treated_as_one_with_effects(effect: str) -> None:
    assert LOST.blocked("deploy", DEPLOY, effect) is not None


def test_a_look_with_a_tool_that_only_reads_is_evidence() -> None:
    assert LOST.settled("c2", "pure", succeeded=True).blocked("deploy", DEPLOY, "once") is None


def test_a_look_that_failed_and_a_call_with_effects_are_no_evidence() -> None:
    assert LOST.settled("c2", "pure", succeeded=False) is LOST
    assert LOST.settled("c2", "once", succeeded=True) is LOST


def test_a17_the_late_result_of_the_lost_call_itself_is_evidence() -> None:
    assert LOST.settled("c1", "once", succeeded=False) == RepeatGuard()


def test_the_approval_of_this_very_call_is_consent_and_of_another_is_not() -> None:
    assert LOST.approved("deploy", DEPLOY) == RepeatGuard()
    assert LOST.approved("deploy", {"to": "test"}) is LOST


def test_a_message_of_the_user_is_consent_only_once_the_model_was_told_to_ask() -> None:
    assert LOST.user_spoke() is LOST
    loss = LOST.blocked("deploy", DEPLOY, "once")
    assert loss is not None
    asked = LOST.stopped(loss)
    assert asked.blocked("deploy", DEPLOY, "once") is not None
    assert asked.user_spoke().blocked("deploy", DEPLOY, "once") is None


def test_consent_to_one_call_is_none_to_another() -> None:
    both = LOST.lost("pay", {"eur": 5}, "c2")
    asked = both.stopped(both.losses[0]).user_spoke()
    assert [loss.tool for loss in asked.losses] == ["pay"]


def test_a_stopped_call_says_that_it_was_not_run_and_what_to_do() -> None:
    text = stop_text(LOST.losses[0])
    assert text.startswith("NOT RUN")
    for said in ("deploy", "c1", "only reads", "ask the user"):
        assert said in text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=4), JSON, max_size=4))
def test_the_key_of_a_call_does_not_depend_on_the_order_of_its_arguments(arguments: dict[str, object]) -> None:
    assert call_key("t", arguments) == call_key("t", dict(reversed(arguments.items())))


def test_the_key_tells_values_apart_that_only_look_alike() -> None:
    values = [1, "1", True, None, [1], {"a": 1}, {"a": None}, {}, "", 1.5, [[1], []], [[1]]]
    assert len({call_key("t", {"x": value}) for value in values}) == len(values)


@given(st.lists(st.sampled_from(["c1", "c2", "c3"]), max_size=6))
def test_a_loss_that_is_reported_again_is_one_loss_and_the_guard_survives_being_stored(call_ids: list[str]) -> None:
    guard = RepeatGuard()
    for call_id in call_ids:
        guard = guard.lost("deploy", DEPLOY, call_id)
    assert [loss.call_id for loss in guard.losses] == list(dict.fromkeys(call_ids))
    assert RepeatGuard.of_rows(guard.as_rows()) == guard
    assert all(isinstance(loss, UnknownOutcome) for loss in guard.losses)
