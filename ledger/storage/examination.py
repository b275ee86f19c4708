"""What `perdure doctor` says of the agents' storages: it reads their files while no agent is awake, and changes none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from perdure.ledger.block_guard import BlockGuard
from perdure.ledger.duckdb_format import HEADERS, is_whole, survey
from perdure.ledger.errors import WAY_OUT
from perdure.ledger.storage.file_disk import CUT, LEFT, log_of
from perdure.ledger.store.integrity import Finding


def examine_storages(directory: Path) -> list[Finding]:
    """Examine the headers and the logs of all storages below this directory."""
    files = sorted(directory.rglob("*.db"))
    found = [finding for file in files for finding in _examined(file)]
    if files and not any(each.severity == "damage" for each in found):
        found.append(Finding("ok", f"the logs of {len(files)} agents are whole to their last commit"))
    return found


def _examined(file: Path) -> Iterator[Finding]:
    is_guarded = BlockGuard(file).saved.exists()
    if is_guarded:
        yield Finding(
            "warning", f"a checkpoint of {file} did not end", "the agent's next life puts back what it has torn"
        )
    with file.open("rb") as database:
        headers = database.read(sum(HEADERS[-1]))
    if not is_guarded and not all(is_whole(headers[at : at + size]) for at, size in HEADERS):
        yield Finding("damage", f"{file} has no whole header", WAY_OUT)
    log = log_of(file)
    content = log.read_bytes() if log.exists() else b""
    end, is_damaged = survey(content)
    if is_damaged:
        yield Finding("damage", f"{log} is damaged at byte {end}, and later commits follow", WAY_OUT)
    elif end < len(content):
        what = f"the last {len(content) - end} bytes of {log} are no whole commit"
        yield Finding("warning", what, "the agent's next life cuts them off, and keeps a copy")
    for kept in sorted([*file.parent.glob(f"{file.name}{CUT}*"), *file.parent.glob(f"{LEFT}{file.name}*")]):
        what = (
            "a log from which an agent's life has cut what was no whole commit"
            if CUT in kept.name
            else "a log without its file"
        )
        yield Finding("warning", f"{kept} is {what}", "delete it when nobody needs it any more")
