"""Ledgers as dead processes leave them, for the tests of what a start makes of them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import duckdb

from perdure.ledger.store.duckdb_file import DATABASE, WAL, connect
from perdure.ledger.store.journal import SEGMENT
from perdure.ledger.store.journal_scan import scan
from perdure.ledger.store.store import Boot, FactRow, Payload, Record

ROOT = Path(__file__).resolve().parents[2]

PRELUDE = """
import os, sys
from pathlib import Path
from perdure.ledger.store.duckdb_store import DuckDBStore
from tests.ledger.wrecks import commit, fact, run

directory = Path(sys.argv[1])
store = DuckDBStore(directory)
store.boot()
"""

# Commits of one to four facts, a checkpoint after the first two, a payload in the middle, and a death without goodbye.
SMALL_LIFE = """
store.append(*commit(1, 3))
store.append(*commit(4, 4))
store.checkpoint(b"meta", 3, [run("r0", 3, 3), run("r1", 1, 4), run("r2", 2, 2)], [])
for first, last in ((5, 5), (6, 7), (8, 10), (11, 14)):
    store.append(*commit(first, last))
store.append(*commit(15, 16, payload=b"P" * 50))
store.append(*commit(17, 17))
os._exit(9)
"""
LAST = 17


def fact(seq: int) -> FactRow:
    """The one fact that has this number: three runs in turn, each fact an event."""
    return FactRow(seq, 1_000 + seq, f"r{seq % 3}", (seq - 1) // 3, "Happened", b"fact %d" % seq)


def commit(first: int, last: int, payload: bytes | None = None) -> tuple[list[FactRow], list[Payload]]:
    """What to append: the facts from `first` to `last`, and a payload for the run of the last one."""
    rows = [fact(seq) for seq in range(first, last + 1)]
    return rows, [] if payload is None else [Payload(rows[-1].subject, "input", payload)]


def run(key: str, first_seq: int, last_seq: int, *, live: bool = True, status: str = "running") -> Record:
    """A run's record."""
    return Record("runs", key, live, (status, "m:T", "", first_seq, None, first_seq, last_seq), b"run")


def live(directory: Path, script: str) -> subprocess.Popen[str]:
    """A process that lives by this script on a booted `store`."""
    command = [sys.executable, "-c", PRELUDE + script, str(directory)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def small_life(directory: Path) -> Path:
    """The directory after `SMALL_LIFE`."""
    process = live(directory, SMALL_LIFE)
    _, complaints = process.communicate()
    assert process.returncode == 9, complaints
    return directory


def copy(directory: Path, to: Path, **changed: bytes) -> Path:
    """The same directory elsewhere, with these files (`ledger_db_wal` for `ledger.db.wal`) holding something else."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(directory, to)
    for name, content in changed.items():
        (to / name.replace("_", ".")).write_bytes(content)
    return to


def flipped(content: bytes, place: int) -> bytes:
    """The content with all bits of one byte turned over."""
    return content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :]


def numbers(boot: Boot) -> list[int]:
    """The numbers of the facts that a start reads."""
    return [row.seq for row in boot.rows]


def tamper(directory: Path, *statements: str) -> None:
    """Change a cold ledger behind its back."""
    (directory / WAL).unlink(missing_ok=True)
    con: duckdb.DuckDBPyConnection = connect(directory)
    for statement in statements:
        con.execute(statement)
    con.execute("CHECKPOINT")
    con.close()
    (directory / WAL).unlink(missing_ok=True)


def contents(directory: Path) -> dict[str, bytes]:
    """Every file but the lock, to see that nothing changed."""
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.name != "ledger.lock"}


def segment(directory: Path) -> Path:
    """The last segment of the journal."""
    return directory / f"{SEGMENT}{max(scan(directory).segments)}"


def in_frames(directory: Path) -> range:
    """The bytes of the last segment that its head and its frames fill."""
    entry = scan(directory).entries[-1]
    return range(entry.offset + entry.length)


__all__ = [
    "DATABASE",
    "LAST",
    "commit",
    "contents",
    "copy",
    "fact",
    "flipped",
    "in_frames",
    "live",
    "numbers",
    "run",
    "segment",
    "small_life",
    "tamper",
]
