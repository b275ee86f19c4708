"""Backups of a ledger in a bucket: pins in the same bucket, which keep what the ledger was then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from perdure.ledger.bucket_history import Pin, check_name
from perdure.ledger.directory_format import LEDGER
from perdure.ledger.errors import BadRequest
from perdure.ledger.maintenance.manifest import name_after
from perdure.ledger.store.bucket import Bucket
from perdure.ledger.store.bucket_past import PastStore


class PinSummary(NamedTuple):
    """A backup that was made: its name, its slot, its last fact, how many storages it has, and when it was made (ms since 1970)."""

    name: str
    slot: int
    seq: int
    storages: int
    made_at_ms: int


def pin_bucket(url: str, name: str, at_ms: int) -> PinSummary:
    """Make a backup of what is in the bucket now; without a name, under the next number.

    Raises `BadRequest` for a name that is none, or that another backup has, and `LedgerError` if the bucket cannot be read or written.
    """
    check_name(name or "0")
    with _opened(url) as store:
        while True:
            known = [pin.name for pin in store.pins()]
            made = store.pin_here(name or name_after(known), at_ms)
            if made is not None:
                return PinSummary(made.name, made.slot, store.last_fact, len(store.owners()), made.at_ms)
            if name:
                raise BadRequest("name", f"{url} has a backup {name!r} already; choose another name")


def pins_of(url: str) -> list[Pin]:
    # The oldest comes first.
    return sorted(_seen(url).pins(), key=lambda pin: (pin.at_ms, pin.name))


def unpin_bucket(url: str, names: list[str]) -> None:
    """Delete backups. Raises `BadRequest` for one that is not there."""
    store = _seen(url)
    for name in names:
        store.unpin(name)


def _seen(url: str) -> PastStore:
    store = PastStore(Path(), Bucket(url))
    store.see()
    return store


@contextmanager
def _opened(url: str) -> Iterator[PastStore]:
    with TemporaryDirectory(prefix="perdure-") as place, closing(PastStore(Path(place) / LEDGER, Bucket(url))) as store:
        store.boot()
        yield store
