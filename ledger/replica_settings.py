"""Where a directory is followed to (`maintenance.replicated_store`). A file of the directory says so."""

from __future__ import annotations

import json
import shutil
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple

from perdure.ledger.bucket_url import checked_url
from perdure.ledger.errors import BadRequest, LedgerDamaged
from perdure.ledger.whole_files import keep_whole
from perdure.policies import is_number

REPLICA: Final = "replica"
"""The folder of a directory that says where it is followed to, and has what that needs. It may be deleted while nothing works with the
directory; then the directory is not followed any more."""
SETTINGS: Final = "settings"
LAG_MS: Final = 500
LAG_MAX_MS: Final = 2_000
_LAG_MIN_MS, _LAG_MOST_MS = 10, 3_600_000


class ReplicaSettings(NamedTuple):
    """Where a directory is followed to.

    Args:
        url: of the bucket; empty for nowhere.
        lag_ms: how often what is new is brought there.
        lag_max_ms: runs and calls are not answered while the bucket is further behind than this.
    """

    url: str
    lag_ms: int = LAG_MS
    lag_max_ms: int = LAG_MAX_MS


def checked_replica(url: str, lag_ms: float = LAG_MS, lag_max_ms: float = LAG_MAX_MS) -> ReplicaSettings:
    """Settings that can be used; an empty URL is that of nowhere. Raises `BadRequest` that names the parameter."""
    for name, value in (("lag_ms", lag_ms), ("lag_max_ms", lag_max_ms)):
        if not is_number(value) or not _LAG_MIN_MS <= value <= _LAG_MOST_MS:
            raise BadRequest(
                name, f"{value!r:.100} is no number of milliseconds between {_LAG_MIN_MS} and {_LAG_MOST_MS:,}"
            )
    if lag_max_ms < lag_ms:
        raise BadRequest("lag_max_ms", f"{lag_max_ms} ms is less than lag_ms ({lag_ms} ms), so every answer would wait")
    if not isinstance(url, str):
        raise BadRequest("replica", f"{url!r:.200} is no URL; write s3://bucket/prefix")
    return ReplicaSettings(url and checked_url(url, "replica"), int(lag_ms), int(lag_max_ms))


def replica_of(data: Path) -> ReplicaSettings | None:
    """Where this directory is followed to; None if nowhere. Raises `LedgerDamaged` if what says so cannot be read."""
    path, problem = data / REPLICA / SETTINGS, "it does not fit its digest"
    try:
        text, _, check = path.read_bytes().rpartition(b"\n")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as failure:
        text, check, problem = b"", b"", f"it cannot be read: {failure}"
    if check == _check_of(text):
        return ReplicaSettings(**json.loads(text))
    raise LedgerDamaged(str(path), problem, "name the bucket again with `perdure replica`, and it is written anew")


def keep_replica(data: Path, settings: ReplicaSettings) -> None:
    """Say where a directory is followed to from its next start on; with no URL, nowhere."""
    if not settings.url:
        shutil.rmtree(data / REPLICA, ignore_errors=True)
    else:
        text = json.dumps(settings._asdict()).encode()
        keep_whole(data / REPLICA / SETTINGS, text + b"\n" + _check_of(text))


def _check_of(text: bytes) -> bytes:
    return blake2b(text, digest_size=8).hexdigest().encode()
