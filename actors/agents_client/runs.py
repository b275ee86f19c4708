"""The runs of an agent, told to its connections as `agent-tool-event` frames (client protocols A.9).

One follower for each watched agent learns of its new runs. Every connection reads the runs one after the other: what is kept of each, then
what comes, from the windows that all watchers of a run share. Numbers of frames are the same live and in a replay.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, Final

from perdure.actors.agents_client.line import Line, encoded, json_text
from perdure.actors.gateway.backend import Backend
from perdure.actors.runtime.client import Client
from perdure.actors.tasks import awaited
from perdure.ledger import UnknownRun
from perdure.policies import PROGRESS_EVERY_S, run_events

REPLAYED_MAX: Final = 1_000
"""How many retained runs are replayed to a new connection: the newest."""
AT_ONCE: Final = 8
LIVE: Final = frozenset({"starting", "running", "interrupted"})


class RunList:
    """The ids of the runs of one agent, in the order of their starts."""

    def __init__(self, client: Client, agent_id: str) -> None:
        self.run_ids: list[str] = []
        self._client, self._agent_id = client, agent_id
        self._known: set[str] = set()
        self._grown = asyncio.Event()
        self._begun = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Read the list, and follow it."""
        async with self._begun:
            if self._following is None:
                started = self._client.starts_of(self._agent_id)
                listed = anext(started)
                self._take(await listed)
                self._following = awaited(self._follow(started))

    async def stop(self) -> None:
        """Follow no more."""
        if self._following is not None:
            self._following.cancel()
            with suppress(asyncio.CancelledError):
                await self._following

    async def more_than(self, count: int) -> None:
        """Wait until there are more runs than so many."""
        while len(self.run_ids) <= count:
            if self._following is not None and self._following.done():
                self._following.result()
            await self._grown.wait()

    def _take(self, run_ids: list[str]) -> None:
        new = [each for each in run_ids if each not in self._known]
        self._known.update(new)
        self.run_ids.extend(new)
        if new:
            self._wake()

    def _wake(self) -> None:
        grown, self._grown = self._grown, asyncio.Event()
        grown.set()

    async def _follow(self, started: AsyncGenerator[list[str], None]) -> None:
        try:
            async for run_ids in started:
                self._take(run_ids)
        finally:
            self._wake()
            await started.aclose()


class RunTeller:
    """Tells one connection of the runs of its agent."""

    def __init__(self, line: Line, backend: Backend, runs: RunList) -> None:
        self._line, self._backend, self._runs = line, backend, runs
        self._telling: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def serve(self) -> None:
        """Tell of all runs, those that are retained first, until the connection ends."""
        told = max(0, len(self._runs.run_ids) - REPLAYED_MAX)
        try:
            while True:
                for run_id in self._runs.run_ids[told:]:
                    told += 1
                    await self._begin(run_id)
                await self._runs.more_than(told)
        finally:
            for each in self._telling:
                each.cancel()
            await asyncio.gather(*self._telling, return_exceptions=True)

    async def _begin(self, run_id: str) -> None:
        """Tell of a run: to its end if that is at hand, else beside the others. So runs begin in their order."""
        for each in [each for each in self._telling if each.done()]:
            self._telling.discard(each)
            each.result()
        begun = asyncio.Event()
        task = awaited(self._tell(run_id, begun))
        self._telling.add(task)
        waiting = awaited(_set(begun))
        try:
            await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()

    async def _tell(self, run_id: str, begun: asyncio.Event) -> None:
        pace = _Pace()
        with suppress(UnknownRun):  # it was cleared meanwhile
            async for batch in self._backend.watch(run_id):
                now_s = asyncio.get_running_loop().time()
                for frame in pace.chosen([json.loads(each.text) for each in batch], now_s):
                    await self._send(frame)
                begun.set()

    async def _send(self, frame: dict[str, Any]) -> None:
        about = {"parentToolCallId": frame["parent_tool_call_id"]} if "parent_tool_call_id" in frame else {}
        about |= {"replay": True} if frame.get("replay") else {}
        for number, event in run_events(frame):
            told = event if event["kind"] != "chunk" else {**event, "body": _text(event["body"])}
            await self._line.send_text(encoded("agent-tool-event", sequence=number, event=told, **about))


class _Pace:
    """Leaves out reports of progress that come too fast. The newest of a batch is told, and so is every full one."""

    def __init__(self) -> None:
        self._last_s = float("-inf")

    def chosen(self, frames: list[dict[str, Any]], now_s: float) -> list[dict[str, Any]]:
        """The frames of a batch that are told."""
        newest = max((at for at, frame in enumerate(frames) if _is_progress(frame)), default=-1)
        is_due = now_s - self._last_s >= PROGRESS_EVERY_S
        if newest >= 0 and is_due:
            self._last_s = now_s
        return [
            frame
            for at, frame in enumerate(frames)
            if not _is_progress(frame) or (at == newest and is_due) or (frame["event"].get("fraction") or 0) >= 1
        ]


def _is_progress(frame: dict[str, Any]) -> bool:
    return bool(frame["event"]["kind"] == "progress")


def _text(body: Any) -> str:
    return body if isinstance(body, str) else json_text(body)


async def _set(event: asyncio.Event) -> None:
    await event.wait()
