"""Watches an event loop from another thread: does it turn, and if not, whose code is it in?

The watcher asks the loop for a sign, and looks in later. While the sign is due, the loop stands in one piece of work, or goes through many
that were ready at once. A task has one turn in each round of the loop. So if the same task is at work at two looks for the same sign, it
has been so all the while.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from concurrent.futures import Future
from types import FrameType
from typing import Final

from perdure.actors.ports import Pulse
from perdure.actors.tasks import agent_of

ANSWER_S: Final = 0.25  # for a loop that turns to say so
FRAMES_MAX: Final = 12
OURS: Final = ("perdure.actors.", "perdure.ledger.")


class LoopWatch:
    """The watch over the loop that runs when this is made."""

    def __init__(self) -> None:
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._sign: Future[None] | None = None
        self._task: asyncio.Task[object] | None = None
        self._step = 0

    async def pulse(self) -> Pulse:
        """How the loop is. To be awaited on another loop, by one at a time."""
        if self._sign is None:
            self._sign, self._task = Future(), None
            self._step += 1
            self._loop.call_soon_threadsafe(self._sign.set_result, None)
        await asyncio.wait({asyncio.wrap_future(self._sign)}, timeout=ANSWER_S)
        if self._sign.done():
            self._sign = None
            return Pulse()
        task, frame = asyncio.current_task(self._loop), sys._current_frames().get(self._thread)  # noqa: SLF001
        if task is not self._task:
            self._task = task
            self._step += 1
        frames = list(_from_the_outside(frame))
        stack = "".join(traceback.format_list(traceback.extract_stack(frame, FRAMES_MAX))) if frame is not None else ""
        return Pulse(self._step, agent_of(task) or _owner(frames), _method(frames), stack)


def _from_the_outside(frame: FrameType | None) -> list[FrameType]:
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames[::-1]


def _owner(frames: list[FrameType]) -> str:
    """The agent whose method is at work, in a task that its author has started."""
    lives = (getattr(frame.f_locals.get("self"), "_perdure", None) for frame in frames)
    return next((str(life.agent_id) for life in lives if life is not None), "")


def _method(frames: list[FrameType]) -> str:
    """The author's method that we have called, or else what of ours is at work."""
    ours = [str(frame.f_globals.get("__name__", "")).startswith(OURS) for frame in frames]
    called = [frame for frame, mine, before in zip(frames, ours, [False, *ours], strict=False) if before and not mine]
    found = called[:1] or frames[-1:]
    return found[0].f_code.co_qualname if found else "unknown code"
