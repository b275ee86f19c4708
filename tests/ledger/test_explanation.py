"""What a stranger reads who asks why a run is where it is: true in every state, with the limit, and with what comes next and when."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest

from perdure.ledger import Fact, explain, pack
from perdure.ledger.facts import (
    AgentActivated,
    AgentLost,
    AgentReleased,
    AttemptLost,
    MailDelivered,
    MailFailed,
    ProgressReported,
    RunAborted,
    RunErrored,
    RunInterrupted,
    RunReattached,
    RunSucceeded,
    TeardownBegan,
)
from perdure.ledger.status import InterruptedReason
from perdure.ledger.wording import lasting
from tests.kit import NOW_MS, PARENT, Ledger, asked, begun, child, placed

DETACHED: dict[str, Any] = {"detached": True, "on_finish": "on_notes"}
SAID = ProgressReported("r", 1, pack({"fraction": 0.5, "phase": "reading", "message": "page 2"}))
LOST = AttemptLost("r", 1, "its host died (killed)", NOW_MS + 400)
AGAIN = placed(attempt=2, incarnation=2)


def interrupted(reason: str, *, still: bool | None, error: str = "") -> RunInterrupted:
    return RunInterrupted("r", reason, still, error)


def said(facts: Iterable[Fact], *, after_ms: int = 0, served: bool = True) -> str:
    ledger = Ledger().given(*facts).later(after_ms)
    ledger.view.awake_at_ms = NOW_MS
    return "\n".join(explain(ledger.view, ledger.run(), ledger.now_ms, ledger.limits, served=served))


LIVE: dict[str, tuple[list[Fact], list[str]]] = {
    "waits for a place": (
        [asked()],
        [
            f"Its parent {PARENT} requested it 0 ms ago, and waits for its result.",
            "It waits for a place: 0 runs before it, 2 hosts up (hosts_max is 4).",
            "waits for it without a time limit",
        ],
    ),
    "of a client": (
        [asked(parent="")],
        ["A client requested it 0 ms ago, to be awaited.", "No time limit applies to it"],
    ),
    "comes up": (
        [asked(), placed()],
        [
            "was given a place on host h1",
            "interrupted (inspect-timeout) in 30 s, at 1970-01-01 00:17:10 UTC (start_timeout_ms is 30 s)",
        ],
    ),
    "runs": (
        [asked(), placed(), begun(), SAID],
        ["is running", "at work on host h1", "last reported 0 ms ago; its progress: 50%, reading, page 2"],
    ),
    "runs detached": (
        [asked(**DETACHED), placed(), begun(), SAID],
        [
            "as a detached run",
            "It is given up in 1 d, at 1970-01-02 00:16:40 UTC (detached_max_budget_ms is 1 d).",
            "If it stays silent, it is given up in 1 h, at 1970-01-01 01:16:40 UTC (detached_no_progress_budget_ms is 1 h).",
        ],
    ),
    "has a budget of its own": (
        [asked(**DETACHED, max_budget_ms=90_000), placed(), begun()],
        ["It is given up in 90 s", "(max_budget_ms is 90 s)"],
    ),
    "is never given up": (
        [asked(**DETACHED, max_budget_ms=float("inf")), placed(), begun()],
        ["at work on host h1."],
    ),
    "was lost": (
        [asked(), placed(), LOST],
        [
            "Attempt 2 is next.",
            "The attempt before was lost: its host died (killed).",
            "Attempt 2 begins in 400 ms",
            "Used up: 1 of 5 attempts without progress in between (attempts_max), and 1 of 100 in all (recovery_work_max).",
        ],
    ),
    "is in its second attempt": (
        [asked(), placed(), LOST, AGAIN, begun(attempt=2)],
        ["It is in attempt 2.", "The attempt before was lost: its host died (killed)."],
    ),
    "gets a host to itself": (
        [asked(), placed(), LOST, AGAIN, AttemptLost("r", 2, "its host died (killed)", 0)],
        ["It gets a host to itself, because its host died under it 2 times in a row."],
    ),
    "may only hand in": (
        [asked(attempts_max=1), placed(), LOST],
        ["1 of 1 attempts", "only hands in a result that its child committed before"],
    ),
    "re-attached": (
        [asked(), placed(), begun(), RunReattached("r", 7, 1)],
        [
            "Its parent re-attached to it 0 ms ago in life 7 of that agent",
            "If it stays silent, it is interrupted in 2 min, at 1970-01-01 00:18:40 UTC (reattach_no_progress_ms is 2 min).",
        ],
    ),
    "re-attached with a window": (
        [asked(reattach_window_ms=60_000), placed(), begun(), RunReattached("r", 7, 1)],
        ["It is interrupted in any case in 60 s", "(reattach_window_ms is 60 s)"],
    ),
    "is being stopped": (
        [asked(**DETACHED), placed(), begun(), TeardownBegan("r", "budget-exceeded")],
        [
            "was told 0 ms ago to stop: it did not end in time after it was requested (detached_max_budget_ms is 1 d)",
            "Otherwise the run is interrupted in 5 s",
        ],
    ),
}


@pytest.mark.parametrize(("facts", "words"), LIVE.values(), ids=list(LIVE))
def test_of_a_live_run_it_says_where_it_is_and_which_limit_ends_what_when(facts: list[Fact], words: list[str]) -> None:
    told = said(facts)
    for word in words:
        assert word in told


def test_a_run_that_its_parents_limit_holds_back_is_told_so_hot_or_cold() -> None:
    ledger = Ledger().given(asked("a", limit=1), placed("a"), asked("r", limit=1))
    for served in (True, False):
        told = " ".join(explain(ledger.view, ledger.run(), NOW_MS, ledger.limits, served=served))
        assert "1 are at work, and max_concurrent_agent_tools of the parent's class allows 1 at a time" in told


def test_a_time_limit_for_its_place_is_told_only_where_no_host_is_up() -> None:
    ledger = Ledger().given(asked(), placed(), begun(), RunReattached("r", 2, 1), LOST)
    limits = ("If no place is found for it in 5 min", "If it stays silent, it is interrupted")
    for are_told in (False, True):
        told = " ".join(explain(ledger.view, ledger.run(), NOW_MS, ledger.limits))
        assert [words in told for words in limits] == [are_told, are_told]
        ledger.view.hosts.clear()


def test_a_run_that_waits_for_its_own_runs_names_the_first_of_them() -> None:
    ledger = Ledger().given(asked("r"), placed("r"), begun("r"), *(asked(name, parent=child("r")) for name in "abcd"))
    told = " ".join(explain(ledger.view, ledger.run(), NOW_MS, ledger.limits))
    assert "waiting for 4 runs of its own (a, b, c, …)" in told


REATTACHED = [asked(), placed(), begun(), RunReattached("r", 2, 1)]


def test_an_interrupted_awaited_run_can_be_waited_for_again() -> None:
    told = said([*REATTACHED, interrupted("no-progress", still=True)])
    assert "stopped waiting for it 0 ms ago (no-progress)" in told
    assert "(reattach_no_progress_ms is 2 min)" in told
    assert "Its child is still on host h1." in told
    assert "that end replaces the interruption" in told
    assert "If its parent asks again for this run id with the same input, the wait goes on." in told
    assert "`perdure clear r` deletes it" in told


def test_an_interrupted_awaited_run_whose_child_is_gone_gets_another_attempt_when_it_is_asked_for_again() -> None:
    told = said([asked(), placed(), begun(), LOST, interrupted("recovery-deadline", still=None)])
    assert "no host was found for it after a loss (recovery_deadline_ms is 5 min)" in told
    assert "What became of its child is unknown" in told
    assert "Nothing more happens by itself." in told
    assert "the run gets another attempt" in told


@pytest.mark.parametrize("reason", ["no-progress", "budget-exceeded", "inspect-timeout", "inspect-failed"])
@pytest.mark.parametrize("still", [True, False, None])
def test_nobody_is_told_to_ask_again_for_an_interrupted_detached_run(reason: str, still: bool | None) -> None:
    told = said([asked(**DETACHED), placed(), begun(), interrupted(reason, still=still)])
    assert "Requesting a detached run again under its id changes nothing." in told
    assert "asks again" not in told


def test_a_detached_child_that_was_stopped_owes_nothing_more() -> None:
    stop = [TeardownBegan("r", "no-progress"), interrupted("no-progress", still=False), AgentReleased(child(), 1)]
    told = said([asked(**DETACHED), placed(), begun(), *stop])
    assert "Its child has been stopped.\nNothing more happens by itself." in told
    assert f"The mail that tells {PARENT} of its interruption is on its way." in told


def test_a_class_that_vanished_is_named() -> None:
    gone = interrupted("inspect-failed", still=None, error="No module named 'library'")
    assert "No module named 'library'" in said([asked(**DETACHED), placed(), LOST, gone])


def test_an_end_is_told_with_its_time_and_never_changes() -> None:
    done = [asked(), placed(), LOST, AGAIN, RunSucceeded("r", 2, None, "", released=True)]
    assert "It completed 5 s ago, 0 ms after it was asked for, in attempt 2." in said(done, after_ms=5_000)
    assert "has failed (error)" in said([asked(), placed(), RunErrored("r", 1, "it broke", released=True)])
    cancelled = said([asked(), placed(), RunAborted("r", "enough")])
    assert "It was cancelled 0 ms ago, 0 ms after it was asked for: enough" in cancelled
    assert "Its child on host h1 is being stopped." in cancelled
    assert "This end never changes." in cancelled
    refusing = (
        "Its child on host h1 goes on, although it was told 5 s ago to stop: its code does not let itself be cancelled."
    )
    assert refusing in said([asked(), placed(), RunAborted("r", "enough")], after_ms=5_000)


def test_of_an_interrupted_run_whose_child_does_not_stop_it_says_so() -> None:
    gone = [TeardownBegan("r", "budget-exceeded"), interrupted("budget-exceeded", still=True)]
    told = said([asked(**DETACHED), placed(), begun(), *gone], after_ms=6_000)
    assert "Its child on host h1 goes on, although it was told 6 s ago to stop" in told
    assert "Storage and runtime are closed to it (teardown_grace_ms is 5 s)." in told


STAYS = RunSucceeded("r", 1, None, "", released=False)


@pytest.mark.parametrize("end", [RunSucceeded("r", 1, pack(1), "1", released=True), RunAborted("r", "no")])
def test_nobody_waits_any_more_for_a_run_that_has_ended(end: Fact) -> None:
    assert f"Its parent {PARENT} requested it 0 ms ago, and waited for its result." in said(
        [asked(), placed(), begun(), end]
    )


def test_of_a_run_that_has_ended_where_nothing_serves_it_only_what_is_left_to_do_waits() -> None:
    ended = [asked(**DETACHED), placed(), begun(), RunSucceeded("r", 1, pack(1), "1", released=True)]
    told = said(ended, served=False)
    assert "so what is still to be done about it waits until one is started" in told
    assert "nothing happens to it" not in told
    assert "nothing happens to it until one is started" in said([asked()], served=False)


def test_of_a_child_that_lives_on_after_its_run_it_says_where_and_when_it_is_woken_again() -> None:
    done = [asked(), placed(), begun(), STAYS]
    assert "Its child does other work on host h1." in said(done)
    lost = [*done, AgentReleased(child(), 1), AgentLost(child(), 1, NOW_MS + 400)]
    assert "Its child may have other work to do, so it is woken again in 400 ms" in said(lost)
    assert "a host to itself" not in said(lost)
    again = said([*lost, AgentActivated(child(), 2, "h2"), AgentLost(child(), 2, NOW_MS + 400)])
    assert "It gets a host to itself, because 2 hosts died under it lately." in again


ENDED: list[Fact] = [asked(**DETACHED), placed(), RunSucceeded("r", 1, None, "", released=True)]
MAIL: dict[str, tuple[list[Fact], list[str]]] = {
    "pending": (ENDED, [f"The mail that tells {PARENT} of its end is on its way."]),
    "failed": (
        [*ENDED, MailFailed("r!finish", "KeyError: 'x'", NOW_MS + 3_000)],
        ["was tried 1 time: its handler on_notes raised: KeyError: 'x'", "It is delivered again in 3 s"],
    ),
    "parked": (
        [*ENDED, MailFailed("r!finish", "KeyError: 'x'", None)],
        [
            "is parked after 1 attempt: its handler on_notes raised: KeyError: 'x'",
            "`perdure retry 'r!finish'` delivers it again.",
        ],
    ),
    "delivered": ([*ENDED, MailDelivered(PARENT, ["r!finish"])], ["of its end has been handled."]),
    "superseded": (
        [asked(**DETACHED), placed(), begun(), interrupted("no-progress", still=True), ENDED[-1]],
        ["of its interruption was superseded", "of its end is on its way"],
    ),
}


@pytest.mark.parametrize(("facts", "words"), MAIL.values(), ids=list(MAIL))
def test_the_mail_about_a_run_is_followed_to_where_it_is(facts: list[Fact], words: list[str]) -> None:
    told = said(facts)
    for word in words:
        assert word in told


def test_without_a_supervisor_nothing_is_said_to_happen_and_silence_is_not_counted() -> None:
    told = said([asked(**DETACHED), placed(), begun(), SAID], after_ms=7_200_000, served=False)
    assert "Its child was last seen on host h1. If that host is gone, the next attempt begins." in told
    assert "If it stays silent, it is given up 1 h after the next start" in told
    assert "It is given up in 22 h, at 1970-01-02 00:16:40 UTC" in told
    assert "No supervisor serves this directory now" in told
    late = said([asked(**DETACHED), placed(), begun()], after_ms=90_000_000, served=False)
    assert "It is given up at the next start (detached_max_budget_ms is 1 d)." in late
    settled = said([*ENDED, MailDelivered(PARENT, ["r!finish"])], served=False)
    assert "No supervisor" not in settled


def test_no_reason_of_an_interruption_is_left_without_words() -> None:
    for reason, detached, served in product(InterruptedReason, (True, False), (True, False)):
        facts = [asked(**(DETACHED if detached else {})), placed(), begun(), interrupted(reason, still=None)]
        assert f"({reason}): " in said(facts, served=served)


@pytest.mark.parametrize(
    ("ms", "words"),
    [
        (0, "0 ms"),
        (12_500, "12.5 s"),
        (90_000, "90 s"),
        (150_000, "2 min 30 s"),
        (7_800_000, "2 h 10 min"),
        (86_400_000, "1 d"),
        (float("inf"), "without end"),
    ],
)
def test_durations_are_said_in_the_units_that_people_use(ms: float, words: str) -> None:
    assert lasting(ms) == words
