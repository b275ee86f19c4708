"""The ledger in a bucket: a commit is durable when its slot is created, and the directory is a cache that each boot brings up to it.

What is true when a method returns:

- `append`: the commit is in the bucket, with the patches of the agents' storages in the same slot. The cache's journal has it too, not
  synchronised.
- `checkpoint` and `close`: when enough was committed since the last root, or long enough ago, the database's file is put into the bucket
  in pieces, and the next root names them. Before that the patches in the slots that it covers go into bases (`bucket_storages`), which
  the database's file names. What no root of the last day and no backup needs is deleted then (`bucket_history`).
- `boot`: the fence stands, so no other life commits any more. A cache that tells another story than the bucket, or none that can be
  read, is dropped and made anew.

A piece has a name of its own for ever, `snapshot/<slot>-<life>-<snapshot>/<number>`, so to delete one is always safe; a piece that did
not change since the last root is named again. They stay for a day after the last root that names them, so no reader misses one.
"""

from __future__ import annotations

import math
import os
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from perdure.ledger.bucket_history import UPLOADS, Dated, KeptObjects, Pin, dated, pins
from perdure.ledger.codec import pack, unpack
from perdure.ledger.errors import (
    UNREACHABLE_RETRY_MS,
    UNREACHABLE_S,
    BadRequest,
    BucketUnreachable,
    LedgerDamaged,
    LedgerError,
)
from perdure.ledger.slots import (
    IDENTITY,
    Begun,
    Chain,
    Fenced,
    JournalLife,
    NotCreatedOnce,
    Procedure,
    Root,
    SlotDamaged,
    claim,
    digest_of,
    get,
    newest_key,
)
from perdure.ledger.storage.patches import Patch, StorageImage, patch_of
from perdure.ledger.storage.signed_storage import SignedStorage
from perdure.ledger.store.bucket import Bucket, BucketRefused
from perdure.ledger.store.bucket_storages import BucketStorages, PackWriter, signed_storage
from perdure.ledger.store.duckdb_file import DATABASE, create, transact
from perdure.ledger.store.duckdb_file import get as get_value
from perdure.ledger.store.duckdb_file import put as put_value
from perdure.ledger.store.duckdb_store import DuckDBStore
from perdure.ledger.store.journal import MIRROR, SEGMENT, Journal, commits_in, frame_of
from perdure.ledger.store.journal_scan import scan
from perdure.ledger.store.seals import GENESIS, Commit, Mark
from perdure.ledger.store.store import Boot, Payload, Record, Row
from perdure.ledger.succession import (
    KNOCK_S,
    NOBODY,
    Claim,
    Holder,
    Traces,
    Verdict,
    attend,
    depart,
    heard,
    holder_of,
    is_gone,
    knock,
    last_life,
    refusal,
    successor,
    verdict,
    where_to_ask,
)
from perdure.ledger.whole_files import write_at

if TYPE_CHECKING:
    import duckdb

T = TypeVar("T")

FORMAT: Final = 5
PIECE: Final = 1 << 18
"""Bytes of a piece of the database's file."""
_LOOKS: Final = 3  # tries, for what can be done without
_LOOK_S: Final = 0.2  # between two looks whether a life has answered
_SWEEPS: Final = 24  # in the time for which history is kept
OPENING_TRIES: Final = 10
EDITION: Final = "edition"  # in the table `meta`
RESTORED: Final = "restored"
"""Said by the first object of a prefix which begins with a root: until that is there, nothing may begin."""


class Snapshot(NamedTuple):
    """What a root says of the database's file: the commit that it reaches, and its pieces with their digests, in order. A file of another
    `edition` names bases that the root does not. What follows is for retention (`bucket_history.Dated`)."""

    seq: int
    digest: bytes
    names: list[str]
    digests: list[bytes]
    edition: str
    reach: int
    made_ms: int
    dropped: list[str]

    @property
    def mark(self) -> Mark:
        return Mark(self.seq, self.digest)


class _Asks(Exception):
    """Whether the newest life answers has to be known first.

    Attributes:
        holder: whose it is.
    """

    def __init__(self, holder: Holder) -> None:
        super().__init__(holder)
        self.holder = holder


def sees_nothing(_: Holder) -> Traces:
    """For one who cannot look at machines."""
    return Traces(has_processes=True, refuses=False)


class BucketStore(DuckDBStore):
    """A `Store` in a bucket, with its cache in a directory.

    Args:
        claim: who begins here.
        traces: what this machine sees of the Ray of another life.
        looks: to look at what is there, while a supervisor may go on: nothing is begun, and nothing can be committed.
        now_s: a steady clock, by which a root is due.
        wall_ms: ms since 1970, by which history is kept.
        follows: the directory whose replica this is; none if the bucket is the place of record.
        token: random bytes, as many as it is asked for.
        pause: waits between two looks whether another life answers.
    """

    carries_storages = True
    root_bytes = 64 << 20
    """Bytes of commits after which a root is due."""
    root_facts = 200_000
    """Facts after which a root is due: whoever begins reads in a second or two what is not in one."""
    root_s = 600.0
    """Seconds after which a root is due, if there was a commit."""
    keep_s = 86_400.0
    """Seconds for which the ledger can be restored as it was."""
    _fenced = (
        "another supervisor has begun on this bucket since: this one commits nothing any more",
        "what it has not acknowledged is asked again there",
    )

    def __init__(
        self,
        path: Path,
        bucket: Bucket,
        *,
        claim: Claim = NOBODY,
        looks: bool = False,
        now_s: Callable[[], float] = time.monotonic,
        follows: str = "",
        token: Callable[[int], bytes] = secrets.token_bytes,
        pause: Callable[[float], None] = time.sleep,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        traces: Callable[[Holder], Traces] = sees_nothing,
    ) -> None:
        super().__init__(path, fsync=False)
        self._follows = follows
        self.url = bucket.url
        self.cache_dir = str(path.parent)
        self._looks = looks
        self._bucket, self._claim, self._now_s, self._token, self._pause = bucket, claim, now_s, token, pause
        self._wall_ms, self._traces = wall_ms, traces
        self._life = JournalLife(b"")
        self._tries_max = math.inf
        self._snapshot: Snapshot | None = None
        self._in_backlog = Chain()  # up to the last slot of which the backlog has the commit
        self._patches: Sequence[Patch] = ()  # of the commit that is under way
        self._storages = BucketStorages(bucket.url, self._fetched_pack)
        # Bytes, counted by the thread that commits; what follows is by the one that takes checkpoints.
        self._committed = 0
        self._rooted, self._rooted_s = 0, 0.0  # how many of them the last root covers, and when it was announced
        self._is_behind = False  # the last root is
        self._snapshots = 0  # of this life
        self._at_ms = 0  # no fact is later
        self._swept_s = -math.inf
        self._is_restored = False  # the prefix began with a root
        self._is_whole = False  # nothing of what a boot reads is missing, so a root may be announced
        self._answered = 0  # the last knock that was

    def _fill(self) -> None:
        self._life, self._answered = JournalLife(self._token(8)), 0
        self._bucket.at_once([self._check_prefix, self._take_hint])
        begun = self._asked(self._life.look()) if self._looks else self._begun()
        if self._is_restored and begun.root is None:
            words = f"a restore into {self._bucket.url} has not ended: let it end, or restore into it again"
            raise BadRequest("data", words)
        self._take_up(begun)

    def _take_up(self, begun: Begun) -> None:
        entries = [entry for entry, _ in begun.entries if not entry.is_fence]
        self._in_backlog, self._is_behind = self._life.chain, bool(entries)
        self._storages = BucketStorages(self._bucket.url, self._fetched_pack)
        for entry in entries:
            self._storages.take(entry.slot, map(patch_of, entry.pieces))
        self._committed = sum(_weight(entry.body, entry.pieces) for entry in entries)
        self._rooted, self._rooted_s = 0, self._now_s()
        commits = [commit for entry in entries for commit in commits_in(entry.body)]
        made_ms = 0 if begun.root is None else dated(begun.root).made_ms
        self._at_ms = max([made_ms, *(commit.rows[-1].at_ms for commit in commits)])
        self._catch_up_files(begun.root, commits)

    def _begun(self) -> Begun:
        # Put up the fence. Raises `ServedElsewhere` if another Ray's life stands there and is not to be followed.
        asked: dict[int, bool] = {}  # by the fence of a life, whether it answers
        while True:
            try:
                return self._asked(self._life.begin(lambda about: self._says(about, asked)))
            except _Asks as question:
                is_known = is_gone(self._claim, question.holder, self._traces)
                asked[self._life.chain.fence] = not is_known and self._answers()

    def _says(self, about: bytes | None, asked: dict[int, bool]) -> bytes:
        holder = holder_of(about)
        found = verdict(self._claim, holder, answers=asked.get(self._life.chain.fence))
        if holder is not None and found is Verdict.ASKS:
            raise _Asks(holder)
        if holder is not None and found is not Verdict.BEGINS:
            raise refusal(self._bucket.url, found, holder)
        return successor(self._claim, holder).packed()

    def _answers(self) -> bool:
        known = self._asked(heard(self._life, 0))
        if known is None:
            number, until_s = self._asked(knock(self._life.chain.fence)), self._now_s() + KNOCK_S
            while known is None and self._now_s() < until_s:
                self._pause(_LOOK_S)
                known = self._asked(heard(self._life, number))
        return bool(known)

    def attend(self) -> None:
        self._answered = self._asked(attend(self._life, self._answered))

    def last_life(self) -> tuple[Holder | None, bool]:
        """Who has begun last, None if nobody has, and whether that life has departed. The store need not be booted, and is not."""
        self._check_prefix()
        return self._asked(last_life(JournalLife(b"")))

    def depart(self) -> None:
        with suppress(BucketRefused):
            self._bucket.run(depart(self._life), tries_max=OPENING_TRIES)

    def _boot(self) -> Boot:
        self._is_whole, self._tries_max = False, OPENING_TRIES
        boot = super()._boot()
        con = self._ready()
        edition = "" if self._snapshot is None else self._snapshot.edition
        # Another one was written by a life that folded storages here, and could announce no root.
        if (get_value(con, EDITION) or "") != edition:
            self._release()
            self._drop_files()
            return self._boot()
        self._storages.begin(con)
        self._is_whole = not self._looks
        self._tries_max = OPENING_TRIES if self._looks else math.inf
        return boot

    def _take_hint(self) -> None:
        with suppress(BucketRefused):  # then it is asked for again, when it is needed
            self._bucket.run(self._life.hinted(), tries_max=1)

    def _check_prefix(self) -> None:
        # Raises what says why this prefix cannot be used.
        if self._looks:
            (there,) = self._asked(get([IDENTITY]))
            if there is None:
                raise BadRequest("data", no_ledger(self._bucket.url, self._asked(newest_key(""))))
        else:
            there = self._claimed([FORMAT, self._token(8).hex(), *filter(None, [self._follows])])
        words = self._words_of(there)
        self._is_restored = RESTORED in words
        follows = "".join(each for each in words if each != RESTORED)
        if self._looks or follows == self._follows:
            return
        if not self._follows:
            raise BucketRefused(
                self._bucket.url, "it is the replica of a directory", "restore it into an empty prefix or directory"
            )
        whose = "another directory" if follows else "no directory"
        raise BucketRefused(
            self._bucket.url,
            f"it is the replica of {whose}",
            "restore it if its directory was lost, and name an empty prefix here",
        )

    def _claimed(self, words: list[object]) -> bytes | None:
        try:
            return self._asked(claim(pack(words)))
        except NotCreatedOnce:
            why = "it overwrites an object that is to be created once: two supervisors would both commit there"
            raise BucketRefused(self._bucket.url, why, "use a store that knows `If-None-Match: *`") from None

    def _words_of(self, there: bytes | None) -> list[str]:
        try:
            found, _, *words = unpack(there or b"")
        except (ValueError, TypeError):
            problem = f"{self._bucket.url} holds objects of somebody else; name an empty prefix"
            raise BadRequest("data", problem) from None
        if found != FORMAT:
            words = f"{IDENTITY} says format {found}, and this Perdure reads {FORMAT}"
            raise BucketRefused(
                self._bucket.url, words, "keep it with the Perdure that wrote it, or name an empty prefix"
            )
        return list(words)

    def _catch_up_files(self, root: Root | None, commits: list[Commit]) -> None:
        # Bring the cache to the end of the chain, or make it anew.
        self._snapshot = Snapshot(*unpack(root.about)) if root is not None else None
        base = GENESIS if self._snapshot is None else self._snapshot.mark
        ends = [base, *(commit.after for commit in commits if commit.after.seq > base.seq)]
        reached, segments = self._reached()
        if reached not in ends:
            self._drop_files()
            reached, segments = self._fetched(root), {}
        journal = Journal(self.path, fsync=False)
        journal.resume(segments, reached, None)
        journal.roll()
        for commit in commits:  # a root may know commits of slots after it
            if commit.after.seq > reached.seq:
                journal.append(commit)
        journal.close()

    def _reached(self) -> tuple[Mark | None, dict[int, int]]:
        # How far the cache is, as far as it can be read.
        found = scan(self.path)
        if found.flaws or not found.bases or not (self.path / DATABASE).exists():
            return None, {}
        return (found.entries[-1].after if found.entries else found.bases[-1]), found.segments

    def _drop_files(self) -> None:
        # Without a journal the database's file says nothing. It stays for what it has of the pieces of the next one.
        for name in (f"{DATABASE}.", SEGMENT, MIRROR):
            for path in self.path.glob(f"{name}*"):
                path.unlink()

    def _fetched(self, root: Root | None) -> Mark:
        # Make the database's file from the last snapshot. Returns how far that reaches.
        if root is None:
            create(self.path, fsync=False)
            return GENESIS
        snapshot = self._snapshot = Snapshot(*unpack(root.about))
        if not self._fetch(snapshot):
            raise LedgerDamaged(
                self._bucket.url, "pieces of the last snapshot are missing", "restore it as it was at an earlier slot"
            )
        return snapshot.mark

    def _fetch(self, snapshot: Snapshot) -> bool:
        path = self.path / DATABASE
        path.touch()
        with path.open("r+b") as file:
            pieces = zip(count(0, PIECE), snapshot.names, snapshot.digests, strict=False)
            sizes = self._bucket.at_once([partial(self._fetch_piece, file.fileno(), *each) for each in pieces])
            if None in sizes:
                return False
            file.truncate(PIECE * (len(sizes) - 1) + (sizes[-1] or 0))
        return True

    def _fetch_piece(self, file: int, start: int, name: str, digest: bytes) -> int | None:
        """Put a piece where it belongs in the database's file; one that is there already, of an earlier root, is not read. Returns how many
        bytes it has; None if it is missing."""
        held = os.pread(file, PIECE, start)
        if digest_of(held) == digest:
            return len(held)
        (body,) = self._asked(get([name]))
        if body is None:
            return None
        if digest_of(body) != digest:
            raise LedgerDamaged(
                f"{self._bucket.url}/{name}", "its bytes do not fit their digest", "restore an earlier root"
            )
        write_at(file, body, start)
        return len(body)

    # at work

    def append(self, rows: Sequence[Row], payloads: list[Payload], patches: Sequence[Patch] = ()) -> None:
        self._ready()
        if self._looks:
            words = "is only looked at here, and what changes it goes through its supervisor"
            where = where_to_ask(self.last_life())
            first = "If nothing serves it, let a program open it first"
            raise BadRequest("data", f"{self._bucket.url} {words}; {where}. {first}")
        self._at_ms = max(self._at_ms, rows[-1].at_ms if rows else 0)
        self._patches = patches
        if patches and not rows and not payloads:
            with self._fatal():
                self._put_slot(b"")
        else:
            super().append(rows, payloads)
        self._storages.take(self._life.chain.slot, patches)
        self._in_backlog = self._life.chain

    def _refuse_misplaced(self, *, after_write: bool) -> None:
        # The directory is a cache.
        ...

    def _make_durable(self, commit: Commit) -> None:
        self._put_slot(b"".join(frame_of(commit)))
        super()._make_durable(commit)

    def _put_slot(self, body: bytes) -> None:
        pieces = [patch.packed() for patch in self._patches]
        self._asked(self._life.append(body, pieces))
        self._committed += _weight(body, pieces)
        self._is_behind = True

    def unreachable(self) -> BucketUnreachable | None:
        silent_s = self._bucket.unanswered_s()
        if silent_s < UNREACHABLE_S:
            return None
        return BucketUnreachable(self._bucket.url, silent_s, self._bucket.trouble, UNREACHABLE_RETRY_MS)

    def may_have_storage(self, agent_id: str) -> bool:
        return self._storages.may_have(agent_id)

    def patches_of(self, agent_id: str) -> int:
        with self._reading() as con:
            return self._storages.number(con, agent_id)

    def storage(self, agent_id: str) -> StorageImage | None:
        with self._reading() as con:
            base, tail = self._storages.parts(con, agent_id)
        return self._storages.assembled(agent_id, base, tail)  # what is damaged of one agent harms no other

    def storage_for_host(self, agent_id: str, inline_max: float) -> StorageImage | SignedStorage | None:
        with self._reading() as con:
            base, tail = self._storages.parts(con, agent_id)
        if base is not None and sum(base.sizes.values()) > inline_max:
            packs = list(dict.fromkeys(extent.pack for extent in base.blocks.values()))
            if urls := self._bucket.signed(packs):
                return signed_storage(base, tail, dict(zip(packs, urls, strict=True)))
        return self._storages.assembled(agent_id, base, tail)

    def storages_of(self, agent_id: str) -> list[str]:
        with self._reading() as con:
            return self._storages.family(con, agent_id)

    def newest_storages(self) -> dict[str, int]:
        # Each agent with the bytes of its storage. Those that were written last come first.
        with self._reading() as con:
            return self._storages.newest(con)

    def checkpoint(self, meta: bytes, upto_seq: int, records: list[Record], forgotten: list[str]) -> None:
        # What is forgotten is gone from the bucket with the next root.
        self._is_behind = True
        super().checkpoint(meta, upto_seq, records, forgotten)

    def _fold(self, con: duckdb.DuckDBPyConnection) -> None:
        if self._is_due():
            self._publish(con)
        else:
            super()._fold(con)

    def _is_due(self) -> bool:
        rooted_seq = 0 if self._snapshot is None else self._snapshot.mark.seq
        is_much = self._committed - self._rooted > self.root_bytes or self._followed.seq - rooted_seq >= self.root_facts
        is_late = self._now_s() - self._rooted_s >= self.root_s
        return self._is_whole and self._is_behind and (is_much or is_late)

    def _publish(self, con: duckdb.DuckDBPyConnection) -> None:
        """Fold, put the database's file into the bucket as it is then, and announce it.

        The root covers the slots up to here. Later ones, which come meanwhile, are read again by who begins with it: their facts may be in
        the database, their patches are in no base.
        """
        chain, committed, self._is_behind = self._in_backlog, self._committed, False
        floor, later = self._floor()
        edition, unused = self._fold_storages(con, chain.slot)
        self._storages.forget_packs(con, unused)
        super()._fold(con)
        reach, made_ms = self._life.chain.slot, max(self._at_ms, self._wall_ms())
        before = self._snapshot
        known = dict(zip(before.digests, before.names, strict=True)) if before else {}
        names, digests = self._put_pieces(f"snapshot/{edition}", known)
        dropped = sorted({*(before.names if before else ())} - {*names}) + unused
        snapshot = Snapshot(*self._followed, names, digests, edition, reach, made_ms, dropped)
        since = 0 if floor is None else floor.chain.slot
        about = pack(list(snapshot))
        if self._asked(self._announced(chain, about, since)):
            self._snapshot = snapshot
            self._rooted, self._rooted_s = committed, self._now_s()
            if floor is not None:
                self._sweep(con, floor, [*later, dated(Root(0, chain, about, since, ()))])

    def _floor(self) -> tuple[Root | None, list[Dated]]:
        # The oldest root that is still needed, if it is time to look for it, and those after it.
        if self._now_s() - self._swept_s < self.keep_s / _SWEEPS:
            return None, []
        self._swept_s = self._now_s()
        kept = [dated(root) for root in self._asked(self._life.kept_roots())]
        before_ms = self._wall_ms() - 1000 * self.keep_s
        found = ((each.root, kept[:at]) for at, each in enumerate(kept) if each.made_ms <= before_ms)
        return next(found, (None, []))

    def _sweep(self, con: duckdb.DuckDBPyConnection, floor: Root, later: list[Dated]) -> None:
        try:
            kept = self._kept(con, floor, later)
        except LedgerDamaged:
            return  # what that pin needs is not known; `perdure doctor` names it
        self._asked(self._life.collect(floor.number, kept.has_slot, UPLOADS, kept.has))

    def _kept(self, con: duckdb.DuckDBPyConnection, floor: Root, later: Iterable[Dated]) -> KeptObjects:
        found = self.pins()
        dropped = (each.dropped for each in later)
        return KeptObjects(floor, frozenset(self.names(con)).union(*dropped, *(pin.names for pin in found)), found)

    def names(self, con: duckdb.DuckDBPyConnection) -> list[str]:
        # The last root names these objects.
        return [*(self._snapshot.names if self._snapshot else ()), *self._storages.packs(con)]

    def pins(self) -> list[Pin]:
        """The backups, by their names. Raises `LedgerDamaged` for one that cannot be read."""
        return self._asked(pins())

    def _announced(self, chain: Chain, about: bytes, since: int) -> Procedure[bool]:
        return self._life.publish(chain, about, since)

    def _fold_storages(self, con: duckdb.DuckDBPyConnection, slot: int) -> tuple[str, list[str]]:
        """Bring the tails up to this slot into bases. Returns the edition that the file is now, and the packs that it does not name any
        more."""
        self._snapshots += 1
        edition = f"{slot:012x}-{self._life.nonce.hex()}-{self._snapshots}"
        unused = self._storages.fold(con, slot, PackWriter(self._put_piece, f"storage/{edition}"))
        transact(con, lambda: put_value(con, EDITION, edition))
        return edition, unused

    def _fetched_pack(self, name: str) -> bytes | None:
        (body,) = self._asked(get([name]))
        return body

    def _put_pieces(self, folder: str, known: dict[bytes, str]) -> tuple[list[str], list[bytes]]:
        # Those that are not known by their digests are put into the bucket.
        names: list[str] = []
        digests: list[bytes] = []
        with (self.path / DATABASE).open("rb") as file:
            while body := file.read(PIECE):
                digest = digest_of(body)
                if digest not in known:
                    known[digest] = self._put_piece(f"{folder}/{len(names):06}", body)
                names.append(known[digest])
                digests.append(digest)
        return names, digests

    def _put_piece(self, name: str, body: bytes) -> str:
        if not self._asked(self._life.create(name, body)):
            raise LedgerDamaged(f"{self._bucket.url}/{name}", "it is there, and is not ours")
        return name

    def _asked(self, procedure: Procedure[T]) -> T:
        try:
            return self._bucket.run(procedure, tries_max=self._tries_max)
        except Fenced:
            raise LedgerError(self._bucket.url, *self._fenced) from None
        except SlotDamaged as damage:
            raise LedgerDamaged(
                f"{self._bucket.url}/{damage.key}", str(damage), "restore the object, or begin at an earlier root"
            ) from damage


def open_bucket(
    path: Path,
    url: str,
    claim: Claim = NOBODY,
    *,
    looks: bool = False,
    traces: Callable[[Holder], Traces] = sees_nothing,
) -> BucketStore:
    """The ledger in the bucket of this URL, with its cache at a path; with `looks` to look at it only. Raises `BadRequest`."""
    return BucketStore(path, Bucket(url), claim=claim, looks=looks, traces=traces)


def last_life_in(url: str) -> tuple[Holder | None, bool]:
    """`BucketStore.last_life` of a bucket. Raises `LedgerError` and `BadRequest` for one that cannot be read, and waits only briefly."""
    store = open_bucket(Path(), url, looks=True)
    store._tries_max = _LOOKS  # noqa: SLF001
    return store.last_life()


def look_into(url: str) -> None:
    """Raise `BucketRefused` if there is no such bucket, if it may not be read, or if it does not answer. Nothing is written."""
    Bucket(url).run(newest_key(""), tries_max=_LOOKS)


def no_ledger(url: str, other: str) -> str:
    """What to say of a prefix without a ledger, in which there is this other object."""
    found = f"other objects are there, such as {other!r:.200}" if other else "no object is there"
    words = f"there is no ledger in {url}: nothing has run there, and no replica of a directory is there; {found}"
    return f"{words}. See that bucket and prefix are right: {IDENTITY} lies directly in the prefix of a ledger"


def _weight(body: bytes, pieces: Sequence[bytes]) -> int:
    return len(body) + sum(map(len, pieces))
