"""Code that travels with the ledger, where the machines of a cluster share no directory: texts of notebook cells, packages, names of types.

What a process writes into its code directory is said to the supervisor before whatever it says next, is durable with it, and is written
into the code directory of every process that may need it (`ledger.code_files`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from perdure.ledger import TYPES, add_line, keep_whole, put_code, type_lines

_kept: dict[Path, None] = {}  # what this process has written, or found there as it would have written it
_changes = [0]  # how often; it may miss one of two at once, and never both


def keep_code(path: Path, content: bytes) -> None:
    # Raises `OSError`.
    keep_whole(path, content)
    _kept[path] = None
    _changes[0] += 1


def add_type(code_dir: Path, line: str) -> None:
    # Raises `OSError`.
    add_line(code_dir / TYPES, line)
    _changes[0] += 1


class CarriedCode:
    """The code directory of one process, as far as its supervisor knows it."""

    def __init__(self, code_dir: Path) -> None:
        self._code_dir = code_dir
        self._known: set[str] = set()
        self._seen = -1

    def take(self) -> dict[str, bytes]:
        """What the supervisor was not told yet, by names."""
        if self._seen == _changes[0]:
            return {}
        self._seen = _changes[0]
        new = {
            path.name: path for path in list(_kept) if path.parent == self._code_dir and path.name not in self._known
        }
        files = {name: path.read_bytes() for name, path in new.items()}
        files |= {name: line for name, line in type_lines(self._code_dir).items() if name not in self._known}
        self._known.update(files)
        return files

    def put(self, files: Mapping[str, bytes]) -> None:
        # Raises `OSError`.
        self._known.update(files)
        put_code(self._code_dir, files)
