"""The npm clients that the gateway is tried on, installed once on a machine, and programs that use them.

They are installed beside the cache of other programs, under the digest of what is to be installed, by whichever test needs them first.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PACKAGES = HERE / "npm_packages"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "perdure-tests"
INSTALL = ("install", "--legacy-peer-deps", "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock")
PATIENCE_S = 300.0


def program(name: str) -> str:
    """The path of `node` or `npm`. These tests fail without them: they are about clients that run there."""
    found = shutil.which(name)
    assert found, f"{name} is missing; install Node 20 or newer, for instance Debian's packages nodejs and npm"
    return found


@functools.cache
def npm_tree(which: str = "") -> Path:
    """The directory with the `node_modules` of a list of packages: the newest, or one that is named."""
    listed = (PACKAGES / which / "package.json").read_bytes()
    tree = CACHE / hashlib.sha256(listed).hexdigest()[:16]
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the tests of several processes install one after the other
        if not (tree / "done").exists():
            shutil.rmtree(tree, ignore_errors=True)
            tree.mkdir()
            (tree / "package.json").write_bytes(listed)
            told = subprocess.run(
                [program("npm"), *INSTALL], cwd=tree, capture_output=True, text=True, timeout=PATIENCE_S, check=False
            )
            assert told.returncode == 0, told.stderr
            (tree / "done").touch()
    return tree


@contextmanager
def _laid_out(tree: Path, script: Path) -> Iterator[list[str]]:
    """The command that runs a program with the packages of a tree. It lies there meanwhile, with the modules beside it."""
    with tempfile.TemporaryDirectory(dir=tree) as here:  # imports are found from where the program lies
        for each in script.parent.glob("*.mjs"):
            shutil.copy(each, here)
        yield [program("node"), str(Path(here) / script.name)]


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
