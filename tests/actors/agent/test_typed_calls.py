"""What the types of calls promise is what there is at run time, in async code, in sync code, and inside a transaction."""

from __future__ import annotations

import contextlib
import pickle
from copy import copy
from dataclasses import replace
from typing import Any

import pytest

from perdure.actors import Agent, RunCompleted, RunFailed, awaiting, blocking, exposed
from perdure.ledger import PerdureError
from tests.actors import one_process
from tests.actors.cast import Doubler, Failing
from tests.actors.one_process import OneProcess
from tests.actors.sync_cast import Leaf
from tests.kit import Stage, play, played


class Own(PerdureError):
    """An author's class of our errors."""


class Caller(Agent):
    @exposed
    async def detached(self) -> list[str]:
        asked: list[tuple[Any, Any]] = [(Doubler, {"n": 1})]
        outside = await self.run_agent_tools(asked, detached=True)
        with self.transaction():
            inside = self.run_agent_tools(asked, detached=True)
            again = await inside  # as outside, so that one way of writing it fits both
        return [type(each).__name__ for each in (outside, inside, again)]

    @exposed
    def in_sync_code(self) -> Any:
        return 10 * blocking(self.run_agent_tool(Leaf, 2)).output

    @exposed
    async def in_async_code(self) -> str:
        try:
            blocking(self.run_agent_tool(Leaf, 2))
        except Exception as problem:
            return str(problem)
        return ""

    @exposed
    async def a_sync_method_elsewhere(self) -> Any:
        return await awaiting(self.sub_agent(Caller, "below").in_sync_code())

    @exposed
    async def takes_what_there_is_not(self) -> Any:
        return (await self.run_agent_tool(Failing, "x", run_id="bad")).output

    @exposed
    async def none(self) -> list[str]:
        return [type(await self.run_agent_tools([], detached=detached)).__name__ for detached in (False, True)]

    @exposed
    async def raises_an_error_of_ours(self) -> None:
        raise Own("own words")

    @exposed
    async def ends(self) -> list[bool]:
        good, bad = await self.run_agent_tool(Doubler, {"n": 1}), await self.run_agent_tool(Failing, "x")
        assert bad.failure is not None
        return [
            isinstance(good, RunCompleted),
            good.failure is None,
            isinstance(bad, RunFailed),
            bad.output_or(None) is None,
        ]


async def test_detached_runs_are_the_same_list_inside_and_outside_of_a_transaction(stage: Stage) -> None:
    assert await stage.call(Caller, "detached") == ["RunHandles"] * 3


async def test_of_no_runs_there_is_what_there_would_be_of_some(stage: Stage) -> None:
    assert await stage.call(Caller, "none") == ["list", "RunHandles"]


@played(lambda story: one_process.play(story, threads_max=2))
async def test_a_call_blocks_in_sync_code_and_is_awaited_in_async_code(world: OneProcess, /) -> None:
    caller: Any = world.client.agent(Caller, "p")
    value = await caller.in_sync_code()
    assert value == 10
    assert await caller.a_sync_method_elsewhere() == value
    assert "is to be awaited" in await caller.in_async_code()


def test_a_result_is_one_of_two_and_both_have_the_same_fields() -> None:
    async def story(stage: Stage) -> None:
        assert await stage.call(Caller, "ends") == [True] * 4

    play(story)
    fields = {name for kind in (RunCompleted, RunFailed) for name in vars(kind) if not name.startswith("_")}
    both = {
        "run_id",
        "agent_type",
        "status",
        "output",
        "output_or",
        "summary",
        "error",
        "trace",
        "reason",
        "child_still_running",
        "ok",
        "failure",
    }
    assert fields <= both
    for kind in (RunCompleted, RunFailed):
        assert both <= {*kind.__dataclass_fields__, *dir(kind)}


async def test_the_output_of_a_run_that_failed_raises_its_failure_with_the_traceback_of_the_child(stage: Stage) -> None:
    failed = await stage.client.run(Failing, "x", run_id="f")
    with pytest.raises(RunFailed, match=r"run 'f' of .*:Failing ended as error: ") as raised:
        _ = failed.output
    assert (raised.value, raised.value.error) == (failed, failed.error)
    kept, where = raised.value.__notes__
    assert "`perdure retry f` tries the run again" in kept, (
        "an id that the author chose is asked for again once the code is mended"
    )
    assert "Traceback" in where
    with pytest.raises(RunFailed) as odd:
        _ = (await stage.client.run(Failing, "x", run_id="it's a")).output
    assert """`perdure retry 'it'"'"'s a'`""" in odd.value.__notes__[0]
    with pytest.raises(RunFailed) as unnamed:
        _ = (await stage.client.run(Failing, "x")).output
    assert len(unnamed.value.__notes__) == 1
    assert failed.__traceback__ is None, "what is kept keeps no frames"
    assert failed.output_or(3) == 3
    assert (await stage.client.run(Leaf, 1)).output_or(3) == 1


def test_a_failed_run_is_a_value_and_an_error() -> None:
    failed = RunFailed("r", "m:A", "error", "ValueError: no", trace="Traceback …")
    for copied in (pickle.loads(pickle.dumps(failed)), copy(failed), replace(failed)):
        assert (copied, hash(copied), str(copied)) == (
            failed,
            hash(failed),
            "run 'r' of m:A ended as error: ValueError: no",
        )
    assert failed != replace(failed, error="another")
    with pytest.raises(RunFailed), contextlib.suppress(KeyError):
        raise failed


async def test_a_failed_run_is_raised_as_itself_to_whoever_called_the_parent(stage: Stage) -> None:
    with pytest.raises(RunFailed) as raised:
        await stage.call(Caller, "takes_what_there_is_not")
    assert (raised.value.run_id, raised.value.status) == ("bad", "error")
    with pytest.raises(Own, match="own words"):
        await stage.call(Caller, "raises_an_error_of_ours")
