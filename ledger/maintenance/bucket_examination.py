"""What `perdure doctor` says of a ledger in a bucket. Nothing is begun there, and nothing is changed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from perdure.ledger.directory_format import LEDGER
from perdure.ledger.errors import LedgerDamaged, LedgerError
from perdure.ledger.store.bucket import Bucket
from perdure.ledger.store.bucket_past import PastStore
from perdure.ledger.store.integrity import Finding

NAMED_MAX: Final = 10
_OURS: Final = re.compile(
    r"perdure\.json|journal/[0-9a-f]{12}|life/[0-9a-f]{12}/[\w-]+|root/\d{8}|backup/[^/]+|(?:snapshot|storage)/[0-9a-f]{12}-[0-9a-f]+-\d+/\w+"
)
_SWEPT: Final = "its supervisor deletes them when it has announced one of the next roots"
_NOT_WHOLE: Final = "it cannot be restored; delete it by `perdure backup --delete`, or bring the objects back"


def examine_bucket(url: str, *, deep: bool) -> list[Finding]:
    """Follow the journal from the last root, and compare what there is with what is named. With `deep` each storage is read."""
    with TemporaryDirectory(prefix="perdure-") as place, closing(PastStore(Path(place) / LEDGER, Bucket(url))) as store:
        try:
            boot = store.boot()
            agents = store.owners()
            for agent in agents if deep else ():
                store.storage(agent)
            others = list(_others(store))
        except LedgerDamaged as problem:
            return [Finding("damage", f"{problem.path}: {problem.problem}", problem.advice)]
        except LedgerError as problem:
            return [Finding("refused", problem.problem, problem.advice)]
    verified = f", and {len(agents)} storages" if deep else f"; it has {len(agents)} storages (--deep verifies them)"
    whole = Finding("ok", f"{url}: the journal follows the last root, the ledger fits its digests{verified}", "")
    return [whole, *(Finding("warning", each, "") for each in boot.findings), *others]


def _others(store: PastStore) -> Iterator[Finding]:
    pins, there = store.pins(), set(store.all_names())
    strays = sorted(key for key in there if not _OURS.fullmatch(key))
    if strays:
        yield Finding(
            "warning", f"{_said(strays, 'objects')} are not of this ledger", "delete them, if nobody needs them"
        )
    unnamed = sorted(key for key in store.to_go(there) if key not in strays)
    if unnamed:
        yield Finding(
            "warning", f"{_said(unnamed, 'objects')} are older than what is kept, and named by nothing", _SWEPT
        )
    for pin in pins:
        lost = store.lost(pin, there)
        if lost:
            yield Finding("damage", f"the backup {pin.name} lacks {_said(lost, 'objects')}", _NOT_WHOLE)
    if pins:
        yield Finding("ok", f"there are {len(pins)} backups, the last of slot {pins[-1].slot}")


def _said(keys: list[str], what: str) -> str:
    more = f" and {len(keys) - NAMED_MAX} more" if len(keys) > NAMED_MAX else ""
    return f"{len(keys)} {what} ({', '.join(keys[:NAMED_MAX])}{more})"
