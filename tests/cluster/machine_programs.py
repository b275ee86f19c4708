"""What the programs do that `test_machines` begins: `python machine_programs.py NAME URL ADDRESS PLACE`."""

from __future__ import annotations

import asyncio
import json
import platform
import sys
import time
from contextlib import suppress
from itertools import count
from pathlib import Path

from perdure import Agent, Limits, OutcomeUnknown, PerdureError, RunContext, Runtime, exposed

LIMITS = Limits(hosts_max=4, idle_ms=1_000)
AGENTS = 8
STEPS = 12
TRIES = 8


class Note(Agent):
    """Counts in its state."""

    @exposed
    def add(self, by: int) -> int:
        self.state["n"] = self.state.get("n", 0) + by
        return int(self.state["n"])

    @exposed
    def show(self) -> list[object]:
        return [self.state.get("n", 0), platform.node()]


class Diary(Agent):
    """Counts in a table."""

    @exposed
    def write(self, line: str) -> int:
        self.sql("CREATE TABLE IF NOT EXISTS lines (line VARCHAR)")
        self.sql("INSERT INTO lines VALUES ($1)", [line])
        return int(self.sql("SELECT count(*) FROM lines")[0][0])


class Stepper(Agent):
    """Does one step after the other, and says where."""

    async def run(self, n: int, run: RunContext) -> list[str]:
        async def work() -> str:
            await asyncio.sleep(0.5)
            return platform.node()

        return [await run.step(f"step {at}", work) for at in range(n)]


def first(runtime: Runtime, place: Path, url: str) -> None:
    """Has the supervisor on its machine, and is told of work that is done."""
    told = {f"n{at}": runtime.agent(Note, f"n{at}").add(5) for at in range(AGENTS)}
    lines = [runtime.agent(Diary, "d").write(f"line {at}") for at in range(3)]
    whole = runtime.run(Stepper, 2, run_id="whole").output
    runtime.start(Stepper, STEPS, run_id="long")
    time.sleep(1.5)
    _say(place, "first", {"url": url, "told": told, "lines": lines, "whole": whole})
    time.sleep(600)


def second(runtime: Runtime, place: Path) -> None:
    """Looks at what is there when the first one's machine is gone."""
    runtime.agent(Note, "other").add(1)
    _say(place, "second", {})
    while not (place / "dead").exists():
        time.sleep(0.02)
    begun_s = time.monotonic()
    answer, tries = None, 0
    while answer is None:
        tries += 1
        try:
            answer = runtime.agent(Note, "other").show()
        except Exception as problem:
            print(problem, flush=True)  # noqa: T201 - for who reads the log
    after_s = time.monotonic() - begun_s
    found = {f"n{at}": _shown(runtime, f"n{at}") for at in range(AGENTS)}
    line = runtime.agent(Diary, "d").write("another line")
    whole = runtime.run(Stepper, 2, run_id="whole")
    steps = runtime.run(Stepper, STEPS, run_id="long")
    told = {"answer": answer, "after_s": after_s, "found": found, "line": line, "whole": whole.output}
    told |= {"steps": steps.output, "audit": runtime.audit(), "epoch": runtime.ps()["epoch"]}
    _say(place, "third", told)
    time.sleep(600)


def old(runtime: Runtime, place: Path, url: str) -> None:
    """Has the supervisor on its machine, which will be cut off while this works."""
    runtime.start(Stepper, STEPS, run_id="long")
    _say(place, "old", {"url": url})
    _work(runtime, place, "old")
    time.sleep(600)


def new(runtime: Runtime, place: Path) -> None:
    """Works on the other machine, and tells in the end what has become of the work of both."""
    _say(place, "new", {})
    _work(runtime, place, "new")
    found = {f"{name}{at}": _shown(runtime, f"{name}{at}") for name in ("old", "new") for at in range(AGENTS)}
    steps = runtime.run(Stepper, STEPS, run_id="long").output
    _say(place, "end", {"found": found, "steps": steps, "ps": runtime.ps(), "audit": runtime.audit()})
    time.sleep(5)
    _say(place, "later", {"ps": runtime.ps()})
    time.sleep(600)


def _work(runtime: Runtime, place: Path, name: str) -> None:
    with (place / f"{name}.calls").open("w", buffering=1) as calls:
        for at in count():
            if (place / "stop").exists():
                return
            agent = f"{name}{at % AGENTS}"
            calls.write(f"asked {agent}\n")
            try:
                calls.write(f"told {agent} {runtime.agent(Note, agent).add(1)}\n")
            except PerdureError as problem:
                calls.write(f"failed {agent} {type(problem).__name__}: {problem}\n")
            time.sleep(0.05)


def _shown(runtime: Runtime, name: str) -> object:
    while True:
        with suppress(OutcomeUnknown):  # of a call that was handed to the machine that died
            return runtime.agent(Note, name).show()


def _say(place: Path, name: str, told: object) -> None:
    draft = place / f"{name}.new"
    draft.write_text(json.dumps(told, default=str), "utf-8")
    draft.rename(place / f"{name}.json")


LEADING = {"first": first, "old": old}
FOLLOWING = {"second": second, "new": new}


def begin(program: str, url: str, address: str, place: Path) -> None:
    """Play a program. Ray may begin a leading one's supervisor elsewhere than it was asked to: then another prefix is tried."""
    for number in range(TRIES):
        prefix = url if program in FOLLOWING else f"{url}/{number}"
        with Runtime(data=prefix, address=address, limits=LIMITS) as runtime:
            if program in FOLLOWING:
                FOLLOWING[program](runtime, place)
            elif runtime.ps()["supervisor"]["node"] == platform.node():
                LEADING[program](runtime, place, prefix)


if __name__ == "__main__":
    begin(*sys.argv[1:4], Path(sys.argv[4]))
