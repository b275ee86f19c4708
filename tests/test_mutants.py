"""The tests can fail: each row of `tests/mutants.py` breaks a promise, and the tests that it names notice that.

A mutant is made in a copy of the checkout, never in the checkout itself. Its tests run there in a process of their own. Every fourteenth
row is tried each time, and all of them by `-m long`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit import is_test
from tests.mutants import MUTANTS, Mutant
from tests.tidy import FOLDERS, ROOT

COPIED = (*FOLDERS, "tests", ".src")
TIMEOUT_S = 300
ENVIRONMENT = {"PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def complaints(mutant: Mutant) -> Iterator[str]:
    """What is wrong with a row, as the code is now."""
    source = (ROOT / mutant.file).read_text("utf-8")
    if (count := source.count(mutant.before)) != 1:
        yield f"`before` occurs {count} times"
    compile(source.replace(mutant.before, mutant.after), mutant.file, "exec")
    yield from (f"there is no test {each}" for each in mutant.tests.split() if not is_test(f"tests/{each}"))


def test_each_row_applies_to_the_code_as_it_is_and_names_tests() -> None:
    found = [f"{mutant.file}: {mutant.promise}: {said}" for mutant in MUTANTS for said in complaints(mutant)]
    assert not found, "\n" + "\n".join(found)
    assert len({mutant.promise for mutant in MUTANTS}) == len(MUTANTS)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout."""
    copy = tmp_path_factory.mktemp("mutants")
    for folder in COPIED:
        shutil.copytree(ROOT / folder, copy / folder, symlinks=True)
    shutil.copy2(ROOT / "pyproject.toml", copy)
    return copy


def promise(number: int) -> str:
    """What the mutant of this number breaks."""
    return MUTANTS[number].promise


def demand_notice(number: int, checkout: Path) -> None:
    """Fail unless the tests of a mutant fail when it is made."""
    mutant = MUTANTS[number]
    target = checkout / mutant.file
    target.write_text(target.read_text("utf-8").replace(mutant.before, mutant.after), "utf-8")
    os.utime(target, (number, number))  # by which it is told from what was compiled before
    command = ["pytest", "-qx", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib"]
    tests = [f"tests/{each}" for each in mutant.tests.split()]
    try:
        played = subprocess.run(
            [sys.executable, "-m", *command, *tests],
            cwd=checkout,
            env={**os.environ, **ENVIRONMENT},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    finally:
        shutil.copy2(ROOT / mutant.file, target)
    assert played.returncode == pytest.ExitCode.TESTS_FAILED, played.stdout + played.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", range(0, len(MUTANTS), 14), ids=promise)
def test_of_some_promises_it_is_noticed_when_they_do_not_hold(number: int, checkout: Path) -> None:
    demand_notice(number, checkout)


@pytest.mark.long
@pytest.mark.parametrize("number", range(len(MUTANTS)), ids=promise)
def test_of_all_promises_it_is_noticed_when_they_do_not_hold(number: int, checkout: Path) -> None:
    demand_notice(number, checkout)
