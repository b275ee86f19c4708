"""Runs that wait for others, in the ledger: when they may begin, when they never can, and what is kept for them until then."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from perdure.ledger import (
    Cancel,
    Clear,
    ConflictingRequest,
    Ended,
    ExpireRuns,
    Fact,
    HostLost,
    Milestone,
    Request,
    Retry,
    RunBeingCleared,
    StartAttempt,
    Tick,
    UnknownRun,
    arm,
    assign_hosts,
    dirty_records,
    explain,
    outstanding,
    pack,
    restore,
    shown,
)
from perdure.ledger.facts import (
    AgentReleased,
    AttemptLost,
    AttemptStarted,
    JoinMet,
    RunAborted,
    RunCleared,
    RunErrored,
    RunInterrupted,
    RunReattached,
    RunRequested,
    RunRetried,
    RunSucceeded,
)
from perdure.ledger.inspection import line
from perdure.ledger.join_decisions import decide_joins
from perdure.ledger.store.store import Boot
from perdure.policies import Condition, EndOf, MilestoneOf, Of, plain_condition
from perdure.scenarios.testing.checks import out_of_step
from tests.kit import NOW_MS, PARENT, TYPE, Ledger, asked, begun, child, placed

A, B, C = EndOf("a"), EndOf("b"), EndOf("c")
STONE = MilestoneOf("a", "sources")


def join(condition: Condition, run_id: str = "w", **options: Any) -> RunRequested:
    """A detached run that waits for others was requested."""
    return asked(run_id, detached=True, after=plain_condition(condition), **options)


def request(condition: Condition, run_id: str = "w", parent: str = PARENT, **options: Any) -> Request:
    options |= {"detached": True, "after": plain_condition(condition)}
    return Request(run_id, TYPE, parent, "", "digest", b"\x01", options, 1, wait=False)


def at_work(*run_ids: str) -> list[Fact]:
    """These runs are at work, in the lives 1, 2, …"""
    return [
        fact
        for life, run_id in enumerate(run_ids, 1)
        for fact in (asked(run_id), placed(run_id, incarnation=life), begun(run_id))
    ]


def ended(run_id: str, life: int, error: str | None = None) -> Ended:
    return Ended(run_id, life, None if error else pack(run_id), run_id, error, released=True)


def reached(life: int = 1, name: str = "sources", data: object = 7) -> Milestone:
    return Milestone("a", life, name, 1, pack({"data": data}))


class Joins(Ledger):
    """A ledger whose view is compared with its records after each step."""

    def then(self, *stimuli: Any) -> list[Any]:
        """What these bring about in one turn of the supervisor, but for the places that are given."""
        made = [fact for each in stimuli for fact in self.when(each)]
        made += self.enact(decide_joins(self.view, self.limits))
        assert list(out_of_step(self.view)) == []
        return made


def waiting(condition: Condition, *sources: str, **options: Any) -> Joins:
    """These runs are at work, and `w` waits for what the condition says of them."""
    ledger = Joins()
    ledger.given(*at_work(*(sources or ("a", "b", "c"))), join(condition, **options))
    assert ledger.then() == []
    return ledger


# ---------------------------------------------------------------- it may begin


def test_a_run_that_waits_for_others_is_in_no_queue_until_they_are_there_and_begins_in_the_turn_in_which_they_are() -> (
    None
):
    ledger = waiting(Of(2, (A, B)))
    assert [*ledger.enact(assign_hosts(ledger.view, ledger.now_ms, ledger.limits)), *ledger.view.queues] == []
    assert ledger.then(ended("b", 2)) == [RunSucceeded("b", 1, pack("b"), "b", released=True)]
    made = ledger.then(ended("a", 1))
    assert made[-1] == JoinMet("w", [0, 1])
    assert list(ledger.view.queues) == ["w"]
    (begins,) = ledger.enact(assign_hosts(ledger.view, ledger.now_ms, ledger.limits))
    assert isinstance(begins, AttemptStarted)


@pytest.mark.parametrize(
    ("condition", "stimulus", "met"),
    [
        (A, ended("a", 1), [0]),
        (STONE, reached(), [0]),
        (Of(1, (STONE, B)), reached(), [0]),
        (Of(1, (STONE, B)), ended("b", 2), [1]),
        (Of(2, (Of(1, (A, B)), MilestoneOf("a", "x"))), None, None),
    ],
)
def test_an_end_and_a_milestone_let_it_begin(condition: Condition, stimulus: Any, met: list[int] | None) -> None:
    ledger = waiting(condition)
    made = ledger.then(*([stimulus] if stimulus else [reached(name="y"), ended("b", 2)]))
    assert [each.met for each in made if isinstance(each, JoinMet)] == ([] if met is None else [met])


def test_what_is_there_already_when_it_is_asked_for_counts() -> None:
    ledger = Joins()
    ledger.given(*at_work("a", "b"))
    ledger.then(ended("a", 1))
    assert ledger.then(request(Of(1, (B, A))))[1:] == [JoinMet("w", [1])]


def test_a_milestone_counts_whatever_becomes_of_its_run_after_it() -> None:
    ledger = Joins()
    ledger.given(*at_work("a"))
    ledger.then(reached(), ended("a", 1, "boom"))
    assert ledger.then(request(STONE))[1:] == [JoinMet("w", [0])]


def test_it_is_told_of_once_and_a_second_end_of_its_condition_changes_nothing() -> None:
    ledger = waiting(Of(1, (A, B)))
    assert JoinMet("w", [0]) in ledger.then(ended("a", 1))
    assert not any(isinstance(each, JoinMet) for each in ledger.then(ended("b", 2), ended("a", 1)))


def test_ends_of_one_turn_are_judged_together_and_one_that_waits_for_another_follows_it() -> None:
    ledger = waiting(Of(1, (A, B)))
    ledger.given(join(EndOf("w"), "x"), join(Of(2, (EndOf("x"), C)), "y"))
    made = ledger.then(ended("c", 3, "boom"), ended("b", 2), ended("a", 1))
    assert JoinMet("w", [0, 1]) in made
    assert [each.run_id for each in made if isinstance(each, RunErrored)] == ["c", "y"]
    (failed,) = ledger.then(Cancel("w", None, "enough"))[1:]
    assert (failed.run_id, "run w was cancelled (enough)" in failed.error) == ("x", True)


# ---------------------------------------------------------------- it never can


@pytest.mark.parametrize(
    ("condition", "stimulus", "why"),
    [
        (A, ended("a", 1, "boom"), "It waited for the end of a; but run a has failed (boom)"),
        (A, Cancel("a", None, "enough"), "run a was cancelled (enough)"),
        (STONE, ended("a", 1), "run a has completed without milestone 'sources'"),
        (A, Clear(["a"]), "run a was cleared"),
        (STONE, Clear(["a"]), "run a was cleared"),
        (Of(2, (A, B)), ended("b", 2, "boom"), "all of: the end of a, the end of b; but run b has failed (boom)"),
    ],
)
def test_one_whose_condition_can_never_come_true_fails_in_the_same_turn_and_says_why(
    condition: Condition, stimulus: Any, why: str
) -> None:
    ledger = waiting(condition, on_finish="on_done")
    failed = ledger.then(stimulus)[-1]
    assert isinstance(failed, RunErrored)
    assert failed.error.startswith("it can never begin. It waited for ")
    assert why in failed.error
    assert ledger.mail_state("finish", "w") == "pending"


def test_what_may_still_come_true_by_another_way_goes_on() -> None:
    ledger = waiting(Of(2, (A, B, C)))
    assert len(ledger.then(ended("a", 1, "boom"))) == 1
    assert ledger.then(ended("b", 2), ended("c", 3))[-1] == JoinMet("w", [1, 2])


def test_a_source_that_was_given_up_may_still_complete_while_its_child_is_at_work_and_not_after_that() -> None:
    for released in (False, True):
        ledger = waiting(A)
        ledger.given(RunInterrupted("a", "no-progress", True, "silent"))
        assert ledger.then() == []
        if released:
            ledger.given(AgentReleased(child("a"), 1))
            (failed,) = ledger.then()
            assert "run a was given up (no-progress)" in failed.error
        else:
            assert ledger.then(ended("a", 1))[-1] == JoinMet("w", [0])


def test_a_source_whose_attempt_is_lost_is_waited_for_until_its_last() -> None:
    ledger = waiting(A)
    made = ledger.then(HostLost("h1", "killed"))
    assert {type(each) for each in made} == {AttemptLost}
    assert ledger.run("w").waits_for_others


# ---------------------------------------------------------------- losers


@pytest.mark.parametrize(("losers", "cancelled"), [("cancel", ["b", "c"]), (None, [])])
def test_losers_are_cancelled_in_the_same_turn_if_that_was_asked_for(losers: str | None, cancelled: list[str]) -> None:
    ledger = waiting(Of(1, (STONE, B, C)), **({"losers": losers} if losers else {}))
    made = ledger.then(reached())
    assert [each.run_id for each in made if isinstance(each, RunAborted)] == cancelled
    assert ledger.run("a").is_live  # it has what was needed of it, and goes on


def test_when_it_can_never_begin_the_others_have_lost_too_but_not_one_of_which_something_was_needed() -> None:
    ledger = waiting(Of(3, (STONE, B, C)), losers="cancel")
    ledger.then(reached())
    made = ledger.then(ended("b", 2, "boom"))
    assert [(each.run_id, each.reason) for each in made if isinstance(each, RunAborted)] == [
        ("c", "run w, which waited for it, can never begin")
    ]
    assert ledger.run("a").is_live


# ---------------------------------------------------------------- the first of many


def first_of(count: int, *run_ids: str) -> RunRequested:
    return asked("w", after=plain_condition(Of(count, tuple(map(EndOf, run_ids)))), losers="cancel", first=count)


def test_the_first_of_many_are_told_by_the_order_of_their_ends_and_need_no_child() -> None:
    ledger = Joins()
    ledger.given(*at_work("a", "b", "c", "d"), first_of(2, "a", "b", "c", "d"))
    ledger.then(ended("b", 2, "boom"), ended("c", 3))
    made = ledger.then(ended("d", 4))
    assert made[1] == JoinMet("w", [2, 3])
    assert isinstance(made[2], RunSucceeded)
    assert shown(made[2].output or b"") == ["c", "d"]
    assert [each.run_id for each in made[3:]] == ["a"]


def test_of_more_that_have_completed_before_it_was_asked_for_the_first_are_the_same_ones() -> None:
    ledger = Joins()
    ledger.given(*at_work("a", "b", "c"))
    ledger.then(ended("c", 3), ended("a", 1), ended("b", 2))
    ledger.given(first_of(2, "a", "b", "c"))
    made = ledger.then()
    assert made[0] == JoinMet("w", [2, 0])
    assert shown(ledger.run("w").output or b"") == ["c", "a"]


def test_when_too_few_of_many_can_still_complete_it_fails_and_the_rest_are_cancelled() -> None:
    ledger = Joins()
    ledger.given(*at_work("a", "b", "c"), first_of(2, "a", "b", "c"))
    ledger.then(ended("a", 1, "boom"))
    made = ledger.then(ended("b", 2, "bang"))
    assert [type(each) for each in made] == [RunErrored, RunErrored, RunAborted]
    assert made[1].error.startswith("it can never complete. It waited for 2 of: ")


# ---------------------------------------------------------------- what it is given


def handed(ledger: Ledger) -> list[Any]:
    ledger.enact(assign_hosts(ledger.view, ledger.now_ms, ledger.limits))
    (start,) = [each for each in outstanding(ledger.view, ["w"], ledger.now_ms) if isinstance(each, StartAttempt)]
    return list(start.options["joined"])


def test_each_attempt_is_given_what_was_there_in_the_order_of_the_leaves() -> None:
    ledger = waiting(Of(2, (A, STONE, B, MilestoneOf("b", "x"))), limit=None)
    ledger.then(reached())
    ledger.then(ended("b", 2))
    for _ in range(2):
        first, stone, end, missing = handed(ledger)
        assert (first, stone, missing) == (None, pack({"data": 7}), None)
        assert (end["run_id"], end["agent_type"], end["output"], end["status"]) == ("b", TYPE, pack("b"), "completed")
        ledger.then(ended("a", 1))  # it came later, and is not given to the next attempt either
        ledger.given(AttemptLost("w", 1, "killed", 0)).view.enqueue(ledger.run("w"))


def test_a_large_output_is_handed_over_from_the_payload_table() -> None:
    ledger = waiting(A)
    ledger.limits = replace(ledger.limits, inline_bytes_max=1)
    ledger.then(ended("a", 1))
    (given,) = handed(ledger)
    assert (given["output"], given["large"]) == (None, True)


# ---------------------------------------------------------------- what is kept for it


def test_its_sources_stay_in_memory_and_are_not_cleared_by_themselves_until_it_has_ended() -> None:
    ledger = Joins()
    ledger.given(asked("a", parent=""), placed("a"), begun("a"))
    ledger.given(asked("w", parent="", detached=True, after=plain_condition(A)))
    ledger.then(ended("a", 1))
    ledger.given(placed("w", incarnation=2), begun("w"))
    ledger.view.dirty_runs.clear()
    assert ledger.view.let_go_of_oldest(0) == 0
    assert ledger.then(ExpireRuns(["a"])) == []
    ledger.then(ended("w", 2))
    ledger.view.dirty_runs.clear()
    assert ledger.then(ExpireRuns(["a"])) == [RunCleared("a")]


def test_of_a_condition_that_has_come_true_only_what_was_met_is_kept() -> None:
    ledger = waiting(Of(1, (A, B)))
    ledger.then(ended("a", 1))
    assert set(ledger.view.sources) == {"a"}


def test_one_that_is_at_work_goes_on_when_a_source_is_cleared_and_fails_when_it_would_have_to_begin_again() -> None:
    ledger = waiting(A)
    ledger.then(ended("a", 1))
    ledger.given(placed("w", incarnation=4), begun("w"))
    assert ledger.then(Clear(["a"])) == [RunCleared("a")]
    ledger.given(AttemptLost("w", 1, "killed", 0))
    (failed,) = ledger.then()
    assert "run a, whose result it is given, was cleared, so it cannot begin once more" in failed.error


@pytest.mark.parametrize("when", ["waits", "met"])
def test_a_boot_finds_what_it_waits_for_again_and_decides_what_was_not(when: str) -> None:
    ledger = waiting(Of(1, (A, B)))
    if when == "met":
        ledger.then(ended("a", 1))
    again = Joins()
    again.view = restore(Boot(None, dirty_records(ledger.view), [], [], {}))
    assert again.view.sources == ledger.view.sources
    assert list(again.view.queues) == list(ledger.view.queues)
    assert again.then() == []
    if when == "waits":
        again.given(RunSucceeded("b", 1, b"", "", released=True))
        assert again.then() == [JoinMet("w", [1])]


def test_a_boot_decides_what_the_last_life_had_no_time_for() -> None:
    ledger = waiting(A)
    ledger.when(ended("a", 1))  # its turn ends here, as while no places are given
    again = Joins()
    again.view = restore(Boot(None, dirty_records(ledger.view), [], [], {}))
    assert again.then() == [JoinMet("w", [0])]


# ---------------------------------------------------------------- beside the condition


def test_it_can_be_cancelled_while_it_waits_and_then_needs_nothing() -> None:
    ledger = waiting(A)
    assert ledger.then(Cancel("w", None, "enough")) == [RunAborted("w", "enough")]
    assert ledger.view.sources == {}
    assert len(ledger.then(ended("a", 1))) == 1


def test_its_budget_runs_while_it_waits() -> None:
    ledger = waiting(A, max_budget_ms=500.0, on_finish="on_done")
    arm(ledger.view, ["w"], ledger.limits)
    ledger.then(Tick())
    made = ledger.later(500).then(Tick())
    assert [each.reason for each in made if isinstance(each, RunInterrupted)] == ["budget-exceeded"]
    assert ledger.view.sources == {}


def test_a_parent_that_came_back_does_not_take_its_waiting_for_silence_and_silence_counts_from_then_on() -> None:
    ledger = Joins()
    ledger.view.hosts.clear()
    ledger.given(*at_work("a"), asked(after=plain_condition(A)), RunReattached("r", 2, 0))
    assert not any(isinstance(each, RunInterrupted) for each in ledger.later(10 * 60_000).then(Tick()))
    ledger.view.timers.arm("r", 0)
    ledger.then(ended("a", 1))
    ledger.view.timers.arm("r", 0)
    assert not any(isinstance(each, RunInterrupted) for each in ledger.later(119_000).then(Tick()))
    ledger.view.timers.arm("r", 0)
    made = ledger.later(1_000).then(Tick())
    assert [each.reason for each in made if isinstance(each, RunInterrupted)] == ["no-progress"]


def test_one_that_was_given_up_while_it_waited_and_is_asked_for_again_waits_again() -> None:
    ledger = Joins()
    asked_for = request(A)._replace(options={"after": plain_condition(A)}, wait=True)
    ledger.given(*at_work("a"), asked("w", after=plain_condition(A)))
    ledger.given(RunInterrupted("w", "window-exceeded", False, "it took too long"))
    assert ledger.view.sources == {}
    ledger.then(ended("a", 1))
    assert ledger.then(asked_for._replace(life=2)) == [RunReattached("w", 2, 0), JoinMet("w", [0])]
    assert list(ledger.view.queues) == ["w"]


def test_a_failed_source_that_is_tried_again_is_waited_for_by_what_is_tried_again_too() -> None:
    ledger = waiting(A)
    ledger.then(ended("a", 1, "boom"))
    assert ledger.then(Retry("a")) == [RunRetried("a")]
    assert str(ledger.run("w").status) == "error"  # this end is for ever, unless a person asks for another
    assert ledger.then(Retry("w")) == [RunRetried("w")]
    assert ledger.run("w").waits_for_others
    ledger.given(placed("a", 2, 9), begun("a", 2))
    assert ledger.then(ended("a", 9))[-1] == JoinMet("w", [0])


def test_one_that_failed_after_it_had_begun_does_not_wait_again() -> None:
    ledger = waiting(A)
    ledger.then(ended("a", 1))
    ledger.given(placed("w", incarnation=4), begun("w"))
    ledger.then(ended("w", 4, "boom"))
    assert ledger.then(Retry("w")) == [RunRetried("w")]
    assert list(ledger.view.queues) == ["w"]


def test_a_source_that_is_tried_again_while_another_way_is_open_counts_again() -> None:
    ledger = waiting(Of(1, (A, B)))
    ledger.then(ended("a", 1, "boom"))
    ledger.then(Retry("a"))
    ledger.given(placed("a", 2, 9), begun("a", 2))
    assert ledger.then(ended("a", 9))[-1] == JoinMet("w", [0])


def test_it_takes_its_place_among_its_parents_runs_only_when_it_may_begin() -> None:
    ledger = Joins()
    ledger.given(*at_work("a"), join(A, limit=1))
    ledger.then()
    assert ledger.view.held == {}
    ledger.then(ended("a", 1))
    (begins,) = ledger.enact(assign_hosts(ledger.view, ledger.now_ms, ledger.limits))
    assert begins[0] == "w"


# ---------------------------------------------------------------- what is refused


def test_a_source_that_is_not_known_or_is_of_another_agent_is_refused_by_name() -> None:
    ledger = Joins()
    ledger.given(*at_work("a"))
    for condition, parent in ((EndOf("nobody"), PARENT), (A, "other@m:P"), (A, ""), (EndOf("w"), PARENT)):
        with pytest.raises(UnknownRun, match="ask for it before what waits for it") as refused:
            ledger.when(request(condition, parent=parent))
        assert refused.value.field == "after"
    assert "w" not in ledger.view.runs


def test_a_source_that_is_being_cleared_is_asked_for_again_as_its_own_id_is() -> None:
    ledger = Joins()
    ledger.given(*at_work("a"))
    ledger.when(Clear(["a"]))
    with pytest.raises(RunBeingCleared):
        ledger.when(request(A))


def test_the_same_request_again_is_answered_and_one_that_waits_for_something_else_is_refused() -> None:
    ledger = Joins()
    ledger.given(*at_work("a", "b"))
    ledger.when(request(Of(2, (A, B))))
    assert ledger.when(request(Of(2, (A, B)))) == []
    with pytest.raises(ConflictingRequest, match="waits for something else") as refused:
        ledger.when(request(Of(1, (A, B))))
    assert refused.value.field == "after"
    with pytest.raises(ConflictingRequest) as refused:
        ledger.when(request(Of(2, (A, B)), losers="cancel"))
    assert refused.value.field == "losers"
    ledger.when(Clear(["a"]))
    ledger.view.forget_run("a")
    assert ledger.when(request(Of(2, (A, B)))) == []  # it exists, whatever became of what it waited for


# ---------------------------------------------------------------- what is shown


def test_explain_and_a_list_say_for_what_it_waits_and_what_is_there_already() -> None:
    ledger = waiting(Of(2, (STONE, B)), losers="cancel")
    ledger.then(reached())
    run = ledger.run("w")
    said = explain(ledger.view, run, NOW_MS, ledger.limits)
    assert "It waits for all of: milestone 'sources' of a, the end of b. It is on no host meanwhile." in said
    assert "There already: milestone 'sources' of a." in said
    assert "When that is decided, those of these runs that are not needed are cancelled." in said
    assert line(run)["waits_for"] == "all of: milestone 'sources' of a, the end of b"
    ledger.then(ended("b", 2))
    assert line(run)["waits_for"] is None
    assert not any("It waits for all of" in words for words in explain(ledger.view, run, NOW_MS, ledger.limits))


def test_without_a_budget_nothing_is_due_for_it_while_it_waits() -> None:
    ledger = waiting(A, max_budget_ms=math.inf)
    ledger.then(Tick())
    assert "w" not in ledger.view.timers.armed
