"""What a person sees while runs go on: a table on a terminal that is redrawn in its place, plain lines in a pipe, nothing with `--json`."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, Protocol, Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from perdure.ledger import harmless

FRAME_S: Final = 0.25
LINE_S: Final = 1.0
MILESTONES_MAX: Final = 3
COLUMNS: Final = ("run", "attempt", "progress", "phase", "milestones", "host", "agent")

_IN_A_ROW: Final = str.maketrans("\r\n\t", "   ")

Row = dict[str, Any]
"""A run, as the supervisor's overview (`ps`) has it."""


class Terminal(Console):
    """A console that says when nobody reads it any more; rich's own ends the process with 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


class LiveView(Protocol):
    def picture(self, height: int) -> RenderableType: ...

    def line(self) -> str: ...


# As it is, for `--json`: it shows nothing.
class Screen:
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def show(self, view: LiveView) -> None: ...

    def say(self, text: str) -> None: ...


# At most a line a second while something changes, and one for each event. `stamp` comes before each.
class PipeScreen(Screen):
    def __init__(self, stamp: Callable[[], str] = str) -> None:
        self._stamp, self._said_s, self._said = stamp, 0.0, ""

    def show(self, view: LiveView) -> None:
        line, now_s = view.line(), time.monotonic()
        if line != self._said and now_s - self._said_s >= LINE_S:
            self._said_s, self._said = now_s, line
            self.say(line)

    def say(self, text: str) -> None:
        print(f"{self._stamp()}{harmless(text)}", flush=True)


class TerminalScreen(Screen):
    """The picture stays in its place, and is as it was last shown when this is left. Events scroll by above it."""

    def __init__(self, stamp: Callable[[], str] = str, console: Console | None = None) -> None:
        self._stamp, self._drawn_s = stamp, 0.0
        self._console = console or Terminal(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
        self._view: LiveView | None = None

    def __exit__(self, *_: object) -> None:
        self._draw()
        self._live.stop()

    def show(self, view: LiveView) -> None:
        self._view, now_s = view, time.monotonic()
        if now_s - self._drawn_s >= FRAME_S:
            self._drawn_s = now_s
            self._live.start()
            self._draw()

    def say(self, text: str) -> None:
        self._console.print(Text(f"{self._stamp()}{harmless(text)}", style="yellow"))

    def _draw(self) -> None:
        if self._view is not None:
            self._live.update(self._view.picture(self._console.height), refresh=True)


def stamp() -> str:
    return f"{datetime.now(UTC):%H:%M:%S} "


def screen_for(*, as_json: bool, stamp: Callable[[], str] = str) -> Screen:
    return Screen() if as_json else TerminalScreen(stamp) if sys.stdout.isatty() else PipeScreen(stamp)


class RunTable:
    """Live runs, a line each. A run keeps its line until it ends; a free line goes to the next run, to those at work first."""

    def __init__(self) -> None:
        self._lines: list[str | None] = []

    def table(self, rows: list[Row], height: int, count: int) -> Table:
        # With at most `height` lines, and how many of `count` runs are left out.
        live = {row["run_id"]: row for row in rows}
        self._settle(live, height)
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for title in COLUMNS:
            table.add_column(title, no_wrap=True, overflow="ellipsis")
        for run_id in self._lines:
            table.add_row(*(("",) * len(COLUMNS) if run_id is None else _cells(live[run_id])))
        more = count - sum(run_id is not None for run_id in self._lines)
        table.add_row(f"… and {more} more" if more > 0 else "")
        return table

    def _settle(self, live: dict[str, Row], height: int) -> None:
        self._lines = [run_id if run_id in live else None for run_id in self._lines[:height]]

        def turn(run_id: str) -> tuple[bool, float, str]:
            return live[run_id]["status"] != "running", live[run_id]["started_at_ms"], run_id

        waiting = sorted(live.keys() - {*self._lines}, key=turn, reverse=True)
        for place, run_id in enumerate(self._lines):
            if run_id is None and waiting:
                self._lines[place] = waiting.pop()
        while waiting and len(self._lines) < height:
            self._lines.append(waiting.pop())
        while self._lines and self._lines[-1] is None:
            self._lines.pop()


def _cells(row: Row) -> tuple[RenderableType, ...]:
    progress = row["progress"] or {}
    bar = ProgressBar(total=1.0, completed=min(1.0, progress.get("fraction") or 0.0), width=16)
    words = f"{progress.get('phase') or row['status']}  {progress.get('message') or ''}".rstrip()
    words = f"waits for {row['waits_for']}" if row.get("waits_for") else words
    milestones = " ".join(row["milestones"][-MILESTONES_MAX:])
    kind = row["agent_type"].rpartition(":")[2]
    host = (row["host"] or "–")[:12]
    return _plain(row["run_id"][:14]), str(row["attempt"]), bar, _plain(words), _plain(milestones), host, _plain(kind)


def _plain(text: str) -> Text:
    # In a `Text`, brackets are no markup.
    return Text(harmless(text.translate(_IN_A_ROW)))


def hosts_line(overview: dict[str, Any]) -> Text:
    hosts = [
        f"{host['host'][:12]}: {plural(host['tenants'], 'agent')}, {host['rss_mb']} MB"
        if host["up"]
        else f"{host['host'][:12]}: starting"
        for host in overview["hosts"]
    ]
    return Text("hosts  " + "   ".join(hosts or ["none yet"]), style="dim", no_wrap=True, overflow="ellipsis")


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def were(count: int, noun: str) -> str:
    """`1 run was`, `2 runs were`."""
    return f"{plural(count, noun)} {'was' if count == 1 else 'were'}"


def grid(rows: dict[str, RenderableType]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True, min_width=max(map(len, rows)))
    table.add_column(no_wrap=True, overflow="ellipsis")
    for name, value in rows.items():
        table.add_row(name, value)
    return table
