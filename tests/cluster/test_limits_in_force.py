"""The limits of a cluster are those of the one who started its supervisor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from actors import Runtime
from ledger import BadRequest
from policies import Limits

ROOT = Path(__file__).resolve().parents[2]
JOIN = """
import sys
from actors import Runtime
from ledger import BadRequest
from policies import Limits
for limits in (None, Limits(hosts_max=3), Limits(hosts_max=2, idle_ms=9_000)):
    try:
        with Runtime(sys.argv[1], limits=limits) as runtime:
            print("joined", runtime.limits.hosts_max)
    except BadRequest as refused:
        print(refused.field)
"""


def test_who_joins_has_the_limits_in_force_and_is_refused_with_others(tmp_path: Path) -> None:
    with Runtime(tmp_path, limits=Limits(hosts_max=3, hosts_warm=1)) as runtime:
        assert runtime.limits == Limits(hosts_max=3, hosts_warm=1)
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", JOIN, str(tmp_path)], env=environment, capture_output=True, text=True, check=True
        )
    assert done.stdout.splitlines() == ["joined 3", "limits.hosts_warm", "limits.hosts_max"]


def test_a_runtime_that_was_refused_can_be_opened_with_the_limits_in_force(tmp_path: Path) -> None:
    with Runtime(tmp_path, limits=Limits(hosts_max=3, hosts_warm=1)):
        pass
    with Runtime(tmp_path) as again:
        assert again.limits == Limits(), "a new supervisor has what it is given"
        with pytest.raises(BadRequest, match=r"limits\.idle_ms"), Runtime(tmp_path, limits=Limits(idle_ms=1)):
            pass
        with Runtime(tmp_path) as beside:
            assert beside.limits == Limits()
