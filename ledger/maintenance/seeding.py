"""A data directory brought into an empty prefix of a bucket."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from perdure.ledger.code_files import CODE, code_in
from perdure.ledger.directory_format import AGENTS, LEDGER
from perdure.ledger.maintenance.cold_view import cold_view
from perdure.ledger.maintenance.copies import CopyReader
from perdure.ledger.maintenance.copying import copy_storage
from perdure.ledger.maintenance.listing import list_storages
from perdure.ledger.storage.file_disk import log_of, place_of
from perdure.ledger.storage.patches import MAIN, WAL, StorageImage
from perdure.ledger.store.bucket import Bucket
from perdure.ledger.store.bucket_seed import seed_bucket
from perdure.ledger.store.duckdb_file import DATABASE
from perdure.ledger.store.journal import MIRROR, SEGMENT


def seed_from_directory(data: Path, bucket: Bucket, tell: Callable[[str], object]) -> int:
    """Let an empty prefix begin with what is in a directory: the ledger, all storages, the code. Nothing in the directory changes, and the
    caller sees to it that nothing does meanwhile. What is left out is told. Returns the number of storages.

    Raises `BadRequest` if the prefix is not empty, `OSError` if a copy of the ledger finds no room, and else as `seed_bucket`.
    """
    with TemporaryDirectory(prefix="perdure-seed-") as place:
        ledger = Path(place) / LEDGER
        copy_ledger(data / LEDGER, ledger)
        known = cold_view(ledger)
        agents = {place_of(agent): agent for agent in (*known.standing, *(known.seen or ()))}
        code = code_in(data / CODE)
        images = _storages_in(data / AGENTS, agents, Path(place) / "copy.db", tell)
        return seed_bucket(bucket, ledger, _with_code(images, code)) - bool(code)


def copy_ledger(ledger: Path, target: Path) -> None:
    """Copy the files of a ledger that does not change meanwhile. Raises `OSError`."""
    target.mkdir(parents=True)
    for pattern in (DATABASE, f"{DATABASE}.blocks", f"{SEGMENT}*", f"{MIRROR}*"):
        for path in ledger.glob(pattern):
            shutil.copyfile(path, target / path.name)


def _with_code(
    storages: Iterator[tuple[str, StorageImage]], code: dict[str, bytes]
) -> Iterator[tuple[str, StorageImage]]:
    if code:
        yield CODE, StorageImage(1, code)
    yield from storages


def _storages_in(
    folder: Path, agents: dict[str, str], copy: Path, tell: Callable[[str], object]
) -> Iterator[tuple[str, StorageImage]]:
    with CopyReader() as reader:
        for place in list_storages(folder).storages:
            if copy_storage(folder / place, copy) is None:
                continue
            come = reader.read(copy)  # what its last checkpoint has torn is put back with this
            agent = agents.get(place) or come.agent_id
            if agent:
                files = {name: path.read_bytes() for name, path in ((MAIN, copy), (WAL, log_of(copy))) if path.exists()}
                yield agent, StorageImage(1, files)
            elif come.problem:
                tell(f"{folder / place} was left out: it belongs to no agent that the ledger knows, and {come.problem}")
