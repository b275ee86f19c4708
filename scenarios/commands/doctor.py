"""`perdure doctor`."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from perdure import actors, ledger
from perdure.actors import read_record
from perdure.ledger import (
    AGENTS,
    LEDGER,
    BadRequest,
    KnownAgents,
    LedgerDamaged,
    LedgerError,
    LedgerTooNew,
    LedgerTooOld,
    NoLongerServed,
    SupervisorUnreachable,
    bucket_of,
)
from perdure.ledger.maintenance.cold_view import cold_view
from perdure.ledger.maintenance.examination import examine_storages
from perdure.ledger.maintenance.restore_part import left_beside
from perdure.ledger.store.integrity import Finding, Severity, examine, is_begun, repair
from perdure.scenarios.commands.options import HERE, AsJson, Data
from perdure.scenarios.commands.shown import json_of
from perdure.scenarios.exits import REFUSED


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
    """What is to be said of a cold directory."""
    try:
        actors.check_directory(data)
    except (LedgerTooOld, LedgerTooNew) as problem:
        return [Finding("refused", problem.problem, problem.advice)]
    except LedgerError as problem:
        return [Finding("damage", problem.problem, problem.advice)]
    findings = (repair if mend else examine)(data / LEDGER)
    if any(each.severity == "refused" for each in findings):
        return findings
    try:
        known = cold_view(data / LEDGER)
    except LedgerError as problem:
        known = KnownAgents({})
        what = f"which storages there should be is not known, because the ledger cannot be read: {problem.problem}"
        severity: Severity = "warning" if any(each.severity == "damage" for each in findings) else "damage"
        findings.append(Finding(severity, what, "repair the ledger, and ask again"))
    return [*findings, *examine_storages(data / AGENTS, known, deep=deep), *actors.findings_in(data)]


def show(findings: list[Finding], *, as_json: bool = False) -> None:
    """Print findings, and exit by them."""
    if as_json:
        print(json_of([{"severity": each.severity, "what": each.what, "advice": each.advice} for each in findings]))
    else:
        for each in findings:
            print(f"{each.severity:8} {each.what}" + (f" – {each.advice}" if each.advice else ""))
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
