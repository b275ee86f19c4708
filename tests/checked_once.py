"""One run of mypy and one of pyright for all that they check, since most of their time goes into the libraries: the examples of the
READMEs, the files of tests/typed, and with mypy our code.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.tidy import IMPORT_PATH, ROOT

TYPED = ROOT / "tests" / "typed"
COMPLAINT = re.compile(r"^(?P<path>[^:]+):(?P<line>\d+): error: .*?(?:\[(?P<code>[a-z-]+)\])?$", re.MULTILINE)


class Complaint(NamedTuple):
    """An error in a line."""

    file: Path
    line: int
    code: str
    text: str


class Checker:
    """What a type checker said of everything."""

    said: str
    _complaints: list[Complaint]

    def complaints(self, folder: Path) -> list[Complaint]:
        """The errors in the files of this folder."""
        return [each for each in self._complaints if folder in each.file.parents]

    def other_complaints(self) -> list[str]:
        """The errors in files that are not meant to have any."""
        return [each.text for each in self._complaints if TYPED not in each.file.parents]


class Mypy(Checker):
    """It checks our code too."""

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


class Pyright(Checker):
    """It is told in a file what to check, or it takes one that lies above this checkout."""

    def __init__(self, examples: Path) -> None:
        paths = [*IMPORT_PATH.split(os.pathsep), str(ROOT), str(examples)]
        config = {"include": [os.path.relpath(TYPED, examples), "."], "extraPaths": paths, "pythonVersion": "3.11"}
        (examples / "pyrightconfig.json").write_text(json.dumps(config), "utf-8")
        command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson"]
        done = subprocess.run(
            [*command, "--project", str(examples)], cwd=ROOT, capture_output=True, text=True, check=False
        )
        self.said = done.stdout + done.stderr
        told = json.loads(done.stdout)
        assert told["summary"]["filesAnalyzed"] == len([*TYPED.glob("*.py"), *examples.glob("*.py")]), self.said
        self._complaints = [
            Complaint(Path(each["file"]), each["range"]["start"]["line"] + 1, each.get("rule", ""), each["message"])
            for each in told["generalDiagnostics"]
        ]
