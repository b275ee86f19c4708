"""Indexes of the view that are more than a dictionary: what is next in each is found without a look at all the others.

None of them is durable. A boot makes them anew from the records (`View.make_indexes`), and then all mail waits.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile
from typing import Final, NamedTuple

from perdure.ledger.activation import HostSpec, pool_key, wants_to_be_alone

LOOK_MAX: Final = 64  # how many of a line are looked at together
LETTERS_MAX: Final = 4096  # how many mails are with a life at a time
_SPARE_MAX: Final = 1_000  # times of the heap at which nothing is due any more, beyond those at which something is


# What is waited for: a host of this pool, and one to itself if the class asks for that.
class LineKey(NamedTuple):
    pool: str
    exclusive: bool


def line_for(spec: HostSpec | None) -> LineKey:
    return LineKey(pool_key(spec), wants_to_be_alone(spec))


class WaitQueues:
    """Runs, or agents, that wait for a place: one line for each kind of place.

    None stands in two lines. To take the first costs the same however long its line is.
    """

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
        # None of them stands in a line yet.
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
        # The `skipped` ones were looked at already, and stay.
        return list(islice(self._lines.get(key, ()), skipped, skipped + LOOK_MAX))

    def walk(self, key: LineKey) -> Iterator[str]:
        # Some of them leave the line meanwhile.
        stayed = 0
        while group := self.first(key, stayed):
            yield from group
            line = self._lines.get(key, OrderedDict())
            stayed += sum(each in line for each in group)


class Timers:
    """At which times which runs, agents and mailboxes are looked at again.

    A timer is a hint, not a promise: a key that is due is looked at, what its record says is done, and the record says when to look again.
    What has ended is disarmed, so only what is live costs memory, and a look.
    """

    def __init__(self) -> None:
        self.armed: dict[str, tuple[int, ...]] = {}  # the key fires at each of these times
        self.fired: list[str] = []  # what was due at the last tick, in the order of the times
        self._instants: list[int] = []
        self._keys: dict[int, dict[str, None]] = {}

    @property
    def next_at_ms(self) -> float:
        return self._instants[0] if self._instants else math.inf

    def arm(self, key: str, at_ms: float) -> None:
        instant = int(at_ms)
        if instant not in self._keys:  # keys that are due together share one entry of the heap
            self._keys[instant] = {}
            heapq.heappush(self._instants, instant)
        elif key in self._keys[instant]:
            return
        self._keys[instant][key] = None
        self.armed[key] = (*self.armed.get(key, ()), instant)

    def arm_by(self, key: str, at_ms: float) -> None:
        """Look at this key again at that time, unless it is armed for that or an earlier one. Infinity arms nothing."""
        if at_ms < min(self.armed.get(key, (math.inf,))):
            self.arm(key, at_ms)

    def disarm(self, key: str) -> None:
        for instant in self.armed.pop(key, ()):
            line = self._keys[instant]
            del line[key]
            if not line:
                del self._keys[instant]
        self._drop_spare()

    def disarm_all(self, keys: Iterable[str]) -> None:
        for key in keys:
            if key in self.armed:
                self.disarm(key)

    def fire(self, at_ms: int) -> None:
        keys: dict[str, None] = {}
        while self._instants and self._instants[0] <= at_ms:
            keys.update(self._keys.pop(heapq.heappop(self._instants), {}))
        for key in keys:
            later = tuple(instant for instant in self.armed.pop(key) if instant > at_ms)
            if later:
                self.armed[key] = later
        self.fired = list(keys)
        self._drop_spare()

    def _drop_spare(self) -> None:
        while self._instants and self._instants[0] not in self._keys:
            heapq.heappop(self._instants)
        # A heap gives up only its first entry, so it is built anew when most of it is spare.
        if len(self._instants) > 2 * len(self._keys) + _SPARE_MAX:
            self._instants = sorted(self._keys)


class PendingMail:
    """The ids of one agent's pending mail: what is with its present life, what waits to go there, and what waits for its retry.

    A look costs what is new or due, however much is pending. What a life has not acknowledged after a pause is handed to it again, and goes
    to the next life if there is one.
    """

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
        # `seq` is its place among others of the same time.
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
        # The present life is over, or has to be told everything again.
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


# The sub-agents that the view knows, by each agent that they descend from.
class Families:
    def __init__(self) -> None:
        self._below: dict[str, dict[str, None]] = {}

    def add(self, agent: str) -> None:
        for ancestor in ancestors(agent):
            self._below.setdefault(ancestor, {})[agent] = None

    def remove(self, agent: str) -> None:
        for ancestor in ancestors(agent):
            below = self._below.get(ancestor)
            if below is not None and below.pop(agent, 0) is None and not below:
                del self._below[ancestor]

    def of(self, agent: str) -> list[str]:
        return [agent, *self._below.get(agent, ())]


def ancestors(agent: str) -> Iterator[str]:
    """Every address below which this one is (`ids.is_within`), the nearest first. An agent that is nobody's sub-agent has none."""
    above, sign, _ = agent.rpartition(">")
    while sign:
        yield above
        above, sign, _ = above.rpartition(">")
