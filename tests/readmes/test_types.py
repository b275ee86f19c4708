"""The examples of the READMEs are typed: pyright finds nothing in them, and neither does strict mypy (tests/test_style.py)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.readmes.pages import write_modules
from tests.tidy import IMPORT_PATH, ROOT


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("examples")
    write_modules(made)
    return made


def test_pyright_finds_nothing_in_the_examples(place: Path) -> None:
    paths = [*IMPORT_PATH.split(":"), str(place)]
    config = {"include": [str(place)], "extraPaths": paths, "pythonVersion": "3.11"}
    (place / "pyrightconfig.json").write_text(json.dumps(config), "utf-8")
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--project", str(place)]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout + said.stderr
