"""What holds for every test: hypothesis is repeatable, and only the tests under tests/cluster may start Ray."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

SOURCES = Path(__file__).parents[1] / ".src"
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(SOURCES), *filter(None, [os.environ.get("PYTHONPATH")])]
)  # children test it too
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read by Ray when it starts: neither a prompt nor a report

settings.register_profile("perdure", derandomize=True, deadline=None, database=None)
settings.load_profile("perdure")

CLUSTER = Path(__file__).parent / "cluster"
TOGETHER = {  # tests that run in one process, one after the other, by what their node ids have in common
    "ray": re.compile(r"^tests/cluster/"),  # two clusters at once starve each other
    "mypy": re.compile(r"::test_[a-z_]*mypy"),  # they share a cache, which two at once would fill twice
    "packaging": re.compile(r"^tests/test_packaging\.py"),  # what they install is built once
    "tray": re.compile(r"^tests/gateway/test_tray\.py"),  # they share a gateway
}


class Together(LoadScopeScheduling):
    """Gives each test to whichever process is free, and each group as a whole to one of them, the largest group first.

    pytest-xdist has groups of its own, but finds none under pytest 9.2: it writes them into node ids, which are no longer read.
    """

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def group_of(nodeid: str) -> str:
    """The name of its group; of a test that is in none, its own."""
    return next((name for name, pattern in TOGETHER.items() if pattern.search(nodeid)), nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together:
    """Asked for by pytest-xdist."""
    return Together(config, log)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what may start Ray, so that `-m "not ray"` leaves it out."""
    if CLUSTER in item.path.parents:
        item.add_marker("ray")


@pytest.fixture(scope="session")
def _the_only_process_with_ray(tmp_path_factory: pytest.TempPathFactory) -> None:
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker:
        chosen = tmp_path_factory.getbasetemp().parent / "tests-ray"
        assert not chosen.exists(), f"{chosen.read_text()} tests Ray already: see `TOGETHER`"
        chosen.write_text(worker)


@pytest.fixture(autouse=True)
def _one_process_with_ray(request: pytest.FixtureRequest) -> None:
    if CLUSTER in request.path.parents:
        request.getfixturevalue("_the_only_process_with_ray")


@pytest.fixture(autouse=True)
def _no_ray_outside_the_cluster_tests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_options: object) -> NoReturn:
        pytest.fail("only the tests under tests/cluster may start Ray")

    if CLUSTER not in request.path.parents:
        monkeypatch.setattr("ray.init", refuse)
