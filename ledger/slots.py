"""The journal in a bucket: numbered slots, each created once. Whoever creates the next slot is the supervisor.

Keys, of which none is ever used twice and none is overwritten:

    perdure.json        whose prefix this is
    journal/<slot>      a fence or a commit
    root/<number>       announces a snapshot of everything up to a slot; numbered without gaps

So one conditional verb is enough, *create*, which fails where an object is. A list of keys is a hint where to begin to look; what is there
is found by reading on to the first key that is missing. Of old roots each hundredth stays, so that who comes to one that was deleted goes
on there.

A root says up to which slot those before it are not kept any more. Later slots are, though the root covers them, and so are the snapshots
of earlier roots: for as long as a ledger can be restored as it was then.

A *life* of the supervisor begins by reading to the first slot that is missing and creating it: its **fence**. It commits by creating the
next slot, one at a time. The next slot of an earlier life that still runs is where the fence stands, so that life acknowledges nothing
any more. Each object names the one before it by its digest, so a slot that does not follow is found.

The network delays, doubles and loses requests and answers, and a request may take effect after its sender has given it up or died.
Ten rules make that harmless. Without any one of them an acknowledged commit is lost or taken twice, which the explorer in
`tests/ledger/test_slots.py` plays:

    create only             a slot is created and never overwritten: the later of two writers must fail, not win
    the same body           a create without an answer is sent again as it was, so that either of them may take effect
    read back               "exists" is no answer: the object is read. Ours: done. Missing: sent again. Another one: fenced
    fences stay             the slots of fences are never deleted. A life that slept through two snapshots would create "its" slot again
    look before the fence   a root that came while the slots were read makes what was read worthless: they may have been deleted slots, into
                            which a late request has put a stray
    look after the fence    a root that has passed the fence before it stood makes the fence a stray
    delete what was read    a life deletes only slots that it has read or written, or of which a root says which are fences
    publish first           slots are deleted after a root stands that covers them and says so
    the last root counts    a life names again what that root names which is the last when its fence stands: an earlier one may name what
                            was deleted
    look before the sweep   what no root names any more is listed, then the slot after the root is found missing, then it is deleted: so no
                            later life has begun with an earlier root, and what one puts there is not in the list

Nothing here waits or sends. A procedure is a generator of requests; who drives it sends back each answer, or throws `NoReply` in.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, cast

from perdure.ledger.codec import encoder, unpack

T = TypeVar("T")

WINDOW: Final = 16
"""Slots that are read first: they are read at once, and after each window that is full a larger one, up to `WINDOW_MAX`."""
WINDOW_MAX: Final = 256
IDENTITY: Final = "perdure.json"
JOURNAL: Final = "journal/"
ROOTS: Final = "root/"
LANDING: Final = 100
"""Of old roots those stay whose numbers this divides."""
_DIGEST: Final = 16
AFTER_ALL: Final = "~"


class NoReply(Exception):
    """A request may have taken effect, may yet, or was lost."""


class Fenced(Exception):
    """Another life has begun. Nothing that is not acknowledged by now will be."""


class NotCreatedOnce(Exception):
    """The store has overwritten an object that was to be created."""


class SlotDamaged(Exception):
    """An object is not what a life of this protocol has written.

    Attributes:
        key: of the object.
    """

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"{key}: {why}")
        self.key = key


# Put an object where none is. The answer: whether it was put there.
class Create(NamedTuple):
    key: str
    body: bytes


# Read objects. The answer: their bodies in order, `None` for each that is missing. They may be read at different times.
class Get(NamedTuple):
    keys: tuple[str, ...]


# The last key under a prefix, or an empty text: a hint, which may be old.
class Newest(NamedTuple):
    prefix: str


# The keys under a prefix up to a key: a hint, which may be old.
class Names(NamedTuple):
    prefix: str
    last: str


# Delete objects. Those that stay are garbage, and harm nobody.
class Delete(NamedTuple):
    keys: tuple[str, ...]


Request: TypeAlias = Create | Get | Newest | Names | Delete
Answer: TypeAlias = bool | str | list[bytes | None] | list[str] | None
Procedure: TypeAlias = Generator[Request, Answer, T]


# How far the journal is known: the last slot, its epoch, its digest, and the slot of the last fence.
class Chain(NamedTuple):
    slot: int = 0
    epoch: int = 0
    digest: bytes = b""
    fence: int = 0


class SlotRecord(NamedTuple):
    """What a slot holds. A fence begins a new epoch; its body tells of the life.

    Attributes:
        nonce: of the life that wrote it. Equal commits of two lives are two objects by it.
        before: the digest of the slot before it.
        pieces: what agents committed, for which the body speaks.
    """

    is_fence: bool
    slot: int
    epoch: int
    nonce: bytes
    before: bytes
    pieces: Sequence[bytes]
    body: bytes


class Root(NamedTuple):
    """Announces a snapshot: everything up to the end of a chain is in what `about` names.

    Attributes:
        since: slots up to this one are not kept any more.
        fences: those after it, up to the end of the chain.
    """

    number: int
    chain: Chain
    about: bytes
    since: int
    fences: Sequence[int]


# What a life found: a snapshot, if there is one, and the entries after it, its own fence last, each with the chain up to it.
class Begun(NamedTuple):
    root: Root | None
    entries: list[tuple[SlotRecord, Chain]]


def slot_key(slot: int) -> str:
    return f"{JOURNAL}{slot:012x}"


def root_key(number: int) -> str:
    return f"{ROOTS}{number:08}"


def claim(body: bytes) -> Procedure[bytes | None]:
    """Be the first under a prefix, or find who was: the body that was put there then. None if the prefix holds other objects. No two
    callers have the same body.

    Raises `NotCreatedOnce` of a store on which whoever comes later wins: two supervisors would both commit there. It is left as it was, so
    that whoever opens it next finds out, too.
    """
    there = yield from _sure_get(IDENTITY)
    if there is None and (yield from newest_key("")):
        there = yield from _sure_get(IDENTITY)  # what was listed may be that of another who has come first since
        if there is None:
            return None
    while there is None:
        with suppress(NoReply):
            yield Create(IDENTITY, body)
        there = yield from _sure_get(IDENTITY)
    while there == body:  # so this is the first opening
        try:
            if not (yield Create(IDENTITY, body)):
                return there
            yield Delete((IDENTITY,))
        except NoReply:
            continue
        raise NotCreatedOnce
    return there


class JournalLife:
    """One life of the supervisor, as far as its journal goes.

    Args:
        nonce: tells it from every other life; never used twice.
    """

    def __init__(self, nonce: bytes) -> None:
        self.nonce = nonce
        self.chain = Chain()
        self.fence = 0
        self._root = 0  # the number of the newest that is known
        self._since = self._told = 0  # slots up to here are not kept; the fences after the second one are known
        self._fences: set[int] = set()

    # beginning

    def begin(self, follow: Callable[[bytes | None], bytes] | None = None) -> Procedure[Begun]:
        """Read what there is, put up the fence, and be the life that decides. Raises `SlotDamaged`.

        `follow` is told what the fence of the newest life says (None if there is none), and returns what the own one says. If it raises,
        nothing is begun. By default it says nothing.
        """
        while True:
            found, entries = yield from self.look()
            about = b"" if follow is None else follow((yield from self.newest_about(entries)))
            if not (yield from self._put_up_fence(about, entries)):
                continue
            last = yield from self.newest_root()
            if self._is_passed(last):
                continue
            return self._begun(found, last, entries)

    def look(self) -> Procedure[Begun]:
        """Read what there is, and begin nothing: another life may go on meanwhile. Raises `SlotDamaged`."""
        while True:
            found = yield from self.newest_root()
            self._go_on_from(found)
            known = self._root
            entries, damage = yield from self._read()
            yield from self.newest_root()
            if self._has_news(known):
                continue
            if damage is not None:
                raise damage
            return Begun(found, entries)

    def newest_about(self, entries: Sequence[tuple[SlotRecord, Chain]]) -> Procedure[bytes | None]:
        """What the newest fence says; None if there is none. It is read again if it is not among these."""
        if not self.chain.fence:
            return None
        for entry, _ in reversed(entries):
            if entry.is_fence:
                return entry.body
        key = slot_key(self.chain.fence)
        body = yield from _sure_get(key)
        if body is None:
            raise SlotDamaged(key, "it is missing, and fences are never deleted")
        return record_of(key, body).body

    def _has_news(self, known: int) -> bool:
        return self._root != known

    def _is_passed(self, newest: Root | None) -> bool:
        return newest is not None and newest.chain.slot >= self.fence

    def _begun(self, found: Root | None, last: Root | None, entries: list[tuple[SlotRecord, Chain]]) -> Begun:
        # Another life may have announced one meanwhile, of slots that were read here.
        if last is None or found == last:
            return Begun(found, entries)
        self._fences.update(last.fences)
        return Begun(last, [each for each in entries if each[0].slot > last.chain.slot])

    def _go_on_from(self, found: Root | None) -> None:
        self.chain = Chain() if found is None else found.chain
        self._since = self._told = 0 if found is None else found.since
        self._fences = set() if found is None else set(found.fences)

    def newest_root(self) -> Procedure[Root | None]:
        if not self._root:
            yield from self.hinted()
        newest: Root | None = None
        at = max(self._root, 1)
        while True:
            # Of those in between, some may be deleted. If that happens during the last look of a life, a later life has begun.
            landing = at + LANDING - at % LANDING
            body, after, stays = yield from get([root_key(at), root_key(at + 1), root_key(landing)])
            if body is not None:
                newest, self._root = _root_of(at, body), at
            if stays is not None:
                at = landing
            elif after is not None:
                at += 1
            else:
                return newest

    def hinted(self) -> Procedure[None]:
        """Ask where to begin to look for it."""
        hint = yield from newest_key(ROOTS)
        self._root = _number_in(hint, 10)

    def kept_roots(self) -> Procedure[list[Root]]:
        """The roots with which a reader can begin: those of which all later slots are kept. The newest comes first."""
        newest = yield from self.newest_root()
        if newest is None:
            return []
        kept, number = [newest], newest.number
        while number > 1:
            numbers = range(number - 1, max(number - 1 - WINDOW, 0), -1)
            for number, body in zip(numbers, (yield from get([*map(root_key, numbers)])), strict=True):
                try:
                    root = None if body is None else _root_of(number, body)
                except SlotDamaged:
                    root = None
                if root is None or root.chain.slot < newest.since:
                    return kept
                kept.append(root)
        return kept

    def _read(self) -> Procedure[tuple[list[tuple[SlotRecord, Chain]], SlotDamaged | None]]:
        """Read on to the first slot that is missing. The second says why if that is a hole, or if a slot does not follow."""
        entries: list[tuple[SlotRecord, Chain]] = []
        while True:
            first = self.chain.slot + 1
            window = min(max(WINDOW, 4 * len(entries)), WINDOW_MAX)
            keys = [slot_key(slot) for slot in range(first, first + window)]
            bodies = yield from get(keys)
            for key, body in zip(keys, bodies, strict=True):
                if body is None:
                    break
                try:
                    entries.append(self._follow(key, body))
                except SlotDamaged as damage:
                    return entries, damage
            else:
                continue
            if not any(bodies[self.chain.slot + 1 - first :]):
                return entries, None
            # Slots are created in order. So this one came while later ones were read, or it was deleted: under a new root, or by no life.
            if (yield from _sure_get(key)) is None:
                return entries, SlotDamaged(key, "it is missing, and later ones are there")

    def _follow(self, key: str, body: bytes) -> tuple[SlotRecord, Chain]:
        entry = record_of(key, body)
        if (entry.slot, entry.before) != (self.chain.slot + 1, self.chain.digest):
            raise SlotDamaged(key, "it does not follow the slot before it")
        self._take(entry, body)
        return entry, self.chain

    def _put_up_fence(self, about: bytes, entries: list[tuple[SlotRecord, Chain]]) -> Procedure[bool]:
        entry = self._entry(is_fence=True, pieces=(), body=about)
        body = framed(entry)
        if not (yield from self.create(slot_key(entry.slot), body)):
            return False
        self._take(entry, body)
        entries.append((entry, self.chain))
        self.fence = entry.slot
        return True

    # at work

    def append(self, body: bytes, pieces: Sequence[bytes] = ()) -> Procedure[None]:
        """Make a commit durable: when this has ended it may be acknowledged. Raises `Fenced`."""
        entry = self._entry(is_fence=False, pieces=tuple(pieces), body=body)
        packed = framed(entry)
        if not (yield from self.create(slot_key(entry.slot), packed)):
            raise Fenced
        self._take(entry, packed)

    def replay(self, root: Root | None, last: int) -> Procedure[Begun]:
        """What there was up to a slot, from a root on, and nothing is begun. Raises `SlotDamaged` for one that is missing."""
        self._go_on_from(root)
        entries: list[tuple[SlotRecord, Chain]] = []
        while self.chain.slot < last:
            keys = [slot_key(slot) for slot in range(self.chain.slot + 1, min(self.chain.slot + WINDOW, last) + 1)]
            for key, body in zip(keys, (yield from get(keys)), strict=True):
                if body is None:
                    raise SlotDamaged(key, "it is missing")
                entries.append(self._follow(key, body))
        return Begun(root, entries)

    def publish(self, chain: Chain, about: bytes, since: int = 0) -> Procedure[bool]:
        """Announce a snapshot of everything up to a chain's end, and that slots up to `since` are not kept any more. Returns False if there
        is one that reaches further. Raises `Fenced`."""
        while True:
            newest = yield from self.newest_root()
            if newest is not None and newest.chain.epoch > self.chain.epoch:
                raise Fenced
            if newest is not None and newest.chain.slot > chain.slot:
                return False
            number = self._root + 1
            gone = max(since, 0 if newest is None else newest.since)
            if (yield from self.create(root_key(number), self._root_body(chain, about, gone))):
                self._root, self._since = number, gone
                return True

    def plant(self, about: bytes) -> Procedure[bool]:
        """Announce a snapshot from elsewhere as the first one, before any slot. Returns False if there is another."""
        return self.create(root_key(1), self._root_body(Chain(), about, 0))

    def _root_body(self, chain: Chain, about: bytes, since: int) -> bytes:
        fences = sorted(each for each in self._fences if since < each <= chain.slot)
        return framed([*chain, self.nonce, about, since, fences])

    def collect(
        self, oldest: int, has_slot: Callable[[int], bool], prefixes: Sequence[str], has: Callable[[str], bool]
    ) -> Procedure[None]:
        """Delete the slots that the last root of this life says not to be kept any more, the roots before the `oldest` one, and the objects
        under these prefixes; not what is said to be kept all the same."""
        slots = yield from self.slots_to_go(has_slot)
        last = max(oldest, 1) - 1
        roots = yield from names(ROOTS, root_key(min(last, self._root // LANDING * LANDING)))
        gone = [slot_key(slot) for slot in slots] + [key for key in roots if _number_in(key, 10) % LANDING]
        for prefix in prefixes:
            gone += [key for key in (yield from names(prefix, prefix + AFTER_ALL)) if not has(key)]
        if gone and (yield from self._is_last()):
            with suppress(NoReply):
                yield Delete(tuple(gone))

    def slots_to_go(self, has_slot: Callable[[int], bool]) -> Procedure[list[int]]:
        """The slots that are there, and that the last root says not to be kept any more. What an earlier life should have deleted, or kept
        for a backup that is no more, is read to know whether it is a fence."""
        listed = [_number_in(key, 16) for key in (yield from names(JOURNAL, slot_key(self._since)))]
        slots = [slot for slot in listed if slot and not has_slot(slot) and self._may_go(slot)]
        unknown = [slot for slot in slots if slot <= self._told]
        for at in range(0, len(unknown), WINDOW):
            these = unknown[at : at + WINDOW]
            bodies = yield from get([*map(slot_key, these)])
            self._fences.update(slot for slot, body in zip(these, bodies, strict=True) if _may_be_fence(slot, body))
        return [slot for slot in slots if self._may_go(slot)]

    def _may_go(self, slot: int) -> bool:
        return slot not in self._fences

    def _is_last(self) -> Procedure[bool]:
        slot = self.chain.slot + 1
        while (body := (yield from _sure_get(slot_key(slot)))) is not None:
            if record_of(slot_key(slot), body).nonce != self.nonce:
                return False
            slot += 1  # another thread commits
        return True

    def _entry(self, *, is_fence: bool, pieces: tuple[bytes, ...], body: bytes) -> SlotRecord:
        slot, epoch, digest, _ = self.chain
        return SlotRecord(is_fence, slot + 1, epoch + is_fence, self.nonce, digest, pieces, body)

    def _take(self, entry: SlotRecord, body: bytes) -> None:
        fence = self.chain.fence
        if entry.is_fence:
            fence = entry.slot
            self._fences.add(fence)
        self.chain = Chain(entry.slot, entry.epoch, body[-_DIGEST:], fence)

    def create(self, key: str, body: bytes) -> Procedure[bool]:
        """Create an object. Returns whether it is there as it was meant; False if another one is."""
        while True:
            try:
                if (yield Create(key, body)):
                    return True
            except NoReply:
                continue
            held = yield from _sure_get(key)
            if held is not None:
                return held == body


# ---------------------------------------------------------------- objects
# A list, packed, and its digest. That of a slot covers the digest of the one before, the nonce and the pieces.


def framed(parts: Sequence[object]) -> bytes:
    """The object that says this."""
    body = encoder()(parts)
    return body + digest_of(body)


def record_of(key: str, framed: bytes) -> SlotRecord:
    """What the object of a slot holds. Raises `SlotDamaged`."""
    return SlotRecord(*parts_of(key, framed))


def parts_of(key: str, framed: bytes) -> Any:
    """What an object says. Raises `SlotDamaged`."""
    body, digest = framed[:-_DIGEST], framed[-_DIGEST:]
    if digest_of(body) != digest:
        raise SlotDamaged(key, "its bytes do not fit their digest")
    return unpack(body)


def digest_of(body: bytes) -> bytes:
    return blake2b(body, digest_size=_DIGEST).digest()


def _root_of(number: int, framed: bytes) -> Root:
    slot, epoch, digest, fence, _, about, since, fences = parts_of(root_key(number), framed)
    return Root(number, Chain(slot, epoch, digest, fence), about, since, fences)


def _number_in(key: str, base: int) -> int:
    # 0 if it is no key of ours
    try:
        return int(key.rpartition("/")[2], base)
    except ValueError:
        return 0


def _may_be_fence(slot: int, body: bytes | None) -> bool:
    try:
        return body is None or record_of(slot_key(slot), body).is_fence
    except SlotDamaged:
        return True


# ---------------------------------------------------------------- asking until there is an answer
# What only reads may be asked again as often as it takes.


def get(keys: Sequence[str]) -> Procedure[list[bytes | None]]:
    # They may be read at different times: if one of many has no answer, each half of them is asked for by itself.
    while keys:
        try:
            return cast("list[bytes | None]", (yield Get(tuple(keys))))
        except NoReply:
            if half := len(keys) // 2:
                return (yield from get(keys[:half])) + (yield from get(keys[half:]))
    return []


def delete(keys: Sequence[str]) -> Procedure[None]:
    while keys and any(each is not None for each in (yield from get(keys))):
        with suppress(NoReply):
            yield Delete(tuple(keys))


def names(prefix: str, last: str) -> Procedure[list[str]]:
    # A hint, which may be old.
    while True:
        try:
            return cast("list[str]", (yield Names(prefix, last)))
        except NoReply:
            continue


def _sure_get(key: str) -> Procedure[bytes | None]:
    (body,) = yield from get([key])
    return body


def newest_key(prefix: str) -> Procedure[str]:
    # A hint, which may be old.
    while True:
        try:
            return str((yield Newest(prefix)))
        except NoReply:
            continue
