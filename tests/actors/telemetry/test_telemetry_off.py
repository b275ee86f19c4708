"""Telemetry that is off costs nothing: nothing is imported for it, nothing is made, nothing is kept."""

from __future__ import annotations

import subprocess
import sys
from typing import NoReturn

import pytest

from perdure.actors import Telemetry
from tests.actors.cast import Boss
from tests.actors.chat.desk import Adder
from tests.actors.chat.room import Room, visiting
from tests.tidy import ROOT

IMPORT_S = 0.15


class Untouched(Telemetry):
    """Is off, and fails if anything but that is asked of it."""

    def refuse(self, *_: object) -> NoReturn:
        pytest.fail("telemetry is off")

    tell = samples = enter = above = refuse  # type: ignore[assignment]


@visiting(Adder, telemetry=Untouched())
async def test_nothing_is_asked_of_it_and_nothing_of_it_is_kept(room: Room, /) -> None:
    assert (await room.do("chat", "sum", request_id="asked")).ok
    assert (await room.client.run(Boss, {"wait": ["Sleeper", 10, "s"]}, run_id="b")).ok
    assert not any("trace" in run.options for run in room.view.runs.values())


def test_the_import_is_quick_and_brings_no_opentelemetry() -> None:
    """Measured by processor time, the best of several tries, so that other processes do not count."""
    asked = (
        "import time; begun = time.process_time(); import perdure; took = time.process_time() - begun;"
        "import sys; print(took, any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    told = [_answer(asked).split() for _ in range(3)]
    assert {loaded for _, loaded in told} == {"False"}
    assert min(float(took) for took, _ in told) <= IMPORT_S


def test_no_process_imports_opentelemetry_for_itself() -> None:
    asked = (
        "import perdure.actors.ray_world.hosts, perdure.actors.ray_world.supervisors, perdure.actors.host.host, sys;"
        "import perdure.actors.supervisor.supervisor, perdure.actors.runtime.runtime;"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    assert _answer(asked) == "[]"


def _answer(asked: str) -> str:
    done = subprocess.run([sys.executable, "-c", asked], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()
