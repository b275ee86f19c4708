"""Progress is credited when a chunk is produced: milestones always, content now and then, the rest never (spec chat-recovery §4.4)."""

from __future__ import annotations

import pytest

from perdure.policies import earns_credit

MILESTONES = (
    "text-start reasoning-start tool-input-available tool-output-available tool-output-error tool-output-denied".split()
)
CONTENT = ["text-delta", "reasoning-delta", "tool-input-delta"]
NEITHER = [
    "start",
    "finish",
    "start-step",
    "finish-step",
    "text-end",
    "reasoning-end",
    "error",
    "data-x",
    "never-heard",
    None,
    7,
]


@pytest.mark.shows(chat_recovery="C-0157 C-0165 C-0166")
@pytest.mark.parametrize("kind", MILESTONES)
def test_c_0157_and_c_0165_and_c_0166_a_milestone_counts_even_right_after_another(kind: str) -> None:
    assert earns_credit(kind, 1_000, credited_at_ms=999)


@pytest.mark.shows(chat_recovery="C-0158 C-0159")
@pytest.mark.parametrize("kind", [*CONTENT, *NEITHER])
def test_c_0158_and_c_0159_nothing_else_is_a_milestone(kind: object) -> None:
    assert not earns_credit(kind, 1_000, credited_at_ms=999)


@pytest.mark.shows(chat_recovery="C-0161 C-0162")
@pytest.mark.parametrize("kind", CONTENT)
def test_c_0161_and_c_0162_content_is_content_and_never_a_milestone(kind: str) -> None:
    assert earns_credit(kind, 1_000, credited_at_ms=None)
    assert not earns_credit(kind, 1_000, credited_at_ms=999)


@pytest.mark.shows(chat_recovery="C-0163 C-0164")
@pytest.mark.parametrize(
    ("kind", "counts"), [*((kind, True) for kind in MILESTONES), *((kind, False) for kind in NEITHER)]
)
def test_c_0163_and_c_0164_nothing_else_is_content(kind: object, counts: bool) -> None:
    assert earns_credit(kind, 1_000, credited_at_ms=999) is earns_credit(kind, 10_000, credited_at_ms=999) is counts


@pytest.mark.shows(agent_tools="59 60", chat_recovery="C-0167 C-0274 C-0275")
@pytest.mark.parametrize("kind", CONTENT)
def test_c_0167_and_c_0274_and_c_0275_content_counts_first_and_then_once_in_five_seconds(kind: str) -> None:
    assert earns_credit(kind, 0, credited_at_ms=None)
    assert not earns_credit(kind, 4_999, credited_at_ms=0)
    assert earns_credit(kind, 5_000, credited_at_ms=0)


@pytest.mark.shows(chat_recovery="C-0168")
@pytest.mark.parametrize("kind", NEITHER)
def test_c_0168_the_rest_never_counts(kind: object) -> None:
    assert not earns_credit(kind, 10**9, credited_at_ms=None)


@pytest.mark.shows(chat_recovery="C-0169")
def test_c_0169_a_long_run_of_deltas_counts_once_a_window() -> None:
    credited_at_ms, credits_earned = None, 0
    for at_ms in range(0, 20_000, 100):
        if earns_credit("text-delta", at_ms, credited_at_ms):
            credited_at_ms, credits_earned = at_ms, credits_earned + 1
    assert credits_earned == 4
