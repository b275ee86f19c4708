"""A ledger that nothing serves: what the next supervisor would find, read without changing a file, and how a backup is made of it."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from typing import Self

import duckdb

from perdure.ledger.directory_format import LEDGER
from perdure.ledger.errors import LedgerDamaged
from perdure.ledger.facts import AgentActivated, AgentForgotten
from perdure.ledger.ids import agent_id
from perdure.ledger.known_agent import KnownAgents, standing_of
from perdure.ledger.maintenance.cut import STAGE, read_known, stage_cut
from perdure.ledger.snapshot import restore
from perdure.ledger.store.duckdb_file import DATABASE, DOCTOR, MISSING, connect, get, told, without_log
from perdure.ledger.store.duckdb_tables import boot_records, read_counts
from perdure.ledger.store.journal_scan import assess, commits
from perdure.ledger.store.lock import Lock
from perdure.ledger.store.store import Boot, FactRow
from perdure.ledger.view import View

_LIVED, _GONE = AgentActivated.__name__, AgentForgotten.__name__


def cold_view(directory: Path) -> KnownAgents:
    """What the ledger says of its agents. Raises a `LedgerError` if it cannot be read, or is in use."""
    lock = _locked(directory)
    try:
        return read_cold(directory)[0]
    finally:
        lock.release()


def _locked(directory: Path) -> Lock:
    try:
        return Lock(directory)
    except OSError as problem:
        raise told(directory, problem) from problem


def read_cold(directory: Path) -> tuple[KnownAgents, int]:
    # The caller has the lock. With the agents comes the ledger's last fact.
    try:
        return _read(directory)
    except (duckdb.Error, OSError) as problem:
        raise told(directory, problem) from problem


def _read(directory: Path) -> tuple[KnownAgents, int]:
    if not (directory / DATABASE).exists():
        raise LedgerDamaged(str(directory), MISSING, DOCTOR)
    with without_log(directory) as name, closing(connect(directory, read_only=True, name=name)) as con:
        found = assess(con, directory)
        rows = found.rows + [row for commit in commits(found.plan.replay) for row in commit.rows]
        ended = read_counts(con, found.snapshot_seq)
        view = restore(Boot(get(con, "snapshot"), boot_records(con, rows), rows, [], ended))
        standing = standing_of(view, con.execute("SELECT agent_id, body FROM agents").fetchall())
        known = KnownAgents(
            standing,
            _seen(con, view, [(row.kind, row.subject) for row in rows if isinstance(row, FactRow)]),
            view.incarnation,
        )
        return known, view.seq


def _seen(con: duckdb.DuckDBPyConnection, view: View, later: list[tuple[str, str]]) -> set[str]:
    # The agents that have lived for other work than a run and were not deleted since, and the children of runs.
    query = "SELECT subject, arg_max(kind, seq) FROM facts WHERE kind IN ($1, $2) GROUP BY subject"
    last = dict(con.execute(query, [_LIVED, _GONE]).fetchall())
    last |= {subject: kind for kind, subject in later if kind in (_LIVED, _GONE)}
    runs = con.execute("SELECT agent_type, run_id FROM runs").fetchall()
    seen = {subject for subject, kind in last.items() if kind == _LIVED}
    return seen.union((agent_id(*run) for run in runs), (run.child for run in view.runs.values()))


class ColdSteward:
    """Has the lock of the ledger, so that nothing is decided. Raises `LedgerLocked` if another process has it, and `LedgerUnwritable` if
    this one may not take it. `stage` is where the backup stages."""

    def __init__(self, data: Path, stage: Path | None = None) -> None:
        self._data, self._stage, self._stack = data, stage or data / STAGE, ExitStack()

    def __enter__(self) -> Self:
        self._stack.callback(_locked(self._data / LEDGER).release)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def hold(self) -> object:
        # nothing changes while the lock is held
        return True

    def cut(self) -> object:
        known, seq = read_cold(self._data / LEDGER)
        reported = [(agent, each.reported) for agent, each in known.standing.items()]
        stage_cut(self._data, self._stage, read_known(self._stage), seq, reported)
        return True
