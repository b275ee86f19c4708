"""What holds for every test: hypothesis is repeatable, and only the tests under tests/cluster may start Ray."""

from __future__ import annotations

import gc
import os
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from xdist.scheduler import LoadScopeScheduling

from tests.mypy_once import Mypy
from tests.readmes.pages import write_modules

SOURCES = Path(__file__).parents[1] / ".src"
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(SOURCES), *filter(None, [os.environ.get("PYTHONPATH")])]
)  # children test it too
if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # of a script that began this in the background; children would ignore it, too
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read by Ray when it starts: neither a prompt nor a report

settings.register_profile("perdure", derandomize=True, deadline=None, database=None)
settings.load_profile("perdure")
providers._get_local_constants = (  # noqa: SLF001 - there is no setting
    lambda: providers._local_constants  # noqa: SLF001
)  # not those in all that was imported: it takes each process seconds to read, and the examples would depend on what else is tested

gc.disable()  # until everything is collected: what is imported stays, and searching it for cycles takes a quarter of the time

CLUSTER = Path(__file__).parent / "cluster"
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
TOGETHER = {  # tests that run in one process, one after the other, by what their node ids have in common
    "a Ray each": re.compile(r"^tests/cluster/test_(chat_stories|code_|fan_out|kills|looks|ray_death|two_nodes)"),
    "one Ray": re.compile(
        r"^tests/cluster/"
    ),  # the others, most of which share one; more Rays at once starve each other
    "mypy": re.compile(r"::test_[a-z_]*mypy"),  # they share one run of it
    "packaging": re.compile(r"^tests/test_packaging\.py"),  # what they install is built once
    "tidy": re.compile(r"^tests/(test_(tidy|dependencies|mutants)|conformance)"),  # they parse all files once
    "dashboard": re.compile(r"^tests.gateway.test_dashboard\.py"),  # they share a gateway
}


class Together(LoadScopeScheduling):
    """Gives each test to whichever process is free, and each group as a whole to one of them, the largest group first.

    What waits for other processes waits in those of the first two groups, so that one process more than there are cores has work for all.

    pytest-xdist has groups of its own, but finds none under pytest 9.2: it writes them into node ids, which are no longer read.
    """

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

    def _pending_of(self, workload: dict[str, dict[str, bool]]) -> int:
        for group in [group for group, tests in workload.items() if all(tests.values())]:
            del workload[group]  # it would be counted after each of thousands of tests
        return super()._pending_of(workload)


def group_of(nodeid: str) -> str:
    """The name of its group; of a test that is in none, its own."""
    return next((name for name, pattern in TOGETHER.items() if pattern.search(nodeid)), nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together:
    """Asked for by pytest-xdist."""
    return Together(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What shares a Ray is one after the other. Where several processes test, what takes long is begun first, so that none of it is left
    over when there is nothing else to do."""
    items.sort(key=lambda item: CLUSTER in item.path.parents and item.get_closest_marker("shared_ray") is None)
    if WORKER:
        items.sort(key=lambda item: not _takes_long(item) or CLUSTER in item.path.parents)


def pytest_collection_finish() -> None:
    """What is there now stays to the end, so the collector need not look at it again."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """Python takes it all down now. What it does not find, DuckDB would call leaked."""
    gc.unfreeze()


def _takes_long(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) is not None for name in ("slow", "thorough"))


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what may start Ray, so that `-m "not ray"` leaves it out."""
    if CLUSTER in item.path.parents:
        item.add_marker("ray")


@pytest.fixture(scope="session")
def mypy(tmp_path_factory: pytest.TempPathFactory) -> Mypy:
    """What mypy says of our code, of the files of tests/typed, and of the examples of the READMEs."""
    examples = tmp_path_factory.mktemp("examples")
    write_modules(examples)
    return Mypy(examples)


@pytest.fixture(autouse=True)
def _each_group_with_ray_in_one_process(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if WORKER and CLUSTER in request.path.parents:
        chosen = tmp_path_factory.getbasetemp().parent / group_of(request.node.nodeid)
        with suppress(FileExistsError), chosen.open("x") as file:
            file.write(WORKER)
        assert chosen.read_text() == WORKER, f"{chosen.read_text()} tests with {chosen.name} already: see `TOGETHER`"


@pytest.fixture(autouse=True)
def _no_ray_outside_the_cluster_tests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_options: object) -> NoReturn:
        pytest.fail("only the tests under tests/cluster may start Ray")

    if CLUSTER not in request.path.parents:
        monkeypatch.setattr("ray.init", refuse)
