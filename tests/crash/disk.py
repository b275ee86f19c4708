"""A model of a disk: the recorded changes are played into it, and it says what a kill or a power cut could leave after any of them.

What a power cut keeps for certain is what ext4, XFS and btrfs keep. A sync of a file keeps its content, its names, and the folders
above them; a sync of a folder keeps the names in it; a sync of the file system keeps everything. Of the rest the model keeps nothing
(`none`); the sizes with zeros where data was new (`zeros`); of each page of 4 KiB any version that it had since, and of the sizes any
(`pages`); or each file as it was at some moment since (`moment`); and of the names the first few changes. All of it is a kill.

A sync that fails loses what it was to keep: the pages count as written, and later syncs pass over them.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from hashlib import blake2b
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

_LINE = struct.Struct("<cQQQQHH")
_PAGE = 4096

Image = dict[str, bytes | None]
"""What lies in a directory: the content of each file, None for a folder."""


class Change(NamedTuple):
    """One line of a record (`recorder.c`); `op` is `A` for what the recorded process says about itself."""

    op: str
    inode: int
    a: int
    b: int
    path: str
    to: str
    data: bytes


def changes(record: Path) -> Iterator[Change]:
    """A record, line by line; none if nothing was recorded."""
    raw, at = record.read_bytes() if record.exists() else b"", 0
    while at < len(raw):
        op, inode, a, b, size, path, to = _LINE.unpack_from(raw, at)
        ends = list(accumulate((at + _LINE.size, path, to, size)))
        first, second, data = (raw[start:end] for start, end in pairwise(ends))
        yield Change(op.decode(), inode, a, b, first.decode(), second.decode(), data)
        at = ends[-1]


class File:
    """What programs see, and what is on the disk for certain; the same unless `is_dirty`."""

    def __init__(self, data: bytes = b"") -> None:
        self.data, self.durable = bytearray(data), data
        self._since: list[
            tuple[int, bytes | None]
        ] = []  # what was written since the last sync, and where; or a new size
        self._lost: set[int] = set()  # pages that a failed sync has taken

    @property
    def is_dirty(self) -> bool:
        return bool(self._since)

    def resize(self, size: int) -> None:
        self._change(size, None)

    def write(self, offset: int, data: bytes) -> None:
        self._change(offset, data)

    def _change(self, at: int, data: bytes | None) -> None:
        _apply(self.data, at, data)
        self._since.append((at, data))
        self._lost -= _touched(at, data)

    def sync(self) -> None:
        now = bytearray(self.data)
        for page in self._lost:
            begin, end = page * _PAGE, min((page + 1) * _PAGE, len(now))
            now[begin:end] = self.durable[begin:end].ljust(max(0, end - begin), b"\0")
        self.durable, self._since = bytes(now), []

    def refuse(self) -> None:
        """A sync of it fails."""
        self._lost |= {page for at, data in self._since for page in _touched(at, data)}
        self._since = []

    def after_power_cut(self, how: str, dice: random.Random) -> bytes:
        if not self.is_dirty or how == "none":
            return self.durable
        if how == "zeros":
            return self.durable[: len(self.data)].ljust(len(self.data), b"\0")
        if how == "moment":
            then = bytearray(self.durable)
            for at, data in self._since[: dice.randint(0, len(self._since))]:
                _apply(then, at, data)
            return bytes(then)
        sizes, versions = self._versions()
        size = dice.choice(sizes)
        pages = [dice.choice(versions.get(page, [b""])) for page in range(-(-size // _PAGE))]
        return b"".join(page.ljust(_PAGE, b"\0") for page in pages)[:size]

    def _versions(self) -> tuple[list[int], dict[int, list[bytes]]]:
        then, sizes = bytearray(self.durable), [len(self.durable)]
        versions = {at // _PAGE: [self.durable[at : at + _PAGE]] for at in range(0, len(self.durable), _PAGE)}
        for at, data in self._since:
            _apply(then, at, data)
            sizes.append(len(then))
            for page in _touched(at, data):
                versions.setdefault(page, [b""]).append(bytes(then[page * _PAGE : (page + 1) * _PAGE]))
        return sizes, versions


def _apply(content: bytearray, at: int, data: bytes | None) -> None:
    size = at if data is None else max(len(content), at + len(data))
    content[:] = content[:size].ljust(size, b"\0")
    if data is not None:
        content[at : at + len(data)] = data


def _touched(at: int, data: bytes | None) -> set[int]:
    return set(range(at // _PAGE, -(-(at + len(data)) // _PAGE))) if data else set()


class Naming(NamedTuple):
    """A name that came (`node` is a file, or None for a folder), went, or did both."""

    gone: str
    came: str
    node: File | None

    def apply(self, names: dict[str, File | None]) -> None:
        names.pop(self.gone, None)
        if self.came:
            names[self.came] = self.node

    def touches(self, paths: set[str]) -> bool:
        return bool(paths & {self.gone, self.came} - {""})


class Disk:
    """The disk after the changes that were given to `apply`, below the directory `root`."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._names: dict[str, File | None] = {}
        self._durable: dict[str, File | None] = {}
        self._pending: list[Naming] = []
        self._files: dict[int, File] = {}
        self.said: list[str] = []

    def adopt(self) -> None:
        """Begin with what lies there, all of it on the disk."""
        for path in Path(self._root).rglob("*"):
            file = None if path.is_dir() else File(path.read_bytes())
            self._names[str(path)] = self._durable[str(path)] = file
            if file is not None:
                self._files[path.stat().st_ino] = file

    def apply(self, change: Change) -> None:
        op, file = change.op, self._files.get(change.inode)
        if op == "A":
            self.said.append(change.data.decode())
        elif op == "x":
            for each in self._files.values() if change.a else [file] * (file is not None):
                each.refuse()
        elif op in "omurld":
            self._rename(change)
        elif op in "Ss":
            self._sync(change.path, file)
        elif op == "Y":
            self._sync_all()
        else:
            assert file is not None, change
            if op == "w":
                file.write(change.a, change.data)
            elif op == "t":
                file.resize(change.a)
            elif op == "f":
                file.resize(max(len(file.data), change.a + change.b))
            elif op == "z":
                file.write(change.a, bytes(max(0, min(change.b, len(file.data) - change.a))))

    def image(self, torn: Change | None = None, keep: int = 0) -> Image:
        """What a kill leaves; with `torn`, one in the middle of this write, of which it kept some bytes."""
        image = {path[len(self._root) :]: _bytes(node) for path, node in self._names.items()}
        if torn is not None:
            part, file = File(), self._files[torn.inode]
            part.data += file.data
            part.write(torn.a, torn.data[:keep])
            image |= {path[len(self._root) :]: bytes(part.data) for path, node in self._names.items() if node is file}
        return image

    def after_power_cut(self, how: str, dice: random.Random) -> Image:
        names = dict(self._durable)
        for naming in self._pending[: dice.randint(0, len(self._pending)) if how in {"pages", "moment"} else 0]:
            naming.apply(names)
        reached = {path: node for path, node in names.items() if all(each in names for each in self._above(path))}
        return {
            path[len(self._root) :]: None if node is None else node.after_power_cut(how, dice)
            for path, node in reached.items()
        }

    def unsynchronised(self) -> set[str]:
        """The names of files of which a power cut could take back the content, or the name, now."""
        dirty = {path for path, node in self._names.items() if node is not None and node.is_dirty}
        return {Path(path).name for path in dirty | {naming.came for naming in self._pending if naming.came}}

    def name_of(self, change: Change) -> str:
        """The name that a file has now, whatever it was called when it was opened."""
        file = self._files.get(change.inode)
        return Path(next((path for path, node in self._names.items() if file and node is file), change.path)).name

    def _rename(self, change: Change) -> None:
        if change.op == "o":
            self._files[change.inode] = File()
        comes = {"o": change.path, "m": change.path, "r": change.to, "l": change.to}.get(change.op, "")
        goes = change.path if change.op in "urd" else ""
        naming = Naming(goes, comes, self._files[change.inode] if change.op in "orl" else None)
        naming.apply(self._names)
        self._pending.append(naming)

    def _sync(self, path: str, file: File | None) -> None:
        if file is not None:
            file.sync()
            self._settle({each for each, node in self._names.items() if node is file})
        else:
            self._settle({each for naming in self._pending for each in naming[:2] if each and _folder(each) == path})
            self._settle({path})

    def _sync_all(self) -> None:
        for file in self._files.values():
            file.sync()
        self._durable, self._pending = dict(self._names), []

    def _settle(self, paths: set[str]) -> None:
        """Make these names durable, the folders above them, and what happened to any of them before."""
        paths = paths | {above for path in paths for above in self._above(path)}
        kept = []
        for naming in reversed(self._pending):
            if naming.touches(paths):
                paths |= {naming.gone, naming.came} - {""}
            else:
                kept.append(naming)
        for naming in self._pending:
            if naming not in kept:
                naming.apply(self._durable)
        self._pending = kept[::-1]

    def _above(self, path: str) -> list[str]:
        return [str(each) for each in Path(path).parents if str(each).startswith(f"{self._root}/")]


def lay(image: Image, directory: Path) -> None:
    """Write an image into a new directory."""
    directory.mkdir()
    for path, content in sorted(image.items()):
        place = directory / path.lstrip("/")
        if content is None:
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.write_bytes(content)


def digest_of(image: Image, said: list[str]) -> bytes:
    """The same for the same state of a disk after the same words."""
    state = blake2b(repr((said, sorted((path, len(content or b"")) for path, content in image.items()))).encode())
    for _, content in sorted(image.items()):
        state.update(content or b"")
    return state.digest()


def found(directory: Path) -> Image:
    """The image of a real directory."""
    return {
        f"/{path.relative_to(directory)}": None if path.is_dir() else path.read_bytes() for path in directory.rglob("*")
    }


def _bytes(node: File | None) -> bytes | None:
    return None if node is None else bytes(node.data)


def _folder(path: str) -> str:
    return path.rpartition("/")[0]
