"""Batches: what many runs go through together, as one fact in columns.

A fan-out asks for thousands of runs that differ in their ids and inputs alone. A *batch* stands for as many facts of one kind as it has
runs, with consecutive numbers, in the order of its columns. So it is decided, folded and written once, to the journal and to DuckDB,
whose part of a run is 3 to 5 µs instead of 18.
A boot folds it as a whole, too. Every other reader of facts reads its members, each as if it had been written by itself: followers of
events, spans, and an examination.
A run that is forgotten leaves an empty place, so that the others keep their numbers (`without`).

Only what is alike is a batch (`batch_decisions`). Everything odd goes one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import compress, count, repeat
from typing import Any, Final, NamedTuple, TypeAlias

from perdure.ledger.codec import encoder, unpack
from perdure.ledger.errors import LedgerDamaged
from perdure.ledger.facts import AttemptStarted, RunRequested, RunSucceeded
from perdure.ledger.store.store import BatchRow, FactRow, Row

_SOUGHT_MAX: Final = 4  # more ids than this are not looked for in the bytes of a batch, which is decoded at once
BATCH_MIN: Final = 4
"""Fewer go one by one: a batch of them would save nothing."""


# `RunRequested` of many runs of one parent: they differ in their ids, digests and inputs.
class RunsRequested(NamedTuple):
    run_ids: list[str]
    digests: list[str]
    inputs: list[bytes]
    agent_type: str
    parent: str
    parent_run: str
    options: dict[str, Any]
    life: int

    def columns(self, seq: int) -> tuple[Iterable[object], ...]:
        """The fields of the facts for which it stands. `seq` is the number of the first."""
        about = repeat(self.agent_type), repeat(self.parent), repeat(self.parent_run)
        return self.run_ids, *about, self.digests, self.inputs, repeat(self.options), repeat(self.life), count(seq)

    def frame(self) -> int | None:
        return 0


# `AttemptStarted` of the first attempts at many runs, on one host. `incarnation` is that of the first; each has the next one.
class AttemptsStarted(NamedTuple):
    run_ids: list[str]
    incarnation: int
    host_id: str

    def columns(self, _seq: int) -> tuple[Iterable[object], ...]:
        return self.run_ids, repeat(1), count(self.incarnation), repeat(self.host_id), repeat(False)

    def frame(self) -> int | None:
        # a first attempt is no event
        return None


# `RunSucceeded` of many runs of one parent whose children have left their hosts. `number` is that of each as an event of its run.
class RunsSucceeded(NamedTuple):
    run_ids: list[str]
    outputs: list[bytes | None]
    summaries: list[str]
    attempt: int
    number: int

    def columns(self, _seq: int) -> tuple[Iterable[object], ...]:
        last = repeat(True), repeat(False), repeat(0)
        return self.run_ids, repeat(self.attempt), self.outputs, self.summaries, *last

    def frame(self) -> int | None:
        return self.number


Batch: TypeAlias = RunsRequested | AttemptsStarted | RunsSucceeded
BATCH: Final = (RunsRequested, AttemptsStarted, RunsSucceeded)
Member: TypeAlias = RunRequested | AttemptStarted | RunSucceeded

BATCHES: Final[dict[str, tuple[type[Batch], type[Member]]]] = {
    "RunsRequested": (RunsRequested, RunRequested),
    "AttemptsStarted": (AttemptsStarted, AttemptStarted),
    "RunsSucceeded": (RunsSucceeded, RunSucceeded),
}
"""Each kind of batch, with the kind of the facts for which it stands."""


def batch_of(row: BatchRow) -> Batch:
    try:
        return BATCHES[row.kind][0](*unpack(row.body))
    except (KeyError, TypeError, ValueError) as problem:
        raise LedgerDamaged(
            "ledger", f"a batch of kind {row.kind!r} cannot be read: {problem}", "run `perdure doctor`"
        ) from problem


def expand_rows(rows: Iterable[Row], subjects: Collection[str] | None = None) -> list[FactRow]:
    # The rows of facts, with the members of batches in their places; only those about these subjects, if some are named.
    facts: list[FactRow] = []
    for row in rows:
        if not isinstance(row, FactRow):
            if subjects is None or _may_have(row, subjects):
                facts += _members(row, subjects)
        elif subjects is None or row.subject in subjects:
            facts.append(row)
    return facts


def _may_have(row: BatchRow, subjects: Collection[str]) -> bool:
    # To look for a few ids in the bytes of a batch takes less time than to decode it.
    return len(subjects) > _SOUGHT_MAX or any(each.encode(errors="surrogatepass") in row.body for each in subjects)


def _members(row: BatchRow, subjects: Collection[str] | None) -> Iterator[FactRow]:
    batch, kind = batch_of(row), BATCHES[row.kind][1].__name__
    there: Sequence[object] = batch.run_ids  # an empty place has no id
    if subjects is not None:
        there = [run_id in subjects for run_id in batch.run_ids]
    bodies = map(encoder(), compress(zip(*batch.columns(row.seq), strict=False), there))
    seqs, run_ids = compress(count(row.seq), there), compress(batch.run_ids, there)
    return map(FactRow._make, zip(seqs, repeat(row.at_ms), run_ids, repeat(batch.frame()), repeat(kind), bodies))


def without(row: BatchRow, places: Collection[int]) -> BatchRow | None:
    """The batch without the runs at these places, which are empty from now on. None if no run is left."""
    batch = batch_of(row)
    columns = {name: column for name, column in batch._asdict().items() if isinstance(column, list)}
    for column in columns.values():
        for place in places:
            column[place] = column[place][:0] if column[place] else column[place]
    return row._replace(body=encoder()(batch)) if any(batch.run_ids) else None


def is_whole(row: BatchRow) -> bool:
    run_ids = batch_of(row).run_ids
    return len(run_ids) == row.facts and all(run_ids)


def changed_by(rows: Iterable[Row]) -> set[str]:
    # The runs, agents and mails that these facts are about, but for runs that begin with one of them.
    born: set[str] = set()
    others: set[str] = set()
    for row in rows:
        if isinstance(row, FactRow):
            (born if row.frame == 0 else others).add(row.subject)
        else:
            batch = batch_of(row)
            (born if batch.frame() == 0 else others).update(batch.run_ids)
    return others - born


def count_of(rows: Iterable[Row]) -> int:
    return sum(row.facts if isinstance(row, BatchRow) else 1 for row in rows)
