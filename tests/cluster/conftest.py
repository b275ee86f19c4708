"""One Ray for all tests that are marked `shared_ray`: it stays from one to the next, and is ended before a test that has one of its own.

A process is in one Ray at a time, whatever directories it opens, so a directory that holds nothing keeps it. Each test opens a directory
of its own there, with a supervisor and hosts of its own, which end when that is closed.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from perdure.actors.ray_world.driver import DRIVER, OpenDirectory
from perdure.actors.runtime import packing


class SharedRay:
    """The Ray that is kept, if there is one."""

    def __init__(self) -> None:
        self._keeper: OpenDirectory | None = None

    def keep(self) -> None:
        """Start it, if it is not there."""
        if self._keeper is None:
            keeper = OpenDirectory(Path(tempfile.mkdtemp(prefix="perdure-shared-ray-")), ensure=lambda _own: None)
            DRIVER.enter(keeper, None)
            self._keeper = keeper

    def let_go(self) -> None:
        """End it."""
        if self._keeper is not None:
            keeper, self._keeper = self._keeper, None
            DRIVER.leave(keeper)
            shutil.rmtree(keeper.data)


SHARED = SharedRay()


def have_token(file: Path) -> None:
    """See that there is a token for the Rays of this user. Of two that start at once and have none, each would make one of its own."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f"{file.name}.{os.getpid()}")
        draft.touch(0o600)
        draft.write_text(secrets.token_hex(32))
        with suppress(FileExistsError):
            os.link(draft, file)
        draft.unlink()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Function) -> Iterator[None]:
    """A program has the agents of its own module. This process has those of all that was collected, and each directory that it opens would
    be offered the code of them all: seconds, each time."""
    if Path(__file__).parent not in item.path.parents:  # pytest asks this of all items, wherever the hook stands
        return (yield)
    everything, module = packing._subclasses, item.module  # noqa: SLF001 - whose agents a process has

    def of_the_module(cls: type) -> list[type]:
        known = [each for each in vars(module).values() if isinstance(each, type)]
        return [each for each in everything(cls) if each.__module__ == module.__name__ or each in known]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "_subclasses", of_the_module)
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture of the test, of whatever scope."""
    have_token(Path.home() / ".ray" / "auth_token")
    if item.get_closest_marker("shared_ray"):
        SHARED.keep()
    else:
        SHARED.let_go()


def pytest_sessionfinish() -> None:
    """Leave nothing behind."""
    SHARED.let_go()
