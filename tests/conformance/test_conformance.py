"""Every numbered case of the specification has a test that exists, or an honest reason why it cannot apply."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.kit import is_test

TABLE = Path(__file__).parent / "agent_tools.csv"
COLUMNS = ["case", "upstream_file", "title", "covered_by", "reason_if_not"]
CHAT = "chat agents: next capability"

with TABLE.open(encoding="utf-8", newline="") as lines:
    ROWS = list(csv.DictReader(lines))


def test_the_table_has_every_case_once_and_in_order() -> None:
    assert list(ROWS[0]) == COLUMNS
    assert [row["case"] for row in ROWS] == [str(number) for number in range(1, 185)]


@pytest.mark.parametrize("row", ROWS, ids=[row["case"] for row in ROWS])
def test_a_case_is_covered_by_a_test_that_exists_or_says_why_not(row: dict[str, str]) -> None:
    assert row["title"]
    assert row["upstream_file"]
    assert bool(row["covered_by"]) is not bool(row["reason_if_not"])
    if row["covered_by"]:
        assert is_test(row["covered_by"]), row["covered_by"]


def test_what_is_left_to_chat_agents_says_so_in_the_same_words() -> None:
    reasons = {row["reason_if_not"] for row in ROWS if "chat agents" in row["reason_if_not"]}
    assert reasons <= {CHAT}


@pytest.mark.parametrize(
    "node", ["tests/actors/test_link.py::test_nothing", "tests/kit.py::asked", "tests/nowhere.py::test_x", ""]
)
def test_a_name_that_is_no_test_is_noticed(node: str) -> None:
    assert not is_test(node)
