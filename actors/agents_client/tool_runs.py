"""The runs of an agent, told to its connections as `agent-tool-event` frames (client protocols A.9).

One follower for each watched agent learns of its new runs. Every connection is told of the runs one after the other: what is kept of each,
then what comes, from the windows that all watchers of a run share. Of the runs that are there when it begins, those that have ended are
asked for together, many by one question. Numbers of frames are the same live and in a replay.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from io import SEEK_END, StringIO
from typing import Any, Final

from perdure.actors.agents_client.frames import encoded, json_text
from perdure.actors.agents_client.line import ClientSocket
from perdure.actors.events.reducer import RunAsks, SentFrame
from perdure.actors.gateway.backend import Backend
from perdure.actors.gateway.feeds import Batch, Watched
from perdure.actors.runtime.client import Client
from perdure.actors.tasks import Pending, awaited
from perdure.ledger import LAST_EVENTS, UnknownRun, digest_of
from perdure.policies import PROGRESS_EVERY_S, JsonObject, ask_events, run_events

REPLAYED_MAX: Final = 1_000
"""How many retained runs are replayed to a new connection: the newest."""
TOGETHER: Final = 200
"""How many of them one question asks for."""
AHEAD: Final = 32
"""How many runs are read before the first of them is told. What is asked at once travels together."""
Frames = list[SentFrame]
LIVE: Final = frozenset({"starting", "running", "interrupted"})


# ---------------------------------------------------------------- retold
# The events of one run as these clients are told them: what an attempt says again is not told again.
#
# Another attempt of a chat begins with all that is durable of its turn, because our own watchers begin anew with it. These clients
# cannot: what they were told stays. What is durable contains, in the same order, all that anybody was told. So what an attempt says is
# compared with what was told, piece by piece, and only what goes beyond it is told, a text from where it broke off. An attempt that says
# something else is a step of its own, behind all that was there (client protocols H2).
#
# A watcher that comes later reads the same events, and is told the same with the same numbers.


GROWING: Final = {"text-delta": "delta", "reasoning-delta": "delta", "tool-input-delta": "inputTextDelta"}
"""Chunks that continue something, and the field by which they do."""

Told = tuple[int, JsonObject]


@dataclass(eq=False)
class RunPiece:
    # A chunk, or chunks in a row that continue the same: what it is, and what it adds if it grows.
    what: str
    adds: str | None = None
    text: StringIO = field(default_factory=StringIO)
    length: int = 0

    def grow(self, more: str) -> None:
        self.text.seek(0, SEEK_END)
        self.text.write(more)
        self.length += len(more)

    def has(self, at: int, said: str) -> bool:
        self.text.seek(at)
        return said.startswith(self.text.read(len(said)))


class Retold:
    """What one connection was told of one run."""

    def __init__(self) -> None:
        self._attempt = 1
        self._step: list[Told] = []
        self._pieces: list[RunPiece] = []
        self._at, self._within = 0, 0
        """How many pieces the present attempt has said, and how much of the next one."""
        self._again: list[Told] = []
        """What it has said again."""
        self._asks = RunAsks()

    def events(self, frame: SentFrame) -> list[Told]:
        # Each event has its number.
        event = frame["event"]
        asked = ask_events(frame, self._asks.take(event))
        if asked:
            last = asked[-1][0] + 1
            return asked + [(last + at, told) for at, (_, told) in enumerate(run_events(frame))]
        if event["kind"] == "attempt":
            if event["attempt"] > self._attempt:
                self._attempt, self._step = event["attempt"], run_events(frame)
                self._at, self._within, self._again = 0, 0, []
            return []
        if event["kind"] != "chunk":
            return run_events(frame)
        return [told for number, chunk in run_events(frame) for told in self._beyond(number, chunk)]

    def _beyond(self, number: int, chunk: JsonObject) -> list[Told]:
        piece = _piece(chunk["body"])
        self._step_over_other_than(piece)
        if self._at == len(self._pieces):
            return self._add(piece, number, chunk)
        known, is_last = self._pieces[self._at], self._at == len(self._pieces) - 1
        if known.what != piece.what:
            return self._begin_anew(number, chunk)
        if piece.adds is None:
            self._at += 1
            self._again.append((number, chunk))
            return []
        left = known.length - self._within
        if not known.has(self._within, piece.adds) or (len(piece.adds) > left and not is_last):
            return self._begin_anew(number, chunk)
        self._within += len(piece.adds)
        if len(piece.adds) <= left:
            self._again.append((number, chunk))
            return []
        known.grow(piece.adds[left:])
        self._again = []
        body: Any = chunk["body"]
        return [(number, {**chunk, "body": {**body, GROWING[body["type"]]: piece.adds[left:]}})]

    def _step_over_other_than(self, piece: RunPiece) -> None:
        # If this is another piece, nothing more of the present one comes.
        if self._at < len(self._pieces):
            known = self._pieces[self._at]
            if known.adds is not None and known.what != piece.what and known.length == self._within:
                self._at, self._within = self._at + 1, 0

    def _add(self, piece: RunPiece, number: int, chunk: JsonObject) -> list[Told]:
        self._pieces.append(piece)
        self._again = []
        if piece.adds is None:
            self._at += 1
        else:
            piece.grow(piece.adds)
            self._within = piece.length
        return [(number, chunk)]

    def _begin_anew(self, number: int, chunk: JsonObject) -> list[Told]:
        # The attempt says something else than the one before: all of it is told, as a step of its own.
        told = [*self._again, (number, chunk)]
        self._pieces, self._at, self._within, self._again = [], 0, 0, []
        return [*self._step, *(each for at, said in told for each in self._beyond(at, said))]


def _piece(body: Any) -> RunPiece:
    kind = body.get("type") if isinstance(body, dict) else None
    if kind in GROWING and isinstance(body.get(GROWING[kind]), str):
        about = {name: value for name, value in body.items() if name != GROWING[kind]}
        return RunPiece(digest_of(json_text(about).encode()), body[GROWING[kind]])
    return RunPiece(digest_of(json_text(body).encode()))


# ---------------------------------------------------------------- runs


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
            await self._send_all(Retold(), _Pace().chosen(reading, self._clock()))
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
        pace, retold = _Pace(), Retold()
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
            about: dict[str, object] = {"replay": True} if frame.get("replay") else {}
            if "parent_tool_call_id" in frame:
                about["parentToolCallId"] = frame["parent_tool_call_id"]
            for number, event in retold.events(frame):
                is_text = event["kind"] != "chunk" or isinstance(event["body"], str)
                told = event if is_text else {**event, "body": json_text(event["body"])}
                await self._line.send_text(encoded("agent-tool-event", sequence=number, event=told, **about))


class _Pace:
    """Holds reports of progress back that come too fast. The newest is told when it is time, and a full one at once."""

    def __init__(self) -> None:
        self._last_s = float("-inf")
        self._held: SentFrame | None = None

    def due_in_s(self, now_s: float) -> float | None:
        return None if self._held is None else max(0.0, self._last_s + PROGRESS_EVERY_S - now_s)

    def held(self, now_s: float) -> list[SentFrame]:
        held, self._held = self._held, None
        if held is None:
            return []
        self._last_s = now_s
        return [held]

    def chosen(self, frames: list[SentFrame], now_s: float) -> list[SentFrame]:
        # A report that is held back is told before the end, unless there is a newer one.
        is_end = bool(frames) and frames[-1]["event"]["kind"] in LAST_EVENTS
        newest = max((at for at, frame in enumerate(frames) if _is_progress(frame)), default=-1)
        if newest >= 0:
            is_early = now_s - self._last_s < PROGRESS_EVERY_S and not is_end and not _is_full(frames[newest])
            self._held, self._last_s = (frames[newest], self._last_s) if is_early else (None, now_s)
        told = [
            frame
            for at, frame in enumerate(frames)
            if not _is_progress(frame) or _is_full(frame) or (at == newest and self._held is None)
        ]
        if any(frame["event"]["kind"] == "milestone" for frame in frames[newest + 1 :]):
            self._held = None  # clients take a milestone as the newest progress
        return [*self.held(now_s), *told] if is_end else told


def _is_full(frame: SentFrame) -> bool:
    return bool((frame["event"].get("fraction") or 0) >= 1)


def _is_progress(frame: SentFrame) -> bool:
    return bool(frame["event"]["kind"] == "progress")
