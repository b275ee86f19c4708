"""An author's program whose code changes while its agents are at work, and what must come of that.

Each release has the next number. The till tells its release, how often it was rung, and its book. It goes on with the newest release as
soon as it has slept, and `migrate` has entered each change in the book once. A run keeps the release that it was asked for with, also after
its host has died.
"""

from __future__ import annotations

import json
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
    book = [[each, each + 1] for each in range(1, release + 1)]
    expected = {
        "the till before the change": (begun["till"], [release, (release - 1) * RINGS + 1, book[:-1]]),
        "the till after the change": (ended["till"], [release + 1, release * RINGS, book]),
        "a run that was asked for before the change": (ended["old"], release),
        "a run that was asked for after the change": (ended["new"], release + 1),
    }
    return [f"{name} had {had}, not {right}" for name, (had, right) in expected.items() if had != right]
