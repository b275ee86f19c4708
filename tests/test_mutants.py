"""The tests can fail: each row of `tests/mutants.py` breaks a promise, and the tests that it names notice that.

A mutant is made in a copy of the checkout, never in the checkout itself. Its tests run there in a process of their own: a fork of one that
has imported the libraries already, and none of our code. Every fourteenth row is tried by `-m thorough`, and all of them by `-m long`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kit import is_test
from tests.mutants import MUTANTS, Mutant
from tests.tidy import FOLDERS, ROOT

COPIED = (*FOLDERS, "tests", ".src")
TIMEOUT_S = 300
ENVIRONMENT = {"PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
COMMAND = ["-qx", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib"]

WARM = f"""
import json, os, signal, sys
import duckdb, hypothesis, openai, psutil, pydantic_ai.models.openai, pydantic_ai.models.function, pytest, ray, starlette, telegram
import httpx, httpx2, rich, typer, uvicorn, xdist
assert not any(name.partition(".")[0] in ("perdure", "tests") for name in sys.modules)
for line in sys.stdin:
    tests, log = json.loads(line)
    child = os.fork()
    if child == 0:
        signal.alarm({TIMEOUT_S})
        said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(said, 1)
        os.dup2(said, 2)
        try:
            code = int(pytest.main([*{COMMAND!r}, *tests]))
            sys.stdout.flush()
        finally:
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


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


class Checkout:
    """A copy of the checkout, in which tests are run."""

    def __init__(self, folder: Path) -> None:
        for name in COPIED:
            shutil.copytree(ROOT / name, folder / name, symlinks=True)
        for name in ("pyproject.toml", "README.md"):
            shutil.copy2(ROOT / name, folder)
        self._folder, self._log = folder, folder / "log"
        self._warm = subprocess.Popen(
            [sys.executable, "-c", WARM],
            cwd=folder,
            env={**os.environ, **ENVIRONMENT},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        """End its process."""
        self._warm.communicate()

    @contextmanager
    def changed(self, mutant: Mutant, number: int) -> Iterator[None]:
        """Make a mutant for a while."""
        target = self._folder / mutant.file
        target.write_text(target.read_text("utf-8").replace(mutant.before, mutant.after), "utf-8")
        os.utime(target, (number, number))  # by which it is told from what was compiled before
        try:
            yield
        finally:
            shutil.copy2(ROOT / mutant.file, target)

    def test(self, tests: list[str]) -> tuple[int, str]:
        """Run tests. Returns how that ended, and what it said."""
        assert self._warm.stdin is not None
        assert self._warm.stdout is not None
        self._warm.stdin.write(json.dumps([tests, str(self._log)]) + "\n")
        self._warm.stdin.flush()
        return int(self._warm.stdout.readline()), self._log.read_text("utf-8")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    made = Checkout(tmp_path_factory.mktemp("mutants"))
    yield made
    made.close()


def promise(number: int) -> str:
    """What the mutant of this number breaks."""
    return MUTANTS[number].promise


def demand_notice(number: int, checkout: Checkout) -> None:
    """Fail unless the tests of a mutant fail when it is made."""
    mutant = MUTANTS[number]
    with checkout.changed(mutant, number):
        ended, said = checkout.test([f"tests/{each}" for each in mutant.tests.split()])
    assert ended == pytest.ExitCode.TESTS_FAILED, said


@pytest.mark.thorough
@pytest.mark.parametrize("number", range(0, len(MUTANTS), 14), ids=promise)
def test_of_some_promises_it_is_noticed_when_they_do_not_hold(number: int, checkout: Checkout) -> None:
    demand_notice(number, checkout)


@pytest.mark.long
@pytest.mark.parametrize("number", range(len(MUTANTS)), ids=promise)
def test_of_all_promises_it_is_noticed_when_they_do_not_hold(number: int, checkout: Checkout) -> None:
    demand_notice(number, checkout)
