"""Runs by pages, the newest request first. A page costs what it shows, however many runs are kept.

A place in the list is the number of the fact that requested a run. It never changes, so a list that grows meanwhile neither repeats a run
nor leaves one out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import nlargest
from operator import attrgetter
from typing import NamedTuple

from perdure.ledger.run import Run
from perdure.ledger.snapshot import run_from
from perdure.ledger.store.store import Record, Wanted


class Page(NamedTuple):
    """Runs, and the place after which the next page begins; None if this is the last."""

    runs: list[Run]
    next: int | None


def page_of(in_memory: Mapping[str, Run], archived: list[Record], wanted: Wanted, limit: int) -> Page:
    """A page, of runs in memory and of rows of the snapshot.

    Args:
        in_memory: all of them. What the snapshot says of these is out of date.
        archived: the newest of the snapshot that are wanted, at most one more than the page has.
        wanted: which are asked for.
        limit: of the page.
    """
    mine = nlargest(limit + 1, reversed(_wanted_of(in_memory.values(), wanted)), key=_place)  # they are almost in order
    theirs = [run_from(record) for record in archived if record.key not in in_memory]
    looked_at = [list(map(_place, mine)), list(map(_place_of, archived))]
    read_to = max((each[-1] for each in looked_at if len(each) > limit), default=0)  # there may be others below it
    told = sorted((run for run in (*mine, *theirs) if run.first_seq >= read_to), key=_place, reverse=True)
    if len(told) > limit:
        return Page(told[:limit], told[limit - 1].first_seq)
    return Page(told, read_to or None)


def _wanted_of(runs: Iterable[Run], wanted: Wanted) -> list[Run]:
    """Those of these that are asked for; a cleared one never is. One condition after the other: so each costs a millisecond for tens of
    thousands of runs, and those that were not given nothing."""
    found = [run for run in runs if not run.cleared]
    parent, agent_type, statuses, words, before = wanted
    if before is not None:
        found = [run for run in found if run.first_seq < before]
    if parent is not None:
        found = [run for run in found if run.parent == parent]
    if agent_type is not None:
        found = [run for run in found if run.agent_type == agent_type]
    if statuses is not None:
        found = [run for run in found if run.status in statuses]
    if words:
        sought = words.lower()
        found = [run for run in found if sought in f"{run.run_id}\n{run.agent_type}\n{run.parent}".lower()]
    return found


_place = attrgetter("first_seq")


def _place_of(record: Record) -> int:
    place = record.columns[5]
    return place if isinstance(place, int) else 0
