"""`perdure ps --watch`: a live table on a terminal, plain lines in a pipe, objects with `--json`. Ctrl-C ends it.

It joins what serves the directory and starts nothing. When the supervisor dies it says so, keeps its picture, and goes on with the next
life; when nothing serves the directory it waits until something does. Everything follows from two looks at the supervisor's overview, so
nothing is missed when it dies in between.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from perdure.ledger import BadRequest, SupervisorUnreachable, given_as
from perdure.scenarios.commands.shown import equation, json_of
from perdure.scenarios.exits import TERMINATED
from perdure.scenarios.faults.observer import Observer
from perdure.scenarios.faults.strikes import Overview, Strike, Victim
from perdure.scenarios.live_view import FRAME_S, LINE_S, RunTable, Screen, grid, hosts_line, plural, screen_for, stamp

SHARE: Final = 3  # times as long as the look before it is a pause, at least
RATE_S: Final = 10.0  # over which the rate is taken
LINES_AROUND: Final = 8  # of the picture, beside its runs
ROWS_MIN: Final = 3
ENDED: Final = ("completed", "error", "aborted", "interrupted")


class LiveOverview:
    """One view of one directory, from look to look. Time is an argument."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.overview: Overview | None = None
        self._why = ""
        self._silent_s: float | None = None  # since when no supervisor answers
        self._seen_s = self._at_s = 0.0
        self._lost: list[Strike] = []  # hosts that are gone, until what was on them is at work again
        self._ended: deque[tuple[float, int]] = deque()
        self._table = RunTable()

    @property
    def is_answered(self) -> bool:
        return self.overview is not None and self._silent_s is None

    # looks

    def see(self, overview: Overview, at_s: float) -> list[str]:
        """Take in a look. Returns what has happened since the last one."""
        before, self.overview, self._at_s = self.overview, overview, at_s
        said = [*self._heard(before, overview)]
        if before is not None:
            said += [*self._of_hosts(before, overview), *self._of_counts(before, overview)]
        self._silent_s, self._why, self._seen_s = None, "", at_s
        self._ended.append((at_s, sum(overview["runs"][status] for status in ENDED)))
        while self._ended[0][0] < at_s - RATE_S:
            self._ended.popleft()
        return said

    def miss(self, why: str, at_s: float) -> list[str]:
        self._at_s = at_s
        if self._silent_s is None:
            self._silent_s = self._seen_s if self.overview is not None else at_s
        known, self._why = self._why, why
        return [why] if why != known else []

    def _heard(self, before: Overview | None, overview: Overview) -> Iterator[str]:
        count = overview["runs"]["starting"] + overview["runs"]["running"]
        now = f"life {overview['epoch']}, with {plural(count, 'live run')}"
        if self._silent_s is not None:
            yield f"the supervisor answers after {self._at_s - self._silent_s:.1f} s, in {now}"
        elif before is not None and overview["epoch"] > before["epoch"]:
            yield f"the supervisor was started again: this is {now}"

    def _of_hosts(self, before: Overview, overview: Overview) -> Iterator[str]:
        here = {host["host"] for host in overview["hosts"]}
        for host in before["hosts"]:
            if host["up"] and host["tenants"] and host["host"] not in here:
                lost = Victim(host["host"], host["pid"], host["node"])
                self._lost.append(Strike.of("host", {lost: ""}, before, self._seen_s))
                yield f"host {lost.name} (process {lost.pid}) is gone: {self._lost[-1]}"
        for strike in [each for each in self._lost if each.has_recovered(overview, self._at_s)]:
            self._lost.remove(strike)
            (lost,) = strike.victims
            yield f"what was on host {lost.name} is at work again, or has ended, within {strike.took_ms:.0f} ms"

    def _of_counts(self, before: Overview, overview: Overview) -> Iterator[str]:
        failed = overview["runs"]["error"] - before["runs"]["error"]
        parked = overview["audit"]["parked"] - before["audit"]["parked"]
        if failed > 0:
            yield f"{failed} run{'s have' if failed > 1 else ' has'} failed (`perdure ps --status error`)"
        if parked > 0:
            yield f"{parked} completion{'s are' if parked > 1 else ' is'} parked (`perdure audit`)"

    @property
    def _rate(self) -> str:
        (first_s, first), (last_s, last) = self._ended[0], self._ended[-1]
        return f"{max(0, last - first) / (last_s - first_s) if last_s > first_s else 0.0:.3g} ended/s"

    # what is shown

    def _standing(self) -> Text:
        if self._silent_s is not None:
            waits = "what is shown was so then" if self.overview is not None else "this waits until it is served"
            return Text(f"silent for {self._at_s - self._silent_s:.0f} s; {waits}: {self._why}", style="bold red")
        if self.overview is None:
            return Text(f"{self._name}: looking for what serves it")
        served = self.overview["supervisor"]
        return Text(f"by process {served['pid']} on {served['node']}, life {self.overview['epoch']}: {self._name}")

    def picture(self, height: int) -> RenderableType:
        """Who serves the directory, how many runs there are, the account of the mail, the live runs and the hosts."""
        if self.overview is None:
            return self._standing()
        overview, runs = self.overview, self.overview["runs"]
        counts = ", ".join(f"{count} {status}" for status, count in runs.items() if count) or "none"
        about: dict[str, RenderableType] = {
            "served": self._standing(),
            "runs": f"{counts}, {overview['waiting']} waiting for a place; {self._rate}",
            "mail": equation(overview["audit"]),
        }
        rows = max(ROWS_MIN, height - LINES_AROUND)
        table = self._table.table(overview["live"], rows, runs["starting"] + runs["running"])
        return Group(grid(about), table, hosts_line(overview))

    def line(self) -> str:
        if self.overview is None or self._silent_s is not None:
            return self._standing().plain
        runs, pending = self.overview["runs"], self.overview["audit"]["pending"]
        ended, up = sum(runs[status] for status in ENDED), sum(host["up"] for host in self.overview["hosts"])
        return (
            f"life {self.overview['epoch']}  {runs['starting']} starting  {runs['running']} running  {ended} ended"
            f"  {runs['error']} failed  {pending} in the mail  {up} hosts  {self._rate}"
        )

    def to_plain(self) -> dict[str, Any]:
        return {"at_ms": time.time_ns() // 1_000_000, "answered": self.is_answered, "overview": self.overview}


def watch(data: Path, live_max: int, *, as_json: bool) -> None:
    if not data.exists():
        raise BadRequest("data", f"there is no directory {data}")
    try:
        with screen_for(as_json=as_json, stamp=stamp) as screen:
            asyncio.run(_watch(data, live_max, screen, as_json=as_json))
    except asyncio.CancelledError:
        raise typer.Exit(TERMINATED) from None


async def _watch(data: Path, live_max: int, screen: Screen, *, as_json: bool) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    view, pause_s = LiveOverview(given_as(data)), FRAME_S if sys.stdout.isatty() and not as_json else LINE_S
    screen.show(view)
    async with Observer(data) as observer:
        while True:
            began_s = time.monotonic()
            try:
                said = view.see(await observer.ask("ps", live_max), time.monotonic())
            except SupervisorUnreachable as problem:
                said = view.miss(str(problem), time.monotonic())
            took_s = time.monotonic() - began_s
            for text in said:
                screen.say(text)
            screen.show(view)
            if as_json:
                print(json_of(view.to_plain()), flush=True)
            await asyncio.sleep(max(pause_s, SHARE * took_s if view.is_answered else 0))
