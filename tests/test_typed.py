"""What type checkers say of authors' code: the files of tests/typed, whose wrong lines name the errors that they expect.

runtime.run(Reader, 3)  # error: mypy[misc] pyright[reportArgumentType]
"""

from __future__ import annotations

import re
from collections import defaultdict

import pytest

from tests.checked_once import TYPED, Checker, Mypy, Pyright

FILES = sorted(TYPED.glob("*.py"))
EXPECTED = re.compile(r"# error:(.*)")

Found = dict[tuple[str, int], set[str]]
"""The codes of the errors of each line."""


def expected(checker: str) -> Found:
    found: Found = {}
    for file in FILES:
        for number, line in enumerate(file.read_text().splitlines(), 1):
            said = EXPECTED.search(line)
            codes = re.search(rf"{checker}\[([^]]*)\]", said[1]) if said else None
            if codes:
                found[file.name, number] = {code.strip() for code in codes[1].split(",")}
    return found


def found(checker: Checker) -> Found:
    told: Found = defaultdict(set)
    for each in checker.complaints(TYPED):
        told[each.file.name, each.line].add(each.code)
    return dict(told)


@pytest.mark.slow
def test_mypy_says_what_is_expected_of_each_line(mypy: Mypy) -> None:
    assert found(mypy) == expected("mypy"), mypy.said


@pytest.mark.slow
def test_pyright_says_what_is_expected_of_each_line(pyright: Pyright) -> None:
    assert found(pyright) == expected("pyright"), pyright.said
