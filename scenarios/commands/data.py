"""The commands on a data directory, whether a cluster serves it or not: to look (`ps`, `show`, `explain`, `audit`), and to
steer (`cancel`, `retry`, `clear`, `forget`).
"""

from __future__ import annotations

import math
import shlex
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from perdure import actors
from perdure.actors import LOGS, mistakable, ray_of
from perdure.ledger import HARD, BadRequest, Status, bucket_of, given_as, lasting, name_of, type_of
from perdure.scenarios.commands.background import about, counted, of_storages, show_agent, storages_of, tally
from perdure.scenarios.commands.cold import ColdLedger
from perdure.scenarios.commands.opening import opened
from perdure.scenarios.commands.options import HERE, AsJson, Data, duration_ms
from perdure.scenarios.commands.replica import replica_words
from perdure.scenarios.commands.shown import equation, json_of, print_hosts, print_live, print_pairs, print_runs
from perdure.scenarios.commands.watch import watch
from perdure.scenarios.live_view import plural, were

if TYPE_CHECKING:
    from perdure.actors import Runtime  # which brings Ray with it; a cold directory needs none

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
RunId = Annotated[str, typer.Argument(help="The id of a run; `perdure ps` shows the live ones.")]
STORAGES_MAX: Final = 100  # that `ps` looks at
PAGE_MAX: Final = 1_000_000


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
    status: Annotated[
        list[Status] | None, typer.Option(help="List the runs with this status, newest first; repeatable.")
    ] = None,
    parent: Annotated[
        str | None, typer.Option(help="List the runs that this agent requested, as name@module:Class, newest first.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Number of runs on a page.")] = 50,
    page: Annotated[int, typer.Option(min=1, max=PAGE_MAX, help="Which page.")] = 1,
    watched: Annotated[
        bool, typer.Option("--watch", "-w", help="Show runs, mail and hosts live, until Ctrl-C.")
    ] = False,
    data: Data = HERE,
    as_json: AsJson = False,
) -> None:
    """Show runs by status, mail, background work, hosts and live runs; or one agent; or list runs, newest first.

    A run is starting or running (live), interrupted (its parent stopped waiting; a late result repairs that), or completed, error or
    aborted (final). The mail is the account of `perdure audit`. A host is shown with its process, its agents and its resident memory, a
    process of a gateway with its port. If no host comes up, the cause is told.
    Nodes of a cluster that do not see the directory are named.
    With `ended_kept_ms` or `ended_kept_max` in its limits, a directory clears old ended runs by itself, and is shown to do so.

    A list says when each run was requested, how long it took, and how it ended.

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
    """
    chosen = [str(each) for each in status] if status else None
    listing = everything or chosen is not None or parent is not None
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
            # One more than the page has tells whether there are older ones.
            found = ledger.ask("list", parent, chosen, None, page * limit + 1, "newest")
            told |= {"listed": found[(page - 1) * limit :][:limit], "more": len(found) > page * limit}
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


def cancel(
    run_id: RunId,
    reason: Annotated[str, typer.Option(help="The reason that the parent is told.")] = "cancelled by an operator",
    data: Data = HERE,
) -> None:
    """Cancel a run and what its child waits for. A run that has ended stays as it is.

    The run is aborted when this command returns, and its child is stopped after that. Detached runs of the child go on. A run that has
    begun a step with an undo is over, too, but aborted only when its steps are undone.

    Example:
        perdure cancel 3f0c9a1e --reason "wrong input"
    """
    with opened(data) as ledger:
        before = ledger.ask("show", run_id)["status"]
        if before in HARD:
            print(f"Run {run_id} had ended before ({before}), and stays as it is.")
            return
        ledger.ask("cancel", run_id, None, reason)
        after = ledger.ask("show", run_id)["status"]
        undone = (
            ""
            if after in HARD
            else ", and is aborted when its steps are undone; `perdure explain` tells how far that is"
        )
        print(f"Run {run_id} is {after}{undone}.")


def retry(
    key: Annotated[
        str, typer.Argument(metavar="RUN|MAIL", help="A run (`perdure ps --all`), or a parked mail (`perdure audit`).")
    ],
    data: Data = HERE,
) -> None:
    """Try a run again that has failed, was given up or is parked; or a parked mail.

    A run keeps its id, its steps and what its agent has written. It has all its attempts again, and the newest code that the directory has
    for it. Runs that were aborted because it had failed begin again when it asks for them. Its parent is told of the new end: only of
    that one, unless its handler has already taken the former. A run that has completed or was cancelled is refused.

    The handler of a mail gets it as if for the first time. The id of a mail is the id of its run, an exclamation mark, and what the mail
    is about. Put it in single quotes.

    Examples:
        perdure retry 3f0c9a1e
        perdure retry '3f0c9a1e!finish!112'
        perdure retry '3f0c9a1e!milestone:read!112'
    """
    with opened(data) as ledger:
        is_mail = any(mail["mail_id"] == key for mail in ledger.ask("audit")["parked_mail"])
        ledger.ask("retry", key)
    print(f"{'Mail' if is_mail else 'Run'} {key} will be tried again.")


def clear(
    run_ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]...", help="Runs to clear; without any, those that the options choose."),
    ] = None,
    status: Annotated[list[Status] | None, typer.Option(help="Only runs with this status; repeatable.")] = None,
    older_than: Annotated[
        str | None, typer.Option(help="Only runs requested at least so long ago, such as 90m or 7d.")
    ] = None,
    yes: Yes = False,
    data: Data = HERE,
) -> None:
    """Forget runs and their children's storage. Live runs are cancelled first, and nothing cleared comes back.

    Runs that their children requested are cleared with them. If runs that are named would take others along, that is asked, with how
    many. Without runs or options everything is cleared, after a question.

    Examples:
        perdure clear --status completed --older-than 7d
        perdure clear 3f0c9a1e 77ab02d4
        perdure clear --yes
    """
    before_ms = None if older_than is None else time.time_ns() // 1_000_000 - duration_ms(older_than, "older-than")
    if run_ids:
        if status is not None or older_than is not None:
            raise BadRequest("run", "name runs, or choose them by --status and --older-than, but not both")
        with opened(data) as ledger:
            told = ledger.ask("at_stake", run_ids)  # refuses one that is unknown before any is cleared
            named = len(set(run_ids))
            if more := _more({"runs": told["runs"] - named, "live": 0, "sub_agents": told["sub_agents"], "mail": 0}):
                both = "it" if named == 1 else "them"
                _confirm(f"{plural(named, 'run')} would be cleared, and with {both} {more}", yes=yes)
            ledger.ask("clear", run_ids)
        print(f"{were(told['runs'], 'run')} cleared.")
        return
    if status is None and older_than is None:
        _confirm(f"all runs in {given_as(data)} would be cleared", yes=yes)
    with opened(data) as ledger:
        count = ledger.clear(status=None if status is None else [str(each) for each in status], older_than=before_ms)
    print(f"{were(count, 'run')} cleared.")


def forget(
    agent: Annotated[str, typer.Argument(help="An agent's address, as name@module:Class.")],
    yes: Yes = False,
    data: Data = HERE,
) -> None:
    """Delete an agent with its storage, its sub-agents, its mail and the runs that it requested. Its name is free again after that.

    If it has any of these, that is asked, with how many there are.

    It is the way out for an agent whose storage has lost something (`StorageLost`) and of which no copy is left: it begins anew.

    Examples:
        perdure forget "anna@desk.agents:Assistant"
        perdure forget "anna@desk.agents:Assistant" --yes
    """
    if not name_of(agent) or ":" not in type_of(agent):
        raise BadRequest("agent", f"{agent!r} is no address of an agent; one is name@module:Class")
    with opened(data) as ledger:
        if more := _more(ledger.ask("at_stake", [], agent)):
            _confirm(f"agent {agent} would be deleted, and with it {more}", yes=yes)
        ledger.ask("forget", agent)
    print(
        f"Agent {agent} is being deleted, with what belongs to it. It is gone when its life, if it has one, has ended."
    )


def _more(told: dict[str, int]) -> str:
    live = f", {told['live']} of them live" if told["live"] else ""
    found = [
        f"{plural(told['runs'], 'run')}{live}" if told["runs"] else "",
        plural(told["sub_agents"], "sub-agent") if told["sub_agents"] else "",
        f"{plural(told['mail'], 'mail')} on the way" if told["mail"] else "",
    ]
    return "; ".join(filter(None, found))


def _confirm(what: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise BadRequest("yes", f"{what}, and nobody is there to be asked; say --yes if that is meant")
    typer.confirm(f"{what[0].upper()}{what[1:]}. Do it?", abort=True)


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
