"""The runs of a turn's calls, followed beside the turn."""

from __future__ import annotations

import asyncio

from perdure.actors import Client
from perdure.actors.chat.approvals import run_ids
from perdure.actors.gateway.call_runs import CallRuns, Framed
from tests.actors.chat.desk import Outside
from tests.actors.chat.talk import call, status_of, tell, until_parked
from tests.actors.chat.test_toolsets import LOOKS, Looker
from tests.gateway.world import gateway
from tests.kit import address


def test_an_approved_run_is_followed_after_the_one_that_asked() -> None:
    """Although who listens is slow to take what the first one says."""
    heard: list[tuple[str, str]] = []

    async def say(framed: Framed) -> None:
        if framed.frame["run_id"] == run_ids("asked", framed.call_id)[0]:
            await asyncio.sleep(10)
        heard.append((framed.frame["run_id"], framed.frame["event"]["kind"]))

    async def story(client: Client) -> None:
        backend = gateway(client, [Looker]).backend
        await call(client, Looker, "submit_messages", "much", request_id="asked")
        (call_id,) = await until_parked(client, Looker)
        runs = CallRuns(backend, address(Looker, "somebody"), "asked", say)
        await runs.follow(call_id)
        assert await call(client, Looker, "respond_to_approval", call_id, approved=True)
        await call(client, Looker, "attach", "asked")
        assert await status_of(client, Looker) == "completed"
        await runs.told(call_id)
        first, second = run_ids("asked", call_id)
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
