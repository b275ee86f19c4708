"""Real files that are taken away: the agent refuses to go on without what it had reported, until the operator has decided."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from perdure.actors import Agent, Runtime, exposed
from perdure.actors.code.naming import type_name
from perdure.ledger import StorageLost, agent_id
from perdure.ledger.storage.agent_storages import FileDisk
from perdure.policies import Limits
from perdure.scenarios.cli import app
from tests.cluster.test_ray_world import soon

pytestmark = [pytest.mark.shared_ray, pytest.mark.long]


class Ledger(Agent):
    """Counts."""

    @exposed
    def count(self) -> int:
        self.state["count"] = self.state.get("count", 0) + 1
        return int(self.state["count"])


def test_an_agent_whose_file_is_gone_goes_on_with_a_copy_or_begins_anew_when_it_is_forgotten(tmp_path: Path) -> None:
    address = agent_id(type_name(Ledger), "p")
    file = FileDisk(tmp_path / "agents").path_of(address)
    with Runtime(tmp_path, limits=Limits(idle_ms=200)) as runtime:
        assert runtime.agent(Ledger, "p").count() == 1
        soon(lambda: not runtime.ps()["agents"])  # only then it has reported anything
    whole = file.read_bytes()
    file.unlink()
    with Runtime(tmp_path) as runtime:
        ledger = runtime.agent(Ledger, "p")
        with pytest.raises(StorageLost, match=r"there is none.*perdure forget"):
            ledger.count()
        file.write_bytes(whole)
        assert ledger.count() == 2
    file.unlink()
    forgotten = CliRunner().invoke(app, ["forget", address, "--yes", "--data", str(tmp_path)])
    assert forgotten.exit_code == 0, forgotten.output
    with Runtime(tmp_path) as runtime:
        assert runtime.agent(Ledger, "p").count() == 1
