"""What a sweep looks at: what was outstanding lately, and some of the rest in turn.

Nothing becomes outstanding for a record unless it is touched, and what is touched is looked at in the same turn. So a sweep has to look
again only where something was left to do. Should we ever miss a touch, the record comes round in time, however many there are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from perdure.ledger import Effect, View, everything, keys_of

ROUND_MAX: Final = 500  # agents that are awake, and come round at one sweep


class SweepQueue:
    """The sweeps of one supervisor life."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._left: dict[str, None] = {}
        self._next = 0

    def seen(self, effects: Iterable[Effect]) -> None:
        # What was outstanding may still be so at the next look.
        for effect in effects:
            for key in keys_of(effect):
                self._left[key] = None

    def next_keys(self) -> Iterable[str]:
        left, self._left = self._left, {}
        left.update(dict.fromkeys(everything(self._view, self._next, ROUND_MAX)))
        self._next += ROUND_MAX
        if self._next >= len(self._view.awake):
            self._next = 0
        return left
