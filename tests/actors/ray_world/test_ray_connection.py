"""What a program is told before a Ray of its own is started."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.tidy import IMPORT_PATH

STARTED = """
from perdure.actors.ray_world.ray_connection import start
from perdure.ledger import BadRequest
try:
    start(1)
except BadRequest as problem:
    print(problem)
"""


@pytest.mark.parametrize(("flags", "variable"), [(["-OO"], ""), ([], "2")])
def test_without_docstrings_no_ray_is_started_and_that_is_said_at_once(flags: list[str], variable: str) -> None:
    environment = {**os.environ, "PYTHONPATH": IMPORT_PATH, "PYTHONOPTIMIZE": variable}
    said = subprocess.run(
        [sys.executable, *flags, "-c", STARTED], env=environment, capture_output=True, text=True, check=True
    )
    assert said.stdout.startswith("python: no Ray starts under `-OO` or PYTHONOPTIMIZE=2")
