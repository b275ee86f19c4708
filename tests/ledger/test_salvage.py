"""What becomes of a ledger whose file DuckDB cannot read any more: everything that the journal or the file itself still has."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from perdure.ledger.errors import LedgerDamaged
from perdure.ledger.store.duckdb_file import DATABASE, WAL
from perdure.ledger.store.duckdb_store import DuckDBStore
from perdure.ledger.store.integrity import Finding, examine, repair
from tests.ledger.wrecks import LAST, commit, contents, copy, fact, flipped, live, numbers, run, segment

HEADERS = (0, 4_096, 8_192)
BLOCK = 16_384
FIRST_BLOCK = 12_288
MANY = 10_000

YOUNG_LIFE = """
for first, last in ((1, 3), (4, 10), (11, 14)):
    store.append(*commit(first, last))
store.append(*commit(15, 16, payload=b"P" * 50))
store.append(*commit(17, 17))
os._exit(9)
"""


@pytest.fixture(scope="module")
def young(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A first life that took no checkpoint, so that its journal has every commit."""
    directory = tmp_path_factory.mktemp("young") / "ledger"
    process = live(directory, YOUNG_LIFE)
    _, complaints = process.communicate()
    assert process.returncode == 9, complaints
    return directory


def grown(directory: Path, upto_seq: int, *, snapshot_seq: int) -> Path:
    """A ledger of many facts that was stopped, with a snapshot up to one of them."""
    with closing(DuckDBStore(directory, fsync=False)) as store:
        store.boot()
        for first in range(1, upto_seq + 1, 2_000):
            store.append(*commit(first, min(first + 1_999, upto_seq)))
        if snapshot_seq:
            ends = {seq % 3: seq for seq in range(snapshot_seq - 2, snapshot_seq + 1)}
            records = [run(f"r{first % 3}", first, ends[first % 3]) for first in (1, 2, 3)]
            store.checkpoint(b"meta", snapshot_seq, records, [])
    return directory  # the stop has folded everything, so the journal has none of these facts


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return grown(tmp_path_factory.mktemp("old") / "ledger", MANY, snapshot_seq=MANY)


@pytest.fixture(scope="module")
def unsnapped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its snapshot is empty: a boot folds all facts."""
    return grown(tmp_path_factory.mktemp("unsnapped") / "ledger", 600, snapshot_seq=0)


def words(findings: list[Finding]) -> str:
    return "\n".join(f"{finding.severity}: {finding.what} – {finding.advice}" for finding in findings)


def blocks(directory: Path) -> range:
    return range(FIRST_BLOCK + 4_096, (directory / DATABASE).stat().st_size, BLOCK)


# ------------------------------------------------------------------ from the journal


@pytest.mark.parametrize("place", HEADERS)
def test_a_file_that_cannot_be_opened_is_built_anew_from_a_journal_that_has_everything(
    young: Path, tmp_path: Path, place: int
) -> None:
    ruined = flipped((young / DATABASE).read_bytes(), place)
    wreck = copy(young, tmp_path / "ledger", ledger_db=ruined)
    (finding,) = examine(wreck)
    assert finding.severity == "damage"
    assert "perdure doctor --repair`: it builds the ledger anew from its journal" in finding.advice
    said = words(repair(wreck))
    assert "the ledger is built anew from its journal, which is whole: it has the facts 1 to 17" in said
    assert "the damaged file is kept as ledger.db.damaged-1" in said
    assert "damage" not in said.replace("the damaged file", "").replace(".damaged-", "").replace("a damaged", "")
    assert (wreck / "ledger.db.damaged-1").read_bytes() == ruined
    with closing(DuckDBStore(wreck)) as store:
        read = store.boot()
        assert (numbers(read), read.findings) == (list(range(1, LAST + 1)), [])
        assert store.payload(fact(16).subject, "input") == b"P" * 50
        store.append(*commit(LAST + 1, LAST + 1))
    assert {finding.severity for finding in examine(wreck)} == {"ok"}


def test_a_missing_file_is_built_anew_from_a_journal_that_has_everything(young: Path, tmp_path: Path) -> None:
    wreck = copy(young, tmp_path / "ledger")
    (wreck / DATABASE).unlink()
    assert "the next start builds it anew" in words(examine(wreck))
    repair(wreck)
    with closing(DuckDBStore(wreck)) as store:
        assert numbers(store.boot()) == list(range(1, LAST + 1))


def both(directory: Path, content: bytes) -> dict[str, bytes]:
    """A segment and its mirror with the same content, for `copy`."""
    name = segment(directory).name.replace(".", "_")
    return {name: content, name.replace("journal", "mirror"): content}


def test_a_start_without_the_file_begins_no_empty_one_beside_a_journal_that_knows_of_facts(
    young: Path, old: Path, tmp_path: Path
) -> None:
    whole = segment(young).read_bytes()
    headless, holed = (
        copy(young, tmp_path / str(place), **both(young, flipped(whole, place)))
        for place in (3, whole.index(b"\xc5commit\n") + 200)
    )
    for wreck in (copy(old, tmp_path / "later"), headless, holed):
        (wreck / DATABASE).unlink()
        (wreck / WAL).unlink(missing_ok=True)
        before = contents(wreck)
        with pytest.raises(LedgerDamaged, match="missing"):
            DuckDBStore(wreck).boot()
        assert contents(wreck) == before


def test_of_a_damaged_journal_everything_before_the_damage_is_taken(young: Path, tmp_path: Path) -> None:
    journal = segment(young).read_bytes()
    second = journal.index(b"\xc5commit\n", journal.index(b"\xc5commit\n") + 1)
    ruined = both(young, flipped(journal, second + 200))
    wreck = copy(young, tmp_path / "ledger", ledger_db=b"nonsense" * 5_000, **ruined)
    said = words(repair(wreck))
    assert "the ledger is built anew from its journal, which is damaged in places" in said
    assert "given up: the facts 4 to 10 are missing" in said
    assert "ledger.journal.1.damaged-" in said
    with closing(DuckDBStore(wreck)) as store:
        assert numbers(store.boot()) == [1, 2, 3]


def test_a_death_before_the_new_file_has_its_name_changes_nothing(
    young: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wreck = copy(young, tmp_path / "ledger", ledger_db=b"nonsense" * 5_000)
    (wreck / "ledger.db.rebuilt").write_bytes(b"half of a file that an earlier repair had begun")
    repair(wreck)
    with closing(DuckDBStore(wreck)) as store:
        assert numbers(store.boot()) == list(range(1, LAST + 1))
    assert not list(wreck.glob("*rebuilt*"))


# ------------------------------------------------------------------ from the file itself


def test_a_file_that_cannot_be_opened_and_whose_journal_began_later_is_left_as_it_was(
    old: Path, tmp_path: Path
) -> None:
    wreck = copy(old, tmp_path / "ledger", ledger_db=flipped((old / DATABASE).read_bytes(), 0))
    before = contents(wreck)
    (finding,) = repair(wreck)
    assert finding.severity == "damage"
    assert f"the journal begins at fact {MANY + 1}, so the ledger cannot be built anew from it" in finding.advice
    assert "perdure doctor" not in finding.advice, "this is the doctor"
    assert contents(wreck) == before


@pytest.mark.thorough
def test_whichever_block_is_damaged_what_can_be_read_is_saved_and_what_cannot_is_said(
    old: Path, tmp_path: Path
) -> None:
    whole = (old / DATABASE).read_bytes()
    saved = 0
    for place in blocks(old):
        wreck = copy(old, tmp_path / "ledger", ledger_db=flipped(whole, place))
        if all(finding.severity == "ok" for finding in examine(wreck)):
            continue  # a free block may hold anything
        said = words(repair(wreck))
        if "is built anew" not in said:
            assert (wreck / DATABASE).read_bytes() == flipped(whole, place)
            continue
        saved += 1
        if "(table run_filter) is damaged; it is built anew from the records" not in said:
            assert "the ledger is built anew from what can be read" in said
            assert (wreck / "ledger.db.damaged-1").read_bytes() == flipped(whole, place)
        with closing(DuckDBStore(wreck, fsync=False)) as store:
            read = store.boot()
            assert read.findings == []
            assert (read.meta, len(read.records)) == (b"meta", 3) or numbers(read) == list(range(1, MANY + 1))
            store.append(*commit(MANY + 1, MANY + 1))
    assert saved > len(blocks(old)) * 0.8


def test_history_that_cannot_be_read_is_counted(old: Path, tmp_path: Path) -> None:
    whole = (old / DATABASE).read_bytes()
    places = (
        place for place in blocks(old) if _facts_lost(copy(old, tmp_path / "ledger", ledger_db=flipped(whole, place)))
    )
    assert next(places)


def _facts_lost(wreck: Path) -> bool:
    said = words(repair(wreck))
    return "of 10,000 rows of facts, all 3 rows of runs" in said and "holes in the numbers of their events" in said


def test_a_snapshot_that_cannot_be_read_is_folded_anew_if_no_fact_is_missing(unsnapped: Path, tmp_path: Path) -> None:
    whole = (unsnapped / DATABASE).read_bytes()
    folded = lost = 0
    for place in blocks(unsnapped):
        wreck = copy(unsnapped, tmp_path / "ledger", ledger_db=flipped(whole, place))
        said = words(repair(wreck))
        lost += "nothing of it can be read" in said
        if "of 1 rows of meta" not in said and "no row of meta" not in said:
            continue
        folded += 1
        with closing(DuckDBStore(wreck, fsync=False)) as store:
            read = store.boot()
            assert (read.meta, numbers(read), read.findings) == (None, list(range(1, 601)), [])
    assert folded
    assert lost, "the block with the facts themselves"


def test_a_snapshot_of_which_a_part_is_lost_with_facts_is_too_little(old: Path, tmp_path: Path) -> None:
    """The facts of a forgotten run are gone, so the others cannot be folded without a snapshot."""
    with closing(DuckDBStore(copy(old, tmp_path / "forgot"), fsync=False)) as store:
        store.boot()
        store.checkpoint(b"meta", MANY, [], ["r1"])
    whole = (tmp_path / "forgot" / DATABASE).read_bytes()
    refused = (_refused(tmp_path / "forgot", tmp_path / "ledger", whole, place) for place in reversed(blocks(old)))
    assert any(refused)


def _refused(directory: Path, to: Path, whole: bytes, place: int) -> bool:
    wreck = copy(directory, to, ledger_db=flipped(whole, place))
    before = contents(wreck)
    said = words(repair(wreck))
    if "too much of it cannot be read" not in said:
        return False
    assert "bring back a copy" in said
    assert contents(wreck) == before
    return True


def test_the_refusal_of_a_start_sends_to_the_doctor(old: Path, tmp_path: Path) -> None:
    wreck = copy(old, tmp_path / "ledger", ledger_db=flipped((old / DATABASE).read_bytes(), 0))
    with pytest.raises(LedgerDamaged, match="run `perdure doctor`"):
        DuckDBStore(wreck).boot()
