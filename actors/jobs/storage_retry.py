"""What is done when the storage fails under work that nobody waits for: nothing is lost, and its rows are looked at again in a while."""

from __future__ import annotations

from collections.abc import Callable

from perdure.actors.code.author_call import tried_now
from perdure.actors.life.alarm_clock import AlarmClock
from perdure.actors.life.life import Life

AGAIN_MS = 5_000


class SecondLook:
    """One part of an agent that works by its rows.

    Args:
        part: its name among those that the agent's alarm is set for.
        woken: looks at all its rows.
    """

    def __init__(self, life: Life, alarms: AlarmClock, part: str, woken: Callable[[], None]) -> None:
        self._life, self._alarms, self._part, self._woken = life, alarms, part, woken

    def look(self) -> None:
        """Look at all rows, for whoever cannot do anything about a storage that fails."""
        self.safely(self._woken)

    def safely(self, job: Callable[[], None]) -> None:
        """Do this; if the storage fails, the rows are looked at later."""
        _, problem = tried_now(job)
        if problem is not None:
            self.failed(problem)

    def failed(self, problem: Exception) -> None:
        """The storage failed."""
        if not self._life.is_leaving:
            self._life.trouble(self._part, problem)
            self._alarms.set(self._part, self._life.now_ms() + AGAIN_MS, self._again)

    def _again(self) -> None:
        if self._life.is_broken:
            self._life.reopen()
        self.look()
