"""Permanent names of Perdure's own agents and tools. Names are durable, so they must not depend on the place of a file.

An author's class is named by its module, as `research:Researcher`. A class of ours has one of the short module names below, which never
change, as `perdure.census:Reader`. If a module moves, only its place here changes.

A directory of format 1 keeps its earlier names, because its ledger and storages use them. A new directory has a file `DIR/format`.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from string import whitespace
from typing import Final, NamedTuple

from perdure.ledger import LedgerDamaged, LedgerTooNew, LedgerUnwritable, keep_whole

FORMAT_FILE: Final = "format"
FORMAT: Final = "3"  # 1 had no such file, and other names; in 2 all scripts are named by their paths
FORMAT_1: Final = "1"
FORMATS: Final = ("2", FORMAT)  # what the file may say
SAID_MAX: Final = 40  # bytes of it that are looked at
LEDGER: Final = "ledger"
AGENTS: Final = "agents"


class Place(NamedTuple):
    """The present module of a permanent name, and its name in directories of format 1 (empty: it is newer)."""

    module: str
    earlier: str = ""


PLACES: Final = {
    "perdure.tools": Place("perdure.actors.chat.tool_run", "actors.chat.tool_run"),
    "perdure.messengers": Place("perdure.actors.messenger.state", "actors.messenger.state"),
    "perdure.census": Place("perdure.scenarios.stories.fan_out_agents", "scenarios.census"),
    "perdure.job_desk": Place("perdure.scenarios.stories.jobs_agents", "scenarios.job_desk"),
    "perdure.guide": Place("perdure.scenarios.stories.chat_agents", "scenarios.chat_cast"),
    "perdure.workshop": Place("perdure.scenarios.stories.chat_workspace", "scenarios.workshop"),
    "perdure.clerk": Place("perdure.scenarios.stories.messenger_agents", "scenarios.messenger_cast"),
    "perdure.swarm": Place("perdure.scenarios.swarm.workloads", "scenarios.workloads"),
    "perdure.swarm_chats": Place("perdure.scenarios.swarm.chat_workloads", "scenarios.chat_workloads"),
    "perdure.swarm_jobs": Place("perdure.scenarios.swarm.job_workloads", "scenarios.desk_workloads"),
    "perdure.swarm_letters": Place("perdure.scenarios.swarm.messenger_workloads", "scenarios.messenger_workloads"),
    "perdure.bench": Place("perdure.scenarios.bench.agents", "scenarios.bench_agents"),
    "perdure.bench_alarms": Place("perdure.scenarios.bench.alarms", "scenarios.bench_alarms"),
    "perdure.bench_chats": Place("perdure.scenarios.bench.chat_agents", "scenarios.bench_chat_agents"),
    "perdure.bench_jobs": Place("perdure.scenarios.bench.jobs", "scenarios.bench_jobs"),
    "perdure.bench_messenger": Place("perdure.scenarios.bench.messenger", "scenarios.bench_messenger"),
    "perdure.bench_watchers": Place("perdure.scenarios.bench.watchers"),
    "perdure.demo": Place("perdure.scenarios.demo.agents"),
}
"""The modules of ours in which agents and tools stand, by their permanent names."""

_NAMES: Final = {place.module: name for name, place in PLACES.items()}
_PLACES: Final = {name: place.module for name, place in PLACES.items()} | {
    place.earlier: place.module for place in PLACES.values() if place.earlier
}


def permanent(module: str, code_dir: Path | None) -> str:
    """The durable name of a module: its own, unless it is one of ours."""
    name = _NAMES.get(module)
    if name is None:
        return module
    return PLACES[name].earlier if code_dir is not None and _is_of_format_1(code_dir) else name


def module_of(name: str) -> str:
    """The module of a durable name, also of one of format 1."""
    return _PLACES.get(name, name)


def is_ours(module: str) -> bool:
    """Whether a module stands in the table."""
    return module in _NAMES


def scripts_have_module_names(code_dir: Path | None) -> bool:
    """Whether a script that can be imported is named like a module here. A directory goes on as it began."""
    return code_dir is None or _has_module_names(code_dir)


@lru_cache(maxsize=64)
def _has_module_names(code_dir: Path) -> bool:
    return _format_of(code_dir.parent) not in (FORMAT_1, "2")


@lru_cache(maxsize=64)
def _is_of_format_1(code_dir: Path) -> bool:
    return _format_of(code_dir.parent) == FORMAT_1


def _format_of(data: Path) -> str:
    begun = FORMAT_1 if (data / LEDGER).exists() else FORMAT
    return said_in(data / FORMAT_FILE) or said_in(data / LEDGER / FORMAT_FILE) or begun


def remember_format(data: Path) -> None:
    """Write the format into a new directory. One with a ledger, or with storages, keeps its names. Raises `OSError`, and what
    `check_format` raises.

    The ledger's directory has a copy, so that a directory that has lost the file is not taken for an older one: its agents would get
    other names, and begin anew.
    """
    check_format(data)
    file, copy = data / FORMAT_FILE, data / LEDGER / FORMAT_FILE
    begun = "" if (data / LEDGER).exists() or (data / AGENTS).exists() else FORMAT
    known = said_in(file) or said_in(copy) or begun
    for each in [file, *([copy] if copy.parent.is_dir() else [])] if known else []:
        keep_whole(each, f"{known}\n".encode())


def check_format(data: Path) -> None:
    """Raise a `LedgerError` if it is not certain how agents are named in this directory. A file that is missing or empty
    is made again from the other one."""
    file, copy = data / FORMAT_FILE, data / LEDGER / FORMAT_FILE
    said = {each: said_in(each) for each in (file, copy) if each.exists()}
    told = {each: words for each, words in said.items() if words}
    if said and not told and (data / LEDGER).exists():
        problem = f"{' and '.join(map(str, said))} should say how agents are named here, and say nothing"
        raise LedgerDamaged(
            str(data), problem, f"write {FORMAT} into {file}, or what a backup of the directory has there"
        )
    if len(set(told.values())) > 1:
        problem = f"{file} says that agents are named by format {told[file]!r}, and its copy {copy} says {told[copy]!r}"
        advice = "one of them was changed or is damaged: delete that one, and it is made again from the other"
        raise LedgerDamaged(str(data), f"{problem}. By the wrong one agents would get other addresses", advice)
    for each, words in told.items():
        if words.isdecimal() and int(words) > int(FORMAT):
            problem = f"a newer Perdure wrote it ({each} says format {words}, known up to {FORMAT})"
            raise LedgerTooNew(str(data), problem, "use a newer Perdure")
        if words not in FORMATS:
            advice = "write into it what a backup of the directory has there, or delete it if it has a copy"
            raise LedgerDamaged(
                str(data), f"{each} should say by which format agents are named, and says {words!r}", advice
            )


def said_in(file: Path) -> str:
    """What a file of one word says; empty if it is not there. Raises `LedgerUnwritable` if it cannot be read."""
    try:
        return file.read_bytes()[:SAID_MAX].decode(errors="backslashreplace").strip("\0" + whitespace)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return ""
    except OSError as problem:
        words = f"{file} cannot be read: {problem.strerror}"
        raise LedgerUnwritable(str(file.parent), words, "check its owner and permissions") from problem
