"""Whose a copied storage is, and how far it has come. The copy is opened as the agent's next life would open it, and stays as it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import duckdb

from perdure.ledger.block_guard import BlockGuard
from perdure.ledger.storage.disk import TYPE

_COME = """SELECT agent_id, incarnation, greatest(clock, (SELECT coalesce(max(number), 0) + 1 FROM {0}.perdure.records))
    FROM {0}.perdure.meta"""


class Come(NamedTuple):
    """A storage as it is: its agent (empty if nothing was committed yet), the agent's last life, and its `sequence`. `problem` says why it
    cannot be read."""

    agent_id: str = ""
    incarnation: int = 0
    sequence: int = 1
    problem: str = ""


class Answer(NamedTuple):
    """The names of columns, and rows."""

    columns: list[str]
    rows: list[tuple[Any, ...]]


class Reader:
    """Reads copies one after the other. It may be used by one thread at a time."""

    def __init__(self) -> None:
        self._con = duckdb.connect(":memory:", config={"threads": 1, "async_threads": 0})
        self._names = count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._con.close()

    def read(self, copy: Path) -> Come:
        """Read a copy."""
        try:
            with self.attached(copy) as name:
                found = self._con.execute(_COME.format(name)).fetchone()
            return Come() if found is None else Come(*found)
        except duckdb.Error as problem:
            return Come(problem=str(problem).partition("\n")[0])

    @contextmanager
    def attached(self, copy: Path) -> Iterator[str]:
        """Attach a copy under a name. Its interrupted checkpoint, if there is one, is undone first, as the next life would do it."""
        guard, name = BlockGuard(copy, fsync=False), f"copy_{next(self._names)}"
        try:
            guard.mend()
        finally:
            guard.close()
        quoted = str(copy).replace("'", "''")
        try:
            self._con.execute(f"ATTACH '{quoted}' AS {name} ({TYPE}, READ_ONLY)")
            yield name
        finally:
            self._con.execute("USE memory")
            self._con.execute(f"DETACH DATABASE IF EXISTS {name}")

    def ask(self, query: str, *parameters: object) -> Answer:
        """Ask about what is attached. Raises `duckdb.Error`."""
        asked = self._con.execute(query, parameters)
        return Answer([each[0] for each in asked.description or ()], asked.fetchall())
