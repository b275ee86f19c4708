"""What keeps back that for which a process waits: its supervisor tells it, and the person at its terminal reads it once for each cause."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

LINES_MAX: Final = 8
"""At once. Of a thousand runs that wait for the same a person reads the first."""
REMEMBERED_MAX: Final = 10_000
KEPT_BACK: Final = "kept back: "
"""Begins the comment by which the event stream of a run says so over HTTP."""

log = logging.getLogger("perdure.link")


class KeptBackRuns:
    """What is known of it now, by run; `""` stands for whatever else the process waits for. `waits` tells whether it does."""

    def __init__(self, waits: Callable[[str], bool]) -> None:
        self.now: dict[str, list[str]] = {}
        self._waits = waits
        self._said: dict[str, None] = {}

    def take(self, told: Iterable[tuple[str, list[str]]]) -> None:
        """Take in what has changed."""
        fresh: dict[str, None] = {}
        for run_id, words in told:
            self.now[run_id] = words
            if not words:
                del self.now[run_id]
            elif self._waits(run_id):
                fresh.update(dict.fromkeys(each for each in words if each not in self._said))
        for each in islice(fresh, LINES_MAX):
            log.warning("perdure: %s", each)
        if len(fresh) > LINES_MAX:
            log.warning(
                "perdure: so it is with %d more of what you wait for; `perdure ps` tells more", len(fresh) - LINES_MAX
            )
        self._said.update(fresh)
        for each in list(islice(self._said, max(0, len(self._said) - REMEMBERED_MAX))):
            del self._said[each]
