"""Waiting that ends with the connection to a Ray.

Ray never answers a call of a cluster that is gone, and a look-up in one blocks for ever. So a driver binds whatever it waits for to the
`Lifetime` of its connection, and makes calls that may block on threads of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class Lifetime:
    """Fails everything that waits within it when it ends. Thread-safe; only the first `end` counts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._problem: Exception | None = None
        self._waiting: set[Future[Any]] = set()

    @property
    def is_over(self) -> bool:
        return self._problem is not None

    def bound(self, source: Future[T]) -> Future[T]:
        """A future with the outcome of `source`, or with the error that ends the lifetime first. Cancelling it cancels `source`."""
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
        """End it. Everything that waits, and everything that is bound later, fails with this error."""
        with self._lock:
            if self._problem is not None:
                return
            self._problem = problem
            waiting, self._waiting = self._waiting, set()
        for told in waiting:
            if told.set_running_or_notify_cancel():
                told.set_exception(problem)


# A daemon, so that the process can end even if the work never returns.
def on_own_thread(work: Callable[[], T]) -> Future[T]:
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # what has begun cannot be cancelled
    threading.Thread(target=resolve, args=(future, work), name="perdure-on_own_thread", daemon=True).start()
    return future


def resolve(future: Future[T], work: Callable[[], T]) -> None:
    try:
        result = work()
    except BaseException as problem:
        future.set_exception(problem)
    else:
        future.set_result(result)
