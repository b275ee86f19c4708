"""Systems that are measured beside Perdure: whether they are installed, and how a measurement talks with the process of one.

It talks in lines over the pipes of that process. First the peer says which version it is. Then it gets a measure and a count a line
(`fan-out 1000`), and answers each with a JSON list of seconds. It ends when its input does.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from importlib.util import find_spec
from types import TracebackType
from typing import Final, NamedTuple, Self

from perdure import BadRequest

AWAITED: Final = "awaited"  # children one after the other, the seconds of each
FAN_OUT: Final = "fan-out"  # children at once, the seconds until all results are there
FAREWELL_S: Final = 20.0
RESTATE_SERVER: Final = "restate-server"
PROGRAMS_PATH: Final = os.pathsep.join([os.environ.get("PATH", os.defpath), "node_modules/.bin"])


class PeerName(StrEnum):
    DBOS = "dbos"
    RESTATE = "restate"


class PeerNeeds(NamedTuple):
    title: str
    module: str  # its end of the conversation
    modules: tuple[str, ...]
    programs: tuple[str, ...]
    install: str


PEERS: Final = {
    PeerName.DBOS: PeerNeeds(
        "DBOS", "perdure.scenarios.bench.dbos_children", ("dbos",), (), "pip install 'perdure[dbos]'"
    ),
    PeerName.RESTATE: PeerNeeds(
        "Restate",
        "perdure.scenarios.bench.restate_children",
        ("restate", "hypercorn"),
        (RESTATE_SERVER,),
        f"pip install 'perdure[restate]' and npm install @restatedev/{RESTATE_SERVER}",
    ),
}


def installed(name: PeerName) -> PeerNeeds:
    """What the peer needs, all of which is here. Raises `BadRequest` with how to install it."""
    needs = PEERS[name]
    missing = [f"the module {each}" for each in needs.modules if find_spec(each) is None]
    missing += [f"the program {each}" for each in needs.programs if shutil.which(each, path=PROGRAMS_PATH) is None]
    if missing:
        raise BadRequest("versus", f"{needs.title} is not installed ({', '.join(missing)}): {needs.install}")
    return needs


Measures = Mapping[str, Callable[[int], Awaitable[list[float]]]]


async def answer(version: str, measures: Measures) -> None:
    # What else the peer prints goes to stderr.
    out, sys.stdout = sys.stdout, sys.stderr
    print(version, file=out, flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        measure, count = line.split()
        print(json.dumps(await measures[measure](int(count))), file=out, flush=True)


class PeerProcess:
    """The process of a peer, while the block lasts."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            self.version = self._hear()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def ask(self, measure: str, count: int) -> list[float]:
        """Seconds. Raises `RuntimeError` if the peer has ended."""
        assert self._process.stdin is not None
        print(measure, count, file=self._process.stdin, flush=True)
        seconds: list[float] = json.loads(self._hear())
        return seconds

    def _hear(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"the peer's process ended with {self._process.wait(FAREWELL_S)}")
        return line

    def _end(self) -> None:
        # Without more input the peer ends by itself, and takes what it started with it.
        with self._process as process:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(FAREWELL_S)
            except subprocess.TimeoutExpired:
                process.kill()
