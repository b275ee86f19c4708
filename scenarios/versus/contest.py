"""What is said of a measure that Perdure, a peer and plain Ray calls were put to in one run."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from perdure.scenarios.bench.report import rounded, where


@dataclass(frozen=True)
class Contest:
    """One measure, with the value of each repeat. Medians are compared."""

    name: str
    unit: str
    peer_name: str
    perdure: Sequence[float]
    peer: Sequence[float]
    plain_ray: Sequence[float]
    more_is_better: bool

    @property
    def times_as_fast(self) -> float:
        """How many times as fast as the peer Perdure is."""
        ours, theirs = statistics.median(self.perdure), statistics.median(self.peer)
        return ours / theirs if self.more_is_better else theirs / ours

    def to_plain(self) -> dict[str, Any]:
        """As `--json` prints it. `to_plain_ray` is a share of the value of plain Ray calls."""
        sides = {"perdure": self.perdure, "peer": self.peer, "plain_ray": self.plain_ray}
        base = statistics.median(self.plain_ray)
        return {
            "name": self.name,
            "unit": self.unit,
            "peer_name": self.peer_name,
            **{side: _spread(values, base) for side, values in sides.items()},
            "times_as_fast": rounded(self.times_as_fast),
        }


def _spread(values: Sequence[float], base: float) -> dict[str, float]:
    median = statistics.median(values)
    return {
        "min": rounded(min(values)),
        "median": rounded(median),
        "max": rounded(max(values)),
        "to_plain_ray": rounded(median / base),
    }


def show(told: dict[str, Any]) -> None:
    """A table on a terminal, plain lines in a pipe."""
    if not sys.stdout.isatty():
        print(where(told))
        for each in told["figures"]:
            print(line(each))
        for failure in told["failures"]:
            print(f"{failure['group']}: FAILED, {failure['cause']}")
        return
    table = Table("figure", "", "Perdure", "the other", "plain Ray calls", "Perdure is", caption=where(told))
    for each in told["figures"]:
        sides = [_cell(each[side]) for side in ("perdure", "peer", "plain_ray")]
        table.add_row(f"{each['name']}, {each['peer_name']}", each["unit"], *sides, _verdict(each))
    for failure in told["failures"]:
        table.add_row(failure["group"], "", "failed", "", "", failure["cause"], style="red")
    Console().print(table)


def line(figure: dict[str, Any]) -> str:
    """A measure in one line."""
    sides = [
        f"{name} {_cell(figure[side])}, {figure[side]['to_plain_ray']:,g} × plain Ray"
        for name, side in (("Perdure", "perdure"), (figure["peer_name"], "peer"))
    ]
    plain = f"plain Ray calls {_cell(figure['plain_ray'])}"
    return f"{figure['name']} ({figure['unit']}): {'; '.join([*sides, plain])}; Perdure is {_verdict(figure)}"


def _verdict(figure: dict[str, Any]) -> str:
    return f"{figure['times_as_fast']:,g} × as fast"


def _cell(side: dict[str, float]) -> str:
    return f"{side['median']:,g} ({side['min']:,g} to {side['max']:,g})"
