"""The numbered cases of the specifications: each is shown by a test, or differs on purpose.

`@pytest.mark.shows(fibers="F1 F2")` says which cases of `fibers` a test shows. A row of `fibers.csv` says why a case `differs`, or why it
`differs_in_part`: then a test shows the rest of it.
"""

from __future__ import annotations

import ast
import csv
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

from tests.tidy import ROOT, Source, named_tests, own_tests, sources

Row = dict[str, str]

COLUMNS = ["case", "suite", "title", "status", "reason"]
STATUSES = {"differs", "differs_in_part"}
SHORTEST_REASON = len("no such thing here")


def _numbered(prefix: str, last: int, first: int = 1) -> list[str]:
    return [f"{prefix}{number}" for number in range(first, last + 1)]


CASES = {  # cases and weaknesses, by the numbers that the specifications give them
    "agent_tools": [
        *_numbered("", 184),
        *(f"W-{number:02}" for number in range(1, 56) if number not in {22, 43, 44, 45, 46, 53}),
    ],
    "chat_recovery": [*(f"C-{number:04}" for number in range(1, 1427)), *(f"W-{number:02}" for number in range(1, 50))],
    "clients": [f"P-{number:03}" for number in range(1, 201)],
    "fibers": [*_numbered("F", 70), *_numbered("weakness-", 17), *_numbered("W", 13), *_numbered("case-", 7)],
    "messenger": [
        *_numbered("M", 82),
        *_numbered("W", 28, first=21),
        *_numbered("weakness-", 56, first=37),
        *_numbered("case-", 23, first=14),
    ],
    "schedules": _numbered("S", 158),
    "sub_agents": [
        *_numbered("G", 97),
        *_numbered("R", 78),
        *_numbered("B", 186),
        *_numbered("weakness-", 36, first=30),
    ],
    "transport_recovery": [*_numbered("", 63), *_numbered("A", 19), *_numbered("B", 15)],
}


@cache
def rows_of(table: str) -> list[Row]:
    """The cases of a table that differ."""
    with (Path(__file__).parent / f"{table}.csv").open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def marks_of(source: Source) -> Iterator[tuple[str, str]]:
    """The table and the case of everything that the tests of a file show. A mark elsewhere than at a test is none."""
    for each in chain.from_iterable(test.decorator_list for test in own_tests(source)):
        if isinstance(each, ast.Call) and ast.unparse(each.func) == "pytest.mark.shows":
            for keyword in each.keywords:
                yield from ((str(keyword.arg), case) for case in ast.literal_eval(keyword.value).split())


@cache
def modules_of_tests() -> set[str]:
    """The names of the modules in which tests are."""
    return {Path(path).stem for paths in named_tests().values() for path in paths}


@cache
def shown() -> dict[str, set[str]]:
    """The cases that tests show, by table."""
    found = defaultdict(set)
    for source in sources("tests"):
        for table, case in marks_of(source):
            found[table].add(case)
    return found


def offences(cases: list[str], rows: list[Row], marked: set[str]) -> Iterator[str]:
    """What is wrong with a table."""
    status = {row["case"]: row["status"] for row in rows}
    order = [case for case in cases if case in status]
    if [row["case"] for row in rows] != order:
        yield "its rows are not in the order of its cases, each once"
    yield from (f"{case} is no case" for case in sorted(marked - {*cases}))
    for case in cases:
        if (case in marked) is (status.get(case) == "differs"):
            yield f"{case} differs, and a test shows it" if case in marked else f"no test shows {case}"
    yield from (f"{row['case']} {flaw}" for row in rows for flaw in flaws(row))


def flaws(row: Row) -> Iterator[str]:
    """What is wrong with a row."""
    if list(row) != COLUMNS or not row["title"] or not row["suite"]:
        yield "has no title or no suite"
    if row["status"] not in STATUSES:
        yield f"has the status {row['status']!r}"
    if len(row["reason"]) < SHORTEST_REASON:
        yield "does not say why it differs"
    for name in re.findall(r"\btest_\w+", row["reason"]):
        if name not in named_tests() and name not in modules_of_tests():
            yield f"points to a test that does not exist: {name}"


def test_every_table_is_checked() -> None:
    assert {path.stem for path in Path(__file__).parent.glob("*.csv")} == set(CASES) >= set(shown())


@pytest.mark.parametrize("table", CASES)
def test_each_case_is_shown_by_a_test_or_differs_and_says_why(table: str) -> None:
    wrong = list(offences(CASES[table], rows_of(table), shown()[table]))
    assert not wrong, "\n" + "\n".join(wrong)


def test_the_guide_counts_the_cases() -> None:
    counts = Counter(row["status"] for table in CASES for row in rows_of(table))
    every = sum(map(len, CASES.values()))
    said = (
        f"of {every:,} cases, tests marked with them show {every - counts['differs']:,}; "
        f"{counts['differs']:,} differ on purpose"
    )
    assert said in " ".join((ROOT / "tests/README.md").read_text("utf-8").split())


GOOD = {"case": "F2", "suite": "s", "title": "t", "status": "differs", "reason": "there is no such thing here"}


@pytest.mark.parametrize(
    "flaw",
    [
        {"title": ""},
        {"status": "later"},
        {"status": "differs_in_part"},  # and no test shows the rest
        {"case": "F1"},  # which a test shows
        {"case": "F3"},
        {"reason": "because"},
        {"reason": "decided: test_nothing, which is not there"},
    ],
)
def test_a_row_with_a_flaw_is_noticed(flaw: Row) -> None:
    assert not list(offences(["F1", "F2"], [GOOD], {"F1"}))
    assert list(offences(["F1", "F2"], [{**GOOD, **flaw}], {"F1"}))


@pytest.mark.parametrize("marked", [set(), {"F1", "F2"}, {"F1", "F3"}])
def test_a_mark_too_many_or_too_few_is_noticed(marked: set[str]) -> None:
    assert list(offences(["F1", "F2"], [GOOD], marked))


def test_a_mark_counts_at_a_test_alone() -> None:
    mark = '@pytest.mark.shows(fibers="F1 F2", clients="P-001")\n'
    text = f"{mark}def helper(): ...\n{mark}@pytest.mark.long\nasync def test_it(): ..."
    assert [*marks_of(Source("test_x.py", text))] == [("fibers", "F1"), ("fibers", "F2"), ("clients", "P-001")]
