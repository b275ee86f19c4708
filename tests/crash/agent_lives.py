"""What an agent's storage is put through, in one process after another and in two at once, and what must be true of it afterwards."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from perdure.actors.code.known_types import known_types, remember_type
from perdure.actors.code.naming import _digest, cell_file, is_cell_whole
from perdure.ledger import FORMAT, FORMAT_FILE, check_format, keep_whole, keep_word
from perdure.ledger.errors import PerdureError, StorageError
from perdure.ledger.storage.agent_storages import AgentStorages, FileDisk, Storage, StorageLocked
from perdure.ledger.storage.shared_log import SharedLog
from tests.crash.recording import Say, Workload, latest

AGENT = "owner@m:T"
CHILD = f"child@m:T<{AGENT}"
PART = f"{AGENT}>part@m:T"
THREE = (AGENT, "other@m:T", "third@m:T")


NEVER = 1_000


def live(directory: Path, say: Say, upto: int, *, tables_from: int = 1, secure_at: int = 0, close: bool = True) -> None:
    """Commit transactions up to this number, those from `tables_from` on with SQL, and checkpoint after one of them."""
    agent_storages = AgentStorages(FileDisk(directory))
    say("opening 0")
    storage = agent_storages.open(AGENT, 1 + upto)
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
        agent_storages.close()
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
        with closing(AgentStorages(FileDisk(directory))) as agent_storages:
            storage = agent_storages.open(agent, _later())
            n = storage.state.get("n", 0)
            wrong = _compared(storage, n, said, tables_from)
            if wrong or len(said) % 3:  # a second opening takes as long as the first
                return wrong
            _commit(storage, _nobody, n + 1, tables_from)
        with closing(AgentStorages(FileDisk(directory))) as agent_storages:
            return _compared(agent_storages.open(agent, _later()), n + 1, said, tables_from)
    except StorageError as refusal:
        return f"{'unreadable' if 'damaged' in str(refusal) else 'refused'}: {refusal}"


def _later() -> int:
    """The number of a life that comes after all others."""
    return time.monotonic_ns()


def _compared(storage: Storage, n: int, said: list[str], tables_from: int) -> str:
    known = max(latest(said, word) for word in ("committed", "opened", f"kept-{storage.agent_id}"))
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
    """Three agents commit together up to this number, now and then alone, and one of them writes its log anew. If the disk refuses one of
    them, the others go on.

    What comes after this life has another boot of the machine, so it puts back what may be missing, if anything is.
    """
    agent_storages = AgentStorages(FileDisk(directory, SharedLog(directory, boot="before", room=6000, beside=_at_once)))
    say("opening 0")
    storages = [agent_storages.open(agent, 1 + upto) for agent in THREE]
    known = [storage.state.get("n", 0) for storage in storages]
    say(f"opened {min(known)}")
    for n in range(min(known) + 1, upto + 1):
        say(f"committing {n}")
        _commit_together(agent_storages, storages, n)
        if len(storages) == len(THREE):
            say(f"committed {n}")
        for storage in storages:
            say(f"kept-{storage.agent_id} {n}")
        if n % 9 == 0 and not storages[0].file.ended:
            say(f"securing {n}")
            storages[0].checkpoint()
            say(f"secured {n}")
    if close:
        say("closing 0")
        agent_storages.close()
        agent_storages.disk.close()
        say("closed 0")


def _commit_together(agent_storages: AgentStorages, storages: list[Storage], n: int) -> None:
    """Who is refused is left out from then on."""
    behind, parts = [storage for storage in storages if storage.state.get("n", 0) < n], []
    if n % 5 == 0:
        for storage in behind:
            with _left_out_if_refused(storages, storage):
                _commit(storage, _nobody, n, NEVER)
        return
    with agent_storages.disk.group_commit() as begin:
        for storage in behind:
            parts.append(begin())
            with _left_out_if_refused(storages, storage):
                _commit(storage, _nobody, n, NEVER)
    for storage, part in zip(behind, parts, strict=True):
        with _left_out_if_refused(storages, storage):
            part.told()


@contextmanager
def _left_out_if_refused(storages: list[Storage], storage: Storage) -> Iterator[None]:
    try:
        yield
    except StorageError:
        if storage in storages:
            storages.remove(storage)
        if len(storages) < 2:
            raise


def _nobody(said: str) -> None:
    """Nobody is told."""


def _at_once(job: Callable[[], None]) -> None:
    job()


def judge_together(directory: Path, said: list[str]) -> str:
    return next(filter(None, (judge(directory, said, NEVER, agent) for agent in THREE)), "")


def live_at_the_seams(directory: Path, say: Say, upto: int) -> None:
    """One short life after the other, which end a few bytes before the end of a page, so that a rest or a claim lies across it."""
    n = life = 0
    while n < upto:
        with _life(directory) as agent_storages:
            storage = agent_storages.open(AGENT, life := life + 1)
            say(f"opened {storage.state.get('n', 0)}")
            n += 1
            _commit(storage, say, n, NEVER)
            room = 4096 - agent_storages.disk.path_of(AGENT).stat().st_size % 4096
            if room > 400:
                storage.state["pad"] = "x" * (room - 106 - 9 * (n % 12))
            if n % 4 == 0:
                agent_storages.crash()
        with _life(directory) as agent_storages:
            agent_storages.open(AGENT, life := life + 1)
            if n % 3 == 0:
                agent_storages.crash()


@contextmanager
def _life(directory: Path) -> Iterator[AgentStorages]:
    with closing(FileDisk(directory)) as disk, closing(AgentStorages(disk)) as agent_storages:
        yield agent_storages


def live_and_forget(directory: Path, say: Say) -> None:
    """Two agents, one with tables and a sub-agent, are deleted, and begin anew."""
    live(directory, say, 6)
    with _life(directory) as agent_storages:
        for n in (1, 2):
            _commit(agent_storages.open(PART, 1), _nobody, n, 1)
            _commit(agent_storages.open(THREE[1], 1), _nobody, n, NEVER)
    with _life(directory) as agent_storages:
        say("forgetting 0")
        for agent in (AGENT, THREE[1]):
            agent_storages.forget_family(agent, settle=False)
        agent_storages.disk.settle()
        say("forgotten 1")
    with _life(directory) as agent_storages:
        for agent in (AGENT, THREE[1]):
            _commit(agent_storages.open(agent, 70), _nobody, 1, NEVER)
        say("begun 1")


def judge_forgotten(directory: Path, said: list[str]) -> str:
    """An agent that was deleted is as it was, or gone: it is never an older one. When its deletion was told it is gone."""
    if "forgetting 0" not in said:
        return judge(directory, said)
    with _life(directory) as agent_storages:
        for agent, commits in ((AGENT, 6), (PART, 2), (THREE[1], 2)):
            try:
                n = agent_storages.open(agent, _later()).state.get("n", 0)
            except StorageError as refusal:
                return f"refused: {refusal}"
            if latest(said, "forgotten") and n > 1:
                return f"back: {agent} was deleted, and has {n} commits"
            if latest(said, "begun") and agent != PART and n != 1:
                return f"lost: {agent} began anew"
            if n not in {0, 1, commits}:
                return f"older: {agent} has {n} commits of {commits}"
    return ""


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
        agent_storages, storage = _opened(directory, number)
        n = storage.state.get("n", 0)
        assert n == 2 * (number - 1), f"life {number} sees {n}"
        for each in (1, 2):
            commit(storage, n=n + each)
        os.write(other, b"!")  # the other one tries from now on
        agent_storages.close()


def _opened(directory: Path, incarnation: int) -> tuple[AgentStorages, Storage]:
    while True:
        agent_storages = AgentStorages(FileDisk(directory))
        try:
            return agent_storages, agent_storages.open(AGENT, incarnation)
        except StorageLocked:
            agent_storages.close()


def create(directory: Path, say: Say) -> None:
    """A first write, and a copy of the storage for another agent."""
    live(directory / "agents", say, 2)
    with closing(AgentStorages(FileDisk(directory / "agents"))) as agent_storages:
        say("forking 0")
        agent_storages.fork(AGENT, CHILD)
        say("forked 1")


def judge_creation(directory: Path, said: list[str]) -> str:
    with closing(AgentStorages(FileDisk(directory / "agents"))) as agent_storages:
        try:
            if not agent_storages.exists(CHILD):
                if latest(said, "forked"):
                    return "lost: the copy for the other agent"
            elif agent_storages.open(CHILD, 1).sql("SELECT count(*) FROM t") != [(2,)]:
                return "wrong: the copy for the other agent is not what was copied"
            agent_storages.forget(CHILD)
        except StorageError as refusal:
            return f"refused: {refusal}"
    return judge(directory / "agents", said)


def live_by_names(directory: Path, say: Say) -> None:
    """A new directory, in which programs name classes that were typed at a prompt; each is named twice, as by two programs."""
    try:
        directory.mkdir(exist_ok=True)
        keep_word(directory, FORMAT_FILE, str(FORMAT))
        say("formatted 1")
        for n in (*range(1, 9), *range(1, 9)):
            _name(directory / "code", n)
            say(f"named {n}")
    except OSError as problem:
        raise PerdureError(str(problem)) from problem


def _name(code: Path, n: int) -> None:
    text = _text(n)
    keep_whole(cell_file(_digest(text), code), text.encode())
    remember_type(f"m:T{n}", f"cell:{_digest(text)}:T", code)


def _text(n: int) -> str:
    return f"class T:\n    words = {_words(n)!r}\n"


def judge_names(directory: Path, said: list[str]) -> str:
    """What was named is there, whole. What was being named is, too, after it was named once more."""
    code, named = (
        directory / "code",
        max((int(line.split()[1]) for line in said if line.startswith("named")), default=0),
    )
    if "formatted 1" in said and not (directory / "format").exists():
        return "lost: the format"
    try:
        check_format(directory)
    except PerdureError as refusal:
        return f"refused: {refusal}"
    for again in (False, True):
        known = {each.name for each in known_types(code)}
        for n in range(1, named + 1):
            file = cell_file(_digest(_text(n)), code)
            if f"m:T{n}" not in known or not file.exists() or not is_cell_whole(file):
                return f"lost: the text of class {n}{' when it was named again' * again}"
        _name(code, named := named + 1)
    return ""


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
        flips=True,
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
    flips=True,
)
FORGET = Workload("forget", (live_and_forget,), judge_forgotten)
REST = Workload("rest", (partial(live_at_the_seams, upto=60),), partial(judge, tables_from=NEVER), flips=True)
NAMES = Workload("names", (live_by_names,), judge_names)
CREATION = Workload("creation", (create,), judge_creation)
