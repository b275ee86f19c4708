"""The numbered cases of chat and transport recovery: covered by a test that exists, not applicable for a reason, or openly still open.

An `open` row is one whose behaviour lives in the engine and has no test of its own yet; its reason may name the test of the decision
behind it. There may only ever be fewer of them: `OPEN` is lowered with every row that is closed.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.kit import is_test

COLUMNS = ["case", "suite", "title", "status", "covered_by", "reason"]
STATUSES = {"covered", "open", "not_applicable"}
SUITES = [(32, 48), (76, 92), (157, 341), (343, 413), (419, 691), (868, 942), (1143, 1287)]
CASES = {
    "chat_recovery.csv": [f"C-{number:04d}" for first, last in SUITES for number in range(first, last + 1)],
    "transport_recovery.csv": [*(str(number) for number in range(1, 64)), *(f"A{number}" for number in range(1, 20))],
}
OPEN = {"chat_recovery.csv": 0, "transport_recovery.csv": 0}

Row = dict[str, str]


def rows_of(table: str) -> list[Row]:
    with (Path(__file__).parent / table).open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def offences(row: Row) -> Iterable[str]:
    """What is wrong with a row."""
    if not row["title"] or not row["suite"]:
        yield "has no title or no suite"
    if row["status"] not in STATUSES:
        yield f"has the status {row['status']!r}"
    if (row["status"] == "covered") is not bool(row["covered_by"]):
        yield "is covered without a test, or has a test and is not covered"
    if row["covered_by"] and not is_test(row["covered_by"]):
        yield f"names a test that does not exist: {row['covered_by']}"
    if row["status"] == "not_applicable" and len(row["reason"]) < len("no such thing here"):
        yield "does not say why it cannot apply"
    _, names, test = row["reason"].partition("tests/")
    if "::" in test and not is_test(names + test.split(",")[0]):
        yield f"points to a test that does not exist: {names}{test}"


@pytest.mark.parametrize("table", CASES)
def test_a_table_has_every_case_once_and_in_order(table: str) -> None:
    rows = rows_of(table)
    assert list(rows[0]) == COLUMNS
    assert [row["case"] for row in rows] == CASES[table]


@pytest.mark.parametrize("table", CASES)
def test_a_case_is_covered_by_a_test_that_exists_or_says_why_not(table: str) -> None:
    wrong = [f"{row['case']} {offence}" for row in rows_of(table) for offence in offences(row)]
    assert not wrong, "\n" + "\n".join(wrong)


@pytest.mark.parametrize("table", CASES)
def test_open_cases_only_ever_become_fewer(table: str) -> None:
    still_open = sum(row["status"] == "open" for row in rows_of(table))
    assert still_open <= OPEN[table], f"{still_open} open cases in {table}, and there were {OPEN[table]}"


GOOD = {"case": "1", "suite": "s", "title": "t", "status": "open", "covered_by": "", "reason": ""}


@pytest.mark.parametrize(
    "flaw",
    [
        {"title": ""},
        {"status": "later"},
        {"status": "covered"},
        {"status": "covered", "covered_by": "tests/policies/test_retry.py::test_nothing"},
        {"covered_by": "tests/policies/test_retry.py::test_a_pause_doubles_with_each_failure_up_to_its_bound"},
        {"status": "not_applicable"},
        {"reason": "decided: tests/policies/test_retry.py::test_nothing, which is not there"},
    ],
)
def test_a_row_with_a_flaw_is_noticed(flaw: Row) -> None:
    assert not list(offences(GOOD))
    assert list(offences({**GOOD, **flaw}))
