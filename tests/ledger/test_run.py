"""The record of a run: what each fact leaves in it, and what an end wipes out."""

from __future__ import annotations

import pytest

from perdure.ledger import Fact, Status, pack, unpack
from perdure.ledger.facts import (
    AttemptLost,
    AttemptStarted,
    ChunkEmitted,
    MilestoneReached,
    ProgressReported,
    RunAborted,
    RunCleared,
    RunErrored,
    RunInterrupted,
    RunReattached,
    RunStarted,
    RunSucceeded,
    TeardownBegan,
)
from perdure.ledger.run import Run, apply, open_run
from tests.kit import asked, begun, placed

INTERRUPTED = RunInterrupted("r", "no-progress", True, "nothing was heard")
COMPLETED = RunSucceeded("r", 1, pack(42), "forty-two", released=True)


def after(*facts: Fact, **options: object) -> Run:
    run = open_run(asked(**options), 1, 1_000)
    for number, fact in enumerate(facts):
        apply(run, fact, 2 + number, 1_000 + 100 * (number + 1))
    return run


def test_a_request_opens_a_run_that_is_starting_and_placed_nowhere() -> None:
    run = after()
    assert (run.status, run.attempt, run.host_id, run.requested_at_ms) == (Status.STARTING, 0, "", 1_000)
    assert run.is_live
    assert run.is_awaited
    assert not run.is_placed
    assert not run.is_settled
    assert run.child == "r@tests.toys:Child"


def test_an_attempt_is_confirmed_by_any_sign_of_life() -> None:
    signs = [RunStarted("r", 1), ProgressReported("r", 1, b"\x80"), ChunkEmitted("r", 1, 0, b"\xc0")]
    for sign in signs:
        run = after(placed(), sign)
        assert run.confirmed
        assert run.status is Status.RUNNING


def test_a_signal_resets_attempts_and_losses_and_moves_the_clock_of_silence() -> None:
    run = after(placed(), AttemptLost("r", 1, "gone", 0), placed(attempt=2), ProgressReported("r", 2, b"\x80"))
    assert (run.attempt, run.idle_attempts, run.losses, run.signal_at_ms) == (2, 0, 0, 1_400)


def test_losses_count_and_take_the_place_away() -> None:
    run = after(placed(), begun(), AttemptLost("r", 1, "its host died", 5_000))
    assert (run.status, run.host_id, run.losses, run.cause) == (Status.STARTING, "", 1, "its host died")
    assert (run.retry_at_ms, run.lost_at_ms, run.confirmed) == (5_000, 1_300, False)


def test_milestones_are_kept_in_order_with_their_time() -> None:
    stones = [MilestoneReached("r", 1, number, name, 1, b"\x80") for number, name in enumerate("ab")]
    run = after(placed(), *stones)
    assert [(number, name, at) for number, name, _, at, *_ in run.milestones] == [(0, "a", 1_200), (1, "b", 1_300)]


def test_a_true_end_repairs_an_interruption_and_wipes_its_cause() -> None:
    run = after(placed(), begun(), INTERRUPTED, COMPLETED)
    assert (run.status, run.reason, run.child_still_running, run.error) == (Status.COMPLETED, "", None, "")
    assert (unpack(run.output or b""), run.summary) == (42, "forty-two")
    assert run.is_settled


def test_asking_again_wipes_the_cause_and_measures_silence_from_then() -> None:
    run = after(placed(), begun(), INTERRUPTED, RunReattached("r", 9, 1))
    assert (run.status, run.reason, run.child_still_running, run.error) == (Status.RUNNING, "", None, "")
    assert (run.life, run.reattached_at_ms, run.ended_at_ms) == (9, 1_400, 0)


def test_asking_again_for_a_run_whose_child_is_gone_gives_it_fresh_attempts_and_a_deadline_from_then() -> None:
    run = after(placed(), AttemptLost("r", 1, "gone", 5_000), INTERRUPTED, RunReattached("r", 9, 1))
    assert (run.idle_attempts, run.losses, run.retry_at_ms, run.lost_at_ms) == (0, 0, 0, run.reattached_at_ms)


def test_asking_again_for_an_interrupted_run_whose_child_is_on_no_host_has_it_starting_not_running() -> None:
    assert (
        after(placed(), AttemptLost("r", 1, "gone", 0), INTERRUPTED, RunReattached("r", 9, 1)).status is Status.STARTING
    )


def test_asking_again_for_a_run_that_never_began_gives_it_no_deadline_for_a_place() -> None:
    assert after(RunReattached("r", 9, 1)).lost_at_ms == 0


@pytest.mark.parametrize(
    ("end", "status", "error"),
    [
        (COMPLETED, Status.COMPLETED, ""),
        (RunErrored("r", 1, "it broke", released=True), Status.ERROR, "it broke"),
        (RunAborted("r", "not wanted"), Status.ABORTED, "not wanted"),
    ],
)
def test_an_end_says_when_and_why(end: Fact, status: Status, error: str) -> None:
    run = after(placed(), begun(), end)
    assert (run.status, run.error, run.ended_at_ms) == (status, error, 1_300)
    assert run.has_ended
    assert run.is_hard


def test_a_cancelled_run_keeps_its_place_until_its_child_has_stopped() -> None:
    placed_run, unplaced = after(placed(), RunAborted("r", "enough")), after(RunAborted("r", "enough"))
    assert (placed_run.teardown, placed_run.host_id, placed_run.is_settled) == ("aborted", "h1", False)
    assert (unplaced.teardown, unplaced.is_settled) == ("", True)


def test_a_teardown_is_remembered_with_its_reason_until_the_end() -> None:
    run = after(placed(), begun(), TeardownBegan("r", "budget-exceeded"))
    assert (run.teardown, run.teardown_at_ms, run.status) == ("budget-exceeded", 1_300, Status.RUNNING)
    assert after(placed(), begun(), TeardownBegan("r", "budget-exceeded"), COMPLETED).teardown == ""


def test_events_are_numbered_without_holes_over_attempts_and_ends() -> None:
    run = open_run(asked(), 1, 1_000)
    facts: list[Fact] = [
        placed(),
        begun(),
        ProgressReported("r", 1, b"\x80"),
        AttemptLost("r", 1, "gone", 0),
        AttemptStarted("r", 2, 2, "h2"),
        ChunkEmitted("r", 2, 0, b"\xc0"),
        INTERRUPTED,
        RunReattached("r", 2, 2),
        RunSucceeded("r", 2, None, "", released=True),
        RunCleared("r"),
    ]
    numbers = [apply(run, fact, 2 + index, 2_000) for index, fact in enumerate(facts)]
    assert numbers == [None, None, 1, None, 2, 3, 4, 5, 6, 7]
    assert run.frames == 8


def test_mail_is_wanted_when_there_is_a_parent_with_a_handler_a_hook_or_a_chat() -> None:
    assert not after().wants_mail
    for option in ({"on_finish": "f"}, {"hook": True}, {"notify": True}):
        assert after(**option).wants_mail
        assert not open_run(asked(parent="", **option), 1, 1).wants_mail


def test_a_record_survives_being_plain_data() -> None:
    stone = MilestoneReached("r", 1, 0, "m", 1, b"\x80")
    run = after(placed(), begun(), stone, ChunkEmitted("r", 1, 3, b"\xc0"), INTERRUPTED, detached=True)
    assert Run.from_plain(unpack(pack(run.to_plain()))) == run


def test_a_record_of_an_older_version_takes_defaults() -> None:
    assert Run.from_plain(unpack(pack(after().to_plain()[:11]))) == Run(*after().to_plain()[:11])


LOST_THRICE = [
    fact for number in (1, 2, 3) for fact in (placed(attempt=number), AttemptLost("r", number, "it died", 0))
]
HEARD_IN_BETWEEN = [*LOST_THRICE[:3], ProgressReported("r", 2, b"\x80"), *LOST_THRICE[3:]]


@pytest.mark.parametrize(
    ("facts", "options", "told"),
    [
        ([], {}, (0, 5, False)),
        (LOST_THRICE, {}, (3, 5, False)),
        (LOST_THRICE, {"attempts_max": 3}, (3, 3, True)),
        (HEARD_IN_BETWEEN, {"attempts_max": 3}, (1, 3, False)),
        (HEARD_IN_BETWEEN, {"attempts_max": 1}, (3, 1, True)),
    ],
)
def test_attempts_count_since_the_last_progress_and_all_of_them_where_one_is_the_limit(
    facts: list[Fact], options: dict[str, int], told: tuple[int, int, bool]
) -> None:
    attempts = after(*facts, **options).attempts(5)
    assert (*attempts, attempts.are_used_up) == told
