"""The filter of the runs and agents that the snapshot may have: it denies none that is there, and is used with its own snapshot only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.ledger import Record
from perdure.ledger.store.duckdb_file import connect, prepare
from perdure.ledger.store.duckdb_store import DuckDBStore
from perdure.ledger.store.key_filter import KeyFilter, filter_after
from tests.ledger.wrecks import fact, run

OLD = [f"old-{number}" for number in range(20_000)]  # more than the first level has room for
NEW = [f"new-{number}" for number in range(20_000)]


@pytest.fixture
def con(tmp_path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with closing(connect(tmp_path, fsync=False)) as made:
        prepare(made)
        yield made


def with_runs(con: duckdb.DuckDBPyConnection, run_ids: list[str]) -> None:
    con.execute("INSERT INTO runs (run_id, live) SELECT unnest($1::VARCHAR[]), false", [run_ids])


def test_it_denies_none_that_is_there_and_nearly_all_others_also_when_it_is_read_again(
    con: duckdb.DuckDBPyConnection,
) -> None:
    with_runs(con, OLD)
    made = KeyFilter()
    for first in range(0, len(OLD), 7_000):
        made.add(OLD[first : first + 7_000])
        made.write(con, 9)
    read = KeyFilter.read(con, 9)
    assert read is not None
    for each in (made, read):
        assert all(run_id in each for run_id in OLD)
        assert sum(run_id in each for run_id in NEW) <= 3
        each.add(NEW)
        assert all(run_id in each for run_id in OLD + NEW)


def test_a_full_level_is_written_once(con: duckdb.DuckDBPyConnection) -> None:
    with_runs(con, ["one"])
    made = KeyFilter()
    made.add(OLD)
    made.write(con, 9)
    damaged(con)
    made.add(NEW)
    made.write(con, 10)
    assert KeyFilter.read(con, 10) is None, "the first level was not written again"


@settings(max_examples=30)
@given(st.lists(st.text(st.characters(codec="utf-8"))), st.text(st.characters(codec="utf-8")))
def test_any_id_that_was_added_is_in_it(run_ids: list[str], other: str) -> None:
    made = KeyFilter()
    made.add(run_ids)
    assert all(run_id in made for run_id in run_ids)
    assert other in run_ids or other not in made


def test_an_empty_snapshot_needs_no_filter(con: duckdb.DuckDBPyConnection) -> None:
    made = KeyFilter.read(con, 0)
    assert made is not None
    assert "r" not in made
    with_runs(con, ["r"])
    assert KeyFilter.read(con, 0) is None


def damaged(con: duckdb.DuckDBPyConnection) -> None:
    ((bits,),) = con.execute("SELECT bits FROM run_filter WHERE place = 0").fetchall()
    level = bytearray(bits)
    level[100] ^= 1
    con.execute("UPDATE run_filter SET bits = $1 WHERE place = 0", [bytes(level)])


def shorter(con: duckdb.DuckDBPyConnection) -> None:
    con.execute("DELETE FROM run_filter WHERE place = 0")


def with_more_runs_than_it_knows(con: duckdb.DuckDBPyConnection) -> None:
    with_runs(con, ["another"])


@pytest.mark.parametrize("fate", [damaged, shorter, with_more_runs_than_it_knows])
def test_one_that_is_not_of_this_snapshot_is_not_used_and_built_anew(
    con: duckdb.DuckDBPyConnection, fate: object
) -> None:
    with_runs(con, OLD)
    filter_after(con, None, 9)
    assert KeyFilter.read(con, 9) is not None
    assert KeyFilter.read(con, 10) is None
    assert callable(fate)
    fate(con)
    assert KeyFilter.read(con, 9) is None
    filter_after(con, None, 10)
    anew = KeyFilter.read(con, 10)
    assert anew is not None
    assert all(run_id in anew for run_id in OLD)


def test_ids_of_cleared_runs_leave_it_when_they_are_most(con: duckdb.DuckDBPyConnection) -> None:
    with_runs(con, OLD[:10])
    before = KeyFilter()
    before.add(OLD)
    assert filter_after(con, before, 9) is not before
    read = KeyFilter.read(con, 9)
    assert read is not None
    assert [run_id for run_id in OLD if run_id in read] == OLD[:10]


def test_a_ledger_knows_its_agents_too(tmp_path: Path) -> None:
    with closing(DuckDBStore(tmp_path / "ledger", fsync=False)) as store:
        store.boot()
        store.append([fact(1)], [])
        store.checkpoint(b"m", 1, [run("a", 1, 1), agent("x@m:T", b"one")], [])
        for _ in range(2):
            assert store.known_among(["x@m:T", "y@m:T", "a"]) == ["x@m:T", "a"]
            store.close()
            store.boot()
        store.append([fact(2)], [])
        store.checkpoint(b"m", 2, [agent("x@m:T", b"two"), agent("y@m:T", b"three")], [])
        assert store.known_among(["x@m:T", "y@m:T", "z@m:T"]) == ["x@m:T", "y@m:T"]
        found = [(record.key, record.body) for record in store.records("agents", ["x@m:T", "y@m:T"])]
        assert found == [("x@m:T", b"two"), ("y@m:T", b"three")], "one row of each"
        assert [record.body for record in store.records("agents", ["x@m:T"])] == [b"two"]


def agent(agent_id: str, body: bytes) -> Record:
    return Record("agents", agent_id, False, ("", 1), body)


def test_a_ledger_knows_its_runs_after_a_start_and_looks_all_of_them_up_without_a_filter(tmp_path: Path) -> None:
    with closing(DuckDBStore(tmp_path / "ledger", fsync=False)) as store:
        store.boot()
        store.append([fact(1), fact(2)], [])
        store.checkpoint(b"m", 2, [run("a", 1, 1), run("b", 2, 2)], [])
        for _ in range(2):
            assert store.known_among(["a", "x", "b"]) == ["a", "b"]
            store.close()
            store.boot()
        store.close()
        with closing(connect(tmp_path / "ledger", fsync=False)) as con:
            con.execute("DELETE FROM meta WHERE key = 'key_filter_words'")
            con.execute("CHECKPOINT")
        store.boot()
        assert store.known_among(["a", "x", "b"]) == ["a", "x", "b"]
        store.append([fact(3)], [])
        store.checkpoint(b"m", 3, [run("c", 3, 3)], [])
        assert store.known_among(["a", "x", "b", "c"]) == ["a", "b", "c"]
        store.append([fact(4)], [])
        store.checkpoint(b"m", 4, [run("c", 3, 4), run("d", 4, 4)], [])
        assert store.known_among(["d", "x"]) == ["d"]
        assert [record.columns[-1] for record in store.records("runs", ["c", "d"])] == [4, 4], "one row of each"
