"""Where backups lie: a directory or an object store, by a URL of `fsspec`. What is written appears whole or not at all.

The client of a store may raise anything: an object store that cannot be reached is no `OSError` for each of them. So whatever it raises is
told as one error, which names the store. A password in the URL is struck out of it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Final

import fsspec
from fsspec.implementations.local import LocalFileSystem

from perdure.ledger.bucket_url import check_slashes
from perdure.ledger.errors import BadRequest, LedgerError

PIECES: Final = "pieces"
PIECE_MAX: Final = 4 << 20
"""Bytes of a piece of a file: so much of a backup is in memory at once, and so much of a large file is copied again when a byte changes."""
_WORDS_MAX: Final = 500  # of what a client says


class BackupTarget:
    """One place for the backups of one directory. Raises `LedgerError` when it cannot be reached, read or written."""

    def __init__(self, url: str) -> None:
        found = re.match(r"[^/]*//[^/@:]*:([^/@]+)@", url)  # `scheme://user:password@place`
        self._password = found[1] if found else ""
        self.url = self._struck(url)
        check_slashes(url, "target")
        try:
            self._fs, self._root = fsspec.core.url_to_fs(url)
        except Exception as problem:
            raise BadRequest("target", f"{self.url!r} cannot be opened: {self._told(problem)}") from problem
        self._is_local = isinstance(self._fs, LocalFileSystem)
        self._known: set[str] = set()

    @property
    def folder(self) -> Path | None:
        """Where it is on this machine's disks, without links; None if it is elsewhere."""
        return Path(self._root).resolve() if self._is_local else None

    def trust(self, pieces: Iterable[str]) -> None:
        # They belong to a whole backup, so they are there.
        self._known.update(pieces)

    def put_piece(self, body: bytes) -> tuple[str, bool]:
        """Keep a piece. Returns its name, and whether it was new. One that an interrupted backup has left is used, if it is whole."""
        name = blake2b(body, digest_size=20).hexdigest()
        if name in self._known:
            return name, False
        is_new = not self._has(name, body)
        if is_new:
            self.write(_place(name), body)
        self._known.add(name)
        return name, is_new

    def get_piece(self, name: str) -> bytes:
        body = self.read(_place(name))
        if blake2b(body, digest_size=20).hexdigest() != name:
            raise LedgerError(self.url, f"the piece {_place(name)} is damaged", "restore another backup")
        return body

    def write(self, name: str, body: bytes) -> None:
        """Write a file, which appears under its name when it is complete."""
        path = f"{self._root}/{name}"
        with self._asked():
            if not self._is_local:
                self._fs.pipe_file(path, body)
                return
            part = Path(f"{path}.part")
            part.parent.mkdir(parents=True, exist_ok=True)
            try:
                part.write_bytes(body)
                part.replace(path)
            except OSError:
                part.unlink(missing_ok=True)  # a full disk is not to be filled further by each try
                raise

    def read(self, name: str) -> bytes:
        with self._asked():
            body: bytes = self._fs.cat_file(f"{self._root}/{name}")
        return body

    def names(self, folder: str) -> list[str]:
        found: list[str] = []
        with self._asked(), suppress(FileNotFoundError):
            self._fs.invalidate_cache()
            found = self._fs.find(f"{self._root}/{folder}")
        return sorted(str(each).rpartition("/")[2] for each in found if not str(each).endswith(".part"))

    def settle(self) -> None:
        # What was written survives a power cut after this.
        if self._is_local:
            os.sync()

    def remove(self, names: Iterable[str]) -> None:
        # One that is gone already is not missed.
        for name in names:
            with self._asked(), suppress(FileNotFoundError):
                self._fs.rm_file(f"{self._root}/{name}")

    def sweep(self, kept: set[str]) -> int:
        gone = [name for name in self.names(PIECES) if name not in kept]
        self.remove(map(_place, gone))
        self._known &= kept
        return len(gone)

    def _has(self, name: str, body: bytes) -> bool:
        # A file on a disk is read: a power cut may have left its name without its content.
        path = f"{self._root}/{_place(name)}"
        about: dict[str, object] = {}
        with self._asked(), suppress(FileNotFoundError):
            about = self._fs.info(path)
        return about.get("size") == len(body) and (not self._is_local or Path(path).read_bytes() == body)

    @contextmanager
    def _asked(self) -> Iterator[None]:
        try:
            yield
        except Exception as problem:
            words = f"it cannot be read or written: {self._told(problem)}"
            advice = "try again when it can; a backup goes on from what it has copied"
            raise LedgerError(self.url, words, advice) from problem

    def _told(self, problem: Exception) -> str:
        words = " ".join(str(problem).split())[:_WORDS_MAX]
        return self._struck(words or type(problem).__name__)

    def _struck(self, words: str) -> str:
        return words.replace(self._password, "***") if self._password else words


def _place(piece: str) -> str:
    return f"{PIECES}/{piece[:2]}/{piece}"
