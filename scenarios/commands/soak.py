"""`perdure soak`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perdure.scenarios.commands.options import AsJson, Data, duration_ms
from perdure.scenarios.stories.engine import perform
from perdure.scenarios.stories.soak import Soak


def soak(
    lasting: Annotated[str, typer.Option("--for", help="How long legs are begun: 10m, 2h.", metavar="TIME")] = "30m",
    seed: Annotated[int, typer.Option(help="Decides the legs, their sizes and their kills.")] = 0,
    data: Data = Path("perdure-soak"),
    as_json: AsJson = False,
) -> None:
    """Play stories one after the other on one cluster, with kills, restarts and backups, and look whether anything grows.

    A leg is a fan-out, jobs, a turn of a chat agent or exchanges of people with a messenger agent, whose models are scripted. Each is
    checked as `perdure run` does. A drill is a fan-out that is struck as `perdure chaos` does it. In a stall the supervisor and all hosts
    stand still; in a leg `clock` the clocks of all processes are set forward and back while children, queues, schedules and fibers are at
    work. Either must cost no attempt, and lose nothing. In an upgrade a program comes with newer code while its agents are at work. With a
    full disk nothing can be written for a while: that is played only if DIR lies on a file system of at most 4 GB, which is then filled.
    A leg that does not end is given up, and what it waited for is told.

    After each leg the memory, file descriptors and threads of the supervisor and the hosts, and the disk, are measured. At the end come the
    audit, `doctor` on the directory and on a restored backup, and a look for processes left behind. Ctrl-C ends the soak with the report so
    far. The exit code is 1 if anything is wrong.

    The first third of the time is a warm-up. After it memory and disk for each retained run, and file descriptors and threads for each
    process, may grow by 2 % an hour, by the line that fits the samples best, less twice its standard error. Hosts come and go; the fewest
    processes in the later half may be half as many again as in the earlier one. Under 30 minutes that is told and not judged.

    With --json the object has legs, kills, seconds, stopped, samples, curves (first, last, and growth and sure_growth an hour as shares),
    left_behind and verified. Beside the directory lie DIR-backups, DIR-restored and DIR-clock.

    Examples:
        perdure soak --for 3m --seed 7
        perdure soak --for 2h --json
        mount -t tmpfs -o size=2g none small && perdure soak --data small/soak
    """
    perform(Soak(duration_ms(lasting, "for") / 1000, seed), "ray", data, as_json=as_json)
