"""The code directory as files that travel with the ledger, where the machines of a cluster share no directory: as if it were a storage.

Files are whole. Of `types.txt`, to which several processes add, each line goes by itself, under a name of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Final

from perdure.ledger.whole_files import add_line, keep_whole, lines_of

CODE: Final = "code"
"""Where code lies in a directory, and under which name it travels: it stands where an agent's address would, and no agent has it."""
TYPES: Final = "types.txt"
PACKAGE: Final = ".zip"
_LINE: Final = f"{TYPES}/"  # begins the name under which a line of it travels
_KEPT: Final = (".py", PACKAGE, ".json")


def type_lines(code_dir: Path) -> dict[str, bytes]:
    """The lines of the types by the names under which they travel. Raises `OSError`."""
    lines = (line.encode() for line in lines_of(code_dir / TYPES))
    return {_LINE + blake2b(line, digest_size=8).hexdigest(): line for line in lines}


def code_in(code_dir: Path) -> dict[str, bytes]:
    """Everything in a code directory that travels. Raises `OSError`."""
    files = sorted(each for each in code_dir.glob("*") if each.suffix in _KEPT and each.is_file())
    return {each.name: each.read_bytes() for each in files} | type_lines(code_dir)


def put_code(code_dir: Path, files: Mapping[str, bytes]) -> None:
    """Write these files and lines, as far as they are not there. Raises `OSError`."""
    lines = set(lines_of(code_dir / TYPES))
    for name, content in files.items():
        if not name.startswith(_LINE):
            keep_whole(code_dir / name, content)
        elif (line := content.decode()) not in lines:
            add_line(code_dir / TYPES, line)
