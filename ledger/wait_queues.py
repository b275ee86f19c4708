"""Queues of runs, and of agents, that wait for a place: one line for each kind of place. To take the first costs the same however long
the line is."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from perdure.ledger.activation import HostSpec, pool_key, wants_to_be_alone

LOOK_MAX: Final = 64  # how many of a line are looked at together


class LineKey(NamedTuple):
    """What is waited for: a host of this pool, and one to itself if the class asks for that."""

    pool: str
    exclusive: bool


def line_for(spec: HostSpec | None) -> LineKey:
    return LineKey(pool_key(spec), wants_to_be_alone(spec))


class WaitQueues:
    """Runs, or agents, that wait. None stands in two lines."""

    def __init__(self) -> None:
        self._lines: dict[LineKey, OrderedDict[str, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        for line in self._lines.values():
            yield from line

    @property
    def keys(self) -> list[LineKey]:
        return list(self._lines)

    def join(self, key: LineKey, who: str) -> None:
        line = self._lines.setdefault(key, OrderedDict())
        self._count += who not in line
        line[who] = None

    def leave(self, key: LineKey, who: str) -> None:
        line = self._lines.get(key)
        if line is not None and line.pop(who, 0) is None:
            self._count -= 1
            if not line:
                del self._lines[key]

    def join_all(self, key: LineKey, these: Sequence[str]) -> None:
        """Join many that stand in no line yet."""
        self._lines.setdefault(key, OrderedDict()).update(dict.fromkeys(these))
        self._count += len(these)

    def leave_all(self, key: LineKey, these: Sequence[str]) -> None:
        line = self._lines.get(key, OrderedDict())
        for who in these:
            self._count -= line.pop(who, 0) is None
        if not line:
            self._lines.pop(key, None)

    def all_of(self, key: LineKey) -> Iterator[str]:
        return iter(self._lines.get(key, ()))

    def length(self, key: LineKey) -> int:
        return len(self._lines.get(key, ()))

    def before(self, key: LineKey, who: str) -> int:
        return next((place for place, each in enumerate(self._lines.get(key, ())) if each == who), 0)

    def first(self, key: LineKey, skipped: int = 0) -> list[str]:
        """The next in line, at most `LOOK_MAX`, after the `skipped` ones, which were looked at already and stay."""
        return list(islice(self._lines.get(key, ()), skipped, skipped + LOOK_MAX))

    def walk(self, key: LineKey) -> Iterator[str]:
        """One after the other, while some of them leave the line."""
        stayed = 0
        while group := self.first(key, stayed):
            yield from group
            line = self._lines.get(key, OrderedDict())
            stayed += sum(each in line for each in group)

    def clear(self) -> None:
        self._lines.clear()
        self._count = 0
