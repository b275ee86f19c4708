"""The commands that look at the runs of a directory, whether a cluster serves it or not: `show`, `explain`, `audit` and `logs`."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack, aclosing
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.actors import LOGS, ClusterLogs, WantedLogs, ray_of
from perdure.ledger import bucket_of, check_format, harmless
from perdure.scenarios.commands.background import of_storages
from perdure.scenarios.commands.opening import ColdLedger, opened, served
from perdure.scenarios.commands.options import HERE, AsJson, Data, RunId, check_there, duration_ms
from perdure.scenarios.commands.shown import equation, json_of, print_pairs, say

if TYPE_CHECKING:
    from perdure import Runtime  # which brings Ray with it; a cold directory needs none


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
    if as_json:
        print(json_of(said))
    else:
        say("\n".join(said))


def audit(data: Data = HERE, as_json: AsJson = False) -> None:
    """Account for all mail, that is completions, milestones, what agents were told and events for runs, and list parked mail. Exits 1 if
    anything is missing.

    Each mail is delivered (its handler's effects are durable, or its run has taken the event), superseded (a give-up that an end overtook),
    suppressed (its run was cleared or its agent deleted, or the run ended without taking the event), parked (its handler kept raising; see
    `perdure retry`) or pending (on its way).

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
            say(f"parked: {shlex.quote(mail['mail_id'])} for {mail['recipient']}.{mail['handler']}: {mail['error']}")
        for finding in told["findings"]:
            say(f"found at the start: {finding}")
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


# ---------------- what agents printed


class Level(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def logs(
    whose: Annotated[
        str | None, typer.Argument(metavar="[RUN|AGENT|HOST]", help="A run, an agent by address or name, or a host.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is written from now on.")] = False,
    level: Annotated[Level, typer.Option(help="The least level.")] = Level.DEBUG,
    since: Annotated[str | None, typer.Option(help="Only what is not older than this, such as 90s or 2h.")] = None,
    last: Annotated[int, typer.Option(min=0, help="At most this many records, the newest ones.")] = 1_000,
    own: Annotated[
        bool, typer.Option("--own", help="Leave out what an agent's tools print in runs of their own.")
    ] = False,
    data: Data = HERE,
    as_json: Annotated[bool, typer.Option("--json", help="Print each record as a JSON object on a line.")] = False,
) -> None:
    """Show what agents' code printed and logged, with tracebacks, wherever it ran: of a run, an agent or a host, or everything.

    A line has the time (UTC), the level, the host, the run or else the agent, the logger, and the text. `stdout` is what was printed;
    `stderr` counts as a warning. The supervisor tells why a host ended. What subprocesses print is in Ray's logs alone.

    What the tools of a chat agent print is the agent's too: functions, and agents that its model calls, with what they ask for in turn.

    The logs lie in the data directory, and are read there: nothing is asked or started. They are bounded by the limit `logs_bytes_max`.

    Where the ledger is in a bucket, each machine has those of its own processes. On a machine of the cluster all of them are shown, in the
    order of time, as far as clocks agree: the supervisor asks a host on each machine, or starts a process on one that has none. A host of
    another machine is shown as host@machine. A machine tells at most 256 KB at once. One that has not answered within half a minute is
    named, and so is one of which older lines are left out. A machine that is gone has taken its logs along. If no supervisor answers, only
    what this machine has is shown.

    Examples:
        perdure logs
        perdure logs 3f0c9a1e -f
        perdure logs "anna@desk.agents:Assistant" --level warning --since 2h
    """
    check_there(data)
    if not (url := bucket_of(data)):
        check_format(data)
    since_ms = 0 if since is None else time.time_ns() // 1_000_000 - duration_ms(since, "since")
    wanted = WantedLogs(whose or "", since_ms, level.upper(), without_tools=own)
    with ExitStack() as stack:
        runtime = stack.enter_context(served(data)) if url else None
        if url and runtime is None:
            words = f"no supervisor of {url} that is known here tells those of others"
            print(f"perdure: these are the logs of this machine alone: {words}", file=sys.stderr)
        found = ClusterLogs(data / LOGS, None if runtime is None else runtime.asynchronous.ask)
        asyncio.run(_show(found, wanted, last, follow=follow, as_json=as_json, where=data / LOGS))


async def _show(found: ClusterLogs, wanted: WantedLogs, last: int, *, follow: bool, as_json: bool, where: Path) -> None:
    newest = await found.newest(wanted, last)
    _print(newest, as_json=as_json)
    if not newest and not follow:
        print(f"There is no such record in {where}.", file=sys.stderr)
    if follow:
        async with aclosing(found.follow(wanted)) as pages:
            async for records in pages:
                _print(records, as_json=as_json)


def _print(records: Iterable[dict[str, Any]], *, as_json: bool) -> None:
    for record in records:
        print(json.dumps(record) if as_json else harmless(_line(record)))
    sys.stdout.flush()


def _line(record: dict[str, Any]) -> str:
    at = datetime.fromtimestamp(record["at_ms"] / 1000, UTC)
    whose = record.get("run") or record.get("agent") or "-"
    host = "@".join(filter(None, [record["host"], record.get("machine")]))
    head = f"{at:%Y-%m-%d %H:%M:%S}.{record['at_ms'] % 1000:03} {record['level']:7} {host}"
    return f"{head} {whose} {record['logger']}: {record['text']}"
