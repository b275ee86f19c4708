"""One side of a conversation over a lossy road: numbered messages out, numbered messages in. No IO.

Every message gets a number within its *session*. The other side acknowledges the highest number up to which it has everything; a
supervisor acknowledges only what is durable, so **acknowledged means durable**. Lost frames are sent again, doubled ones are dropped
by number, and one that arrives too early is dropped too and sent again. When either side has lost its memory a new session
begins, and everything that was not acknowledged gets new numbers: it may arrive twice, and nothing that we send minds that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, Generic, TypeVar

M = TypeVar("M")  # what goes out
N = TypeVar("N")  # what comes in

FRAME_MAX: Final = 1_000  # messages in one frame: one side works on them while the other makes the next


class Link(Generic[M]):
    """The numbering of one side. `received` is the highest number up to which everything has come in."""

    def __init__(self) -> None:
        self.session = 0
        self.received = 0
        self._base = 0
        self._unacked: deque[M] = deque()
        self._sent = 0

    def push(self, message: M) -> int:
        """Queue a message and return its number."""
        self._unacked.append(message)
        return self._base + len(self._unacked)

    @property
    def unsent(self) -> int:
        """How many messages wait to go out for the first time."""
        return self._base + len(self._unacked) - self._sent

    @property
    def has_unsent(self) -> bool:
        """Whether one does."""
        return self.unsent > 0

    @property
    def pending(self) -> list[M]:
        """The messages that are not acknowledged."""
        return list(self._unacked)

    @property
    def next_number(self) -> int:
        """The number of the next message that goes out."""
        return self._sent + 1

    @property
    def is_clear(self) -> bool:
        """Whether everything that was ever pushed is acknowledged."""
        return not self._unacked

    def take(self, most: int = FRAME_MAX) -> tuple[int, list[M]]:
        """The next messages that have not been sent yet, with the number of the first."""
        first, unsent = self._sent + 1, self._sent - self._base
        fresh = list(islice(self._unacked, unsent, unsent + most))
        self._sent += len(fresh)
        return first, fresh

    def acknowledge(self, number: int) -> int:
        """The other side has everything up to `number`; returns how many messages that lets go."""
        count = max(0, min(number - self._base, len(self._unacked)))
        for _ in range(count):
            self._unacked.popleft()
        self._base += count
        self._sent = max(self._sent, self._base)
        return count

    def rewind(self) -> None:
        """Send everything again that is not acknowledged: a frame was lost."""
        self._sent = self._base

    def receive(self, first: int, messages: Sequence[N]) -> tuple[Sequence[N], bool]:
        """The messages that are new, and whether something before them is missing."""
        if first > self.received + 1:
            return [], True
        fresh = messages[self.received + 1 - first :]
        self.received += len(fresh)
        return fresh, False

    def restart(self, session: int, hello: M, renew: Callable[[M], M] | None = None) -> bool:
        """Begin a new session: `hello` goes first, then everything that is not acknowledged, renewed, under new numbers.

        Returns whether the last session's hello was still waiting; it is dropped.
        """
        stale = self.session > 0 and self._base == 0 and bool(self._unacked)
        if stale:
            self._unacked.popleft()
        self.session = session
        if renew is not None:
            self._unacked = deque(map(renew, self._unacked))
        self._unacked.appendleft(hello)
        self._base = self._sent = self.received = 0
        return stale
