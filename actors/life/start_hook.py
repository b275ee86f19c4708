"""The author's `on_start`: called once in each life, before anything else of it, and bounded.

Everything of a life waits for it. So one that waits for somebody who waits for this agent (a child that calls its parent back) would
hold up all of them for ever. After `on_start_timeout_ms` it is cancelled, and has failed like one that raises: who waits is told, the
life is over, and whoever needs the agent next begins another one. Sync code cannot be cancelled; its storage and the runtime are closed to
it, and as long as its thread goes on its host counts as worn.
"""

from __future__ import annotations

import asyncio

from perdure.actors.life.activity import ACTIVITY, Activity
from perdure.actors.life.life import Life
from perdure.ledger import StartTimedOut


async def call_on_start(life: Life) -> None:
    """Call it. Raises what it raises, and `StartTimedOut`."""
    ACTIVITY.set(Activity(f"{life.agent_id}/{life.incarnation}"))
    timeout_ms = life.limits.on_start_timeout_ms
    bound = asyncio.timeout(timeout_ms / 1000)
    try:
        async with bound:
            await life.call(life.agent.on_start)
    except TimeoutError:
        if not bound.expired():
            raise  # its own
        raise StartTimedOut(life.agent_id, timeout_ms) from None
