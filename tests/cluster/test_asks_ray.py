"""Questions to people on a real cluster: sync and async code ask, the command, a script and a cold directory answer, and the supervisor is
killed in between."""

from __future__ import annotations

import json
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai.models.test import TestModel
from typer.testing import CliRunner

from perdure import (
    Agent,
    AlreadyAnswered,
    Answer,
    Approval,
    BadRequest,
    ChatAgent,
    FiberContext,
    NoAnswer,
    RunContext,
    Runtime,
    blocking,
    exposed,
    tool,
)
from perdure.actors.ray_world.os_processes import kill
from perdure.scenarios.cli import app
from tests.cluster.test_ray_death import ONE_HOST
from tests.cluster.test_ray_world import soon

pytestmark = pytest.mark.thorough

LIMITS = replace(ONE_HOST, wait_in_memory_ms=500)


class Size(BaseModel):
    """How much."""

    boxes: int


class Clerk(Agent):
    """Asks from sync code."""

    def run(self, input: str, run: RunContext) -> list[Any]:
        way = run.ask(f"How does {input} go?", ["fast", "slow"], args={"count": 40})
        size = run.ask("How much?", Size)
        return [way.value, way.who, way.args, size.value.boxes, run.attempt > 1]


class Gate(Agent):
    """Asks from async code."""

    async def run(self, run: RunContext) -> str:
        return "open" if await run.ask("Open?", to="ops", expires=3600, otherwise=False) else "shut"


class Counter(Agent):
    """Asks outside of runs: from sync and async code, and in a fiber."""

    @exposed
    def open(self) -> list[Any]:
        with self.transaction():
            self.ask("Whom?", Size, then=self.decided, to="ops", args={"table": 4})
        self.start_fiber("f", self.work, fiber_id="f", retry=True)
        answer = blocking(self.ask("Open?"))
        return [answer.value, answer.who]

    async def work(self, fiber: FiberContext) -> None:
        self.state["work"] = [fiber.attempt, (await self.ask("Work?", ["much", "little"])).value]

    def decided(self, answer: Answer | NoAnswer) -> None:
        self.state["decided"] = [*self.state.get("decided", []), [answer.value.boxes, bool(answer)]]

    @exposed(repeatable=True)
    def told(self) -> dict[str, Any]:
        return dict(self.state)


def asked(runtime: Runtime, *names: str) -> None:
    """Wait until these questions are open, and nobody is at work on them."""
    while {each["ask_id"] for each in runtime.asks()} < {*names}:
        time.sleep(0.1)
    while not all((runtime.inspect(name.partition(":")[0]) or {})["waits"] for name in names):
        time.sleep(0.1)


def test_questions_of_sync_and_async_code_are_answered_by_a_command_a_script_and_in_a_cold_directory(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"

    def perdure(*words: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, [*words, "--data", str(data)])
        assert done.exit_code == code, done.output
        return done.stdout

    with Runtime(data, limits=LIMITS) as runtime:
        run = runtime.start(Clerk, "tea", run_id="clerk")
        runtime.start(Gate, run_id="gate")
        asked(runtime, "clerk:1", "gate:1")
        kill([soon(runtime.cluster.processes)["supervisor"].process])
        listed = perdure("asks")
        assert "How does tea go?" in listed
        assert "fast or slow" in listed
        assert [each["ask_id"] for each in json.loads(perdure("asks", "--to", "ops", "--json"))] == ["gate:1"]
        assert "It asks ops" in perdure("explain", "gate")
        answer = perdure("answer", "clerk:1", "slow", "--as", "ada", "--edit", '{"count": 3}')
        assert "is answered" in answer
        with pytest.raises(AlreadyAnswered, match=r"by ada \(cli\)"):
            runtime.answer("clerk:1", "fast")
        asked(runtime, "clerk:2", "gate:1")
        with pytest.raises(BadRequest, match=r"value\.boxes: 'many' is not of type 'integer'"):
            runtime.answer("clerk:2", {"boxes": "many"})
        assert runtime.answer("clerk:2", Size(boxes=2), who="bob")["status"] == "answered"
        assert run.result().output == ["slow", "ada", {"count": 3}, 2, True]
    perdure("stop")
    assert "gate:1" in perdure("asks")
    assert "its run goes on" in perdure("answer", "gate:1", "yes")
    with Runtime(data, limits=LIMITS) as runtime:
        assert runtime.run(Gate, run_id="gate").output == "open"
        assert runtime.asks() == []
        assert [each["status"] for each in runtime.asks(closed=True) if each["run_id"] == "gate"] == ["answered"]


def test_an_agent_asks_outside_of_its_runs_and_its_host_is_killed_meanwhile(tmp_path: Path) -> None:
    with Runtime(tmp_path / "data", limits=LIMITS) as runtime:
        counter = runtime.agent(Counter, "c")
        opening: Future[Any] = ThreadPoolExecutor().submit(counter.open)
        while len(found := {each["question"]: each for each in runtime.asks()}) < 3:
            time.sleep(0.1)
        assert {each["agent_type"] for each in found.values()} == {f"{__name__}:Counter"}
        runtime.answer(found["Open?"]["ask_id"], True, who="ada")
        assert opening.result(60) == [True, "ada"]
        kill([each.process for name, each in soon(runtime.cluster.processes).items() if name != "supervisor"])
        runtime.answer(found["Whom?"]["ask_id"], {"boxes": 3})
        assert counter.told().get("work") is None
        runtime.answer(found["Work?"]["ask_id"], "much")
        while len(told := counter.told()) < 2:
            time.sleep(0.1)
        time.sleep(1)
        assert counter.told() == told
        assert told["decided"] == [[3, True]]
        assert told["work"] == [2, "much"]
        assert runtime.asks() == []


@tool(needs_approval=Approval(to="ops"))
def refund(cents: int) -> str:
    """Pay back."""
    return f"paid {cents}"


class Till(ChatAgent):
    """Pays back what people allow."""

    model = TestModel()

    def tools(self) -> list[Any]:
        """One that is asked for."""
        return [refund]


def test_an_approval_is_answered_by_the_command_though_its_host_and_the_supervisor_died(tmp_path: Path) -> None:
    data = tmp_path / "data"

    def perdure(*words: str) -> str:
        done = CliRunner().invoke(app, [*words, "--data", str(data)])
        return done.output + str(done.exception or "")

    with Runtime(data, limits=LIMITS) as runtime:
        till = runtime.agent(Till, "dora")
        till.submit_messages("I want my money back.", request_id="refund")
        while not (asks := runtime.asks(to="ops")):
            time.sleep(0.1)
        kill([each.process for each in soon(runtime.cluster.processes).values()])
        assert runtime.asks() == asks
    perdure("stop")
    ask_id = asks[0]["ask_id"]
    assert ask_id in perdure("asks")
    assert "has to take the answer itself" in perdure("answer", ask_id, "yes")
    with Runtime(data, limits=LIMITS) as runtime:
        assert "cents" in perdure("answer", ask_id, "yes", "--edit", '{"cents": "many"}')
        assert "its turn goes on" in perdure("answer", ask_id, "yes", "--as", "ada", "--edit", '{"cents": 12}')
        assert "already answered by ada (cli)" in perdure("answer", ask_id, "no")
        till = runtime.agent(Till, "dora")
        result = till.attach("refund", follow=True)
        assert (result.status, "paid 12" in result.text, runtime.asks()) == ("completed", True, [])
