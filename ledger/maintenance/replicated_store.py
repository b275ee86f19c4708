"""A directory that is followed into a bucket, so that its loss undoes the last moments only, everywhere at once.

The directory is what it is without: who waits for an answer waits for its disk. Behind it a second ledger follows in the bucket, of the
same form as one whose place of record the bucket is (`ledger.store.bucket_store`), so it is looked at, verified and restored in the same
way. What goes there goes in *cuts*: each slot has the ledger's commits up to a moment between two of its decisions, and what changed in
the files of storages and code up to that moment (`storage_changes`). So every prefix of the slots is a state in which a backup could have
found the directory.

A death leaves the bucket behind the directory. The next life goes on where the bucket ends, as far as the directory's journal reaches back;
it is kept until the bucket has it. Where it does not, the directory's database takes the place of the bucket's, announced by one root; and
all storages are compared.

The bucket knows the directory by its identity. It takes nothing of another one, or of one that has gone back behind it.
"""

from __future__ import annotations

import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from perdure.ledger.directory_format import LEDGER
from perdure.ledger.errors import BucketUnreachable, LedgerError
from perdure.ledger.maintenance.storage_changes import Files, StorageChanges
from perdure.ledger.replica_settings import REPLICA, ReplicaSettings
from perdure.ledger.storage.patches import Patch
from perdure.ledger.store.bucket import Bucket
from perdure.ledger.store.bucket_store import BucketStore
from perdure.ledger.store.duckdb_file import DATABASE
from perdure.ledger.store.duckdb_store import DuckDBStore
from perdure.ledger.store.journal import Journal, frame_of
from perdure.ledger.store.journal_scan import commits, scan
from perdure.ledger.store.seals import Commit, Mark
from perdure.ledger.store.store import Boot, Record

_OPENING_TRIES: Final = 10
_CLOSING_TRIES: Final = 3


class Follower(BucketStore):
    """The ledger in the bucket. Its commits were sealed in the directory.

    Args:
        identity: of the directory.
    """

    _fenced = (
        "another program has begun to follow a directory into it, a copy of this one: nothing more goes there from here",
        "stop that one and open this one again, or name an empty prefix (`perdure replica`)",
    )

    def __init__(self, path: Path, bucket: Bucket, identity: str) -> None:
        super().__init__(path, bucket, follows=identity)
        self._adopts = False

    @property
    def mark(self) -> Mark:
        # How far it has come.
        return self._mark

    @property
    def snapshot_seq(self) -> int:
        return self._snapshot_seq

    def take(self, group: Sequence[Commit], patches: Sequence[Patch]) -> None:
        """Put these into one slot. When this returns they are in the bucket."""
        self._ready()
        self._at_ms = max([self._at_ms, *(commit.rows[-1].at_ms for commit in group)])
        self._patches = patches
        with self._fatal():
            self._put_slot(b"".join(part for commit in group for part in frame_of(commit)))
            for commit in group:
                self._journal.append(commit)
                self._mark = commit.after
                self._is_to_follow(commit)
        self._storages.take(self._life.chain.slot, patches)
        self._in_backlog = self._life.chain

    def tidy(self) -> None:
        with self._archived() as con:
            if self._is_due():
                self._fold(con)

    def has_files(self, agent_id: str, files: Files) -> bool:
        """Whether the storage of an agent has these files, and no others."""
        with self._reading() as con:
            return self._storages.has_files(con, agent_id, files)

    def adopt(self, database: Path, reached: Mark) -> None:
        """Let this database, which reaches so far, take the place of the ledger's. The storages stay what they are. It counts when it is
        announced."""
        with self._archived() as con:
            bases = self._storages.rows(con)
        self._release()
        self._drop_files()
        shutil.copyfile(database, self.path / DATABASE)
        journal = Journal(self.path, fsync=False)
        journal.resume({}, reached, None)
        journal.roll()
        journal.close()
        self._adopts = True
        try:
            super(BucketStore, self)._boot()
        finally:
            self._adopts = False
        self._storages.put_rows(self._ready(), bases)

    def announce(self, parts: Iterable[Sequence[Patch]]) -> None:
        # The changes go into bases, and then a root of everything is announced.
        with self._archived() as con:
            for patches in parts:
                self._storages.take(self._in_backlog.slot, patches)
                self._fold_storages(con, self._in_backlog.slot)
            self._publish(con)

    @contextmanager
    def bounded(self, tries_max: int) -> Iterator[None]:
        # In this block a request without an answer is given up after so many tries.
        before, self._tries_max = self._tries_max, tries_max
        try:
            yield
        finally:
            self._tries_max = before

    def _fill(self) -> None:
        if not self._adopts:
            super()._fill()


class ReplicatedStore(DuckDBStore):
    """A `Store` in a directory that is followed. That takes three steps, again and again: `prepare` on any thread, `cut` on the one that
    commits, between two decisions of the ledger, and `put` on any thread.

    Args:
        data: the directory.
        follower: the ledger in the bucket.
        now_s: a steady clock.
    """

    is_followed = True

    def __init__(
        self,
        data: Path,
        follower: Follower,
        settings: ReplicaSettings,
        *,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(data / LEDGER)
        self.settings = settings
        self._follower, self._data, self._now_s = follower, data, now_s
        self._changes: StorageChanges | None = None  # None until the bucket is followed
        self._new: deque[tuple[Commit, float]] = deque()  # not cut yet, and when they were made
        self._cut: list[tuple[Commit, float]] = []  # and not put yet
        self._found: list[Patch] = []
        self._looked_s = 0.0  # what agents have written until then was found
        # Since when they may have written what is not put; None if there was nothing.
        self._unfound_s: float | None = None
        self._checkpoints: deque[Callable[[], None]] = deque()  # not cut yet
        self._checkpoints_cut: list[Callable[[], None]] = []
        self._checkpoints_due: deque[Callable[[], None]] = deque()
        self._upto = 0  # the last fact that the bucket has

    def boot(self) -> Boot:
        """As that of every store. What the bucket cannot take up from is brought there first, which is everything at the first time.

        Raises `BucketRefused` if the bucket follows another directory, and `LedgerError` if it knows more of this one.
        """
        self._changes, self._upto = None, 0
        self._looked_s, self._unfound_s = self._now_s(), None
        for each in (
            self._new,
            self._cut,
            self._found,
            self._checkpoints,
            self._checkpoints_cut,
            self._checkpoints_due,
        ):
            each.clear()
        boot = super().boot()
        try:
            self._follow_on()
        except BaseException:
            self._release()
            raise
        return boot

    def _follow_on(self) -> None:
        follower = self._follower
        follower.boot()
        reached, here = follower.mark, self._mark
        if reached.seq > here.seq:
            problem = (
                f"it has {reached.seq} facts of this directory, which has {here.seq}: it is older than its replica"
            )
            raise LedgerError(follower.url, problem, "restore the replica, or name an empty prefix")
        scratch = self._data / REPLICA
        changes = StorageChanges(
            self._data,
            scratch,
            known=lambda agent: follower.patches_of(agent) if follower.may_have_storage(agent) else 0,
            is_there=follower.has_files,
            agents=follower.storages_of(""),
        )
        missing = self._commits_after(reached)
        if missing is None or follower.snapshot_seq != self._snapshot_seq:
            with self._archived() as con, follower.bounded(_OPENING_TRIES):
                self._fold(con)
                follower.adopt(self.path / DATABASE, self._followed)
                follower.announce(changes.look_at_all())
                changes.carried()
        else:
            self._new.extend((commit, self._now_s()) for commit in missing)
        self._changes, self._upto = changes, follower.mark.seq

    def _commits_after(self, mark: Mark) -> list[Commit] | None:
        # None if the journal does not say.
        if mark == self._mark:
            return []
        entries = [each for each in scan(self.path).entries if each.after.seq > mark.seq]
        return list(commits(entries)) if entries and entries[0].before == mark else None

    # at work

    def _make_durable(self, commit: Commit) -> None:
        super()._make_durable(commit)
        self._new.append((commit, self._now_s()))

    def checkpoint(self, meta: bytes, upto_seq: int, records: list[Record], forgotten: list[str]) -> None:
        # The bucket's comes with the next cut.
        super().checkpoint(meta, upto_seq, records, forgotten)
        self._checkpoints.append(partial(self._follower.checkpoint, meta, upto_seq, records, forgotten))

    def _dropped_upto(self) -> int:
        return min(super()._dropped_upto(), self._upto)

    def behind_ms(self) -> float:
        """For how long the oldest write has waited that is not in the bucket, of the ledger or of an agent; 0 if none is known of.

        Agents tell nobody when they write: what a look finds counts from the one before, and so does, after a `put`, what the next may
        find. Not known is what was written since the last look, if that has found nothing.
        """
        oldest = [at_s for _, at_s in [*self._cut[:1], *islice(self._new, 1)]]
        unfound_s = self._unfound_s
        if unfound_s is not None:
            oldest.append(unfound_s)
        return (self._now_s() - min(oldest)) * 1000 if oldest else 0.0

    @property
    def has_news(self) -> bool:
        # News are what the bucket lacks.
        return bool(self._new or self._cut or self._checkpoints or self._found or self._following().has_news)

    @property
    def unreadable(self) -> str:
        """A storage that the bucket gets no more of because the disk does not give it; empty if there is none."""
        return next(iter(self._following().unreadable.values()), "")

    def unreachable(self) -> BucketUnreachable | None:
        return self._follower.unreachable()

    def prepare(self, agents: Iterable[str] | None) -> None:
        """Read what these agents have changed; of all agents if there is None. So the cut has little to read."""
        changes = self._following()
        with self._looking():
            if agents is not None:
                changes.look(agents)
                return
            for part in changes.look_at_all():
                self._found += part

    @contextmanager
    def _looking(self) -> Iterator[None]:
        # A look that fails may have left something that it has not found.
        began_s, before_s = self._now_s(), self._looked_s if self._unfound_s is None else self._unfound_s
        is_whole = False
        try:
            yield
            is_whole = True
            self._looked_s = began_s
        finally:
            has_found = bool(self._found) or self._following().has_news
            self._unfound_s = None if is_whole and not has_found else before_s

    def nothing_written(self) -> None:
        """No agent was able to write since the last look, so there is no need for one."""
        if self._found or self._following().has_news:
            return
        self._looked_s, self._unfound_s = self._now_s(), None

    def cut(self, agents: Iterable[str]) -> None:
        """Take what is to be put. The caller sees to it that the ledger decides nothing meanwhile."""
        changes = self._following()
        with self._looking():
            changes.look(agents)
        self._found += changes.take()
        while self._new:
            self._cut.append(self._new.popleft())
        while self._checkpoints:
            self._checkpoints_cut.append(self._checkpoints.popleft())

    def put(self) -> None:
        """Put the cut into the bucket, however long that takes to answer.

        Raises `LedgerError`, at every call from then on, if it takes nothing more of this life.
        """
        group = [commit for commit, _ in self._cut]
        if group or self._found:
            self._follower.take(group, self._found)
            self._upto = self._follower.mark.seq
            self._cut, self._found = [], []
            self._unfound_s = self._looked_s  # agents have written meanwhile, perhaps; the next look tells
            self._following().carried()
        self._checkpoints_due.extend(self._checkpoints_cut)
        self._checkpoints_cut = []

    def tidy(self) -> None:
        """Bring the bucket's snapshot up to date, and announce a root if one is due. What is put meanwhile does not wait for it."""
        while self._checkpoints_due:
            self._checkpoints_due.popleft()()
        self._follower.tidy()

    def close(self) -> None:
        # What the bucket lacks is brought there if it answers.
        if self._changes is not None and self._refusal is None and self._con is not None:
            with suppress(LedgerError, OSError), self._follower.bounded(_CLOSING_TRIES):
                self.prepare(None)
                self.cut(())
                self.put()
                self.tidy()
        self._changes = None
        self._follower.close()
        super().close()

    def _following(self) -> StorageChanges:
        if self._changes is None:
            raise LedgerError(str(self.path), "its replica is not followed yet", "boot it first")
        return self._changes


def open_replicated(data: Path, settings: ReplicaSettings, identity: str) -> ReplicatedStore:
    """The ledger of a directory that is followed, which has this identity. Raises `BadRequest`."""
    follower = Follower(data / REPLICA / LEDGER, Bucket(settings.url), identity)
    return ReplicatedStore(data, follower, settings)
