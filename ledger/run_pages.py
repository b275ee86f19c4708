"""Runs by pages, the newest request first. A page costs what it shows, however many runs are kept.

A place in the list is the number of the fact that requested a run. It never changes, so a list that grows meanwhile neither repeats a run
nor leaves one out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from heapq import nlargest
from operator import attrgetter
from typing import Final, NamedTuple

from perdure.ledger.run import Run
from perdure.ledger.snapshot import run_from
from perdure.ledger.store.store import Record, Wanted

LOOKED_AT: Final = 2_000
"""How many rows of the snapshot are read for a page of runs that are chosen by their errors, which stand in the bodies of the rows. Such a
page may have fewer runs than there is room for."""


class Page(NamedTuple):
    """Runs, and the place after which the next page begins; None if this is the last."""

    runs: list[Run]
    next: int | None


class Chosen(NamedTuple):
    """The places and the ids of runs, how many have each status, and the place after which the next page begins; None if this is the
    last."""

    places: list[tuple[int, str]]
    statuses: dict[str, int]
    next: int | None


def rows_for(wanted: Wanted, limit: int) -> int:
    """How many of the newest rows of the snapshot a page is made of."""
    return max(limit + 1, LOOKED_AT) if wanted.error else limit + 1


def page_of(in_memory: Mapping[str, Run], archived: list[Record], wanted: Wanted, limit: int) -> Page:
    """A page, of runs in memory and of rows of the snapshot.

    Args:
        in_memory: all of them. What the snapshot says of these is out of date.
        archived: the newest of the snapshot that are wanted, as many as `rows_for` says.
        wanted: which are asked for.
        limit: of the page.
    """
    found, next_place = _merged(in_memory, archived, wanted, limit)
    return Page([each if isinstance(each, Run) else run_from(each) for each in found], next_place)


def chosen_of(in_memory: Mapping[str, Run], archived: list[Record], wanted: Wanted, limit: int) -> Chosen:
    """The same page, without the runs themselves: rows are read only for their errors."""
    found, next_place = _merged(in_memory, archived, wanted, limit)
    places = [(_place(each), each.run_id if isinstance(each, Run) else each.key) for each in found]
    statuses = Counter(str(each.status if isinstance(each, Run) else each.columns[0]) for each in found)
    return Chosen(places, dict(statuses), next_place)


def _merged(
    in_memory: Mapping[str, Run], archived: list[Record], wanted: Wanted, limit: int
) -> tuple[list[Run | Record], int | None]:
    mine = nlargest(
        limit + 1, reversed(wanted_of(in_memory.values(), wanted)), key=_first_seq
    )  # they are almost in order
    theirs: list[Run | Record] = [record for record in archived if record.key not in in_memory]
    if wanted.error:
        theirs = [*wanted_of(map(run_from, (each for each in theirs if isinstance(each, Record))), wanted)]
    looked_at = [
        _place(each[-1])
        for each, full in ((mine, limit + 1), (archived, rows_for(wanted, limit)))
        if len(each) >= full  # there may be others below it
    ]
    read_to = max(looked_at, default=0)
    told = sorted((run for run in (*mine, *theirs) if _place(run) >= read_to), key=_place, reverse=True)
    if len(told) > limit:
        return told[:limit], _place(told[limit - 1])
    return told, read_to or None


def wanted_of(runs: Iterable[Run], wanted: Wanted) -> list[Run]:
    """Those of these that are asked for; a cleared one never is. One condition after the other: so each costs a millisecond for tens of
    thousands of runs, and those that were not given nothing."""
    found = [run for run in runs if not run.cleared]
    if wanted.before is not None:
        found = [run for run in found if run.first_seq < wanted.before]
    if wanted.run_ids is not None:
        named = frozenset(wanted.run_ids)
        found = [run for run in found if run.run_id in named]
    if wanted.parent is not None:
        found = [run for run in found if run.parent == wanted.parent]
    if wanted.agent_type is not None:
        found = [run for run in found if run.agent_type == wanted.agent_type]
    if wanted.statuses is not None:
        found = [run for run in found if run.status in wanted.statuses]
    if wanted.retriable:
        found = [run for run in found if run.can_be_retried]
    if wanted.parked:
        found = [run for run in found if run.parked]
    if wanted.undoing:
        found = [run for run in found if run.is_undoing]
    if wanted.prefix:
        found = [run for run in found if run.run_id.startswith(wanted.prefix)]
    return _with_words(_of_age(found, wanted), wanted)


def _of_age(runs: list[Run], wanted: Wanted) -> list[Run]:
    if wanted.since_ms is not None:
        runs = [run for run in runs if run.requested_at_ms >= wanted.since_ms]
    if wanted.until_ms is not None:
        runs = [run for run in runs if run.requested_at_ms < wanted.until_ms]
    if wanted.ended_since_ms is not None:
        runs = [run for run in runs if run.ended_at_ms and run.ended_at_ms >= wanted.ended_since_ms]
    if wanted.ended_until_ms is not None:
        runs = [run for run in runs if run.ended_at_ms and run.ended_at_ms < wanted.ended_until_ms]
    return runs


def _with_words(runs: list[Run], wanted: Wanted) -> list[Run]:
    if wanted.words:
        sought = wanted.words.lower()
        runs = [run for run in runs if sought in f"{run.run_id}\n{run.agent_type}\n{run.parent}".lower()]
    if wanted.error:
        sought = wanted.error.lower()
        runs = [run for run in runs if sought in run.trouble.lower()]
    return runs


_first_seq = attrgetter("first_seq")


def _place(each: Run | Record) -> int:
    if isinstance(each, Run):
        return each.first_seq
    place = each.columns[5]
    return place if isinstance(place, int) else 0
