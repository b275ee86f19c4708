"""Whose turn it is: calls first, then those at work, and newcomers so that nobody waits for ever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.policies import Rank, RankedQueue
from perdure.policies.ranked_queue import PASSES_MAX


def line(*ranks: Rank) -> RankedQueue[tuple[Rank, int]]:
    waiting: RankedQueue[tuple[Rank, int]] = RankedQueue()
    for number, rank in enumerate(ranks):
        waiting.add((rank, number), rank)
    return waiting


def test_a_call_goes_first_then_who_is_at_work_then_a_newcomer() -> None:
    waiting = line(Rank.OPENING, Rank.WORK, Rank.CALL, Rank.WORK)
    assert [waiting.take() for _ in range(4)] == [(Rank.CALL, 2), (Rank.WORK, 1), (Rank.WORK, 3), (Rank.OPENING, 0)]
    assert not waiting
    with pytest.raises(IndexError):
        waiting.take()


def test_a_newcomer_is_passed_over_only_so_often() -> None:
    waiting = line(Rank.OPENING, Rank.OPENING, *[Rank.WORK] * 100)
    order = [waiting.take()[0] for _ in range(2 * PASSES_MAX + 2)]
    assert [at for at, rank in enumerate(order) if rank is Rank.OPENING] == [PASSES_MAX, 2 * PASSES_MAX + 1]


def test_who_could_not_use_a_turn_has_the_next_one() -> None:
    waiting = line(Rank.WORK, Rank.WORK)
    rank, number = waiting.take()
    waiting.put_back((rank, number), rank)
    assert waiting.take() == (Rank.WORK, 0)
    assert waiting.first(Rank.WORK) == (Rank.WORK, 1)
    assert waiting.first(Rank.OPENING) is None


@given(st.lists(st.sampled_from(Rank)))
def test_everybody_has_a_turn_each_rank_in_the_order_in_which_it_came(ranks: list[Rank]) -> None:
    waiting = line(*ranks)
    assert len(waiting) == len(ranks)
    taken = [waiting.take() for _ in ranks]
    for rank in Rank:
        assert [each for each in taken if each[0] is rank] == [
            (rank, number) for number, of in enumerate(ranks) if of is rank
        ]
