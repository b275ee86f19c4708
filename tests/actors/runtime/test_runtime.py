"""What a runtime says without a cluster."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from perdure.actors import Agent, AsyncRuntime, RunInfo, RunResult, Runtime, exposed
from perdure.actors.runtime.runtime import check_limits
from perdure.ledger import BadRequest
from perdure.policies import INFINITY, Limits
from tests.actors.cast import Doubler
from tests.kit import Stage

HERE = Path("perdure-data")


def test_limits_that_are_not_those_of_the_supervisor_are_refused_by_their_names() -> None:
    mine = Limits(hosts_max=16, detached_max_budget_ms=INFINITY)
    with pytest.raises(BadRequest) as refused:
        check_limits(mine, Limits(hosts_max=4), HERE)
    assert refused.value.field == "limits.hosts_max"
    said = str(refused.value)
    assert "hosts_max is 4, not 16; detached_max_budget_ms is 86,400,000, not inf" in said
    assert "Leave `limits` out to take those in force" in said
    check_limits(mine, replace(mine), HERE)


async def test_a_supervisor_writes_down_by_which_limits_it_decides(stage: Stage) -> None:
    assert (await stage.client.run(Doubler, {"n": 2})).output == 4
    assert await stage.client.ask("limits") == asdict(stage.laboratory.limits)
    assert stage.laboratory.store.shadow.limits == asdict(stage.laboratory.limits)


class Listener(Agent):
    """Asks for a run of itself, and says what was shown of its input."""

    stands_alone = True

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[object] = []

    @exposed
    async def ask(self, text: str) -> list[object]:
        await self.run_agent_tool(Listener, text, run_id="asked")
        return self.seen

    async def run(self, input: str) -> int:
        return len(input)

    async def on_agent_tool_start(self, run: RunInfo) -> None:
        self.seen.append(run.input_preview)

    async def on_agent_tool_finish(self, run: RunInfo, result: RunResult) -> None:
        self.seen.append(run.input_preview)


@pytest.mark.parametrize("kind", [Doubler, Listener])
async def test_a_run_whose_input_is_missing_is_told_so(stage: Stage, kind: Any) -> None:
    for asked in (stage.client.run(kind), stage.client.start(kind, None)):
        with pytest.raises(BadRequest, match=r"^input: is missing, or is None: ") as refused:
            await asked
        assert refused.value.field == "input"


@pytest.mark.parametrize("called", ["run", "start"])
def test_an_option_that_there_is_not_is_refused_by_its_name_with_one_that_is_like_it(
    called: str, tmp_path: Path
) -> None:
    begin: Any = getattr(Runtime(tmp_path), called)
    for wrong, words in (
        ("runid", f"is no argument of {called}; did you mean 'run_id'?"),
        ("x", f"is no argument of {called}"),
        ("timeout", f"is no argument of {called}; in async code `asyncio.timeout` bounds the wait"),
    ):
        with pytest.raises(BadRequest) as refused:
            begin(Doubler, {"n": 1}, **{wrong: "x"})
        assert (refused.value.field, refused.value.problem) == (wrong, words)


class Mistaken(Agent):
    """Asks for a run with an option that there is not."""

    async def run(self) -> None:
        options: Any = {"runid": "x"}
        await self.run_agent_tool(Doubler, {"n": 1}, **options)


async def test_an_agent_that_asks_with_such_an_option_is_told_the_same(stage: Stage) -> None:
    told = await stage.client.run(Mistaken)
    assert "runid: is no argument of run_agent_tool; did you mean 'run_id'?" in told.error


@pytest.mark.parametrize("length", [10, 5_000])
async def test_the_input_of_a_run_is_shown_in_short_to_its_parent_and_to_whoever_inspects_it(
    stage: Stage, length: int
) -> None:
    text = "x" * length
    shown = text[:500]
    assert set(await stage.call(Listener, "ask", text)) == {shown}
    await stage.client.run(Listener, text, run_id="mine")
    for run_id in ("asked", "mine"):
        told = await stage.client.ask("inspect", run_id)
        frames = await stage.client.ask("frames", run_id, -1)
        assert (told["input_preview"], frames[0]["event"]["input_preview"]) == (shown, shown)


def test_the_type_of_a_runtime_in_async_code_says_how_one_is_had() -> None:
    with pytest.raises(TypeError, match="async with Runtime"):
        AsyncRuntime("data")  # type: ignore[misc]
