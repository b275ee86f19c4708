"""The files of code packages, and the URIs by which Ray distributes them. `actors.runtime.packing` makes them."""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from pathlib import Path
from typing import Final

TOP: Final = "code"  # Ray strips the one folder at the top of a package


def package_file(name: str, code_dir: Path) -> Path:
    return code_dir / f"{name}.zip"


def places_file(name: str, code_dir: Path) -> Path:
    """Where it is noted from which files and folders of this machine a package was made last."""
    return code_dir / f"{name}.json"


def package_uris(name: str, code_dir: Path) -> list[str]:
    """The URIs for Ray's `runtime_env`; none without a package. Raises `OSError` if the package is gone."""
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
