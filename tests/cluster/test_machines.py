"""A cluster whose machines share nothing but a bucket: the one that has the supervisor dies with its disk, or is cut off."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.machines import Machines, are_possible, machines
from tests.s3_server import S3, in_process
from tests.tidy import ROOT

PROGRAMS = Path(__file__).with_name("machine_programs.py")
CODE = {"PYTHONPATH": f"{ROOT / '.src'}:{ROOT}"}
SAID_S = 240.0


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[Machines, S3]]:
    """Two machines, and a bucket that both reach."""
    with machines(folder, 2, CODE) as made, in_process(host=made.here) as s3:
        made.add(s3.environment)
        for number in (1, 2):
            made.start(number)
        yield made, s3


def until(condition: Callable[[], bool], folder: Path) -> None:
    until_s = time.monotonic() + SAID_S
    while not condition():
        logs = "\n".join(each.read_text("utf-8", "replace")[-3000:] for each in folder.glob("*.log"))
        assert time.monotonic() < until_s, logs
        time.sleep(0.1)


def said(folder: Path, name: str) -> Any:
    """What a program has said by now."""
    until((folder / f"{name}.json").exists, folder)
    return json.loads((folder / f"{name}.json").read_text("utf-8"))


def begin(made: Machines, number: int, program: str, url: str, folder: Path) -> None:
    command = [sys.executable, str(PROGRAMS), program, url, made.ray, str(folder)]
    made.popen(number, *command, log=folder / f"{program}.log")


def balances_elsewhere(url: str, s3: S3, folder: Path) -> bool:
    """Whether it does for a third machine, whose cache is empty."""
    elsewhere = {**os.environ, **CODE, **s3.environment, "PERDURE_CACHE": str(folder / "elsewhere")}
    command = [shutil.which("perdure") or "perdure", "audit", "--json", "--data", url]
    told = subprocess.run(command, env=elsewhere, capture_output=True, text=True, check=True, timeout=60)
    return bool(json.loads(told.stdout)["balanced"])


@pytest.mark.long
@pytest.mark.skipif(not are_possible(), reason="machines of their own need root, `ip netns` and `unshare`")
def test_the_supervisors_machine_dies_with_its_disk_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    with cluster(tmp_path) as (made, s3):
        begin(made, 2, "first", s3.url("prefix"), tmp_path)
        before = said(tmp_path, "first")
        url = before["url"]
        begin(made, 1, "second", url, tmp_path)
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
        assert balances_elsewhere(url, s3, tmp_path)


# ---------------------------------------------------------------- cut off


CUT_S = 12.0
CUTS: dict[str, Callable[[Machines, bool], None]] = {
    "from Ray, and not from the bucket": lambda made, off: made.part(2, made.address(1), off=off),
    "from the bucket, and not from Ray": lambda made, off: made.part(2, made.here, off=off),
    "from both": lambda made, off: made.cut(2, off=off),
}


class Calls:
    """What a program has noted of its calls: by agent how many were asked, were refused for sure, and what the last answer was."""

    def __init__(self, folder: Path, name: str) -> None:
        path = folder / f"{name}.calls"
        self.asked, self.refused, self.told = Counter[str](), Counter[str](), Counter[str]()
        for line in path.read_text("utf-8").splitlines() if path.exists() else ():
            verb, agent, *rest = line.split(" ", 2)
            match verb:
                case "asked":
                    self.asked[agent] += 1
                case "told":
                    assert int(rest[0]) > self.told[agent], f"{agent} went back, or an addition was taken twice"
                    self.told[agent] = int(rest[0])
                case "failed" if rest[0].startswith("BucketUnreachable"):
                    self.refused[agent] += 1


@pytest.mark.long
@pytest.mark.skipif(not are_possible(), reason="machines of their own need root, `ip netns` and `unshare`")
@pytest.mark.parametrize("cut", CUTS)
def test_the_supervisors_machine_is_cut_off_and_comes_back(tmp_path: Path, cut: str) -> None:
    def answered(name: str) -> int:
        return Calls(tmp_path, name).told.total()

    with cluster(tmp_path) as (made, s3):
        begin(made, 2, "old", s3.url("prefix"), tmp_path)
        url = said(tmp_path, "old")["url"]
        begin(made, 1, "new", url, tmp_path)
        for name in ("old", "new"):
            until(lambda name=name: answered(name) > 20, tmp_path)
        CUTS[cut](made, True)
        time.sleep(CUT_S)
        CUTS[cut](made, False)
        for name, before in {name: answered(name) for name in ("old", "new")}.items():
            until(lambda name=name, before=before: answered(name) > before + 20, tmp_path)  # type: ignore[misc]
        (tmp_path / "stop").touch()
        end, later = said(tmp_path, "end"), said(tmp_path, "later")
        for name in ("old", "new"):
            calls = Calls(tmp_path, name)
            for agent, asked in calls.asked.items():
                n, _ = end["found"][agent]
                assert calls.told[agent] <= n <= asked - calls.refused[agent], agent
        assert len(end["steps"]) == 12
        assert end["audit"]["balanced"]
        assert not end["audit"]["findings"]
        assert end["ps"]["epoch"] == later["ps"]["epoch"] == (1 if "not from Ray" in cut else 2), "nobody fights"
        assert later["ps"]["supervisor"]["node"] == ("node2" if "not from Ray" in cut else "node1")
        for number in (1, 2):
            made.kill(number)
        assert balances_elsewhere(url, s3, tmp_path)
