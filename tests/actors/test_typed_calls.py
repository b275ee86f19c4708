"""What the types of calls promise is what there is at run time, in async code, in sync code, and inside a transaction."""

from __future__ import annotations

from typing import Any

from perdure.actors import Agent, RunCompleted, RunFailed, awaiting, blocking, exposed
from tests.actors import one_process
from tests.actors.cast import Doubler, Failing
from tests.actors.one_process import OneProcess
from tests.actors.sync_cast import Leaf
from tests.kit import Stage, play


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
    async def ends(self) -> list[bool]:
        good, bad = await self.run_agent_tool(Doubler, {"n": 1}), await self.run_agent_tool(Failing, "x")
        assert bad.failure is not None
        return [isinstance(good, RunCompleted), good.failure is None, isinstance(bad, RunFailed), bad.output is None]


def test_detached_runs_are_the_same_list_inside_and_outside_of_a_transaction() -> None:
    async def story(stage: Stage) -> None:
        assert await stage.call(Caller, "detached") == ["RunHandles"] * 3

    play(story)


def test_a_call_blocks_in_sync_code_and_is_awaited_in_async_code() -> None:
    async def story(world: OneProcess) -> None:
        caller: Any = world.client.agent(Caller, "p")
        value = await caller.in_sync_code()
        assert value == 10
        assert await caller.a_sync_method_elsewhere() == value
        assert "is to be awaited" in await caller.in_async_code()

    one_process.play(story, threads_max=2)


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
