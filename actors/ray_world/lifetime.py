"""A lifetime, and waiting within it: what is waited for fails when it is over.

Ray answers no call of a cluster that is gone, and a look-up in one blocks for ever. So whatever a driver waits for is bound to the lifetime
in which it was asked for, and what may block is done on a thread that nobody waits for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class Lifetime:
    """How long something can be waited for. On whichever thread, any number of times; `end` counts once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._problem: Exception | None = None
        self._waiting: set[Future[Any]] = set()

    @property
    def is_over(self) -> bool:
        """Whether `end` was said."""
        return self._problem is not None

    def bound(self, source: Future[T]) -> Future[T]:
        """What comes of this future, or the problem that ends the lifetime if that is first. Who cancels it cancels the source."""
        told: Future[T] = Future()
        with self._lock:
            problem = self._problem
            if problem is None:
                self._waiting.add(told)
        if problem is not None:
            told.set_exception(problem)
        else:
            source.add_done_callback(partial(self._pass_on, told))
        told.add_done_callback(lambda done: source.cancel() if done.cancelled() else None)
        return told

    def _pass_on(self, told: Future[T], source: Future[T]) -> None:
        with self._lock:
            if told not in self._waiting:
                return
            self._waiting.remove(told)
        if source.cancelled():
            told.cancel()
        elif told.set_running_or_notify_cancel():
            resolve(told, source.result)

    def end(self, problem: Exception) -> None:
        """It is over. Whoever waits gets the problem, and so does whoever comes later."""
        with self._lock:
            if self._problem is not None:
                return
            self._problem = problem
            waiting, self._waiting = self._waiting, set()
        for told in waiting:
            if told.set_running_or_notify_cancel():
                told.set_exception(problem)


def on_own_thread(work: Callable[[], T]) -> Future[T]:
    """Do this on a thread of its own. If it never comes back, the process can end all the same."""
    future: Future[T] = Future()
    threading.Thread(target=resolve, args=(future, work), name="perdure-on_own_thread", daemon=True).start()
    return future


def resolve(future: Future[T], work: Callable[[], T]) -> None:
    """Do this now, and let the future tell what came of it."""
    try:
        result = work()
    except BaseException as problem:
        future.set_exception(problem)
    else:
        future.set_result(result)
