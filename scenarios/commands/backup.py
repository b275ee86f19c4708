"""`perdure backup` and `perdure restore`."""

from __future__ import annotations

import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from perdure import actors
from perdure.ledger import LEDGER, BadRequest, bucket_of
from perdure.ledger.maintenance.backup import Backup, Steward, prune
from perdure.ledger.maintenance.cold_view import ColdSteward
from perdure.ledger.maintenance.restoration import restore_backup
from perdure.ledger.maintenance.target import BackupTarget
from perdure.ledger.store.integrity import is_begun
from perdure.scenarios.commands.doctor import diagnosis, show
from perdure.scenarios.commands.opening import served
from perdure.scenarios.commands.options import AsJson, directory
from perdure.scenarios.commands.shown import json_of

Directory = Annotated[Path, typer.Argument(help="The data directory.", parser=directory, metavar="DIR")]
Place = Annotated[
    str, typer.Argument(help="Where backups lie: a directory, or a URL of fsspec such as s3://bucket/perdure.")
]


def backup(
    data: Directory,
    target: Place,
    keep: Annotated[int, typer.Option(min=0, help="Keep this many backups, the newest; 0 keeps all.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Back a data directory up, whether it is served or not. Only what has changed since the last backup is copied.

    Agents go on meanwhile. At the end the supervisor decides nothing for a moment, so that the ledger and the storages of the backup are
    those of one moment. A backup that is interrupted is none; the next one uses what it has copied.

    The exit code is 1 if the backup was made and something is wrong with the directory itself; see `perdure doctor`.

    Examples:
        perdure backup ./perdure-data /mnt/backups/perdure
        perdure backup ./perdure-data s3://bucket/perdure --keep 30
    """
    if url := bucket_of(data):
        raise BadRequest("dir", f"{url} is a bucket: it has what was acknowledged, and its own means keep copies of it")
    actors.check_directory(data)
    if not is_begun(data / LEDGER):
        raise BadRequest("dir", f"there is no ledger in {data}")

    def tell(words: str) -> None:
        if not as_json:
            print(words)

    place = BackupTarget(target)
    with served(data) as runtime, ExitStack() as stack:
        steward: Steward = (
            actors.ServedSteward(runtime.ask) if runtime is not None else stack.enter_context(ColdSteward(data))
        )
        made = Backup(data, place, steward, tell).make(time.time_ns() // 1_000_000)
    gone = prune(place, keep) if keep else (0, 0)
    if as_json:
        print(json_of({**made._asdict(), "pruned": gone[0]}))
    else:
        print(
            f"Backup {made.name}: {made.storages} storages and the ledger up to fact {made.seq}, {made.size:,} bytes, of which"
            f" {made.copied:,} were copied."
        )
        print(
            "".join(f"damage   {each}\n" for each in made.findings)
            + f"{gone[0]} older backups were deleted." * bool(keep)
        )
    if made.findings:
        raise typer.Exit(1)


def restore(
    target: Place,
    data: Directory,
    name: Annotated[str, typer.Option("--backup", help="Which backup, by its name; by default the newest.")] = "",
    replace: Annotated[
        bool, typer.Option("--replace", help="Let a directory that is not empty be moved aside, as DIR.replaced-1.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Bring a directory back from a backup, verify each byte, and examine it as `perdure doctor` does.

    Runs that were live at the moment of the backup go on from there when the directory is served. What happened after that moment is
    unknown to the copy: it does again what was done outside since, with the same idempotency keys. So do not serve the old directory as
    well.

    Of several restores into one directory at once, one goes on and the others are refused. What a restore that was killed has left beside
    the directory, as DIR.restoring-1, is named by `perdure doctor` and deleted by the next restore.

    Examples:
        perdure restore /mnt/backups/perdure ./perdure-data
        perdure restore s3://bucket/perdure ./perdure-data --backup 00000007 --replace
    """
    if url := bucket_of(data):
        raise BadRequest("dir", f"{url} is a bucket, and a backup is restored into a directory")
    data = data.resolve()
    manifest = restore_backup(BackupTarget(target), data, name, replace=replace)
    if not as_json:
        made = datetime.fromtimestamp(manifest.made_at_ms / 1000, UTC)
        print(f"Backup {manifest.name} of {made:%Y-%m-%d %H:%M:%S} UTC, up to fact {manifest.seq}, is in {data}.")
    show(diagnosis(data), as_json=as_json)
