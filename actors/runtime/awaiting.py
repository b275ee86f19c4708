"""Whether our caller can await. The runtime's calls block if it cannot.

Without a running event loop it cannot. In a notebook a loop runs beneath every cell, but a cell without `await` is sync code, where a call
must block. A callback of a loop is no coroutine, but must never block the loop.
"""

from __future__ import annotations

import asyncio
import inspect
from types import FrameType
from typing import Final

ASYNC: Final = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE


def can_await() -> bool:
    """Whether our caller, directly or indirectly, is async code."""
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
    """Whether this is the top level of a notebook: no function, and no class."""
    code = frame.f_code
    return (
        "get_ipython" in frame.f_globals and not code.co_flags & inspect.CO_OPTIMIZED and code.co_name.startswith("<")
    )
