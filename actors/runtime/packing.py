"""Packages of code: a class's module and all that it imports, except for what is installed.

The machines of an existing cluster lack the author's files. A driver that joins one writes them to a package: a zip file in the code
directory, named by the digest of its contents. A request names its package, and Ray's `runtime_env` brings it to hosts (`ray_world`).

A package never changes. Drivers with other code have other packages and hosts, and a run keeps the code that it was requested with. Imports
are read from the source text, so the same files give the same package in every driver.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import io
import os
import zipfile
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final

from perdure.actors.agent.agent import Agent
from perdure.actors.code.naming import FIELD, cell_file, is_installed, spec_on_path, type_name
from perdure.actors.code.packages import package_file
from perdure.actors.ray_world.cluster_record import PACKAGE
from perdure.ledger import BadRequest

BYTES_MAX: Final = 100 * 1024 * 1024
TOP: Final = "code"  # Ray strips the one folder at the top of a package
LONG_AGO: Final = (1980, 1, 1, 0, 0, 0)  # the same for all files, so that the digest depends on their contents alone


class Packer:
    """The packages of one driver."""

    def __init__(self, code_dir: Path) -> None:
        self._code_dir = code_dir
        self._names: dict[type, str] = {}

    def package_for(self, cls: type) -> str:
        """The name of the package that hosts of this class need; empty if all of its code is installed.

        The other agents of this process are packed with it, so that they can share hosts. Raises `BadRequest` if no other process could
        find the class, and if the files are too large.
        """
        if cls not in self._names:
            needed = files_for(type_name(cls, self._code_dir), self._code_dir)
            if needed:
                others = (files_for(name, self._code_dir) for name in self._loaded())
                everything = {path: file for files in (*others, needed) for path, file in files.items()}
                self._names[cls] = pack_up(everything, self._code_dir)
            else:
                self._names[cls] = ""
        return self._names[cls]

    def _loaded(self) -> Iterator[str]:
        """The name of one agent from each file or package whose agents another process could find."""
        classes = list[type](Agent.__subclasses__())
        for cls in classes:  # grows while it is walked
            classes += cls.__subclasses__()
        names: dict[str, str] = {}
        for cls in classes:
            with contextlib.suppress(BadRequest):
                name = type_name(cls, self._code_dir)
                is_module = not name.startswith(("script:", "cell:"))
                origin = name.rpartition(":")[0]
                names.setdefault(origin.partition(".")[0] if is_module else origin, name)
        yield from names.values()


def files_for(name: str, code_dir: Path) -> dict[str, Path]:
    """The files that this class needs and that are not installed, by their paths in the package."""
    origin = name.rpartition(":")[0]
    kind, _, place = origin.partition(":")
    files: dict[str, Path] = {}
    if kind == "cell":
        waiting = _imported(cell_file(place, code_dir))
    elif kind == "script":
        files[Path(place).name] = Path(place)
        waiting = _imported(Path(place))
    else:
        waiting = {origin.partition(".")[0]}
    known: set[str] = set()
    while waiting:
        known.add(top := waiting.pop())
        found = dict(_files_of(top, code_dir.parent))
        files |= found
        waiting |= {each for file in found.values() for each in _imported(file)} - known
    return files


def _imported(file: Path) -> set[str]:
    """The top-level modules that a file imports anywhere, except by relative imports."""
    return set(_imported_by(file.read_bytes())) if file.suffix == ".py" else set()


@lru_cache(maxsize=4096)
def _imported_by(text: bytes) -> frozenset[str]:
    tops: set[str] = set()
    with contextlib.suppress(SyntaxError, ValueError):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                tops |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                tops.add(node.module.partition(".")[0])
    return frozenset(tops)


def _files_of(top: str, data: Path) -> Iterator[tuple[str, Path]]:
    """The files of a top-level module, and all files of a package, unless it is installed or ours."""
    spec = spec_on_path(top)
    if spec is None:
        return
    for place in map(Path, spec.submodule_search_locations or ()):
        if not is_installed(place) and place.absolute() != PACKAGE:
            yield from ((f"{top}/{file.relative_to(place)}", file) for file in _below(place, data))
    if spec.submodule_search_locations is None and spec.has_location and spec.origin is not None:
        file = Path(spec.origin)
        if not is_installed(file):
            yield file.name, file


def _below(place: Path, data: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(place):
        folders[:] = [name for name in folders if not _is_litter(name) and Path(folder, name).resolve() != data]
        yield from (file for name in names if not _is_litter(name) and (file := Path(folder, name)).is_file())


def _is_litter(name: str) -> bool:
    return name == "__pycache__" or name.startswith(".")


def pack_up(files: dict[str, Path], code_dir: Path) -> str:
    """Write a package unless it exists, and return its name. Raises `BadRequest` if it is too large."""
    _check_size(files.values())
    contents = {path: files[path].read_bytes() for path in sorted(files)}
    digest = hashlib.blake2b(digest_size=10)
    for path, content in contents.items():
        digest.update(f"{path}\0{len(content)}\0".encode() + content)
    package = package_file(digest.hexdigest(), code_dir)
    if not package.exists():
        package.parent.mkdir(parents=True, exist_ok=True)
        draft = package.with_name(f"{package.name}.{os.getpid()}")
        with draft.open("wb") as file:
            file.write(_zipped(contents))
            file.flush()
            os.fsync(file.fileno())  # a durable run must not lose its code in a power cut
        draft.replace(package)
    return digest.hexdigest()


def _check_size(files: Iterable[Path]) -> None:
    sizes = sorted(((file.stat().st_size, file) for file in files), reverse=True)
    total = sum(size for size, _ in sizes)
    if total > BYTES_MAX:
        largest = ", ".join(f"{file} ({size // 1024:,} KB)" for size, file in sizes[:3])
        raise BadRequest(
            FIELD,
            f"the code that would have to travel has {total // 1024**2} MB, and at most {BYTES_MAX // 1024**2} MB do; "
            f"install it on the machines of the cluster, or move data out of it. Largest: {largest}",
        )


def _zipped(contents: dict[str, bytes]) -> bytes:
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in contents.items():
            entry = zipfile.ZipInfo(f"{TOP}/{path}", LONG_AGO)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return body.getvalue()
