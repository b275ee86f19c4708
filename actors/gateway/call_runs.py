"""The runs of a turn's calls, followed beside the turn.

A run is looked for when its call is complete, and found when its parent has requested it: its first event says so. A call that is no run of
its own is looked for in vain. If the run of a call asked for approval, the approved one is a second run, and is followed after the first.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, NamedTuple

from perdure.actors.chat.approvals import run_ids
from perdure.actors.chat.tool_run import RepeatableToolRun, ToolRun
from perdure.actors.code.naming import type_name
from perdure.actors.events.reducer import SentFrame
from perdure.actors.gateway.backend import Backend
from perdure.actors.link.messages import Fields
from perdure.actors.tasks import awaited
from perdure.ledger import HARD, UnknownRun

FUNCTIONS: Final = frozenset({type_name(ToolRun), type_name(RepeatableToolRun)})


class Framed(NamedTuple):
    """An event of the run of a call; whether the run is that of an agent, and not of a function."""

    call_id: str
    frame: SentFrame
    is_agent: bool


class CallRuns:
    """Follows the runs of the calls of one turn.

    Args:
        agent_id: who plays the turn.
        say: is given each event. It may make the runs wait.
    """

    def __init__(
        self, backend: Backend, agent_id: str, request_id: str, say: Callable[[Framed], Awaitable[None]]
    ) -> None:
        self._backend, self._agent_id, self._request_id, self._say = backend, agent_id, request_id, say
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._requested: dict[str, asyncio.Event] = {}
        self._approved: set[str] = set()  # second runs that were heard of
        self._leave: Callable[[], None] | None = None

    async def follow(self, call_id: str) -> None:
        """Follow the run of a call, if it has one."""
        first, second = run_ids(self._request_id, call_id)
        if first in self._runs:
            return
        if self._leave is None:
            self._leave = (await self._backend.client()).hear(self._agent_id, self._heard)
        self._requested |= {first: asyncio.Event(), second: asyncio.Event()}
        self._runs[first] = awaited(self._run(call_id, first))
        self._runs[second] = awaited(self._after(first, call_id, second))

    @property
    def under_way(self) -> list[asyncio.Task[None]]:
        """The runs that are followed now."""
        return [each for each in self._runs.values() if not each.done()]

    def raise_failures(self) -> None:
        """Raise what made the following of a run fail."""
        for ended in [each for each in self._runs.values() if each.done()]:
            ended.result()

    async def told(self, call_id: str) -> None:
        """Wait until all is told that the run of a call has said, if that run has ended."""
        first, second = run_ids(self._request_id, call_id)
        for run_id in (first, second) if second in self._approved else (first,):
            if run_id in self._runs and not self._runs[run_id].done():
                await self._told(run_id)

    async def _told(self, run_id: str) -> None:
        known = await self._backend.ask("inspect", run_id)
        if known is not None and known["status"] in HARD:
            self._requested[run_id].set()
            await asyncio.wait({self._runs[run_id]})

    async def close(self) -> None:
        """Follow nothing more."""
        if self._leave is not None:
            self._leave()
        for each in self._runs.values():
            each.cancel()
        await asyncio.gather(*self._runs.values(), return_exceptions=True)

    def _heard(self, frame: Fields | None) -> None:
        """A run of this agent says something; None if something may have been missed."""
        found = self._requested if frame is None else {frame["run_id"]} & self._requested.keys()
        for run_id in found:
            self._requested[run_id].set()

    async def _after(self, first: str, call_id: str, second: str) -> None:
        """Follow the second run of a call, if there is one."""
        await self._requested[second].wait()
        self._approved.add(second)
        await asyncio.wait({self._runs[first]})
        await self._run(call_id, second)

    async def _run(self, call_id: str, run_id: str) -> None:
        requested = self._requested[run_id]
        while True:
            requested.clear()
            with suppress(UnknownRun):
                await self._frames(call_id, run_id)
                return
            await requested.wait()

    async def _frames(self, call_id: str, run_id: str) -> None:
        is_agent = False
        async for batch in self._backend.watch(run_id):
            for each in batch:
                frame = json.loads(each.text)
                if frame["event"]["kind"] == "started":
                    is_agent = frame["event"]["agent_type"] not in FUNCTIONS
                await self._say(Framed(call_id, frame, is_agent))
