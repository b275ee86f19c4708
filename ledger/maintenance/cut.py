"""The cut of a backup: the journal and the storages as they are while the ledger decides nothing.

A backup copies what it can while everything is at work, and that is not consistent: a storage that is copied late may have forgotten what
the ledger's copy has not heard of yet, because a request leaves the outbox when the supervisor has accepted it. So the last part is copied
between two turns of the supervisor. Whatever the ledger says by then is in the storages, because an agent commits before it reports. And no
agent has heard of anything that the ledger decides later. Agents go on meanwhile; what they commit only waits for its acceptance.

What is copied in the cut is little: the journal since the last checkpoint, and the storages that have changed since they were copied.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from perdure.ledger.codec import pack, unpack
from perdure.ledger.directory_format import AGENTS, LEDGER
from perdure.ledger.maintenance.copies import copy_storage
from perdure.ledger.maintenance.listing import Stamps, list_storages, stamps_from
from perdure.ledger.store.journal import SEGMENT

STAGE, KNOWN, CUT = "backup.stage", "known", "cut"


class Cut(NamedTuple):
    """What a cut has staged. `places` are all storages, `staged` those that were copied, with their stamps; `reported` is what agents that
    were in the ledger's memory had reported; `seq` is its last fact."""

    seq: int
    places: list[str]
    staged: dict[str, Stamps]
    reported: dict[str, int]


def write_known(stage: Path, known: dict[str, Stamps]) -> None:
    # These storages need not be staged, as long as they are as they were.
    (stage / KNOWN).write_bytes(pack(known))


def read_known(stage: Path) -> dict[str, Stamps]:
    plain = unpack((stage / KNOWN).read_bytes())
    return {place: stamps for place, each in plain.items() if (stamps := stamps_from(each)) is not None}


def stage_cut(data: Path, stage: Path, known: dict[str, Stamps], seq: int, reported: Iterable[tuple[str, int]]) -> None:
    """Copy the journal, and the storages that are not as they are known. The caller sees to it that nothing is decided meanwhile."""
    for segment in (data / LEDGER).glob(f"{SEGMENT}*"):
        if segment.suffix[1:].isdigit():
            (stage / LEDGER).mkdir(exist_ok=True)
            shutil.copyfile(segment, stage / LEDGER / segment.name)
    places, staged = [], {}
    for place, stamps in list_storages(data / AGENTS).storages.items():
        if known.get(place) != stamps:
            copied = copy_storage(data / AGENTS / place, stage / AGENTS / place)
            if copied is None:
                continue  # deleted meanwhile
            staged[place] = copied
        places.append(place)
    told = [seq, places, list(staged.items()), list(reported)]
    (stage / CUT).write_bytes(pack(told))


def read_cut(stage: Path) -> Cut:
    seq, places, staged, reported = unpack((stage / CUT).read_bytes())
    stamps = {place: kept for place, each in staged if (kept := stamps_from(each)) is not None}
    return Cut(seq, places, stamps, dict(reported))
