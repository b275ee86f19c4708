"""The chain and the weights: what they find, and what forgetting leaves of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.ledger.store.duckdb_file import connect, get_mark
from perdure.ledger.store.duckdb_store import DuckDBStore
from perdure.ledger.store.earlier_layout import Followed, follow
from perdure.ledger.store.seals import GENESIS, Commit, Mark, Placed, broken_seals, seal, unseal, weigh
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


def stored(commits: list[Commit]) -> tuple[list[tuple[FactRow, bytes | None]], list[Placed]]:
    """The commits as the tables hold them."""
    rows: list[tuple[FactRow, bytes | None]] = []
    for each in commits:
        rows += [(row, None) for row in each.rows[:-1]]
        rows.append((each.rows[-1], each.after.digest))
    return rows, sorted((placed for each in commits for placed in each.payloads), key=lambda placed: placed.seq)


@given(groups)
def test_a_whole_chain_is_followed_to_its_end(
    story: Story,
) -> None:
    commits = chain(story)
    found = follow(GENESIS, *stored(commits))
    assert (found.mark, found.problem) == (commits[-1].after, "")
    assert found.tally.items == sum(len(each.rows) + len(each.payloads) for each in commits)
    for each in commits:
        packed = b"".join(each.parts)
        assert unseal(each.before, each.after, packed) == each._replace(parts=[packed])


@settings(max_examples=60)
@given(groups, st.data())
def test_whatever_is_missing_changed_or_doubled_ends_the_chain_before_it(story: Story, data: st.DataObject) -> None:
    commits = chain(story)
    rows, payloads = stored(commits)
    place = data.draw(st.integers(0, len(rows) - 1))
    row, digest = rows[place]
    ruin = data.draw(st.sampled_from(["missing", "changed", "doubled", "no digest", "digest"]))
    if ruin == "missing":
        del rows[place]
    elif ruin == "changed":
        rows[place] = (row._replace(body=row.body + b"!"), digest)
    elif ruin == "doubled":
        rows.insert(place, rows[place])
    else:
        rows[place] = (row, None if ruin == "no digest" else b"x" * 16)
    found = follow(GENESIS, rows, payloads)
    last = commits[-1]
    if ruin == "missing" and row == last.rows[0] == last.rows[-1] and not last.payloads:
        assert not found.problem  # a lost end looks like a shorter life; it is the journal that knows better
        assert found.mark == last.before
    elif ruin != "no digest" or digest is not None:
        assert found.problem
        assert found.mark.seq < row.seq + (ruin == "doubled")


def test_a_payload_that_is_missing_changed_or_too_many_ends_the_chain() -> None:
    whole = seal(GENESIS, *commit(1, 3, payload=b"p"))
    after = seal(whole.after, *commit(4, 4))
    rows, (payload,) = stored([whole, after])
    nothing = Followed(GENESIS, weigh([]), "the facts 1 to 3 are not those that were written")
    assert follow(GENESIS, rows, []) == nothing
    assert follow(GENESIS, rows, [payload._replace(body=b"q")]) == nothing
    assert follow(GENESIS, rows, [payload, payload]) == nothing
    assert (
        follow(GENESIS, rows, [payload, payload._replace(seq=5)]).problem
        == "a payload of fact 5 is there without its fact"
    )


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
