"""The commands that look at a data directory, whether a cluster serves it or not: `ps`, `show`, `explain`, `audit`."""

from __future__ import annotations

import math
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from perdure import actors
from perdure.actors import LOGS, RunFilter, mistakable, ray_of, wanted_by
from perdure.ledger import BadRequest, Wanted, bucket_of, given_as, lasting
from perdure.scenarios.commands.background import about, counted, of_storages, show_agent, storages_of, tally
from perdure.scenarios.commands.cold import ColdLedger
from perdure.scenarios.commands.opening import opened
from perdure.scenarios.commands.options import HERE, AsJson, Data, choosing
from perdure.scenarios.commands.replica import replica_words
from perdure.scenarios.commands.shown import equation, json_of, print_hosts, print_live, print_pairs, print_runs
from perdure.scenarios.commands.watch import watch
from perdure.scenarios.live_view import plural

if TYPE_CHECKING:
    from perdure.actors import Runtime  # which brings Ray with it; a cold directory needs none

RunId = Annotated[str, typer.Argument(help="The id of a run; `perdure ps` shows the live ones.")]
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
        watch(data, limit, as_json=as_json)
        return
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
        print(f"names  {words}")
    print("runs   " + (", ".join(f"{count} {status}" for status, count in runs.items() if count) or "none"))
    print("mail   " + equation(told["audit"]))
    if served and "replica" in served:
        print(f"copy   {replica_words(served['replica'])}")
    bounds = told["kept"]
    for_ms, most = bounds["ended_kept_ms"], bounds["ended_kept_max"]
    said = [f"for {lasting(for_ms)}"] * math.isfinite(for_ms) + [f"at most {most:,.0f}"] * math.isfinite(most)
    if said:
        print(f"kept   ended runs {', '.join(said)}; older ones that nobody needs are cleared")
    print(f"work   {_background(told['background'])}")
    if any(told["code"].values()):
        print(f"code   {_code(told['code'])}")
    for each in told["unstartable"]:
        print(f"hosts  {each['told']}")
    for each in (*told["elsewhere"], *told["draining"]):
        print(f"nodes  {each['told']}")
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


def show(
    run_id: Annotated[
        str | None, typer.Argument(help="A run; without one, the directory and its limits are shown.")
    ] = None,
    data: Data = HERE,
    as_json: AsJson = False,
) -> None:
    """Show everything about a run; without a run, the directory and the limits in force.

    Names that end in `_ms` are milliseconds. With --json an infinite limit is null.

    Examples:
        perdure show
        perdure show 3f0c9a1e
    """
    with opened(data) as ledger:
        told = ledger.ask("show", run_id) if run_id is not None else _directory(data, ledger)
    if as_json:
        print(json_of(told))
    else:
        print_pairs(told)


def explain(run_id: RunId, data: Data = HERE, as_json: AsJson = False) -> None:
    """Say in sentences where a run is and why, which limit applied, who re-attached to it, and what comes next and when.

    Limits have the names that they have in `perdure.Limits` and in the options of a run; `perdure show` prints all of them.

    Example:
        perdure explain 3f0c9a1e
    """
    with opened(data) as ledger:
        said = ledger.ask("explain", run_id)
    print(json_of(said) if as_json else "\n".join(said))


def audit(data: Data = HERE, as_json: AsJson = False) -> None:
    """Account for every completion that was ever mailed, and list parked mail. Exits 1 if anything is missing.

    Each mail is delivered (its handler's effects are durable), superseded (a give-up that an end overtook), suppressed (its run was
    cleared), parked (its handler kept raising; see `perdure retry`) or pending (on its way).

    Examples:
        perdure audit
        perdure audit --json
    """
    with opened(data) as ledger:
        told = ledger.ask("audit")
    if as_json:
        print(json_of(told))
    else:
        print(equation(told) + (" (balanced)" if told["balanced"] else " (NOT balanced)"))
        for mail in told["parked_mail"]:
            print(f"parked: {shlex.quote(mail['mail_id'])} for {mail['recipient']}.{mail['handler']}: {mail['error']}")
        print("".join(f"found at the start: {finding}\n" for finding in told["findings"]), end="")
    if not told["balanced"]:
        raise typer.Exit(1)


def _directory(data: Path, ledger: ColdLedger | Runtime) -> dict[str, Any]:
    told = ledger.ask("ps", 0)
    files = [path for path in data.rglob("*") if path.is_file()]
    record, megabytes = ray_of(data), round(sum(path.stat().st_size for path in files) / 1_048_576, 1)
    here = (
        {"cache": str(data.resolve()), "megabytes in the cache": megabytes}
        if bucket_of(data)
        else {"megabytes": megabytes}
    )
    return {
        "directory": bucket_of(data) or str(data.resolve()),
        "cluster": record.address
        if record is not None
        else "none" + " that this machine knows" * bool(bucket_of(data)),
        **here,
        "logs": f"{data.resolve() / LOGS}, shown by perdure logs",
        "storages": of_storages(ledger, data, lambda storages: len(storages.places()), str),
        "facts": told["facts"],
        "supervisor lives": told["epoch"],
        **ledger.ask("limits"),
    }
