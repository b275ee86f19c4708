"""`perdure bench`: figures with their goals and baselines.

Every group has its own data directory, cluster and process, so groups do not affect each other.

`python -m perdure.scenarios.bench.runner GROUP DIRECTORY LOAD [--quick]` is that process.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

from perdure.scenarios.bench.alarms import alarms
from perdure.scenarios.bench.busy_host import busy_host
from perdure.scenarios.bench.chat import chat_children, chat_streams, chat_turns
from perdure.scenarios.bench.chat_deaths import chat_recovery, reconnection
from perdure.scenarios.bench.deaths import child_death, cluster_death, handlers_death, supervisor_death
from perdure.scenarios.bench.face import agent_connect, first_paint, gateway_idle, gateway_killed
from perdure.scenarios.bench.gateway import gateway
from perdure.scenarios.bench.growth import growth
from perdure.scenarios.bench.jobs import fibers
from perdure.scenarios.bench.ledger import boot, commit
from perdure.scenarios.bench.messenger import webhooks
from perdure.scenarios.bench.report import Bench, Figure, known, report, show
from perdure.scenarios.bench.speed import awaited, awake, detached, fan_out, passivated, sleepers, sustained
from perdure.scenarios.bench.subprocesses import Failed, command_for, measure_apart
from perdure.scenarios.bench.watchers import watchers
from perdure.scenarios.swarm.runner import swarm

PATIENCE_S: Final = 300.0  # for one group; each takes a minute or so


def simulated_kills(bench: Bench) -> list[Figure]:
    """The kills a second that the swarm plays, with one process for each core."""
    seeds, repeats = bench.size(100, 10), 3
    reports = [swarm(seeds, seeds * repeat, processes=os.cpu_count() or 1) for repeat in range(repeats)]
    failures = sum(len(each.failures) for each in reports)
    return [
        Figure("simulated kills", "kills/s", [each.kills / each.seconds for each in reports]),
        Figure("seeds of the swarm that failed", "", [failures]),
    ]


FIGURES: Final[dict[str, Callable[[Bench], list[Figure]]]] = {
    "awaited": awaited,
    "fan-out": fan_out,
    "detached": detached,
    "sustained": sustained,
    "busy-host": busy_host,
    "sleepers": sleepers,
    "child-death": child_death,
    "supervisor-death": supervisor_death,
    "cluster-death": cluster_death,
    "commit": commit,
    "boot": boot,
    "growth": growth,
    "passivated": passivated,
    "awake": awake,
    "handlers-death": handlers_death,
    "alarms": alarms,
    "simulated-kills": simulated_kills,
    "chat-children": chat_children,
    "chat-streams": chat_streams,
    "chat-turns": chat_turns,
    "chat-recovery": chat_recovery,
    "reconnection": reconnection,
    "fibers": fibers,
    "webhooks": webhooks,
    "gateway": gateway,
    "watchers": watchers,
    "gateway-idle": gateway_idle,
    "gateway-killed": gateway_killed,
    "agent-connect": agent_connect,
    "first-paint": first_paint,
}


def main(
    as_json: bool = False, quick: bool = False, only: Sequence[str] = (), data: Path | None = None, load: int = 0
) -> bool:
    """Measure and print. Returns whether each group could be measured. The files stay in `data`, if given.

    Raises `BadRequest` if `only` names an unknown group.
    """
    groups = [group for group in FIGURES if not only or group in {known(each, list(FIGURES)) for each in only}]
    room = tempfile.TemporaryDirectory(prefix="perdure-bench-") if data is None else nullcontext(str(data))
    with room as place:
        measured = [_measure(group, Path(place), quick=quick, load=load) for group in groups]
    figures = [figure for each in measured if not isinstance(each, Failed) for figure in each]
    failures = [each for each in measured if isinstance(each, Failed)]
    told = report(figures, [each.to_plain() for each in failures])
    if as_json:
        print(json.dumps(told))
    else:
        show(told)
    return not failures


def _measure(group: str, place: Path, *, quick: bool, load: int) -> list[dict[str, Any]] | Failed:
    begun_s = time.monotonic()
    _say(f"measuring {group} …")
    measured = measure_apart(group, command_for(group, place, quick=quick, load=load), PATIENCE_S, _say)
    _say(
        f"{'could not measure' if isinstance(measured, Failed) else 'measured'} {group} in {time.monotonic() - begun_s:.0f} s"
    )
    return measured


def _say(text: str) -> None:
    """Print to stderr: stdout has the figures only."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    name, where, load, *more = sys.argv[1:]
    print(
        json.dumps(
            [figure.to_plain() for figure in FIGURES[name](Bench(Path(where), "--quick" in more, _say, int(load)))]
        )
    )
