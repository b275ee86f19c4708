"""A storage of which the most is read by URLs that are signed: by a host, which has no keys of the bucket.

The supervisor carries small storages itself, and of a large one what came after its base. So what large storages contain passes it neither
on the way there nor on the way back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from perdure.ledger.slots import digest_of
from perdure.ledger.storage.patches import FilePatch

INLINE_MAX: Final = 256 << 10
"""Bytes of a base up to which the supervisor carries a storage itself."""
PART_MAX: Final = 1 << 20
"""Bytes of a storage that the supervisor says at once."""
_RANGE_MAX: Final = 4 << 20  # bytes of one request


# A block of a file: where it lies in that, and where it can be read.
class SignedBlock(NamedTuple):
    file: str
    at: int
    url: int
    start: int
    size: int
    digest: bytes

    def fits(self, content: bytes) -> bool:
        return digest_of(content) == self.digest


class SignedStorage(NamedTuple):
    """A storage: how many patches it has; of its base the sizes of the files, and their blocks; and what has changed since."""

    number: int
    sizes: dict[str, int]
    urls: Sequence[str]
    blocks: Sequence[SignedBlock]
    tail: Sequence[FilePatch]

    def ranges(self) -> Iterator[list[SignedBlock]]:
        # Blocks that one request reads are together.
        group: list[SignedBlock] = []
        for block in sorted(self.blocks, key=lambda each: (each.url, each.start)):
            last = group[-1] if group else None
            is_next = last is not None and (last.url, last.start + last.size) == (block.url, block.start)
            if group and not (is_next and block.start + block.size - group[0].start <= _RANGE_MAX):
                yield group
                group = []
            group.append(block)
        if group:
            yield group

    def plain(self) -> list[object]:
        # The tail is not in it.
        return [self.number, self.sizes, list(self.urls), [list(each) for each in self.blocks]]


def signed_of(plain: Sequence[Any], tail: Sequence[FilePatch]) -> SignedStorage:
    # Undoes `SignedStorage.plain`.
    number, sizes, urls, blocks = plain
    return SignedStorage(number, sizes, urls, [SignedBlock(*each) for each in blocks], tail)


def in_parts(parts: Iterable[FilePatch]) -> Iterator[list[FilePatch]]:
    """The same changes of files, in groups that are said at once. There is at least one group."""
    group, size = list[FilePatch](), 0
    for file, start, content, after in parts:
        for at in range(0, len(content) or 1, PART_MAX):
            piece = content[at : at + PART_MAX]
            if group and size + len(piece) > PART_MAX:
                yield group
                group, size = [], 0
            group.append(FilePatch(file, start + at, piece, after))
            size += len(piece)
    yield group
