"""Code that stays as it was: modules are executed from a copy, while newer files may lie where their author wrote them.

On a machine that has the author's files, a host gets a package of their sources (`actors.runtime.packing`). A module that is in it is
executed from there, whatever has become of its file since; its `__file__` and `__path__` are still those of the author, so that what the
code reads beside itself is found. What is not in the package is imported as always.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.readers import FileReader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final

from perdure.actors.code.packages import TOP, package_file, places_file

INIT: Final = "__init__.py"


class PinnedCode(MetaPathFinder):
    """Finds the modules of one package.

    Args:
        folder: where the package was unpacked.
        places: the file or folder of each of its top-level modules and scripts on this machine, as it was last packed.
    """

    def __init__(self, folder: Path, places: Mapping[str, str]) -> None:
        self.folder, self._places = folder, places

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A module that is in the package; None for any other."""
        inner = self.folder.joinpath(*fullname.split("."))
        copy = next((each for each in (inner / INIT, inner.with_suffix(".py")) if each.is_file()), None)
        if copy is None:
            return None
        origin = self.origin_of(copy)
        inside = [str(origin.parent)] if copy.name == INIT else None
        loader = _Loader(fullname, str(copy), str(origin))
        return spec_from_file_location(fullname, origin, loader=loader, submodule_search_locations=inside)

    def origin_of(self, copy: Path) -> Path:
        """The author's file of which this is a copy; the copy itself if that one is gone."""
        top, *inner = copy.relative_to(self.folder).parts
        origin = Path(self._places.get(top, ""), *inner)
        return origin if top in self._places and origin.is_file() else copy


class _Loader(SourceFileLoader):
    """Executes the copy. The files beside it are the author's."""

    def __init__(self, fullname: str, copy: str, origin: str) -> None:
        super().__init__(fullname, copy)
        self._beside = SourceFileLoader(fullname, origin)

    def get_resource_reader(self, name: str) -> FileReader:  # type: ignore[override]
        return FileReader(self._beside)


def pin(package: str, code_dir: Path) -> PinnedCode:
    """From now on this process has its code from this package. Raises `OSError` if that is gone."""
    places_of = places_file(package, code_dir)
    places = json.loads(places_of.read_text(encoding="utf-8")) if places_of.is_file() else {}
    pinned = PinnedCode(unpacked(package_file(package, code_dir)), places)
    sys.meta_path.insert(0, pinned)
    return pinned


def unpacked(package: Path) -> Path:
    """The folder with what is in a package, made once."""
    folder = package.with_suffix("")
    if not folder.is_dir():
        draft = Path(tempfile.mkdtemp(dir=package.parent))
        try:
            with zipfile.ZipFile(package) as archive:
                archive.extractall(draft)
            (draft / TOP).rename(folder)
        except OSError:
            if not folder.is_dir():  # by another host meanwhile
                raise
        finally:
            shutil.rmtree(draft)
    return folder
