"""What `perdure doctor` sees in a ledger, and what its repair makes of it."""

from __future__ import annotations

from collections import Counter
from contextlib import closing, suppress
from pathlib import Path

import pytest

from perdure.ledger import BatchRow, FactRow, Payload, Record, meta_of, run_record
from perdure.ledger.block_guard import BlockGuard
from perdure.ledger.codec import encode
from perdure.ledger.errors import LedgerDamaged
from perdure.ledger.store.batches import RunsRequested
from perdure.ledger.store.duckdb_file import DATABASE, DOCTOR, connect
from perdure.ledger.store.duckdb_store import DuckDBStore
from perdure.ledger.store.integrity import Finding, examine, repair
from perdure.ledger.store.journal_scan import scan
from tests.kit import NOW_MS, TYPE, some
from tests.ledger.test_batches import fan_out
from tests.ledger.wrecks import LAST, commit, contents, copy, fact, flipped, numbers, run, segment, small_life, tamper


@pytest.fixture(scope="module")
def dead(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_life(tmp_path_factory.mktemp("dead") / "ledger")


@pytest.fixture
def wreck(dead: Path, tmp_path: Path) -> Path:
    """What a killed process left: a snapshot up to 3, a checkpoint after 4, six commits in the journal."""
    return copy(dead, tmp_path / "ledger")


def grave(findings: list[Finding]) -> list[str]:
    return [f"{finding.severity}: {finding.what}" for finding in findings if finding.severity != "ok"]


def told(findings: list[Finding]) -> str:
    return "\n".join(grave(findings))


def settle(directory: Path, *forgotten: str) -> Path:
    """Start, put everything under a checkpoint, forget these runs, and stop."""
    records = [run("r0", 3, 15), run("r1", 1, 16), run("r2", 2, 17)]
    with closing(DuckDBStore(directory, fsync=False)) as store:
        store.boot()
        store.checkpoint(b"m", LAST, [each for each in records if each.key not in forgotten], list(forgotten))
    return directory


# ------------------------------------------------------------------ looking


def test_a_healthy_ledger_is_said_to_be_healthy_and_stays_as_it_is(wreck: Path) -> None:
    before = contents(wreck)
    assert [finding.what for finding in examine(wreck)] == [
        "all facts kept up to 4 are those that were written",
        "13 facts after the last checkpoint follow one another",
        "3 runs and 4 facts in the database tell the same story",
    ]
    assert contents(wreck) == before


@pytest.mark.parametrize("forgotten", [(), ("r1",), ("r0", "r1", "r2")])
def test_forgetting_leaves_a_healthy_ledger(wreck: Path, forgotten: tuple[str, ...]) -> None:
    assert grave(examine(settle(wreck, *forgotten))) == []


def test_no_ledger_is_no_damage(tmp_path: Path) -> None:
    (finding,) = examine(tmp_path)
    assert finding == Finding("refused", f"there is no ledger in {tmp_path}", "check the path")
    assert list(tmp_path.iterdir()) == []


def test_a_journal_without_its_database_is_damage(wreck: Path) -> None:
    (wreck / DATABASE).unlink()
    before = contents(wreck)
    (finding,) = examine(wreck)
    assert (finding.severity, finding.what) == ("damage", "ledger.db is missing beside its journal")
    assert repair(wreck) == [finding]
    assert contents(wreck) == before


def test_a_ledger_in_use_is_left_alone(wreck: Path) -> None:
    with closing(DuckDBStore(wreck)) as store:
        store.boot()
        (finding,) = examine(wreck)
        assert "is using this ledger" in finding.what
        assert repair(wreck) == [finding]
    assert grave(examine(wreck)) == []


def test_a_damaged_journal_is_a_warning_while_its_mirror_is_whole(dead: Path, wreck: Path) -> None:
    segment(wreck).write_bytes(flipped(segment(dead).read_bytes(), 500))
    before = contents(wreck)
    (finding,) = [finding for finding in examine(wreck) if finding.severity != "ok"]
    assert finding.severity == "warning"
    assert "was damaged at byte" in finding.what
    assert contents(wreck) == before
    with closing(DuckDBStore(wreck)) as store:
        store.boot()
    assert grave(examine(wreck)) == []


def test_a_checkpoint_that_did_not_end_is_told_and_examined_as_it_will_be_mended(wreck: Path) -> None:
    guard = BlockGuard(wreck / DATABASE)
    with closing(connect(wreck)) as con, suppress(ZeroDivisionError), guard.around(con, "ledger"):
        raise ZeroDivisionError
    guard.close()
    before = contents(wreck)
    assert grave(examine(wreck)) == ["warning: a checkpoint did not end"]
    assert contents(wreck) == before
    with closing(DuckDBStore(wreck)) as store:
        assert store.boot().findings == []
    assert grave(examine(wreck)) == []


@pytest.mark.parametrize(
    ("ruin", "words"),
    [
        ("DELETE FROM facts WHERE seq = 9", "facts and payloads kept from 1 to 17"),
        ("DELETE FROM facts WHERE subject = 'r1'", "1 runs have a record but no facts, r1"),
        ("DELETE FROM facts WHERE seq = 1", "1 runs have facts before or after what their record knows, r1"),
        ("DELETE FROM facts WHERE seq = 9", "1 runs have holes in the numbers of their events, r0"),
        ("DELETE FROM runs WHERE run_id = 'r2'", "1 runs have facts but no record, r2"),
        (
            "UPDATE runs SET last_seq = 9 WHERE run_id = 'r2'",
            "1 runs have facts before or after what their record knows, r2",
        ),
        ("UPDATE facts SET kind = 'Else' WHERE seq = 2", "not those that were written"),
        ("DROP TABLE seals", "seals does not exist"),
    ],
)
def test_what_was_changed_behind_its_back_is_damage(wreck: Path, ruin: str, words: str) -> None:
    tamper(settle(wreck), ruin)
    found = [finding for finding in examine(wreck) if words in finding.what]
    assert [finding.severity for finding in found] == ["damage"]
    assert found[0].advice


def test_a_file_that_is_no_database_is_damage(wreck: Path) -> None:
    (wreck / DATABASE).write_bytes(b"nonsense" * 5_000)
    assert "damage" in told(examine(wreck))
    (finding,) = repair(wreck)
    assert "move it away" in finding.advice
    assert (wreck / DATABASE).read_bytes() == b"nonsense" * 5_000


def test_damaged_blocks_are_found_by_looking_at_everything(wreck: Path) -> None:
    settle(wreck)
    whole = (wreck / DATABASE).read_bytes()
    harmless = 0
    for place in range(12_288 + 4_096, len(whole), 16_384):
        (wreck / DATABASE).write_bytes(flipped(whole, place))
        harmless += not grave(examine(wreck))
    assert harmless < len(whole) / 16_384  # free blocks may hold anything


# ------------------------------------------------------------------ repairing


def test_a_healthy_ledger_is_not_repaired(wreck: Path) -> None:
    before = contents(wreck)
    assert repair(wreck)[0] == Finding("ok", "there is nothing to repair")
    assert contents(wreck) == before


def test_a_repair_of_what_mends_itself_is_a_start(dead: Path, wreck: Path) -> None:
    segment(wreck).write_bytes(flipped(segment(dead).read_bytes(), 500))
    assert "is mended from its mirror" in told(repair(wreck))
    assert grave(examine(wreck)) == []


def test_a_repair_keeps_what_verifies_up_to_the_first_loss_and_the_files_as_they_were(dead: Path, wreck: Path) -> None:
    journal = flipped(segment(dead).read_bytes(), scan(dead).entries[2].offset)
    segment(wreck).write_bytes(journal)
    segment(wreck).with_name(segment(wreck).name.replace("journal", "mirror")).write_bytes(journal)
    with pytest.raises(LedgerDamaged):
        DuckDBStore(wreck).boot()
    words = told(repair(wreck))
    assert "given up: the facts 8 to 10 are missing" in words
    assert (wreck / f"{segment(dead).name}.damaged-1").read_bytes() == journal
    assert (wreck / "ledger.db.damaged-1").read_bytes() == (dead / DATABASE).read_bytes()
    with closing(DuckDBStore(wreck)) as store:
        read = store.boot()
        assert (numbers(read), read.findings) == ([4, 5, 6, 7], [])
        store.append(*commit(8, 9))
        store.checkpoint(b"m", 9, [run("r0", 3, 9), run("r1", 1, 7), run("r2", 2, 8)], [])
    assert grave(examine(wreck)) == []


def test_a_repair_without_a_journal_keeps_the_last_checkpoint(wreck: Path) -> None:
    for path in wreck.glob("ledger.[jm]*"):
        path.unlink()
    assert "there is no journal that can be read" in told(examine(wreck))
    assert "given up: there is no journal" in told(repair(wreck))
    with closing(DuckDBStore(wreck)) as store:
        assert store.boot().rows == [fact(4)]
        store.append(*commit(5, 5))
    assert grave(examine(wreck)) == []


def test_a_repair_seals_a_wounded_history_as_it_is_and_says_what_is_missing(wreck: Path) -> None:
    tamper(settle(wreck), "DELETE FROM facts WHERE seq IN (5, 9)")
    assert "damage: of the 18 facts and payloads kept from 1 to 17, 16 are there" in grave(examine(wreck))
    repaired = repair(wreck)
    assert "damage: 2 runs have holes in the numbers of their events, r0, r2" in grave(repaired)
    assert not any("facts and payloads kept" in finding.what for finding in examine(wreck))
    with closing(DuckDBStore(wreck)) as store:
        assert store.boot().rows == []
        store.append(*commit(18, 18))


def test_a_repair_cuts_at_a_fact_that_the_next_start_would_need(wreck: Path) -> None:
    with closing(DuckDBStore(wreck, fsync=False)) as store:
        store.boot()
        store.append(*commit(LAST + 1, LAST + 1))
    tamper(wreck, "DELETE FROM facts WHERE seq = 12")
    with pytest.raises(LedgerDamaged, match="fact 12 is missing"):
        DuckDBStore(wreck).boot()
    assert "given up: fact 12 is missing" in told(repair(wreck))
    with closing(DuckDBStore(wreck)) as store:
        assert numbers(store.boot()) == list(range(4, 12))
        store.append(*commit(12, 12))
    assert grave(examine(wreck)) == []


# ------------------------------------------------------------------ a bit of any block


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with rows in every table, all of it in the database's file."""
    both, directory = fan_out(), tmp_path_factory.mktemp("rich") / "ledger"
    with closing(DuckDBStore(directory, fsync=False)) as store:
        store.boot()
        store.append(both.rows, [Payload("r03", "input", b"P" * 40_000)])
        seq = both.view.seq
        more = [
            Record("agents", "a@m:T", True, ("h1", 3), b"agent"),
            Record("mail", "m1", True, ("a", "p", "r03"), b"mail"),
        ]
        store.checkpoint(meta_of(both.view), seq, [*map(run_record, both.view.runs.values()), *more], [])
    return directory


def live_on(directory: Path) -> list[str]:
    """Start, do what a supervisor does in a day, and start again. Returns what the starts said."""
    with closing(DuckDBStore(directory, fsync=False)) as store:
        boot, last = store.boot(), fan_out().view.seq
        batch = RunsRequested(["n0", "n1"], ["d" * 24] * 2, [b"x"] * 2, TYPE, "", "", {}, 0)
        store.append([BatchRow(last + 1, NOW_MS, 2, *encode(batch))], [Payload("n0", "input", b"Q" * 9_000)])
        store.append([FactRow(last + 3, NOW_MS, "n0", 1, "Happened", b"fact")], [])
        store.checkpoint(boot.meta or b"", last + 3, [run("n0", last + 1, last + 3), run("n1", last + 2, last + 2)], [])
    with closing(DuckDBStore(directory, fsync=False)) as store:
        again = store.boot().findings
        assert [record.key for record in store.records("runs", ["n0"])] == ["n0"]
    assert again == []
    return boot.findings


@pytest.mark.parametrize("first", some(1, range(3)))
def test_a_bit_of_any_block_is_mended_by_the_start_or_told_by_the_doctor(
    rich: Path, tmp_path: Path, first: int
) -> None:
    """Never does a start, or a day after it, send a person to a doctor who finds nothing, or repairs nothing and says nothing of it."""
    whole, seen = (rich / DATABASE).read_bytes(), Counter[str]()
    for place in range(12_288 + 100 + first * 16_384, len(whole), 3 * 16_384):
        wreck = copy(rich, tmp_path / "wreck", ledger_db=flipped(whole, place))
        told = {finding.severity for finding in examine(wreck)}
        try:
            said = live_on(wreck)
        except LedgerDamaged:
            assert "damage" in told, f"the doctor finds nothing at {place}"
            copy(rich, wreck, ledger_db=flipped(whole, place))
            grave_after = [finding for finding in repair(wreck) if finding.severity == "damage"]
            assert all(DOCTOR not in finding.advice for finding in grave_after)
            if grave_after:
                seen["beyond repair"] += 1
                assert all(finding.advice for finding in grave_after)
            else:
                seen["repaired"] += 1
                live_on(wreck)
            continue
        seen["mended by the start" if said else "harmless"] += 1
        assert bool(said) == ("warning" in told), f"the start says {said}, and the doctor {told}"
    assert seen["mended by the start"]
    assert seen["repaired"]
