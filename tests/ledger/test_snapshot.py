"""A boot ends with the view that the last life had, reads what is alive, and keeps every order that was promised."""

from __future__ import annotations

from perdure.ledger import (
    Fact,
    FactRow,
    Record,
    Status,
    Tick,
    View,
    apply_fact,
    assign_hosts,
    counts,
    decide,
    dirty_records,
    leave_out_passers,
    meta_of,
    record_fact,
    restore,
    run_from,
    run_record,
)
from perdure.ledger.facts import (
    AgentActivated,
    AgentLost,
    AgentReleased,
    MailDelivered,
    MailFailed,
    MailRequeued,
    MilestoneReached,
    RunCleared,
    RunErrored,
    RunInterrupted,
    RunSucceeded,
    SupervisorStarted,
)
from perdure.ledger.store.memory_store import MemoryStore
from perdure.ledger.store.store import Boot
from tests.kit import NOW_MS, PARENT, Ledger, asked, begun, child, due, placed

DETACHED = {"detached": True, "on_finish": "f"}


def life_of(*facts: Fact) -> tuple[Ledger, MemoryStore]:
    """A life that did this and took a checkpoint."""
    ledger, store = Ledger(), MemoryStore()
    store.append([record_fact(ledger.view, fact, NOW_MS) for fact in facts], [])
    checkpoint(ledger.view, store)
    return ledger, store


def checkpoint(view: View, store: MemoryStore, *forgotten: str) -> None:
    store.checkpoint(meta_of(view), view.seq, dirty_records(view), list(forgotten))
    view.dirty_runs, view.dirty_agents, view.dirty_mail = {}, {}, {}


def ended(run_id: str, number: int) -> list[Fact]:
    return [
        asked(run_id, **DETACHED),
        placed(run_id, incarnation=number),
        begun(run_id),
        RunSucceeded(run_id, 1, b"\x01", "", released=True),
    ]


def test_numbers_go_on_after_a_boot() -> None:
    ledger, store = life_of(SupervisorStarted(4, {}), asked(), placed(incarnation=17))
    booted = restore(store.boot())
    assert (booted.epoch, booted.seq, booted.incarnation, booted.at_ms) == (4, 3, 17, NOW_MS)
    assert record_fact(booted, SupervisorStarted(5, {}), NOW_MS).seq == ledger.view.seq + 1


def test_an_agent_without_a_row_that_came_and_went_is_left_out_and_one_with_a_row_is_not() -> None:
    ledger, _store = life_of(asked("old"), placed("old", incarnation=1), begun("old"))
    ledger.given(*ended("old", 1)[-1:], *ended("new", 2))
    dirty = list(ledger.view.dirty_agents)
    assert {child("old"), child("new")} <= set(dirty)
    assert not {child("old"), child("new")} & ledger.view.agents.keys()
    leave_out_passers(ledger.view, dirty)
    assert child("old") in ledger.view.dirty_agents
    assert child("new") not in ledger.view.dirty_agents
    assert [record.key for record in dirty_records(ledger.view) if record.table == "agents"] == [child("old")]


def test_the_time_of_the_ledger_never_runs_backwards() -> None:
    ledger, store = life_of(asked("a"))
    ledger.later(-5_000).given(asked("b"))
    assert (ledger.view.at_ms, restore(store.boot()).at_ms) == (NOW_MS, NOW_MS)


def test_the_limits_of_the_last_life_are_known_after_a_boot() -> None:
    first, second = {"hosts_max": 4.0}, {"hosts_max": 16.0}
    ledger, store = life_of(SupervisorStarted(1, first))
    assert restore(store.boot()).limits == first
    store.append([record_fact(ledger.view, SupervisorStarted(2, second), NOW_MS)], [])
    assert restore(store.boot()).limits == second


def test_a_boot_reads_what_is_alive_and_leaves_what_has_settled() -> None:
    delivered = MailDelivered(PARENT, ["done!finish"])
    _, store = life_of(*ended("done", 1), delivered, *ended("owed", 2), asked("live"), asked("soft"), placed("soft"))
    booted = restore(store.boot())
    assert set(booted.runs) == {"owed", "live", "soft"}
    (record,) = store.records("runs", ["done"])
    assert run_from(record).status == "completed"


def test_runs_are_counted_wherever_they_are() -> None:
    """In memory, in the snapshot alone, brought back from it, let go again: each counts once."""
    ledger, store = life_of(*ended("old", 1), MailDelivered(PARENT, ["old!finish"]), *ended("owed", 2), asked("live"))
    everything = counts(ledger.view)
    assert everything == {**dict.fromkeys(map(str, Status), 0), "completed": 2, "starting": 1}
    booted = restore(store.boot())
    assert "old" not in booted.runs
    assert counts(booted) == everything
    (record,) = store.records("runs", ["old"])
    for _ in range(2):
        booted.recall(run_from(record))
    assert counts(booted) == everything
    booted.dirty_runs.clear()
    assert booted.let_go_of_oldest(0)
    assert "old" not in booted.runs
    assert counts(booted) == everything
    booted.recall(run_from(record))
    record_fact(booted, RunCleared("old"), NOW_MS)
    assert counts(booted)["completed"] == 1, "what waits to be deleted does not count"


def test_a_run_with_parked_mail_is_kept_in_reach() -> None:
    _, store = life_of(*ended("r", 1), MailFailed("r!finish", "it raised", None))
    booted = restore(store.boot())
    assert booted.mail["r!finish"].state == "parked"
    record_fact(booted, MailRequeued("r!finish"), NOW_MS)
    assert list(booted.mailbox[PARENT]) == ["r!finish"]
    assert booted.runs["r"].slots == {"finish": "pending"}


def test_mail_that_waits_for_its_next_try_is_due_after_a_boot_too() -> None:
    _, store = life_of(*ended("r", 1), MailFailed("r!finish", "it raised", NOW_MS + 300))
    booted = restore(store.boot())
    assert [due(booted, NOW_MS + 299), due(booted, NOW_MS + 300)] == [[], [PARENT]]


def test_mail_keeps_its_order_over_a_boot() -> None:
    milestones = {"names": ["z"]}
    facts = [
        asked("r", **DETACHED, milestones=milestones),
        placed("r"),
        MilestoneReached("r", 1, 0, "z", 1, b"\x80"),
        RunSucceeded("r", 1, None, "", released=True),
        *ended("a", 2),
    ]
    ledger, store = life_of(*facts)
    expected = ["r!milestone:z", "r!finish", "a!finish"]
    assert list(ledger.view.mailbox[PARENT]) == expected
    assert list(restore(store.boot()).mailbox[PARENT]) == expected


def test_whoever_waits_for_a_place_keeps_his_turn_over_a_boot() -> None:
    ledger, store = life_of(asked("z"), asked("a"), asked("m"))
    booted = restore(store.boot())
    booted.hosts = {"h1": ledger.view.hosts["h1"]}
    ledger.view = booted
    apply_fact(booted, decide(booted, Tick(), NOW_MS, ledger.limits), NOW_MS)
    order = [row.subject for row in apply_fact(booted, assign_hosts(booted, NOW_MS, ledger.limits), NOW_MS)]
    assert order[0] == "z"
    assert list(booted.queues) == ["a", "m"][: len(booted.queues)]


def test_an_unclean_agent_is_woken_again_after_a_boot_and_a_clean_one_is_not() -> None:
    facts = [AgentActivated("x@T", 1, "h1"), AgentLost("x@T", 1, NOW_MS + 300), AgentActivated("y@T", 2, "h1")]
    _, store = life_of(*facts, AgentReleased("y@T", 2))
    booted = restore(store.boot())
    assert list(booted.agents) == ["x@T"]
    assert due(booted, NOW_MS + 299) == []
    assert due(booted, NOW_MS + 300) == ["x@T"]


def test_facts_after_the_snapshot_are_folded_onto_it() -> None:
    ledger, store = life_of(asked(**DETACHED), placed(), begun())
    store.append([record_fact(ledger.view, RunInterrupted("r", "no-progress", True, "silence"), NOW_MS + 9)], [])
    booted = restore(store.boot())
    assert booted.runs["r"] == ledger.run()
    assert booted.mail == ledger.view.mail
    assert booted.tally == ledger.view.tally


def test_what_was_cleared_does_not_come_back() -> None:
    ledger, store = life_of(asked(), RunErrored("r", 0, "", released=True), RunCleared("r"))
    assert restore(store.boot()).runs["r"].cleared, "until its storage is deleted the tombstone stays"
    checkpoint(ledger.view, store, "r")
    booted = restore(store.boot())
    assert booted.runs == {}
    assert store.records("runs", ["r"]) == []
    assert store.facts("r") == []


def test_an_empty_ledger_boots_into_an_empty_view() -> None:
    booted = restore(MemoryStore().boot())
    assert (booted.seq, booted.epoch, booted.runs) == (0, 0, {})


def test_the_row_of_a_mail_or_an_agent_that_is_over_is_removed() -> None:
    ledger = Ledger()
    ledger.given(asked(**DETACHED), placed())
    assert ("agents", child()) in {(record.table, record.key) for record in dirty_records(ledger.view)}
    ledger.given(RunSucceeded("r", 1, b"x", "", released=True))
    by_table = {(record.table, record.key): record for record in dirty_records(ledger.view)}
    assert by_table["agents", child()].body == b""
    assert by_table["mail", "r!finish"].live
    ledger.given(MailDelivered(PARENT, ["r!finish"]))
    by_table = {(record.table, record.key): record for record in dirty_records(ledger.view)}
    assert by_table["mail", "r!finish"].body == b""
    assert not by_table["runs", "r"].live


def test_what_came_and_went_between_two_snapshots_never_has_a_row() -> None:
    ledger = Ledger().given(*ended("r", 1), MailDelivered(PARENT, ["r!finish"]))
    assert {record.table for record in dirty_records(ledger.view)} == {"runs"}


def test_a_run_whose_end_is_owed_to_its_parent_does_not_leave_the_memory() -> None:
    ledger, _ = life_of(*ended("done", 1), MailDelivered(PARENT, ["done!finish"]), *ended("owed", 2))
    ledger.view.dirty_runs.clear()
    assert ledger.view.let_go_of_oldest(0) == 1
    assert set(ledger.view.runs) == {"owed"}


def test_a_row_shows_sql_readers_what_the_record_says() -> None:
    ledger = Ledger().given(*ended("r", 1))
    record = run_record(ledger.run())
    assert record == Record(
        "runs", "r", True, ("completed", "tests.toys:Child", PARENT, NOW_MS, NOW_MS, 1, 4), record.body
    )
    assert run_from(record) == ledger.run()


def test_a_boot_from_facts_alone_is_the_same_as_from_a_snapshot() -> None:
    ledger, rows = Ledger(), list[FactRow]()
    for fact in [*ended("r", 1), asked("s"), placed("s", incarnation=2)]:
        rows.append(record_fact(ledger.view, fact, NOW_MS))
    booted = restore(Boot(None, [], rows, []))
    assert booted.runs == ledger.view.runs
    assert booted.mail == ledger.view.mail
