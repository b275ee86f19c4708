"""Two sessions of Ray on one bucket: the second one is refused while the first lives, takes over if it is asked to, and nobody fights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure import OutcomeUnknown, Runtime, ServedElsewhere, SupervisorUnreachable
from perdure.policies import Limits
from tests.cluster.machine_programs import Note
from tests.s3_server import in_process
from tests.tidy import ROOT

RIVAL = Path(__file__).with_name("rival.py")
FIGHT_S = 10.0
"""In the prototype there were eight epochs in so many seconds."""


def until_served_elsewhere(ask: Callable[[], object], within_s: float) -> ServedElsewhere:
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        try:
            ask()
        except ServedElsewhere as problem:
            return problem
        except (SupervisorUnreachable, OutcomeUnknown):
            time.sleep(0.1)
    raise AssertionError("it goes on")


@pytest.mark.long
def test_two_sessions_on_one_bucket_do_not_fight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_CACHE", str(tmp_path / "first"))
    with in_process() as s3:
        for name, value in s3.environment.items():
            monkeypatch.setenv(name, value)
        url, limits = s3.url("prefix"), Limits(hosts_max=2)
        runtime = Runtime(url, limits=limits)
        runtime.open()
        assert runtime.agent(Note, "n").add(5) == 5
        environment = {**os.environ, "PERDURE_CACHE": str(tmp_path / "second"), "PYTHONPATH": f"{ROOT / '.src'}:{ROOT}"}
        with subprocess.Popen(
            [sys.executable, str(RIVAL), url], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as rival:

            def told(go_on: str = "\n") -> Any:
                assert rival.stdin is not None
                assert rival.stdout is not None
                rival.stdin.write(go_on)
                rival.stdin.flush()
                return json.loads(rival.stdout.readline() or '"it has ended"')

            session = runtime._session.cluster.session  # type: ignore[union-attr] # noqa: SLF001
            refusal = told("")
            assert "it is served by" in refusal, refusal
            assert session in refusal
            assert runtime.agent(Note, "n").add(1) == 6
            assert runtime.ps()["epoch"] == 1, "nobody has disturbed it"

            assert told() == 7
            problem = until_served_elsewhere(runtime.ps, 30)
            assert "it was taken over" in problem.problem
            assert "take_over=True" in problem.advice
            until_s = time.monotonic() + FIGHT_S
            while time.monotonic() < until_s:
                until_served_elsewhere(lambda: runtime.agent(Note, "n").show(), 5)
            assert told() == [8, 2]
            assert told() == "closed"

        runtime.close()
        with Runtime(url, limits=limits) as again:
            assert again.agent(Note, "n").show()[0] == 8  # type: ignore[index]
            assert again.ps()["epoch"] == 3
            assert again.audit()["balanced"]
