"""Whether who calls us can await: what a call of the runtime gives depends on it.

Where no event loop runs, nobody can. In a notebook a loop runs beneath every cell, also beneath one that is plain code; from there a call
must block, as in any sync code, or `words = agent.count(texts)` would give a future. A cell that awaits is a coroutine, and so is whatever
awaits elsewhere; a callback of a loop is not, but must never block it.
"""

from __future__ import annotations

import asyncio
import inspect
from types import FrameType
from typing import Final

ASYNC: Final = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE


def can_await() -> bool:
    """Whether our caller, or who called that one, is async code."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    frame = inspect.currentframe()
    while frame is not None and not frame.f_code.co_flags & ASYNC:
        if _is_cell(frame):
            return False
        frame = frame.f_back
    return True


def _is_cell(frame: FrameType) -> bool:
    """Whether this is the top level of a notebook."""
    return "get_ipython" in frame.f_globals and frame.f_locals is frame.f_globals
