"""What is going on in a directory, as a person watches it: a picture that keeps its place, and a sentence for each thing that happens.

Everything is told by two looks at the supervisor's overview, so nothing is missed when it dies in between. Time is an argument.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from perdure.scenarios.commands.shown import equation
from perdure.scenarios.faults.strikes import Strike, Victim
from perdure.scenarios.stories.live_tables import hosts_line, run_cells

RATE_S: Final = 10.0  # over which the rate is taken
LINES_AROUND: Final = 9  # of the picture, beside its runs
LABEL: Final = len("served")
ROWS_MIN: Final = 3
ENDED: Final = ("completed", "error", "aborted", "interrupted")
COLUMNS: Final = ("run", "attempt", "progress", "phase", "milestones", "host", "agent")


class Tray:
    """One view of one directory, from look to look."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.overview: dict[str, Any] | None = None
        self._why = ""
        self._silent_s: float | None = None  # since when nobody answers
        self._seen_s = 0.0
        self._lost: list[Strike] = []  # hosts that are gone, until what was on them is at work again
        self._ended: deque[tuple[float, int]] = deque()
        self._slots: list[str | None] = []

    @property
    def is_answered(self) -> bool:
        """Whether the last look was answered."""
        return self.overview is not None and self._silent_s is None

    # looks

    def see(self, overview: dict[str, Any], at_s: float) -> list[str]:
        """Take in a look. Returns what has happened since the last one."""
        before, self.overview = self.overview, overview
        said = self._heard(before, overview, at_s)
        if before is not None:
            said += self._of_hosts(before, overview, at_s)
            said += self._of_counts(before, overview)
        self._silent_s, self._why, self._seen_s = None, "", at_s
        self._count(overview, at_s)
        return said

    def miss(self, why: str, at_s: float) -> list[str]:
        """Nobody answered. The picture stays as it was."""
        if self._silent_s is None:
            self._silent_s = self._seen_s if self.overview is not None else at_s
        known, self._why = self._why, why
        return [why] if why != known else []

    def _heard(self, before: dict[str, Any] | None, overview: dict[str, Any], at_s: float) -> list[str]:
        epoch, count = overview["epoch"], overview["runs"]["starting"] + overview["runs"]["running"]
        live = f"{count} live run{'s' * (count != 1)}"
        if self._silent_s is not None:
            return [f"the supervisor answers after {at_s - self._silent_s:.1f} s, in life {epoch}, with {live}"]
        if before is not None and epoch > before["epoch"]:
            return [f"the supervisor was started again: this is life {epoch}, with {live}"]
        return []

    def _of_hosts(self, before: dict[str, Any], overview: dict[str, Any], at_s: float) -> list[str]:
        said = []
        here = {host["host"] for host in overview["hosts"]}
        for host in before["hosts"]:
            if host["up"] and host["tenants"] and host["host"] not in here:
                lost = Victim(host["host"], host["pid"], host["node"])
                self._lost.append(Strike.of("host", {lost: ""}, before, self._seen_s))
                said.append(f"host {lost.name} (process {lost.pid}) is gone: {self._lost[-1]}")
        for strike in [each for each in self._lost if each.has_recovered(overview, at_s)]:
            self._lost.remove(strike)
            (lost,) = strike.victims
            said.append(f"what was on host {lost.name} is at work again, or has ended, within {strike.took_ms:.0f} ms")
        return said

    def _of_counts(self, before: dict[str, Any], overview: dict[str, Any]) -> list[str]:
        said = []
        failed = overview["runs"]["error"] - before["runs"]["error"]
        parked = overview["audit"]["parked"] - before["audit"]["parked"]
        if failed > 0:
            said.append(f"{failed} run{'s have' if failed > 1 else ' has'} failed (`perdure ps --status error`)")
        if parked > 0:
            said.append(f"{parked} completion{'s are' if parked > 1 else ' is'} parked (`perdure audit`)")
        return said

    def _count(self, overview: dict[str, Any], at_s: float) -> None:
        self._ended.append((at_s, sum(overview["runs"][status] for status in ENDED)))
        while self._ended[0][0] < at_s - RATE_S:
            self._ended.popleft()

    @property
    def _rate(self) -> float:
        (first_s, first), (last_s, last) = self._ended[0], self._ended[-1]
        return max(0, last - first) / (last_s - first_s) if last_s > first_s else 0.0

    # the picture

    def picture(self, at_s: float, height: int, chosen: str = "", wanted: str = "") -> RenderableType:
        """What a terminal of this height shows: of the live runs those that have the words `wanted`, and one of them marked."""
        if self.overview is None:
            return self._standing(at_s)
        rows = max(ROWS_MIN, height - LINES_AROUND)
        return Group(self.summary(at_s), self._table(rows, chosen, wanted.lower()), hosts_line(self.overview))

    def shown(self) -> list[str]:
        """The runs of the last picture, line by line."""
        return [each for each in self._slots if each is not None]

    def _standing(self, at_s: float) -> Text:
        """Who serves the directory, or since when nobody answers."""
        if self._silent_s is not None:
            waits = "what is shown was so then" if self.overview is not None else "this waits until it is served"
            return Text(f"silent for {at_s - self._silent_s:.0f} s; {waits}: {self._why}", style="bold red")
        if self.overview is None:
            return Text(f"{self._name}: looking for what serves it")
        served = self.overview["supervisor"]
        return Text(f"by process {served['pid']} on {served['node']}, life {self.overview['epoch']}: {self._name}")

    def summary(self, at_s: float) -> Table:
        """Who serves the directory, how many runs there are, and the account of the mail."""
        overview = self.overview
        assert overview is not None
        runs = ", ".join(f"{count} {status}" for status, count in overview["runs"].items() if count) or "none"
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True, min_width=LABEL)
        grid.add_column(no_wrap=True, overflow="ellipsis")
        grid.add_row("served", self._standing(at_s))
        grid.add_row("runs", f"{runs}, {overview['waiting']} waiting for a place; {self._rate:.3g} ended/s")
        grid.add_row("mail", equation(overview["audit"]))
        return grid

    def _table(self, rows: int, chosen: str, wanted: str) -> Table:
        assert self.overview is not None
        live = {row["run_id"]: row for row in self.overview["live"] if wanted in _searched(row)}
        self._settle(live, rows)
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for title in COLUMNS:
            table.add_column(title, no_wrap=True, overflow="ellipsis")
        for run_id in self._slots:
            row = live.get(run_id or "")
            table.add_row(
                *(("",) * len(COLUMNS) if row is None else (*run_cells(row), row["agent_type"].rpartition(":")[2])),
                style="reverse" if row is not None and run_id == chosen else "",
            )
        more = self.overview["runs"]["starting"] + self.overview["runs"]["running"] - len(live.keys() & {*self._slots})
        table.add_row(f"… and {more} more" if more > 0 else "")
        return table

    def _settle(self, live: dict[str, dict[str, Any]], rows: int) -> None:
        """Give each run a line of its own until it ends. A line that is free goes to the next run, to those at work first."""
        self._slots = [run_id if run_id in live else None for run_id in self._slots[:rows]]

        def turn(run_id: str) -> tuple[bool, float, str]:
            return live[run_id]["status"] != "running", live[run_id]["started_at_ms"], run_id

        waiting = sorted(live.keys() - {*self._slots}, key=turn)
        waiting.reverse()
        for place, run_id in enumerate(self._slots):
            if run_id is None and waiting:
                self._slots[place] = waiting.pop()
        while waiting and len(self._slots) < rows:
            self._slots.append(waiting.pop())
        while self._slots and self._slots[-1] is None:
            self._slots.pop()

    def line(self, at_s: float) -> str:
        """The same in one line, for a pipe."""
        if self.overview is None or self._silent_s is not None:
            return self._standing(at_s).plain
        runs, audit = self.overview["runs"], self.overview["audit"]
        ended = sum(runs[status] for status in ENDED)
        up = sum(host["up"] for host in self.overview["hosts"])
        return (
            f"life {self.overview['epoch']}  {runs['starting']} starting  {runs['running']} running  {ended} ended"
            f"  {runs['error']} failed  {audit['pending']} in the mail  {up} hosts  {self._rate:.3g} ended/s"
        )


def _searched(row: dict[str, Any]) -> str:
    return " ".join((row["run_id"], row["agent_type"], row["parent"], row["status"])).lower()
