"""A turn and the runs of its calls, followed at once, for one reader who takes what he can.

The queue between is short, so a slow reader stops those who ask. A call's result is told after everything that its run has said.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final, NamedTuple

from perdure.actors.gateway.backend import Backend, Reached, asked
from perdure.actors.gateway.call_runs import CallRuns, Framed
from perdure.actors.tasks import awaited
from perdure.policies import TURN_ENDED, Event, TurnStatus

AT_ONCE: Final = 64
OUTPUTS: Final = frozenset({"tool-output-available", "tool-output-error", "tool-output-denied"})


class Said(NamedTuple):
    """An event of the turn's stream."""

    event: Event


class Paused(NamedTuple):
    """Nothing was said for a while, or a call has ended: the agent's state may have changed."""


class Over(NamedTuple):
    """The turn has ended, or is parked. Nothing follows."""

    status: str
    error: str
    reason: str


Item = Said | Framed | Paused | Over


class TurnWatch:
    """Follows one turn from its first event to its end, or until it waits for a person."""

    def __init__(self, backend: Backend, reached: Reached, request_id: str) -> None:
        self._backend, self._reached, self._request_id = backend, reached, request_id
        self._out: asyncio.Queue[Item] = asyncio.Queue(AT_ONCE)
        self._runs = CallRuns(backend, reached.agent_id, request_id, self._out.put)

    async def items(self) -> AsyncGenerator[Item, None]:
        """Everything, in order. Raises what the agent or the supervisor raised."""
        turn = awaited(self._turn())
        getting = awaited(self._out.get())
        try:
            while True:
                await asyncio.wait({getting, turn, *self._runs.under_way}, return_when=asyncio.FIRST_COMPLETED)
                if turn.done():
                    turn.result()
                self._runs.raise_failures()
                if not getting.done():
                    continue
                item = getting.result()
                getting = awaited(self._out.get())
                yield item
                if isinstance(item, Over):
                    return
        finally:
            tasks: list[asyncio.Task[object]] = [getting, turn]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await self._runs.close()

    async def _turn(self) -> None:
        first = 0
        while True:
            told = await asked(self._reached.handle._perdure_follow_turn(self._request_id, first))  # noqa: SLF001 - ours
            for event in told["events"]:
                await self._say(event)
            first = told["next"]
            if first >= told["next_event"] and told["status"] in (*TURN_ENDED, TurnStatus.PARKED):
                await self._out.put(Over(told["status"], told["error"], told["reason"]))
                await asyncio.Event().wait()  # the reader ends the watch
            await self._out.put(Paused())

    async def _say(self, event: Event) -> None:
        kind, call_id = event["type"], str(event.get("toolCallId") or "")
        if kind in OUTPUTS and call_id:
            await self._runs.told(call_id)
        await self._out.put(Said(event))
        if kind == "tool-input-available" and not event.get("providerExecuted"):
            await self._runs.follow(call_id)
        elif kind in OUTPUTS:
            await self._out.put(Paused())
