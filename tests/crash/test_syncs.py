"""Which files each step synchronises before it is acknowledged, and what a power cut could take back at that moment.

A synchronisation is a promise: one that is gone, or comes after its acknowledgement, changes these tables. Each that is new does too,
because it costs each caller a wait for the disk.
"""

from __future__ import annotations

import re

import pytest

from tests.crash.test_crash_model import Explore, explore, pytestmark

__all__ = ["explore", "pytestmark"]

_OF_THIS_LIFE = re.compile(r"m-T-[0-9a-f]+|\.\d+(?=\.new)")
_LOCK = re.compile(r"ledger\.lock|[0-9a-f]")
_CHECKPOINT = "FSYNC agent.db.blocks, FSYNC db, agent.db.wal, agent.db, agent.db"
_FOLDED = "ledger.db.wal, ledger.db.wal, ledger.db, ledger.db, FSYNC ledger.journal-new"
_BORN = "ledger.db, ledger.db.wal, ledger.db.wal, ledger.db, ledger.db"

# What was said, what was synchronised just before it (with fdatasync, where it does not say FSYNC), and what a power cut could still
# take back: content or a name, with a minus a name that went.
STORAGE = {
    ("opened", "agent.db.wal", "-agent.db.blocks"),
    ("committed", "agent.db.wal", "-agent.db.blocks"),
    ("secured", f"agent.db.wal, {_CHECKPOINT}", "-agent.db.blocks -agent.db.wal"),
    ("closed", _CHECKPOINT, "-agent.db.blocks -agent.db.wal"),
    (
        "committed 1",
        f"FSYNC directory, FSYNC agent.db.new, FSYNC db, FSYNC db, agent.db.wal, {_CHECKPOINT}",
        "-agent.db.blocks -agent.db.wal",
    ),
}
CREATION = {
    ("committed", "agent.db.wal", "-agent.db.blocks"),
    ("closed", _CHECKPOINT, "-agent.db.blocks -agent.db.wal"),
    (
        "committed 1",
        f"FSYNC agents, FSYNC agent.db.new, FSYNC db, FSYNC db, agent.db.wal, {_CHECKPOINT}",
        "-agent.db.blocks -agent.db.wal",
    ),
    (
        "forked 1",
        f"FSYNC agents, agent.db.new, {4 * 'agent.db.new.wal, '}agent.db.new, agent.db.new, FSYNC 48",
        "-agent.db.blocks -agent.db.wal",
    ),
}
FIRST_START = {
    ("started", f"{_BORN}, {_FOLDED}", "-ledger.db.wal -ledger.journal-new ledger.journal"),
    ("appended", "ledger.db.wal", "-ledger.journal-new ledger.journal"),
    ("appended 1", "ledger.db.wal", "-ledger.journal-new ledger.journal"),
    ("checkpointed", _FOLDED, "-ledger.db.wal -ledger.journal-new ledger.journal"),
}


def synchronised(explore: Explore, workload: str) -> set[tuple[str, str, str]]:
    found = set()
    for step in explore(workload, "kill:1")["steps"]:
        syncs, still_open = (
            ", ".join(step["syncs"]),
            " ".join(each for each in step["open"] if not _LOCK.fullmatch(each)),
        )
        if syncs:
            word = step["said"] if step["said"].endswith(" 1") else step["said"].split()[0]
            found.add((word, _OF_THIS_LIFE.sub(_neutral, syncs), _OF_THIS_LIFE.sub(_neutral, still_open)))
    return found


def _neutral(found: re.Match[str]) -> str:
    return "agent" if found[0].startswith("m") else ""


@pytest.mark.parametrize(
    ("workload", "expected"), [("first-start", FIRST_START), ("storage", STORAGE), ("creation", CREATION)]
)
def test_each_step_synchronises_what_it_promises_before_it_is_acknowledged(
    workload: str, expected: set[tuple[str, str, str]], explore: Explore
) -> None:
    assert synchronised(explore, workload) == expected
