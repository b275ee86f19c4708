"""Which directory is meant by `data`, and whether it can be one."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from perdure.ledger import CACHE_VARIABLE, BadRequest, begin_cache, checked_url, is_url

FIELD: Final = "data"
_UNUSABLE: Final = {
    "?": "DuckDB takes what follows it for options, and looks for its log elsewhere",
    "\\": "DuckDB takes it for a separator of folders",
    "\0": "no path has one",
}


def data_directory(given: object) -> Path:
    """The data directory; `~` is the home. For the URL of a bucket, its cache on this machine. Raises `BadRequest` for a blank name, a
    file, a directory that this process may not enter, a path on which the ledger cannot be, and a URL that no bucket has."""
    if not isinstance(given, str | os.PathLike) or isinstance(os.fspath(given), bytes):
        raise BadRequest(FIELD, f"{given!r:.200} is no path: it is a text or a Path, './perdure-data' for example")
    if not (text := str(given)).strip():
        raise BadRequest(
            FIELD, "it is blank; name a directory, './perdure-data' for example, or say '.' for the current one"
        )
    if is_url(text):
        return _cache(text)
    path = Path(os.path.expanduser(text))  # noqa: PTH111 - `~x` stays as it is if x has no home
    try:
        whole = str(path.resolve())
    except FileNotFoundError:
        raise BadRequest(
            FIELD, f"{text!r} is relative, and the working directory is not there any more; name an absolute path"
        ) from None
    except (OSError, RuntimeError, ValueError) as problem:
        raise BadRequest(FIELD, f"{text!r} cannot be looked at: {getattr(problem, 'strerror', problem)}") from None
    _check_letters(whole)
    _check_kind(path)
    return path


def _cache(url: str) -> Path:
    url = checked_url(url)
    try:
        return begin_cache(url)
    except OSError as problem:
        words = f"the cache of {url} cannot be made ({problem.strerror}: {problem.filename})"
        raise BadRequest(FIELD, f"{words}; say where there is room by the variable {CACHE_VARIABLE}") from None


def _check_letters(whole: str) -> None:
    for letter, reason in _UNUSABLE.items():
        if letter in whole:
            raise BadRequest(FIELD, f"{whole!r} has a {letter!r}: {reason}. Name another directory")
    try:
        whole.encode()
    except UnicodeEncodeError:
        raise BadRequest(FIELD, f"{whole!r} is no UTF-8, and Ray takes no such path. Name another directory") from None


def _check_kind(path: Path) -> None:
    try:
        place = next(each for each in (path, *path.absolute().parents) if _is_there(each))
        is_directory = place.is_dir()
        kind = "no directory" if place.exists() else "a link that leads nowhere"
        if is_directory:
            os.stat(f"{place}/.")  # noqa: PTH116 - a Path drops the dot, which only those find who may enter
    except OSError as problem:
        words = f"{str(path)!r} cannot be looked at: {problem.strerror}"
        raise BadRequest(FIELD, f"{words}; check its path, owner and permissions") from None
    if not is_directory:
        below = f" lies below {str(place)!r}, which" if place != path else ""
        raise BadRequest(FIELD, f"{str(path)!r}{below} is {kind}")


# `Path.exists` of newer versions of Python is also False for what cannot be looked at.
def _is_there(path: Path) -> bool:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


# Raise `BadRequest` if Ray could not start processes where this program is.
def check_program() -> None:
    try:
        here = os.getcwd()  # noqa: PTH109 - Ray asks the same
    except FileNotFoundError:
        raise BadRequest(
            "runtime",
            "the working directory of this program is not there any more, and Ray needs one; change to another",
        ) from None
    for place in (here, *sys.path[:1]):
        try:
            place.encode()
        except UnicodeEncodeError:
            raise BadRequest(
                "runtime", f"this program is in {place!r}, which is no UTF-8, and Ray takes no such path; move it"
            ) from None
