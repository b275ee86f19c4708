"""Who may answer a question of a run, and when it is answered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.policies import Answerer, Vote, answer_refusal, is_decided, with_vote

ADA = Answerer("ada")
OPS = Answerer("bob", ["ops", "night"])
ADMIN = Answerer("root", is_admin=True)
OPERATOR = Answerer("ada", is_operator=True)
NO = b"no"

# who answers, of whom it is asked, who began the run, whether that one may answer; and whether the answer counts
ROWS = [
    (ADA, [], "", False, True),
    (ADA, ["ops"], "", False, False),
    (ADA, ["ops", "ada"], "", False, True),
    (OPS, ["ops"], "", False, True),
    (OPS, ["managers"], "", False, False),
    (OPS, ["managers", "night"], "", False, True),
    (ADMIN, ["managers"], "", False, True),
    (OPERATOR, ["managers"], "", False, True),
    (ADA, [], "ada", False, False),
    (ADA, [], "ada", True, True),
    (ADA, ["ops"], "ada", True, False),
    (OPS, ["ops"], "ada", False, True),
    (ADMIN, ["ops"], "root", False, False),
    (OPERATOR, ["ops"], "ada", False, True),
]


@pytest.mark.parametrize(("who", "asked_of", "began_by", "self_answer", "counts"), ROWS)
def test_who_may_answer(who: Answerer, asked_of: list[str], began_by: str, self_answer: bool, counts: bool) -> None:
    said = answer_refusal(who, asked_of, began_by, self_answer=self_answer)
    assert (not said) == counts
    assert counts or who.name in said


def test_a_refusal_names_those_who_may_answer() -> None:
    assert "managers, night or ops may" in answer_refusal(ADA, ["ops", "managers", "night"], "", self_answer=False)


def decided(people: int, *votes: tuple[str, bytes], no: bytes | None = NO) -> list[bool]:
    """After each of these votes, whether the question is decided."""
    found: list[bool] = []
    kept: list[Vote] = []
    for who, value in votes:
        kept = with_vote(kept, Vote(who, value))
        found.append(is_decided(kept, people, no))
    return found


@pytest.mark.parametrize(
    ("people", "votes", "after"),
    [
        (1, [("a", b"yes")], [True]),
        (2, [("a", b"yes"), ("b", b"yes")], [False, True]),
        (2, [("a", b"yes"), ("a", b"yes")], [False, False]),
        (2, [("a", b"yes"), ("b", NO)], [False, True]),
        (2, [("a", b"x"), ("b", b"y"), ("c", b"x")], [False, False, True]),
        (2, [("a", b"x"), ("b", b"y"), ("a", b"y")], [False, False, True]),
        (2, [("a", b"x"), ("a", b"y"), ("b", b"x")], [False, False, False]),
    ],
)
def test_when_it_is_decided(people: int, votes: list[tuple[str, bytes]], after: list[bool]) -> None:
    assert decided(people, *votes) == after


def test_a_no_of_one_is_not_enough_where_it_is_no_yes_or_no() -> None:
    assert decided(2, ("a", NO), no=None) == [False]


def test_two_who_changed_the_arguments_otherwise_do_not_agree() -> None:
    votes = [Vote("a", b"yes", b"3"), Vote("b", b"yes", None)]
    assert not is_decided(votes, 2, NO)
    assert is_decided(with_vote(votes, Vote("b", b"yes", b"3")), 2, NO)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([b"x", b"y"])), max_size=12), st.integers(1, 3))
def test_nobody_counts_twice(votes: list[tuple[str, bytes]], people: int) -> None:
    kept: list[Vote] = []
    for who, value in votes:
        kept = with_vote(kept, Vote(who, value))
        agreed = {each.who for each in kept if each.value == value}
        assert is_decided(kept, people, None) == (len(agreed) >= people)
