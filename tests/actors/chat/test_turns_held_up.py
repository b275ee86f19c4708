"""Tools and hooks that take their cancellation for an error like any other, and go on: their turn is not held up."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, ClassVar

import pytest

from perdure.actors import Client, tool
from perdure.ledger import StaleIncarnation
from perdure.policies import Limits
from perdure.scenarios.provider.script import ScriptedCall
from tests.actors.chat.desk import Adder, Outside
from tests.actors.chat.talk import asks_for, call, tell, until, values

LIMIT_MS, GRACE_S, GOES_ON_S = 10_000, Limits().teardown_grace_ms / 1000, 200.0


async def goes_on(agent: Adder) -> str:
    """Goes on after its cancellation, and tries then to write."""
    Talker.began_s.append(asyncio.get_running_loop().time())
    for _ in range(2):
        with suppress(BaseException):
            await asyncio.sleep(GOES_ON_S)
    with pytest.raises(StaleIncarnation):
        agent.state["late"] = 1
    Talker.refused += 1
    return "late"


@tool(timeout_ms=LIMIT_MS)
async def apart(what: str) -> str:
    """A run of its own."""
    return await goes_on(Adder())


class Talker(Adder):
    """Its tools go on, or the one of its hooks that a test names."""

    deaf: ClassVar[str] = ""
    began_s: ClassVar[list[float]] = []
    refused: ClassVar[int] = 0

    def tools(self) -> list[Any]:
        return [*super().tools(), apart]

    @tool(timeout_ms=LIMIT_MS)
    async def here(self, what: str) -> str:
        """In this very process."""
        return await goes_on(self)

    async def _is_deaf(self, hook: str) -> None:
        if Talker.deaf == hook:
            await goes_on(self)

    async def get_instructions(self) -> str:
        await self._is_deaf("get_instructions")
        return "be kind"

    async def get_model_settings(self) -> None:
        await self._is_deaf("get_model_settings")

    async def get_model(self) -> Any:
        await self._is_deaf("get_model")
        return Outside.model


@pytest.mark.parametrize("place", ["here", "apart"])
def test_a_tool_that_goes_on_after_its_time_holds_up_no_turn_and_what_it_comes_to_counts_for_nothing(
    place: str,
) -> None:
    Talker.deaf, Talker.began_s, Talker.refused = "", [], 0

    async def story(client: Client) -> list[Any]:
        result = await call(client, Talker, "chat", "go", request_id="asked")
        assert result.ok
        assert asyncio.get_running_loop().time() - Talker.began_s[0] < LIMIT_MS / 1000 + GRACE_S + 1
        assert (await call(client, Talker, "chat", "words")).ok
        await asyncio.sleep(GOES_ON_S)
        messages = await call(client, Talker, "get_messages")
        (words,) = [each for message in messages for each in values(message, "errorText")]
        assert words.startswith("OUTCOME UNKNOWN: its time was over")
        return [each for message in messages for each in values(message, "output")]

    outputs: list[Any] = []

    async def told(client: Client) -> None:
        outputs.extend(await story(client))

    tell(told, asks_for(ScriptedCall(name=place, arguments={"what": "a"})))
    assert (outputs, len(Talker.began_s)) == ([], 1)
    assert Talker.refused == (place == "here")


@pytest.mark.parametrize("place", ["here", "get_instructions", "get_model_settings", "get_model"])
def test_code_that_goes_on_after_the_cancel_of_its_turn_does_not_hold_it_up(place: str) -> None:
    Talker.deaf, Talker.began_s, Talker.refused = place, [], 0

    async def story(client: Client) -> None:
        asking = asyncio.ensure_future(call(client, Talker, "chat", "go", request_id="asked"))
        await until(lambda: bool(Talker.began_s))
        await call(client, Talker, "cancel_chat", "asked", "enough")
        assert (await asking).status == "aborted"
        assert asyncio.get_running_loop().time() - Talker.began_s[0] < GRACE_S + 1
        Talker.deaf, requests = "", len(Outside.provider.log())
        assert (await call(client, Talker, "chat", "words")).ok
        await asyncio.sleep(GOES_ON_S)
        assert len(Outside.provider.log()) == requests + 1, "the turn that was cancelled asked for nothing more"

    tell(story, asks_for(ScriptedCall(name="here", arguments={"what": "a"})))
    assert (Talker.refused, len(Talker.began_s)) == (1, 1)
