"""What a verb of a chat agent gives where it is called: in sync code its value, in async code what is awaited, and no answer before."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, ClassVar

import pytest
from pydantic_ai.models.test import TestModel

from perdure.actors import ChatAgent, client_tool, exposed
from perdure.actors.agent.exposing import blocking, verb
from perdure.ledger import BadRequest
from tests.actors.chat.desk import Adder
from tests.actors.chat.room import Room, visiting
from tests.actors.chat.test_people_waited_for import ASK, NOTHING, Asker
from tests.actors.one_process import OneProcess, play
from tests.kit import played

ASKED: dict[str, Any] = {"type": "tool-ask", "toolCallId": "c1", "state": "input-available", "input": {}}


class Plain(ChatAgent):
    """Its methods are sync, as an author's of seed 000 may be."""

    model: ClassVar[Any] = TestModel(custom_output_text="Indeed.", call_tools=[])

    def tools(self) -> list[Any]:
        """One question."""
        return [client_tool("ask", "Ask.", NOTHING)]

    @exposed
    def look(self) -> list[Any]:
        """What there is, and whether somebody is waited for before and after a question."""
        before = self.has_pending_interaction()
        blocking(self.add_messages([{"id": "asked", "role": "assistant", "parts": [ASKED]}]))
        after = "yes" if self.has_pending_interaction() else "no"
        told: Any = self.get_messages()
        return [before, after, [each["id"] for each in told], self.has_agent_tool_run(Adder, "none")]

    @exposed
    def submit(self) -> Any:
        """Ask for a turn in a transaction, and take that back; then in one that holds."""
        with suppress(LookupError), self.transaction():
            self.submit_messages("first", request_id="first")
            raise LookupError
        with self.transaction():
            told: Any = self.submit_messages("second", request_id="second")
        with pytest.raises(BadRequest, match="blank"):
            self.submit_messages(" ")
        return [told["request_id"], self.inspect_turn("first")]


@played(play)
async def test_in_sync_code_every_verb_of_a_chat_agent_gives_its_value(process: OneProcess, /) -> None:
    """They run on the loop, in the caller's transaction, and what they raise is raised there."""
    plain: Any = process.client.agent(Plain, "somebody")
    assert await plain.look() == [False, "yes", ["asked"], False]
    assert await plain.submit() == ["second", None]
    assert (await plain.attach("second")).text == "Indeed."


def test_every_public_async_method_of_a_chat_agent_that_authors_call_is_a_verb() -> None:
    overridden = {name for name in vars(ChatAgent) if name.startswith(("on_", "format_", "get_agent", "summarize"))}
    found = {name for name, each in vars(ChatAgent).items() if asyncio.iscoroutinefunction(each)}
    assert {name for name in found - overridden if not name.startswith("_")} == {"run"}


class Hasty(Asker):
    """Asks without waiting for the answer."""

    @exposed
    async def hasty(self) -> list[Any]:
        """What becomes of a verb that is not awaited, and whether somebody is waited for."""
        words = []
        for call in (self.wait_until_stable, lambda: self.has_agent_tool_run(Adder, "x"), self.get_messages):
            job: Any = call()
            with pytest.raises(TypeError) as problem:
                bool(job)
            words.append(str(problem.value))
            job.close()
        return ["waits" if self.has_pending_interaction() else "rests", *words]


@visiting(Hasty, ASK)
async def test_whether_somebody_is_waited_for_is_a_plain_truth_in_the_agent_and_what_is_not_awaited_has_none(
    room: Room, /
) -> None:
    """Seed 000: `hasPendingInteraction(): boolean`."""
    said, *words = await room.do("hasty")
    assert said == "rests"
    for name, each in zip(("wait_until_stable", "has_agent_tool_run", "get_messages"), words, strict=True):
        assert f"{name} was called in async code, so it must be awaited" in each
    await room.do("chat", "ask")
    assert (await room.do("hasty"))[0] == "waits"
    assert await room.do("has_pending_interaction") is True
    await room.do("clear")
    assert (await room.do("hasty"))[0] == "rests"


def test_a_verb_is_whatever_a_coroutine_is_to_asyncio() -> None:
    class Agent:
        class _perdure:  # noqa: N801
            bridge = staticmethod(lambda job: job)

        @verb
        async def twice(self, number: int) -> int:
            await asyncio.sleep(0)
            if number < 0:
                raise ValueError(number)
            return 2 * number

    async def story() -> None:
        agent = Agent()
        assert await asyncio.gather(agent.twice(1), asyncio.create_task(agent.twice(2))) == [2, 4]
        assert await asyncio.wait_for(agent.twice(3), 1) == 6
        with pytest.raises(ValueError, match="-1"):
            await asyncio.ensure_future(agent.twice(-1))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(agent.twice(4))
        assert task.result() == 8

    asyncio.run(story())
