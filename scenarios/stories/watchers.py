"""Progress of a scenario: a live table on a terminal, plain lines in a pipe, nothing with `--json`."""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from perdure.scenarios.stories.live_tables import hosts_line, run_cells

FRAME_S: Final = 0.25
LINE_S: Final = 1.0
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


class Watcher:
    """Shows a scenario while it plays. This one is for `--json`: it says nothing before the end."""

    def show(self, scene: Scene) -> None:
        """Show how far the work is. Called a few times a second."""

    def say(self, text: str) -> None:
        """Tell of one event."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return


def watcher_for(*, as_json: bool) -> Watcher:
    """Silence with `--json`, a live table on a terminal, plain lines in a pipe."""
    return Watcher() if as_json else LiveTable() if sys.stdout.isatty() else Lines()


class Lines(Watcher):
    """For a pipe: a line about once a second, and one for each event."""

    def __init__(self) -> None:
        self._said_s = 0.0

    def show(self, scene: Scene) -> None:
        """A line, unless there was one just now."""
        now_s = time.monotonic()
        if now_s - self._said_s >= LINE_S or scene.ended == scene.requested:
            self._said_s = now_s
            print(line(scene), flush=True)

    def say(self, text: str) -> None:
        print(text, flush=True)


class LiveTable(Watcher):
    """For a terminal: a table that is redrawn four times a second."""

    def __init__(self) -> None:
        self._console = Console()
        self._live = Live(console=self._console, auto_refresh=False, transient=False)
        self._drawn_s = 0.0

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, scene: Scene) -> None:
        """Draw, unless it was drawn just now."""
        now_s = time.monotonic()
        if now_s - self._drawn_s >= FRAME_S or scene.ended == scene.requested:
            self._drawn_s = now_s
            self._live.start()
            self._live.update(Group(_summary(scene), _runs(scene), hosts_line(scene.overview)), refresh=True)

    def say(self, text: str) -> None:
        self._console.print(Text(f"  {text}", style="yellow" if text.startswith("kill") else "green"))


def line(scene: Scene) -> str:
    """A scene in one line."""
    audit, live = scene.overview["audit"], _by_status(scene)
    runs = [f"{live['starting']} starting", f"{live['running']} running"] if scene.noun == "runs" else []
    parts = [
        f"{scene.seconds:6.1f} s",
        f"{scene.ended}/{scene.requested} ended",
        *runs,
        f"{audit['pending']} in the mail",
        f"{sum(host['up'] for host in scene.overview['hosts'])} hosts",
        f"{sum(scene.kills.values())} kills",
        f"{_rate(scene):.3g} {scene.noun}/s",
    ]
    return "  ".join(parts)


def _by_status(scene: Scene) -> Counter[str]:
    return Counter(row["status"] for row in scene.overview["live"])


def _rate(scene: Scene) -> float:
    return scene.ended / scene.seconds if scene.seconds else 0.0


def _summary(scene: Scene) -> Table:
    live, audit = _by_status(scene), scene.overview["audit"]
    kills = ", ".join(f"{count} {kind}" for kind, count in scene.kills.items()) or "none yet"
    recovery = f"{scene.recovery_ms[-1]:.0f} ms, worst {max(scene.recovery_ms):.0f} ms" if scene.recovery_ms else "–"
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column()
    grid.add_row(scene.noun, ProgressBar(total=scene.requested, completed=scene.ended, width=50))
    states = f"{scene.ended} of {scene.requested} ended, {live['running']} running, {live['starting']} starting"
    grid.add_row("", f"{states}, {scene.overview['waiting']} waiting for a place")
    grid.add_row("mail", f"{audit['enqueued']} enqueued, {audit['delivered']} delivered, {audit['pending']} pending")
    grid.add_row("kills", kills)
    grid.add_row("recovery", f"last {recovery}" if scene.recovery_ms else recovery)
    grid.add_row(
        "rate",
        f"{_rate(scene):.3g} {scene.noun}/s after {scene.seconds:.1f} s, supervisor life {scene.overview['epoch']}",
    )
    return grid


def _runs(scene: Scene) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for title in ("run", "attempt", "progress", "phase", "milestones", "host"):
        table.add_column(title, no_wrap=True)
    rows = sorted(scene.overview["live"], key=lambda row: (row["status"] != "running", not row["progress"]))
    for row in rows[:RUNS_SHOWN_MAX]:
        table.add_row(*run_cells(row))
    if len(rows) > RUNS_SHOWN_MAX:
        table.add_row(f"… and {len(rows) - RUNS_SHOWN_MAX} more")
    return table
