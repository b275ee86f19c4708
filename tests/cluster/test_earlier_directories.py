"""A directory that an earlier version wrote is opened, understood and carried on with.

`directory_of_format_1.zip` was written by the last version whose agents were named after the files that they stood in: a run `one` and a
run `a tool`, a census with two deliveries, and a subscription in a `ChatState`.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from perdure import ConflictingRequest, Limits, Runtime
from perdure.actors.chat.tool_run import RepeatableToolRun
from perdure.messengers import ChatState
from perdure.scenarios.stories.fan_out_agents import Census, Reader, SourceFile
from tests.tidy import ROOT

pytestmark = pytest.mark.shared_ray

NOTHING = SourceFile(path="/dev/null")
CALL = {"tool": "scenarios.chat_workloads:add", "input": {"a": 1, "b": 2}, "call_id": "c1", "key": "k1"}


def test_a_directory_of_format_1_goes_on_under_the_names_that_it_knows(tmp_path: Path) -> None:
    with zipfile.ZipFile(ROOT / "tests/actors/directory_of_format_1.zip") as archive:
        archive.extractall(tmp_path)
    files = {path.name for path in (tmp_path / "agents").rglob("*.db")}
    with Runtime(tmp_path, limits=Limits(hosts_max=1, hosts_warm=1)) as runtime:
        again = runtime.inspect("one")
        assert (again["status"], again["agent_type"]) == ("completed", "scenarios.census:Reader")
        with pytest.raises(
            ConflictingRequest, match="run 'one' exists with another input"
        ):  # inputs were encoded otherwise
            runtime.run(Reader, NOTHING, run_id="one")
        assert runtime.run(RepeatableToolRun, CALL, run_id="a tool").output["kind"] == "raised"
        census = runtime.agent(Census, "home").report()
        assert (census["deliveries"], census["totals"]["files"]) == (2, 2)
        assert runtime.agent(ChatState, "telegram:42").is_subscribed("telegram:42:7")
        assert {path.name for path in (tmp_path / "agents").rglob("*.db")} == files, "nobody was begun anew"
        assert runtime.run(Reader, NOTHING, run_id="two").agent_type == "scenarios.census:Reader"
