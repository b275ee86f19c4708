"""Blocking code that waits in virtual time: each piece of it has a thread of its own, and at most one thread runs.

The loop stands still while a strand runs, and a strand stands still while the loop does: so everything happens in one order, which is the
same each time. A strand runs until it has ended, or until it waits: then the loop sees to what it waits for, and lets it go on later.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from threading import Semaphore, Thread, current_thread
from typing import Any, TypeAlias

from perdure.actors.tasks import Killed

Wake: TypeAlias = Callable[[Any], None]
"""Lets what waits go on with an answer. The loop calls it, once."""
Outcome: TypeAlias = tuple[object, BaseException | None]
"""What some code has returned, or raised."""


def outcome_of(work: Callable[[], object]) -> Outcome:
    """Do it here and now."""
    try:
        return work(), None
    except BaseException as raised:
        return None, raised


class Strand(Thread):
    """One piece of blocking work of a simulated process.

    Args:
        work: is done on this thread, in the caller's context.
        done: is called on the loop with what came of it, unless the process died before.
    """

    def __init__(self, work: Callable[[], object], done: Callable[[object, BaseException | None], None]) -> None:
        super().__init__(daemon=True)
        self.has_ended = False
        self._work, self._done, self._context = work, done, copy_context()
        self._may_go, self._has_stopped = Semaphore(0), Semaphore(0)
        self._outcome: Outcome = None, None
        self._waits_for: Callable[[Wake], None] | None = None
        self._answer: object = None
        self._killed: Killed | None = None

    def run(self) -> None:
        self._outcome = self._context.run(outcome_of, self._work)
        self.has_ended = True
        self._has_stopped.release()

    def begin(self) -> None:
        """On the loop: let it run until it waits, or ends."""
        self.start()
        self._until_it_stops()

    def wait(self, see_to: Callable[[Wake], None]) -> Any:
        """On this thread: wait for what the loop sees to. Raises `Killed` when the process dies meanwhile."""
        if self._killed is None:
            self._waits_for = see_to
            self._has_stopped.release()
            self._may_go.acquire()
        if self._killed is not None:
            raise self._killed
        return self._answer

    def end(self, cause: str) -> None:
        """The process is dead: the work is unwound from where it stands, and nobody is told what came of it."""
        if self.has_ended or self is current_thread():
            return
        self._killed = Killed(cause)
        self._may_go.release()
        self._has_stopped.acquire()

    def _go_on(self, answer: object) -> None:
        if not self.has_ended:
            self._answer = answer
            self._may_go.release()
            self._until_it_stops()

    def _until_it_stops(self) -> None:
        self._has_stopped.acquire()
        if self.has_ended:
            self._done(*self._outcome)
        elif self._waits_for is not None:
            with suppress(Killed):  # a request may be the last thing that the process does
                self._waits_for(self._go_on)


def current_strand() -> Strand | None:
    """The strand whose code is running, if one's is."""
    thread = current_thread()
    return thread if isinstance(thread, Strand) else None
