"""A call that is held open until there is something to answer."""

from __future__ import annotations

import asyncio
from typing import Final

HOLD_S: Final = 10.0


class Held:
    """At most one call of one peer."""

    def __init__(self) -> None:
        self._waiting: asyncio.Future[None] | None = None

    def release(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
        self._waiting = None

    async def hold(self) -> None:
        """Hold this call until it is released, a newer one takes its place, or `HOLD_S` is over."""
        self.release()
        waiting = self._waiting = asyncio.get_running_loop().create_future()
        timer = asyncio.get_running_loop().call_later(HOLD_S, self.release)
        try:
            await waiting
        finally:
            timer.cancel()
