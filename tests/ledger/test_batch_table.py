"""Batches in the ledger's file: read member by member, forgotten run by run, and proven as a whole."""

from __future__ import annotations

import re
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from perdure.ledger import BatchRow, FactRow, LedgerDamaged, expand_rows, restore, run_record
from perdure.ledger.codec import decode, encode, unpack
from perdure.ledger.facts import RunRequested
from perdure.ledger.run import open_run
from perdure.ledger.store.batches import RunsRequested
from perdure.ledger.store.duckdb_file import DATABASE, connect
from perdure.ledger.store.duckdb_store import DuckDBStore
from perdure.ledger.store.duckdb_tables import count_facts, members_between
from perdure.ledger.store.integrity import examine, repair
from tests.kit import NOW_MS, TYPE
from tests.ledger.test_batches import Both, fan_out, plain
from tests.ledger.wrecks import copy, flipped, tamper


def test_the_store_gives_the_members_of_a_batch_one_by_one(tmp_path: Path) -> None:
    """After a death too, when they come from the journal, and after that, when they come from the database; and their seals hold."""
    both, directory = fan_out(), tmp_path / "ledger"
    facts = expand_rows(both.rows)
    dying = DuckDBStore(directory, fsync=False)
    dying.boot()
    dying.append(both.rows, [])
    assert dying.facts("r03") == [fact for fact in facts if fact.subject == "r03"]
    shutil.copytree(directory, tmp_path / "dead" / "ledger")
    dying.close()
    for place in (tmp_path / "dead" / "ledger", directory):
        with closing(DuckDBStore(place, fsync=False)) as store:
            boot = store.boot()
            assert boot.rows == both.rows, "a boot folds batches as a whole"
            assert plain(restore(boot).runs) == plain(both.view.runs)
            kinds = "SELECT kind, sum(facts)::BIGINT FROM batches GROUP BY kind ORDER BY kind"
            assert store.rows(kinds, []) == [("AttemptsStarted", 16), ("RunsRequested", 20), ("RunsSucceeded", 17)]
            assert store.rows("SELECT count(*) FROM facts", []) == [(len(facts) - 53,)]
            assert store.facts("r03", 0, frames_only=True) == [
                fact for fact in facts if fact.subject == "r03" and fact.frame
            ]
            assert store.facts("r03", limit=2) == [fact for fact in facts if fact.subject == "r03"][:2]
            assert store.frames(["r03", "r04"], 1, len(facts)) == [
                fact for fact in facts if fact.subject in ("r03", "r04") and fact.frame is not None
            ]
        assert _wrong_in(place) == []


def _wrong_in(directory: Path) -> list[Any]:
    return [finding for finding in examine(directory) if finding.severity != "ok"]


def test_a_forgotten_member_leaves_its_batch_whole(tmp_path: Path) -> None:
    both, directory = fan_out(), tmp_path / "ledger"
    facts = expand_rows(both.rows)
    with closing(DuckDBStore(directory, fsync=False)) as store:
        store.boot()
        store.append(both.rows, [])
        records = [run_record(run) for run in both.view.runs.values() if run.run_id != "r05"]
        store.checkpoint(b"meta", both.view.seq, records, ["r05"])
        assert store.facts("r05") == []
        for each in ("r04", "r06"):
            assert store.facts(each) == [fact for fact in facts if fact.subject == each], "others keep their numbers"
    assert _wrong_in(directory) == []


def test_batches_are_read_up_to_a_fact(tmp_path: Path) -> None:
    both, directory = fan_out(), tmp_path / "ledger"
    facts = expand_rows(both.rows)
    with closing(DuckDBStore(directory, fsync=False)) as store:
        store.boot()
        store.append(both.rows, [])
    with closing(connect(directory, read_only=True)) as con:
        for first, last in ((1, len(facts)), (5, 30), (21, 21), (30, 29)):
            found = members_between(con, first, last, {each.subject for each in facts})
            alone = (37, 38)  # two runs were placed one by one
            assert found == [each for each in facts if first <= each.seq <= last and each.seq not in alone]


def _seen(store: DuckDBStore, both: Both) -> dict[str, list[FactRow]]:
    return {run_id: facts for run_id in both.view.runs if (facts := store.facts(run_id))}


def test_members_that_are_forgotten_one_after_the_other_take_their_batches_with_them(tmp_path: Path) -> None:
    both, directory = fan_out(), tmp_path / "ledger"
    facts, ids = expand_rows(both.rows), list(both.view.runs)
    told = {run_id: [fact for fact in facts if fact.subject == run_id] for run_id in ids}
    batches = "SELECT count(*) FROM batches"
    with closing(DuckDBStore(directory, fsync=False)) as store:
        store.boot()
        store.append(both.rows, [])
        store.checkpoint(b"meta", both.view.seq, [run_record(run) for run in both.view.runs.values()], [])
        assert _seen(store, both) == told
        for first in range(0, len(ids), 6):
            store.checkpoint(b"meta", both.view.seq, [], ids[first : first + 6])
            assert _seen(store, both) == {run_id: told[run_id] for run_id in ids[first + 6 :]}
        assert store.rows(batches, []) == [(0,)]
    assert _wrong_in(directory) == []


def test_a_run_that_has_the_id_of_a_forgotten_one_stays_in_its_batch(tmp_path: Path) -> None:
    both, directory = fan_out(), tmp_path / "ledger"
    first_seq = both.view.seq + 1
    again = BatchRow(
        first_seq, NOW_MS, 2, *encode(RunsRequested(["r05", "new"], ["d"] * 2, [b""] * 2, "m:T", "", "", {}, 0))
    )
    (asked, _) = expand_rows([again])
    run = open_run(cast("RunRequested", decode(asked.kind, asked.body)), first_seq, NOW_MS)
    with closing(DuckDBStore(directory, fsync=False)) as store:
        store.boot()
        store.append(both.rows, [])
        store.checkpoint(b"meta", both.view.seq, [run_record(run) for run in both.view.runs.values()], [])
        store.append([again], [])
        store.checkpoint(b"meta", first_seq + 1, [run_record(run)], ["r05"])
        assert [(fact.seq, fact.subject) for fact in store.facts("r05")] == [(first_seq, "r05")]


@pytest.mark.parametrize(
    ("ruin", "words"),
    [
        ("DELETE FROM batches WHERE kind = 'RunsSucceeded'", "facts and payloads kept from"),
        ("UPDATE batches SET at_ms = at_ms + 1", "are not those that were written"),
        ("UPDATE runs SET first_seq = first_seq + 1 WHERE run_id = 'r07'", "1 runs have facts before or after"),
        ("DELETE FROM runs WHERE run_id = 'r07'", "1 runs have facts but no record, r07"),
    ],
)
def test_damage_of_batches_is_found(tmp_path: Path, ruin: str, words: str) -> None:
    both, directory = fan_out(), tmp_path / "ledger"
    with closing(DuckDBStore(directory, fsync=False)) as store:
        store.boot()
        store.append(both.rows, [])
        store.checkpoint(b"meta", both.view.seq, [run_record(run) for run in both.view.runs.values()], [])
    tamper(directory, ruin)
    assert any(words in finding.what for finding in _wrong_in(directory))


# ------------------------------------------------------------------ a file that cannot be read


def _blocks(directory: Path) -> range:
    return range(12_288 + 4_096, (directory / DATABASE).stat().st_size, 16_384)


@pytest.fixture
def folded(tmp_path: Path) -> tuple[Path, list[FactRow]]:
    """A directory whose journal has nothing of its batches any more, and that has no snapshot."""
    both, directory = fan_out(), tmp_path / "ledger"
    with closing(DuckDBStore(directory, fsync=False)) as store:
        store.boot()
        store.append(both.rows, [])
    return directory, expand_rows(both.rows)


def test_a_snapshot_that_cannot_be_read_is_folded_anew_from_batches(
    folded: tuple[Path, list[FactRow]], tmp_path: Path
) -> None:
    directory, facts = folded
    whole, anew = (directory / DATABASE).read_bytes(), 0
    for place in _blocks(directory):
        wreck = copy(directory, tmp_path / "wreck", ledger_db=flipped(whole, place))
        said = "\n".join(finding.what for finding in repair(wreck))
        if "of 1 rows of meta" in said or "no row of meta" in said:
            anew += 1
            with closing(DuckDBStore(wreck, fsync=False)) as store:
                assert expand_rows(store.boot().rows) == facts
    assert anew


def test_a_batch_that_has_lost_a_run_is_not_taken_for_all_facts(
    folded: tuple[Path, list[FactRow]], tmp_path: Path
) -> None:
    directory, facts = folded
    with closing(DuckDBStore(directory, fsync=False)) as store:
        store.boot()
        store.checkpoint(b"meta", len(facts), [], ["r05"])
    with closing(connect(directory, read_only=True)) as con:
        assert count_facts(con) == (len(facts) - 3, len(facts))


@pytest.mark.parametrize("left", [{2: ""}, {19: ""}, {19: None}])
def test_a_batch_that_has_lost_a_run_is_not_folded(folded: tuple[Path, list[FactRow]], left: dict[int, Any]) -> None:
    directory, _ = folded
    with closing(connect(directory)) as con:
        (body,) = con.execute("SELECT body FROM batches WHERE seq = 1").fetchone() or (b"",)
        run_ids, *others = unpack(body)
        run_ids = [left.get(place, run_id) for place, run_id in enumerate(run_ids)]
        batch = RunsRequested([run_id for run_id in run_ids if run_id is not None], *others)
        con.execute("UPDATE batches SET body = $1 WHERE seq = 1", [encode(batch)[1]])
        con.execute("CHECKPOINT")
    with pytest.raises(LedgerDamaged, match=f"fact {min(left) + 1} is missing"), closing(DuckDBStore(directory)) as it:
        it.boot()


def test_a_damaged_block_costs_the_batches_in_it_and_no_others(tmp_path: Path) -> None:
    directory, seq = tmp_path / "ledger", 1
    with closing(DuckDBStore(directory, fsync=False)) as store:
        store.boot()
        for _ in range(30):
            ids = [f"{number:010}" for number in range(seq, seq + 500)]
            batch = RunsRequested(ids, ["d" * 24] * 500, [b"x" * 40] * 500, TYPE, "", "", {}, 0)
            store.append([BatchRow(seq, NOW_MS, 500, *encode(batch))], [])
            seq += 500
    whole = (directory / DATABASE).read_bytes()
    wreck = copy(directory, tmp_path / "wreck", ledger_db=flipped(whole, whole.index(b"0000007600") + 100))
    said = "\n".join(finding.what for finding in repair(wreck))
    assert re.search(r"2[89] of 30 rows of batches", said), said
