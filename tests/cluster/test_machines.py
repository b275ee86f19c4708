"""A cluster whose machines share nothing but a bucket: one of them dies with its disk, the one that has the supervisor."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.machines import Machines, are_possible, machines
from tests.s3_server import S3, in_process

PROGRAMS = Path(__file__).with_name("machine_programs.py")
SAID_S = 120.0


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[Machines, S3]]:
    """Two machines, and a bucket that both reach."""
    with machines(folder, 2, {"PYTHONPATH": str(PROGRAMS.parents[2])}) as made, in_process(host=made.here) as s3:
        made.add(s3.environment)
        for number in (1, 2):
            made.start(number)
        yield made, s3


def said(folder: Path, name: str) -> Any:
    """What a program has said by now."""
    until_s = time.monotonic() + SAID_S
    while not (folder / f"{name}.json").exists():
        logs = "\n".join(each.read_text("utf-8", "replace")[-3000:] for each in folder.glob("*.log"))
        assert time.monotonic() < until_s, logs
        time.sleep(0.1)
    return json.loads((folder / f"{name}.json").read_text("utf-8"))


@pytest.mark.thorough
@pytest.mark.skipif(not are_possible(), reason="machines of their own need root, `ip netns` and `unshare`")
def test_the_supervisors_machine_dies_with_its_disk_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    with cluster(tmp_path) as (made, s3):

        def begin(number: int, program: str, url: str) -> None:
            command = [sys.executable, str(PROGRAMS), program, url, made.ray, str(tmp_path)]
            made.popen(number, *command, log=tmp_path / f"{program}.log")

        begin(2, "first", s3.url("prefix"))
        before = said(tmp_path, "first")
        url = before["url"]
        begin(1, "second", url)
        said(tmp_path, "second")
        made.kill(2)
        (tmp_path / "dead").touch()
        after = said(tmp_path, "third")
        assert before["lines"] == [1, 2, 3]
        assert {name: n for name, (n, _) in after["found"].items()} == before["told"]
        assert {where for _, where in after["found"].values()} == {"node1"}
        assert after["line"] == 4
        assert after["whole"] == before["whole"], "a run that had ended is not run again"
        assert len(after["steps"]) == 12
        assert after["audit"]["balanced"]
        assert not after["audit"]["findings"]
        assert after["epoch"] > 1
        made.kill(1)

        elsewhere = {**os.environ, **s3.environment, "PERDURE_CACHE": str(tmp_path / "elsewhere")}
        command = [shutil.which("perdure") or "perdure", "audit", "--json", "--data", url]
        told = subprocess.run(command, env=elsewhere, capture_output=True, text=True, check=True, timeout=60)
        assert json.loads(told.stdout)["balanced"]
