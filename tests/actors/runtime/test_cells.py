"""Who can await, and who must wait: plain cells of a notebook stand on a loop that runs, and are sync code all the same."""

from __future__ import annotations

import ast
import asyncio
import inspect
from textwrap import dedent
from typing import Any

from perdure.actors.runtime.runtime import can_await


def in_notebook(text: str) -> Any:
    """What a cell leaves as `told`. It is run as IPython does it: on a loop, and awaited if it awaits."""
    names: dict[str, Any] = {"get_ipython": None, "can_await": can_await, "asyncio": asyncio}

    async def kernel() -> None:
        code = compile(dedent(text), "cell", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        outcome = eval(code, names)  # noqa: S307 - our own text
        if inspect.iscoroutine(outcome):
            await outcome

    asyncio.run(kernel())
    return names["told"]


def test_sync_code_cannot_and_async_code_can() -> None:
    async def code() -> bool:
        return can_await()

    async def code_by_way_of_sync_code() -> bool:
        return max(map(lambda _: can_await(), [1]))  # noqa: C417 - a frame of its own

    assert not can_await()
    assert asyncio.run(code())
    assert asyncio.run(code_by_way_of_sync_code())


def test_a_callback_of_a_loop_does_not_block_it() -> None:
    async def code() -> bool:
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(lambda: answer.set_result(can_await()))
        return await answer

    assert asyncio.run(code())


def test_a_cell_that_does_not_await_is_sync_code_and_so_is_what_it_calls() -> None:
    assert in_notebook("told = can_await()") is False
    assert in_notebook("def ask(): return can_await()\ntold = [ask() for _ in range(1)][0]") is False
    assert in_notebook("class Asked:\n    told = [can_await() for _ in range(1)][0]\ntold = Asked.told") is False


def test_a_cell_that_awaits_is_async_code_and_so_is_what_it_awaits() -> None:
    assert in_notebook("await asyncio.sleep(0)\ntold = can_await()") is True
    assert in_notebook("async def ask(): return can_await()\ntold = await ask()") is True
    assert (
        in_notebook(
            "async def ask():\n    class Asked:\n        told = can_await()\n    return Asked.told\ntold = await ask()"
        )
        is True
    )
    cell = """
        async def ask():
            global told
            told = can_await()
        task = asyncio.create_task(ask())
        await task
    """
    assert in_notebook(cell) is True
