"""Reads what is there already, and lets others go first now and then.

The library lets other tasks go first before each event of an answer. Each time is a turn of the event loop, which takes as long as the
event does. It also lets go of the interpreter's lock for less time than a thread needs to wake. So a thread that had a call for this
process was woken in vain at every event, and an answer that is there cost half as much again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from typing import Any, Final, TypeVar

T = TypeVar("T")

IN_A_ROW_MAX: Final = 8
"""How many events are read in one turn of the loop: in a fifth of a millisecond."""


class EagerReading(Generator[object, None, T | None]):
    """The events of an iterator, one after the other: `await reading.next()` is the next event, or None after the last one.

    Whoever waits for an event that is not there yet waits as ever. The awaited object is this one, for all events.
    """

    def __init__(self, events: AsyncIterator[T]) -> None:
        self._events = events
        self._step: Generator[object, None, T | None]
        self._in_a_row = 1

    def next(self) -> EagerReading[T]:
        """Begin to read the next event."""
        self._step = anext(self._events, None).__await__()
        return self

    def __await__(self) -> Generator[object, None, T | None]:
        """What a task steps through. Its value is the event."""
        return self

    def __next__(self) -> object:
        """Go on to what must be waited for. With None there is nothing: others may go first."""
        awaited = next(self._step)
        while awaited is None and self._in_a_row < IN_A_ROW_MAX:
            self._in_a_row += 1
            awaited = next(self._step)
        self._in_a_row = 1
        return awaited

    def send(self, _value: None) -> object:
        """The same: a task sends nothing."""
        return next(self)

    def throw(self, problem: Any, *_more: object) -> object:
        """The task was cancelled, or what it waited for failed."""
        return self._step.throw(problem)
