"""Ctrl-C, and whatever else the handler of a signal raises: it ends what a person or a test waits for, in whatever code it hit.

Python calls a handler in the middle of the code that is at work, so what it raises is raised there. In a simulation that is mostly the code
of an agent, whose errors are the run's, or code of ours that a simulated process may crash by.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType
from typing import Any, TypeAlias

Handler: TypeAlias = Callable[[int, FrameType | None], Any]


@contextmanager
def stopped_by_signals() -> Iterator[list[BaseException]]:
    """What handlers of signals have raised meanwhile, and are to be asked for often. The first of it is raised at the end, instead of what
    has become of it. Handlers that are set within do as they like, and only the main thread has any."""
    raised: list[BaseException] = []
    found = {number: signal.getsignal(number) for number in signal.valid_signals()}
    before = {number: each for number, each in found.items() if callable(each) and current_thread() is main_thread()}
    noting = {number: _noting(handler, raised) for number, handler in before.items()}
    try:
        for number, handler in noting.items():
            signal.signal(number, handler)
        yield raised
    finally:
        for number in [each for each in noting if signal.getsignal(each) is noting[each]]:
            signal.signal(number, before[number])
        if raised:
            raise raised[0]


def _noting(handler: Handler, raised: list[BaseException]) -> Handler:

    def note(number: int, frame: FrameType | None) -> None:
        try:
            handler(number, frame)
        except BaseException as error:
            raised.append(error)
            raise

    return note
