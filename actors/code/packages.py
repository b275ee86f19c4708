"""Code packages (`actors.runtime.packing` makes them): their files, the URIs by which Ray distributes them, and how a process has its code
from one.

Code stays as it was: its modules are executed from a copy, while newer files may lie where their author wrote them. On a machine that has
the author's files, a host gets a package of their sources. A module that is in it is executed from there, whatever has become of its file
since; its `__file__` and `__path__` are still those of the author, so that what the code reads beside itself is found. What is not in the
package is imported as always.
"""

from __future__ import annotations

import hashlib
import json
import linecache
import logging
import tempfile
import tokenize
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.readers import FileReader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final

log = logging.getLogger("perdure.code")

TOP: Final = "code"  # Ray strips the one folder at the top of a package


def package_file(name: str, code_dir: Path) -> Path:
    return code_dir / f"{name}.zip"


def places_file(name: str, code_dir: Path) -> Path:
    """Where it is noted from which files and folders of this machine a package was made last."""
    return code_dir / f"{name}.json"


def package_uris(name: str, code_dir: Path) -> list[str]:
    # Raises `OSError` if the package is gone.
    package = package_file(name, code_dir)
    if name and not package.is_file():
        raise FileNotFoundError(f"the code of its agents is gone: {package}")
    return [package.as_uri()] if name else []


def digest_of(contents: dict[str, bytes]) -> str:
    digest = hashlib.blake2b(digest_size=10)
    for path, content in contents.items():
        digest.update(f"{path}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def packed_in(package: Path) -> dict[str, bytes]:
    """What is in a package, by paths; nothing if it is not there or not whole."""
    try:
        with zipfile.ZipFile(package) as archive:
            return {name.removeprefix(f"{TOP}/"): archive.read(name) for name in archive.namelist()}
    except (OSError, zipfile.BadZipFile, zlib.error, ValueError, NotImplementedError, EOFError, RuntimeError):
        return {}


# ---------------------------------------------------------------- execution


INIT: Final = "__init__.py"


class PinnedCode(MetaPathFinder):
    """Finds the modules of one package.

    Args:
        folder: where the package was unpacked.
        places: the file or folder of each of its top-level modules and scripts, as it was last packed.
        is_home: whether these are files of this machine, so that what modules read beside themselves is there.
    """

    def __init__(self, folder: Path, places: Mapping[str, str], *, is_home: bool = True) -> None:
        self.folder, self._places, self._is_home = folder, places, is_home

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        inner = self.folder.joinpath(*fullname.split("."))
        copy = next((each for each in (inner / INIT, inner.with_suffix(".py")) if each.is_file()), None)
        if copy is None:
            return None
        origin = self.origin_of(copy) if self._is_home else copy
        inside = [str(origin.parent)] if copy.name == INIT else None
        loader = _Loader(fullname, copy, origin, self._written_as(copy) or copy)
        return spec_from_file_location(fullname, origin, loader=loader, submodule_search_locations=inside)

    def origin_of(self, copy: Path) -> Path:
        # The author's file of which this is a copy; the copy itself if that one is gone.
        origin = self._written_as(copy)
        return origin if origin is not None and origin.is_file() else copy

    def _written_as(self, copy: Path) -> Path | None:
        top, *inner = copy.relative_to(self.folder).parts
        return Path(self._places[top], *inner) if top in self._places else None


# Executes the copy. The files beside it are the author's, and tracebacks name the author's file: there an editor finds the line.
class _Loader(SourceFileLoader):
    def __init__(self, fullname: str, copy: Path, origin: Path, author: Path) -> None:
        super().__init__(fullname, str(copy))
        self._copy, self._author = copy, str(author)
        self._beside = SourceFileLoader(fullname, str(origin))

    def get_code(self, fullname: str) -> CodeType | None:
        code = super().get_code(fullname)
        keep_text(self._copy, self._author)
        return code and _said_to_be_of(self._author, code)

    def get_resource_reader(self, name: str) -> FileReader:  # type: ignore[override]
        return FileReader(self._beside)


def keep_text(copy: Path, author: str) -> None:
    # Tracebacks show the lines that are executed here, whatever has become of the author's file since.
    with suppress(OSError, SyntaxError, UnicodeDecodeError), tokenize.open(copy) as file:
        lines = file.readlines()
        linecache.cache[author] = (sum(map(len, lines)), None, lines, author)


def _said_to_be_of(author: str, code: CodeType) -> CodeType:
    inner = tuple(_said_to_be_of(author, each) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.replace(co_filename=author, co_consts=inner)


def sources_of(package: str, code_dir: Path) -> dict[str, str]:
    noted = noted_places(places_file(package, code_dir))
    if noted is None:
        log.warning("where the code of package %s was written is not known: its note cannot be read", package)
    return noted or {}


def noted_places(note: Path) -> dict[str, str] | None:
    # Nothing if there is no note; None if it cannot be read.
    try:
        found = json.loads(note.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError:
        return None
    is_note = isinstance(found, dict) and all(isinstance(each, str) for each in found.values())
    return found if is_note else None


def unpacked(package: Path) -> Path:
    # The folder is compared each time, and what differs is written anew, so nothing is synchronised here.
    folder, contents = package.with_suffix(""), packed_in(package)
    if digest_of(contents) != package.stem:
        what = f"the code of its agents is gone or damaged: {package}"
        raise OSError(f"{what}. It is written anew when the program that has it is started again")
    for path, content in contents.items():
        _bring(folder / path, content)
    return folder


def _bring(copy: Path, content: bytes) -> None:
    with suppress(FileNotFoundError):
        if copy.read_bytes() == content:
            return
    copy.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=copy.parent, suffix=".new", delete=False) as draft:
        draft.write(content)
    Path(draft.name).replace(copy)
