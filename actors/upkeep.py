"""Upkeep: what looks again and again at what is mostly in order, such as heartbeats and sweeps.

Its pauses and its times are those of the event loop. A `LeapingLoop`, that of the simulation, leaps over a time in which nothing but upkeep
would happen, and upkeep does not notice: no second of a leap counts for it, so nobody was late or silent in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class LeapingLoop(asyncio.AbstractEventLoop):
    """A loop whose time may leap to shortly before what is to happen next.

    Attributes:
        leapt_s: the seconds of all its leaps.
    """

    leapt_s: float

    def upkeep_later(self, delay_s: float, callback: Callable[..., object], *args: object) -> asyncio.TimerHandle:
        """`call_later`, counted without leaps."""
        raise NotImplementedError


def upkeep_later(delay_s: float, callback: Callable[..., object]) -> asyncio.TimerHandle:
    """Call back in so many seconds of upkeep."""
    loop = asyncio.get_running_loop()
    return (loop.upkeep_later if isinstance(loop, LeapingLoop) else loop.call_later)(delay_s, callback)


async def upkeep_pause(pause_s: float) -> None:
    """Sleep between two rounds of upkeep."""
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    timer = upkeep_later(pause_s, lambda: None if over.done() else over.set_result(None))
    try:
        await over
    finally:
        timer.cancel()


def upkeep_s() -> float:
    """The time by which upkeep says who is late or silent, in seconds since some instant."""
    loop = asyncio.get_running_loop()
    return loop.time() - (loop.leapt_s if isinstance(loop, LeapingLoop) else 0.0)
