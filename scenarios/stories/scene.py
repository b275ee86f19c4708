"""How far the work of a scenario is, as a picture and as a line."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar

from perdure.scenarios.live_view import RunTable, grid, hosts_line

RUNS_SHOWN_MAX: Final = 12


@dataclass
class Scene:
    """The progress of the work. `overview` is the supervisor's (`ps`), with the runs of the scenario only."""

    requested: int
    noun: str = "runs"
    ended: int = 0
    seconds: float = 0.0
    kills: Counter[str] = field(default_factory=Counter)
    recovery_ms: list[float] = field(default_factory=list)
    overview: dict[str, Any] = field(default_factory=dict)
    table: RunTable = field(default_factory=RunTable)

    @property
    def _rate(self) -> str:
        return f"{self.ended / self.seconds if self.seconds else 0.0:.3g} {self.noun}/s"

    def _count(self, status: str) -> int:
        return sum(row["status"] == status for row in self.overview["live"])

    def picture(self, height: int) -> RenderableType:
        """The account, the live runs and the hosts."""
        overview, audit, took = self.overview, self.overview["audit"], self.recovery_ms
        about: dict[str, RenderableType] = {
            self.noun: ProgressBar(total=self.requested, completed=self.ended, width=50),
            "": f"{self.ended} of {self.requested} ended, {self._count('running')} running, {self._count('starting')} starting, "
            f"{overview['waiting']} waiting for a place",
            "mail": f"{audit['enqueued']} enqueued, {audit['delivered']} delivered, {audit['pending']} pending",
            "kills": ", ".join(f"{count} {kind}" for kind, count in self.kills.items()) or "none yet",
            "recovery": f"last {took[-1]:.0f} ms, worst {max(took):.0f} ms" if took else "–",
            "rate": f"{self._rate} after {self.seconds:.1f} s, supervisor life {overview['epoch']}",
        }
        runs = self.table.table(overview["live"], min(height - len(about) - 3, RUNS_SHOWN_MAX), len(overview["live"]))
        return Group(grid(about), runs, hosts_line(overview))

    def line(self) -> str:
        """The same in one line."""
        starting, running = (f"{self._count(status)} {status}" for status in ("starting", "running"))
        parts = [
            f"{self.seconds:6.1f} s",
            f"{self.ended}/{self.requested} ended",
            *([starting, running] if self.noun == "runs" else []),
            f"{self.overview['audit']['pending']} in the mail",
            f"{sum(host['up'] for host in self.overview['hosts'])} hosts",
            f"{self.kills.total()} kills",
            self._rate,
        ]
        return "  ".join(parts)
