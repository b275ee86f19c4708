"""What a soak still waits for, in words: runs, mail, and the work that lies in the agents' storages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from perdure import actors
from perdure.scenarios.stories.stage import Stage

NAMED_MAX: Final = 10  # of each kind
LIVE_MAX: Final = 1_000
OVER: Final = ("parked", "paused")  # a callback that waits for a person

Told = dict[str, Any]


async def waited_for(stage: Stage, directory: Path) -> str:
    """Everything that is under way or due, each with its state."""
    told = await stage.ask("ps", LIVE_MAX)
    found = {
        kind: await asyncio.to_thread(actors.everywhere, kind, directory, failed=False)
        for kind in ("fibers", "schedules", "turns")
    }
    pending = told["audit"]["pending"]
    sentences = [
        *(each["told"] for each in (*told["unstartable"], *told["elsewhere"])),
        *_some("runs", map(_run, told["live"])),
        *([f"{pending} letters are not handled"] if pending else []),
        *(sentence for kind, each in found.items() for sentence in open_work(kind, each.rows)),
    ]
    return "; ".join(sentences) or "nothing that the supervisor or a storage knows of"


def open_work(kind: str, rows: Iterable[Told]) -> list[str]:
    """What of these fibers, schedules with items of queues, or turns is not over."""
    if kind == "schedules":
        return _some(kind, (_callback(row) for row in rows if row["status"] not in OVER))
    name = "fiber_id" if kind == "fibers" else "request_id"
    return _some(kind, (f"{kind[:-1]} {row[name]} of {_state(row)}" for row in rows if not row["is_settled"]))


def _run(row: Told) -> str:
    where = f"on host {row['host']}" if row["host"] else "on no host"
    return f"run {row['run_id']} is {row['status']}, in attempt {row['attempt']}, {where}"


def _callback(row: Told) -> str:
    name = "item" if row["kind"] == "queued" else "schedule"
    return f"{name} {row['key'] or row['id']} of {_state(row)}, due at {row['due_at_ms']}"


def _state(row: Told) -> str:
    error = f", last error: {row['error']:.200}" if row.get("error") else ""
    return f"{row['agent']} is {row['status']}, in attempt {row['attempt']}{error}"


def _some(kind: str, sentences: Iterable[str]) -> list[str]:
    said = list(sentences)
    more = len(said) - NAMED_MAX
    return said[:NAMED_MAX] + ([f"{more} more {kind}"] if more > 0 else [])
