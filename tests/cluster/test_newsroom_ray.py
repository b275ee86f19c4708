"""`perdure run newsroom` as a visitor runs it: real kills over a weekend of some seconds, and again on the same directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.test_fan_out_ray import perdure


@pytest.mark.long
def test_editions_wait_over_a_weekend_and_nothing_happens_twice_although_processes_are_killed(tmp_path: Path) -> None:
    words = ("run", "newsroom", "--editions", "3", "--seed", "1", "--data", tmp_path)
    told = perdure(*words, "--kills", "2")
    assert told["verified"]
    assert sum(told["kills"].values()) == 2
    assert told["editions"] == {"requested": 3, "ended": 3, "seen_without_host": 3}
    assert told["printers"] == {"booked": 3, "cancelled": 3}
    assert told["researchers"] == {"used": 6, "cancelled": 9}
    again = perdure(*words, "--kills", "0")
    assert again["verified"]
    assert again["printers"] == told["printers"]
    assert perdure("audit", "--data", tmp_path)["balanced"]
