"""What a ledger does with payloads of many bytes: it stays within its memory, and is followed by DuckDB in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import duckdb
import pytest

from perdure.ledger.errors import LedgerUnwritable
from perdure.ledger.store.duckdb_file import get_mark
from perdure.ledger.store.duckdb_store import DuckDBStore
from perdure.ledger.store.duckdb_tables import Inserter
from perdure.ledger.store.integrity import examine
from perdure.ledger.store.seals import SealedPayload
from perdure.ledger.store.store import Row
from tests.ledger.wrecks import commit, numbers, run, tamper


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DuckDBStore]:
    with closing(DuckDBStore(tmp_path / "ledger", fsync=False)) as made:
        made.boot()
        yield made


def append(store: DuckDBStore, first: int, last: int, size: int = 600) -> None:
    for seq in range(first, last + 1):
        store.append(*commit(seq, seq, payload=bytes([seq]) * size))


def read_again(directory: Path) -> dict[str, bytes]:
    with closing(DuckDBStore(directory, fsync=False)) as store:
        store.boot()
        return {f"r{n}": store.payload(f"r{n}", "input") or b"" for n in range(3)}


def test_a_row_group_is_over_when_its_payloads_have_many_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.ledger.store.duckdb_tables.GROUP_BYTES", 1_500)
    for first, last in ((1, 5), (6, 7), (8, 20)):
        with closing(DuckDBStore(tmp_path, fsync=False)) as store:
            store.boot()
            for seq in range(first, last + 1):
                append(store, seq, seq)
                store.follow()
            groups = store.rows("SELECT rowid // 8192, count(*) FROM payloads WHERE seq > 0 GROUP BY 1", [])
            assert {count for _, count in groups} <= {1, 2, 3}
            assert len(groups) == -(-last // 3)
    assert read_again(tmp_path) == {f"r{n}": bytes([seq]) * 600 for n, seq in ((0, 18), (1, 19), (2, 20))}
    assert {each.severity for each in examine(tmp_path)} == {"ok"}


def test_a_row_group_that_an_earlier_version_has_written_is_over(tmp_path: Path) -> None:
    with closing(DuckDBStore(tmp_path, fsync=False)) as store:
        store.boot()
        append(store, 1, 2)
    tamper(tmp_path, "DELETE FROM meta WHERE key = 'payload_group'")
    with closing(DuckDBStore(tmp_path, fsync=False)) as store:
        store.boot()
        append(store, 3, 4)
        assert store.rows("SELECT seq, rowid // 8192 FROM payloads WHERE seq > 0 ORDER BY seq", []) == [
            (1, 0),
            (2, 0),
            (3, 1),
            (4, 1),
        ]


def test_payloads_are_forgotten_some_at_a_time(store: DuckDBStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.ledger.store.duckdb_tables.PIECE_BYTES", 1_000)
    append(store, 1, 12)
    store.checkpoint(b"m", 12, [run(f"r{n}", n or 3, 9 + (n or 3), live=False) for n in range(3)], [])
    store.checkpoint(b"m", 12, [], ["r1", "r2"])
    assert store.rows("SELECT seq FROM payloads ORDER BY seq", []) == [(3,), (6,), (9,), (12,)]
    store.close()
    assert {each.severity for each in examine(store.path)} == {"ok"}


class Short(Inserter):
    """Memory runs out before the last of several pieces, so many times."""

    times = 1

    def _insert_all(self, payloads: list[SealedPayload], rows: list[Row]) -> None:
        super()._insert_all(payloads, [])
        if self.times:
            self.times -= 1
            raise duckdb.OutOfMemoryException("Out of Memory Error: failed to pin block")
        super()._insert_all([], rows)


def test_what_duckdb_could_not_take_for_want_of_memory_is_tried_again_and_comes_once(
    store: DuckDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.ledger.store.duckdb_tables.PIECE_BYTES", 1_000)
    store._inserter = Short(store._ready())  # noqa: SLF001 - as if others had taken the memory
    append(store, 1, 9)
    assert store.rows("SELECT seq FROM payloads ORDER BY seq", []) == [(seq,) for seq in range(1, 10)]
    assert store.rows("SELECT seq FROM facts ORDER BY seq", []) == [(seq,) for seq in range(1, 10)]
    store.close()
    assert {each.severity for each in examine(store.path)} == {"ok"}


def test_memory_that_stays_used_up_is_no_damage(store: DuckDBStore) -> None:
    inserter = store._inserter = Short(store._ready())  # noqa: SLF001
    inserter.times = 99
    store.append(*commit(1, 1, payload=b"x"))
    with pytest.raises(LedgerUnwritable, match="512 MB that it may have, and nothing is damaged"):
        store.follow()
    assert inserter.times == 99 - 4
    with closing(DuckDBStore(store.path)) as again:
        store.close()
        assert numbers(again.boot()) == [1]


class Near(DuckDBStore):
    behind_max = 1_500
    journal_max = 5_000


def test_a_commit_waits_for_duckdb_when_that_is_far_behind(tmp_path: Path) -> None:
    with closing(Near(tmp_path, fsync=False)) as store:
        store.boot()
        for seq in range(1, 10):
            append(store, seq, seq)
            assert sum(each.size for each in store._backlog) <= 1_500  # noqa: SLF001 - what is in memory
            assert all(not each.parts for each in store._backlog)  # noqa: SLF001
            assert store.payload(f"r{seq % 3}", "input") == bytes([seq]) * 600


def test_what_duckdb_has_taken_is_in_its_file_before_it_is_much(tmp_path: Path) -> None:
    with closing(Near(tmp_path, fsync=False)) as store:
        store.boot()
        for seq in range(1, 500, 10):
            store.append(*commit(seq, seq + 9, payload=b"x"))
        assert store.rows("SELECT count(*) FROM facts", []) == [(500,)]
        assert get_mark(store._ready())[1].seq > 300  # noqa: SLF001
        assert numbers(store.boot()) == list(range(1, 501))
