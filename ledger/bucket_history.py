"""What of a bucket is kept: what the ledger needs, what it was in the last day, and what backups pin.

A root that another one has followed is *kept* until that one is a day old: then every moment of the last day is in a root that is kept, or
in slots after it. The oldest of them is the *floor*. Slots that it covers go, and so do objects that were put there before it and are named
neither by it nor by a later root.

A *pin* is a backup: an object that says with which root and up to which slot the ledger was then, and names all that this needs. Pins are
found by a list, which therefore must not be older than a day.

An object's key tells before which slot it was put there (`edition`), so what an interrupted upload has left goes in its turn, too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from perdure.ledger.codec import unpack
from perdure.ledger.errors import BadRequest
from perdure.ledger.slots import AFTER_ALL, Chain, Procedure, Root, framed, get, names, parts_of

PINS: Final = "backup/"
UPLOADS: Final = ("snapshot/", "storage/")
"""Where the objects lie that roots name."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Pin(NamedTuple):
    """A backup: the root (0 for none) and the slot with which the ledger was then, how late it was (ms since 1970), and the objects that
    the root names."""

    name: str
    number: int
    chain: Chain
    about: bytes
    slot: int
    at_ms: int
    names: Sequence[str]

    @property
    def root(self) -> Root | None:
        return Root(self.number, self.chain, self.about, self.chain.slot, ()) if self.number else None

    @property
    def slots(self) -> range:
        return range(self.chain.slot + 1, self.slot + 1)

    def packed(self) -> bytes:
        return framed([self.number, list(self.chain), self.about, self.slot, self.at_ms, list(self.names)])


def pin_key(name: str) -> str:
    return f"{PINS}{name}"


def pin_of(key: str, body: bytes) -> Pin:
    """What the object of a pin says. Raises `SlotDamaged`."""
    number, chain, *others = parts_of(key, body)
    return Pin(key.removeprefix(PINS), number, Chain(*chain), *others)


def pins() -> Procedure[list[Pin]]:
    """The pins, by their names. Raises `SlotDamaged`."""
    keys = sorted((yield from names(PINS, PINS + AFTER_ALL)))
    bodies = yield from get(keys)
    return [pin_of(key, body) for key, body in zip(keys, bodies, strict=True) if body is not None]


def check_name(name: str) -> None:
    """Raise `BadRequest` for what is no name of a pin."""
    if not _NAME.fullmatch(name):
        words = "the name of a backup has 1 to 100 letters, digits, dots, dashes and underscores, and begins with a letter or a digit"
        raise BadRequest("name", f"{words}; {name!r:.200} has not")


# Which moment is meant: a slot, a time (ms since 1970), a backup by its name; or else the newest.
class Moment(NamedTuple):
    slot: int | None = None
    at_ms: int | None = None
    backup: str = ""


class Dated(NamedTuple):
    """What a root says of time: when it was made (ms since 1970), which is not before any fact in it; the last slot of which a fact may be
    in it; and the objects that the root before named, and it does not."""

    root: Root
    made_ms: int
    reach: int
    dropped: Sequence[str]


def dated(root: Root) -> Dated:
    *_, reach, made_ms, dropped = unpack(root.about)
    return Dated(root, made_ms, reach, dropped)


# What is kept beside what has come since the floor: these objects, and the slots of these pins.
class KeptObjects(NamedTuple):
    floor: Root
    names: frozenset[str]
    pins: Sequence[Pin]

    def has_slot(self, slot: int) -> bool:
        return any(slot in pin.slots for pin in self.pins)

    def has(self, key: str) -> bool:
        return key in self.names or _put_before(key) >= self.floor.chain.slot


def _put_before(key: str) -> float:
    # The slot of its edition; of a key that is none of ours, after all slots.
    found = re.match(r"[a-z]+/([0-9a-f]{12})-", key)
    return float("inf") if found is None else int(found[1], 16)
