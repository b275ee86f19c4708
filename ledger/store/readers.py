"""Connections that read what DuckDB has committed, beside the one that writes. No reader waits for another, or until DuckDB has caught up.
While DuckDB writes its file, a reader may wait for it: 0.8 s for 100,000 new runs.

A question that needs too much memory is refused. It ends nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Condition

import duckdb

from perdure.ledger.errors import BadRequest
from perdure.ledger.store.duckdb_file import MEMORY_MAX_MB


class Readers:
    """As many connections as there are threads that read at once."""

    def __init__(self) -> None:
        self._idle: list[duckdb.DuckDBPyConnection] = []
        self._at_work = 0
        self._changed = Condition()

    @contextmanager
    def reading(self, con: duckdb.DuckDBPyConnection) -> Iterator[duckdb.DuckDBPyConnection]:
        """One that nobody else uses meanwhile. `con` is the one that writes. Raises `BadRequest` if what is asked needs too much memory."""
        with self._changed:
            reader = self._idle.pop() if self._idle else _beside(con)
            self._at_work += 1
        try:
            yield reader
        except duckdb.OutOfMemoryException as problem:
            with suppress(duckdb.Error):
                reader.rollback()
            words = f"needs more memory than a ledger uses ({MEMORY_MAX_MB} MB); ask for fewer at once"
            raise BadRequest("question", words) from problem
        finally:
            with self._changed:
                self._at_work -= 1
                self._idle.append(reader)
                self._changed.notify_all()

    def close(self) -> None:
        """Close all of them, once nobody reads any more."""
        with self._changed:
            self._changed.wait_for(lambda: not self._at_work)
            for reader in self._idle:
                reader.close()
            self._idle.clear()


def _beside(con: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    reader = con.cursor()
    reader.execute("USE ledger")
    return reader
