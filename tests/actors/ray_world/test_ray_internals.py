"""The canary for `actors/ray_world/ray_internals.py`: it fails when a new version of Ray has moved what Ray never promised."""

from __future__ import annotations

import json
import mmap
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from perdure.actors.ray_world.cluster_record import JOINED, SETTINGS
from perdure.actors.ray_world.ray_connection import cause_of
from perdure.actors.ray_world.ray_internals import GLOBAL_WORKER, INTERNALS, TEXTS, Internal
from tests.tidy import ROOT

ELSEWHERE = "OMP_NUM_THREADS"  # a setting that is not Ray's


@contextmanager
def files_of_ray() -> Iterator[list[mmap.mmap]]:
    """Ray's binaries, and its Python modules that start processes."""
    spec = find_spec("ray")
    assert spec is not None
    assert spec.origin is not None
    home = Path(spec.origin).parent
    names = ["_raylet.so", "core/src/ray/raylet/raylet", "core/src/ray/gcs/gcs_server"]
    modules = [*(home / "_private").glob("*.py"), *(home / "_common").rglob("*.py")]
    with ExitStack() as opened:
        files = [opened.enter_context(path.open("rb")) for path in [*(home / name for name in names), *modules]]
        yield [
            opened.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            for file in files
            if file.seek(0, 2)
        ]


def missing(texts: set[str]) -> set[str]:
    """Which of these texts occur in no file of Ray."""
    left = set(texts)
    with files_of_ray() as files:
        for file in files:
            left -= {text for text in left if file.find(text.encode()) >= 0}
    return left


LOOK = """
import inspect, json
from perdure.actors.ray_world.ray_internals import INTERNALS
def parameters(it):
    return list(inspect.signature(it).parameters) if callable(it) and not hasattr(it, "DESCRIPTOR") else None
print(json.dumps({each.path: parameters(each.find()) for each in INTERNALS}))
"""

BEGIN = """
import os
from perdure.actors.ray_world.ray_internals import DIE_WITH_STARTER, as_our_own
ray_s_own = DIE_WITH_STARTER.find()
with as_our_own():
    DIE_WITH_STARTER.find()()
print(os.getsid(0) == os.getpid(), DIE_WITH_STARTER.find() is not ray_s_own)
"""


@pytest.fixture(scope="module")
def parameters() -> dict[str, list[str] | None]:
    """The parameters of each function, None for what is none: in a process that has replaced nothing of Ray."""
    told = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True)
    found: dict[str, list[str] | None] = json.loads(told.stdout)
    return found


@pytest.mark.parametrize("internal", INTERNALS, ids=lambda each: each.path)
def test_what_we_use_of_ray_s_private_parts_is_where_it_was_and_takes_what_it_took(
    internal: Internal, parameters: dict[str, list[str] | None]
) -> None:
    assert parameters[internal.path] == (None if internal.parameters is None else list(internal.parameters))


def test_ray_s_worker_has_no_core_worker_before_it_is_connected() -> None:
    """In a process of its own: other tests leave this one connected."""
    look = f"from {GLOBAL_WORKER.module} import {GLOBAL_WORKER.path} as found; print(type(vars(found)).__name__, found.connected)"
    told = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout.split() == ["dict", "False"]


def test_a_process_of_a_ray_of_our_own_has_a_session_of_its_own_so_no_signal_to_a_program_s_group_reaches_it() -> None:
    told = subprocess.run([sys.executable, "-c", BEGIN], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout.split() == ["True", "False"]


def test_ray_still_reads_the_settings_that_we_make() -> None:
    ours = {name for name in (*SETTINGS, *JOINED) if name != ELSEWHERE}
    assert not missing({name.removeprefix("RAY_") for name in ours})


def test_the_texts_by_which_we_know_ray_s_processes_are_still_in_ray() -> None:
    assert not missing({text.strip(" /").rpartition("/")[2] for text in TEXTS})


def test_the_cap_on_ray_s_version_is_that_of_the_version_that_was_tried() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dashboard"]]
    caps = {found[1] for each in wanted if (found := re.fullmatch(r"ray(?:\[default])?(>=.+)", each))}
    assert caps == {">=2.60,<2.61"}
    assert version("ray").startswith("2.60.")


def test_the_cause_in_what_ray_says_is_the_last_line_also_of_a_group_of_errors() -> None:
    group = "Traceback\n  | ExceptionGroup: host failed (1 sub-exception)\n  +-+---- 1 ----\n    | OSError: no\n    +-----\n"
    assert cause_of(RuntimeError(group)) == "OSError: no"
    assert cause_of(RuntimeError("Traceback\nValueError: -1 is negative\n")) == "ValueError: -1 is negative"
    assert cause_of(RuntimeError("")) == "RuntimeError"
