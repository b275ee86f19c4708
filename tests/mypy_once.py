"""One run of mypy for all that it checks, since most of its time goes into the libraries: our code, the examples of the READMEs, and the
files of tests/typed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.tidy import ROOT

TYPED = ROOT / "tests" / "typed"
COMPLAINT = re.compile(r"^(?P<path>[^:]+):(?P<line>\d+): error: .*?(?:\[(?P<code>[a-z-]+)\])?$", re.MULTILINE)


class Complaint(NamedTuple):
    """An error in a line."""

    file: Path
    line: int
    code: str
    text: str


class Mypy:
    """What mypy said of everything."""

    def __init__(self, examples: Path) -> None:
        files = [ROOT / ".src" / "perdure", *sorted(TYPED.glob("*.py")), *sorted(examples.glob("*.py"))]
        done = subprocess.run(
            [sys.executable, "-m", "mypy", "--explicit-package-bases", *map(str, files)],
            cwd=ROOT,
            env={**os.environ, "MYPYPATH": str(examples)},
            capture_output=True,
            text=True,
            check=False,
        )
        self.said = done.stdout + done.stderr
        self._complaints = [
            Complaint(ROOT / each["path"], int(each["line"]), each["code"] or "", each[0])
            for each in COMPLAINT.finditer(done.stdout)
        ]
        assert re.search(r"^(Found \d+ errors in|Success)", self.said, re.MULTILINE), self.said
        assert len(self._complaints) == done.stdout.count(": error: "), self.said

    def complaints(self, folder: Path) -> list[Complaint]:
        """The errors in the files of this folder."""
        return [each for each in self._complaints if folder in each.file.parents]

    def other_complaints(self) -> list[str]:
        """The errors in files that are not meant to have any."""
        return [each.text for each in self._complaints if TYPED not in each.file.parents]
