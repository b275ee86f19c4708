"""An author's program whose code changes while its agents are at work, and what must come of that.

Each release has the next number. A till goes on with the newest release as soon as it has slept, and `migrate` has entered each change in
its book once. A run keeps the release that it was asked for with, also after its host has died.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

RINGS: Final = 3  # of the till, for each change

SHOP: Final = '''\
import asyncio
import json
import sys
from pathlib import Path

from perdure import Agent, Runtime, exposed

RELEASE = {release}


class Till(Agent, name="soak-till", version=RELEASE):
    """Counts, and keeps a book of its releases."""

    def migrate(self, from_version: int) -> None:
        self.state["book"] = [*self.state.get("book", []), [from_version, RELEASE]]

    @exposed
    def ring(self) -> list[object]:
        self.state["rung"] = self.state.get("rung", 0) + 1
        return [RELEASE, self.state["rung"], self.state.get("book", [])]


class Errand(Agent, name="soak-errand"):
    """Is away until a file is there, and says with which release it went."""

    async def run(self, input: str) -> int:
        while not Path(input).exists():
            await asyncio.sleep(0.05)
        return RELEASE


if __name__ == "__main__":
    what, data, run_id, back = sys.argv[1:]
    with Runtime(data) as runtime:
        told = {{"till": runtime.agent(Till, "till").ring()}}
        if what == "begin":
            runtime.start(Errand, back, run_id=run_id)
        elif what == "end":
            Path(back).touch()
            told["new"] = runtime.run(Errand, back, run_id=run_id + "-new").output
            told["old"] = runtime.run(Errand, back, run_id=run_id).output
    print(json.dumps(told))
'''


def program_in(folder: Path) -> Path:
    """The program in a folder."""
    return folder / "shop.py"


def write(folder: Path, release: int) -> Path:
    """Write the program of this release into a new folder. Returns it."""
    folder.mkdir()
    program = program_in(folder)
    program.write_text(SHOP.format(release=release), encoding="utf-8")
    return program


def told_in(printed: str) -> dict[str, Any]:
    """What the program said."""
    told: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return told


def differences(release: int, begun: dict[str, Any], ended: dict[str, Any]) -> list[str]:
    """What is wrong after the change from this release to the next, in sentences. Release 1 is the first."""
    return [
        *_wrong_till(begun["till"], release, (release - 1) * RINGS + 1),
        *_wrong_till(ended["till"], release + 1, release * RINGS),
        *_wrong_run("a run that was asked for before the change", ended["old"], release),
        *_wrong_run("a run that was asked for after the change", ended["new"], release + 1),
    ]


def _wrong_till(till: Sequence[Any], release: int, rings: int) -> list[str]:
    had, rung, book = till
    should = [[each, each + 1] for each in range(1, release)]
    return [
        *([f"the till had release {had} where {release} was the newest"] if had != release else []),
        *([f"the till has rung {rung} times, and was rung {rings} times"] if rung != rings else []),
        *([f"the till was migrated by {book}, and should have been by {should}"] if book != should else []),
    ]


def _wrong_run(name: str, had: int, release: int) -> list[str]:
    return [f"{name} had release {had}, and should have had {release}"] if had != release else []
