"""The first root of an empty prefix: a ledger that was elsewhere goes on from there.

The prefix is claimed with a word that it begins with a root. So until that stands nothing begins there, and a seed that was interrupted is
simply made again: what it has put there is named by nothing, and of two at once the later one finds the root of the first.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from perdure.ledger.errors import BadRequest
from perdure.ledger.slots import Chain, JournalLife, Procedure
from perdure.ledger.storage.patches import Patch, StorageImage, whole
from perdure.ledger.store.bucket import Bucket, BucketRefused
from perdure.ledger.store.bucket_storages import BucketStorages, drop_storages
from perdure.ledger.store.bucket_store import FORMAT, OPENING_TRIES, RESTORED, BucketStore
from perdure.ledger.store.store import Boot

_GROUP: Final = 16 << 20
"""Bytes of storages that are in memory at once, if none is larger by itself."""
_START: Final = Chain()


def seed_bucket(bucket: Bucket, ledger: Path, storages: Iterable[tuple[str, StorageImage]]) -> int:
    """Let an empty prefix begin with the ledger whose files are in this directory, and with these storages of its agents. The files are
    used up. Returns the number of storages.

    Raises `BadRequest` if the prefix is not empty, and `LedgerError` if the ledger cannot be opened or the bucket be reached.
    """
    seed = _Seed(ledger, bucket)
    try:
        seed.boot()
        return seed.plant(storages)
    except BucketRefused as problem:
        raise BucketRefused(
            bucket.url, problem.problem, f"{problem.advice}; then restore into it again, which begins anew"
        ) from problem
    finally:
        seed.close()


class _Seed(BucketStore):
    def _fill(self) -> None:
        there = self._claimed([FORMAT, secrets.token_hex(8), RESTORED])
        self._life = JournalLife(secrets.token_bytes(8))
        if RESTORED not in self._words_of(there) or self._asked(self._life.newest_root()) is not None:
            raise _taken(self._bucket.url)

    def _boot(self) -> Boot:
        self._tries_max = OPENING_TRIES
        boot = super(BucketStore, self)._boot()
        self._storages = BucketStorages(self._bucket.url, self._fetched_pack)
        drop_storages(self._ready())  # of a former bucket
        self._storages.begin(self._ready())
        return boot

    def _announced(self, chain: Chain, about: bytes, since: int) -> Procedure[bool]:
        return self._life.plant(about)

    def plant(self, storages: Iterable[tuple[str, StorageImage]]) -> int:
        count = 0
        with self._archived() as con:
            for group in _grouped(storages):
                self._storages.take(_START.slot, group)
                count += len(group)
                self._fold_storages(con, _START.slot)
            self._publish(con)
        if self._snapshot is None:
            raise _taken(self._bucket.url)
        return count


def _grouped(storages: Iterable[tuple[str, StorageImage]]) -> Iterator[list[Patch]]:
    group: list[Patch] = []
    size = 0
    for agent, image in storages:
        group.append(Patch(agent, 0, 1, [whole(name, content) for name, content in image.files.items()]))
        size += sum(map(len, image.files.values()))
        if size >= _GROUP:
            yield group
            group, size = [], 0
    yield group


def _taken(url: str) -> BadRequest:
    return BadRequest("data", f"{url} is not empty; name another prefix to restore into")
