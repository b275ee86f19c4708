"""The chain and the weights: what they find, and what forgetting leaves of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.ledger.store.duckdb_file import connect, get_mark
from perdure.ledger.store.duckdb_store import DuckDBStore
from perdure.ledger.store.seals import GENESIS, Commit, Mark, broken_seals, seal, unseal
from perdure.ledger.store.store import FactRow, Payload
from tests.ledger.wrecks import commit, run, tamper

Story = list[tuple[list[tuple[str, int | None, bytes]], list[tuple[str, bytes]]]]  # commits of facts and payloads

texts = st.text(max_size=5)
groups = st.lists(
    st.tuples(
        st.lists(st.tuples(texts, st.none() | st.integers(0, 9), st.binary(max_size=9)), min_size=1, max_size=4),
        st.lists(st.tuples(texts, st.binary(max_size=9)), max_size=2),
    ),
    min_size=1,
    max_size=5,
)


def chain(story: Story) -> list[Commit]:
    """These groups, sealed one onto the other."""
    commits: list[Commit] = []
    mark = GENESIS
    for facts, payloads in story:
        rows = [
            FactRow(mark.seq + 1 + n, 7, subject, frame, "K", body) for n, (subject, frame, body) in enumerate(facts)
        ]
        commits.append(seal(mark, rows, [Payload(key, "input", body) for key, body in payloads]))
        mark = commits[-1].after
    return commits


@given(groups)
def test_a_sealed_commit_is_read_again_as_it_was(story: Story) -> None:
    for each in chain(story):
        packed = b"".join(each.parts)
        assert unseal(each.before, each.after, packed) == each._replace(parts=[packed])


def test_a_payload_belongs_to_the_fact_of_its_run() -> None:
    rows, _ = commit(1, 3)
    placed = seal(GENESIS, rows, [Payload("r1", "input", b""), Payload("nobody", "input", b"")]).payloads
    assert [payload.seq for payload in placed] == [1, 3]


def test_the_same_facts_after_another_past_have_another_digest() -> None:
    rows, _ = commit(1, 1)
    assert seal(GENESIS, rows, []).after != seal(Mark(0, b"\1" * 16), rows, []).after


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    """A ledger of 30 facts in six commits with payloads, under two checkpoints, of which r1 was forgotten."""
    directory = tmp_path / "ledger"
    with closing(DuckDBStore(directory, fsync=False)) as store:
        store.boot()
        for first in range(1, 31, 5):
            store.append(*commit(first, first + 4, payload=b"p" * first))
            if first == 11:
                store.checkpoint(b"m", 15, [run("r0", 3, 15), run("r1", 1, 13), run("r2", 2, 14)], [])
        store.checkpoint(b"m", 30, [run("r0", 3, 30), run("r2", 2, 29)], ["r1"])
    return directory


def broken(directory: Path) -> Iterator[str]:
    with closing(connect(directory, read_only=True)) as con:
        yield from broken_seals(con, get_mark(con)[1].seq)


def test_what_remains_after_forgetting_can_still_be_verified(sealed: Path) -> None:
    assert list(broken(sealed)) == []
    with closing(connect(sealed)) as con:
        assert con.execute("SELECT first_seq, last_seq, items FROM seals").fetchall() == [(1, 30, 24)]
        assert get_mark(con)[1].seq == 30


@pytest.mark.parametrize(
    ("ruin", "words"),
    [
        ("DELETE FROM facts WHERE seq = 3", "of the 24 facts and payloads kept from 1 to 30, 23 are there"),
        ("DELETE FROM payloads WHERE seq = 15", "of the 24 facts and payloads kept from 1 to 30, 23 are there"),
        ("UPDATE facts SET at_ms = at_ms + 1 WHERE seq = 30", "from 1 to 30 are not those that were written"),
        ("UPDATE facts SET frame = NULL WHERE seq = 3", "from 1 to 30 are not those that were written"),
        ("UPDATE payloads SET part = 'output'", "from 1 to 30 are not those that were written"),
        (
            "INSERT INTO facts SELECT * FROM facts WHERE seq = 2",
            "of the 24 facts and payloads kept from 1 to 30, 25 are there",
        ),
        ("DELETE FROM seals", "24 facts or payloads stand outside of every seal"),
    ],
)
def test_any_later_change_of_what_was_sealed_is_found(sealed: Path, ruin: str, words: str) -> None:
    tamper(sealed, ruin)
    (found,) = broken(sealed)
    assert words in found


def test_seals_stay_few_and_empty_ones_are_dropped(tmp_path: Path) -> None:
    with closing(DuckDBStore(tmp_path / "ledger", fsync=False)) as store:
        store.boot()
        seq = 0
        for run_id, count in (("old", 60_000), ("old", 60_000), ("new", 7), ("new", 7)):
            store.append([FactRow(seq + n, 0, run_id, None, "K", b"") for n in range(1, count + 1)], [])
            seq += count
            store.checkpoint(b"m", seq, [], [])
        seals = "SELECT first_seq, last_seq, items FROM seals ORDER BY 1"
        assert store.rows(seals, []) == [(1, 120_000, 120_000), (120_001, 120_014, 14)]
        store.checkpoint(b"m", seq, [], ["old"])
        assert store.rows(seals, []) == [(120_001, 120_014, 14)]
    assert list(broken(tmp_path / "ledger")) == []
