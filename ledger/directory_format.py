"""The format of a directory: one number for everything that lies in it, and what is done with another number.

Compatibility begins with the first published version. A directory of any other format is refused in words when it is opened. A change of
what is written raises `FORMAT`; after the first published version it also registers in `MIGRATIONS` how a directory gets there.

The number is a word that the directory keeps twice, as its identity is: in a file of its own, and in the ledger's folder. So one of the two
that was deleted or torn is made again from the other, and one that was changed is found out.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from string import whitespace
from typing import Final

from perdure.ledger.errors import LedgerDamaged, LedgerTooNew, LedgerTooOld, LedgerUnwritable
from perdure.ledger.store.lock import Lock
from perdure.ledger.whole_files import keep_whole, synchronise

FORMAT: Final = 8
FORMAT_FILE: Final = "format"
LEDGER: Final = "ledger"
AGENTS: Final = "agents"
_SAID_MAX: Final = 40  # bytes of a word that are looked at

MIGRATIONS: Final[dict[int, Callable[[Path], None]]] = {}
"""By a format, what brings a directory of it to the next one. A death may cut it off anywhere: then it is called again."""


def bring_up_to_date(data: Path) -> None:
    """Migrate a directory of an older format, one format after the other. Raises `LedgerLocked` while a process uses it."""
    if format_of(data) not in MIGRATIONS:
        return
    try:
        lock = Lock(data / LEDGER)
        try:
            while (found := format_of(data)) in MIGRATIONS:  # read again: another process may have had the lock before
                MIGRATIONS[found](data)
                (data / LEDGER / FORMAT_FILE).unlink(missing_ok=True)  # or it would contradict the next number
                synchronise(data / LEDGER)
                keep_whole(data / FORMAT_FILE, f"{found + 1}\n".encode())
        finally:
            lock.release()
    except OSError as problem:
        words = f"it cannot be brought from one format to the next: {problem}"
        raise LedgerUnwritable(
            str(data), words, "check its owner, its permissions, and the room on its disk"
        ) from problem


def check_format(data: Path) -> None:
    """Raise `LedgerTooOld` or `LedgerTooNew` if a directory is of another format than this Perdure reads, and what `format_of` raises."""
    found = format_of(data)
    if found is None or found == FORMAT:
        return
    kind, which = (LedgerTooOld, "an older") if found < FORMAT else (LedgerTooNew, "a newer")
    problem = f"{which} Perdure wrote it: its format is {found}, and this Perdure reads format {FORMAT}"
    advice = "keep it with the Perdure that wrote it, or begin a new directory with this one"
    if found in MIGRATIONS:
        advice = "open it once with a `Runtime` or `perdure serve` of this Perdure, which brings it up to date"
    raise kind(str(data), problem, advice)


def format_of(data: Path) -> int | None:
    """The format of a directory; None if no ledger has begun there. Raises `LedgerDamaged` if it says none, and what `word_of` raises."""
    word = word_of(data, FORMAT_FILE)
    if word.isdecimal():
        return int(word)
    if not word and not any((data / LEDGER).glob("ledger.*")):
        return None
    problem = f"{data / FORMAT_FILE} and its copy in {LEDGER} should say the number of its format, and say {word or 'nothing'}"
    advice = f"bring {FORMAT_FILE} back from a backup of it; if an older Perdure wrote it, keep it with that one"
    raise LedgerDamaged(str(data), problem, advice)


def word_of(data: Path, name: str) -> str:
    """A word that a directory keeps twice; empty if it has none. Raises `LedgerUnwritable` if it cannot be read, and `LedgerDamaged` if the
    two contradict each other."""
    file, copy = data / name, data / LEDGER / name
    own, kept = _said_in(file), _said_in(copy)
    if own and kept and own != kept:
        problem = f"{file} says {own}, and its copy {copy} says {kept}: one of them is damaged, or these are files of two directories"
        advice = "bring the files of one directory back; or delete the wrong one of the two, and it is made again from the other"
        raise LedgerDamaged(str(data), problem, advice)
    return own or kept


def keep_word(data: Path, name: str, word: str) -> None:
    """Keep a word in both places; durable on return. Raises `OSError`."""
    for file in (data / LEDGER / name, data / name):
        keep_whole(file, f"{word}\n".encode())


def _said_in(file: Path) -> str:
    try:
        return file.read_bytes()[:_SAID_MAX].decode(errors="backslashreplace").strip("\0" + whitespace)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return ""
    except OSError as problem:
        raise unreadable(file, problem) from problem


def unreadable(path: Path, problem: OSError) -> LedgerUnwritable:
    words = f"{path} cannot be read: {problem.strerror}"
    return LedgerUnwritable(str(path.parent), words, "check its path, owner and permissions")
