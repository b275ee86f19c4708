"""`perdure backup` and `perdure restore`."""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, NamedTuple

import typer

from perdure import actors, ledger
from perdure.ledger import LEDGER, BadRequest, LedgerError, Moment, bucket_of, checked_url, given_as, is_url
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
Source = Annotated[
    str, typer.Argument(help="Where backups lie, as for `perdure backup`; or the URL of a bucket that has a ledger.")
]


def backup(
    data: Directory,
    target: Place = "",
    keep: Annotated[int, typer.Option(min=0, help="Keep this many backups, the newest; 0 keeps all.")] = 0,
    name: Annotated[str, typer.Option("--name", help="The name of the backup; only of a bucket.")] = "",
    listed: Annotated[
        bool, typer.Option("--list", help="Say which there are, and make none; only of a bucket.")
    ] = False,
    unwanted: Annotated[
        str, typer.Option("--delete", metavar="NAME", help="Delete this backup, and make none; only of a bucket.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Back a data directory up, whether it is served or not. Only what has changed since the last backup is copied.

    Agents go on meanwhile. At the end the supervisor decides nothing for a moment, so that the ledger and the storages of the backup are
    those of one moment. A backup that is interrupted is none; the next one uses what it has copied.

    The exit code is 1 if the backup was made and something is wrong with the directory itself; see `perdure doctor`.

    Of a ledger in a bucket no TARGET is named, and nothing is copied: the bucket keeps what it was at that moment until the backup is
    deleted. Without a backup it keeps the last day. To copy it elsewhere, restore it there.

    Examples:
        perdure backup ./perdure-data /mnt/backups/perdure
        perdure backup ./perdure-data s3://bucket/perdure --keep 30
        perdure backup s3://bucket/ledger --name before-the-move
        perdure backup s3://bucket/ledger --list
    """
    if url := bucket_of(data):
        if target:
            advice = f"to copy it elsewhere, use `perdure restore {url} {target}`"
            raise BadRequest("target", f"a backup of {url} is kept in that bucket, so name no target; {advice}")
        with actors.bucket_needed("data", url):
            _of_bucket(url, _Wish(name, keep, listed, unwanted), as_json=as_json)
        return
    if not target or name or listed or unwanted:
        words = "say where backups lie; --name, --list and --delete are for a bucket, and a directory's backups have numbers"
        raise BadRequest("target", words)
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


class _Wish(NamedTuple):
    name: str
    keep: int
    listed: bool
    unwanted: str


def _of_bucket(url: str, wish: _Wish, *, as_json: bool) -> None:
    if wish.listed:
        pins = ledger.pins_of(url)
        if as_json:
            print(json_of([{"name": pin.name, "slot": pin.slot, "made_at_ms": pin.at_ms} for pin in pins]))
        else:
            lines = [f"{pin.name:24} slot {pin.slot:<12} {_time(pin.at_ms)}" for pin in pins]
            print("\n".join(lines) or f"{url} has no backups.")
        return
    if wish.unwanted:
        ledger.unpin_bucket(url, [wish.unwanted])
        print(json_of({"deleted": [wish.unwanted]}) if as_json else f"Backup {wish.unwanted} was deleted.")
        return
    made = ledger.pin_bucket(url, wish.name, time.time_ns() // 1_000_000)
    gone = [pin.name for pin in ledger.pins_of(url)[: -wish.keep or None]] if wish.keep else []
    ledger.unpin_bucket(url, gone)
    if as_json:
        print(json_of({**made._asdict(), "pruned": len(gone)}))
        return
    print(f"Backup {made.name}: {made.storages} storages and the ledger up to fact {made.seq}, at slot {made.slot}.")
    print(f"{len(gone)} older backups were deleted.\n" * bool(wish.keep), end="")


def restore(
    target: Source,
    data: Directory,
    name: Annotated[str, typer.Option("--backup", help="Which backup, by its name; by default the newest.")] = "",
    at: Annotated[
        str,
        typer.Option("--at", metavar="SLOT|TIME", help="As it was then; of a bucket. A time without a zone is UTC."),
    ] = "",
    replace: Annotated[
        bool, typer.Option("--replace", help="Let a directory that is not empty be moved aside, as DIR.replaced-1.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Bring a directory back from a backup, verify each byte, and examine it as `perdure doctor` does.

    A ledger in a bucket is brought back as it is, as it was at a slot or a time of the last day, or as a backup has kept it. DIR may be the
    URL of an empty prefix of a bucket. A restore into one that was cut off is made again, and begins anew; until it has ended nothing else
    begins there.

    Runs that were live at the moment of the backup go on from there when the directory is served. What happened after that moment is
    unknown to the copy: it does again what was done outside since, with the same idempotency keys. So do not serve the old directory as
    well.

    Of several restores into one directory at once, one goes on and the others are refused. What a restore that was killed has left beside
    the directory, as DIR.restoring-1, is named by `perdure doctor` and deleted by the next restore.

    Examples:
        perdure restore /mnt/backups/perdure ./perdure-data
        perdure restore s3://bucket/perdure ./perdure-data --backup 00000007 --replace
        perdure restore s3://bucket/ledger ./perdure-data --at 2026-11-26T14:00
        perdure restore s3://bucket/ledger s3://other/ledger
    """
    url = bucket_of(data)
    if url and replace:
        raise BadRequest("replace", f"no prefix is moved aside; {url} must be an empty one")
    if _is_ledger(target):
        with actors.bucket_needed("data", target):
            told = _bring_ledger(checked_url(target), data, Moment(*_moment(at), name), replace=replace)
    elif at:
        raise BadRequest("at", f"{target} has no ledger, and a backup is of one moment; name it with --backup")
    else:
        told = _bring_backup(BackupTarget(target), data, name, replace=replace)
    if not as_json:
        print("\n".join(told))
    show(ledger.examine_bucket(url, deep=False) if url else diagnosis(data.resolve()), as_json=as_json)


def _bring_ledger(source: str, data: Path, moment: Moment, *, replace: bool) -> list[str]:
    if sum(each not in (None, "") for each in moment) > 1:
        raise BadRequest("at", "a backup is of one moment; say --at or --backup")
    if url := bucket_of(data):
        made = ledger.restore_to_bucket(source, url, moment)
    else:
        made = ledger.restore_to_directory(source, data.resolve(), moment, replace=replace)
    return [f"{source} up to slot {made.slot}, with {made.storages} storages, is in {given_as(data)}.", *made.findings]


def _bring_backup(target: BackupTarget, data: Path, name: str, *, replace: bool) -> list[str]:
    with ExitStack() as stack:
        url, place, left_out = bucket_of(data), data.resolve(), list[str]()
        if url:
            place = Path(stack.enter_context(TemporaryDirectory(prefix="perdure-"))) / "data"
        manifest = restore_backup(target, place, name, replace=replace)
        if url:
            stack.enter_context(actors.bucket_needed("data", url))
            left_out = ledger.restore_directory_to_bucket(place, url).findings
    made = f"Backup {manifest.name} of {_time(manifest.made_at_ms)}, up to fact {manifest.seq}"
    return [f"{made}, is in {url or place}.", *left_out]


def _is_ledger(place: str) -> bool:
    if not is_url(place):
        return False
    # fsspec knows other places, and other ways to say keys
    try:
        return ledger.is_ledger(place)
    except (ImportError, BadRequest):
        return False
    except LedgerError:
        with suppress(BadRequest):
            BackupTarget(place)
            return False
        raise


def _moment(at: str) -> tuple[int | None, int | None]:
    """A slot, or a time in ms since 1970. Raises `BadRequest`."""
    if not at or at.isdecimal():
        return (int(at) if at else None), None
    try:
        time_at = datetime.fromisoformat(at)
    except ValueError:
        raise BadRequest(
            "at", f"{at!r:.200} is neither the number of a slot nor a time like 2026-11-26T14:00Z"
        ) from None
    return None, int((time_at if time_at.tzinfo else time_at.replace(tzinfo=UTC)).timestamp() * 1000)


def _time(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
