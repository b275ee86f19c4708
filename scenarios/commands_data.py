"""The commands on a data directory, whether a cluster serves it or not: to look (`ps`, `show`, `explain`, `audit`, `doctor`), and to
steer (`cancel`, `retry`, `clear`).
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

import actors
from actors import Runtime, read_record
from ledger import BadRequest, Status
from ledger.integrity import Finding, examine, repair
from scenarios.cold import LEDGER, ColdLedger
from scenarios.commands_run import AsJson, Data

RunId = Annotated[str, typer.Argument(help="The id of the run; `perdure ps` shows those that are live.")]
HERE: Final = Path("perdure-data")
UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
WAYS: Final = ("delivered", "superseded", "suppressed", "parked", "pending")
RUNS_MAX: Final = 50
PIPE_COLUMNS: Final = 200


def add_to(root: typer.Typer) -> None:
    """Add these commands."""
    for command in (ps, show, explain, cancel, retry, clear, audit, doctor):
        root.command()(command)


def opened(data: Path) -> ColdLedger | Runtime:
    """The supervisor that serves the directory, or if there is none, its ledger itself."""
    return actors.Runtime(data) if read_record(data) is not None else ColdLedger(data)


def ps(data: Data = HERE, as_json: AsJson = False) -> None:
    """Show what is going on: runs by status, hosts, and the runs that are live.

    Example: perdure ps --data ./perdure-data
    """
    with opened(data) as ledger:
        told = ledger.ask("ps")
    if as_json:
        print(json.dumps(told))
        return
    served = told["supervisor"]
    print(
        f"{data}: "
        + (f"served by process {served['pid']} on {served['node']}" if served else "no supervisor serves it now")
    )
    print("runs   " + ", ".join(f"{count} {status}" for status, count in told["runs"].items() if count) or "none")
    print("mail   " + _equation(told["audit"]))
    _print_table(("host", "process", "agents", "memory"), (_host_cells(host) for host in told["hosts"]))
    _print_table(("run", "agent", "status", "attempt", "progress", "host"), map(_run_cells, told["live"][:RUNS_MAX]))


def show(
    run_id: Annotated[
        str | None, typer.Argument(help="A run; without one, the directory and its limits are shown.")
    ] = None,
    data: Data = HERE,
    as_json: AsJson = False,
) -> None:
    """Show everything about a run; without a run, the directory and the limits that are in force.

    Example: perdure show 3f0c9a
    """
    with opened(data) as ledger:
        told = ledger.ask("show", run_id) if run_id is not None else _directory(data, ledger)
    if as_json:
        print(json.dumps(told, default=str))
        return
    for name, value in told.items():
        print(f"{name:24}{_shown(name, value)}")


def explain(run_id: RunId, data: Data = HERE, as_json: AsJson = False) -> None:
    """Say in sentences why a run is where it is, and what comes next.

    Example: perdure explain 3f0c9a
    """
    with opened(data) as ledger:
        said = ledger.ask("explain", run_id)
    print(json.dumps(said) if as_json else "\n".join(said))


def cancel(
    run_id: RunId,
    reason: Annotated[str, typer.Option(help="What its parent is told.")] = "cancelled by an operator",
    data: Data = HERE,
) -> None:
    """Cancel a run and what its child waits for. A run that has ended stays as it is.

    Example: perdure cancel 3f0c9a --reason "wrong input"
    """
    with opened(data) as ledger:
        ledger.cancel(run_id, reason)
        print(f"Run {run_id} is {ledger.ask('show', run_id)['status']}.")


def retry(
    mail_id: Annotated[str, typer.Argument(help="A parked mail; `perdure audit` lists them.")], data: Data = HERE
) -> None:
    """Try a parked mail again.

    Example: perdure retry 3f0c9a/finish
    """
    with opened(data) as ledger:
        ledger.retry(mail_id)
    print(f"Mail {mail_id} will be tried again.")


def clear(
    run_ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]...", help="These runs; without any, those that the options choose."),
    ] = None,
    status: Annotated[
        list[Status] | None, typer.Option(help="Only runs with this status; may be given several times.")
    ] = None,
    older_than: Annotated[
        str | None, typer.Option(help="Only runs that were asked for so long ago, as in 90m or 7d.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before everything is cleared.")] = False,
    data: Data = HERE,
) -> None:
    """Forget runs and their children's storage. Live ones are cancelled first, and nothing that is cleared comes back.

    What their children had asked for is cleared with them.

    Examples:
        perdure clear --status completed --older-than 7d

        perdure clear 3f0c9a1e
    """
    before_ms = None if older_than is None else time.time_ns() // 1_000_000 - duration_ms(older_than)
    if run_ids:
        if status is not None or older_than is not None:
            raise BadRequest("run", "name runs, or choose them by --status and --older-than, but not both")
        with opened(data) as ledger:
            for run_id in run_ids:
                ledger.ask("show", run_id)  # refuses one that is unknown before any is cleared
            ledger.ask("clear", run_ids)
        print(f"{_runs(len(run_ids))} cleared.")
        return
    if status is None and older_than is None and not yes:
        typer.confirm(f"Clear all runs in {data}?", abort=True)
    with opened(data) as ledger:
        count = ledger.clear(status=None if status is None else [str(each) for each in status], older_than_ms=before_ms)
    print(f"{_runs(count)} cleared.")


def audit(data: Data = HERE, as_json: AsJson = False) -> None:
    """Account for every completion that was ever put into the mail, and list what is parked. Exits 1 if anything is missing.

    Example: perdure audit --json
    """
    with opened(data) as ledger:
        told = ledger.ask("audit")
    if as_json:
        print(json.dumps(told))
    else:
        print(_equation(told) + (" (balanced)" if told["balanced"] else " (NOT balanced)"))
        for mail in told["parked_mail"]:
            print(f"parked: {mail['mail_id']} for {mail['recipient']}.{mail['handler']}: {mail['error']}")
        print("".join(f"found at the start: {finding}\n" for finding in told["findings"]), end="")
    if not told["balanced"]:
        raise typer.Exit(1)


def doctor(
    mend: Annotated[
        bool, typer.Option("--repair", help="Mend what can be mended; copies of every file are kept.")
    ] = False,
    data: Data = HERE,
    as_json: AsJson = False,
) -> None:
    """Verify a ledger that nobody serves: files, chain, journal and records. Exits 1 if there is damage.

    Examples:
        perdure doctor

        perdure doctor --repair
    """
    findings: list[Finding] = (repair if mend else examine)(data / LEDGER)
    if as_json:
        print(json.dumps([{"severity": each.severity, "what": each.what, "advice": each.advice} for each in findings]))
    else:
        for each in findings:
            print(f"{each.severity:8} {each.what}" + (f" – {each.advice}" if each.advice else ""))
    if any(each.severity == "damage" for each in findings):
        raise typer.Exit(1)


def _runs(count: int) -> str:
    return "1 run was" if count == 1 else f"{count} runs were"


def duration_ms(words: str) -> int:
    """`90m` in milliseconds. Raises `BadRequest`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", words.strip())
    if found is None:
        raise BadRequest("older-than", f"{words!r} is not a duration like 30s, 90m, 12h or 7d")
    return int(float(found[1]) * UNITS_MS[found[2]])


def _directory(data: Path, ledger: ColdLedger | Runtime) -> dict[str, Any]:
    told = ledger.ask("ps", 0)
    files = [path for path in data.rglob("*") if path.is_file()]
    record = read_record(data)
    return {
        "directory": str(data.resolve()),
        "cluster": record.address if record is not None else "none",
        "megabytes": round(sum(path.stat().st_size for path in files) / 1_048_576, 1),
        "storages": len(list((data / "agents").rglob("*.db"))),
        "facts": told["facts"],
        "supervisor lives": told["epoch"],
        **ledger.ask("limits"),
    }


def _equation(told: dict[str, Any]) -> str:
    return f"{told['enqueued']} enqueued = " + " + ".join(f"{told[way]} {way}" for way in WAYS)


def _host_cells(host: dict[str, Any]) -> tuple[str, ...]:
    return (host["host"], str(host["pid"] or "starting"), str(host["tenants"]), f"{host['rss_mb']} MB")


def _run_cells(row: dict[str, Any]) -> tuple[str, ...]:
    progress = row["progress"] or {}
    fraction = progress.get("fraction")
    far = f"{fraction:.0%} {progress.get('phase') or ''}" if fraction is not None else progress.get("phase") or ""
    return (row["run_id"], row["agent_type"], row["status"], str(row["attempt"]), far, row["host"] or "")


def _print_table(titles: Iterable[str], rows: Iterable[tuple[str, ...]]) -> None:
    table = Table(box=None, padding=(0, 2), header_style="bold")
    for title in titles:
        table.add_column(title, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    if table.row_count:
        console = Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS)
        console.print()
        console.print(table)


def _shown(name: str, value: Any) -> str:
    if name.endswith("_at_ms") and isinstance(value, int) and value:
        return datetime.fromtimestamp(value / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")
    return value if isinstance(value, str) else json.dumps(value, default=str)
