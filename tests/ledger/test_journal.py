"""The journal by itself: it never invents a commit, and it finds every whole one around a damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.ledger.store.journal import MIRROR, SEGMENT, Journal, JournalEntry
from perdure.ledger.store.journal_scan import ReplayPlan, Scan, commits, has_everything, reconcile, scan
from perdure.ledger.store.seals import GENESIS, Commit, Mark, seal
from perdure.ledger.store.store import Payload
from tests.ledger.wrecks import commit, flipped

SPANS = [(1, 1), (2, 5), (6, 6), (7, 9)]


def chain(*spans: tuple[int, int], before: Mark = GENESIS) -> list[Commit]:
    sealed: list[Commit] = []
    for first, last in spans:
        sealed.append(seal(sealed[-1].after if sealed else before, *commit(first, last, payload=b"x" * first)))
    return sealed


HEAD = 48


def write(directory: Path, *lives: list[Commit]) -> None:
    """Each life of a journal begins a segment of its own."""
    for written in lives:
        found = scan(directory)
        journal = Journal(directory, fsync=False)
        journal.resume(found.segments, written[0].before, None)
        for each in written:
            journal.append(each)
        journal.close()


def spans(found: Scan) -> list[tuple[int, int]]:
    return [(entry.before.seq + 1, entry.after.seq) for entry in found.entries]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A journal of four commits, and no mirror."""
    write(tmp_path, chain(*SPANS))
    (tmp_path / f"{MIRROR}1").unlink()
    return tmp_path


# ------------------------------------------------------------------ the files


def test_what_was_written_is_read(tmp_path: Path) -> None:
    first, second = chain(*SPANS), chain(*SPANS, (10, 12))[4:]
    write(tmp_path, first, second)
    found = scan(tmp_path)
    assert (found.bases, found.flaws, found.damaged) == ([GENESIS, first[-1].after], [], [])
    assert [joined(each) for each in commits(found.entries)] == [joined(each) for each in (*first, *second)]
    assert found.segments == {1: 9, 2: 12}
    assert has_everything(tmp_path)


def joined(commit: Commit) -> Commit:
    return commit._replace(parts=[b"".join(commit.parts)])


def test_a_segment_is_dropped_when_the_database_has_all_of_it_and_not_before(tmp_path: Path) -> None:
    first, second = chain(*SPANS), chain(*SPANS, (10, 12))[4:]
    write(tmp_path, first, second)
    journal = Journal(tmp_path, fsync=False)
    journal.resume(scan(tmp_path).segments, second[-1].after, None)
    for upto_seq, left in ((8, {1: 9, 2: 12}), (9, {2: 12}), (12, {})):
        journal.drop(upto_seq)
        assert scan(tmp_path).segments == left


def test_a_commit_of_very_many_payloads_is_one_commit(tmp_path: Path) -> None:
    rows, _ = commit(1, 1)
    many = seal(GENESIS, rows, [Payload("r1", f"part {number}", b"x") for number in range(3_000)])
    write(tmp_path, [many])
    assert [joined(each) for each in commits(scan(tmp_path).entries)] == [joined(many)]


def test_no_journal_and_an_empty_segment_hold_nothing(tmp_path: Path) -> None:
    nothing = Scan([], [], [], [], {})
    assert scan(tmp_path) == nothing
    for content in (b"", bytes(4_096)):
        (tmp_path / f"{SEGMENT}1").write_bytes(content)
        assert scan(tmp_path) == nothing._replace(segments={1: 0})
    (tmp_path / f"{SEGMENT}1").write_bytes(b"nonsense")
    assert scan(tmp_path).flaws == ["the head of ledger.journal.1 cannot be read"]
    assert not has_everything(tmp_path)


def test_other_files_are_no_segments(tmp_path: Path) -> None:
    write(tmp_path, chain((1, 1)))
    (tmp_path / f"{SEGMENT}1.damaged-1").write_bytes(b"x")
    (tmp_path / "ledger.journal").write_bytes(b"x")
    assert scan(tmp_path).segments == {1: 1}


def test_each_flipped_byte_without_a_mirror_hides_its_own_commit_and_no_other(directory: Path) -> None:
    path = directory / f"{SEGMENT}1"
    whole = path.read_bytes()
    ends = [entry.offset + entry.length for entry in scan(directory).entries]
    for place in range(ends[-1]):
        path.write_bytes(flipped(whole, place))
        found = scan(directory)
        hit = None if place < HEAD else next(number for number, end in enumerate(ends) if place < end)
        assert spans(found) == [span for number, span in enumerate(SPANS) if number != hit], f"byte {place}"
        assert len(found.flaws) == 1
        assert bool(found.bases) == (hit is not None)


def test_each_torn_end_hides_the_last_commits(directory: Path) -> None:
    path = directory / f"{SEGMENT}1"
    whole = path.read_bytes()
    ends = [entry.offset + entry.length for entry in scan(directory).entries]
    for size in range(HEAD, ends[-1], 3):
        for tail in (b"", bytes(len(whole) - size)):
            path.write_bytes(whole[:size] + tail)
            complete = sum(end <= size for end in ends)
            assert spans(scan(directory)) == SPANS[:complete]


def test_each_flipped_byte_is_mended_from_the_mirror(tmp_path: Path) -> None:
    write(tmp_path, chain(*SPANS))
    path = tmp_path / f"{SEGMENT}1"
    whole = path.read_bytes()
    for place in range(scan(tmp_path).entries[-1].offset + 3):
        path.write_bytes(flipped(whole, place))
        found = scan(tmp_path)
        assert (spans(found), found.bases) == (SPANS, [GENESIS]), f"byte {place}"
        assert "mirror" in found.flaws[0]


# ------------------------------------------------------------------ beside a database


def marks(*spans_: tuple[int, int]) -> list[JournalEntry]:
    return [JournalEntry(each.before, each.after, Path(), 0, 0) for each in chain(*spans_)]


ENTRIES = marks(*SPANS)
AFTER = [GENESIS, *(entry.after for entry in ENTRIES)]


def scanned(bases: list[Mark], entries: list[JournalEntry], *flaws: str) -> Scan:
    return Scan(bases, entries, list(flaws), [], {})


@pytest.mark.parametrize("have", range(5))
def test_the_journal_gives_what_the_database_lacks(have: int) -> None:
    assert reconcile(scanned([GENESIS], ENTRIES), AFTER[have]) == ReplayPlan(ENTRIES[have:], [], "")


def test_a_new_directory_has_neither() -> None:
    assert reconcile(scanned([], []), GENESIS) == ReplayPlan([], [], "")


def test_commits_from_before_a_checkpoint_are_passed_over() -> None:
    later = Mark(20, b"l" * 16)
    assert reconcile(scanned([GENESIS, later], ENTRIES), later) == ReplayPlan([], [], "")


@pytest.mark.parametrize(
    ("found", "mark", "loss"),
    [
        (scanned([GENESIS], [ENTRIES[0], *ENTRIES[2:]]), AFTER[1], "the facts 2 to 5 are missing"),
        (scanned([GENESIS, AFTER[3]], ENTRIES[:2]), AFTER[2], "the facts 6 to 6 are missing"),
        (scanned([AFTER[3]], []), AFTER[1], "the facts 2 to 6 are missing"),
        (scanned([GENESIS], ENTRIES[:1]), AFTER[2], "the journal ends at fact 1, and the database at 5"),
        (scanned([], []), AFTER[1], "there is no journal that can be read, and the database at 1"),
        (scanned([Mark(5, b"?" * 16)], []), AFTER[2], "different stories about fact 5"),
        (scanned([], ENTRIES[2:]), Mark(5, b"?" * 16), "different stories after fact 5"),
        (scanned([], ENTRIES[1:]), Mark(3, b"?" * 16), "different stories after fact 1"),
    ],
)
def test_what_neither_has_is_a_loss(found: Scan, mark: Mark, loss: str) -> None:
    assert loss in reconcile(found, mark).loss
