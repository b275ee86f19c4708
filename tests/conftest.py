"""What holds for every test: hypothesis is repeatable, and only the tests under tests/cluster may start Ray."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import settings

SOURCES = Path(__file__).parents[1] / ".src"
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(SOURCES), *filter(None, [os.environ.get("PYTHONPATH")])]
)  # children test it too
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read by Ray when it starts: neither a prompt nor a report

settings.register_profile("perdure", derandomize=True, deadline=None, database=None)
settings.load_profile("perdure")

CLUSTER = Path(__file__).parent / "cluster"


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what may start Ray, so that `-m "not ray"` leaves it out, and keep it in one process: two clusters at once starve each other."""
    if CLUSTER in item.path.parents:
        item.add_marker("ray")
        item.add_marker(pytest.mark.xdist_group("ray"))


@pytest.fixture(autouse=True)
def _no_ray_outside_the_cluster_tests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_options: object) -> NoReturn:
        pytest.fail("only the tests under tests/cluster may start Ray")

    if CLUSTER not in request.path.parents:
        monkeypatch.setattr("ray.init", refuse)
