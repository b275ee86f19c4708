"""A ledger in a bucket as it was at an earlier slot: to be restored, or to be looked at."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from pathlib import Path

from perdure.ledger.bucket_history import UPLOADS, Dated, Moment, Pin, dated, pin_key
from perdure.ledger.code_files import CODE
from perdure.ledger.errors import BadRequest
from perdure.ledger.slots import AFTER_ALL, Begun, Chain, JournalLife, Root, delete, get, names, slot_key
from perdure.ledger.store.bucket import Bucket
from perdure.ledger.store.bucket_store import OPENING_TRIES, BucketStore
from perdure.ledger.store.journal import commits_in


class PastStore(BucketStore):
    """Looks at the ledger as it was at a moment, whether or not a supervisor goes on meanwhile.

    Attributes:
        slot: the last one that counts; known when it is booted.
        at_ms: of the last decision in it, or of the root that has it (ms since 1970); 0 if there is none.
    """

    def __init__(self, path: Path, bucket: Bucket, moment: Moment = Moment()) -> None:  # noqa: B008 - it is a value
        super().__init__(path, bucket, looks=True)
        self._moment = moment
        self.slot = self.at_ms = 0
        self._root: Root | None = None

    def _fill(self) -> None:
        self._check_prefix()
        self._life = JournalLife(b"")
        begun = self._found()
        self.slot, self._root = self._life.chain.slot, begun.root
        self._take_up(begun)
        self.at_ms = self._at_ms

    def see(self) -> None:
        """See that there is a ledger, without what is in it. Raises as `boot`."""
        self._tries_max = OPENING_TRIES
        self._check_prefix()

    def _found(self) -> Begun:
        if self._moment.backup:
            pin = self.pin(self._moment.backup)
            return self._asked(self._life.replay(pin.root, pin.slot))
        newest = self._asked(self._life.look())
        if self._moment.slot is None and self._moment.at_ms is None:
            return newest
        kept = [dated(each) for each in self._asked(self._life.kept_roots())]
        if self._moment.slot is not None:
            return self._at_slot(self._moment.slot, newest, kept)
        assert self._moment.at_ms is not None
        if self._moment.at_ms > max(self._wall_ms(), _last_ms(newest)):
            raise self._ahead(self._moment.at_ms, newest)
        return self._at_time(self._moment.at_ms, newest, kept)

    def _ahead(self, at_ms: int, newest: Begun) -> BadRequest:
        here = f"{datetime.fromtimestamp(at_ms / 1000, UTC).astimezone():%Y-%m-%d %H:%M:%S %Z} on this machine"
        words = f"{_shown(at_ms)} ({here}) is in the future: it is {_shown(self._wall_ms())}"
        last = f"the newest in {self._bucket.url} is slot {self._life.chain.slot}, of {_shown(_last_ms(newest))}"
        return BadRequest("at", f"{words}, and {last}; a time without a zone is UTC")

    def _at_slot(self, slot: int, newest: Begun, kept: list[Dated]) -> Begun:
        root = next((each.root for each in kept if each.reach <= slot), None)
        if slot > self._life.chain.slot or (root is None and (_first(kept) or slot < 1)):
            raise self._not_kept(f"slot {slot}", newest, kept)
        return self._replayed(root, slot)

    def _at_time(self, at_ms: int, newest: Begun, kept: list[Dated]) -> Begun:
        nth = next((nth for nth, each in enumerate(kept) if each.made_ms <= at_ms), len(kept))
        root = kept[nth].root if nth < len(kept) else None
        last = kept[nth - 1].reach if nth else self._life.chain.slot  # what is later is after that root was made
        if root is None and _first(kept):
            raise self._not_kept(_shown(at_ms), newest, kept)
        entries = self._replayed(root, last).entries
        late = (
            entry.slot
            for entry, _ in entries
            if not entry.is_fence and any(commit.rows[-1].at_ms > at_ms for commit in commits_in(entry.body))
        )
        slot = next(late, last + 1) - 1
        if root is None and not any(not entry.is_fence and entry.body and entry.slot <= slot for entry, _ in entries):
            raise BadRequest("at", f"nothing had been committed in {self._bucket.url} by {_shown(at_ms)}")
        return self._replayed(root, slot)

    def _replayed(self, root: Root | None, last: int) -> Begun:
        self._life = JournalLife(b"")
        return self._asked(self._life.replay(root, last))

    def _not_kept(self, what: str, newest: Begun, kept: list[Dated]) -> BadRequest:
        first = f"{_first(kept)} (of {_shown(kept[-1].made_ms)})" if _first(kept) else "1"
        last = f"{self._life.chain.slot} (of {_shown(_last_ms(newest))})"
        words = f"{what} is not kept in {self._bucket.url}: it has slots {first} to {last}{self._others()}"
        return BadRequest("at", words)

    def _others(self) -> str:
        found = [f"{pin.name} (slot {pin.slot}, {_shown(pin.at_ms)})" for pin in self.pins()]
        return f", and the backups {', '.join(found)}" if found else ", and no backups"

    def pin_here(self, name: str, at_ms: int) -> Pin | None:
        """Pin what this is under a name. Returns None if there is a backup of this name. Raises `BadRequest` if it is not kept any more."""
        number, chain, about, _, _ = self._root or Root(0, Chain(), b"", 0, ())
        with self._reading() as con:
            pin = Pin(name, number, chain, about, self.slot, at_ms, self.names(con))
        if not self._asked(self._life.create(pin_key(name), pin.packed())):
            return None
        newest = self._asked(self._life.newest_root())
        if newest is not None and newest.since > chain.slot:  # this was made so late that its objects may be deleted
            self.unpin(name)
            raise BadRequest(
                "dir", f"the state of {self._bucket.url} at slot {self.slot} is not kept any more; try again"
            )
        return pin

    def unpin(self, name: str) -> None:
        """Delete a backup. What only it needs is deleted by a supervisor. Raises `BadRequest` if there is none of this name."""
        self.pin(name)
        self._asked(delete([pin_key(name)]))

    # what there is

    @property
    def last_fact(self) -> int:
        return self._mark.seq

    def owners(self) -> list[str]:
        return [each for each in self.storages_of("") if each != CODE]

    def all_names(self) -> list[str]:
        # A hint: objects may come and go meanwhile.
        return self._asked(names("", AFTER_ALL))

    def to_go(self, there: Iterable[str]) -> list[str]:
        # Which of these objects a supervisor will delete.
        roots = [dated(each) for each in self._asked(self._life.kept_roots())]
        if not _first(roots):
            return []
        with self._reading() as con:
            kept = self._kept(con, roots[-1].root, roots[:-1])
        uploads = [key for key in there if key.startswith(UPLOADS) and not kept.has(key)]
        return [*uploads, *map(slot_key, self._asked(self._life.slots_to_go(kept.has_slot)))]

    def lost(self, pin: Pin, there: Collection[str]) -> list[str]:
        # What is missing of a backup, where these objects are listed.
        due = [key for key in (*pin.names, *map(slot_key, pin.slots)) if key not in there]
        return [key for key, body in zip(due, self._asked(get(due)), strict=True) if body is None]

    def settle(self) -> None:
        # Everything goes into the database's file.
        with self._archived() as con:
            self._fold(con)

    def pin(self, name: str) -> Pin:
        """The backup of this name. Raises `BadRequest` if there is none."""
        found = {pin.name: pin for pin in self.pins()}
        if name not in found:
            words = f"{self._bucket.url} has no backup {name!r:.200}; it has {', '.join([*found][-10:]) or 'none'}"
            raise BadRequest("backup", words)
        return found[name]


def _first(kept: list[Dated]) -> int:
    # 0 if the journal is kept from its beginning.
    return kept[-1].reach if kept and kept[0].root.since else 0


def _last_ms(begun: Begun) -> int:
    # No decision in it is later.
    commits = [commit for entry, _ in begun.entries if not entry.is_fence for commit in commits_in(entry.body)]
    return max([0 if begun.root is None else dated(begun.root).made_ms, *(commit.rows[-1].at_ms for commit in commits)])


def _shown(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
