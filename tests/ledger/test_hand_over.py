"""A storage changes hands: the next owner sees everything that the former one had acknowledged, whatever the moment."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.ledger.storage.cabinet import Cabinet, FileDisk
from tests.ledger.test_storage_death import ended, said, started
from tests.tidy import IMPORT_PATH, sources

AGENT = "a@m:T"
ATTACH = re.compile(r'f"ATTACH[^"]*"')

OWNER = """
import sys
from pathlib import Path
from perdure.ledger.storage.cabinet import Cabinet, FileDisk
cabinet = Cabinet(FileDisk(Path(sys.argv[1])))
storage = cabinet.open("a@m:T", 1)
storage.state["n"] = 0
storage.checkpoint()
for n in range(1, 6):
    storage.state["n"] = n
print("ready", flush=True)
sys.stdin.readline()
cabinet.close()
"""

HEIR = """
import sys
from pathlib import Path
from perdure.ledger.storage.cabinet import Cabinet, FileDisk
storage = Cabinet(FileDisk(Path(sys.argv[1]))).open("a@m:T", 2)
print(storage.state["n"])
storage.state["heir"] = True
storage.close()
"""


def test_every_file_is_attached_by_its_type_so_that_its_headers_are_read_under_the_lock() -> None:
    statements = [found for file in sources("ledger") for found in ATTACH.findall(file.text)]
    assert len(statements) == 3
    assert all("TYPE" in each for each in statements), statements


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace, to hold up the heir's lock")
def test_an_heir_whose_lock_is_held_up_while_the_owner_closes_sees_all_that_was_acknowledged(tmp_path: Path) -> None:
    owner = started(OWNER, str(tmp_path))
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
    assert dict(Cabinet(FileDisk(tmp_path)).open(AGENT, 3).state) == {"n": 5, "heir": True}
