"""What is known of an agent: by the ledger, and by a copy of its storage. No agent is woken, and none that is at work is held up.

Everything here blocks. What storages tell is what was durable a moment ago.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from perdure.actors.chat.turn import Turn
from perdure.actors.jobs.callback_rows import CallbackRow, RowKind
from perdure.actors.jobs.fiber import Fiber
from perdure.actors.life.one_transaction import FIRST
from perdure.actors.ray_world.deployment import bucket_store
from perdure.ledger import AGENTS, LEDGER, BadRequest, Kept, Tell, bucket_of, pack, pack_value, unpack
from perdure.ledger.maintenance.looking import BucketSource, DirectorySource, Looked, StorageSource, look, opened_copy
from perdure.ledger.storage.records import FIBER, QUEUED, SCHEDULE, STATE, TURN, VERSION
from perdure.policies import CallbackStatus, FiberStatus, TurnStatus

# ---------------------------------------------------------------- background
# The background work of agents, from the records of their storages: fibers, schedules with the queue, and turns, each as plain data.


NOT_AWAKE: Final = -1
_OF_AUTHORS: Final = ("snapshot", "accepted")  # what is not read, and what is of the call that begins a fiber
RECORDS_OF_WORK: Final = (FIBER, SCHEDULE, QUEUED, TURN)


def version_in(found: Looked) -> int:
    kept = found.records[VERSION].get("")
    return FIRST if kept is None else int(unpack(kept))


# Its fibers, as its author sees them in this life; `NOT_AWAKE` if there is none.
def fibers_in(found: Looked, life: int) -> list[Told]:
    rows = [Fiber.load(body) for body in found.records[FIBER].values()]
    failed = (FiberStatus.ERROR, FiberStatus.INTERRUPTED)
    return [
        {
            "agent": found.agent_id,
            **{name: value for name, value in asdict(row.shown(life, None)).items() if name not in _OF_AUTHORS},
            "method": row.fn_name or None,
            "is_settled": row.is_settled,
            "is_failed": row.is_settled and row.status in failed,
        }
        for row in rows
    ]


# Its schedules, and the items of its queue.
def schedules_in(found: Looked, _life: int) -> list[Told]:
    rows = [CallbackRow.load(body) for kind in (SCHEDULE, QUEUED) for body in found.records[kind].values()]
    failing = (CallbackStatus.RETRYING, CallbackStatus.PARKED)
    return [
        {
            "agent": found.agent_id,
            "id": row.id,
            "key": row.key,
            "kind": str(row.kind),
            "callback": row.callback,
            "status": str(row.status),
            "attempt": row.attempt,
            "due_at_ms": row.next_at_ms,
            "cron": row.cron,
            "created_at_ms": row.created_at_ms,
            "error": row.error or None,
            "is_failed": row.status in failing,
        }
        for row in rows
    ]


def turns_in(found: Looked, _life: int) -> list[Told]:
    rows = [Turn.load(body) for body in found.records[TURN].values()]
    return [
        {
            "agent": found.agent_id,
            "request_id": row.request_id,
            "trigger": row.trigger,
            "status": str(row.status),
            "attempt": row.attempt,
            "accepted_at_ms": row.accepted_at_ms,
            "started_at_ms": row.started_at_ms or None,
            "ended_at_ms": row.ended_at_ms or None,
            "waits_for_a_person": row.status == TurnStatus.PARKED,
            "reason": row.reason or None,
            "error": row.error or None,
            "is_settled": row.is_over,
            "is_failed": row.status in (TurnStatus.ERROR, TurnStatus.INTERRUPTED),
        }
        for row in rows
    ]


KINDS_OF_WORK: Final[dict[str, Callable[[Looked, int], list[Told]]]] = {
    "fibers": fibers_in,
    "schedules": schedules_in,
    "turns": turns_in,
}
"""The rows of each kind of background work, by a storage and the number of the agent's life if it is awake."""


Told = dict[str, Any]


# ---------------------------------------------------------------- inspecting


class Everywhere(NamedTuple):
    """Work of one kind of all agents, newest first: the rows, how many storages were looked at, and which cannot be read."""

    rows: list[Told]
    storages: int
    unreadable: list[str]


@contextmanager
def storages_in(data: Path) -> Iterator[StorageSource]:
    """The storages of a directory, or those that its bucket has now. Raises a `LedgerError` if the bucket cannot be read."""
    if not (url := bucket_of(data)):
        yield DirectorySource(data / AGENTS)
        return
    # In a cache of its own, because a supervisor may have the other one.
    with (
        TemporaryDirectory(prefix="perdure-") as cache,
        closing(bucket_store(Path(cache) / LEDGER, url, looks=True)) as store,
    ):
        store.boot()
        yield BucketSource(store)


def agent_told(known: Told | None, source: StorageSource, agent: str, *, whole: bool = True) -> Told | None:
    """What is known of an agent: where it is, its mail and work, and if that is wanted (`whole`) its state and tables. `known` is what the
    ledger says. None if it is unknown."""
    with opened_copy(source, agent) as storage:
        if known is None and storage is None:
            return None
        told: Told = known or {"agent": agent, "host": None}
        if storage is not None:
            found = storage.look([*RECORDS_OF_WORK, *[STATE] * whole])
            life = int(told["incarnation"]) if told["host"] else NOT_AWAKE
            told |= {"last_life": found.incarnation}
            told |= {kind: tell(found, life) for kind, tell in KINDS_OF_WORK.items()}
            if whole:
                told |= {"state": {key: unpack(body) for key, body in found.records[STATE].items()}}
                told |= {"tables": [each._asdict() for each in storage.tables()]}
    return told


def cancelling(told: Told, named: str) -> list[Tell]:
    """What an agent is told so that it cancels a schedule or drops a queued item, by its key or id. `told` is what is known of the agent.
    Raises `BadRequest` if it has none of that name."""
    agent = told["agent"]
    found = [row for row in told.get("schedules", ()) if named and named in (row["id"], row["key"])]
    if not found:
        words = (
            f"{agent} has no schedule and no queued item {named!r:.200}; `perdure schedules` lists those that there are"
        )
        raise BadRequest("schedule", words)
    tells: list[Tell] = []
    for row in found:
        given = {"row_id": row["id"], "is_queued": row["kind"] == RowKind.QUEUED}
        body = pack([[Kept(pack_value(name, value)) for name, value in given.items()], {}])
        tells.append(Tell(f"cancel!{token_hex(10)}", agent, agent, "_perdure_cancel_scheduled", body, None, 0))
    return tells


def everywhere(
    kind: str,
    source: StorageSource,
    storages_max: int | None = None,
    *,
    failed: bool,
    lives: Mapping[str, int] = MappingProxyType({}),
) -> Everywhere:
    """The work of one kind, of all storages or of those that were written last; `lives` are of the agents that are awake."""
    rows: list[Told] = []
    problems: list[str] = []
    places = source.places()[:storages_max]
    for found in look(source, places, RECORDS_OF_WORK):
        if found.problem:
            problems.append(f"{found.place}: {found.problem}")
        else:
            rows += KINDS_OF_WORK[kind](found, lives.get(found.agent_id, NOT_AWAKE))
    return Everywhere(newest_first(rows, failed=failed), len(places), problems)


def newest_first(rows: list[Told], *, failed: bool) -> list[Told]:
    return sorted((row for row in rows if row["is_failed"] or not failed), key=begun_at_ms, reverse=True)


def rows_of(source: StorageSource, agent: str, storage_sql: str) -> list[Told]:
    """Rows of an agent's tables, by a question that changes nothing. Raises `BadRequest` for one that cannot be answered."""
    with opened_copy(source, agent) as storage:
        if storage is None:
            return []
        answer = storage.ask(storage_sql)
        return [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]


def begun_at_ms(row: Told) -> int:
    return int(row.get("created_at_ms") or row.get("accepted_at_ms") or 0)
