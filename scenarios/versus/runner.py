"""`perdure bench --versus`: the same work on Perdure, on a peer and, without anything durable, on plain Ray calls, in turns.

`python -m perdure.scenarios.versus.runner PEER DIRECTORY [--quick]` measures, in a process of its own.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from perdure import actors
from perdure.scenarios.bench.report import Bench, handle, report
from perdure.scenarios.bench.speed import PAYLOAD
from perdure.scenarios.bench.subprocesses import Failed, measure_apart
from perdure.scenarios.cast.measured import Parent
from perdure.scenarios.versus.contest import Contest, show
from perdure.scenarios.versus.conversation import AWAITED, FAN_OUT, Peer
from perdure.scenarios.versus.peers import PEERS, PeerName, installed

PATIENCE_S: Final = 1_800.0  # the slowest peer needs a minute for a fan-out of a thousand on a busy machine


def main(name: PeerName, *, as_json: bool = False, quick: bool = False, data: Path | None = None) -> bool:
    """Measure and print. Returns whether it could be measured. The files stay in `data`, if given.

    Raises `BadRequest` if the peer is not installed.
    """
    installed(name)
    room = tempfile.TemporaryDirectory(prefix="perdure-versus-") if data is None else nullcontext(str(data))
    with room as place:
        command = [sys.executable, "-m", "perdure.scenarios.versus.runner", name, str(Path(place).resolve())]
        measured = measure_apart(name, [*command, *(["--quick"] if quick else [])], PATIENCE_S, _say)
    failures = [measured] if isinstance(measured, Failed) else []
    told = report([] if isinstance(measured, Failed) else measured, [each.to_plain() for each in failures])
    if as_json:
        print(json.dumps(told))
    else:
        show(told)
    return not failures


class Side(NamedTuple):
    """How one of the three is measured."""

    one_by_one: Callable[[int], list[float]]  # milliseconds of each
    at_once: Callable[[int], float]  # a second


def measure(name: PeerName, bench: Bench) -> list[Contest]:
    """Each repeat measures the three sides one after the other, so that they share what the machine does meanwhile."""
    one_by_one, crowd, repeats = bench.size(200, 20), bench.size(1_000, 50), bench.size(5, 3)
    place = bench.data / name
    place.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", PEERS[name].module, str(place)]
    with bench.cluster("perdure") as runtime, Peer(command) as peer:
        parent, plain = handle(runtime, Parent, "parent"), actors.PlainRay()
        sides = {
            "perdure": Side(parent.one_by_one, lambda count: count / parent.fan_out(count)),
            "peer": Side(
                lambda count: [each * 1000 for each in peer.ask(AWAITED, count)],
                lambda count: count / peer.ask(FAN_OUT, count)[0],
            ),
            "plain_ray": Side(partial(plain.round_trips_ms, PAYLOAD), partial(plain.calls_per_second, PAYLOAD)),
        }
        for side in sides.values():  # the first of each is slower
            side.one_by_one(one_by_one // 10)
            side.at_once(crowd // 10)
        awaited: dict[str, list[float]] = {each: [] for each in sides}
        fan_out: dict[str, list[float]] = {each: [] for each in sides}
        for number in range(repeats):
            bench.say(f"round {number + 1} of {repeats} against {peer.version} …")
            for each, side in sides.items():
                awaited[each].append(statistics.median(side.one_by_one(one_by_one)))
                fan_out[each].append(side.at_once(crowd))
        plain.close()
        return [
            Contest("awaited run, p50", "ms", peer.version, **awaited, more_is_better=False),
            Contest(f"fan-out of {crowd:,} instant children", "runs/s", peer.version, **fan_out, more_is_better=True),
        ]


def _say(text: str) -> None:
    """Print to stderr: stdout has the figures only."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    who, where, *more = sys.argv[1:]
    bench = Bench(Path(where), "--quick" in more, _say)
    print(json.dumps([each.to_plain() for each in measure(PeerName(who), bench)]))
