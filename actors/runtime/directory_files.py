"""Every file that a data directory holds, in one table: what it is, who writes it and how durably, and what it means when it is missing
or damaged. A test plays each row. What is to be said of a directory that is served is asked of its supervisor.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from perdure.actors.code.import_path import ROOTS
from perdure.actors.code.known_types import damaged_lines, known_types, mistakable
from perdure.actors.code.naming import cell_file, is_cell_whole
from perdure.actors.code.packages import digest_of, noted_places, packed_in
from perdure.actors.ray_world.cluster_record import RECORD, record_in
from perdure.actors.ray_world.identity import IDENTITY, identity_of
from perdure.ledger import (
    AGENTS,
    CODE,
    FORMAT_FILE,
    LEDGER,
    REPLICA,
    TYPES,
    KnownAgent,
    KnownAgents,
    LedgerError,
    bucket_of,
    check_format,
    given_as,
    numbered_lines,
    replica_of,
)
from perdure.ledger.maintenance.examination import examine_storages
from perdure.ledger.store.integrity import Finding, lock_of

SCENARIO: Final = "scenario.json"
PAGE: Final = 20_000  # storages that a supervisor is asked for at once
ADVICE: Final = "mount the directory's storage there, at the same path, or take the node out of the cluster; it is asked again by itself"

Asking = Callable[..., Any]  # asks a supervisor, as `Runtime.ask` does; it blocks

Fate = Literal[
    "nothing",  # nothing is lost, and nothing need be done
    "again",  # the next process that needs it makes it again
    "told",  # a reader goes on without it, and says so; so does `perdure doctor`
    "refused",  # an error says what to do; so does `perdure doctor`
]


class DirectoryFile(NamedTuple):
    """One kind of file.

    Args:
        path: its name below the directory, or a pattern of it.
        what: what it is.
        kept: who writes it, and how durably.
        missing, damaged: what becomes of it when it is gone, or when it is torn or has a wrong byte.
        but: what more there is to say of that.
    """

    path: str
    what: str
    kept: str
    missing: Fate
    damaged: Fate
    but: str = ""


_WHOLE: Final = "whole, on the disk before it has its name"
_LEFT: Final = "what a death has left of a file that was being made; the next one who makes it replaces it"
_SUPERVISOR: Final = "the supervisor"

FILES: Final = (
    DirectoryFile(
        "ledger/ledger.*.damaged-*",
        "a damaged file as it was",
        "a start, `perdure doctor --repair`",
        "nothing",
        "nothing",
    ),
    DirectoryFile(
        "ledger/ledger.db",
        "facts, snapshot, payloads up to the last checkpoint",
        f"{_SUPERVISOR}; by checkpoints, which are synchronised",
        "refused",
        "refused",
        "built anew if the journal has every commit; what is derived in it is always built anew",
    ),
    DirectoryFile(
        "ledger/ledger.db.blocks",
        "what a checkpoint is about to overwrite in it",
        f"{_SUPERVISOR}; on the disk before a checkpoint, removed after it",
        "nothing",
        "nothing",
        "only a checkpoint that was cut off needs it",
    ),
    DirectoryFile(
        "ledger/ledger.journal.*",
        "every commit after the last checkpoint",
        f"{_SUPERVISOR}; on the disk before anybody is answered",
        "told",
        "told",
        "taken from its mirror; refused if that is missing or damaged, too",
    ),
    DirectoryFile(
        "ledger/ledger.mirror.*",
        "the same once more, for damaged bytes",
        f"{_SUPERVISOR}; not synchronised",
        "nothing",
        "nothing",
    ),
    DirectoryFile(
        "ledger/ledger.lock", "which process has the ledger", "whoever opens it; not synchronised", "again", "again"
    ),
    DirectoryFile(
        "ledger/format", "a copy of `format`", f"a start; {_WHOLE}", "again", "refused", "an empty one is made again"
    ),
    DirectoryFile("ledger/ledger.db.*", _LEFT, "whoever opens the ledger", "nothing", "nothing"),
    DirectoryFile("ledger/ledger.tmp/*", "what DuckDB sorts on the disk", _SUPERVISOR, "nothing", "nothing"),
    DirectoryFile(
        "agents/*.db",
        "the storage of an agent that ever wrote: a log, or a DuckDB database",
        "its agent; each commit is on the disk before it counts, there or in `agents/shared`",
        "refused",
        "refused",
        "that agent alone (`StorageLost`), if it had reported something; what is no whole commit at the end is cut off, kept and told",
    ),
    DirectoryFile(
        "agents/*.db.wal",
        "the commits of a database since its last checkpoint",
        "its agent; on the disk before they count",
        "refused",
        "refused",
        "the same",
    ),
    DirectoryFile(
        "agents/*.db.blocks",
        "what a checkpoint is about to overwrite in a database",
        "as in the ledger",
        "nothing",
        "nothing",
    ),
    DirectoryFile(
        "agents/*.cut-*",
        "a log as it was before something was cut off",
        "its agent; synchronised",
        "nothing",
        "nothing",
    ),
    DirectoryFile("agents/*.new", _LEFT, "its agent", "nothing", "nothing"),
    DirectoryFile(
        "agents/locks/*",
        "sixteen files with a lock for each agent that is open",
        "hosts; not synchronised",
        "again",
        "nothing",
    ),
    DirectoryFile(
        "agents/shared/*",
        "up to 4 MB for each host, with the newest commits of agents that committed together",
        "hosts; on the disk before these commits count",
        "nothing",
        "nothing",
        "needed after a power cut only: what is whole is put back, who has lost a commit is refused, and a damaged one is kept and told",
    ),
    DirectoryFile(
        "agents/tmp/*", "a blank database to copy, and what DuckDB sorts on the disk", "hosts", "nothing", "nothing"
    ),
    DirectoryFile(
        "format",
        "the number of the format of the whole directory; another one than this Perdure reads is refused",
        f"a start; {_WHOLE}",
        "again",
        "refused",
        "an empty one is made again from the copy that the ledger has",
    ),
    DirectoryFile(
        "ledger/identity",
        "a copy of `identity`",
        f"a start; {_WHOLE}",
        "again",
        "refused",
    ),
    DirectoryFile(
        "identity",
        "which directory this is: a random word",
        f"a start; {_WHOLE}",
        "again",
        "refused",
        "made again from the copy that the ledger has",
    ),
    DirectoryFile("code/*/*", "a package unpacked", "hosts; compared with the package by each", "again", "again"),
    DirectoryFile(
        "code/*.py",
        "the text of a class from a notebook, named by its digest",
        f"the program that has the class; {_WHOLE}",
        "refused",
        "refused",
        "written anew when that program is started again",
    ),
    DirectoryFile(
        "code/*.zip",
        "a package of code, named by its digest",
        f"the program that has the code; {_WHOLE}",
        "refused",
        "refused",
        "written anew when that program is started again",
    ),
    DirectoryFile(
        "code/*.json",
        "from where a package was made",
        f"the program that has the code; {_WHOLE}",
        "nothing",
        "told",
        "without it tracebacks name the copy",
    ),
    DirectoryFile(
        "code/types.txt",
        "which agent types there are, and where their code was",
        "the program that uses a type, line by line, synchronised; each has a digest",
        "again",
        "told",
        "a type with a `name=` of its own is not found without its line, until its program is started again",
    ),
    DirectoryFile(
        "code/roots.txt",
        "from where modules were imported",
        "the program that imports them, line by line, synchronised",
        "again",
        "again",
    ),
    DirectoryFile(
        "hosts/*",
        "what a host says when its process ends by `os._exit` or a crash, until the supervisor has read it",
        "that process; not synchronised",
        "nothing",
        "nothing",
    ),
    DirectoryFile(
        "logs/*.jsonl",
        "what agents print and log, by process",
        "that process; not synchronised",
        "nothing",
        "nothing",
        "what is no record is passed over",
    ),
    DirectoryFile(
        "backup.stage/*",
        "what a backup that is being made has copied for its last step",
        "the backup",
        "nothing",
        "nothing",
    ),
    DirectoryFile(
        "backup.stage.lock", "which process makes a backup", "the backup; not synchronised", "nothing", "nothing"
    ),
    DirectoryFile(
        "cluster.json",
        "where the Ray of this directory is",
        f"a start; {_WHOLE}",
        "again",
        "told",
        "the next start writes it anew",
    ),
    DirectoryFile("cluster.lock", "which process starts a Ray here", "a start; not synchronised", "again", "nothing"),
    DirectoryFile(
        "replica/settings",
        "to which bucket the directory is followed, and how closely",
        f"a start that is told so; {_WHOLE}",
        "nothing",
        "refused",
        "without it the directory is not followed any more",
    ),
    DirectoryFile(
        "replica/ledger/*",
        "what the bucket has of the ledger",
        _SUPERVISOR,
        "nothing",
        "nothing",
        "fetched from the bucket",
    ),
    DirectoryFile("replica/copy.db*", "a storage that is being read", _SUPERVISOR, "nothing", "nothing"),
    DirectoryFile(
        "scenario.json",
        "how far `perdure run` came",
        f"`perdure run`; {_WHOLE}",
        "nothing",
        "refused",
        "only `perdure run` needs it",
    ),
    DirectoryFile(
        "scenario.lock", "which process plays a scenario", "`perdure run`; not synchronised", "again", "nothing"
    ),
    DirectoryFile("*.[0-9]*-[0-9]*", _LEFT, "whoever writes a small file", "nothing", "nothing"),
)


def findings_in(data: Path) -> list[Finding]:
    """What is to be said of the small files of a directory, and which agent types may be one that was moved."""
    return [
        *_of_words(data),
        *_of_code(data / CODE),
        *_of_lines(data / CODE),
        *_of_json(data),
        *(Finding("warning", words, "") for words in mistakable(data / CODE)),
    ]


def _of_words(data: Path) -> Iterator[Finding]:
    for name, check in ((FORMAT_FILE, check_format), (IDENTITY, identity_of), (REPLICA, replica_of)):
        try:
            check(data)
        except LedgerError as problem:
            yield Finding("damage", problem.problem, problem.advice)
            continue
        if (data / LEDGER / name).exists() and not (data / name).exists():
            what = f"{data / name} is missing"
            yield Finding("warning", what, "the next start makes it again from the ledger's copy")


def _of_code(code_dir: Path) -> Iterator[Finding]:
    again = "start the program that has this code again, which writes it anew"
    for file in sorted(code_dir.glob("*.py")):
        if not is_cell_whole(file):
            yield Finding("damage", f"{file} is not the text that was typed, so its agents cannot come up", again)
    for file in sorted(code_dir.glob("*.zip")):
        if digest_of(packed_in(file)) != file.stem:
            yield Finding("damage", f"{file} is not the code that was packed, so its agents cannot come up", again)
    for name in sorted({each.place for each in known_types(code_dir) if each.place.startswith("cell:")}):
        if not (file := cell_file(name.split(":")[1], code_dir)).exists():
            yield Finding("damage", f"{file} is missing: the text of {name}, whose agents cannot come up", again)
    for file in sorted(code_dir.glob("*.json")):
        if not file.with_suffix(".zip").exists():
            yield Finding("damage", f"{file.with_suffix('.zip')} is missing, so its agents cannot come up", again)
        if noted_places(file) is None:
            yield Finding("warning", f"{file} cannot be read: where that code was written is not known", again)


def _of_lines(code_dir: Path) -> Iterator[Finding]:
    again = "a program that uses what they told writes them again"
    roots = [number for number, line in numbered_lines(code_dir / ROOTS).items() if line is None]
    for name, numbers in ((TYPES, damaged_lines(code_dir)), (ROOTS, roots)):
        if numbers:
            yield Finding("warning", f"lines of {code_dir / name} are damaged: {', '.join(map(str, numbers))}", again)


def _of_json(data: Path) -> Iterator[Finding]:
    readers: dict[str, tuple[Callable[[bytes], object], str]] = {
        RECORD: (record_in, "the next start writes it anew"),
        SCENARIO: (json.loads, "delete it, and `perdure run` begins anew; the ledger is not touched"),
    }
    for name, (read, advice) in readers.items():
        try:
            read((data / name).read_bytes())
        except FileNotFoundError:
            continue
        except (OSError, ValueError, TypeError) as problem:
            yield Finding("warning", f"{data / name} cannot be read: {problem}", advice)


# ---------------------------------------------------------------- a directory that is served


# The supervisor of a directory keeps its ledger as a backup needs it.
class ServedSteward:
    def __init__(self, ask: Asking) -> None:
        self._ask = ask

    def hold(self) -> object:
        return self._ask("keep", "hold", [])

    def cut(self) -> object:
        return self._ask("keep", "cut", [])


def served_findings(ask: Asking, data: Path, *, deep: bool = False) -> list[Finding]:
    """What is to be said of a directory that is served: all but the ledger's files, which its supervisor has verified at its start."""
    told = ask("ps", 0)
    served = told["supervisor"]
    who = f"process {served['pid']} on {served['node']}"
    what = f"{given_as(data)} is served by {who}, which has verified the ledger when it started"
    findings = [Finding("ok", what, "stop it to look again")]
    advice = "mend the cause; hosts are tried again by themselves, and what waits for one goes on then"
    findings += [Finding("damage", each["told"], advice) for each in told["unstartable"]]
    findings += [Finding("warning", each["told"], ADVICE) for each in told["elsewhere"]]
    if url := bucket_of(data):  # what is here is a cache
        advice = f"`perdure doctor --deep --data {url}` does"
        return [*findings, Finding("ok", "what is in the bucket was not verified again here", advice)]
    if not lock_of(data / LEDGER).exists():
        what = f"the lock of the ledger was deleted while {who} serves it, so another process could begin to write beside it"
        findings.append(Finding("damage", what, "stop what serves it with `perdure stop`, and start it again"))
    found = examine_storages(data / AGENTS, KnownAgents(standing_by(ask)), deep=deep)
    if any(each.severity == "damage" for each in found):  # an agent may have been deleted since
        found = examine_storages(data / AGENTS, KnownAgents(standing_by(ask)), deep=deep)
    return findings + found + findings_in(data)


def standing_by(ask: Asking) -> dict[str, KnownAgent]:
    known: dict[str, KnownAgent] = {}
    after: str | None = ""
    while after is not None:
        told = ask("keep", "storages", [after, PAGE])
        known |= {agent: KnownAgent(*standing) for agent, *standing in told["agents"]}
        after = told["next"]
    return known
