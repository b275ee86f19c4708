"""The mailbox of one agent: which of its pending mail is with its present life, what waits to go there, and what waits for its retry.

A look at a mailbox costs what is new in it or due, however much is pending. Not more than `LETTERS_MAX` mails are with a life at a time.
What it has not acknowledged after a pause is handed to it again, and goes to the next life if there is one. Nothing of this is durable:
after a boot all mail waits.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import islice, takewhile
from typing import Final

LETTERS_MAX: Final = 4096


class PendingMail:
    """The ids of one agent's pending mail."""

    __slots__ = ("_handed", "_later", "_put_off", "_waiting")

    def __init__(self) -> None:
        self._handed: OrderedDict[str, int] = OrderedDict()  # when, the longest ago first
        self._waiting: OrderedDict[str, None] = OrderedDict()
        self._put_off: dict[str, int] = {}  # until when
        self._later: list[tuple[int, int, str]] = []  # the same by time; what is not in `_put_off` any more is skipped

    def __len__(self) -> int:
        return len(self._handed) + len(self._waiting) + len(self._put_off)

    def __iter__(self) -> Iterator[str]:
        yield from self._handed
        yield from self._waiting
        yield from self._put_off

    def __contains__(self, mail_id: object) -> bool:
        return mail_id in self._handed or mail_id in self._waiting or mail_id in self._put_off

    def add(self, *mail_ids: str) -> None:
        self._waiting.update(dict.fromkeys(mail_ids))

    def put_off(self, mail_id: str, until_ms: int, seq: int) -> None:
        """A mail is handed over again at that time. `seq` is its place among others of the same time."""
        self.remove(mail_id)
        self._put_off[mail_id] = until_ms
        heapq.heappush(self._later, (until_ms, seq, mail_id))

    def remove(self, mail_id: str) -> None:
        self._handed.pop(mail_id, None)
        self._waiting.pop(mail_id, None)
        if self._put_off.pop(mail_id, None) is not None:
            self._skip()

    @property
    def retry_at_ms(self) -> int | None:
        return self._later[0][0] if self._later else None

    def is_outstanding(self, at_ms: int) -> bool:
        return bool(self._handed or self._waiting or (self._later and self._later[0][0] <= at_ms))

    def to_hand(self, at_ms: int, pause_ms: float, most: int = LETTERS_MAX) -> list[str]:
        """Hand over what may be with the present life and is not, in order, and again what was handed to it a pause ago."""
        self._front(self._due(at_ms))
        room = max(0, most - len(self._handed))
        letters = list(takewhile(lambda mail_id: at_ms - self._handed[mail_id] >= pause_ms, self._handed))
        letters += islice(self._waiting, room)
        for mail_id in letters:
            self._waiting.pop(mail_id, None)
            self._handed[mail_id] = at_ms
            self._handed.move_to_end(mail_id)
        return letters

    def take_back(self) -> None:
        """The present life is over, or has to be told everything again: nothing is with it any more."""
        self._front(list(self._handed))
        self._handed.clear()

    def _due(self, at_ms: int) -> list[str]:
        due = []
        while self._later and self._later[0][0] <= at_ms:
            mail_id = heapq.heappop(self._later)[-1]
            due.append(mail_id)
            del self._put_off[mail_id]
            self._skip()
        return due

    def _front(self, mail_ids: Iterable[str]) -> None:
        for mail_id in reversed(list(mail_ids)):  # so that the first comes to stand before all
            self._waiting[mail_id] = None
            self._waiting.move_to_end(mail_id, last=False)

    def _skip(self) -> None:
        while self._later and self._put_off.get(self._later[0][-1]) != self._later[0][0]:
            heapq.heappop(self._later)
