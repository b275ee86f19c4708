"""What the URL of a bucket may be: `s3://bucket/prefix`, `gs://…`, `az://…`, or `file://…` for a directory that stands for one."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote, urlsplit

from perdure.ledger.errors import BadRequest

FIELD: Final = "data"
PREFIX_BYTES: Final = 500  # S3 allows 1,024 for a key
SCHEMES: Final = ("s3", "gs", "az", "file")
KEYS: Final = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS to the path of a file with a key",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
"""By which variables a store is told its keys, by scheme."""
_URL: Final = re.compile(rf"[a-z][a-z0-9+.-]*://|({'|'.join(SCHEMES)}|https?):", re.IGNORECASE)


def is_url(text: str) -> bool:
    """Whether this names a bucket, and not a directory. An address that has lost a slash, as in a `Path`, is no directory either."""
    return _URL.match(text) is not None


def check_slashes(url: str, field: str) -> None:
    """Raises `BadRequest` for an address that has lost a slash, and would be taken for the path of a directory."""
    if is_url(url) and "://" not in url:
        words = "is no address: two slashes follow the colon. A Path drops one of them, so give an address as a text"
        raise BadRequest(field, f"{url!r:.200} {words}; a directory of that name is ./{url[:200]}")


def checked_url(url: str, field: str = FIELD) -> str:
    """The URL of a bucket in the one form in which it is compared. Raises `BadRequest` for one that no bucket has, or that a store would
    read as that of another prefix."""
    check_slashes(url, field)
    scheme, _, rest = url.partition("://")
    scheme, parts = scheme.lower(), urlsplit(url)
    if scheme not in SCHEMES:
        known = ", ".join(f"{each}://" for each in SCHEMES)
        raise BadRequest(
            field, f"{url!r:.200} is no bucket that Perdure knows; it knows {known}. A directory is given as a path"
        )
    if "@" in parts.netloc:
        say = KEYS.get(scheme, "a directory has none")
        raise BadRequest(field, f"an address with keys in it is not opened, since it is shown and logged; {say}")
    if scheme != "file" and not parts.netloc:
        raise BadRequest(field, f"{url!r:.200} names no bucket; write {scheme}://bucket/prefix")
    if any(each in url for each in "?#") or not url.isprintable():
        words = (
            "has options or characters that no address of a bucket has, such as ? or #, or that stores read differently"
        )
        raise BadRequest(
            field, f"{url!r:.200} {words}; keys and endpoints are said by variables such as AWS_ENDPOINT_URL"
        )
    prefix = unquote(parts.path).strip("/")
    if prefix and not {"", ".", ".."}.isdisjoint(prefix.split("/")):
        raise BadRequest(
            field, f"{url!r:.200} has an empty part, `.` or `..` in its prefix, which stores read differently"
        )
    if scheme != "file" and len(prefix.encode()) > PREFIX_BYTES:
        raise BadRequest(
            field, f"a prefix may have {PREFIX_BYTES} bytes, and that of {url!r} has {len(prefix.encode())}"
        )
    return f"{scheme}://{rest.rstrip('/')}"
