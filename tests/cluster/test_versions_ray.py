"""A process with another version of Perdure than what serves a directory: it is told so, disturbs nothing, and can stop it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.actors import Agent, Runtime, exposed
from perdure.actors.link.wire import PROTOCOL
from perdure.ledger import NoLongerServed
from tests.cluster.test_ray_death import ONE_HOST
from tests.tidy import IMPORT_PATH

pytestmark = pytest.mark.shared_ray
OTHER = "9.9 (0badf00d)"
AS_ANOTHER = f"from perdure.actors.link import peer; peer.PROTOCOL = {OTHER!r}\n"
COMMAND = f"{AS_ANOTHER}from perdure.scenarios.cli import main\nmain()"
SCRIPT = f"""{AS_ANOTHER}
import sys
from perdure import Runtime, VersionMismatch
try:
    with Runtime(data=sys.argv[1]):
        print("opened")
except VersionMismatch as problem:
    print(problem.supervisor, "|", problem.peer)
"""


class Counter(Agent):
    """Counts."""

    @exposed
    def add(self) -> int:
        """One more."""
        self.state["count"] = self.state.get("count", 0) + 1
        return int(self.state["count"])


@pytest.mark.thorough
def test_a_process_of_another_version_is_refused_in_words_disturbs_nothing_and_can_stop_the_directory(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"

    def other(script: str, *words: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", script, *map(str, words)]
        env = {**os.environ, "PYTHONPATH": IMPORT_PATH}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=env)

    with Runtime(data, limits=ONE_HOST) as runtime:
        counter = runtime.agent(Counter, "a")
        assert counter.add() == 1
        looked = other(COMMAND, "ps", "--data", data)
        assert looked.returncode == 2, looked.stderr
        assert f"what serves it is Perdure {PROTOCOL}, and this process is Perdure {OTHER}" in looked.stderr
        assert other(SCRIPT, data).stdout == f"{PROTOCOL} | {OTHER}\n"
        assert counter.add() == 2, "nobody was disturbed"
        stopped = other(COMMAND, "stop", "--data", data, "--timeout", "0s")
        assert "Stopped what served" in stopped.stdout, stopped.stderr
        with pytest.raises(NoLongerServed):
            counter.add()
    with Runtime(data, limits=ONE_HOST) as runtime:
        assert runtime.agent(Counter, "a").add() == 3
