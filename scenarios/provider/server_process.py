"""A server of ours in a process of its own: start it, ask it over its control port, kill it. It ends with the process that started it.

The server is a module that prints one line of JSON when it listens, `control_port` among it, and then waits for `until_abandoned`.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

HOST: Final = "127.0.0.1"
CONTROL: Final = "/_control/"
CALL_S: Final = 10.0


class ServerFailed(Exception):
    """A server's process did not start, does not answer, or refused what it was told; `problem` is in its own words."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


class ServerProcess:
    """One server, from its first line until it is killed. Raises `ServerFailed` if it does not come to listen."""

    def __init__(self, module: str, *options: str) -> None:
        root = str(Path(__file__).absolute().parents[3])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.kill()
            raise ServerFailed(f"{module} ended before it listened; its reason is on stderr")
        self.told: dict[str, int] = json.loads(line)

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def kill(self) -> None:
        """Send `SIGKILL`. Open replies break off."""
        with self._process as process:
            process.kill()

    def ask(self, method: str, what: str, query: Mapping[str, int] | None = None, body: bytes | None = None) -> Any:
        """Control it. Blocks for a millisecond or two, and for `within_ms` of the query at most. Raises `ServerFailed`."""
        query = query or {}
        timeout_s = CALL_S + query.get("within_ms", 0) / 1000
        connection = http.client.HTTPConnection(HOST, self.told["control_port"], timeout=timeout_s)
        try:
            connection.request(method, f"{CONTROL}{what}?{urlencode(query)}", body)
            response = connection.getresponse()
            told = json.loads(response.read())
        except OSError as error:
            raise ServerFailed(f"{method} {what}: the server does not answer ({error})") from error
        finally:
            connection.close()
        if response.status != http.client.OK:
            raise ServerFailed(f"{method} {what}: {told}")
        return told


async def until_abandoned() -> None:
    """Wait until stdin is closed: the process that started this one is gone."""
    over = asyncio.Event()

    def hear() -> None:
        if not os.read(sys.stdin.fileno(), 1024):
            over.set()

    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), hear)
    await over.wait()
