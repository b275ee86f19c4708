"""Every combination of evidence has exactly one letter of the table in `policies.recovery`, and its verdict."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest

from perdure.policies import Attempts, Evidence, Fail, Limits, RetryAfter, Seal, judge

LIMITS = Limits(recovery_work_max=10, attempts_max=3, retry_first_ms=200, retry_most_ms=1_000)

ROWS = {
    "A": lambda torn, work, attempts, collected: torn,
    "B": lambda torn, work, attempts, collected: not (torn or work),
    "C": lambda torn, work, attempts, collected: not torn and work and attempts,
    "D": lambda torn, work, attempts, collected: not (torn or attempts or collected) and work,
    "E": lambda torn, work, attempts, collected: not (torn or attempts) and work and collected,
}
COMBINATIONS = list(product((False, True), repeat=4))


def evidence(torn: bool, work: bool, attempts: bool, collected: bool, losses: int = 1) -> Evidence:
    return Evidence(
        torn_down=torn,
        attempt=3 if work else 10,
        attempts=Attempts(2 if attempts else 3, 3),
        losses=losses,
        collected=collected,
    )


def letter_of(combination: tuple[bool, ...]) -> str:
    letters = [letter for letter, row in ROWS.items() if row(*combination)]
    assert len(letters) == 1, (combination, letters)
    return letters[0]


@pytest.mark.parametrize("combination", COMBINATIONS, ids=lambda row: "".join("ny"[each] for each in row))
def test_each_combination_has_one_letter_and_its_verdict(combination: tuple[bool, ...]) -> None:
    known = evidence(*combination)
    verdict = judge(known, LIMITS)
    expected = {"A": Seal, "B": Fail, "C": RetryAfter, "D": RetryAfter, "E": Fail}[letter_of(combination)]
    assert type(verdict) is expected
    if isinstance(verdict, RetryAfter):
        assert known.attempts.are_used_up is (letter_of(combination) == "D")


def test_every_letter_occurs() -> None:
    assert Counter(map(letter_of, COMBINATIONS)) == {"A": 8, "B": 4, "C": 2, "D": 1, "E": 1}


def test_the_first_loss_costs_no_pause_and_the_next_ones_double_up_to_a_bound() -> None:
    verdicts = [judge(evidence(False, True, True, False, losses), LIMITS) for losses in (1, 2, 3, 4, 9)]
    assert [verdict.after_ms for verdict in verdicts if isinstance(verdict, RetryAfter)] == [0, 400, 800, 1_000, 1_000]


def test_a_failure_says_which_limit_applied() -> None:
    used_up = judge(evidence(False, False, True, False), LIMITS)
    no_attempts = judge(evidence(False, True, False, True), LIMITS)
    assert isinstance(used_up, Fail)
    assert isinstance(no_attempts, Fail)
    assert "recovery_work_max is 10" in used_up.why
    assert "3 attempts" in no_attempts.why


def test_a_single_attempt_is_told_in_the_singular() -> None:
    at_most_once = evidence(False, True, False, True)._replace(attempts=Attempts(1, 1))
    verdict = judge(at_most_once, LIMITS)
    assert isinstance(verdict, Fail)
    assert "1 attempt without" in verdict.why
