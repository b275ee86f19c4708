"""Many runs are steered by one filter: what a filter may say, what each verb makes of each run, and where a group ends early."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from perdure.ledger import (
    BadRequest,
    Deed,
    Forget,
    Row,
    Run,
    Steer,
    Verb,
    Wanted,
    apply_fact,
    checked_wanted,
    chosen_of,
    chosen_runs,
    decide,
    dirty_records,
    line,
    meta_of,
    near_types,
    page_of,
    record_fact,
    restore,
    rows_for,
    steer,
)
from perdure.ledger.chosen_runs import REACH, SteeredGroup
from perdure.ledger.facts import (
    AttemptLost,
    RunAborted,
    RunCleared,
    RunErrored,
    RunInterrupted,
    RunParked,
    RunRetried,
    RunSucceeded,
    UndoBegan,
    UndoPromised,
)
from perdure.ledger.status import Status
from perdure.ledger.store.duckdb_store import DuckDBStore
from perdure.ledger.store.memory_store import MemoryStore
from tests.kit import NOW_MS, PARENT, Ledger, asked, begun, child, placed

ENDS: dict[str, tuple[Any, ...]] = {
    "starting": (),
    "running": (placed("running"), begun("running")),
    "completed": (RunSucceeded("completed", 1, b"\x01", "", False, True),),
    "error": (RunErrored("error", 1, "Timeout: the page was slow", True),),
    "aborted": (RunAborted("aborted", "not needed"),),
    "interrupted": (RunInterrupted("interrupted", "no-progress", None, "it was silent"),),
    "parked": (placed("parked", incarnation=2), RunParked("parked", 1, "ImportError: no module named desk")),
}
"""A run in each standing, by its id."""


def every(**options: Any) -> Ledger:
    """Runs of all standings, requested a second apart; each ends half a second after its request."""
    ledger = Ledger()
    for run_id, facts in ENDS.items():
        ledger.given(asked(run_id, **options)).later(500).given(*facts).later(500)
    return ledger


def steered(ledger: Ledger, verb: str, *ids: str, began_ms: int | None = None, **wanted: Any) -> SteeredGroup:
    """Steer these runs, or all, at the places where they are."""
    runs = [[run.first_seq, run.run_id] for run in ledger.view.runs.values() if not ids or run.run_id in ids]
    return steer_at(ledger, verb, runs, began_ms=began_ms, **wanted)


def steer_at(ledger: Ledger, verb: str, runs: Any, *, began_ms: int | None = None, **wanted: Any) -> SteeredGroup:
    def decided(deed: Deed) -> Iterable[str]:
        return [type(each).__name__ for each in ledger.when(deed)]

    began = ledger.now_ms if began_ms is None else began_ms
    return steer(ledger.view, Steer(verb, runs, [*Wanted(**wanted)], "enough", began), decided)


# ---------------------------------------------------------------- filters

BOTH_SIDES: list[tuple[dict[str, Any], set[str]]] = [
    ({}, {*ENDS}),
    ({"statuses": ["error", "aborted"]}, {"error", "aborted"}),
    ({"statuses": ["starting"]}, {"starting", "parked"}),
    ({"agent_type": "tests.toys:Child"}, {*ENDS}),
    ({"agent_type": "tests.toys:Other"}, set()),
    ({"parent": PARENT}, {*ENDS}),
    ({"parent": "q@tests.toys:Parent"}, set()),
    ({"words": "ARK"}, {"parked"}),
    ({"prefix": "a"}, {"aborted"}),
    ({"prefix": "A"}, set()),
    ({"prefix": "%"}, set()),
    ({"error": "tIMEOUT"}, {"error"}),
    ({"error": "no-progress"}, {"interrupted"}),
    ({"error": "silent"}, {"interrupted"}),
    ({"error": "importerror"}, {"parked"}),
    ({"error": "needed", "statuses": ["aborted"]}, {"aborted"}),
    ({"error": "needed", "statuses": ["error"]}, set()),
    ({"parked": True}, {"parked"}),
    ({"undoing": True}, set()),
    ({"run_ids": ["error", "nobody", "starting"]}, {"error", "starting"}),
    ({"since_ms": NOW_MS + 5_000}, {"interrupted", "parked"}),
    ({"until_ms": NOW_MS + 1_000}, {"starting"}),
    ({"since_ms": NOW_MS + 1_000, "until_ms": NOW_MS + 1_001}, {"running"}),
    ({"ended_since_ms": NOW_MS + 4_500}, {"aborted", "interrupted"}),
    ({"ended_until_ms": NOW_MS + 3_500}, {"completed"}),
    ({"ended_since_ms": NOW_MS + 3_500, "ended_until_ms": float("inf")}, {"error", "aborted", "interrupted"}),
    ({"retriable": True}, {"error", "interrupted", "parked"}),
]


@pytest.mark.parametrize("kept", [99, 0])
@pytest.mark.parametrize("durable", [False, True])
def test_each_filter_chooses_what_it_says_and_nothing_else_in_memory_as_in_the_snapshot(
    kept: int, durable: bool, tmp_path: Any
) -> None:
    ledger, store = Ledger(), DuckDBStore(tmp_path, fsync=False) if durable else MemoryStore()
    store.boot()
    for run_id, facts in ENDS.items():
        rows = [record_fact(ledger.view, asked(run_id), ledger.now_ms)]
        ledger.later(500)
        rows += [record_fact(ledger.view, fact, ledger.now_ms) for fact in facts]
        ledger.later(500)
        store.append(rows, [])
    store.checkpoint(meta_of(ledger.view), ledger.view.seq, dirty_records(ledger.view), [])
    ledger.view.dirty_runs = {}
    ledger.view.let_go_of_oldest(kept)
    assert len(ledger.view.runs) == (7 if kept else 3), "what is live stays"
    for given, ids in BOTH_SIDES:
        wanted = checked_wanted(Wanted(**given))
        for limit in (2, 50):
            found, statuses, which = list[str](), dict[str, int](), wanted
            while True:
                rows_ = store.wanted_runs(which, rows_for(which, limit))
                page = chosen_of(ledger.view.runs, rows_, which, limit)
                told = page_of(ledger.view.runs, rows_, which, limit)
                assert [(run.first_seq, run.run_id) for run in told.runs] == page.places
                assert (told.next, len(page.places) <= limit) == (page.next, True)
                found += [run_id for _, run_id in page.places]
                for status, count in page.statuses.items():
                    statuses[status] = statuses.get(status, 0) + count
                if page.next is None:
                    break
                which = which._replace(before=page.next)
            assert (set(found), len(found)) == (ids, len(ids)), given
            assert sum(statuses.values()) == len(ids)
    store.close()


def test_an_error_is_sought_for_in_many_rows_by_pages_that_may_be_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.ledger.chosen_runs.LOOKED_AT", 4)
    ledger, store = Ledger(), MemoryStore()
    rows = []
    for number in range(20):
        end = RunErrored(f"r{number}", 1, "rare" if number == 3 else "common", True)
        rows += [record_fact(ledger.view, fact, NOW_MS) for fact in (asked(f"r{number}"), end)]
    store.append(rows, [])
    store.checkpoint(meta_of(ledger.view), ledger.view.seq, dirty_records(ledger.view), [])
    ledger.view.dirty_runs = {}
    ledger.view.let_go_of_oldest(0)
    wanted, pages = Wanted(error="rare"), []
    while True:
        page = page_of(ledger.view.runs, store.wanted_runs(wanted, rows_for(wanted, 2)), wanted, 2)
        pages.append([run.run_id for run in page.runs])
        if page.next is None:
            break
        wanted = wanted._replace(before=page.next)
    assert [each for each in pages if each] == [["r3"]]
    assert len(pages) == 6


def test_runs_that_undo_their_steps_are_chosen_by_that_whatever_their_status() -> None:
    ledger = every()
    for life, run_id in enumerate(("undoing", "lost", "promised"), 7):
        ledger.given(asked(run_id), placed(run_id, incarnation=life), begun(run_id), UndoPromised(run_id, 1))
        if run_id != "promised":
            ledger.given(UndoBegan(run_id, 1, "aborted", "enough"))
    ledger.given(AttemptLost("lost", 1, "gone", 0))
    for given, ids in (
        ({}, ["lost", "undoing"]),
        ({"error": "enough", "statuses": ["running"], "prefix": "u"}, ["undoing"]),
        ({"statuses": ["interrupted"]}, []),
        ({"parked": True}, []),
    ):
        wanted = Wanted(**given, undoing=True)
        told = page_of(ledger.view.runs, [], wanted, 9).runs
        assert [run.run_id for run in told] == ids, given
        assert all(line(run)["undoing"] for run in told)


WRONG: list[tuple[Any, str, str]] = [
    ({"statuses": ["eror"]}, "status", "is none of starting, running"),
    ({"statuses": []}, "status", "an empty list chooses no run"),
    ({"statuses": "error"}, "status", "is no list of words"),
    ({"run_ids": []}, "run_ids", "an empty list"),
    ({"run_ids": [1]}, "run_ids", "is no list of words"),
    ({"run_ids": ["r"] * 1_001}, "run_ids", "at most 1,000"),
    ({"agent_type": 3}, "type", "is int, not text"),
    ({"words": None}, "words", "is NoneType, not text"),
    ({"prefix": b"x"}, "prefix", "is bytes, not text"),
    ({"parked": "yes"}, "parked", "neither True nor False"),
    ({"before": -1}, "before", ""),
    ({"since_ms": -5}, "requested_since", "not negative"),
    ({"ended_until_ms": float("nan")}, "ended_before", "is no instant"),
    ({"until_ms": "yesterday"}, "requested_before", "is no instant"),
    ({"since_ms": 20, "until_ms": 20}, "requested", "from 20 on and before 20"),
    ({"ended_since_ms": 30, "ended_until_ms": 20}, "ended", "no run has ended from 30 on"),
    ({"parked": True, "statuses": ["error"]}, "parked", "never error"),
    ({"parked": True, "ended_since_ms": 1}, "parked", "has not ended"),
    ({"undoing": 1}, "undoing", "neither True nor False"),
    ({"undoing": True, "statuses": ["completed", "aborted"]}, "undoing", "and never aborted or completed"),
    ({"undoing": True, "ended_until_ms": 1}, "undoing", "has not ended"),
    ({"statuses": ["running"], "ended_since_ms": 1}, "ended", "running has not ended"),
    ({"statuses": ["completed"], "error": "x"}, "error", "has no error"),
]


@pytest.mark.parametrize(("given", "field", "words"), WRONG)
def test_a_filter_that_is_none_or_contradicts_itself_is_refused_and_named(given: Any, field: str, words: str) -> None:
    with pytest.raises(BadRequest) as refused:
        checked_wanted(Wanted(**given))
    assert refused.value.field == field
    assert words in refused.value.problem


def test_fields_that_are_no_filter_are_refused() -> None:
    with pytest.raises(BadRequest, match="filter: 99 values"):
        checked_wanted([None] * 99)


@pytest.mark.parametrize("verb", Verb)
def test_a_status_that_a_verb_cannot_reach_is_refused_and_no_status_is_all_that_it_can(verb: Verb) -> None:
    for status in Status:
        is_live_retry = verb is Verb.RETRY and status in ("starting", "running")
        if status in REACH[verb] and not is_live_retry:
            assert checked_wanted(Wanted(statuses=[status]), verb).statuses == [status]
        else:
            with pytest.raises(BadRequest, match=r"^status: "):
                checked_wanted(Wanted(statuses=["interrupted", status]), verb)
    checked_wanted(Wanted(statuses=["starting"], parked=True), Verb.RETRY)
    again = checked_wanted(checked_wanted(Wanted(), verb), verb)
    assert again == checked_wanted(Wanted(), verb), "what is checked stays as it is"


def test_types_that_may_be_meant_have_the_same_class_or_are_spelled_alike() -> None:
    known = ["desk.agents:Reader", "old.agents:reader", "desk.agents:Writer", "far:Away", "desk.agents:Reader"]
    assert near_types("agents:Reader", known)[:2] == ["desk.agents:Reader", "old.agents:reader"]
    assert near_types("desk.agents:Wroter", known)[0] == "desk.agents:Writer"
    assert near_types("desk.agents:Reader", known)[0] == "old.agents:reader", "it is not its own neighbour"
    assert near_types("__main__:Readr", known)[:2] == ["desk.agents:Reader", "old.agents:reader"]
    assert near_types("zzz", known) == []


# ---------------------------------------------------------------- verbs


def test_each_verb_hits_what_it_can_and_says_of_the_rest_why_not() -> None:
    told = steered(every(), "cancel")
    assert (told.done, told.hit, told.already, told.gone) == (7, 4, 1, 0)
    assert told.refused == {"it has ended (completed)": 1, "it has ended (error)": 1}
    told = steered(every(), "retry")
    assert (told.hit, told.already, told.gone) == (3, 0, 0)
    assert told.refused == {
        "it is starting": 1,
        "it is running": 1,
        "it is completed": 1,
        "it was cancelled (aborted)": 1,
    }
    told = steered(every(), "clear")
    assert (told.hit, told.refused) == (7, {})


@pytest.mark.parametrize("verb", Verb)
def test_a_group_that_comes_twice_finds_everything_as_it_is_to_be(verb: Verb) -> None:
    ledger = every()
    runs: list[Any] = [[run.first_seq, run.run_id] for run in ledger.view.runs.values() if run.status in REACH[verb]]
    runs = [each for each in runs if verb is not Verb.RETRY or ledger.run(each[1]).can_be_retried]
    began_ms = ledger.now_ms
    first = steer_at(ledger, verb, runs, began_ms=began_ms)
    seq = ledger.view.seq
    second = steer_at(ledger.later(1_000), verb, runs, began_ms=began_ms)
    assert (first.hit, second.hit, second.already, second.refused) == (len(runs), 0, len(runs), {})
    assert ledger.view.seq == seq


def test_what_is_tried_again_and_fails_at_once_is_not_tried_twice_in_one_pass() -> None:
    ledger = every()
    assert steered(ledger, "retry", "error").hit == 1
    ledger.given(RunErrored("error", 1, "again", True))
    assert steered(ledger, "retry", "error").already == 1
    assert steered(ledger.later(10), "retry", "error").hit == 1, "the next pass begins later"


def test_a_run_that_the_filter_does_not_choose_any_more_is_left_alone() -> None:
    ledger = every()
    ledger.given(RunRetried("error", None))
    assert steered(ledger, "clear", "error", statuses=["error"]).gone == 1
    assert ledger.run("error").status == "starting"
    assert steered(ledger, "clear", "error", error="timeout").gone == 1


def test_a_run_whose_id_has_another_run_by_now_is_gone_and_the_other_one_is_left_alone() -> None:
    ledger = every()
    place = ledger.run("starting").first_seq
    assert steer_at(ledger, "clear", [[place + 1, "starting"], [1, "nobody"]])[:5] == (2, 0, 0, 0, 2)
    ledger.given(RunAborted("starting", "x"), RunCleared("starting"))
    assert steer_at(ledger, "cancel", [[place, "starting"]]).gone == 1
    assert steer_at(ledger, "clear", [[place, "starting"]]).already == 1


def test_what_goes_with_a_run_is_counted_apart() -> None:
    ledger = Ledger().given(asked("top", detached=True), asked("below", parent=child("top")))
    ledger.given(asked("apart", parent=child("top"), detached=True))
    assert steered(ledger, "cancel", "top")[:3] == (1, 1, 1)
    assert ledger.run("apart").is_live
    assert steered(ledger, "clear", "top")[:3] == (1, 1, 2)


def test_a_run_whose_agent_is_being_deleted_is_refused_with_that() -> None:
    ledger = Ledger().given(asked("r"), placed("r"), begun("r"), RunErrored("r", 1, "it broke", False))
    ledger.when(Forget(child("r")))
    assert steered(ledger, "retry", "r").refused == {"its agent is being deleted": 1}


def test_a_group_ends_early_when_much_goes_with_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chosen_runs, "FACTS_MAX", 4)
    ledger = Ledger()
    for number in range(6):
        ledger.given(asked(f"r{number}"))
    runs = [[run.first_seq, run.run_id] for run in ledger.view.runs.values()]
    told = steer_at(ledger, "clear", runs)
    assert (told.done, told.hit) == (2, 2), "each is cancelled and cleared, so four facts are two runs"
    told = steer_at(ledger, "clear", runs[told.done :])
    assert told.done == 2


@pytest.mark.parametrize(
    "wrong",
    [
        Steer("burn", [], [], "", 0),
        Steer("clear", [[1, "r"]], [None] * 99, "", 0),
        Steer("cancel", [], [None, 3], "", 0),
    ],
)
def test_a_group_that_is_none_is_refused_before_anything_is_done(wrong: Steer) -> None:
    with pytest.raises(BadRequest):
        steer(every().view, wrong, lambda _: [])


def test_each_step_of_a_group_folds_to_what_a_boot_finds() -> None:
    """The decisions are those of the verbs for one run, so a store that is read again has the same runs."""
    ledger, store, rows = every(), MemoryStore(), list[Row]()
    first = Ledger()
    for run_id, facts in ENDS.items():
        rows += [record_fact(first.view, fact, NOW_MS) for fact in (asked(run_id), *facts)]

    def decided(deed: Deed) -> list[str]:
        new = apply_fact(first.view, decide(first.view, deed, NOW_MS, ledger.limits), NOW_MS)
        rows.extend(new)
        return [row.kind for row in new]

    runs: list[Run] = list(first.view.runs.values())
    steer(first.view, Steer("cancel", [[run.first_seq, run.run_id] for run in runs], [], "enough", 0), decided)
    store.append(rows, [])
    assert {key: run.to_plain() for key, run in restore(store.boot()).runs.items()} == {
        key: run.to_plain() for key, run in first.view.runs.items()
    }
