"""The numbered cases of fibers, schedules, sub-agents and the messenger: each table has all of them, with a test that exists or a reason.

The columns, and what a row must say, are those of the chat tables. `OPEN` says how many rows of a table may still be open; it is lowered
with every row that is closed.
"""

from __future__ import annotations

import pytest

from tests.conformance.test_chat_conformance import COLUMNS, offences, rows_of

SUB_AGENTS = {"G": 97, "R": 78, "B": 186}  # sub-agents, their routing, the base agent

CASES = {
    "fibers.csv": [f"F{number}" for number in range(1, 71)],
    "sub_agents.csv": [f"{letter}{number}" for letter, most in SUB_AGENTS.items() for number in range(1, most + 1)],
    "schedules.csv": [f"S{number}" for number in range(1, 159)],
}
OPEN: dict[str, int] = {}


@pytest.mark.parametrize("table", CASES)
def test_a_table_of_jobs_has_every_case_once_and_in_order(table: str) -> None:
    rows = rows_of(table)
    assert list(rows[0]) == COLUMNS
    assert [row["case"] for row in rows] == CASES[table]


@pytest.mark.parametrize("table", CASES)
def test_a_case_of_jobs_is_covered_by_a_test_that_exists_or_says_why_not(table: str) -> None:
    wrong = [f"{row['case']} {offence}" for row in rows_of(table) for offence in offences(row)]
    assert not wrong, "\n" + "\n".join(wrong)


@pytest.mark.parametrize("table", CASES)
def test_open_cases_of_jobs_only_ever_become_fewer(table: str) -> None:
    still_open = sum(row["status"] == "open" for row in rows_of(table))
    assert still_open <= OPEN.get(table, 0), f"{still_open} open cases in {table}"
