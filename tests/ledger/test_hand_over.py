"""A storage changes hands: the next owner sees everything that the former one had acknowledged, whatever the moment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.ledger.storage.agent_storages import AgentStorages, FileDisk, StorageLocked
from perdure.ledger.storage.file_disk import AgentLocks, holder_of
from tests.ledger.test_storage_death import ended, said, started
from tests.tidy import IMPORT_PATH, sources

AGENT = "a@m:T"
ATTACH = re.compile(r'f"ATTACH[^"]*"')

OWNER = """
import sys
from pathlib import Path
from perdure.ledger.storage.agent_storages import AgentStorages, FileDisk
agent_storages = AgentStorages(FileDisk(Path(sys.argv[1])))
storage = agent_storages.open("a@m:T", 1)
storage.state["n"] = 0
if sys.argv[2:] == ["database"]:
    storage.sql("CREATE TABLE t (i INTEGER)")
storage.checkpoint()
for n in range(1, 6):
    storage.state["n"] = n
print("ready", flush=True)
sys.stdin.readline()
agent_storages.close()
"""

HEIR = """
import sys
from pathlib import Path
from perdure.ledger.storage.file_disk import AgentLocks
from perdure.ledger.storage.agent_storages import AgentStorages, FileDisk
AgentLocks.take = lambda locks, agent_id: True  # so that DuckDB's lock alone is between the two
storage = AgentStorages(FileDisk(Path(sys.argv[1]))).open("a@m:T", 2)
print(storage.state["n"])
storage.state["heir"] = True
storage.close()
"""


def test_every_file_is_attached_by_its_type_so_that_its_headers_are_read_under_the_lock() -> None:
    statements = [found for file in sources("ledger") for found in ATTACH.findall(file.text)]
    assert len(statements) == 5
    assert all("TYPE" in each for each in statements), statements


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace, to hold up the heir's lock")
def test_an_heir_whose_lock_is_held_up_while_the_owner_closes_sees_all_that_was_acknowledged(tmp_path: Path) -> None:
    owner = started(OWNER, str(tmp_path), "database")
    assert said(owner) == "ready"
    file = FileDisk(tmp_path).path_of(AGENT)
    trace = tmp_path / "trace"
    hold = ["-e", "trace=fcntl", "-e", "inject=fcntl:delay_enter=1500000:when=1", "-P", str(file), "-o", str(trace)]
    command = ["strace", "-f", *hold, sys.executable, "-c", HEIR, str(tmp_path)]
    with subprocess.Popen(command, env={"PYTHONPATH": IMPORT_PATH}, stdout=subprocess.PIPE, text=True) as heir:
        while heir.poll() is None and "fcntl" not in (trace.read_text() if trace.exists() else ""):
            pass
        assert owner.stdin is not None
        owner.stdin.write("\n")
        owner.stdin.flush()
        ended(owner)
        assert heir.stdout is not None
        assert heir.stdout.read().split() == ["5"]
    assert dict(AgentStorages(FileDisk(tmp_path)).open(AGENT, 3).state) == {"n": 5, "heir": True}


@pytest.mark.parametrize("kind", ["log", "database"])
def test_a_creator_that_comes_second_leaves_the_log_of_the_first_alone(tmp_path: Path, kind: str) -> None:
    class Late(FileDisk):
        def has(self, agent_id: str) -> bool:
            return False  # as it looked before the first one came

    owner = started(OWNER, str(tmp_path), kind)
    assert said(owner) == "ready"
    file = FileDisk(tmp_path).path_of(AGENT)
    before = sorted(path.name for path in file.parent.iterdir())
    late = Late(tmp_path)
    for take in (late.attach, late.open_log, lambda agent, holder: late.create_log(agent, holder, b"")):
        with pytest.raises(StorageLocked, match=f"PID {owner.pid} has"):
            take(AGENT, object())
    with pytest.raises(StorageLocked):
        late.stage(AGENT, object())
    with pytest.raises(StorageLocked):
        late.erase(AGENT, object())
    assert sorted(path.name for path in file.parent.iterdir()) == before
    owner.kill()
    ended(owner)
    assert dict(AgentStorages(FileDisk(tmp_path)).open(AGENT, 2).state) == {"n": 5}


def test_a_lock_is_held_by_one_and_free_again_when_it_is_released_closed_or_its_process_died(tmp_path: Path) -> None:
    one, two = AgentLocks(tmp_path), AgentLocks(tmp_path)
    assert (one.take(AGENT), two.take(AGENT), two.take("b@m:T")) == (True, False, True)
    one.release(AGENT)
    assert (two.take(AGENT), one.take(AGENT)) == (True, False)
    two.close()
    assert one.take(AGENT)
    assert len(list(tmp_path.iterdir())) <= 2


def test_a_forked_child_keeps_no_lock(tmp_path: Path) -> None:
    locks = AgentLocks(tmp_path)
    assert locks.take(AGENT)
    read, write = os.pipe()
    born, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.write(told, b"!")
        os.read(read, 1)  # until the parent has looked
        os._exit(0)
    os.read(born, 1)
    locks.close()
    free = AgentLocks(tmp_path)
    assert free.take(AGENT)
    for end in (write, read, born, told):
        os.close(end)
    os.waitpid(child, 0)


def test_a_thousand_agents_have_places_of_their_own(tmp_path: Path) -> None:
    locks, others = AgentLocks(tmp_path), AgentLocks(tmp_path)
    agents = [f"agent {number}@m:T" for number in range(1_000)]
    assert all(locks.take(each) for each in agents)
    assert not any(others.take(each) for each in agents)
    assert len(list(tmp_path.iterdir())) == 16


def test_who_holds_a_file_that_is_not_there_is_not_known(tmp_path: Path) -> None:
    assert holder_of(tmp_path / "none.db") == "another process"
