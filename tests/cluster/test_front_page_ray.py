"""The agents of the front page, run as a reader runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit import some
from tests.readmes.pages import FRONT, module_of
from tests.tidy import IMPORT_PATH


@pytest.mark.parametrize("name", some(1, ["shop", "library"]))
def test_an_agent_of_the_front_page_prints_what_is_shown(name: str, tmp_path: Path) -> None:
    (code,) = [block for block in FRONT.blocks("python") if module_of(block) == name]
    (output,) = [block for block in FRONT.blocks("text") if block.startswith(f"$ python {name}.py\n")]
    (tmp_path / f"{name}.py").write_text(code, "utf-8")
    environment = {**os.environ, "PYTHONPATH": IMPORT_PATH}
    command = [sys.executable, f"{name}.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == output.partition("\n")[2]
