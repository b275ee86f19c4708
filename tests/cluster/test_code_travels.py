"""An author's code reaches a cluster that does not have it, and is there when it is needed again.

Every process here is on one machine, so a file that was not sent might be found all the same. Therefore agents say from which file their
classes came, and a driver's directory is taken away when the driver has ended.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple

import pytest

from perdure.actors.ray_world.os_processes import ProcessId, kill, wait_until_gone
from tests.cluster.harbour import harbour as started
from tests.tidy import IMPORT_PATH

ROOT = Path(__file__).resolve().parents[2]
SOON_S = 240.0

# A class in a module, which imports one that lies beside it, and another one only when it runs.
CREW = """
    import asyncio
    from pathlib import Path
    from perdure.actors import Agent, exposed
    import beside

    class Deckhand(Agent):
        async def run(self, input: str) -> list[str]:
            import cargo
            while input and not Path(input).exists():
                await asyncio.sleep(0.05)
            return [__file__, beside.__file__, cargo.__file__, cargo.WORDS]

    class Captain(Agent):
        num_cpus = 0.25
        runtime_env = {"env_vars": {"SHIP": "Perdure"}}

        @exposed
        async def sail(self) -> list[str]:
            import os
            result = await self.run_agent_tool(Deckhand, "")
            return [os.environ.get("SHIP", ""), __file__, *result.output]
"""

FIRST = """
    import json, sys
    from pathlib import Path
    from perdure.actors import Runtime
    from crew import Captain, Deckhand

    if __name__ == "__main__":
        with Runtime(data=sys.argv[1], address=sys.argv[2]) as runtime:
            told = {"sailed": runtime.agent(Captain, "c").sail()}
            runtime.start(Deckhand, sys.argv[3], run_id="adrift")
            while runtime.inspect("adrift")["status"] != "running":
                pass
            told["processes"] = [info.process for info in runtime.cluster.processes().values()]
            print(json.dumps(told))
"""

SECOND = """
    import json, shutil, sys
    from pathlib import Path
    from perdure.actors import Agent, Runtime, exposed
    import crew

    class Pilot(Agent):
        @exposed
        def where(self) -> list[str]:
            return [__file__, crew.__file__, crew.NAME]

    if __name__ == "__main__":
        with Runtime(data=sys.argv[1], address=sys.argv[2]) as runtime:
            told = {"where": runtime.agent(Pilot, "p").where()}
            Path(sys.argv[3]).touch()
            while (run := runtime.inspect("adrift"))["status"] == "running" or run["attempt"] < 2:
                pass
            print(json.dumps({**told, "adrift": [run["status"], run["attempt"], run["output"]]}))
"""


class Harbour(NamedTuple):
    """A Ray that knows nothing of ours, and how to speak with it."""

    address: str
    environment: dict[str, str]


@pytest.fixture
def harbour(tmp_path: Path) -> Iterator[Harbour]:
    home = tmp_path / "harbour"
    home.mkdir()
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "RAY_AUTH_MODE": "disabled"}
    with started(home, environment) as address:
        yield Harbour(address, environment)


def write(folder: Path, **modules: str) -> Path:
    folder.mkdir()
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(dedent(text), encoding="utf-8")
    return folder


def drive(harbour: Harbour, folder: Path, *arguments: object) -> dict[str, Any]:
    """Run the driver in this folder, take the folder away, and return what the driver said."""
    command = [sys.executable, "driver.py", *map(str, arguments)]
    environment = {**harbour.environment, "PYTHONPATH": IMPORT_PATH}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=SOON_S
    )
    assert done.returncode == 0, done.stderr
    shutil.rmtree(folder)
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


@pytest.mark.long
def test_code_travels_to_a_joined_cluster_and_is_there_after_every_death_and_beside_other_code(
    harbour: Harbour, tmp_path: Path
) -> None:
    signal_file = tmp_path / "go"
    first = write(tmp_path / "first", driver=FIRST, crew=CREW, beside="", cargo="WORDS = 'first'")
    second = write(tmp_path / "second", driver=SECOND, crew="NAME = 'another module of that name'")
    data = tmp_path / "data"

    told = drive(harbour, first, data, harbour.address, signal_file)

    ship, *files, words = told["sailed"]
    assert (ship, words) == ("Perdure", "first")
    assert [Path(file).name for file in files] == ["crew.py", "crew.py", "beside.py", "cargo.py"]
    assert not [file for file in files if Path(file).is_relative_to(first)], "each came from what was sent"

    processes = [ProcessId(*each) for each in told["processes"]]
    kill(processes)
    assert not wait_until_gone(processes, 60.0)
    told = drive(harbour, second, data, harbour.address, signal_file)

    *files, name = told["where"]
    assert ([Path(file).name for file in files], name) == (["driver.py", "crew.py"], "another module of that name")
    assert not [file for file in files if Path(file).is_relative_to(second)]
    status, attempt, (*files, words) = told["adrift"]
    assert (status, attempt, words) == ("completed", 2, "first"), "a run goes on with the code it was asked for with"
    assert [Path(file).name for file in files] == ["crew.py", "beside.py", "cargo.py"]
