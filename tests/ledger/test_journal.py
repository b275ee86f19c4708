"""The journal by itself: it never invents a commit, and it finds every whole one around a damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.ledger.store.journal import Entry, Journal, Plan, Scan, commits, reconcile, scan
from perdure.ledger.store.seals import GENESIS, Commit, Mark, seal
from tests.ledger.wrecks import commit, flipped

SPANS = [(1, 1), (2, 5), (6, 6), (7, 9)]


def chain(*spans: tuple[int, int], before: Mark = GENESIS) -> list[Commit]:
    sealed: list[Commit] = []
    for first, last in spans:
        sealed.append(seal(sealed[-1].after if sealed else before, *commit(first, last, payload=b"x" * first)))
    return sealed


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal of four commits."""
    place = tmp_path / "ledger.journal"
    write(place, GENESIS, chain(*SPANS))
    return place


def write(path: Path, base: Mark, written: list[Commit]) -> None:
    journal = Journal(path, fsync=False)
    journal.begin(base)
    for each in written:
        journal.append(each)
    journal.close()


def spans(found: Scan) -> list[tuple[int, int]]:
    return [(entry.before.seq + 1, entry.after.seq) for entry in found.entries]


# ------------------------------------------------------------------ the file


def test_what_was_written_is_read(path: Path) -> None:
    found = scan(path)
    assert (found.base, found.flaws, found.claimed_seq) == (GENESIS, [], 0)
    assert list(commits(path, found.entries)) == chain(*SPANS)


def test_a_new_journal_replaces_the_old_one_and_goes_on(path: Path) -> None:
    last = chain(*SPANS)[-1].after
    write(path, last, chain((10, 12), before=last))
    journal = Journal(path, fsync=False)
    journal.resume()
    journal.append(chain((10, 12), (13, 13), before=last)[-1])
    journal.close()
    assert scan(path).base == last
    assert spans(scan(path)) == [(10, 12), (13, 13)]


def test_no_journal_and_an_empty_one_are_told(tmp_path: Path) -> None:
    path = tmp_path / "ledger.journal"
    assert scan(path) == Scan(None, [], ["there is no journal (ledger.journal is missing)"], 0)
    path.touch()
    assert scan(path) == Scan(None, [], ["there is no journal (ledger.journal is empty)"], 0)
    path.write_bytes(b"\0" * 7)
    assert scan(path).flaws == ["the head of the journal cannot be read"]


def test_each_flipped_byte_hides_its_own_commit_and_no_other(path: Path) -> None:
    whole = path.read_bytes()
    ends = [entry.offset + entry.length for entry in scan(path).entries]
    for place in range(len(whole)):
        path.write_bytes(flipped(whole, place))
        found = scan(path)
        hit = None if place < 48 else next(number for number, end in enumerate(ends) if place < end)
        assert spans(found) == [span for number, span in enumerate(SPANS) if number != hit], f"byte {place}"
        assert len(found.flaws) == 1
        assert (found.base is None) == (hit is None)
        assert found.claimed_seq <= (0 if hit is None else SPANS[hit][1]), f"byte {place}"


def test_each_torn_end_hides_the_last_commits_and_claims_nothing(path: Path) -> None:
    whole = path.read_bytes()
    ends = [entry.offset + entry.length for entry in scan(path).entries]
    for size in range(48, len(whole), 3):
        for tail in (b"", bytes(len(whole) - size)):
            path.write_bytes(whole[:size] + tail)
            found = scan(path)
            complete = sum(end <= size for end in ends)
            assert spans(found)[:complete] == SPANS[:complete]
            assert len(spans(found)) == complete
            assert found.claimed_seq <= (SPANS[complete][1] if tail else 0)


def test_a_damaged_frame_claims_no_more_than_is_sure(path: Path) -> None:
    whole, last = path.read_bytes(), scan(path).entries[-1]
    path.write_bytes(flipped(whole, last.offset + last.length - 1))
    assert scan(path).claimed_seq == 9
    path.write_bytes(flipped(whole, last.offset))
    assert scan(path).claimed_seq == 7


# ------------------------------------------------------------------ beside a database


def marks(*spans_: tuple[int, int]) -> list[Entry]:
    return [Entry(each.before, each.after, 0, 0) for each in chain(*spans_)]


ENTRIES = marks(*SPANS)
AFTER = [GENESIS, *(entry.after for entry in ENTRIES)]


@pytest.mark.parametrize("have", range(5))
def test_the_journal_gives_what_the_database_lacks(have: int) -> None:
    plan = reconcile(Scan(GENESIS, ENTRIES, [], 0), AFTER[have], AFTER[have].seq)
    assert (plan.replay, plan.loss) == (ENTRIES[have:], "")
    assert len(plan.findings) == (have < 4)


def test_frames_from_before_a_checkpoint_are_passed_over() -> None:
    later = Mark(20, b"l" * 16)
    assert reconcile(Scan(GENESIS, ENTRIES, [], 0), later, 20) == Plan([], [], "")


def test_a_journal_that_ends_early_is_harmless() -> None:
    plan = reconcile(Scan(GENESIS, ENTRIES[:1], ["torn"], 0), AFTER[4], 9)
    assert plan == Plan([], ["torn", "what the database holds verifies up to fact 9"], "")


@pytest.mark.parametrize(
    ("scanned", "mark", "last_seq", "loss"),
    [
        (Scan(GENESIS, [ENTRIES[0], *ENTRIES[2:]], [], 0), AFTER[1], 1, "the facts 2 to 5 are missing"),
        (Scan(GENESIS, ENTRIES[:2], [], 7), AFTER[2], 5, "the facts 6 to 7 are missing or do not verify"),
        (Scan(AFTER[3], [], [], 0), AFTER[1], 1, "the facts 2 to 6 are missing or do not verify"),
        (Scan(None, [], [], 0), AFTER[1], 5, "the facts 2 to 5 are missing or do not verify"),
        (Scan(Mark(5, b"?" * 16), [], [], 0), AFTER[2], 5, "different stories about fact 5"),
        (Scan(None, ENTRIES[2:], [], 0), Mark(5, b"?" * 16), 5, "different stories after fact 5"),
        (Scan(None, ENTRIES[1:], [], 0), Mark(3, b"?" * 16), 3, "different stories after fact 1"),
    ],
)
def test_what_neither_has_is_a_loss(scanned: Scan, mark: Mark, last_seq: int, loss: str) -> None:
    assert loss in reconcile(scanned, mark, last_seq).loss


def test_facts_that_do_not_verify_give_way_if_the_journal_reaches_as_far() -> None:
    assert reconcile(Scan(GENESIS, ENTRIES, [], 0), AFTER[1], 9).loss == ""
    assert reconcile(Scan(GENESIS, ENTRIES[:3], [], 0), AFTER[1], 9).loss
