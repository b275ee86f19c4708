"""The npm clients that the gateway is tried on, installed once on a machine, and programs that use them."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from perdure.scenarios.bench.browser import installed, node

PACKAGES = Path(__file__).parent / "npm_packages"
PATIENCE_S = 300.0


@functools.cache
def npm_tree(which: str = "") -> Path:
    """The directory with the `node_modules` of a list of packages: the newest, or one that is named."""
    return installed((PACKAGES / which / "package.json").read_bytes())


@contextmanager
def _laid_out(tree: Path, script: Path) -> Iterator[list[str]]:
    """The command that runs a program with the packages of a tree. It lies there meanwhile, with the modules beside it."""
    with tempfile.TemporaryDirectory(dir=tree) as here:  # imports are found from where the program lies
        for each in script.parent.glob("*.mjs"):
            shutil.copy(each, here)
        yield [node().node, str(Path(here) / script.name)]


@contextmanager
def started(script: Path, *arguments: object, which: str = "") -> Iterator[subprocess.Popen[str]]:
    """A program under Node with these packages, which is spoken with line by line. Leaving ends it."""
    tree = npm_tree(which)
    with _laid_out(tree, script) as command:
        process = subprocess.Popen(
            [*command, *(json.dumps(each) for each in arguments)],
            cwd=tree,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            with process:
                yield process
                process.kill()
        finally:
            process.kill()


def play(script: Path, *arguments: object, which: str = "", patience_s: float = PATIENCE_S) -> list[dict[str, Any]]:
    """Run a program under Node with these packages, and return what it observed: each line that it printed, from its JSON.

    Each argument reaches it as JSON text. A program that fails fails the test, with what it said.
    """
    tree = npm_tree(which)
    with _laid_out(tree, script) as command:
        told = subprocess.run(
            [*command, *(json.dumps(each) for each in arguments)],
            cwd=tree,
            capture_output=True,
            text=True,
            timeout=patience_s,
            check=False,
        )
    assert told.returncode == 0, (
        f"{script.name} ended with {told.returncode}\n{told.stdout[-4000:]}\n{told.stderr[-8000:]}"
    )
    return [json.loads(line) for line in told.stdout.split("\n") if line]  # other line ends may stand in a text
