"""The runs of a turn's calls, followed beside the turn."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.actors import Client
from perdure.actors.chat.tool_run import run_ids
from perdure.actors.gateway.turn_follower import CallRuns, Framed
from perdure.scenarios.provider.faults import Pace
from perdure.scenarios.provider.script import ScriptedCall
from tests.actors.chat.desk import Outside
from tests.actors.chat.talk import call, status_of, streams, tell, until_parked
from tests.actors.chat.test_toolsets import LOOKS, Looker
from tests.gateway.world import gateway
from tests.kit import address


def test_an_approved_run_is_followed_after_the_one_that_asked() -> None:
    """Although who listens is slow to take what the first one says."""
    heard: list[tuple[str, str]] = []
    origins: list[str] = []

    async def say(framed: Framed) -> None:
        if framed.frame["run_id"] == run_ids(origins[0], framed.call_id)[0]:
            await asyncio.sleep(10)
        heard.append((framed.frame["run_id"], framed.frame["event"]["kind"]))

    async def story(client: Client) -> None:
        backend = gateway(client, [Looker]).backend
        await call(client, Looker, "submit_messages", "much", request_id="asked")
        (call_id,) = await until_parked(client, Looker)
        runs = CallRuns(backend, address(Looker, "somebody"), say)
        origins.append(await origin_of(client))
        runs.turn_origin = origins[0]
        await runs.follow(call_id)
        assert await call(client, Looker, "respond_to_approval", call_id, approved=True)
        await call(client, Looker, "attach", "asked")
        assert await status_of(client, Looker) == "completed"
        await runs.told(call_id)
        first, second = run_ids(origins[0], call_id)
        assert [each for each in heard if each[1] in ("started", "finished")] == [
            (first, "started"),
            (first, "finished"),
            (second, "started"),
            (second, "finished"),
        ]
        await runs.close()
        await backend.close()

    tell(story, LOOKS)
    assert Outside.effects["paid", 50] == 1


async def origin_of(client: Client) -> str:
    page = await call(client, Looker, "_perdure_follow_turn", "asked", 0, awaits_people=False)
    return str(page["origin"])


def looking(client: Client, say: Any) -> tuple[CallRuns, Any]:
    """Follows the runs of the turn `asked`."""
    backend = gateway(client, [Looker]).backend
    return CallRuns(backend, address(Looker, "somebody"), say), backend


def test_a_run_that_was_not_heard_of_is_found_when_something_may_have_been_missed() -> None:
    heard: list[str] = []

    async def say(framed: Framed) -> None:
        heard.append(framed.frame["event"]["kind"])

    async def story(client: Client) -> None:
        runs, backend = looking(client, say)
        await call(client, Looker, "submit_messages", "go", request_id="asked")
        runs.turn_origin = await origin_of(client)
        for _ in range(2):
            await runs.follow("call-a")
        runs._leave()  # type: ignore[misc]  # noqa: SLF001 - so that it hears of nothing
        runs._leave = None  # noqa: SLF001
        assert (await call(client, Looker, "chat", "go", request_id="asked")).ok
        await asyncio.sleep(5)
        assert (heard, len(runs.under_way)) == ([], 2)
        runs._heard(None)  # noqa: SLF001 - as it is told when a supervisor has died
        await asyncio.sleep(5)
        assert (heard[0], heard[-1], len(runs.under_way)) == ("started", "finished", 1)
        runs.raise_failures()
        await runs.close()
        assert runs.under_way == []
        await backend.close()

    tell(
        story,
        streams(*(ScriptedCall(name="look", arguments={"what": what}) for what in ("it", "that"))),
        pace=Pace(first_ms=1_000),
    )


def test_what_makes_the_following_of_a_run_fail_is_raised() -> None:
    async def say(framed: Framed) -> None:
        raise ValueError("it cannot be told")

    async def story(client: Client) -> None:
        runs, backend = looking(client, say)
        result = await call(client, Looker, "chat", "look", request_id="asked")
        (call_id,) = [part["toolCallId"] for part in result.message["parts"] if "toolCallId" in part]
        runs.turn_origin = await origin_of(client)
        await runs.follow(call_id)
        runs.raise_failures()
        await runs.told(call_id)
        with pytest.raises(ValueError, match="it cannot be told"):
            runs.raise_failures()
        await runs.close()
        await backend.close()

    tell(story, LOOKS)
