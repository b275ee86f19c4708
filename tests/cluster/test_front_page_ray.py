"""The first agent of the front page, run as a reader runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.readmes.pages import FRONT, module_of
from tests.tidy import IMPORT_PATH


def test_the_first_agent_prints_what_is_shown(tmp_path: Path) -> None:
    (code,) = [block for block in FRONT.blocks("python") if module_of(block) == "library"]
    (output,) = [block for block in FRONT.blocks("text") if block.startswith("$ python library.py\n")]
    (tmp_path / "library.py").write_text(code, "utf-8")
    environment = {**os.environ, "PYTHONPATH": IMPORT_PATH}
    command = [sys.executable, "library.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == output.partition("\n")[2]
