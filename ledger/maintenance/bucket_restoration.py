"""A ledger in a bucket brought back as it was at a moment: into a directory, or into an empty prefix."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import NamedTuple

from perdure.ledger.bucket_history import Moment
from perdure.ledger.bucket_url import checked_url
from perdure.ledger.code_files import CODE, put_code
from perdure.ledger.directory_format import AGENTS, FORMAT, FORMAT_FILE, LEDGER, keep_word
from perdure.ledger.errors import LedgerUnwritable
from perdure.ledger.maintenance.restoration import brought
from perdure.ledger.maintenance.seeding import copy_ledger, seed_from_directory
from perdure.ledger.slots import IDENTITY, get
from perdure.ledger.storage.file_disk import place_of
from perdure.ledger.storage.patches import StorageImage
from perdure.ledger.store.bucket import Bucket
from perdure.ledger.store.bucket_past import PastStore
from perdure.ledger.store.bucket_seed import seed_bucket
from perdure.ledger.store.bucket_storages import drop_storages
from perdure.ledger.store.bucket_store import OPENING_TRIES
from perdure.ledger.store.duckdb_file import connect
from perdure.ledger.store.lock import LOCK

_TAKEN = "taken"


class Restored(NamedTuple):
    """What was brought: up to which slot, how many storages, and (in words) what was left out."""

    slot: int
    storages: int
    findings: list[str]


def is_ledger(url: str) -> bool:
    """Whether there is a ledger at the URL of a bucket. Raises `BadRequest` for one that no bucket has, and `BucketRefused`."""
    if url.startswith("file:"):  # to open it would make it
        return (Path(url.removeprefix("file://")) / IDENTITY).exists()
    return Bucket(checked_url(url)).run(get([IDENTITY]), tries_max=OPENING_TRIES) != [None]


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
    return Restored(store.slot, count, [])


def restore_to_bucket(url: str, target: str, moment: Moment) -> Restored:
    """Let an empty prefix begin with the ledger in a bucket, as it was then.

    Raises `BadRequest` for a moment that is not kept and for a prefix that is not empty, and `LedgerError` for a bucket that cannot be
    reached. If that is the new one, it may be done again, which begins anew.
    """
    with _room() as place, _store_of(place / "from" / LEDGER, url, moment) as store:
        store.settle()
        copy_ledger(store.path, place / LEDGER)
        storages = [0]

        def counted() -> Iterator[tuple[str, StorageImage]]:
            for agent, image in _storages_of(store):
                storages[0] += agent != CODE
                yield agent, image

        seed_bucket(Bucket(target), place / LEDGER, counted())
        return Restored(store.slot, storages[0], [])


def restore_directory_to_bucket(data: Path, target: str) -> Restored:
    """Let an empty prefix begin with a directory that nothing serves."""
    findings: list[str] = []
    with _room_told():
        return Restored(0, seed_from_directory(data, Bucket(target), findings.append), findings)


@contextmanager
def _store_of(path: Path, url: str, moment: Moment) -> Iterator[PastStore]:
    with closing(PastStore(path, Bucket(checked_url(url)), moment)) as store:
        store.boot()
        yield store


@contextmanager
def _room() -> Iterator[Path]:
    with _room_told(), TemporaryDirectory(prefix="perdure-") as place:
        yield Path(place)


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
