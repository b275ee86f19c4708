"""The same work on Perdure, on a peer and, without anything durable, on plain Ray calls, in turns."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from perdure import actors
from perdure.scenarios.bench.figures import Found, Sides
from perdure.scenarios.bench.measuring import Bench, handle
from perdure.scenarios.bench.runs import PAYLOAD
from perdure.scenarios.cast.measured import Parent
from perdure.scenarios.versus.conversation import AWAITED, FAN_OUT, Peer


class Side(NamedTuple):
    """How one of the three is measured."""

    one_by_one: Callable[[int], list[float]]  # milliseconds of each
    at_once: Callable[[int], float]  # a second


def versus(module: str, bench: Bench) -> Found:
    """Each repeat measures the three sides one after the other, so that they share what the machine does meanwhile. The module is the
    peer's end of the conversation."""
    one_by_one, crowd, repeats = bench.size(200, 20), bench.size(1_000, 50), bench.size(5, 3)
    place = bench.data / module.rpartition(".")[2]
    place.mkdir(parents=True, exist_ok=True)
    with bench.cluster("perdure") as runtime, Peer([sys.executable, "-m", module, str(place)]) as peer:
        parent, plain = handle(runtime, Parent, "parent"), actors.PlainRay()
        sides = [
            Side(parent.one_by_one, lambda count: count / parent.fan_out(count)),
            Side(
                lambda count: [each * 1000 for each in peer.ask(AWAITED, count)],
                lambda count: count / peer.ask(FAN_OUT, count)[0],
            ),
            Side(partial(plain.round_trips_ms, PAYLOAD), partial(plain.calls_per_second, PAYLOAD)),
        ]
        for side in sides:  # the first of each is slower
            side.one_by_one(one_by_one // 10)
            side.at_once(crowd // 10)
        awaited, fan_out = [], []
        for number in range(repeats):
            bench.say(f"round {number + 1} of {repeats} against {peer.version} …")
            both = [(statistics.median(side.one_by_one(one_by_one)), side.at_once(crowd)) for side in sides]
            awaited.append([wait for wait, _ in both])
            fan_out.append([rate for _, rate in both])
        plain.close()
        found = (Sides(*zip(*each, strict=True)) for each in (awaited, fan_out))
        return Found(*found, peer_name=peer.version, crowd=crowd)
