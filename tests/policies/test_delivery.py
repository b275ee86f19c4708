"""What is shown in the end, and what follows a request that went wrong: the tables, row by row."""

from __future__ import annotations

import pytest

from perdure.policies import (
    Delivery,
    DeliveryOutcome,
    DeliveryTrouble,
    Next,
    after_failure,
    ending,
    pause_ms,
    ready_at_ms,
)

P = Delivery()
SAID = "Half an answer "


@pytest.mark.shows(chat_recovery="C-0721 C-0731", messenger="M33 M43 M67 M68 M71 weakness-46")
@pytest.mark.parametrize(
    ("status", "has_text", "has_posts", "outcome", "shown"),
    [
        ("completed", True, True, DeliveryOutcome.ANSWERED, SAID),
        ("completed", False, False, DeliveryOutcome.EMPTY, P.empty_text),
        ("aborted", True, True, DeliveryOutcome.CANCELLED, f"{SAID.rstrip()}\n\n{P.cancelled_text}"),
        ("aborted", False, True, DeliveryOutcome.CANCELLED, P.cancelled_text),
        ("aborted", False, False, DeliveryOutcome.CANCELLED, ""),
        ("error", True, True, DeliveryOutcome.APOLOGISED, f"{SAID.rstrip()}\n\n{P.interrupted_text}"),
        ("interrupted", True, False, DeliveryOutcome.APOLOGISED, f"{SAID.rstrip()}\n\n{P.interrupted_text}"),
        ("error", False, False, DeliveryOutcome.FAILED, P.error_text),
        ("skipped", False, False, DeliveryOutcome.FAILED, P.error_text),
    ],
)
def test_how_a_turn_ended_says_what_is_shown(
    status: str, has_text: bool, has_posts: bool, outcome: DeliveryOutcome, shown: str
) -> None:
    """M33, M43, M67, M68, M71, weakness 46: every end has an outcome of its own, and an answer of the model's is never hidden."""
    found = ending(status, P, has_text=has_text, has_posts=has_posts)
    assert (found.outcome, found.shown(SAID if has_text else "")) == (outcome, shown)


@pytest.mark.shows(messenger="M48 M70")
@pytest.mark.parametrize(
    ("trouble", "is_edit", "tries", "busy", "what"),
    [
        (DeliveryTrouble.BUSY, False, 0, 1, Next.AGAIN),
        (DeliveryTrouble.BUSY, False, 0, P.busy_max + 1, Next.PARK),
        (DeliveryTrouble.UNREACHED, False, 1, 0, Next.AGAIN),
        (DeliveryTrouble.UNREACHED, False, P.tries_max + 1, 0, Next.PARK),
        (DeliveryTrouble.UNKNOWN, True, 1, 0, Next.AGAIN),
        (DeliveryTrouble.UNKNOWN, False, 1, 0, Next.AGAIN),
        (DeliveryTrouble.UNCHANGED, True, 99, 99, Next.DONE),
        (DeliveryTrouble.GONE, True, 1, 0, Next.ANEW),
        (DeliveryTrouble.REFUSED, False, 1, 0, Next.PARK),
    ],
)
def test_what_follows_a_request_that_went_wrong(
    trouble: DeliveryTrouble, is_edit: bool, tries: int, busy: int, what: Next
) -> None:
    """M48, M69, M70: an edit that changes nothing is done; weakness 54: the rest is tried again, or parked."""
    assert after_failure(trouble, P, is_edit=is_edit, tries=tries, busy=busy) is what


def test_a_post_whose_fate_is_unknown_goes_by_the_policy() -> None:
    unknown = {"is_edit": False, "tries": 1, "busy": 0}
    assert after_failure(DeliveryTrouble.UNKNOWN, Delivery(unknown="repeat"), **unknown) is Next.AGAIN
    assert after_failure(DeliveryTrouble.UNKNOWN, Delivery(unknown="leave"), **unknown) is Next.PARK


def test_a_provider_that_asks_for_a_pause_gets_it_and_others_a_growing_one() -> None:
    assert pause_ms(P, 5, 7_000, 0.0) == 7_000
    pauses = [pause_ms(P, tries, None, 1.0) for tries in (1, 2, 3, 20)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == P.pause_max_ms


def test_a_burst_waits_for_more_but_not_for_ever() -> None:
    policy = Delivery(burst_ms=600, burst_max_ms=2_000)
    assert ready_at_ms(policy, 1_000, 1_000) == 1_600
    assert ready_at_ms(policy, 1_000, 2_900) == 3_000
    assert ready_at_ms(P, 1_000, 1_000) == 1_000, "by default nobody waits"
