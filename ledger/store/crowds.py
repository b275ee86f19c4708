"""Crowds: what many runs go through together, as one fact in columns.

A fan-out asks for thousands of runs that differ in their ids and inputs alone. A *crowd* stands for as many facts of one kind as it has
runs, with consecutive numbers, in the order of its columns. So it is decided, folded and written once. Whoever reads facts reads its
`members`, each as if it had been written by itself: DuckDB, which follows, a boot, followers of events, and a replay.

Only what is alike is a crowd (`crowd_decisions`). Everything odd goes one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

from perdure.ledger.codec import encoder, unpack
from perdure.ledger.errors import LedgerDamaged
from perdure.ledger.facts import AttemptStarted, RunCompleted, RunRequested
from perdure.ledger.store.store import CrowdRow, FactRow, Row

CROWD_MIN: Final = 4
"""Fewer go one by one: a crowd of them would save nothing."""


class RunsRequested(NamedTuple):
    """`RunRequested` of many runs of one parent: they differ in their ids, digests and inputs."""

    run_ids: list[str]
    digests: list[str]
    inputs: list[bytes]
    agent_type: str
    parent: str
    parent_run: str
    options: dict[str, Any]
    life: int

    def members(self, seq: int) -> Iterator[RunRequested]:
        """The facts for which it stands. `seq` is the number of the first."""
        shared, kind, last = (self.agent_type, self.parent, self.parent_run), RunRequested, (self.options, self.life)
        columns = zip(self.run_ids, self.digests, self.inputs, strict=True)
        for mark, (run_id, digest, body) in enumerate(columns, seq):
            yield kind(run_id, *shared, digest, body, *last, mark)

    def frame(self) -> int | None:
        """The number of each in its run's event stream."""
        return 0


class AttemptsStarted(NamedTuple):
    """`AttemptStarted` of the first attempts at many runs, on one host. `incarnation` is that of the first; each has the next one."""

    run_ids: list[str]
    incarnation: int
    host_id: str

    def members(self, _seq: int) -> Iterator[AttemptStarted]:
        """The facts for which it stands."""
        for incarnation, run_id in enumerate(self.run_ids, self.incarnation):
            yield AttemptStarted(run_id, 1, incarnation, self.host_id)

    def frame(self) -> int | None:
        """A first attempt is no event."""
        return None


class RunsCompleted(NamedTuple):
    """`RunCompleted` of many runs of one parent whose children have left their hosts. `number` is that of each as an event of its run."""

    run_ids: list[str]
    outputs: list[bytes | None]
    summaries: list[str]
    attempt: int
    number: int

    def members(self, _seq: int) -> Iterator[RunCompleted]:
        """The facts for which it stands."""
        attempt = self.attempt
        for run_id, output, summary in zip(self.run_ids, self.outputs, self.summaries, strict=True):
            yield RunCompleted(run_id, attempt, output, summary, True)

    def frame(self) -> int | None:
        """The number of each in its run's event stream."""
        return self.number


Crowd: TypeAlias = RunsRequested | AttemptsStarted | RunsCompleted
CROWD: Final = (RunsRequested, AttemptsStarted, RunsCompleted)
Member: TypeAlias = RunRequested | AttemptStarted | RunCompleted

CROWDS: Final[dict[str, tuple[type[Crowd], str]]] = {
    "RunsRequested": (RunsRequested, "RunRequested"),
    "AttemptsStarted": (AttemptsStarted, "AttemptStarted"),
    "RunsCompleted": (RunsCompleted, "RunCompleted"),
}
"""Each kind of crowd, with the kind of the facts for which it stands."""


def crowd_of(row: CrowdRow) -> Crowd:
    """The crowd in a row."""
    try:
        return CROWDS[row.kind][0](*unpack(row.body))
    except (KeyError, TypeError, ValueError) as problem:
        raise LedgerDamaged(
            "ledger", f"a crowd of kind {row.kind!r} cannot be read: {problem}", "run `perdure doctor`"
        ) from problem


def spelled_out(rows: Iterable[Row]) -> list[FactRow]:
    """The rows of facts, with the members of crowds in their places."""
    facts: list[FactRow] = []
    for row in rows:
        if isinstance(row, FactRow):
            facts.append(row)
        else:
            facts += _members(row)
    return facts


def _members(row: CrowdRow) -> list[FactRow]:
    crowd, kind, pack = crowd_of(row), CROWDS[row.kind][1], encoder()
    frame, at_ms = crowd.frame(), row.at_ms
    members: Iterator[Member] = crowd.members(row.seq)
    return [FactRow(seq, at_ms, fact[0], frame, kind, pack(fact)) for seq, fact in enumerate(members, row.seq)]


def subjects_of(row: Row) -> list[str]:
    """The run, agent or mail that a fact is about; the runs of a crowd."""
    return [row.subject] if isinstance(row, FactRow) else crowd_of(row).run_ids


def count_of(rows: Iterable[Row]) -> int:
    """How many facts these rows hold."""
    return sum(row.facts if isinstance(row, CrowdRow) else 1 for row in rows)
