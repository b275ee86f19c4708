"""How many ended runs of each status there are is known without a look at every row, and is right after other versions wrote."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from perdure.ledger.store.duckdb_file import connect, get
from perdure.ledger.store.duckdb_store import DuckDBStore
from perdure.ledger.store.duckdb_tables import read_counts
from tests.ledger.wrecks import fact, run

ENDED = [run("a", 1, 1, live=False, status="completed"), run("b", 2, 2, live=False, status="error")]


def written(place: Path) -> None:
    with closing(DuckDBStore(place, fsync=False)) as store:
        store.boot()
        store.append([fact(1), fact(2)], [])
        store.checkpoint(b"m", 2, ENDED, [])


def test_the_counts_stand_beside_their_snapshot(tmp_path: Path) -> None:
    written(tmp_path / "ledger")
    with closing(connect(tmp_path / "ledger", fsync=False)) as con:
        assert get(con, "ended") == [2, 2, {"completed": 1, "error": 1}]
        con.execute("UPDATE runs SET status = 'aborted'")
        assert read_counts(con, 2) == {"completed": 1, "error": 1}, "no row is looked at"


def test_runs_are_counted_anew_if_the_counts_speak_of_another_snapshot(tmp_path: Path) -> None:
    written(tmp_path / "ledger")
    with closing(connect(tmp_path / "ledger", fsync=False)) as con:
        con.execute("INSERT INTO runs (run_id, live, status) VALUES ('c', false, 'aborted')")
        assert read_counts(con, 2) == {"completed": 1, "error": 1, "aborted": 1}
        con.execute("DELETE FROM runs WHERE run_id = 'c'")
        assert read_counts(con, 3) == {"completed": 1, "error": 1}, "counts of another snapshot are not used"
        con.execute("DELETE FROM meta WHERE key = 'ended'")
        assert read_counts(con, 2) == {"completed": 1, "error": 1}
