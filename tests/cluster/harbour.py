"""A Ray that knows nothing of Perdure: its Python has every package of this one except ours."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from perdure.actors.ray_world.os_processes import descendants, kill, process_of, wait_until_gone

START = (
    "start --head --block --include-dashboard=false --num-cpus=2 --object-store-memory=80000000 --disable-usage-stats"
)
START_S = 120.0


def python_without_us(folder: Path) -> Path:
    """A virtual environment that has links to all that is installed here, except for Perdure, be it editable or not."""
    venv.create(folder / "venv", symlinks=True)
    packages = folder / "packages"
    packages.mkdir()
    for place in (Path(path) for path in sys.path if Path(path).name in ("site-packages", "dist-packages")):
        for each in place.iterdir():
            link = packages / each.name
            if "perdure" not in each.name and each.suffix != ".pth" and not link.exists():
                link.symlink_to(each)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (site / "packages.pth").write_text(f"{packages}\n")
    python = folder / "venv" / "bin" / "python"
    found = subprocess.run([python, "-c", "import ray, perdure"], env={}, capture_output=True, text=True, check=False)
    assert "No module named 'perdure'" in found.stderr
    return python


@contextmanager
def harbour(folder: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Start it with this environment; yields its address, and ends it with all that runs in it."""
    address = free_address()
    with head(python_without_us(folder), address, folder, environment):
        yield address


def free_address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


@contextmanager
def head(python: Path, address: str, folder: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """A Ray at this address, which is started by this Python."""
    log = folder / "ray.log"
    where = ["--node-ip-address=127.0.0.1", f"--port={address.rpartition(':')[2]}"]
    command = [python, "-m", "ray.scripts.scripts", *START.split(), *where]
    with log.open("w") as said:
        ray = subprocess.Popen(
            command, cwd=folder, env={"PATH": os.environ["PATH"], **environment}, stdout=said, stderr=said
        )
    process = process_of(ray.pid)
    assert process is not None
    try:
        end_s = time.monotonic() + START_S
        while "Ray runtime started" not in log.read_text():
            if time.monotonic() > end_s or ray.poll() is not None:
                pytest.fail(log.read_text())
            time.sleep(0.1)
        yield
    finally:
        family = [process, *descendants(process)]
        kill(family)
        ray.wait()
        wait_until_gone(family, 5.0)
