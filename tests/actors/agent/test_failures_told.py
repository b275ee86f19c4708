"""What authors' code raises can be debugged: its traceback is with the failure, in `show` and `explain`, and in the log of its area."""

from __future__ import annotations

import asyncio
import logging
import sys
import traceback
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, FunctionModel

from perdure.actors import Agent, ChatAgent, Detached, RemoteError, RunContext, exposed
from perdure.actors.code.author_call import in_words, traced
from tests.kit import Stage, play


def divide(by: int) -> float:
    return 1 / by


class Divider(Agent):
    """Fails in a function that it calls."""

    stands_alone = True

    async def run(self, input: int, run: RunContext) -> float:
        try:
            return divide(input)
        except ZeroDivisionError as problem:
            raise ValueError("no number") from problem

    @exposed
    def divided(self, by: int) -> float:
        """The same in a call, on a thread."""
        return divide(by)


class Leaver(Agent):
    """Believes that it is a script."""

    stands_alone = True

    async def run(self, input: int) -> None:
        sys.exit(input)

    @exposed
    def left(self) -> None:
        """The same on a thread."""
        sys.exit()


class Unready(Agent):
    """Cannot come up."""

    attempts_max = 1

    def on_start(self) -> None:
        divide(0)

    async def run(self, input: int) -> int:
        return input


class Follower(Agent):
    """Has a handler, a fiber and a callback that fail."""

    @exposed
    async def begin(self) -> None:
        """Ask for all of them."""
        await self.run_agent_tool(Divider, 0, run_id="followed", detached=Detached(on_finish="on_end"))
        self.start_fiber("job", self.job)
        self.queue("called", None)

    def on_end(self, run: Any, result: Any) -> None:
        """Knows why the child failed, and fails as well."""
        self.state["trace"] = result.failure.trace
        raise LookupError(result.failure.trace.splitlines()[-1])

    async def job(self) -> None:
        """The fiber."""
        divide(0)

    def called(self, payload: None, occurrence: Any) -> None:
        """The callback."""
        divide(0)


def test_a_failed_run_has_the_frames_of_its_author_and_so_have_show_explain_and_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(stage: Stage) -> None:
        result = await stage.client.run(Divider, 0, run_id="one")
        trace = result.failure.trace
        assert trace.count("Traceback (most recent call last):") == 2
        assert "return 1 / by" in trace
        assert "in run\n" in trace
        assert "perdure/actors" not in trace
        assert trace.endswith("ValueError: no number")
        again = await stage.client.run(Divider, 0, run_id="one")
        assert (again.failure.trace, (await stage.client.ask("show", "one"))["trace"]) == (trace, trace)
        assert trace in "\n".join(await stage.client.ask("explain", "one"))
        assert (await stage.client.run(Divider, 1)).output == 1

    play(story)
    (record,) = [each for each in caplog.records if each.name == "perdure.agents.run"]
    assert (vars(record)["run_id"], record.levelno) == ("one", logging.WARNING)
    assert "failed in attempt 1 at run one:\nTraceback" in record.getMessage()


async def test_an_agent_that_leaves_by_sys_exit_has_failed_and_its_host_lives(stage: Stage) -> None:
    failed = await stage.client.run(Leaver, 4, run_id="leaves")
    assert failed.error.startswith("RuntimeError: the code called sys.exit(4)")
    assert "sys.exit(input)" in failed.failure.trace
    with pytest.raises(RemoteError, match=r"sys\.exit\(None\)"):
        await stage.client.agent(Leaver, "l").left()


async def test_a_failed_call_shows_where_it_was_raised(stage: Stage) -> None:
    with pytest.raises(RemoteError, match="division by zero") as failed:
        await stage.client.agent(Divider, "d").divided(0)
    shown = "".join(traceback.format_exception(failed.value))
    assert "return 1 / by" in shown
    assert "in divided\n" in shown


def test_what_fails_in_the_background_is_in_the_log_of_its_area(caplog: pytest.LogCaptureFixture) -> None:
    async def story(stage: Stage) -> None:
        await stage.call(Follower, "begin")
        await asyncio.sleep(5)

    play(story)
    said = {each.name.rpartition(".")[2]: each.getMessage() for each in caplog.records if "perdure.agents" in each.name}
    assert {"run", "handler", "fiber", "callback"} <= said.keys()
    assert all("Traceback (most recent call last):" in each for each in said.values())
    assert "LookupError: ValueError: no number" in said["handler"]


def test_an_agent_that_does_not_come_up_for_its_run_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def story(stage: Stage) -> None:
        failed = await stage.client.run(Unready, 1, run_id="one")
        assert failed.status != "completed"

    play(story)
    (record, *_) = [each for each in caplog.records if each.name == "perdure.agents.run"]
    assert (vars(record)["run_id"], "return 1 / by" in record.getMessage()) == ("one", True)


def test_an_error_for_want_of_memory_says_what_bounds_it() -> None:
    told = in_words(MemoryError())
    assert told.startswith("MemoryError: the process got no more memory; ")
    assert "RLIMIT_AS" in told


def test_a_traceback_that_is_too_long_loses_its_middle() -> None:
    def deep(left: int) -> None:
        if not left:
            raise RuntimeError("x" * 50)
        (deep if left % 2 else lambda more: deep(more))(left - 1)  # noqa: PLW0108 - frames that differ are not folded

    try:
        deep(60)
    except RuntimeError as problem:
        told = traced(problem, 400)
    assert len(told) < 420
    assert told.startswith("Traceback")
    assert told.endswith("x" * 50)
    assert "\n  …\n" in told


async def broken_at_once(_messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[str]:
    raise ArithmeticError("a model of our own is broken")
    yield ""


async def broken_midway(_messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[str]:
    yield "so far"
    raise ArithmeticError("a model of our own is broken")


async def refused(_messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[str]:
    raise ModelHTTPError(401, "a model", "no such key")
    yield ""


class Chatty(ChatAgent):
    """Its model is replaced by each test."""


@pytest.mark.parametrize(("answers", "logged"), [(broken_at_once, True), (broken_midway, True), (refused, False)])
def test_what_the_code_of_a_model_raises_is_in_the_log_and_what_a_provider_says_is_not(
    answers: Any, logged: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(stage: Stage) -> None:
        result = await stage.call(Chatty, "chat", "hello")
        assert "a model" in str(result) or "no such key" in str(result)

    monkeypatch.setattr(Chatty, "model", FunctionModel(stream_function=answers))
    play(story)
    said = [each.getMessage() for each in caplog.records if each.name == "perdure.agents.model"]
    assert bool(said) is logged
    for each in said:
        assert "to its model:\nTraceback (most recent call last):" in each
        assert f"in {answers.__name__}\n" in each
        assert each.endswith("ArithmeticError: a model of our own is broken")
