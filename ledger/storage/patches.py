"""What a commit changes in the files of an agent's storage: a patch. The patches of a storage, in order, are the storage.

A storage whose directory is only a cache (`carried_disk`) is carried elsewhere in patches: to the supervisor, and with its commits into the
bucket. One patch is what became durable together, so every prefix of them is a state in which the agent's files could have been found.
Nobody who carries them has to know what is in these files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from perdure.ledger.codec import encoder, unpack

MAIN = ""
"""The file of a storage, a log or a database. DuckDB's log beside it is `WAL`."""
WAL = ".wal"
_SPAN: Final = 1 << 32  # more patches than one storage will ever have
_COPIES: Final = 1 << 30
COPY_MAX: Final = 256 << 20
"""Bytes of a storage that is made in one patch, which passes through the supervisor's memory."""


class FilePatch(NamedTuple):
    """Bytes that are written into a file, and the size that the file has afterwards. A file of no size is none."""

    file: str
    start: int
    content: bytes
    size: int


def first_of_copy(roll: float) -> int:
    """The number of the first patch of a storage that is a copy of another agent's. Each copy has its own, by chance: one that is asked for
    again is known by it, and no patch of a life that began before the copy follows it."""
    return _SPAN * (1 + int(roll * _COPIES))


def is_of_copy(number: int, first: int) -> bool:
    return number // _SPAN == first // _SPAN


def whole(file: str, content: bytes) -> FilePatch:
    return FilePatch(file, 0, content, len(content))


class Patch(NamedTuple):
    """What one commit of an agent changed. `number` counts the patches of a storage, from 1 or, in a copy, from `first_of_copy`;
    0 says that the storage was deleted."""

    agent_id: str
    incarnation: int
    number: int
    parts: Sequence[FilePatch] = ()

    @property
    def is_deletion(self) -> bool:
        return self.number == 0

    def packed(self) -> bytes:
        return encoder()([self.agent_id, self.incarnation, self.number, [list(part) for part in self.parts]])


def patch_of(packed: bytes) -> Patch:
    agent_id, incarnation, number, parts = unpack(packed)
    return Patch(agent_id, incarnation, number, [FilePatch(*part) for part in parts])


# A storage as it is after `number` patches: its files.
class StorageImage(NamedTuple):
    number: int
    files: dict[str, bytes]

    def parts(self) -> list[FilePatch]:
        # They make the storage of nothing.
        return [whole(name, content) for name, content in self.files.items()]


def image_after(image: StorageImage | None, patches: Iterable[Patch]) -> StorageImage | None:
    # Each patch follows the one before.
    number = 0 if image is None else image.number
    files = {} if image is None else {name: bytearray(content) for name, content in image.files.items()}
    for patch in patches:
        number = patch.number
        if patch.is_deletion:
            files.clear()
        for part in patch.parts:
            _write(files.setdefault(part.file, bytearray()), part)
    return StorageImage(number, {name: bytes(body) for name, body in files.items() if body}) if number else None


def _write(body: bytearray, part: FilePatch) -> None:
    if part.start > len(body):
        body.extend(bytes(part.start - len(body)))
    body[part.start : part.start + len(part.content)] = part.content
    del body[part.size :]
