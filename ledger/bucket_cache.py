"""Which bucket a data directory is a cache of. What is in a cache may be deleted at any time, and is never looked for elsewhere.

A program that is given the URL of a bucket works with a directory of this machine, like any other; in it stands the URL.
"""

from __future__ import annotations

import os
import re
from hashlib import blake2b
from pathlib import Path
from typing import Final

from perdure.ledger.directory_format import FORMAT
from perdure.ledger.errors import BadRequest
from perdure.ledger.whole_files import keep_whole

FIELD: Final = "data"
SCHEMES: Final = ("s3", "gs", "az", "file")
BUCKET_FILE: Final = "bucket"
CACHE_VARIABLE: Final = "PERDURE_CACHE"
"""The variable that says where caches lie; by default in the user's cache directory."""
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def is_url(text: str) -> bool:
    """Whether this names a bucket, and not a directory."""
    return _URL.match(text) is not None


def check_url(url: str) -> None:
    """Raise `BadRequest` if no bucket can have this URL."""
    scheme, _, rest = url.partition("://")
    name, _, prefix = rest.partition("/")
    if scheme.lower() not in SCHEMES:
        known = ", ".join(f"{each}://" for each in SCHEMES)
        raise BadRequest(
            FIELD, f"{url!r:.200} is no bucket that Perdure knows; it knows {known}. A directory is given as a path"
        )
    if not name and scheme.lower() != "file":
        raise BadRequest(FIELD, f"{url!r:.200} names no bucket; write {scheme}://bucket/prefix")
    if any(part in (".", "..") for part in prefix.split("/")) or any(ord(letter) < ord(" ") for letter in url):
        raise BadRequest(
            FIELD, f"{url!r:.200} has a prefix that stores read differently; use letters, digits, '-', '_' and '/'"
        )
    if "?" in url or "#" in url:
        raise BadRequest(
            FIELD, f"{url!r:.200} has options; keys and endpoints are said by variables such as AWS_ENDPOINT_URL"
        )


def cache_of(url: str) -> Path:
    """Where the cache of this bucket is on this machine."""
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    place = Path(os.environ.get(CACHE_VARIABLE) or Path(user) / "perdure")
    return place / f"{blake2b(url.encode(), digest_size=8).hexdigest()}-{FORMAT}"


def begin_cache(url: str) -> Path:
    """The cache of this bucket, which is made if it is not there."""
    path = cache_of(url)
    keep_whole(path / BUCKET_FILE, url.encode())
    return path


def bucket_of(data: Path) -> str:
    """The URL of the bucket that this directory is a cache of; empty if it is the place of record itself."""
    try:
        return (data / BUCKET_FILE).read_text("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return ""
