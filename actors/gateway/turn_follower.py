"""One turn of a chat agent and the runs of its calls, followed for one reader through every death behind the gateway.

A page of the turn's events is asked for when the reader has taken the one before, and what the runs say waits in a short queue. So a slow
reader costs no memory. What is durable comes first, so a reader that comes later is told the same from the beginning.

Each page costs its host a commit, and both processes a part of a call. So the more turns one gateway follows, the more rarely each is
asked about, and its pages are longer: never more than 2,500 pages a second in all, and one turn alone does not wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Final, NamedTuple, Self

from perdure.actors.chat.followers import TurnPages, is_newest
from perdure.actors.chat.tool_run import RepeatableToolRun, ToolRun, run_ids
from perdure.actors.chat.turn import TurnPage
from perdure.actors.code.naming import type_name
from perdure.actors.events.message_parts import CALL_ENDS
from perdure.actors.events.reducer import SentFrame
from perdure.actors.gateway.backend import Backend, Reached
from perdure.actors.link.messages import Fields
from perdure.actors.tasks import awaited
from perdure.ledger import HARD, UnknownRun
from perdure.policies import Event

FUNCTIONS: Final = frozenset({type_name(ToolRun), type_name(RepeatableToolRun)})
FRAMES_MAX: Final = 64
PAGE_S: Final = 0.0004
PAUSE_MOST_S: Final = 0.25


class Framed(NamedTuple):
    """An event of the run of a call; whether the run is that of an agent, and not of a function."""

    call_id: str
    frame: SentFrame
    is_agent: bool


class TurnFollower:
    """Follows one turn from its first event, and the runs of those of its calls that the reader names.

    Args:
        backend: of the gateway; its `following` counts the turns that are followed now.
        reached: who plays the turn.
        opening: the first page, if it came with the acceptance.
    """

    def __init__(self, backend: Backend, reached: Reached, request_id: str, opening: TurnPage | None) -> None:
        self._backend, self._pages = backend, TurnPages(reached.caller.call, request_id, opening=opening)
        self._due_at_s = 0.0  # when the next page may be asked for
        self._page: asyncio.Task[TurnPage] | None = None
        self._frames: asyncio.Queue[Framed] = asyncio.Queue(FRAMES_MAX)
        self._frame: asyncio.Task[Framed] | None = None
        self._telling: asyncio.Task[None] | None = None
        self.runs = CallRuns(backend, reached.agent_id, self._frames.put)

    async def __aenter__(self) -> Self:
        self._backend.following += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self._backend.following -= 1
        tasks = [each for each in (self._page, self._frame, self._telling) if each is not None]
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.runs.close()

    async def next(self, within_s: float | None = None) -> TurnPage | Framed | None:
        """What comes next: what a run says before a page of the turn. None if there is nothing within this time, or a run has ended.
        Raises what the agent or the supervisor raised."""
        self._page = self._page or awaited(self._ask())
        if (framed := await self._framed(self._page, *self.runs.under_way, within_s=within_s)) is not None:
            return framed
        self.runs.raise_failures()
        if not self._page.done():
            return None
        page, self._page = self._page.result(), None
        self.runs.turn_origin = page["origin"]
        return page

    async def said_before(self, event: Event) -> AsyncGenerator[Framed, None]:
        # If it is the result of a call whose run has ended: what runs say until all is told that this one has said.
        if event["type"] not in CALL_ENDS:
            return
        self._telling = awaited(self.runs.told(str(event.get("toolCallId") or "")))
        while (framed := await self._framed(self._telling)) is not None:
            yield framed
        self.runs.raise_failures()

    async def _framed(self, *others: asyncio.Task[object], within_s: float | None = None) -> Framed | None:
        self._frame = self._frame or awaited(self._frames.get())
        if self._frames.empty():
            await asyncio.wait({self._frame, *others}, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.wait({self._frame})
        if not self._frame.done():
            return None
        framed, self._frame = self._frame.result(), None
        return framed

    async def _ask(self) -> TurnPage:
        loop = asyncio.get_running_loop()
        if (left_s := self._due_at_s - loop.time()) > 0:
            await asyncio.sleep(left_s)
        asked_at_s = loop.time()
        page = await self._pages.next()
        if is_newest(page):
            self._due_at_s = asked_at_s + min(PAUSE_MOST_S, PAGE_S * (self._backend.following - 1))
        return page


class CallRuns:
    """Follows the runs of the calls of one turn.

    A run is looked for when its call is complete, and found when its parent has requested it: its first event says so. A call that is no
    run of its own is looked for in vain. If the run of a call asked for approval, the approved one is a second run, and is followed after
    the first.

    Args:
        agent_id: who plays the turn.
        say: is given each event. It may make the runs wait.
    """

    def __init__(self, backend: Backend, agent_id: str, say: Callable[[Framed], Awaitable[None]]) -> None:
        self._backend, self._agent_id, self._say = backend, agent_id, say
        self.turn_origin = ""
        """That of the turn, as its pages tell it."""
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._requested: dict[str, asyncio.Event] = {}  # set when something is heard of a run
        self._approved: set[str] = set()  # second runs that were heard of
        self._leave: Callable[[], None] | None = None  # ends the hearing

    async def follow(self, call_id: str) -> None:
        first, second = run_ids(self.turn_origin, call_id)
        if first in self._runs:
            return
        if self._leave is None:
            self._leave = (await self._backend.client()).hear(self._agent_id, self._heard)
        self._requested |= {first: asyncio.Event(), second: asyncio.Event()}
        self._runs[first] = awaited(self._run(call_id, first))
        self._runs[second] = awaited(self._after(first, call_id, second))

    @property
    def under_way(self) -> list[asyncio.Task[None]]:
        return [each for each in self._runs.values() if not each.done()]

    def raise_failures(self) -> None:
        for ended in [each for each in self._runs.values() if each.done()]:
            ended.result()

    async def told(self, call_id: str) -> None:
        # Waits until all is told that the run of a call has said, if that run has ended.
        first, second = run_ids(self.turn_origin, call_id)
        for run_id in (first, second) if second in self._approved else (first,):
            if run_id not in self._runs or self._runs[run_id].done():
                continue
            known = await self._backend.ask("inspect", run_id)
            if known is not None and known["status"] in HARD:
                self._requested[run_id].set()
                await asyncio.wait({self._runs[run_id]})

    async def close(self) -> None:
        if self._leave is not None:
            self._leave()
        for each in self._runs.values():
            each.cancel()
        await asyncio.gather(*self._runs.values(), return_exceptions=True)

    def _heard(self, frame: Fields | None) -> None:
        # None: something may have been missed, so each run is looked for again.
        found = self._requested if frame is None else {frame["run_id"]} & self._requested.keys()
        for run_id in found:
            self._requested[run_id].set()

    async def _after(self, first: str, call_id: str, second: str) -> None:
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
        async with aclosing(self._backend.watch(run_id)) as batches:
            async for frame in (frame async for batch in batches for frame in batch.frames):
                if frame["event"]["kind"] == "started":
                    is_agent = frame["event"]["agent_type"] not in FUNCTIONS
                await self._say(Framed(call_id, frame, is_agent))
