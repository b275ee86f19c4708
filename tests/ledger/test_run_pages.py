"""Pages of runs: together they have every run once, wherever it is kept, whatever happens between two of them."""

from __future__ import annotations

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from perdure.ledger import Record, Run, View, Wanted, dirty_records, meta_of, page_of, record_fact, run_record
from perdure.ledger.facts import RunAborted, RunCleared
from perdure.ledger.store.memory_store import MemoryStore
from tests.kit import NOW_MS, asked

PARENTS = ("p0@m:P", "p1@m:P", "")


def ledger_of(statuses: list[bool]) -> tuple[View, MemoryStore]:
    """Runs that have ended or not, in the order of their requests, after a checkpoint."""
    view, store = View(), MemoryStore()
    rows = []
    for number, has_ended in enumerate(statuses):
        rows.append(record_fact(view, asked(f"Run{number}", parent=PARENTS[number % 3]), NOW_MS))
        if has_ended:
            rows.append(record_fact(view, RunAborted(f"Run{number}", "enough"), NOW_MS))
    store.append(rows, [])
    store.checkpoint(meta_of(view), view.seq, dirty_records(view), [])
    view.dirty_runs = {}
    return view, store


def pages(view: View, store: MemoryStore, limit: int, **wanted: object) -> list[list[str]]:
    found: list[list[str]] = []
    which = Wanted(**wanted)  # type: ignore[arg-type]
    while True:
        page = page_of(view.runs, store.wanted_runs(which, limit + 1), which, limit)
        found.append([run.run_id for run in page.runs])
        if page.next is None:
            return found
        which = which._replace(before=page.next)


@given(st.lists(st.booleans(), max_size=30), st.integers(0, 30), st.integers(1, 8))
def test_pages_have_every_run_once_in_order_wherever_it_is_kept(statuses: list[bool], kept: int, limit: int) -> None:
    view, store = ledger_of(statuses)
    view.let_go_of_oldest(kept)
    found = pages(view, store, limit)
    assert list(chain.from_iterable(found)) == [f"Run{number}" for number in reversed(range(len(statuses)))]
    assert all(len(page) <= limit for page in found)


def test_what_memory_says_of_a_run_counts_and_not_what_the_snapshot_says() -> None:
    view, store = ledger_of([True] * 6)
    record_fact(view, RunCleared("Run4"), NOW_MS)
    assert list(chain.from_iterable(pages(view, store, 2))) == ["Run5", "Run3", "Run2", "Run1", "Run0"]


def test_runs_are_found_by_parent_status_and_words_in_memory_as_in_the_snapshot() -> None:
    view, store = ledger_of([True, False, True, True, False, True])
    for kept in (6, 0):
        view.let_go_of_oldest(kept)
        assert pages(view, store, 9, parent="p0@m:P") == [["Run3", "Run0"]]
        assert pages(view, store, 9, statuses=["starting"]) == [["Run4", "Run1"]]
        assert pages(view, store, 9, statuses=["aborted"]) == [["Run5", "Run3", "Run2", "Run0"]]
        assert pages(view, store, 9, words="rUn2") == [["Run2"]]
        assert pages(view, store, 9, words="P1@") == [["Run4", "Run1"]]
        assert pages(view, store, 9, agent_type="m:Other") == [[]]


def test_a_run_that_is_recalled_out_of_order_stands_where_it_stood() -> None:
    view, store = ledger_of([True] * 5)
    runs: list[Run] = list(view.runs.values())
    view.let_go_of_oldest(0)
    view.recall(runs[4])
    view.recall(runs[1])
    assert list(chain.from_iterable(pages(view, store, 2))) == ["Run4", "Run3", "Run2", "Run1", "Run0"]


def test_a_row_without_a_number_is_on_the_last_page() -> None:
    row: Record = run_record(Run("old", "m:T", "", "", "digest", b"\x01", {}, 1, NOW_MS, 0))
    assert [run.run_id for run in page_of({}, [row], Wanted(), 5).runs] == ["old"]
