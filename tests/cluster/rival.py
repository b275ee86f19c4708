"""What `test_two_rays` begins: a program that insists on a Ray of its own opens a bucket that another one serves. It says a line after each
step, and goes on with the next when it is told a line."""

from __future__ import annotations

import json
import sys

from perdure import Runtime, ServedElsewhere
from perdure.policies import Limits
from tests.cluster.machine_programs import Note


def say(told: object) -> None:
    print(json.dumps(told), flush=True)  # noqa: T201 - the test reads it


def play(url: str) -> None:
    """Be refused, take over, and end when that is asked for."""
    limits = Limits(hosts_max=2)
    try:
        with Runtime(url, address="local", limits=limits):
            say("it was not refused")
    except ServedElsewhere as refusal:
        say(str(refusal))
    sys.stdin.readline()
    with Runtime(url, address="local", limits=limits, take_over=True) as runtime:
        say(runtime.agent(Note, "n").add(1))
        sys.stdin.readline()
        say([runtime.agent(Note, "n").add(1), runtime.ps()["epoch"]])
        sys.stdin.readline()
    say("closed")


if __name__ == "__main__":
    play(sys.argv[1])
