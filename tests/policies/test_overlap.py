"""A message that comes during a turn is queued, skipped, merged, dropped or held, as its agent says (spec chat-recovery §3.3)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.policies import (
    OpenTurn,
    Overlap,
    QueueAction,
    TurnStatus,
    is_dropped,
    is_held,
    overlaps,
    queue_decision,
    steered_turn,
)
from perdure.policies.overlap import STRATEGIES

RUNNING = OpenTurn(1, TurnStatus.RUNNING)


def burst(count: int) -> list[OpenTurn]:
    """One turn at work, and messages that overlapped with it, a second apart."""
    return [
        RUNNING,
        *(OpenTurn(2 + n, TurnStatus.ACCEPTED, is_overlapping=True, accepted_at_ms=n * 1_000) for n in range(count)),
    ]


def places(strategy: str, now_ms: float = 10**9, count: int = 3) -> list[str]:
    turns = burst(count)
    return [queue_decision(Overlap(strategy), turn, turns, now_ms).action for turn in turns]


PLACES = {
    "c_1014 queue": ("queue", ["play", "play", "play", "play"]),
    "c_1015 and c_1171 latest": ("latest", ["play", "skip", "skip", "play"]),
    "c_1017 and c_1173 merge": ("merge", ["play", "merge", "merge", "play"]),
    "c_1018 and c_1174 debounce": ("debounce", ["play", "skip", "skip", "play"]),
}


@pytest.mark.parametrize(("strategy", "expected"), PLACES.values(), ids=PLACES)
def test_each_strategy_says_what_a_burst_of_messages_becomes(strategy: str, expected: list[str]) -> None:
    assert places(strategy) == expected


@pytest.mark.shows(chat_recovery="C-0409")
def test_c_0409_a_message_overlaps_with_one_that_is_accepted_and_has_not_begun() -> None:
    assert overlaps([OpenTurn(1, TurnStatus.ACCEPTED)])
    assert overlaps([OpenTurn(1, TurnStatus.RUNNING)])
    assert not overlaps([])


OUT_OF_THE_WAY = {
    "recovering": OpenTurn(1, TurnStatus.RUNNING, is_recovering=True),
    "parked": OpenTurn(1, TurnStatus.PARKED),
    "completed": OpenTurn(1, TurnStatus.COMPLETED),
}


@pytest.mark.parametrize("turn", OUT_OF_THE_WAY.values(), ids=OUT_OF_THE_WAY)
def test_w_38_a_turn_that_recovers_or_waits_for_a_person_drops_nobodys_message(turn: OpenTurn) -> None:
    is_overlapping = overlaps([turn])
    assert not is_overlapping
    assert not is_dropped(Overlap("drop"), is_overlapping=is_overlapping)


@pytest.mark.shows(chat_recovery="C-1016")
def test_c_1016_and_c_1172_drop_refuses_what_overlaps_and_nothing_else() -> None:
    assert is_dropped(Overlap("drop"), is_overlapping=True)
    assert not is_dropped(Overlap("drop"), is_overlapping=False)
    for strategy in ("queue", "latest", "merge", "debounce"):
        assert not is_dropped(Overlap(strategy), is_overlapping=True)


@pytest.mark.shows(chat_recovery="C-0412")
def test_c_0412_an_older_overlapping_message_is_superseded_by_a_later_one() -> None:
    older, newer = (
        OpenTurn(2, TurnStatus.ACCEPTED, is_overlapping=True),
        OpenTurn(3, TurnStatus.ACCEPTED, is_overlapping=True),
    )
    assert queue_decision(Overlap("latest"), older, [older, newer], 0).action is QueueAction.SKIP
    assert queue_decision(Overlap("latest"), newer, [older, newer], 0).action is QueueAction.PLAY


@pytest.mark.shows(chat_recovery="C-1019")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_c_1019_and_c_1177_what_is_no_message_of_a_user_is_never_skipped(strategy: str) -> None:
    regeneration = OpenTurn(2, TurnStatus.ACCEPTED, is_overlapping=False)
    assert queue_decision(Overlap(strategy), regeneration, [*burst(3), regeneration], 10**9).action is QueueAction.PLAY


@pytest.mark.shows(chat_recovery="C-1020")
@pytest.mark.parametrize("status", [TurnStatus.RUNNING, TurnStatus.SKIPPED, TurnStatus.COMPLETED, TurnStatus.ABORTED])
def test_c_1020_only_a_message_that_still_waits_supersedes(status: TurnStatus) -> None:
    turn, other = OpenTurn(2, TurnStatus.ACCEPTED, is_overlapping=True), OpenTurn(3, status, is_overlapping=True)
    assert queue_decision(Overlap("latest"), turn, [turn, other], 0).action is QueueAction.PLAY


def test_debounce_holds_the_last_message_until_it_has_been_quiet() -> None:
    turns = burst(2)
    waits = queue_decision(Overlap("debounce", 750), turns[-1], turns, now_ms=1_200)
    assert (waits.action, waits.until_ms) == (QueueAction.WAIT, 1_750)
    assert queue_decision(Overlap("debounce", 750), turns[-1], turns, now_ms=1_750).action is QueueAction.PLAY


@pytest.mark.shows(chat_recovery="C-1175 C-1176")
@pytest.mark.parametrize("pause", [None, -1, math.nan, math.inf, "750", True])
def test_c_1175_and_c_1176_a_quiet_time_that_is_none_is_three_quarters_of_a_second(pause: object) -> None:
    assert Overlap.of({"strategy": "debounce", "debounce_ms": pause}).debounce_ms == 750
    assert Overlap.of({"strategy": "debounce"}).debounce_ms == 750


def test_a_strategy_is_named_alone_or_with_its_quiet_time() -> None:
    assert Overlap.of("latest") == Overlap("latest")
    assert Overlap.of({"strategy": "debounce", "debounce_ms": 0}) == Overlap("debounce", 0)
    assert Overlap.of(Overlap("merge")) == Overlap("merge")


@pytest.mark.parametrize("value", ["newest", None, 3, {}, {"strategy": "queue", "debounceMs": 1}])
def test_what_is_no_strategy_is_refused_by_name(value: object) -> None:
    with pytest.raises(ValueError, match="message_concurrency"):
        Overlap.of(value)


@given(st.sampled_from(STRATEGIES), st.lists(st.booleans(), min_size=1, max_size=8), st.floats(0, 10_000))
def test_the_last_message_is_never_skipped_and_always_plays_in_the_end(
    strategy: str, overlapping: list[bool], now_ms: float
) -> None:
    turns = [OpenTurn(n, TurnStatus.ACCEPTED, each, 0) for n, each in enumerate(overlapping)]
    last = queue_decision(Overlap(strategy), turns[-1], turns, now_ms)
    assert last.action in (QueueAction.PLAY, QueueAction.WAIT)
    assert queue_decision(Overlap(strategy), turns[-1], turns, max(now_ms, last.until_ms)).action is QueueAction.PLAY


@pytest.mark.parametrize("status", TurnStatus)
def test_a_steer_is_held_back_while_it_has_not_begun_and_its_turn_is_open(status: TurnStatus) -> None:
    assert is_held("asked", status, {"asked", "other"}) is (status is TurnStatus.ACCEPTED)
    assert not is_held("asked", status, {"other"})
    assert not is_held("", status, {"asked"})


A, R, P = TurnStatus.ACCEPTED, TurnStatus.RUNNING, TurnStatus.PARKED


@pytest.mark.parametrize(
    ("turns", "playing", "steered"),
    [
        ([], 0, None),
        ([(1, R)], 1, 1),
        ([(1, A)], 0, 1),
        ([(1, R), (2, R)], 2, 2),  # the first was answered and waits for its place
        ([(2, A), (1, R)], 0, 1),  # nothing is played yet in this life
        ([(1, P), (2, A)], 2, 2),
        ([(1, P), (3, P), (2, P)], 0, 3),
        ([(1, P), (2, R)], 1, 2),  # the one that was played waits for a person by now
        ([(1, TurnStatus.COMPLETED)], 1, None),
    ],
)
def test_a_person_steers_what_is_played_else_what_is_next_else_what_waits_for_a_person(
    turns: list[tuple[int, TurnStatus]], playing: int, steered: int | None
) -> None:
    found = steered_turn([OpenTurn(*each) for each in turns], playing)
    assert (None if found is None else found.number) == steered
