"""The backlog: commits that are durable in the journal, and that DuckDB lacks.

One thread adds commits, another one brings them into DuckDB, and a third one reads. A commit leaves the backlog after DuckDB has it. So
whoever takes the backlog first and looks into DuckDB afterwards finds every fact there or here: what is before the first commit of the
backlog there, everything else here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from perdure.ledger.store.batches import expand_rows
from perdure.ledger.store.duckdb_tables import END
from perdure.ledger.store.seals import Commit
from perdure.ledger.store.store import FactRow


class Backlog:
    """The commits in their order."""

    def __init__(self) -> None:
        self._commits: deque[Commit] = deque()

    def __bool__(self) -> bool:
        return bool(self._commits)

    def extend(self, commits: Iterable[Commit]) -> None:
        """These commits are durable."""
        self._commits.extend(commits)

    def first(self, facts: int) -> list[Commit]:
        """The first commits, until they have so many facts."""
        group: list[Commit] = []
        upto = self._commits[0].before.seq + facts if self._commits else 0
        while len(group) < len(self._commits) and (not group or group[-1].after.seq < upto):
            group.append(self._commits[len(group)])
        return group

    def drop(self, count: int) -> None:
        """DuckDB has the first commits now."""
        for _ in range(count):
            self._commits.popleft()

    def clear(self) -> None:
        """The store is closed."""
        self._commits.clear()

    def now(self) -> tuple[Commit, ...]:
        """The commits at this moment."""
        return tuple(self._commits)


def end_before(commits: Sequence[Commit]) -> int:
    """The last fact that DuckDB has for certain, if it lacked these commits at most."""
    return commits[0].before.seq if commits else END


def facts_in(commits: Iterable[Commit], subjects: set[str]) -> list[FactRow]:
    """The facts in these commits that are about these runs, agents or mails."""
    return expand_rows((row for commit in commits for row in commit.rows), subjects)


def payload_in(commits: Iterable[Commit], run_id: str, part: str) -> bytes | None:
    """The last payload of this part of a run in these commits."""
    found = [each.body for commit in commits for each in commit.payloads if (each.run_id, each.part) == (run_id, part)]
    return found[-1] if found else None
