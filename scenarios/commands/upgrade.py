"""`perdure upgrade`: which code and which versions stand where, and a way to move agents on."""

from __future__ import annotations

import time
from collections import Counter
from typing import Annotated, Any, Final

import typer

from perdure import BadRequest, actors
from perdure.ledger import type_of
from perdure.ledger.maintenance.looking import StorageSource, look
from perdure.ledger.storage.records import VERSION
from perdure.scenarios.commands.background import SMALL_BYTES, of_storages
from perdure.scenarios.commands.opening import opened
from perdure.scenarios.commands.options import HERE, AsJson, Data
from perdure.scenarios.commands.shown import instant, json_of, print_table, say

STORAGES_MAX: Final = 1_000  # that are looked at
LEAVE_S: Final = 3.0  # for agents to leave
LOOK_S: Final = 0.1
CODE: Final = "code"
DIGITS: Final = 8  # of a version, as `perdure explain` shows it

Told = dict[str, Any]


def upgrade(
    agent_type: Annotated[
        str | None, typer.Argument(metavar="[AGENT_TYPE]", help="Only this type, as module:Class, or its module.")
    ] = None,
    now: Annotated[
        bool,
        typer.Option(
            "--now", help="Ask agents with older code again to leave as soon as they are at rest, and list who stays."
        ),
    ] = False,
    data: Data = HERE,
    as_json: AsJson = False,
) -> None:
    """Show which code stands where: the newest of each type, who is awake with older code, and runs that keep older code or are parked.

    Code comes with the programs that open the directory. An agent with a name takes the newest when it wakes. A live run keeps the code
    with which it was requested. A parked run waits for code that its input or its storage fits.

    `kept` has the versions of what agents keep (`class Till(Agent, version=2)`), and in how many storages: of the 1,000 that were written
    last and have at most 64 MB. They are read from copies. An agent is brought to its class's version when it wakes.

    Nothing is started and nobody is woken. When newer code comes, agents that are awake leave as soon as they are at rest: never in the
    midst of a run, call, turn, fiber or callback. --now asks them again, in case a host or the supervisor died since, and lists who stays
    with the reason.

    Examples:
        perdure upgrade
        perdure upgrade shop:Till --now
        perdure upgrade --json
    """
    with opened(data) as ledger:
        before = ledger.ask("upgrade", agent_type, now)
        if now and _older(before):
            until_s = time.monotonic() + LEAVE_S
            while _older(ledger.ask("upgrade", agent_type, False)) and time.monotonic() < until_s:
                time.sleep(LOOK_S)
        types = actors.by_type(ledger.ask("upgrade", None, False), data / CODE, agent_type)
        unreadable = of_storages(
            ledger, data, lambda storages: _add_versions(storages, types, agent_type), lambda problem: [problem]
        )
    if agent_type is not None and not types:
        raise BadRequest("agent_type", f"nothing of {agent_type!r} is known here; `perdure upgrade` lists all types")
    told: Told = {"types": types, "unreadable": unreadable}
    if now:
        told["moved"] = max(0, _older(before) - _older(types))
    if as_json:
        print(json_of(told))
        return
    _print(told)


def _older(types: list[Told]) -> int:
    return sum(row["awake_older"] for row in types)


def _add_versions(storages: StorageSource, types: list[Told], agent_type: str | None) -> list[str]:
    kept: dict[str, Counter[int]] = {}
    unreadable = []
    for found in look(storages, storages.places(SMALL_BYTES)[:STORAGES_MAX], (VERSION,)):
        if found.problem:
            unreadable.append(f"{found.place}: {found.problem}")
        elif found.agent_id:
            kept.setdefault(type_of(found.agent_id), Counter())[actors.version_in(found)] += 1
    for row in types:
        row["kept"] = {
            f"version {each}": count for each, count in sorted(kept.pop(row["agent_type"], Counter()).items())
        }
    for kind, counts in sorted(kept.items()):
        if agent_type in (None, kind):
            row = {"agent_type": kind, "kept": {f"version {each}": count for each, count in sorted(counts.items())}}
            types.append({**_NOTHING, **row})
    return unreadable


_NOTHING: Final[Told] = {
    "newest": None, "since_at_ms": None, "awake": 0, "awake_older": 0, "runs": 0, "runs_older": 0, "parked": 0,
    "agents_with_older_code": [], "runs_with_older_code": [], "parked_runs": [],
}  # fmt: skip


def _print(told: Told) -> None:
    if not told["types"]:
        print("No code came to this directory, and no agent is known.")
    titles = ("type", "newest code", "since", "awake", "(older)", "live runs", "(older)", "parked", "kept")
    print_table(titles, map(_cells, told["types"]))
    older = [(row, each) for row in told["types"] for each in row["runs_with_older_code"]]
    for row, each in older:
        say(f"older   run {each['run_id']} of {row['agent_type']} keeps version {_short(each['version'])}")
    parked = [each for row in told["types"] for each in row["parked_runs"]]
    for each in parked:
        say(f"parked  run {each['run_id']}: {' '.join(each['error'].split())}")
    if "moved" in told:
        print(f"Agents that have left, and take the newest code when they wake: {told['moved']}.")
        for each in (each for row in told["types"] for each in row["agents_with_older_code"]):
            say(f"stays   {each['agent']} with version {_short(each['version'])}: {each['because']}")
    elif any(row["awake_older"] for row in told["types"]):
        print("Agents take the newest code when they wake next; they leave as soon as they are at rest.")
    if older:
        print(
            "A live run keeps its code. `perdure cancel RUN` ends it; one that failed takes the newest by `perdure retry RUN`."
        )
    if parked:
        print(
            "A parked run goes on when code comes that it fits; `perdure retry RUN` tries it, `perdure cancel RUN` gives it up."
        )
    for each in told["unreadable"]:
        say(f"perdure: a storage cannot be read: {each}; ask `perdure doctor`", aside=True)


def _cells(row: Told) -> tuple[str, ...]:
    since = instant(row["since_at_ms"]) if row["since_at_ms"] else ""
    counts = (str(row[name]) for name in ("awake", "awake_older", "runs", "runs_older", "parked"))
    kept = ", ".join(f"{count} of {version}" for version, count in row["kept"].items())
    newest = "" if row["newest"] is None else _short(row["newest"])
    return (row["agent_type"], newest, since, *counts, kept)


def _short(version: str) -> str:
    return version[:DIGITS] or "installed"
