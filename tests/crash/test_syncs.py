"""Which files each step synchronises before it is acknowledged, and what a power cut could take back at that moment.

A synchronisation is a promise: one that is gone, or comes after its acknowledgement, changes these tables. Each that is new does too,
because it costs each caller a wait for the disk.
"""

from __future__ import annotations

import re

import pytest

from tests.crash.test_crash_model import Explore, explore, pytestmark

__all__ = ["explore", "pytestmark"]

_NUMBERS = ((r"m-T-[0-9a-f]{32}", "agent"), (r"\d+-\d+\.shared", "segment"), (r"\.\d+", ""))
ACKNOWLEDGED = (
    "started",
    "appended",
    "checkpointed",
    "opened",
    "committed",
    "secured",
    "closed",
    "forked",
    "forgotten",
)
_LOCK = re.compile(r"ledger\.lock|[0-9a-f]")
_SEGMENT = "FSYNC ledger.journal, FSYNC directory"
_GUARDED = "FSYNC agent.db.blocks, FSYNC db, agent.db.wal, agent.db, agent.db"
_PLACED = "FSYNC agent.db.new, FSYNC db"
_BORN = f"{_PLACED}, agent.db.wal"

# What was said, what was synchronised just before it (by fdatasync, where it does not say FSYNC), and of which files a power cut could
# take back the content or the name at that moment.
LEDGER = {
    ("started", "ledger.db.unborn, ledger.db.unborn.wal, ledger.db.unborn, ledger.db.unborn, FSYNC directory", ""),
    ("started", "FSYNC ledger.journal", "ledger.mirror"),
    ("appended 1", f"{_SEGMENT}, ledger.journal", "ledger.mirror"),
    ("appended", "ledger.journal", "ledger.mirror"),
    ("appended", f"{_SEGMENT}, ledger.journal", "ledger.mirror"),
    (
        "checkpointed",
        f"{_SEGMENT}, FSYNC ledger.db.blocks, FSYNC directory, ledger.db.wal, ledger.db, ledger.db",
        "ledger.mirror",
    ),
}
STORAGE = {
    ("opened", "agent.db.wal", ""),
    ("committed 1", f"FSYNC directory, {_BORN}, {_GUARDED}", ""),
    ("committed", "agent.db.wal", ""),
    ("secured", f"agent.db.wal, {_GUARDED}", ""),
    ("closed", _GUARDED, ""),
}
LOG = {
    ("opened", "agent.db, FSYNC db", "agent.db"),  # after a death; the claim is not synchronised
    ("committed 1", f"FSYNC directory, {_PLACED}", ""),
    ("committed", "agent.db", ""),
    ("secured", _PLACED, ""),
}
MOVE = {
    ("opened", "agent.db.wal", ""),
    ("committed 1", f"FSYNC directory, {_PLACED}", ""),
    ("committed", "agent.db", ""),
    ("committed", f"{2 * 'agent.db.new.wal, '}agent.db.new, agent.db.new, FSYNC db, agent.db.wal, {_GUARDED}", ""),
    ("committed", "agent.db.wal", ""),
    ("secured", _PLACED, ""),
    ("secured", f"agent.db.wal, {_GUARDED}", ""),
    ("closed", _GUARDED, ""),
}
CREATION = {
    ("committed 1", f"FSYNC agents, {_BORN}, {_GUARDED}", ""),
    ("committed", "agent.db.wal", ""),
    ("forked 1", f"FSYNC agents, agent.db.new, {4 * 'agent.db.new.wal, '}agent.db.new, agent.db.new, FSYNC 48", ""),
}

_THREE_BORN = ", ".join(f"FSYNC directory, FSYNC agent.db.new, FSYNC {each}" for each in ("db", "a7", "ff"))
_SHARED = "FSYNC segment, FSYNC segment, FSYNC shared, FSYNC directory"
TOGETHER = {
    ("opened", "agent.db, FSYNC db, agent.db, FSYNC a7, agent.db, FSYNC ff", "agent.db"),  # after a death
    ("committed 1", _THREE_BORN, ""),
    (
        "committed",
        "agent.db, agent.db, agent.db",
        "",
    ),  # one by one, or for the first time in a life, or too long to be shared
    ("committed", f"{_SHARED}, segment", "agent.db"),
    ("committed", f"{_SHARED}, SYNCFS, segment", ""),  # a dead process has left segments
    ("committed", "segment", "agent.db"),
    (
        "committed",
        "SYNCFS, segment",
        "",
    ),  # a segment was full, so what was written until then came to the disk
    ("secured", _PLACED, ""),
    ("secured", _PLACED, "agent.db"),
    ("closed", "SYNCFS", ""),
}
FORGET = {
    ("committed 1", f"FSYNC directory, {_BORN}, {_GUARDED}", ""),
    ("committed", "agent.db.wal", ""),
    ("closed", _GUARDED, ""),
    ("forgotten 1", "SYNCFS", ""),  # however many
}


@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        ("together", TOGETHER),
        ("ledger", LEDGER),
        ("storage", STORAGE),
        ("log", LOG),
        ("move", MOVE),
        ("creation", CREATION),
        ("forget", FORGET),
    ],
)
def test_each_step_synchronises_what_it_promises_before_it_is_acknowledged(
    workload: str, expected: set[tuple[str, str, str]], explore: Explore
) -> None:
    found = set()
    for step in explore(workload, "kill:1")["steps"]:
        syncs, still_open = ", ".join(step["syncs"]), {each for each in step["open"] if not _LOCK.fullmatch(each)}
        word, which = step["said"].split()[:2]
        if word in ACKNOWLEDGED and syncs:
            word += " 1" * (which == "1")
            found.add((word, _neutral(syncs), " ".join(sorted(set(map(_neutral, still_open - {"ledger.db"}))))))
    assert found == expected


def _neutral(name: str) -> str:
    for pattern, word in _NUMBERS:
        name = re.sub(pattern, word, name)
    return name
