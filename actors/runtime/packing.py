"""Packages of code: a class's module and all that it imports, except for what is installed.

The machines of an existing cluster lack the author's files. A driver that joins one writes them to a package: a zip file in the code
directory, named by the digest of its contents. A request names its package, and Ray's `runtime_env` brings it to hosts (`ray_world`).

A driver that has a Ray of its own does the same with the sources alone: its hosts find everything else where it is, but a run must keep
its code although the files change (`actors.code.packages`).

A package never changes. Drivers with other code have other packages and hosts, and a run keeps the code that it was requested with. Imports
are read from the source text, so the same files give the same package in every driver.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import zipfile
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final

from perdure.actors.agent.agent import Agent
from perdure.actors.code.carried_code import keep_code
from perdure.actors.code.import_path import is_installed, spec_on_path
from perdure.actors.code.known_types import claimed
from perdure.actors.code.naming import CELL, FIELD, cell_file, is_bygone, place_name, type_name
from perdure.actors.code.packages import TOP, digest_of, package_file, packed_in, places_file
from perdure.actors.code.typed_texts import typed_so_far
from perdure.actors.ray_world.cluster_record import PACKAGE
from perdure.ledger import BadRequest, origin_of

BYTES_MAX: Final = 100 * 1024 * 1024
_IMPORTS: Final = re.compile(
    rb"(?:^|[;:])[ \t]*(?:from[ \t]+([A-Za-z_][\w.]*)[ \t]+import|import[ \t]+([\w., \t]+))", re.MULTILINE
)
_CLASSES: Final = re.compile(r"^[ \t]*class[ \t]+(\w+)", re.MULTILINE)
LONG_AGO: Final = (1980, 1, 1, 0, 0, 0)  # of all files, so that the digest depends on their contents alone


class Packer:
    """The packages of one driver.

    Args:
        sources_only: the hosts are on this machine, where they find all but the sources.
    """

    def __init__(self, code_dir: Path, *, sources_only: bool = False) -> None:
        self._code_dir, self._sources_only = code_dir, sources_only
        self._names: dict[tuple[type, str], str] = {}
        self._packed: dict[tuple[frozenset[type], int], str] = {}
        self._offered: dict[tuple[str, ...], str] = {}

    def package_for(self, cls: type) -> str:
        """The name of the package that hosts of this class need; empty if all of its code is installed.

        The other agents of this process are packed with it, so that they can share hosts. Raises `BadRequest` if no other process could
        find the class, and if the files are too large.
        """
        key = cls, place_name(cls, self._code_dir)  # what is typed has another place when it uses other cells
        if key not in self._names:
            self._names[key] = self._packed_with(key[1]) if not _comes_with_us(cls) and self._files_for(key[1]) else ""
        return self._names[key]

    def offers(self) -> Iterator[tuple[str, dict[str, str]]]:
        """The code of the agents of this process that was not offered before: packages, and of what each is the code (`origin_of`), with
        the digest of that part, which does not depend on what else the process has loaded. A process without agents offers nothing."""
        parts: dict[str, dict[str, dict[str, Path]]] = {}
        for place, theirs in self._loaded().items():
            files = self._files_for(place)
            package = self._packed_with(place) if files else ""
            for origin in theirs:  # one may have several places: names of classes may begin alike
                parts.setdefault(package, {}).setdefault(origin, {}).update(files)
        for package, files_of in parts.items():
            digests = {origin: digest_of(_contents(files)) if files else "" for origin, files in files_of.items()}
            if self._offered.get(tuple(digests)) != package:
                self._offered[tuple(digests)] = package
                yield package, digests

    # With the code of all agents of this process, so that they can share hosts. It is read anew when there is
    # another class, or more was typed.
    def _packed_with(self, place: str) -> str:
        classes = frozenset(_subclasses(Agent)), typed_so_far()
        if classes not in self._packed:
            names = {*self._loaded(), place}
            everything = {path: file for each in names for path, file in self._files_for(each).items()}
            self._packed[classes] = pack_up(everything, self._code_dir)
        return self._packed[classes]

    def _files_for(self, place: str) -> dict[str, Path]:
        return needed_here(place, self._code_dir, sources_only=self._sources_only) | self._text_of(place)

    # What was typed has its text for a name, and is found by it. A class in it that has a name of its own would be found by that on a
    # host that has an older text of it. So this text is a version like that of a file.
    def _text_of(self, place: str) -> dict[str, Path]:
        if not place.startswith(CELL):
            return {}
        file = cell_file(place.split(":")[1], self._code_dir)
        named = {each.__qualname__.partition(".")[0] for each in _subclasses(Agent) if claimed(each)}
        return {file.name: file} if named & set(_CLASSES.findall(file.read_text(encoding="utf-8"))) else {}

    def _loaded(self) -> dict[str, list[str]]:
        """For each file or package whose agents another process could find the place of one, and of what types it is the code. What
        comes with Perdure is left out."""
        places: dict[str, str] = {}
        origins: dict[str, dict[str, None]] = {}
        for cls in (each for each in _subclasses(Agent) if not _comes_with_us(each) and not is_bygone(each)):
            with contextlib.suppress(BadRequest):
                place, name = place_name(cls, self._code_dir), type_name(cls, self._code_dir)
                first = places.setdefault(origin_of(place), place)
                origins.setdefault(first, {})[origin_of(name)] = None
        return {place: list(theirs) for place, theirs in origins.items()}


def _subclasses(cls: type) -> list[type]:
    found = list[type](cls.__subclasses__())
    for each in found:  # grows while it is walked
        found += each.__subclasses__()
    return found


def _comes_with_us(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "perdure"


# A script need not end in `.py`.
def needed_here(name: str, code_dir: Path, *, sources_only: bool) -> dict[str, Path]:
    files = files_for(name, code_dir)
    script = name.removeprefix("script:").rpartition(":")[0]
    return {
        path: file for path, file in files.items() if not sources_only or file.suffix == ".py" or str(file) == script
    }


# The files that this class needs and that are not installed, by their paths in the package.
def files_for(name: str, code_dir: Path) -> dict[str, Path]:
    origin = name.rpartition(":")[0]
    kind, _, place = origin.partition(":")
    files: dict[str, Path] = {}
    if kind == "cell" and place:
        waiting = _imported(cell_file(place, code_dir))
    elif kind == "script" and place:
        files[Path(place).name] = Path(place)
        waiting = {*_imported_by(Path(place).read_bytes())}
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
    return set(_imported_by(file.read_bytes())) if file.suffix == ".py" else set()


# A pattern takes a hundredth of the time of a parser. A word too many, out of a text, does no harm.
@lru_cache(maxsize=4096)
def _imported_by(text: bytes) -> frozenset[str]:
    tops: set[bytes] = set()
    for found in _IMPORTS.finditer(text):
        tops |= {part.strip().partition(b" ")[0].partition(b".")[0] for part in (found[1] or found[2]).split(b",")}
    return frozenset(top.decode() for top in tops if top.isascii() and top.decode().isidentifier())


def _files_of(top: str, data: Path) -> Iterator[tuple[str, Path]]:
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
    contents = _contents(files)
    digest = digest_of(contents)
    package = package_file(digest, code_dir)
    keep_code(package, package.read_bytes() if packed_in(package) == contents else _zipped(contents))
    places = {  # of the top-level modules on this machine
        path.partition("/")[0]: str(file.parents[path.count("/") - 1] if "/" in path else file)
        for path, file in files.items()
    }
    keep_code(places_file(digest, code_dir), json.dumps(places, sort_keys=True).encode())
    return digest


def _contents(files: dict[str, Path]) -> dict[str, bytes]:
    return {path: files[path].read_bytes() for path in sorted(files)}


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
