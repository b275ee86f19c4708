"""The runs of an agent, told to its connections as `agent-tool-event` frames (client protocols A.9).

One follower for each watched agent learns of its new runs. Every connection is told of the runs one after the other: what is kept of each,
then what comes, from the windows that all watchers of a run share. Of the runs that are there when it begins, those that have ended are
asked for together, many by one question. Numbers of frames are the same live and in a replay.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Final

from perdure.actors.agents_client.line import ClientSocket
from perdure.actors.agents_client.retold import ReportPace, Retold
from perdure.actors.events.reducer import SentFrame
from perdure.actors.gateway.backend import Backend
from perdure.actors.gateway.feeds import Batch, Watched
from perdure.actors.runtime.client import Client
from perdure.actors.tasks import Pending, awaited
from perdure.ledger import UnknownRun

REPLAYED_MAX: Final = 1_000
"""How many retained runs are replayed to a new connection: the newest."""
TOGETHER: Final = 200
"""How many of them one question asks for."""
AHEAD: Final = 32
"""How many runs are read before the first of them is told. What is asked at once travels together."""
Frames = list[SentFrame]


class RunList(Watched):
    """The ids of the runs of one agent, in the order of their starts."""

    def __init__(self, client: Client, agent_id: str) -> None:
        super().__init__()
        self.run_ids: list[str] = []
        self._client, self._agent_id = client, agent_id
        self._known: set[str] = set()

    async def _begun(self) -> Pending[None]:
        started = self._client.starts_of(self._agent_id)
        self._take(await anext(started))
        return self._follow(started)

    async def more_than(self, count: int) -> None:
        while len(self.run_ids) <= count:
            await self._change()

    def _take(self, run_ids: list[str]) -> None:
        new = [each for each in run_ids if each not in self._known]
        self._known.update(new)
        self.run_ids.extend(new)
        if new:
            self._wake()

    async def _follow(self, started: AsyncGenerator[list[str], None]) -> None:
        try:
            async for run_ids in started:
                self._take(run_ids)
        finally:
            self._wake()
            await started.aclose()


class _Reading:
    # The next batch is asked for while the one before is told.

    def __init__(self, batches: AsyncGenerator[Batch, None]) -> None:
        self._batches = batches
        self.go_on()

    def go_on(self) -> None:
        # Its result is None at the end of the run.
        self.upcoming: asyncio.Future[Batch | None] = awaited(anext(self._batches, None))

    async def stop(self) -> None:
        self.upcoming.cancel()
        await asyncio.gather(self.upcoming, return_exceptions=True)
        await self._batches.aclose()


class RunTeller:
    """Tells one connection of the runs of its agent."""

    def __init__(self, line: ClientSocket, backend: Backend, runs: RunList) -> None:
        self._line, self._backend, self._runs = line, backend, runs
        self._clock = asyncio.get_running_loop().time
        self._telling: set[asyncio.Task[None]] = set()
        self._ahead: deque[_Reading | Frames] = deque()  # runs that are being read, or have been, in their order

    async def serve(self) -> None:
        """Tell of all runs, those that are retained first, until the connection ends."""
        run_ids = self._runs.run_ids
        retained = len(run_ids)
        taken = max(0, retained - REPLAYED_MAX)
        found: deque[Frames | None] = deque()  # what the next runs have, as far as it is known
        try:
            while True:
                if not self._ahead and not found and taken < retained:
                    # None for each that has not ended, or has too many events to be told so.
                    found.extend(await self._backend.ask("kept", run_ids[taken : min(retained, taken + TOGETHER)]))
                while taken < len(run_ids) and len(self._ahead) < AHEAD and (found or taken >= retained):
                    frames = found.popleft() if found else None
                    self._ahead.append(_Reading(self._backend.watch(run_ids[taken])) if frames is None else frames)
                    taken += 1
                if self._ahead:
                    await self._begin(self._ahead.popleft())
                else:
                    await self._runs.more_than(taken)
        finally:
            for each in self._telling:
                each.cancel()
            readings = [each.stop() for each in self._ahead if isinstance(each, _Reading)]
            await asyncio.gather(*self._telling, *readings, return_exceptions=True)

    async def _begin(self, reading: _Reading | Frames) -> None:
        # To its end if that is at hand, else beside the others. So runs begin in their order.
        if not isinstance(reading, _Reading):
            await self._send_all(Retold(), ReportPace().chosen(reading, self._clock()))
            return
        for each in [each for each in self._telling if each.done()]:
            self._telling.discard(each)
            each.result()
        begun = asyncio.Event()
        task = awaited(self._tell(reading, begun))
        self._telling.add(task)
        waiting = awaited(begun.wait())
        try:
            await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()

    async def _tell(self, reading: _Reading, begun: asyncio.Event) -> None:
        pace, retold = ReportPace(), Retold()
        try:
            while True:
                await asyncio.wait({reading.upcoming}, timeout=pace.due_in_s(self._clock()))
                if not reading.upcoming.done():
                    await self._send_all(retold, pace.held(self._clock()))
                    continue
                batch = reading.upcoming.result()
                if batch is None:
                    return
                await self._send_all(retold, pace.chosen(batch.frames, self._clock()))
                begun.set()
                reading.go_on()
        except UnknownRun:  # it was cleared meanwhile
            return
        finally:
            await reading.stop()

    async def _send_all(self, retold: Retold, frames: list[SentFrame]) -> None:
        for frame in frames:
            for text in retold.texts(frame):
                await self._line.send_text(text)
