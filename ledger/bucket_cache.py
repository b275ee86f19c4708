"""Which bucket a data directory is a cache of. A cache may be deleted whenever no process works with it.

A program that is given the URL of a bucket works with a directory of this machine, like any other; in it stands the URL.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path
from typing import Final

from perdure.ledger.directory_format import FORMAT, unreadable
from perdure.ledger.whole_files import keep_whole

BUCKET_FILE: Final = "bucket"
CACHE_VARIABLE: Final = "PERDURE_CACHE"
"""The variable that says where caches lie; by default in the user's cache directory."""


def cache_of(url: str) -> Path:
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    place = Path(os.environ.get(CACHE_VARIABLE) or Path(user) / "perdure")
    return place / f"{blake2b(url.encode(), digest_size=8).hexdigest()}-{FORMAT}"


def begin_cache(url: str) -> Path:
    """The cache of the bucket with this `checked_url`, which is made if it is not there."""
    path = cache_of(url)
    keep_whole(path / BUCKET_FILE, url.encode())
    return path


def given_as(data: Path) -> str:
    """What a person calls this directory: the URL of its bucket, or its path."""
    return bucket_of(data) or str(data)


def bucket_of(data: Path) -> str:
    """The URL of the bucket that this directory is a cache of; empty if it is the place of record itself. Raises `LedgerUnwritable` if that
    cannot be read."""
    try:
        return (data / BUCKET_FILE).read_text("utf-8")
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return ""
    except OSError as problem:
        raise unreadable(data / BUCKET_FILE, problem) from problem
