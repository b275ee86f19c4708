"""What is said of a measure that Perdure, a peer and plain Ray calls were put to in one run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perdure.scenarios.bench import report
from perdure.scenarios.bench.report import Shape, rounded


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
    report.show(told, Shape(line, ("figure", "", "Perdure", "the other", "plain Ray calls", "Perdure is"), _cells))


def line(figure: dict[str, Any]) -> str:
    """A measure in one line."""
    sides = [
        f"{name} {_cell(figure[side])}, {figure[side]['to_plain_ray']:,g} × plain Ray"
        for name, side in (("Perdure", "perdure"), (figure["peer_name"], "peer"))
    ]
    plain = f"plain Ray calls {_cell(figure['plain_ray'])}"
    return f"{figure['name']} ({figure['unit']}): {'; '.join([*sides, plain])}; Perdure is {_verdict(figure)}"


def _cells(figure: dict[str, Any]) -> list[str]:
    sides = [_cell(figure[side]) for side in ("perdure", "peer", "plain_ray")]
    return [f"{figure['name']}, {figure['peer_name']}", figure["unit"], *sides, _verdict(figure)]


def _verdict(figure: dict[str, Any]) -> str:
    return f"{figure['times_as_fast']:,g} × as fast"


def _cell(side: dict[str, float]) -> str:
    return f"{side['median']:,g} ({side['min']:,g} to {side['max']:,g})"
