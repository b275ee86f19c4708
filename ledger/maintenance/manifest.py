"""The manifest of a backup: which files it has, and of which pieces. It is written last, so a backup without a whole one is none.

It is text: a line of JSON for the backup, one for each storage or other file, and a last one with the digest of all before.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from hashlib import blake2b
from typing import Final, NamedTuple

from perdure.ledger.errors import LedgerTooNew
from perdure.ledger.maintenance.listing import Stamps, stamps_from
from perdure.ledger.maintenance.target import BackupTarget

_FORMAT: Final = 1  # of the manifest itself, for a target may have backups of directories of several formats
FOLDER: Final = "backups"
_ENDING: Final = ".jsonl.gz"


# One file of an entry: what follows the entry's path in its name, its size, and its pieces in order.
class FilePart(NamedTuple):
    ending: str
    size: int
    pieces: list[str]


class ManifestEntry(NamedTuple):
    """A storage with its log, or another file. `stamps` are those of the files when they were copied; `sequence` is how far a storage had
    come."""

    path: str
    stamps: Stamps | None
    sequence: int
    parts: list[FilePart]


class Manifest(NamedTuple):
    """A whole backup: its name, the directory that it is of, the last fact in it, when it was made (ms since 1970), and its entries."""

    name: str
    data: str
    seq: int
    made_at_ms: int
    entries: dict[str, ManifestEntry]

    def pieces(self) -> Iterator[str]:
        return (piece for entry in self.entries.values() for part in entry.parts for piece in part.pieces)


def write_manifest(target: BackupTarget, manifest: Manifest) -> None:
    # Everything that the backup needs must be in the target by now.
    head = {"perdure_backup": _FORMAT, "data": manifest.data, "seq": manifest.seq, "made_at_ms": manifest.made_at_ms}
    lines = [json.dumps(head), *(json.dumps(entry) for entry in manifest.entries.values())]
    text = "".join(f"{line}\n" for line in lines).encode()
    text += json.dumps({"digest": _digest(text)}).encode()
    target.settle()
    target.write(place_of_manifest(manifest.name), gzip.compress(text, 1, mtime=0))
    target.settle()


def read_manifest(target: BackupTarget, name: str) -> Manifest | None:
    """Read a backup's manifest; None if it is not whole. Raises `LedgerTooNew` for one of a later format."""
    try:
        text, _, last = gzip.decompress(target.read(place_of_manifest(name))).rpartition(b"\n")
        text += b"\n"
        if json.loads(last)["digest"] != _digest(text):
            return None
        head, *rows = map(json.loads, text.splitlines())
        if head["perdure_backup"] != _FORMAT:
            words = f"a newer Perdure made backup {name}: its format is {head['perdure_backup']}, and this Perdure reads format {_FORMAT}"
            raise LedgerTooNew(target.url, words, "use that Perdure for it, or another target")
        entries = map(_entry, rows)
        return Manifest(name, head["data"], head["seq"], head["made_at_ms"], {each.path: each for each in entries})
    except (EOFError, gzip.BadGzipFile, zlib.error, ValueError, KeyError, TypeError):
        return None


def backups_in(target: BackupTarget) -> list[str]:
    # Oldest first. Not each of them need be whole.
    return [name.removesuffix(_ENDING) for name in target.names(FOLDER) if name.endswith(_ENDING)]


def latest_in(target: BackupTarget) -> Manifest | None:
    read = (read_manifest(target, name) for name in reversed(backups_in(target)))
    return next((each for each in read if each is not None), None)


def name_after(names: list[str]) -> str:
    return f"{max([0, *(int(name) for name in names if name.isdigit())]) + 1:08}"


def place_of_manifest(name: str) -> str:
    return f"{FOLDER}/{name}{_ENDING}"


def _entry(row: list[object]) -> ManifestEntry:
    path, stamps, sequence, parts = row
    return ManifestEntry(str(path), stamps_from(stamps), int(sequence), [FilePart(*part) for part in parts])  # type: ignore[arg-type, call-overload, attr-defined]


def _digest(text: bytes) -> str:
    return blake2b(text, digest_size=20).hexdigest()
