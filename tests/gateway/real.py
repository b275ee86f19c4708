"""A real gateway as a process of its own, which a test may kill and start again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[2]


class RealGateway:
    """A process of `tests.gateway.server`. `paths` are where else it looks for modules."""

    def __init__(self, data: Path, agents: list[str], **given: Any) -> None:
        self._given = {"data": str(data), "agents": agents, **given}
        self.port = 0
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, on the port that it had before."""
        paths = [str(ROOT / ".src"), str(ROOT), *self._given.get("paths", [])]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.gateway.server", json.dumps(self._given | {"port": self.port})],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("listening on "), line
        self.port = int(line.split()[-1])

    def kill(self) -> None:
        """`SIGKILL`, in the middle of whatever it does."""
        assert self._process is not None
        self._process.kill()
        self._reap()

    def stop(self) -> None:
        """Let it end by itself."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._reap()

    def _reap(self) -> None:
        assert self._process is not None
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        finally:
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None and not stream.closed:
                    stream.close()
            self._process = None


@contextmanager
def real_gateway(data: Path, agents: list[str], **given: Any) -> Iterator[RealGateway]:
    """A gateway that serves within the block."""
    gateway = RealGateway(data, agents, **given)
    gateway.start()
    try:
        yield gateway
    finally:
        gateway.stop()


def client(gateway: RealGateway) -> httpx.Client:
    """A plain client of it."""
    return httpx.Client(base_url=gateway.url, timeout=60, trust_env=False)
