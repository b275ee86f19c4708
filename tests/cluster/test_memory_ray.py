"""Where memory is scarce Ray does not end our processes: the kernel ends who has most, when there is none left."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.actors import Runtime
from tests.cluster.test_ray_death import ONE_HOST, Napper


@pytest.mark.thorough
def test_a_ray_of_our_own_ends_nobody_for_the_memory_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_memory_usage_threshold", "0.01")  # by Ray's monitor everything would be over it
    with Runtime(tmp_path, limits=ONE_HOST) as runtime:
        before = runtime.cluster.processes()["supervisor"].process
        assert runtime.run(Napper, 4.0, run_id="nap").output == 1, "in its first attempt"
        assert runtime.cluster.processes()["supervisor"].process == before
