"""The numbered cases of the messenger, its crash windows, weaknesses and extra cases: each with a test that exists, or a reason."""

from __future__ import annotations

from tests.conformance.test_chat_conformance import COLUMNS, offences, rows_of

TABLE = "messenger.csv"
CASES = [
    *(f"M{number}" for number in range(1, 83)),
    *(f"W{number}" for number in range(21, 29)),
    *(f"weakness {number}" for number in range(37, 57)),
    *(f"case {number}" for number in range(14, 24)),
]


def test_the_messengers_table_has_every_case_once_and_in_order() -> None:
    rows = rows_of(TABLE)
    assert list(rows[0]) == COLUMNS
    assert [row["case"] for row in rows] == CASES


def test_a_case_of_the_messenger_is_covered_by_a_test_that_exists_or_says_why_not() -> None:
    wrong = [f"{row['case']} {offence}" for row in rows_of(TABLE) for offence in offences(row)]
    assert not wrong, "\n" + "\n".join(wrong)


def test_no_case_of_the_messenger_is_open() -> None:
    assert not [row["case"] for row in rows_of(TABLE) if row["status"] == "open"]
