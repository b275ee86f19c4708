"""What type checkers say of authors' code: the files of tests/typed, whose wrong lines name the errors that they expect.

runtime.run(Reader, 3)  # error: mypy[misc] pyright[reportArgumentType]
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests.mypy_once import TYPED, Mypy
from tests.tidy import ROOT

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


@pytest.mark.slow
def test_mypy_says_what_is_expected_of_each_line(mypy: Mypy) -> None:
    found: Found = defaultdict(set)
    for each in mypy.complaints(TYPED):
        found[each.file.name, each.line].add(each.code)
    assert dict(found) == expected("mypy"), mypy.said


@pytest.mark.slow
def test_pyright_says_what_is_expected_of_each_line() -> None:
    project = ["--project", str(ROOT / "pyproject.toml")]  # or it takes a configuration that lies above this checkout
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", *project]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found: Found = defaultdict(set)
    for each in json.loads(said.stdout)["generalDiagnostics"]:
        found[Path(each["file"]).name, each["range"]["start"]["line"] + 1].add(each["rule"])
    assert dict(found) == expected("pyright"), said.stdout + said.stderr
