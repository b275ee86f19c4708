"""On a Ray of our own and on one that was joined: a run keeps the code that it was requested with, and other agents take the new one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.cluster.harbour import harbour as started
from tests.tidy import IMPORT_PATH

SOON_S = 240.0

SHOP = """
    import asyncio
    from pathlib import Path
    from pydantic import BaseModel
    from perdure import Agent, Runtime, exposed

    VERSION = "VERSION_HERE"

    class Slow(Agent):
        async def run(self, input: str) -> list[str]:
            Path(input + ".begun").touch()
            while not Path(input).exists():
                await asyncio.sleep(0.05)
            import prices
            beside = Path(__file__).with_name("note.txt")  # which does not travel
            return [VERSION, prices.PRICE, beside.read_text() if beside.exists() else ""]

    class Till(Agent):
        @exposed
        def version(self) -> list[object]:
            self.state["calls"] = self.state.get("calls", 0) + 1
            return [VERSION, self.state["calls"]]
"""

BEGIN = """
    if __name__ == "__main__":
        import os, signal, sys, json
        data, address, go = sys.argv[1:]
        with Runtime(data=data, address=address or None) as runtime:
            first = runtime.agent(Till, "t").version()
            runtime.start(Slow, go, run_id="r")
            while not Path(go + ".begun").exists():
                pass
            Path(__file__).write_text(Path(__file__).read_text().replace("one", "two"))
            Path(__file__).with_name("prices.py").write_text("PRICE = 'new'")
            for info in runtime.cluster.processes().values():
                if info.process.pid != runtime.ps()["supervisor"]["pid"]:
                    os.kill(info.process.pid, signal.SIGKILL)
            if not address:
                Path(go).touch()
                slow = runtime.run(Slow, go, run_id="r").output
            print(json.dumps([first, slow if not address else None]))
"""

GO_ON = """
    if __name__ == "__main__":
        import sys, json
        data, address, go = sys.argv[1:]
        with Runtime(data=data, address=address or None) as runtime:
            while runtime.ps()["code"]["agents_with_older_code"]:
                pass  # a death may have woken it before the new code came: it leaves as soon as it is at rest
            told = runtime.agent(Till, "t").version()
            Path(go).touch()
            old = runtime.run(Slow, go, run_id="r").output
            new = runtime.run(Slow, go, run_id="s").output
            print(json.dumps([told, old, new, runtime.explain("r")[:4]]))
"""


def drive(script: Path, *arguments: object, **environment: str) -> Any:
    command = [sys.executable, str(script), *map(str, arguments)]
    done = subprocess.run(
        command, cwd=script.parent, env={**environment, "PYTHONPATH": IMPORT_PATH}, capture_output=True, text=True,
        check=False, timeout=SOON_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


pytestmark = pytest.mark.long


@pytest.fixture(params=["own", "joined"])
def ray(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The address of a Ray to join, or none."""
    home = tmp_path / "home"
    home.mkdir()
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "RAY_AUTH_MODE": "disabled"}
    if request.param == "own":
        yield "", environment
    else:
        with started(home, environment) as address:
            yield address, environment


def test_a_run_keeps_its_code_after_a_death_and_a_restart_and_a_state_goes_on_under_the_new_one(
    ray: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    address, environment = ray
    shop, data, go = tmp_path / "shop.py", tmp_path / "data", tmp_path / "go"
    (tmp_path / "prices.py").write_text("PRICE = 'old'")
    (tmp_path / "note.txt").write_text("beside")
    text = dedent(SHOP)
    shop.write_text(text.replace("VERSION_HERE", "one") + dedent(BEGIN))
    first, slow = drive(shop, data, address, go, **environment)
    assert first == ["one", 1]
    assert address or slow == ["one", "old", "beside"], "the attempt after the death has the code of the first one"
    shop.write_text(text.replace("VERSION_HERE", "two") + dedent(GO_ON))
    told, old, new, said = drive(shop, data, address, go, **environment)
    assert told == ["two", 2]
    assert old[:2] == ["one", "old"]
    assert new[:2] == ["two", "new"]
    assert any("Its code is version" in line for line in said)


TASK = """
    import json, sys
    import ray
    from pydantic import BaseModel
    from perdure import Agent, Runtime, exposed

    class Query(BaseModel):
        text: str

    class Reader(Agent):
        async def run(self, query: Query) -> list[str]:
            return query.text.split()

    class Counter(Agent):
        @exposed
        def add(self) -> int:
            self.state["n"] = self.state.get("n", 0) + 1
            return self.state["n"]

    def use(data: str) -> list[object]:
        with Runtime(data=data) as runtime:
            return [runtime.run(Reader, Query(text="a b")).output, runtime.agent(Counter, "c").add()]

    GUARD:
        ray.init(address="local")
        print(json.dumps([ray.get(ray.remote(use).remote(sys.argv[1])), use(sys.argv[1])]))
"""


@pytest.mark.parametrize("guard", ['if __name__ == "__main__"', "if True"])
def test_a_task_of_ray_uses_the_agent_classes_of_its_driver_s_own_script(guard: str, tmp_path: Path) -> None:
    script = tmp_path / "shop.py"
    script.write_text(dedent(TASK).replace("GUARD", guard))
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "RAY_AUTH_MODE": "disabled"}
    assert drive(script, tmp_path / "data", **environment) == [[["a", "b"], 1], [["a", "b"], 2]]
