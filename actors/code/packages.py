"""The files of code packages, and the URIs by which Ray distributes them. `actors.runtime.packing` makes them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

TOP: Final = "code"  # Ray strips the one folder at the top of a package


def package_file(name: str, code_dir: Path) -> Path:
    """Where a package lies."""
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
