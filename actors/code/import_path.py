"""Where this process, and a new one, finds the code of a module."""

from __future__ import annotations

import functools
import sys
import sysconfig
from collections.abc import Iterable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Final

from perdure.ledger import BadRequest

ROOTS: Final = "roots.txt"
"""Where a code directory has the directories from which its modules were imported."""


def spec_on_path(top: str) -> ModuleSpec | None:
    """Where a new process would find a top-level module."""
    found = (finder.find_spec(top, None) for finder in sys.meta_path if hasattr(finder, "find_spec"))
    return next((spec for spec in found if spec is not None), None)


def root_of(module: ModuleType) -> Path | None:
    """The directory from which a new process would import this module, or None."""
    top, *inner = module.__name__.split(".")
    spec, file = spec_on_path(top), file_of(module)
    if spec is None:
        return None
    for place in spec.submodule_search_locations or ():
        home = Path(place).joinpath(*inner)
        if file in (home.with_suffix(".py").resolve(), (home / "__init__.py").resolve()):
            return Path(place).resolve().parent
    if file is None or (spec.origin and Path(spec.origin).resolve() == file):
        return file.parent if file else Path(sysconfig.get_path("stdlib"))
    return None


def files_of_module(name: str, roots: Iterable[str]) -> list[Path]:
    """Where a new process would find a module's text, without an import; if nowhere on the import path, then below these directories."""
    top, *inner = name.split(".")
    spec = spec_on_path(top)
    if spec is not None and not inner:
        return [Path(spec.origin)] if spec.origin else []
    homes = [*map(Path, spec.submodule_search_locations or ())] if spec else [Path(root, top) for root in roots]
    stems = [home.joinpath(*inner) for home in homes]
    return [file for stem in stems for file in (stem.with_suffix(".py"), stem / "__init__.py") if file.is_file()]


def is_installed(place: Path) -> bool:
    # What is installed for this Python is on every machine of a cluster.
    return any(place.is_relative_to(home) for home in _homes())


@functools.cache
def _homes() -> list[Path]:
    return [Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "platstdlib", "purelib", "platlib")]


def refuse_archive(module: ModuleType, qualname: str, field: str) -> None:
    """Raise `BadRequest` if a module lies within a zip file. Hosts import from files and folders."""
    place = Path(getattr(module, "__file__", None) or "")
    archive = next((each for each in place.parents if each.is_file()), None)
    if archive is not None:
        raise BadRequest(
            field,
            f"{qualname} lies in the archive {archive}, from which no other process can import it; unpack the archive, or install "
            "what is in it",
        )


def is_importable(script: Path) -> bool:
    spec = spec_on_path(script.stem) if script.stem.isidentifier() else None
    return spec is not None and spec.origin is not None and Path(spec.origin).resolve() == script


def file_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if file and Path(file).is_file() else None
