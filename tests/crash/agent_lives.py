"""What an agent's storage is put through, in one process after another and in two at once, and what must be true of it afterwards."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from perdure.ledger.errors import StorageError
from perdure.ledger.storage.cabinet import Cabinet, FileDisk, Storage, StorageLocked
from perdure.ledger.storage.shared_log import SharedLog
from tests.crash.recording import Say, Workload, latest

AGENT = "owner@m:T"
CHILD = f"child@m:T<{AGENT}"
TWO = (AGENT, "other@m:T")


NEVER = 1_000


def live(directory: Path, say: Say, upto: int, *, tables_from: int = 1, secure_at: int = 0, close: bool = True) -> None:
    """Commit transactions up to this number, those from `tables_from` on with SQL, and checkpoint after one of them."""
    cabinet = Cabinet(FileDisk(directory))
    say("opening 0")
    storage = cabinet.open(AGENT, 1 + upto)
    known = storage.state.get("n", 0)
    say(f"opened {known}")
    for n in range(known + 1, upto + 1):
        _commit(storage, say, n, tables_from)
        if n == secure_at:
            say(f"securing {n}")
            storage.checkpoint()
            say(f"secured {n}")
    if close:
        say("closing 0")
        cabinet.close()
        say("closed 0")


def _commit(storage: Storage, say: Say, n: int, tables_from: int) -> None:
    say(f"committing {n}")
    with storage.transaction() as transaction:
        if n == tables_from:
            storage.sql("CREATE TABLE t (i INTEGER, words VARCHAR)")
        if n >= tables_from:
            storage.sql("INSERT INTO t VALUES ($1, $2)", [n, _words(n)])
        transaction.save_step("r", f"{n}", _words(n).encode())
        storage.state["n"] = n
        transaction.record_inbox([f"m{n}"])
        transaction.add_outbox(b"%d" % n)
    say(f"committed {n}")


def _words(n: int) -> str:
    return f"words of {n} " * (n % 7) ** 4


def judge(directory: Path, said: list[str], tables_from: int = 1, agent: str = AGENT) -> str:
    """What is wrong with the storage: its next life must see all that was committed, each commit whole, and must go on from there."""
    try:
        with closing(Cabinet(FileDisk(directory))) as cabinet:
            storage = cabinet.open(agent, 1_000)
            n = storage.state.get("n", 0)
            wrong = _compared(storage, n, said, tables_from)
            if wrong or len(said) % 3:  # a second opening takes as long as the first
                return wrong
            _commit(storage, _nobody, n + 1, tables_from)
        with closing(Cabinet(FileDisk(directory))) as cabinet:
            return _compared(cabinet.open(agent, 1_001), n + 1, said, tables_from)
    except StorageError as refusal:
        return f"{'unreadable' if 'damaged' in str(refusal) else 'refused'}: {refusal}"


def _compared(storage: Storage, n: int, said: list[str], tables_from: int) -> str:
    known = max(latest(said, "committed"), latest(said, "opened"))
    if n < known:
        return f"lost: {known} commits were acknowledged or shown to a life, {n} are there"
    numbers = range(1, n + 1)
    there = (
        storage.sql("SELECT i, words FROM t ORDER BY i") if n >= tables_from else [],
        storage.steps("r"),
        list(storage.inbox()),
        [body for _, body in storage.outbox()],
    )
    expected = (
        [(i, _words(i)) for i in numbers if i >= tables_from],
        {f"{i}": _words(i).encode() for i in numbers},
        [f"m{i}" for i in numbers],
        [b"%d" % i for i in numbers],
    )
    return "" if there == expected else f"wrong: of {n} commits there is {there}"[:300]


def live_together(directory: Path, say: Say, upto: int, *, close: bool = True) -> None:
    """Two agents commit together up to this number, now and then alone, and one of them writes its log anew.

    What comes after this life has another boot of the machine, so it puts back what may be missing, if anything is.
    """
    cabinet = Cabinet(FileDisk(directory, SharedLog(directory, boot="before", room=3000, beside=_at_once)))
    say("opening 0")
    storages = [cabinet.open(agent, 1 + upto) for agent in TWO]
    known = [storage.state.get("n", 0) for storage in storages]
    say(f"opened {min(known)}")
    for n in range(min(known) + 1, upto + 1):
        say(f"committing {n}")
        _commit_together(cabinet, [storage for storage in storages if storage.state.get("n", 0) < n], n)
        say(f"committed {n}")
        if n % 9 == 0:
            say(f"securing {n}")
            storages[0].checkpoint()
            say(f"secured {n}")
    if close:
        say("closing 0")
        cabinet.close()
        cabinet.disk.close()
        say("closed 0")


def _commit_together(cabinet: Cabinet, storages: list[Storage], n: int) -> None:
    parts = []
    if n % 5 == 0:
        for storage in storages:
            _commit(storage, _nobody, n, NEVER)
        return
    with cabinet.disk.together() as begin:
        for storage in storages:
            parts.append(begin())
            _commit(storage, _nobody, n, NEVER)
    for part in parts:
        part.told()


def _nobody(said: str) -> None:
    """Nobody is told."""


def _at_once(job: Callable[[], None]) -> None:
    job()


def judge_together(directory: Path, said: list[str]) -> str:
    return next(filter(None, (judge(directory, said, NEVER, agent) for agent in TWO)), "")


def hand_over(directory: Path, say: Say, tables_from: int = 1, rounds: int = 6) -> None:
    """Two processes pass a storage to and fro: one closes it while the other tries to open it."""
    turns = [os.pipe() for _ in range(2)]
    children = set()
    for mine, other in ((0, 1), (1, 0)):
        child = os.fork()
        if child == 0:
            failed = 1
            try:
                commit = partial(_commit, say=say, tables_from=tables_from)
                _take_turns(directory, commit, range(mine + 1, rounds + 1, 2), turns[mine][0], turns[other][1])
                failed = 0
            except BaseException:
                traceback.print_exc()
            os._exit(failed)
        children.add(child)
    os.write(turns[0][1], b"!")
    while children:
        child, status = os.wait()
        children.remove(child)
        if status:
            for each in children:
                os.kill(each, signal.SIGKILL)
            raise AssertionError(f"a process of the hand-over ended with {status}")


def _take_turns(directory: Path, commit: Callable[..., None], rounds: range, mine: int, other: int) -> None:
    for number in rounds:
        os.read(mine, 1)
        cabinet, storage = _opened(directory, number)
        n = storage.state.get("n", 0)
        assert n == 2 * (number - 1), f"life {number} sees {n}"
        for each in (1, 2):
            commit(storage, n=n + each)
        os.write(other, b"!")  # the other one tries from now on
        cabinet.close()


def _opened(directory: Path, incarnation: int) -> tuple[Cabinet, Storage]:
    while True:
        cabinet = Cabinet(FileDisk(directory))
        try:
            return cabinet, cabinet.open(AGENT, incarnation)
        except StorageLocked:
            cabinet.close()


def create(directory: Path, say: Say) -> None:
    """A first write, and a copy of the storage for another agent."""
    live(directory / "agents", say, 2)
    with closing(Cabinet(FileDisk(directory / "agents"))) as cabinet:
        say("forking 0")
        cabinet.fork(AGENT, CHILD)
        say("forked 1")


def judge_creation(directory: Path, said: list[str]) -> str:
    with closing(Cabinet(FileDisk(directory / "agents"))) as cabinet:
        try:
            if not cabinet.exists(CHILD):
                if latest(said, "forked"):
                    return "lost: the copy for the other agent"
            elif cabinet.open(CHILD, 1).sql("SELECT count(*) FROM t") != [(2,)]:
                return "wrong: the copy for the other agent is not what was copied"
            cabinet.forget(CHILD)
        except StorageError as refusal:
            return f"refused: {refusal}"
    return judge(directory / "agents", said)


def stored(name: str, tables_from: int) -> Workload:
    """Three lives: one that is closed, one that is killed, one that is closed again."""
    lived = partial(live, tables_from=tables_from)
    return Workload(
        name,
        (
            lambda directory, say: lived(directory, say, 12, secure_at=5),
            lambda directory, say: lived(directory, say, 20, secure_at=16, close=False),
            lambda directory, say: lived(directory, say, 26),
        ),
        partial(judge, tables_from=tables_from),
    )


STORAGE = stored("storage", 1)
LOG = stored("log", NEVER)
MOVE = stored("move", 9)
"""The ninth commit is the first one with SQL: the log becomes a database."""
LATE_MOVE = stored("late-move", 21)
"""The same in the first commit of a life that comes after a death."""
HAND_OVER = Workload("hand-over", (hand_over,), judge, faults=False)
LOG_HAND_OVER = Workload(
    "log-hand-over",
    (partial(hand_over, tables_from=NEVER),),
    partial(judge, tables_from=NEVER),
    faults=False,
)
TOGETHER = Workload(
    "together",
    (
        partial(live_together, upto=20),
        partial(live_together, upto=40, close=False),
        partial(live_together, upto=60),
    ),
    judge_together,
)
CREATION = Workload("creation", (create,), judge_creation)
