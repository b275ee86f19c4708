"""The calls that a host was handed: which are under way, and how they were answered.

A supervisor that begins its life knows of no call, so it hands over again what it is asked for again, and a host must know what it had
before. The last answers are kept; of others it is known that they were given.
"""

from __future__ import annotations

from dataclasses import dataclass

ANSWERS_KEPT = 1000
CALLS_KEPT = 100_000


# `answer` is None while the call is under way, and when it was cut off or is not kept any more.
@dataclass(slots=True)
class LoggedCall:
    is_over: bool = False
    answer: tuple[bool, object] | None = None


class CallLog:
    """What one host knows of calls."""

    def __init__(self) -> None:
        self._under_way: dict[str, LoggedCall] = {}
        self._over: dict[str, LoggedCall] = {}  # the latest last
        self._kept: dict[str, None] = {}  # of these, the ones with an answer

    def find(self, ref: str) -> LoggedCall | None:
        return self._under_way.get(ref) or self._over.get(ref)

    def is_under_way(self, ref: str) -> bool:
        return ref in self._under_way

    def begin(self, ref: str) -> None:
        # perhaps once more
        self._over.pop(ref, None)
        self._under_way[ref] = LoggedCall()

    def answer(self, ref: str, ok: bool, value: object) -> None:
        self._end(ref, (ok, value))
        self._kept[ref] = None
        if len(self._kept) > ANSWERS_KEPT:
            oldest = next(iter(self._kept))
            del self._kept[oldest]
            self._over[oldest].answer = None

    # The call has begun and will not be answered. False if it was answered.
    def cut_off(self, ref: str) -> bool:
        is_under_way = ref in self._under_way
        if is_under_way:
            self._end(ref, None)
        return is_under_way

    def _end(self, ref: str, answer: tuple[bool, object] | None) -> None:
        del self._under_way[ref]
        self._over[ref] = LoggedCall(is_over=True, answer=answer)
        if len(self._over) > CALLS_KEPT:
            oldest = next(iter(self._over))
            del self._over[oldest]
            self._kept.pop(oldest, None)
