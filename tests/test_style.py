"""Formatting, lint and types are part of the one test command."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.checked_once import Mypy, Pyright
from tests.tidy import ROOT


def run(*command: str) -> None:
    """Run a tool of this environment over the checkout, and fail with what it says."""
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.fail(f"{' '.join(command)}\n{done.stdout}{done.stderr}", pytrace=False)


def test_ruff_finds_nothing() -> None:
    run("ruff", "check", "--quiet", ".")


def test_the_code_is_formatted() -> None:
    run("ruff", "format", "--check", ".")


@pytest.mark.slow
def test_mypy_finds_nothing_in_our_code_and_in_the_examples_of_the_readmes(mypy: Mypy) -> None:
    assert not mypy.other_complaints(), "\n".join(mypy.other_complaints())


def test_pyright_finds_nothing_in_the_examples_of_the_readmes(pyright: Pyright) -> None:
    assert not pyright.other_complaints(), pyright.said
