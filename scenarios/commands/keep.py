"""The commands that keep a directory: `doctor`, `backup`, `restore` and `replica`."""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from perdure import BadRequest, LedgerUnwritable, NoLongerServed, SupervisorUnreachable, actors, ledger
from perdure.actors import read_record
from perdure.ledger import (
    AGENTS,
    LAG_MAX_MS,
    LAG_MS,
    LEDGER,
    KnownAgents,
    LedgerDamaged,
    LedgerError,
    LedgerTooNew,
    LedgerTooOld,
    Moment,
    bucket_of,
    checked_replica,
    checked_url,
    given_as,
    is_url,
    keep_replica,
    replica_of,
)
from perdure.ledger.maintenance.backup import Backup, Steward, check_target, prune
from perdure.ledger.maintenance.cold_view import ColdSteward, cold_view
from perdure.ledger.maintenance.cut import STAGE
from perdure.ledger.maintenance.examination import examine_storages
from perdure.ledger.maintenance.restoration import restore_backup
from perdure.ledger.maintenance.restore_part import left_beside
from perdure.ledger.maintenance.target import BackupTarget
from perdure.ledger.store.integrity import Finding, Severity, examine, is_begun, repair
from perdure.scenarios.commands.opening import served
from perdure.scenarios.commands.options import HERE, AsJson, Data, check_there, directory
from perdure.scenarios.commands.shown import instant, json_of, replica_words, say
from perdure.scenarios.exits import REFUSED

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
            _of_bucket(url, name, keep, unwanted, listed=listed, as_json=as_json)
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
    check_target(data, place)
    with served(data) as runtime, ExitStack() as stack:
        # A supervisor stages in the directory, which it sees, and not in the target, which it may not.
        stage = place.folder / STAGE if runtime is None and place.folder is not None else None
        steward: Steward = (
            actors.ServedSteward(runtime.ask) if runtime is not None else stack.enter_context(ColdSteward(data, stage))
        )
        made = Backup(data, place, steward, tell, stage).make(time.time_ns() // 1_000_000)
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
            + f"{gone[0]} older backups were deleted.\n" * bool(keep),
            end="",
        )
    if made.findings:
        raise typer.Exit(1)


def _of_bucket(url: str, name: str, keep: int, unwanted: str, *, listed: bool, as_json: bool) -> None:
    if listed:
        pins = ledger.pins_of(url)
        if as_json:
            print(json_of([{"name": pin.name, "slot": pin.slot, "made_at_ms": pin.at_ms} for pin in pins]))
        else:
            lines = [f"{pin.name:24} slot {pin.slot:<12} {instant(pin.at_ms)}" for pin in pins]
            print("\n".join(lines) or f"{url} has no backups.")
        return
    if unwanted:
        ledger.unpin_bucket(url, [unwanted])
        print(json_of({"deleted": [unwanted]}) if as_json else f"Backup {unwanted} was deleted.")
        return
    made = ledger.pin_bucket(url, name, time.time_ns() // 1_000_000)
    gone = [pin.name for pin in ledger.pins_of(url)[: -keep or None]] if keep else []
    ledger.unpin_bucket(url, gone)
    if as_json:
        print(json_of({**made._asdict(), "pruned": len(gone)}))
        return
    print(f"Backup {made.name}: {made.storages} storages and the ledger up to fact {made.seq}, at slot {made.slot}.")
    print(f"{len(gone)} older backups were deleted.\n" * bool(keep), end="")


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
    no_ledger = _why_no_ledger(target)
    if no_ledger is None:
        with actors.bucket_needed("data", target):
            told = _bring_ledger(checked_url(target), data, Moment(*_moment(at), name), replace=replace)
    elif at:
        why = no_ledger or f"{target} has no ledger"
        raise BadRequest("at", f"{why}; a backup is of one moment: name it with --backup")
    else:
        try:
            told = _bring_backup(BackupTarget(target), data, name, replace=replace)
        except BadRequest as refusal:
            if not no_ledger or refusal.field not in {"target", "backup"}:
                raise
            raise BadRequest("target", f"{no_ledger}. If backups lie there: {refusal.problem}") from refusal
    if not as_json:
        say("\n".join(told))
    show(ledger.examine_bucket(url, deep=False) if url else diagnosis(data.resolve()), as_json=as_json)


def _bring_ledger(source: str, data: Path, moment: Moment, *, replace: bool) -> list[str]:
    if sum(each not in (None, "") for each in moment) > 1:
        raise BadRequest("at", "a backup is of one moment; say --at or --backup")
    if url := bucket_of(data):
        made = ledger.restore_to_bucket(source, url, moment)
    else:
        made = ledger.restore_to_directory(source, data.resolve(), moment, replace=replace)
    words = f"{source} up to slot {made.slot}, with {made.storages} storages, is in {given_as(data)}."
    return [words + f" It is as it was at {instant(made.at_ms)}." * bool(made.at_ms), *made.findings]


def _bring_backup(target: BackupTarget, data: Path, name: str, *, replace: bool) -> list[str]:
    with ExitStack() as stack:
        url, place, left_out = bucket_of(data), data.resolve(), list[str]()
        if url:
            place = Path(stack.enter_context(TemporaryDirectory(prefix="perdure-"))) / "data"
        manifest = restore_backup(target, place, name, replace=replace)
        if url:
            stack.enter_context(actors.bucket_needed("data", url))
            left_out = ledger.restore_directory_to_bucket(place, url).findings
    made = f"Backup {manifest.name} of {instant(manifest.made_at_ms)}, up to fact {manifest.seq}"
    return [f"{made}, is in {url or place}.", *left_out]


def _why_no_ledger(place: str) -> str | None:
    # None if a ledger is there, and an empty text where no ledger can be.
    if not is_url(place):
        return ""
    try:
        url = checked_url(place)
    except BadRequest:  # fsspec knows other places, and other ways to say keys
        return ""
    try:
        return ledger.why_no_ledger(url) or None
    except ImportError as problem:
        return f"a ledger in {url} is read after `pip install 'perdure[bucket]'` ({problem})"
    except LedgerError:
        with suppress(BadRequest):
            BackupTarget(place)
            return ""
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


def doctor(
    mend: Annotated[
        bool, typer.Option("--repair", help="Repair what can be repaired; a copy of every file is kept.")
    ] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Open each storage, however many there are; some 2 ms for each.")
    ] = False,
    data: Data = HERE,
    as_json: AsJson = False,
) -> None:
    """Verify a directory: the ledger's files, chain, journal and records, and the agents' storages against the ledger.

    Of a bucket, the chain of its journal is followed from its last root, and the pieces of the ledger's database are verified; with
    --deep each storage, too. Objects are named that are not of the ledger, that nothing names and that are older than what is kept, and
    that a backup lacks. It may be served meanwhile.

    Each line begins with its severity: `ok`; `warning`, which the next start repairs or which does no harm; `damage`, which it does not;
    `refused`, when the ledger is absent, in use, not writable or of another format. Exits 1 if there is damage, and 2 if the ledger could
    not be examined.

    A storage is missing if its agent had reported something and there is no file; damaged if its headers or its log are; older than the
    ledger if it has not come as far as its agent had reported; nobody's if the ledger knows of no agent that it belongs to. How far
    storages have come is looked at if there are at most 1,000, or with --deep.

    Nodes of a cluster that do not see the directory are named, and files of two directories in one.

    What a restore into this directory that was killed has left beside it is named, too.

    Small files that are not as they were written are named: code, which types there are, where the Ray is, the format. So are
    agent types that have the same class name and different places: the code may have been moved.

    If the directory is served, its supervisor is asked which storages there should be. The ledger's files are not looked at then.

    A storage is mended by its agent's next life, and by nothing else. What a life cut off a log is kept, and named here.

    With --repair, missing commits are taken from the journal, and what cannot be proven is given up. A file that DuckDB cannot read is
    rebuilt from the journal, or from the rows that can be read. Each line says what was recovered and what was not. Every file is kept
    as it was, under a name that ends in `.damaged-1`, `.damaged-2`, …

    Examples:
        perdure doctor
        perdure doctor --deep --json
        perdure doctor --repair
    """
    if url := bucket_of(data):
        if mend:
            raise BadRequest(
                "repair", f"nothing is repaired in {url}: no object is ever changed there; restore what is missing"
            )
        with actors.bucket_needed("data", url):
            show(ledger.examine_bucket(url, deep=deep), as_json=as_json)
        return
    findings = None if mend else _of_served(data, deep=deep)
    if findings is None:
        findings = diagnosis(data, mend=mend, deep=deep)
    advice = "delete it; the next restore into this directory does so"
    for part in left_beside(data.resolve()):
        findings.append(Finding("warning", f"{part} was left by a restore that was killed", advice))
    show(findings, as_json=as_json)


def diagnosis(data: Path, *, mend: bool = False, deep: bool = False) -> list[Finding]:
    try:
        actors.check_directory(data)
    except (LedgerTooOld, LedgerTooNew, LedgerUnwritable) as problem:
        return [Finding("refused", problem.problem, problem.advice)]
    except LedgerError as problem:
        return [Finding("damage", problem.problem, problem.advice)]
    findings = (repair if mend else examine)(data / LEDGER)
    if any(each.severity == "refused" for each in findings):
        return findings
    known: KnownAgents | None = None
    try:
        known = cold_view(data / LEDGER)
    except LedgerError as problem:
        what = f"which storages there should be is not known, because the ledger cannot be read: {problem.problem}"
        severity: Severity = "warning" if any(each.severity == "damage" for each in findings) else "damage"
        findings.append(Finding(severity, what, "repair the ledger, and ask again"))
    return [*findings, *examine_storages(data / AGENTS, known, deep=deep), *actors.findings_in(data)]


def show(findings: list[Finding], *, as_json: bool) -> None:
    """Print findings, and exit by them."""
    if as_json:
        print(json_of([{"severity": each.severity, "what": each.what, "advice": each.advice} for each in findings]))
    else:
        for each in findings:
            say(f"{each.severity:8} {each.what}" + (f" – {each.advice}" if each.advice else ""))
    severities = {each.severity for each in findings}
    if severities & {"damage", "refused"}:
        raise typer.Exit(1 if "damage" in severities else REFUSED)


def _of_served(data: Path, *, deep: bool) -> list[Finding] | None:
    if read_record(data) is None or not is_begun(data / LEDGER):
        return None
    # Where no supervisor comes up, also because the ledger is damaged, the files themselves are looked at.
    with (
        suppress(SupervisorUnreachable, NoLongerServed, LedgerDamaged),
        actors.Runtime(data, may_start=False) as runtime,
    ):
        return actors.served_findings(runtime.ask, data, deep=deep)
    return None


def replica(
    url: Annotated[
        str | None, typer.Argument(help="Follow the directory there from its next start on: s3://bucket/prefix.")
    ] = None,
    lag_ms: Annotated[int, typer.Option(help="How often what is new is brought there.")] = LAG_MS,
    lag_max_ms: Annotated[int, typer.Option(help="Answers wait while the bucket is further behind.")] = LAG_MAX_MS,
    off: Annotated[bool, typer.Option("--off", help="Follow it no more; what is in the bucket stays there.")] = False,
    data: Data = HERE,
    as_json: AsJson = False,
) -> None:
    """Follow a directory into a bucket, so that a lost disk undoes the last moments only; or show how far the bucket is behind.

    Answers wait for the directory's disk alone. The bucket has the directory as it was between two decisions of the ledger, at most
    --lag-max-ms ago: `perdure restore URL` brings that back, everywhere at once. The first start brings everything there, and serves when
    it is there.

    A directory that is served is followed as it was told when its supervisor began: stop it to change that.

    Examples:
        perdure replica s3://bucket/perdure
        perdure replica
        perdure replica --off
    """
    if place := bucket_of(data):
        raise BadRequest("dir", f"{place} is a bucket already: what is acknowledged is there")
    check_there(data)
    with served(data) as runtime:
        told = None if runtime is None else runtime.ask("ps", 0)["supervisor"].get("replica")
        if url is not None or off:
            if url is not None and off:
                raise BadRequest("off", "name a bucket, or say --off")
            if runtime is not None:
                raise BadRequest("replica", f"a supervisor serves {data}; `perdure stop` it first")
            wanted = checked_replica(url or "", lag_ms, lag_max_ms)
            if url:
                actors.check_bucket("replica", url)
            keep_replica(data, wanted)
    settings = replica_of(data)
    told = told or (settings._asdict() if settings is not None else None)
    if as_json:
        print(json_of({"replica": told}))
    elif told is None:
        print(f"{given_as(data)} is followed nowhere.")
    else:
        print(replica_words(told))
