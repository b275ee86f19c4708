"""A ledger brought back as it was at a moment, from a bucket into a directory, or from either into an empty prefix.

The first object of a prefix that is restored into claims it with a word that it begins with a root. So until that stands nothing begins
there, and a seed that was interrupted is simply made again: what it has put there is named by nothing, and of two at once the later one
finds the root of the first.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Final, NamedTuple

from perdure.ledger.bucket_history import Moment
from perdure.ledger.bucket_url import checked_url
from perdure.ledger.code_files import CODE, code_in, put_code
from perdure.ledger.directory_format import AGENTS, FORMAT, FORMAT_FILE, LEDGER, keep_word
from perdure.ledger.errors import BadRequest, LedgerUnwritable
from perdure.ledger.maintenance.cold_view import cold_view
from perdure.ledger.maintenance.copies import CopyReader, copy_storage, files_of
from perdure.ledger.maintenance.listing import list_storages
from perdure.ledger.maintenance.restoration import brought
from perdure.ledger.slots import IDENTITY, Chain, JournalLife, Procedure, get, newest_key
from perdure.ledger.storage.file_disk import place_of
from perdure.ledger.storage.patches import Patch, StorageImage
from perdure.ledger.store.bucket import Bucket, BucketRefused
from perdure.ledger.store.bucket_past import PastStore
from perdure.ledger.store.bucket_storages import BucketStorages, drop_storages
from perdure.ledger.store.bucket_store import FORMAT as BUCKET_FORMAT
from perdure.ledger.store.bucket_store import OPENING_TRIES, RESTORED, BucketStore, no_ledger
from perdure.ledger.store.duckdb_file import DATABASE, connect
from perdure.ledger.store.journal import MIRROR, SEGMENT
from perdure.ledger.store.lock import LOCK
from perdure.ledger.store.store import Boot

_TAKEN: Final = "taken"
_GROUP: Final = 16 << 20
"""Bytes of storages that are in memory at once, if none is larger by itself."""
_START: Final = Chain()


# What was brought: up to which slot, of when (ms since 1970), how many storages, and (in words) what was left out.
class Restored(NamedTuple):
    slot: int
    at_ms: int
    storages: int
    findings: list[str]


def why_no_ledger(url: str) -> str:
    """Says that there is no ledger at this `checked_url` of a bucket, and what is there; empty if there is one. Raises `BucketRefused`."""
    if url.startswith("file:") and not Path(url.removeprefix("file://")).exists():  # to open it would make it
        return no_ledger(url, "")
    bucket = Bucket(url)
    if bucket.run(get([IDENTITY]), tries_max=OPENING_TRIES) != [None]:
        return ""
    return no_ledger(url, bucket.run(newest_key(""), tries_max=OPENING_TRIES))


def restore_to_directory(url: str, data: Path, moment: Moment, *, replace: bool) -> Restored:
    """Bring the ledger in a bucket into a directory, as it was then, with all storages and the code.

    Raises `BadRequest` for a moment that is not kept, and else as `restoration.restore_backup`. What was brought until then is removed.
    """
    with brought(data, replace=replace) as part:
        with _store_of(part / _TAKEN, url, moment) as store:
            count = 0
            for agent, image in _storages_of(store):
                count += agent != CODE
                _put(part, agent, image)
            store.settle()
        _put_ledger(part)
        keep_word(part, FORMAT_FILE, str(FORMAT))
    return Restored(store.slot, store.at_ms, count, [])


def restore_to_bucket(url: str, target: str, moment: Moment) -> Restored:
    """Let an empty prefix begin with the ledger in a bucket, as it was then.

    Raises `BadRequest` for a moment that is not kept and for a prefix that is not empty, and `LedgerError` for a bucket that cannot be
    reached. If that is the new one, it may be done again, which begins anew.
    """
    with (
        _room_told(),
        TemporaryDirectory(prefix="perdure-") as folder,
        _store_of(Path(folder) / "from" / LEDGER, url, moment) as store,
    ):
        store.settle()
        ledger = Path(folder) / LEDGER
        copy_ledger(store.path, ledger)
        count = seed_bucket(Bucket(target), ledger, _storages_of(store))
        return Restored(store.slot, store.at_ms, count - (CODE in store.storages_of("")), [])


def restore_directory_to_bucket(data: Path, target: str) -> Restored:
    findings: list[str] = []
    with _room_told():
        return Restored(0, 0, seed_from_directory(data, Bucket(target), findings.append), findings)


@contextmanager
def _store_of(path: Path, url: str, moment: Moment) -> Iterator[PastStore]:
    with closing(PastStore(path, Bucket(checked_url(url)), moment)) as store:
        store.boot()
        yield store


@contextmanager
def _room_told() -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        words = f"it cannot be written ({problem.strerror or problem})"
        advice = "make room, or name another place by TMPDIR, and restore again"
        raise LedgerUnwritable(gettempdir(), words, advice) from problem


def _storages_of(store: PastStore) -> Iterator[tuple[str, StorageImage]]:
    for agent in store.storages_of(""):
        image = store.storage(agent)
        if image is not None:
            yield agent, image


def _put_ledger(part: Path) -> None:
    taken = part / _TAKEN  # since the ledger's place has a lock, that of the restore
    with closing(connect(taken)) as con:
        drop_storages(con)
        con.execute("CHECKPOINT")
    (taken / LOCK).unlink()
    for each in taken.iterdir():
        each.rename(part / LEDGER / each.name)
    taken.rmdir()


def _put(part: Path, agent: str, image: StorageImage) -> None:
    if agent == CODE:
        put_code(part / CODE, image.files)
        return
    path = part / AGENTS / place_of(agent)
    path.parent.mkdir(parents=True, exist_ok=True)
    for name, content in image.files.items():
        path.with_name(path.name + name).write_bytes(content)


# ---------------------------------------------------------------- an empty prefix


def seed_from_directory(data: Path, bucket: Bucket, tell: Callable[[str], object]) -> int:
    """Let an empty prefix begin with what is in a directory: the ledger, all storages, the code. Nothing in the directory changes, and the
    caller sees to it that nothing does meanwhile. What is left out is told. Returns the number of storages.

    Raises `BadRequest` if the prefix is not empty, `OSError` if a copy of the ledger finds no room, and else as `seed_bucket`.
    """
    with TemporaryDirectory(prefix="perdure-seed-") as place:
        ledger = Path(place) / LEDGER
        copy_ledger(data / LEDGER, ledger)
        known = cold_view(ledger)
        agents = {place_of(agent): agent for agent in (*known.standing, *(known.seen or ()))}
        code = code_in(data / CODE)
        images = _storages_in(data / AGENTS, agents, Path(place) / "copy.db", tell)
        return seed_bucket(bucket, ledger, chain([(CODE, StorageImage(1, code))] if code else [], images)) - bool(code)


def copy_ledger(ledger: Path, target: Path) -> None:
    # The caller sees to it that the ledger does not change meanwhile.
    target.mkdir(parents=True)
    for pattern in (DATABASE, f"{DATABASE}.blocks", f"{SEGMENT}*", f"{MIRROR}*"):
        for path in ledger.glob(pattern):
            shutil.copyfile(path, target / path.name)


def _storages_in(
    folder: Path, agents: dict[str, str], copy: Path, tell: Callable[[str], object]
) -> Iterator[tuple[str, StorageImage]]:
    with CopyReader() as reader:
        for place in list_storages(folder).storages:
            if copy_storage(folder / place, copy) is None:
                continue
            come = reader.read(copy)  # what its last checkpoint has torn is put back with this
            agent = agents.get(place) or come.agent_id
            if agent:
                yield agent, StorageImage(1, files_of(copy))
            elif come.problem:
                tell(f"{folder / place} was left out: it belongs to no agent that the ledger knows, and {come.problem}")


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
        there = self._claimed([BUCKET_FORMAT, secrets.token_hex(8), RESTORED])
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
        group.append(Patch(agent, 0, 1, image.parts()))
        size += sum(map(len, image.files.values()))
        if size >= _GROUP:
            yield group
            group, size = [], 0
    yield group


def _taken(url: str) -> BadRequest:
    return BadRequest("data", f"{url} is not empty; name another prefix to restore into")
