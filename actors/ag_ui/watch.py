"""A turn and the runs of its calls, followed at once, for one reader who takes what he can.

The queue between is short, so a slow reader stops those who ask. A call's result is told after everything that its run has said. A run is
looked for when its call is complete, and found when its parent has requested it: its first event says so.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, Final, NamedTuple

from perdure.actors.chat.approvals import first_run_id
from perdure.actors.chat.tool_run import RepeatableToolRun, ToolRun
from perdure.actors.code.naming import type_name
from perdure.actors.gateway.backend import Backend, Reached, asked
from perdure.actors.link.messages import Fields
from perdure.actors.tasks import awaited
from perdure.ledger import HARD, UnknownRun
from perdure.policies import TURN_ENDED, TurnStatus

AT_ONCE: Final = 64
FUNCTIONS: Final = frozenset({type_name(ToolRun), type_name(RepeatableToolRun)})
OUTPUTS: Final = frozenset({"tool-output-available", "tool-output-error", "tool-output-denied"})


class Said(NamedTuple):
    """An event of the turn's stream."""

    event: Fields


class Framed(NamedTuple):
    """An event of the run of a call."""

    frame: Fields
    is_agent: bool


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
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._requested: dict[str, asyncio.Event] = {}

    async def items(self) -> AsyncGenerator[Item, None]:
        """Everything, in order. Raises what the agent or the supervisor raised."""
        client = await self._backend.client()
        leave = client.hear(self._reached.agent_id, self._heard)
        turn = awaited(self._turn())
        getting = awaited(self._out.get())
        try:
            while True:
                await asyncio.wait({getting, turn, *self._under_way()}, return_when=asyncio.FIRST_COMPLETED)
                self._raise_failures(turn)
                if not getting.done():
                    continue
                item = getting.result()
                getting = awaited(self._out.get())
                yield item
                if isinstance(item, Over):
                    return
        finally:
            leave()
            tasks: list[asyncio.Task[Any]] = [getting, turn, *self._runs.values()]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _raise_failures(self, turn: asyncio.Task[None]) -> None:
        for ended in [each for each in (turn, *self._runs.values()) if each.done()]:
            ended.result()

    def _under_way(self) -> list[asyncio.Task[None]]:
        return [each for each in self._runs.values() if not each.done()]

    def _heard(self, frame: Fields | None) -> None:
        """A run of this agent says something; None if something may have been missed."""
        found = self._requested if frame is None else {frame["run_id"]} & self._requested.keys()
        for run_id in found:
            self._requested[run_id].set()

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

    async def _say(self, event: Fields) -> None:
        kind, call_id = event["type"], str(event.get("toolCallId") or "")
        if kind in OUTPUTS and call_id:
            await self._run_told(call_id)
        await self._out.put(Said(event))
        if kind == "tool-input-available" and not event.get("providerExecuted"):
            run_id = self._run_id(call_id)
            if run_id not in self._runs:
                self._requested[run_id] = asyncio.Event()
                self._runs[run_id] = awaited(self._run(run_id))
        elif kind in OUTPUTS:
            await self._out.put(Paused())

    def _run_id(self, call_id: str) -> str:
        return first_run_id(self._request_id, call_id)

    async def _run_told(self, call_id: str) -> None:
        """Wait until all is told that the run of a call has said, if that run has ended."""
        run_id = self._run_id(call_id)
        if run_id in self._runs and not self._runs[run_id].done():
            known: Any = await (await self._backend.client()).ask("inspect", run_id)
            if known is not None and known["status"] in HARD:
                self._requested[run_id].set()
                await asyncio.wait({self._runs[run_id]})

    async def _run(self, run_id: str) -> None:
        """The events of a run, once it is requested. A call without a run of its own has none."""
        requested = self._requested[run_id]
        while True:
            requested.clear()
            with suppress(UnknownRun):
                await self._frames(run_id)
                return
            await requested.wait()

    async def _frames(self, run_id: str) -> None:
        is_agent = False
        async for batch in self._backend.watch(run_id):
            for each in batch:
                frame = json.loads(each.text)
                if frame["event"]["kind"] == "started":
                    is_agent = frame["event"]["agent_type"] not in FUNCTIONS
                await self._out.put(Framed(frame, is_agent))
