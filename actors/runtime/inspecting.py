"""What is known of an agent: by the ledger, and by a copy of its storage. Nobody is woken, and nobody who is at work is held up.

Everything here blocks. What storages tell is what was durable a moment ago.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from perdure.actors.runtime.background import KINDS_OF_WORK, NOT_AWAKE, RECORDS_OF_WORK, state_in
from perdure.ledger.keeping.looking import look, opened_copy, places_in
from perdure.ledger.storage.cabinet import STATE

Told = dict[str, Any]


class Everywhere(NamedTuple):
    """Work of one kind of all agents, newest first: the rows, how many storages were looked at, and which cannot be read."""

    rows: list[Told]
    storages: int
    unreadable: list[str]


def agent_told(known: Told | None, directory: Path, agent: str) -> Told | None:
    """What is known of an agent: where it is, its mail, state, tables and work. `known` is what the ledger says. None if it is unknown."""
    with opened_copy(directory, agent) as storage:
        if known is None and storage is None:
            return None
        told: Told = known or {"agent": agent, "host": None}
        if storage is not None:
            found = storage.look([STATE, *RECORDS_OF_WORK])
            life = int(told["incarnation"]) if told["host"] else NOT_AWAKE
            told |= {"last_life": found.incarnation, "state": state_in(found)}
            told |= {kind: tell(found, life) for kind, tell in KINDS_OF_WORK.items()}
            told |= {"tables": [each._asdict() for each in storage.tables()]}
    return told


def everywhere(
    kind: str,
    directory: Path,
    storages_max: int | None = None,
    *,
    failed: bool,
    lives: Mapping[str, int] = MappingProxyType({}),
) -> Everywhere:
    """The work of one kind, of all storages or of those that were written last; `lives` are of the agents that are awake."""
    rows: list[Told] = []
    problems: list[str] = []
    places = places_in(directory)[:storages_max] if directory.is_dir() else []
    for found in look(directory, places, RECORDS_OF_WORK):
        if found.problem:
            problems.append(f"{found.place}: {found.problem}")
        else:
            rows += KINDS_OF_WORK[kind](found, lives.get(found.agent_id, NOT_AWAKE))
    return Everywhere(newest_first(rows, failed=failed), len(places), problems)


def newest_first(rows: list[Told], *, failed: bool) -> list[Told]:
    """These rows, or those of them that have failed."""
    return sorted((row for row in rows if row["is_failed"] or not failed), key=begun_at_ms, reverse=True)


def rows_of(directory: Path, agent: str, storage_sql: str) -> list[Told]:
    """Rows of an agent's tables, by a question that changes nothing. Raises `BadRequest` for one that cannot be answered."""
    with opened_copy(directory, agent) as storage:
        if storage is None:
            return []
        answer = storage.ask(storage_sql)
        return [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]


def begun_at_ms(row: Told) -> int:
    """When the work was accepted."""
    return int(row.get("created_at_ms") or row.get("accepted_at_ms") or 0)
