"""The numbered cases of the specifications: each has one row, and the row is true.

A row is `covered` by a test that exists, `differs` on purpose and says why, or is `not_yet`: not built, or not reviewed. There may only
ever be fewer of the last: `NOT_YET` is lowered with each row that is closed.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.kit import is_test
from tests.tidy import ROOT

Row = dict[str, str]

COLUMNS = ["case", "suite", "title", "status", "covered_by", "reason"]
STATUSES = {"covered", "differs", "not_yet"}
SHORTEST_REASON = len("no such thing here")


def _numbered(prefix: str, last: int, first: int = 1) -> list[str]:
    return [f"{prefix}{number}" for number in range(first, last + 1)]


CASES = {
    "agent_tools.csv": _numbered("", 184),
    "chat_recovery.csv": [f"C-{number:04d}" for number in range(1, 1427)],
    "clients.csv": [f"P-{number:03d}" for number in range(1, 201)],
    "fibers.csv": _numbered("F", 70),
    "messenger.csv": [
        *_numbered("M", 82),
        *_numbered("W", 28, first=21),
        *_numbered("weakness ", 56, first=37),
        *_numbered("case ", 23, first=14),
    ],
    "schedules.csv": _numbered("S", 158),
    "sub_agents.csv": [*_numbered("G", 97), *_numbered("R", 78), *_numbered("B", 186)],
    "transport_recovery.csv": [*_numbered("", 63), *_numbered("A", 19)],
}
NOT_YET = {
    "agent_tools.csv": 0,
    "chat_recovery.csv": 0,
    "clients.csv": 0,
    "fibers.csv": 0,
    "messenger.csv": 0,
    "schedules.csv": 0,
    "sub_agents.csv": 0,
    "transport_recovery.csv": 0,
}


def rows_of(table: str) -> list[Row]:
    """The rows of one table."""
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
    if row["status"] == "differs" and len(row["reason"]) < SHORTEST_REASON:
        yield "does not say why it differs"
    if row["status"] == "not_yet" and not row["reason"]:
        yield "does not say what is missing"
    _, names, test = row["reason"].partition("tests/")
    if "::" in test and not is_test(names + test.split(",")[0]):
        yield f"points to a test that does not exist: {names}{test}"


def test_each_table_is_checked() -> None:
    assert {path.name for path in Path(__file__).parent.glob("*.csv")} == set(CASES) == set(NOT_YET)


@pytest.mark.parametrize("table", CASES)
def test_a_table_has_every_case_once_and_in_order(table: str) -> None:
    rows = rows_of(table)
    assert list(rows[0]) == COLUMNS
    assert [row["case"] for row in rows] == CASES[table]


@pytest.mark.parametrize("table", CASES)
def test_a_row_names_a_test_that_exists_or_says_why_not(table: str) -> None:
    wrong = [f"{row['case']} {offence}" for row in rows_of(table) for offence in offences(row)]
    assert not wrong, "\n" + "\n".join(wrong)


@pytest.mark.parametrize("table", CASES)
def test_cases_that_are_not_yet_built_only_ever_become_fewer(table: str) -> None:
    counts = Counter(row["status"] for row in rows_of(table))
    print(f"{table}: {counts['covered']} covered, {counts['differs']} differ, {counts['not_yet']} not yet")  # noqa: T201 - shown by `-rP`
    assert counts["not_yet"] <= NOT_YET[table], (
        f"{counts['not_yet']} rows of {table} are not yet; there were {NOT_YET[table]}"
    )


def test_the_guide_counts_the_cases() -> None:
    counts = Counter(row["status"] for table in CASES for row in rows_of(table))
    said = (
        f"Of {counts.total():,} cases {counts['covered']:,} are covered by a named test, {counts['differs']:,} differ on "
        f"purpose, and {counts['not_yet']:,} are not yet built"
    )
    assert said in " ".join((ROOT / "tests/README.md").read_text("utf-8").split())


GOOD = {"case": "1", "suite": "s", "title": "t", "status": "not_yet", "covered_by": "", "reason": "not built yet"}


@pytest.mark.parametrize(
    "flaw",
    [
        {"title": ""},
        {"status": "later"},
        {"status": "covered"},
        {"status": "covered", "covered_by": "tests/policies/test_retry.py::test_nothing"},
        {"covered_by": "tests/policies/test_retry.py::test_a_pause_doubles_with_each_failure_up_to_its_bound"},
        {"status": "differs", "reason": ""},
        {"reason": ""},
        {"reason": "decided: tests/policies/test_retry.py::test_nothing, which is not there"},
    ],
)
def test_a_row_with_a_flaw_is_noticed(flaw: Row) -> None:
    assert not list(offences(GOOD))
    assert list(offences({**GOOD, **flaw}))


@pytest.mark.parametrize(
    "node", ["tests/actors/test_link.py::test_nothing", "tests/kit.py::asked", "tests/nowhere.py::test_x", ""]
)
def test_a_name_that_is_no_test_is_noticed(node: str) -> None:
    assert not is_test(node)
