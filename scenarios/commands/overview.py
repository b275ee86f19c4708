"""`perdure ps`: the runs, the mail and the hosts of a directory, once; or live by `--watch`, until Ctrl-C.

The live one joins what serves the directory and starts nothing. When the supervisor dies it says so, keeps its picture, and goes on with
the next life; when nothing serves the directory it waits until something does. Everything follows from two looks at the supervisor's
overview, so nothing is missed when it dies in between.
"""

from __future__ import annotations

import asyncio
import math
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from perdure import BadRequest, RunFilter, SupervisorUnreachable, actors
from perdure.actors import mistakable, wanted_by
from perdure.ledger import Verb, Wanted, bucket_of, given_as, lasting
from perdure.scenarios.commands.background import about, counted, of_storages, show_agent, storages_of, tally
from perdure.scenarios.commands.opening import ColdLedger, opened
from perdure.scenarios.commands.options import HERE, AsJson, Data, check_there, choosing
from perdure.scenarios.commands.shown import equation, json_of, print_hosts, print_live, print_runs, replica_words, say
from perdure.scenarios.exits import TERMINATED
from perdure.scenarios.faults.observer import Observer
from perdure.scenarios.faults.strikes import Overview, Strike, Victim
from perdure.scenarios.live_view import FRAME_S, LINE_S, RunTable, Screen, grid, hosts_line, plural, screen_for, stamp

if TYPE_CHECKING:
    from perdure import Runtime  # which brings Ray with it; a cold directory needs none

STORAGES_MAX: Final = 100  # that `ps` looks at
PAGE_MAX: Final = 1_000_000
PAGE_ROWS: Final = 1_000  # that are asked for at once


@choosing
def ps(
    agent: Annotated[
        str | None,
        typer.Argument(
            metavar="[AGENT]", help="Show where this agent is, and its work; an address, as name@module:Class."
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="List all runs, ended ones included, newest first.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Number of runs on a page.")] = 50,
    page: Annotated[int, typer.Option(min=1, max=PAGE_MAX, help="Which page.")] = 1,
    watched: Annotated[
        bool, typer.Option("--watch", "-w", help="Show runs, mail and hosts live, until Ctrl-C.")
    ] = False,
    data: Data = HERE,
    as_json: AsJson = False,
    *,
    which: RunFilter,
) -> None:
    """Show runs by status, mail, background work, hosts and live runs; or one agent; or list runs, newest first.

    A run is starting or running (live), interrupted (its parent stopped waiting; a late result repairs that), or completed, error or
    aborted (final). The mail is the account of `perdure audit`. A host is shown with its process, its agents and its resident memory, a
    process of a gateway with its port. If no host comes up, the cause is told.
    Nodes of a cluster that do not see the directory are named.
    With `ended_kept_ms` or `ended_kept_max` in its limits, a directory clears old ended runs by itself, and is shown to do so.

    A list says when each run was requested, how long it took, and how it ended. The options that choose runs are those of `cancel`,
    `retry` and `clear`, so a list shows what these would hit.

    The background work is that of the 100 storages that were written last: what is open, and what has failed. They are read from copies,
    and no agent is woken. `perdure fibers`, `schedules` and `turns` list it for all agents.

    The lines that begin with "copy" say where a directory is followed to (`perdure replica`), and how far that is behind.

    Agents and runs that have older code than came last, and runs that are parked for their input, are counted if there are any.

    With --watch the overview is live: on a terminal a table of the runs that are live, with their progress and milestones, and a line
    for each host or supervisor that dies and for what is at work again; in a pipe plain lines; with --json an object for each look, with
    answered and overview. It says when the supervisor does not answer, and goes on with the next one. --limit says how many live runs are
    looked at.

    Examples:
        perdure ps
        perdure ps --watch
        perdure ps "anna@desk.agents:Assistant"
        perdure ps --all --page 2
        perdure ps --status error --status interrupted --limit 10
        perdure ps --type desk.agents:Reader --error timeout --newer-than 2h
    """
    wanted = wanted_by(which)
    listing = everything or bool(which)
    if watched:
        if listing or agent is not None or page > 1:
            raise BadRequest(
                "watch", "shows the live runs; lists, pages and single agents are shown once, without --watch"
            )
        _watch(data, limit, as_json=as_json)
        return
    if page > 1 and (agent is not None or not listing):
        raise BadRequest("page", "only lists have pages; say --all, or choose runs by options")
    if agent is not None:
        with opened(data) as ledger, storages_of(ledger, data) as storages:
            show_agent(about(ledger, storages, agent), as_json=as_json)
        return
    with opened(data) as ledger:
        told = ledger.ask("ps", limit) | {"gateways": _gateways(ledger)}
        if not listing:
            told |= {
                "background": of_storages(
                    ledger, data, partial(tally, most=STORAGES_MAX), lambda problem: {"problem": problem}
                )
            }
        if listing:
            told |= _page(ledger, wanted, limit, page)
            if not told["listed"] and wanted.agent_type:  # refused if it is mistyped
                ledger.ask("chosen", Verb.CLEAR, [*Wanted(agent_type=wanted.agent_type)], 1, 0)
    if as_json:
        print(json_of(told))
    elif listing:
        print_runs(told["listed"])
        if not told["listed"]:
            print("There is no such run." if page == 1 else f"There is no page {page}.")
        if told["more"]:
            print(f"\nThere are older ones: --page {page + 1}.")
    else:
        _print_overview(data, told)


def _page(ledger: ColdLedger | Runtime, wanted: Wanted, limit: int, page: int) -> dict[str, Any]:
    first, listed, place = (page - 1) * limit, list[dict[str, Any]](), 0
    while True:  # one more than the page has tells whether there are older ones
        told = ledger.ask("page", [*wanted], min(PAGE_ROWS, first + limit + 1 - place))
        listed += told["runs"][max(0, first - place) :]
        place += len(told["runs"])
        if told["next"] is None or place > first + limit:
            return {"listed": listed[:limit], "more": place > first + limit}
        wanted = wanted._replace(before=told["next"])


# The processes of a gateway belong to the program that started them, and not to the supervisor.
def _gateways(ledger: ColdLedger | Runtime) -> list[dict[str, Any]]:
    if isinstance(ledger, ColdLedger):
        return []
    return [{"gateway": port, "pid": info.pid, "node": info.node} for port, info in ledger.cluster.gateways()]


def _print_overview(data: Path, told: dict[str, Any]) -> None:
    served, runs = told["supervisor"], told["runs"]
    nobody = (
        "no supervisor that is known on this machine serves it" if bucket_of(data) else "no supervisor serves it now"
    )
    by = f"served by process {served['pid']} on {served['node']}" if served else nobody
    print(f"{given_as(data)}: {by}")
    for words in mistakable(data / "code"):
        say(f"names  {words}")
    print("runs   " + (", ".join(f"{count} {status}" for status, count in runs.items() if count) or "none"))
    print("mail   " + equation(told["audit"]))
    if served and "replica" in served:
        print(f"copy   {replica_words(served['replica'])}")
    bounds = told["kept"]
    for_ms, most = bounds["ended_kept_ms"], bounds["ended_kept_max"]
    said = [f"for {lasting(for_ms)}"] * math.isfinite(for_ms) + [f"at most {most:,.0f}"] * math.isfinite(most)
    if said:
        print(f"kept   ended runs {', '.join(said)}; older ones that nobody needs are cleared")
    say(f"work   {_background(told['background'])}")
    if any(told["code"].values()):
        print(f"code   {_code(told['code'])}")
    for each in told["unstartable"]:
        say(f"hosts  {each['told']}")
    for each in (*told["elsewhere"], *told["draining"]):
        say(f"nodes  {each['told']}")
    print_hosts([*told["hosts"], *told["gateways"]])
    print_live(told["live"])
    left = runs["starting"] + runs["running"] - len(told["live"])
    if left > 0:
        print(f"\nThere are {left} more: `perdure ps --status running --status starting` lists them by pages.")


def _code(told: dict[str, int]) -> str:
    agents, runs, parked = (told[each] for each in ("agents_with_older_code", "runs_with_older_code", "parked_runs"))
    older = f"{plural(agents, 'agent')} awake and {plural(runs, 'live run')} with older code"
    return f"{older}, {plural(parked, 'run')} parked (`perdure upgrade` tells more)"


def _background(told: dict[str, Any]) -> str:
    if "problem" in told:
        return f"not known, since the storages cannot be read from here: {told['problem']}"
    if not told["storages"]:
        return "none: no agent has a storage"
    found = "; ".join(f"{kind} {counted(kind, told[kind])}" for kind in actors.KINDS_OF_WORK)
    where = f"in {told['storages']} storages"
    if told["looked_at"] < told["storages"]:
        where = (
            f"in the {told['looked_at']} of {told['storages']} storages that were written last and have at most 64 MB"
        )
    unreadable = f", of which {len(told['unreadable'])} cannot be read" if told["unreadable"] else ""
    return f"{found} ({where}{unreadable})"


# ---------------- live


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


def _watch(data: Path, live_max: int, *, as_json: bool) -> None:
    check_there(data)
    try:
        with screen_for(as_json=as_json, stamp=stamp) as screen:
            asyncio.run(_look_on(data, live_max, screen, as_json=as_json))
    except asyncio.CancelledError:
        raise typer.Exit(TERMINATED) from None


async def _look_on(data: Path, live_max: int, screen: Screen, *, as_json: bool) -> None:
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
