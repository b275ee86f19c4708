"""One side of a conversation over a lossy road: numbered messages out, numbered messages in, and calls that are held open.

Every message gets a number within its *session*. The other side acknowledges the highest number up to which it has everything; a
supervisor acknowledges only what is durable, so **acknowledged means durable**. Lost frames are sent again, doubled ones are dropped
by number, and one that arrives too early is dropped too and sent again. When either side has lost its memory a new session
begins, and everything that was not acknowledged gets new numbers: it may arrive twice, and nothing that we send minds that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, Generic, TypeVar

from perdure.actors.upkeep import upkeep_later

M = TypeVar("M")  # what goes out
N = TypeVar("N")  # what comes in

FRAME_MAX: Final = 1_000  # messages in one frame: one side works on them while the other makes the next
FRAME_BYTES_MAX: Final = 8 << 20  # of messages that are weighed, and one more
HOLD_S: Final = 10.0


class Link(Generic[M]):
    """The numbering of one side, without IO. `received` is the highest number up to which everything has come in.

    What goes out may stand for several messages, which have as many numbers, and go out and are let go together. `heard` is the highest
    number of them that the other side has acknowledged.
    """

    def __init__(self) -> None:
        self.session = 0
        self.received = 0
        self.heard = 0
        self._base = 0  # what has been let go
        self._unacked: deque[tuple[M, int]] = deque()
        self._last = 0
        self._sent = 0
        self._out = 0  # how many of those that are not let go are sent

    # Queue what stands for `count` messages, and return the number of the last.
    def push(self, message: M, count: int = 1) -> int:
        self._unacked.append((message, count))
        self._last += count
        return self._last

    @property
    def unsent(self) -> int:
        return self._last - self._sent

    @property
    def pending(self) -> list[M]:
        return [message for message, _ in self._unacked]

    @property
    def next_number(self) -> int:
        return self._sent + 1

    @property
    def is_clear(self) -> bool:
        return not self._unacked

    def take(self, most: int = FRAME_MAX, weigh: Callable[[M], int] = lambda _: 0) -> tuple[int, list[M]]:
        """The next messages that have not been sent yet, as few as make up `most`, with the number of the first. Where they are weighed,
        those that are heavy go in several frames."""
        first, fresh, weight = self._sent + 1, list[M](), 0
        for message, count in islice(self._unacked, self._out, None):
            if self._sent >= first + most - 1 or weight > FRAME_BYTES_MAX:
                break
            weight += weigh(message)
            fresh.append(message)
            self._sent += count
        self._out += len(fresh)
        return first, fresh

    def acknowledge(self, number: int) -> int:
        """The other side has everything up to `number`; returns how much of what was pushed that lets go."""
        self.heard = max(self.heard, min(number, self._last))
        gone = 0
        while self._unacked and self._base + self._unacked[0][1] <= number:
            self._base += self._unacked.popleft()[1]
            gone += 1
        self._out = max(0, self._out - gone)
        self._sent = max(self._sent, self._base)
        return gone

    def rewind(self) -> None:
        # A frame was lost.
        self._sent = self._base
        self._out = 0

    def receive(self, first: int, messages: Sequence[N]) -> tuple[Sequence[N], bool]:
        """The messages that are new, and whether something before them is missing."""
        if first > self.received + 1:
            return [], True
        fresh = messages[self.received + 1 - first :]
        self.received += len(fresh)
        return fresh, False

    def restart(self, session: int, hello: M, renew: Callable[[M, int], tuple[M, int]] | None = None) -> bool:
        """Begin a new session: `hello` goes first, then everything that was not let go, under new numbers. `renew` says how: it is told how
        many messages of it the other side has, and returns what stands for the others, and how many these are.

        Returns whether the last session's hello was still waiting; it is dropped.
        """
        stale = self.session > 0 and self._base == 0 and bool(self._unacked)
        if stale:
            self._unacked.popleft()
        self.session = session
        if renew is not None:
            had = max(0, self.heard - self._base)  # of the first; of the others none
            self._unacked = deque(renew(message, 0 if at else had) for at, (message, _) in enumerate(self._unacked))
        self._unacked.appendleft((hello, 1))
        self._last = sum(count for _, count in self._unacked)
        self._base = self._sent = self._out = self.received = self.heard = 0
        return stale


# Holds at most one call of one peer open until there is something to answer.
class Held:
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
        timer = upkeep_later(HOLD_S, self.release)
        try:
            await waiting
        finally:
            timer.cancel()
