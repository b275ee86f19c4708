"""A plugin of pytest that says which tests reach which lines of the rooms, and how long each test takes (`test_mutation_sample`).

It is loaded with `-p tests.reach`, and `--reach` names the file to write: seconds by test, and by file and line the tests that came there.
Lines that are only reached while a module is imported have none.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

ROOMS = tuple(f"actors/{room}" for room in ("gateway", "serve", "mcp_server", "chat", "messenger"))
IMPORTED = ""  # the context of what no test does itself

_coverage = coverage.Coverage(data_file=None, include=[f"*/{room}/*" for room in ROOMS], config_file=False)
_seconds: dict[str, float] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Say where to write."""
    parser.addoption("--reach", type=Path)


def pytest_load_initial_conftests() -> None:
    """Begin before anything of ours is imported."""
    _coverage.start()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Count what happens from here to the end of the test, with its fixtures, as the test's."""
    _coverage.switch_context(item.nodeid)
    began_s = time.monotonic()
    result = yield
    _seconds[item.nodeid] = time.monotonic() - began_s
    _coverage.switch_context(IMPORTED)
    return result


@pytest.hookimpl
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A test that fails or is skipped as the code is can notice nothing."""
    if not report.passed:
        _unfit.add(report.nodeid)


_unfit: set[str] = set()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write what was found."""
    _coverage.stop()
    found, here = _coverage.get_data(), Path.cwd().resolve()
    files = {file: Path(file).resolve().relative_to(here).as_posix() for file in found.measured_files()}
    reached = {
        name: {line: sorted(set(tests) - _unfit - {IMPORTED}) for line, tests in found.contexts_by_lineno(file).items()}
        for file, name in files.items()
        if name.startswith(ROOMS)
    }
    seconds = {test: round(took, 2) for test, took in _seconds.items() if test not in _unfit}
    session.config.getoption("reach").write_text(json.dumps({"seconds": seconds, "reached": reached}), "utf-8")
