"""Runs that a person has tried again, and runs that wait for other code."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.ledger import (
    AgentBeingDeleted,
    Cancel,
    Clear,
    Ended,
    Handled,
    HostLost,
    Progress,
    Released,
    Request,
    Retry,
    RetryRefused,
    RunErrored,
    RunInterrupted,
    StopAgent,
    Tick,
    UnknownRun,
    Unstarted,
    arm,
    assign_hosts,
    audit,
    explain,
    outstanding,
)
from perdure.ledger.facts import (
    AgentActivated,
    AgentDoomed,
    AgentForgotten,
    AgentReleased,
    AttemptLost,
    AttemptStarted,
    MailFailed,
    MailSuppressed,
    RunAborted,
    RunCleared,
    RunParked,
    RunRetried,
    RunSucceeded,
    TeardownBegan,
)
from perdure.policies import Limits
from tests.kit import PARENT, TYPE, Ledger, asked, begun, child, placed

DETACHED: dict[str, Any] = {"detached": True, "on_finish": "on_done"}
BROKE = RunErrored("r", 1, "it broke", released=True)
UNFIT = Unstarted("r", 1, "unfit", "input: months: Field required")


def running(limits: Limits | None = None, **options: Any) -> Ledger:
    return Ledger(limits).given(asked(**options), placed(), begun())


def failed(**options: Any) -> Ledger:
    return running(**options).given(BROKE)


def attempts_of(ledger: Ledger) -> list[AttemptStarted]:
    """The attempts that get a place now."""
    made = ledger.enact(assign_hosts(ledger.view, ledger.now_ms, ledger.limits))
    return [fact for fact in made if isinstance(fact, AttemptStarted)]


def told(ledger: Ledger, key: str) -> None:
    """The parent has handled the mail."""
    ledger.given(AgentActivated(PARENT, 9, "h2"))
    ledger.when(Handled(PARENT, 9, [key], []))


# ---------------------------------------------------------------- which runs


@pytest.mark.parametrize(
    "end",
    [BROKE, RunInterrupted("r", "budget-exceeded", False, "too long")],
    ids=["failed", "given up"],
)
def test_a_run_that_failed_or_was_given_up_begins_again_under_its_id_with_all_its_attempts(end: Any) -> None:
    ledger = running(Limits(attempts_max=2), **DETACHED).given(AttemptLost("r", 1, "its host died", 0))
    ledger.given(placed(attempt=2, incarnation=2), AttemptLost("r", 2, "its host died", 0), end)
    assert ledger.when(Retry("r")) == [RunRetried("r")]
    (begun_again,) = attempts_of(ledger)
    assert (begun_again.attempt, begun_again.collect) == (3, False)
    assert ledger.run().attempts(2).spent == 1, "the attempts before do not count"
    ledger.when(HostLost(begun_again.host_id, "it died"))
    assert ledger.run().is_live, "and it may lose one, as at first"


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ([], "is running"),
        ([RunSucceeded("r", 1, b"\x01", "", released=True)], "is completed"),
        ([RunAborted("r", "enough")], "was cancelled"),
    ],
    ids=["live", "completed", "cancelled"],
)
def test_other_runs_are_refused_with_their_status(facts: list[Any], why: str) -> None:
    ledger = running().given(*facts)
    with pytest.raises(RetryRefused, match=why) as refused:
        ledger.when(Retry("r"))
    assert refused.value.field == "run_id"


def test_an_unknown_and_a_cleared_run_are_refused() -> None:
    ledger = failed()
    ledger.when(Clear(["r"]))
    for run_id in ("r", "nobody"):
        with pytest.raises(UnknownRun, match="no run and no parked mail"):
            ledger.when(Retry(run_id))


def test_a_run_whose_child_is_being_deleted_is_refused_until_that_is_over() -> None:
    ledger = failed().given(AgentDoomed(child()))
    with pytest.raises(AgentBeingDeleted) as refused:
        ledger.when(Retry("r"))
    assert refused.value.agent_id == child()
    assert ledger.given(AgentForgotten(child())).when(Retry("r")) == [RunRetried("r")]


def test_a_second_retry_of_a_run_that_is_at_work_again_is_refused() -> None:
    ledger = failed()
    ledger.when(Retry("r"))
    with pytest.raises(RetryRefused, match="is starting"):
        ledger.when(Retry("r"))


# ---------------------------------------------------------------- what its parent is told


def test_a_parent_that_has_not_taken_the_failure_is_told_the_new_end_alone() -> None:
    ledger = failed(**DETACHED)
    first = ledger.run().mail_id("finish")
    ledger.when(Retry("r"))
    assert ledger.view.mail[first].state == "superseded"
    assert PARENT not in ledger.view.mailbox
    ledger.given(placed(attempt=2, incarnation=2))
    ledger.when(Ended("r", 2, b"\x2a", "", None, released=True))
    second = ledger.run().mail_id("finish")
    assert list(ledger.view.mailbox[PARENT]) == [second] != [first]
    told(ledger, second)
    assert ledger.view.mail == {}, "what was superseded is spoken of no more"
    assert audit(ledger.view) == {
        "enqueued": 2, "delivered": 1, "superseded": 1, "suppressed": 0, "parked": 0, "pending": 0, "balanced": True,
    }  # fmt: skip


def test_a_parent_that_has_taken_the_failure_is_told_the_new_end_as_another_completion() -> None:
    ledger = failed(**DETACHED)
    first = ledger.run().mail_id("finish")
    told(ledger, first)
    ledger.when(Retry("r"))
    ledger.given(placed(attempt=2, incarnation=2))
    ledger.when(Ended("r", 2, b"\x2a", "", None, released=True))
    second = ledger.run().mail_id("finish")
    assert second != first
    assert ledger.mail_state("finish") == "pending"
    assert ledger.run().retries == 1
    assert ledger.when(Handled(PARENT, 9, [first], [])) == [], "an echo of the first is not taken for the second"
    assert ledger.mail_state("finish") == "pending"


def test_an_acknowledgement_of_the_failure_that_comes_after_the_retry_counts_and_hides_no_later_end() -> None:
    ledger = failed(**DETACHED)
    first = ledger.run().mail_id("finish")
    ledger.when(Retry("r"))
    told(ledger, first)
    assert audit(ledger.view)["delivered"] == 1, "its handler did run"
    assert "finish" not in ledger.run().slots
    ledger.given(placed(attempt=2, incarnation=2))
    ledger.when(Ended("r", 2, b"\x2a", "", None, released=True))
    assert ledger.mail_state("finish") == "pending"


def test_a_parked_failure_is_not_delivered_any_more_when_its_run_is_tried_again() -> None:
    ledger = failed(**DETACHED)
    first = ledger.run().mail_id("finish")
    ledger.given(MailFailed(first, "it raised", None))
    ledger.when(Retry("r"))
    assert ledger.view.mail[first].state == "superseded"
    assert audit(ledger.view)["parked"] == 0


def test_clearing_a_run_takes_the_mail_of_its_former_ends_along() -> None:
    ledger = failed(**DETACHED)
    first = ledger.run().mail_id("finish")
    ledger.when(Retry("r"))
    assert ledger.when(Clear(["r"])) == [
        RunAborted("r", "cleared"), MailSuppressed(ledger.run().mail_id("finish")), RunCleared("r"),
    ]  # fmt: skip
    assert set(ledger.view.mail) == {first} <= set(ledger.run().mail_ids), "it goes when the run is forgotten"


# ---------------------------------------------------------------- what the former attempt still says


def given_up_at_work() -> Ledger:
    """A run that was given up, whose child still works, and that is tried again."""
    ledger = running(**DETACHED).given(RunInterrupted("r", "no-progress", True, "silence"))
    ledger.when(Retry("r"))
    return ledger


def test_a_child_that_still_works_for_the_former_attempt_is_stopped_before_the_next_one_begins() -> None:
    ledger = given_up_at_work()
    assert attempts_of(ledger) == []
    assert list(outstanding(ledger.view, ["r"], ledger.now_ms)) == [StopAgent("h1", child(), 1)]
    assert ledger.when(Released(child(), 1)) == [AgentReleased(child(), 1)], "no attempt is lost by that"
    assert len(attempts_of(ledger)) == 1


def test_its_late_failure_and_progress_count_for_nothing_and_its_late_result_is_true() -> None:
    ledger = given_up_at_work()
    assert ledger.when(Progress("r", 1, b"\x80")) == []
    assert ledger.when(Ended("r", 1, None, "", "stopped", released=False)) == []
    (done,) = ledger.when(Ended("r", 1, b"\x2a", "", None, released=True))
    assert isinstance(done, RunSucceeded)


def test_the_budgets_begin_anew() -> None:
    ledger = running(detached=True, max_budget_ms=1_000).later(1_000)
    arm(ledger.view, [ledger.run().run_id], ledger.limits)
    assert ledger.when(Tick()) == [TeardownBegan("r", "budget-exceeded")]
    ledger.given(RunInterrupted("r", "budget-exceeded", False, "too long"))
    ledger.when(Retry("r"))
    arm(ledger.view, [ledger.run().run_id], ledger.limits)
    assert ledger.later(999).when(Tick()) == []
    assert any(isinstance(fact, TeardownBegan) for fact in ledger.later(1).when(Tick()))


# ---------------------------------------------------------------- with what it waited for


def test_what_was_aborted_because_a_run_had_failed_begins_again_when_that_run_is_tried_again_and_asks_for_it() -> None:
    ledger = running()
    ledger.given(asked("half", parent=child()), asked("own end", parent=child()))
    ledger.when(Cancel("own end", None, "enough"))
    ledger.when(Ended("r", 1, None, "", "it broke", released=True))
    again = Request("half", TYPE, child(), "r", "digest", b"\x01", {}, 2, wait=True)
    assert ledger.when(again) == [], "of a run that has failed nothing comes back by itself"
    ledger.when(Retry("r"))
    assert ledger.when(again) == [RunRetried("half", "")]
    assert ledger.when(again._replace(run_id="own end")) == [], "what a person cancelled stays cancelled"


# ---------------------------------------------------------------- parked


def test_a_run_whose_input_no_longer_fits_is_parked_and_told_to_nobody() -> None:
    ledger = Ledger().given(asked(**DETACHED), placed())
    assert ledger.when(UNFIT) == [RunParked("r", 1, "input: months: Field required")]
    run = ledger.run()
    assert run.is_live
    assert ledger.view.mail == {}
    assert attempts_of(ledger) == []
    assert list(outstanding(ledger.view, ["r", child()], ledger.now_ms)) == []
    arm(ledger.view, [run.run_id], ledger.limits)
    assert ledger.later(10**9).when(Tick()) == [], "no time limit applies to it"
    said = " ".join(explain(ledger.view, run, ledger.now_ms, ledger.limits))
    assert "It is parked: input: months: Field required" in said
    assert "perdure retry r" in said


def test_a_parked_run_goes_on_when_a_person_has_it_tried_again_and_may_be_cancelled() -> None:
    ledger = Ledger().given(asked(attempts_max=1), placed())
    ledger.when(UNFIT)
    ledger.when(Retry("r"))
    assert ledger.run().retries == 0, "it had no end before"
    (started,) = attempts_of(ledger)
    assert started == AttemptStarted("r", 2, 2, "h1", collect=False), "an attempt that was never entered is none"
    ledger.when(Unstarted("r", 2, "unfit", "input: months: Field required"))
    ledger.when(Cancel("r", None, "enough"))
    assert (ledger.run().parked, str(ledger.run().status)) == ("", "aborted")


def test_a_mail_is_still_retried_by_its_own_id() -> None:
    ledger = failed(**DETACHED)
    with pytest.raises(RetryRefused, match="only parked mail"):
        ledger.when(Retry(ledger.run().mail_id("finish")))
