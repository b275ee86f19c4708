"""What `perdure doctor` says of the agents' storages: which are missing, damaged, older than the ledger, or of no agent.

The folder is listed once. A storage that is a log is read in its place, and of a database the headers and DuckDB's log are. To learn whose
it is and how far it has come, a copy is opened. No file is changed, and no agent is kept waiting, so agents may be at work meanwhile. What
an agent does after the ledger was asked only brings its storage further.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from perdure.ledger.block_guard import BlockGuard
from perdure.ledger.duckdb_format import HEADERS, is_whole, survey
from perdure.ledger.errors import WAY_OUT, StorageError
from perdure.ledger.known_agent import KnownAgent, KnownAgents
from perdure.ledger.maintenance.copies import Come, CopyReader, copy_storage
from perdure.ledger.maintenance.listing import Listing, list_storages, root_of
from perdure.ledger.storage.file_disk import is_log_at, log_of, place_of
from perdure.ledger.storage.log_file import CUT
from perdure.ledger.storage.log_format import read_log
from perdure.ledger.storage.shared_segment import DAMAGED, SUFFIX, read_segment
from perdure.ledger.store.integrity import Finding, Severity

OPENED_MAX: Final = 1_000
"""How many storages are opened at most without `deep`: that takes some 2 ms for each."""
NAMED_MAX: Final = 20
_NOT_ITS_OWN = "put each file back under its name; a backup has the names"
_NOBODYS = "if its agent was deleted, delete the file too; if the ledger is an older copy than the storages, restore both from one backup"


def examine_storages(directory: Path, told: KnownAgents | None, *, deep: bool = False) -> list[Finding]:
    """Examine all storages below this directory. With `deep`, each is opened; else that is left out if there are more than `OPENED_MAX`.
    `told` is what the ledger says of them, None if it cannot be read."""
    listing, known = list_storages(directory), told or KnownAgents({})
    found = [
        *_missing(directory, listing, known),
        *_told(_kept(directory, listing)),
        *_told(_segments(directory)),
        *(_strangers(directory, listing, known) if told is not None else ()),
    ]
    is_opened = deep or len(listing.storages) <= OPENED_MAX
    agents = {place_of(agent): agent for agent in (*known.standing, *(known.seen or ()))}
    files = {place: list(_examined(directory / place, _of(agents.get(place, "")))) for place in listing.storages}
    whole = [place for place, seen in files.items() if not any(each.severity == "damage" for each in seen)]
    found += _told(each for seen in files.values() for each in seen)
    if whole and len(whole) == len(files):
        found.append(Finding("ok", f"the logs of {len(files)} agents are whole to their last commit"))
    if is_opened:
        words = "have come as far as the ledger says" if told is not None else "can be read"
        found += _opened(directory, whole, agents, known) or [Finding("ok", f"{len(whole)} storages {words}")] * bool(
            whole
        )
    elif listing.storages:
        what = f"how far {len(listing.storages)} storages have come was not looked at"
        found.append(Finding("ok", what, "`perdure doctor --deep` opens each of them, at some 2 ms"))
    return found


def _missing(directory: Path, listing: Listing, known: KnownAgents) -> list[Finding]:
    due = ((agent, each) for agent, each in known.standing.items() if each.reported)
    return _told(
        Finding(
            "damage",
            f"the storage of {agent} is missing: it had come to {each.reported} ({directory / place})",
            WAY_OUT,
        )
        for agent, each in due
        if (place := place_of(agent)) not in listing.storages and not (directory / place).exists()
    )


def _strangers(directory: Path, listing: Listing, known: KnownAgents) -> list[Finding]:
    families = {root_of(place_of(agent)) for agent in (*known.standing, *(known.seen or ()))}
    strange = [place for place in listing.storages if root_of(place) not in families]
    if known.seen is not None:
        words = "belongs to no agent that the ledger knows of"
        return _told(Finding("warning", f"{directory / place} {words}", _NOBODYS) for place in strange)
    if not strange:
        return []
    what = f"{len(strange)} storages belong to agents that have reported nothing, or to none; which was not looked at"
    return [Finding("ok", what, "stop what serves the directory, and ask again")]


def _kept(directory: Path, listing: Listing) -> Iterator[Finding]:
    for place in sorted(listing.kept):
        cut = "a log from which an agent's life has cut what was no whole commit"
        what = cut if CUT in place else "a log without its file"
        yield Finding("warning", f"{directory / place} is {what}", "delete it when nobody needs it any more")


def _segments(directory: Path) -> Iterator[Finding]:
    for kept in sorted((directory / "shared").glob(f"*{SUFFIX}{DAMAGED}*")):
        what = f"{kept} was not whole when it was put back after a power cut: {read_segment(kept.read_bytes()).problem}"
        advice = "agents that have lost a commit by it are refused; delete it when nobody needs it any more"
        yield Finding("warning", what, advice)


def _examined(file: Path, whose: str) -> Iterator[Finding]:
    try:
        yield from _read(file, whose)
    except FileNotFoundError:
        return  # deleted meanwhile
    except OSError as problem:
        yield Finding(
            "damage", f"{file}{whose} cannot be read: {problem}", "repair the disk or its permissions, and ask again"
        )


def _read(file: Path, whose: str) -> Iterator[Finding]:
    if is_log_at(file):
        content = file.read_bytes()
        reading = read_log(content)
        yield from _end_of(f"{file}{whose}", reading.end, len(content), is_damaged=reading.is_damaged)
        return
    is_guarded = BlockGuard(file).saved.exists()
    if is_guarded:
        yield Finding(
            "warning", f"a checkpoint of {file}{whose} did not end", "the agent's next life puts back what it has torn"
        )
    with file.open("rb") as database:
        headers = database.read(sum(HEADERS[-1]))
    if not is_guarded and not all(is_whole(headers[at : at + size]) for at, size in HEADERS):
        yield Finding("damage", f"{file}{whose} has no whole header", WAY_OUT)
    log = log_of(file)
    try:
        content = log.read_bytes()
    except FileNotFoundError:
        return
    end, is_damaged = survey(content)
    yield from _end_of(f"{log}{whose}", end, len(content), is_damaged=is_damaged)


def _end_of(log: str, end: int, size: int, *, is_damaged: bool) -> Iterator[Finding]:
    if is_damaged:
        yield Finding("damage", f"{log} is damaged at byte {end}, and later commits follow", WAY_OUT)
    elif end < size:
        what = f"the last {size - end} bytes of {log} are no whole commit"
        yield Finding("warning", what, "the agent's next life cuts them off, and keeps a copy")


def _opened(directory: Path, places: list[str], agents: dict[str, str], known: KnownAgents) -> list[Finding]:
    with TemporaryDirectory(prefix="perdure-doctor-") as folder, CopyReader() as reader:
        return _told(
            finding
            for place in places
            for finding in _compared(directory / place, Path(folder) / "copy.db", reader, place, agents, known)
        )


def _compared(
    file: Path, copy: Path, reader: CopyReader, place: str, agents: dict[str, str], known: KnownAgents
) -> Iterator[Finding]:
    try:
        if copy_storage(file, copy) is None:
            return  # deleted meanwhile
        come = reader.read(copy, through=True)
    except (StorageError, OSError) as problem:
        yield Finding("warning", f"{file} could not be copied to be read: {problem}", "ask again")
        return
    agent = agents.get(place) or come.agent_id
    if come.problem:
        yield Finding("damage", f"{file}{_of(agent)} cannot be read: {come.problem}", WAY_OUT)
    elif come.agent_id and place_of(come.agent_id) != place:
        yield Finding("damage", f"{file}{_of(agents.get(place, ''))} is the storage of {come.agent_id}", _NOT_ITS_OWN)
    else:
        yield from _behind(file, agent, come, known)


def _behind(file: Path, agent: str, come: Come, known: KnownAgents) -> Iterator[Finding]:
    standing = known.standing.get(agent, KnownAgent(0, 0))
    if come.sequence < standing.reported:
        what = f"the storage of {agent} is older than the ledger: it has come to {come.sequence}, and the agent had reported"
        yield Finding("damage", f"{what} {standing.reported} ({file})", WAY_OUT)
    elif known.incarnation is not None and come.incarnation > known.incarnation:
        what = f"the ledger is older than the storage of {agent}, which has been taken by life {come.incarnation}"
        advice = "restore the ledger and the storages from one backup"
        yield Finding("damage", f"{what}; the ledger has begun {known.incarnation} lives ({file})", advice)


def _of(agent: str) -> str:
    return f" (of {agent})" if agent else ""


def _told(findings: Iterable[Finding]) -> list[Finding]:
    # The first of each severity, and how many more there are.
    told: list[Finding] = []
    counts: dict[Severity, int] = {}
    for each in findings:
        counts[each.severity] = counts.get(each.severity, 0) + 1
        if counts[each.severity] <= NAMED_MAX:
            told.append(each)
    more = {severity: count - NAMED_MAX for severity, count in counts.items() if count > NAMED_MAX}
    return told + [
        Finding(severity, f"there are {count} more like these", "mend these first") for severity, count in more.items()
    ]
