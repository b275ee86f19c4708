"""Retries inside one process: on the loop's own clock, as often as the caller says, and never after an answer that ends them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from perdure.actors.retries import CONFLICTS_MAX, despite_conflicts, despite_more_conflicts, until
from perdure.actors.sim_world.virtual_loop import VirtualLoop
from perdure.ledger import StorageConflict

OVERTAKEN = StorageConflict("a@t:A", "another transaction was first")


def played(story: Coroutine[Any, Any, Any]) -> tuple[Any, float]:
    """What comes of a story on virtual time, and how long it took."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(story), round(loop.time(), 3)
    finally:
        loop.close()


def failing(times: int, tries: list[int]) -> Callable[[], str]:
    def job() -> str:
        tries.append(len(tries) + 1)
        if len(tries) <= times:
            raise OVERTAKEN
        return "done"

    return job


def test_a_request_is_made_until_its_answer_is_the_last_one_with_the_pauses_that_are_asked_for() -> None:
    answers, pauses = iter(["again", "again", "done", "never"]), iter([0.5, 2.0])

    async def request() -> str:
        return next(answers)

    answer, took_s = played(until(lambda each: each == "done", request, lambda: next(pauses)))
    assert (answer, took_s) == ("done", 2.5)
    assert next(answers) == "never"


def test_what_a_request_raises_is_not_repeated() -> None:
    async def request() -> str:
        raise OVERTAKEN

    with pytest.raises(StorageConflict):
        played(until(bool, request, lambda: 1.0))


@pytest.mark.parametrize("conflicts", [0, 1, CONFLICTS_MAX])
def test_a_transaction_that_is_overtaken_is_done_again(conflicts: int) -> None:
    tries: list[int] = []
    assert despite_conflicts(failing(conflicts, tries)) == "done"
    assert len(tries) == conflicts + 1


def test_a_transaction_that_is_overtaken_for_ever_raises_its_last_conflict() -> None:
    tries: list[int] = []
    with pytest.raises(StorageConflict):
        despite_conflicts(failing(1_000, tries))
    assert len(tries) == CONFLICTS_MAX + 1


def test_another_error_ends_a_transaction_at_once() -> None:
    tries: list[int] = []

    def job() -> None:
        tries.append(1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        despite_conflicts(job)
    assert tries == [1]


@pytest.mark.parametrize(
    ("problems", "expected", "count"),
    [
        ([None], None, 1),
        ([OVERTAKEN, OVERTAKEN, None], None, 3),
        ([OVERTAKEN, KeyError("k")], "KeyError", 2),
        ([OVERTAKEN] * 1_000, "StorageConflict", CONFLICTS_MAX - 1),
    ],
)
def test_a_transaction_that_reports_its_error_is_done_again_in_one_go(
    problems: list[Exception | None], expected: str | None, count: int
) -> None:
    tries: list[int] = []

    async def job() -> Exception | None:
        tries.append(1)
        return problems[len(tries) - 1]

    async def story() -> Exception | None:
        asyncio.get_running_loop().call_soon(lambda: tries.extend([0] * 10_000))  # nobody else gets a turn
        return await despite_more_conflicts(job)

    problem, took_s = played(story())
    assert (None if problem is None else type(problem).__name__, took_s) == (expected, 0)
    assert sum(tries) == len(tries[:count]) == count
