"""What holds for every test: hypothesis is repeatable, and only the tests under tests/cluster may start Ray."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from xdist.scheduler import LoadScopeScheduling

from tests.checked_once import Mypy, Pyright
from tests.readmes.pages import write_modules
from tests.tidy import parsed

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

CLUSTER = "tests/cluster/"  # where the ids of these tests begin
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
TOGETHER = {  # tests that run in one process, one after the other, by what their node ids have in common
    "a Ray each": re.compile(r"^tests/cluster/test_(chat_stories|code_|fan_out|kills|looks|ray_death|two_nodes)"),
    "one Ray": re.compile(
        r"^tests/cluster/"
    ),  # the others, most of which share one; more Rays at once starve each other
    "mypy": re.compile(r"::test_[a-z_]*mypy"),  # they share one run of it
    "pyright": re.compile(r"::test_[a-z_]*pyright"),  # the same
    "packaging": re.compile(r"^tests/test_packaging\.py"),  # what they install is built once
    "tidy": re.compile(r"^tests/(test_(tidy|dependencies|mutants)|conformance)"),  # they parse all files once
    "dashboard": re.compile(r"^tests/gateway/test_dashboard\.py"),  # they share a gateway, as those below do
    "questions": re.compile(r"^tests/gateway/test_dashboard_asks\.py"),
    "mcp": re.compile(r"^tests/gateway/test_mcp(_refusals)?\.py"),
    "client": re.compile(r"^tests/gateway/test_(connect|rest_keeping)\.py"),
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
    items.sort(key=lambda item: item.nodeid.startswith(CLUSTER) and item.get_closest_marker("shared_ray") is None)
    if WORKER:
        items.sort(key=lambda item: not _takes_long(item) or item.nodeid.startswith(CLUSTER))


def pytest_collection_finish() -> None:
    """What is there now stays to the end, so the collector need not look at it again."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """Python takes it all down now. What it does not find, DuckDB would call leaked; and it looks at all that is left, again and again."""
    parsed.cache_clear()
    gc.unfreeze()


def _takes_long(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) is not None for name in ("slow", "thorough"))


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what may start Ray, so that `-m "not ray"` leaves it out."""
    if item.nodeid.startswith(CLUSTER):
        item.add_marker("ray")


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The modules of the examples of the READMEs."""
    made = tmp_path_factory.mktemp("examples")
    write_modules(made)
    return made


@pytest.fixture(scope="session")
def mypy(examples: Path) -> Mypy:
    """What mypy says of our code, of the files of tests/typed, and of the examples of the READMEs."""
    return Mypy(examples)


@pytest.fixture(scope="session")
def pyright(examples: Path) -> Pyright:
    """What pyright says of the same, our code apart."""
    return Pyright(examples)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Only some tests may start Ray. No fixture sees to that: it would be set up 12,000 times."""
    if _may_start_ray(item):
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ray.init", _refuse)
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """An async test is a story: played as `tests.kit.played` says, or in a simulated cluster if it asks for its `stage`, or on a loop."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}  # noqa: SLF001 - those of the test itself
    if "stage" in given:
        from tests.kit import play  # noqa: PLC0415 - the process that hands out the tests needs none of our code

        del given["stage"]
        getattr(test, "play", play)(lambda stage: test(stage=stage, **given))
    elif hasattr(test, "play"):
        test.play(lambda *handed: test(*handed, **given))
    else:
        asyncio.run(test(**given))
    return True


@pytest.fixture
def stage() -> None:
    """It is there when the story is played."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Those of a group start it in one process."""
    if WORKER and _may_start_ray(item):
        places = item.config._tmp_path_factory  # type: ignore[attr-defined]  # noqa: SLF001 - a fixture only gives it to fixtures
        chosen = places.getbasetemp().parent / group_of(item.nodeid)
        with suppress(FileExistsError), chosen.open("x") as file:
            file.write(WORKER)
        assert chosen.read_text() == WORKER, f"{chosen.read_text()} tests with {chosen.name} already: see `TOGETHER`"


def _may_start_ray(item: pytest.Item) -> bool:
    return item.nodeid.startswith(CLUSTER)


def _refuse(*_args: object, **_options: object) -> NoReturn:
    pytest.fail("only the tests under tests/cluster may start Ray")
