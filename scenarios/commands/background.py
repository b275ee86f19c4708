"""The commands on what agents do beside their runs: `inspect`, `fibers`, `schedules`, `unschedule` and `turns`; and what `ps` counts of it.

An agent's storage is read from a copy, whether the agent sleeps or is at work. The ledger is asked where agents are. No agent is woken by
what looks; `unschedule` writes to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from perdure import BadRequest, actors
from perdure.ledger import LedgerError, name_of, type_of
from perdure.ledger.maintenance.looking import OneStorage, StorageSource, look, opened_copy
from perdure.scenarios.commands.opening import ColdLedger, opened
from perdure.scenarios.commands.options import HERE, AsJson, Data
from perdure.scenarios.commands.shown import (
    awaited_in_words,
    instant,
    json_of,
    print_pairs,
    print_table,
    say,
    shortened,
)

if TYPE_CHECKING:
    from perdure import Runtime

T = TypeVar("T")
Told = dict[str, Any]

Agent = Annotated[str, typer.Argument(metavar="AGENT", help="An agent's address, as name@module:Class.")]
OfAgent = Annotated[str | None, typer.Option("--agent", help="Only those of this agent, as name@module:Class.")]
Failed = Annotated[bool, typer.Option("--failed", help="Only what has failed, or keeps failing.")]
Most = Annotated[int, typer.Option("--limit", min=1, max=100_000, help="Number of rows, the newest first.")]

Cells = Callable[[Told], tuple[str, ...]]
SHOWN_OF_AGENT: Final = 20
SMALL_BYTES: Final = 64 << 20  # a storage that may be copied for a count
_TOLD_BY_PLACE: Final = ("agent", "host", "pid", "node", "was_cut_off")


def fibers(
    agent: OfAgent = None, failed: Failed = False, limit: Most = 50, data: Data = HERE, as_json: AsJson = False
) -> None:
    """List the fibers of all agents, newest first, with their last errors.

    A fiber is pending or running, waits (it is in no process until its time or its event comes), is interrupted (its process died; if it is
    not settled, the agent's next life takes it up), or completed, error or aborted. Failed ones are settled with an error, or interrupted
    until somebody resolves them.

    Examples:
        perdure fibers --failed
        perdure fibers --agent "anna@desk.agents:Assistant" --json
    """
    _list("fibers", data, agent, limit, failed=failed, as_json=as_json)


def schedules(
    agent: OfAgent = None, failed: Failed = False, limit: Most = 50, data: Data = HERE, as_json: AsJson = False
) -> None:
    """List the schedules and the queued items of all agents, newest first, with their last errors.

    One is waiting for its time, retrying (its callback failed, and is called again), paused, or parked (it failed for good, until
    `schedules.retry`). Failed ones are retrying or parked.

    Examples:
        perdure schedules --failed
        perdure schedules --agent "anna@desk.agents:Assistant"
    """
    _list("schedules", data, agent, limit, failed=failed, as_json=as_json)


def unschedule(
    agent: Agent,
    schedule: Annotated[str, typer.Argument(help="Its key or id (`perdure schedules`).")],
    data: Data = HERE,
) -> None:
    """Cancel a schedule of an agent, or a queued item that is not done yet, by its key or id.

    The agent is told so, exactly once, and wakes for it; where nothing serves the directory, when it is served again. What its `on_start`
    declares is there again when the agent starts the next time, so take it out there, too.

    Examples:
        perdure unschedule "anna@desk.agents:Assistant" daily-report
    """
    with opened(data) as ledger, storages_of(ledger, data) as storages:
        for told in actors.cancelling(about(ledger, storages, agent), schedule):
            ledger.ask("tell", *told)
    print(f"Agent {agent} is told to cancel {schedule}.")


def turns(
    agent: OfAgent = None, failed: Failed = False, limit: Most = 50, data: Data = HERE, as_json: AsJson = False
) -> None:
    """List the turns of all chat agents, newest first, with their errors.

    A turn is accepted, running, parked (it waits for a person), or completed, error, aborted or skipped.

    Examples:
        perdure turns
        perdure turns --failed --limit 10
    """
    _list("turns", data, agent, limit, failed=failed, as_json=as_json)


def inspect(
    agent: Agent,
    sql: Annotated[
        str | None, typer.Option(help="Ask the agent's tables by SQL, read only; prints at most 1,000 rows.")
    ] = None,
    data: Data = HERE,
    as_json: AsJson = False,
) -> None:
    """Show everything about an agent: where it is, its mail, state, tables, fibers, schedules, queue and turns. It is not woken.

    What its storage holds is read from a copy of the file, so it is what was durable a moment ago.

    Examples:
        perdure inspect "anna@desk.agents:Assistant"
        perdure inspect "anna@desk.agents:Assistant" --sql "SELECT * FROM pages LIMIT 10"
    """
    with opened(data) as ledger, storages_of(ledger, data) as storages:
        told = about(ledger, storages, agent, whole=sql is None)
        if sql is not None:
            with opened_copy(storages, agent) as storage:
                _print_answer(agent, storage, sql, as_json=as_json)
            return
    show_agent(told, as_json=as_json)


@contextmanager
def storages_of(ledger: ColdLedger | Runtime, data: Path) -> Iterator[StorageSource]:
    if isinstance(ledger, ColdLedger):
        yield ledger.storages
        return
    with actors.storages_in(data) as storages:
        yield storages


def of_storages(
    ledger: ColdLedger | Runtime, data: Path, work: Callable[[StorageSource], T], without: Callable[[str], T]
) -> T:
    """What this tells of the storages; or of the problem, where a bucket cannot be read from here. What serves it answers all the same."""
    try:
        with storages_of(ledger, data) as storages:
            return work(storages)
    except (LedgerError, BadRequest) as problem:
        return without(str(problem))


def about(ledger: ColdLedger | Runtime, storages: StorageSource, agent: str, *, whole: bool = False) -> Told:
    """What is known of an agent; its state and tables, too, if it is to be `whole`. Raises `BadRequest` if it is unknown."""
    if not name_of(agent) or not type_of(agent):
        raise BadRequest("agent", f"{agent!r} is no address of an agent; one is name@module:Class")
    told: Told | None = actors.agent_told(ledger.ask("agent", agent), storages, agent, whole=whole)
    if told is None:
        raise nothing_known(agent)
    return told


def nothing_known(agent: str) -> BadRequest:
    return BadRequest("agent", f"{agent} is asleep or unknown: it has no storage, and the ledger holds nothing for it")


def show_agent(told: Told, *, as_json: bool) -> None:
    """Print what is known of an agent; of each kind of work what is open or has failed, and how much there is."""
    if as_json:
        print(json_of(told))
        return
    cut_off = "cut off at work, and goes on when the directory is served again" if told.get("was_cut_off") else "asleep"
    place = f"awake on host {told['host']} (process {told['pid']} on {told['node']})" if told["host"] else cut_off
    tables = [f"{it['name']}({it['columns']}): {it['rows']} rows" for it in told.get("tables", ())]
    lists = {name: value for name, value in told.items() if name in (*actors.KINDS_OF_WORK, "tables")}
    known = {name: value for name, value in told.items() if name not in (*_TOLD_BY_PLACE, *lists) and value}
    print_pairs({"agent": told["agent"], "is": place, **known})
    for line in tables:
        say(f"table  {line}")
    for kind, rows in lists.items():
        if kind != "tables":
            print(f"\n{kind}: {counted(kind, tally_of(rows))}")
            urgent_first = sorted(rows, key=lambda row: (not row["is_failed"], bool(row.get("is_settled"))))
            _print(kind, urgent_first[:SHOWN_OF_AGENT])


def tally(storages: StorageSource, most: int) -> Told:
    """How much background work is open, and how much has failed, by the storages that were written last and are not large."""
    places, total = storages.places(SMALL_BYTES)[:most], len(storages.places())
    counts = {kind: {"open": 0, "failed": 0, "all": 0} for kind in actors.KINDS_OF_WORK}
    problems = []
    for found in look(storages, places, actors.RECORDS_OF_WORK):
        problems += [found.place] if found.problem else []
        for kind, tell in actors.KINDS_OF_WORK.items() if not found.problem else ():
            for name, count in tally_of(tell(found, actors.NOT_AWAKE)).items():
                counts[kind][name] += count
    return {**counts, "storages": total, "looked_at": len(places), "unreadable": problems}


def tally_of(rows: list[Told]) -> dict[str, int]:
    return {
        "open": sum(not row.get("is_settled") for row in rows),
        "failed": sum(row["is_failed"] for row in rows),
        "all": len(rows),
    }


def counted(kind: str, counts: dict[str, int]) -> str:
    failed = "keep failing" if kind == "schedules" else "failed"
    words = [f"{counts['open']} open", f"{counts['failed']} {failed}"]
    return ", ".join(words) if counts["all"] else "none"


def _list(kind: str, data: Path, agent: str | None, limit: int, *, failed: bool, as_json: bool) -> None:
    with opened(data) as ledger, storages_of(ledger, data) as storages:
        served = ledger.ask("ps", 0)["supervisor"]
        if agent is not None:
            rows = actors.newest_first(about(ledger, storages, agent).get(kind, []), failed=failed)
            found = actors.Everywhere(rows, storages=1, unreadable=[])
        else:
            awake = {} if isinstance(ledger, ColdLedger) else actors.standing_by(ledger.ask)
            lives = {each: its.incarnation for each, its in awake.items() if its.is_awake}
            found = actors.everywhere(kind, storages, failed=failed, lives=lives)
    chosen, count, problems = found
    if as_json:
        about_it = {"supervisor": served, "storages": count, "unreadable": problems, "all": len(chosen)}
        print(json_of({**about_it, kind: chosen[:limit]}))
        return
    _print(kind, chosen[:limit])
    if len(chosen) > limit:
        print(f"\nThere are {len(chosen) - limit} more: --limit.")
    elif not chosen:
        print(f"There are no {'failed ' * failed}{kind} in {count} storages.")
    for each in problems:
        say(f"perdure: a storage cannot be read: {each}; ask `perdure doctor`", aside=True)


def _fiber_cells(row: Told) -> tuple[str, ...]:
    status = f"{row['status']} (recovering)" if row["is_recovering"] and not row["is_settled"] else row["status"]
    status = status if row["waits"] is None else awaited_in_words(row["waits"])
    return row["fiber_id"], row["agent"], row["name"], status, str(row["attempt"]), _when(row), _error(row)


def _schedule_cells(row: Told) -> tuple[str, ...]:
    due = instant(row["due_at_ms"]) if row["due_at_ms"] else ""
    return (
        row["key"] or row["id"],
        row["agent"],
        row["callback"],
        row["kind"],
        row["status"],
        str(row["attempt"]),
        due,
        _error(row),
    )


def _turn_cells(row: Told) -> tuple[str, ...]:
    return row["request_id"], row["agent"], row["trigger"], row["status"], str(row["attempt"]), _when(row), _error(row)


def _when(row: Told) -> str:
    return instant(actors.begun_at_ms(row))


def _error(row: Told) -> str:
    return shortened(row["error"] or row.get("reason") or "")


COLUMNS: Final[dict[str, tuple[tuple[str, ...], Cells]]] = {
    "fibers": (("fiber", "agent", "name", "status", "attempt", "accepted at", "error"), _fiber_cells),
    "schedules": (("schedule", "agent", "callback", "kind", "status", "failures", "due at", "error"), _schedule_cells),
    "turns": (("turn", "agent", "trigger", "status", "attempt", "accepted at", "error"), _turn_cells),
}


def _print(kind: str, rows: list[Told]) -> None:
    titles, cells = COLUMNS[kind]
    print_table(titles, map(cells, rows))


def _print_answer(agent: str, storage: OneStorage | None, sql: str, *, as_json: bool) -> None:
    if storage is None:
        raise BadRequest("agent", f"{agent} has no storage: it never wrote anything")
    answer = storage.ask(sql)
    if as_json:
        print(json_of([dict(zip(answer.columns, row, strict=True)) for row in answer.rows]))
    else:
        print_table(answer.columns, (tuple(map(str, row)) for row in answer.rows))
