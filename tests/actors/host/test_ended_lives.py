"""A life that is over is free at once: nobody has to search for circles in a batch of them."""

from __future__ import annotations

import asyncio
import gc
from typing import Any
from weakref import ref

from perdure.actors import Agent
from tests.kit import Stage, play

LIVES: list[ref[Any]] = []


class Instant(Agent):
    """Leaves a mark of its life, and of itself."""

    async def run(self, input: int) -> int:
        LIVES.extend([ref(self), ref(self._perdure)])
        return input


class Keeper(Agent):
    """Is kept by its author's code."""

    kept: Agent | None = None

    async def run(self, input: int) -> int:
        Keeper.kept = self
        return input


async def test_of_an_ended_child_nothing_is_left(stage: Stage) -> None:
    assert not gc.isenabled(), "the simulated world collects when it likes"
    await stage.client.run(Instant, -1)  # the first of its class on a host has more to do
    LIVES.clear()
    for number in range(3):
        assert (await stage.client.run(Instant, number)).output == number
    await asyncio.sleep(1)
    assert len(LIVES) == 6
    assert [life() for life in LIVES] == [None] * 6


def test_an_agent_that_its_author_keeps_has_its_life_and_its_life_has_it() -> None:
    async def story(stage: Stage) -> None:
        assert (await stage.client.run(Keeper, 1)).output == 1
        await asyncio.sleep(1)
        kept = Keeper.kept
        assert kept is not None
        assert kept._perdure.is_leaving
        assert kept._perdure.agent is kept

    play(story)
    Keeper.kept = None
