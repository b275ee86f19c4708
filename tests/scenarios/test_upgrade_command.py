"""`perdure upgrade` and `perdure ps` say which code stands where, also of a directory that nobody serves, and change nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.actors.code.known_types import remember_type
from perdure.ledger import with_package
from perdure.ledger.facts import AgentActivated, CodeAdopted, RunParked, SupervisorStarted
from perdure.ledger.ids import agent_id
from tests.kit import TYPE, asked, begun, placed
from tests.ledger.directories import recorded, written
from tests.scenarios.command import perdure, perdure_json

OLD = with_package(None, "old")
SLEEPER = agent_id("shop:Till", "anna")
UNFIT = "its stored input does not fit what `run` of Till takes now: BadRequest: input: months: Field required"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """One run at work with older code, one parked, an agent that was awake with older code, and one that sleeps."""
    parked = [
        asked("unfit", pool=OLD),
        placed("unfit", incarnation=2),
        RunParked("unfit", 1, UNFIT),
    ]
    came = [CodeAdopted("old", {"tests": ""}), asked(pool=OLD), placed(), begun(), *parked]
    later = [AgentActivated(agent_id(TYPE, "cut off"), 3, "h1", OLD), CodeAdopted("new", {"tests": ""})]
    recorded(tmp_path, SupervisorStarted(1, {}), *came, *later)
    written(tmp_path, SLEEPER, 4, "kept")
    return tmp_path


def test_it_shows_versions_runs_with_older_code_and_parked_ones_and_changes_nothing(data: Path) -> None:
    before = {path: path.read_bytes() for path in data.rglob("*.db") if "agents" in path.parts}
    rows = {row["agent_type"]: row for row in perdure_json("upgrade", "--data", data)["types"]}
    row = rows[TYPE]
    assert (row["newest"], row["since_at_ms"], row["runs"]) == ("new", 1_000, 2)
    assert row["runs_with_older_code"] == [{"run_id": "r", "version": "old"}]
    assert row["parked_runs"] == [{"run_id": "unfit", "version": "old", "error": UNFIT}]
    assert row["awake"] == 0, "nobody is awake where nothing serves"
    assert rows["shop:Till"]["kept"] == {"version 1": 1}
    said = perdure("upgrade", "--data", data).stdout
    for words in ("older   run r of", f"parked  run unfit: {UNFIT}", "1 of version 1", "perdure retry RUN"):
        assert words in said
    assert {path: path.read_bytes() for path in before} == before


def test_with_now_nobody_has_to_leave_where_nothing_serves(data: Path) -> None:
    assert perdure_json("upgrade", "--now", "--data", data)["moved"] == 0


def test_one_type_is_shown_alone_and_an_unknown_one_is_refused(data: Path) -> None:
    assert [row["agent_type"] for row in perdure_json("upgrade", "shop:Till", "--data", data)["types"]] == ["shop:Till"]
    done = perdure("upgrade", "shop:Tilt", "--data", data)
    assert done.exit_code != 0
    assert "nothing of 'shop:Tilt' is known here" in str(done.exception)


def test_ps_counts_parked_runs_and_older_code(data: Path) -> None:
    assert perdure_json("ps", "--data", data)["code"]["parked_runs"] == 1
    said = perdure("ps", "--data", data).stdout
    assert "0 agents awake and 1 live run with older code, 1 run parked (`perdure upgrade` tells more)" in said


def test_an_idle_directory_has_the_types_with_their_newest_code(data: Path) -> None:
    recorded(data, CodeAdopted("desk code", {"desk": "", "name:counter": ""}))
    types = {
        "desk:Till": "desk:Till",
        "desk:Clerk": "desk:Clerk",
        "name:counter": "desk:Counter",
        "gone:Type": "gone:Type",
    }
    for name, place in types.items():
        remember_type(name, place, data / "code")
    rows = {row["agent_type"]: row for row in perdure_json("upgrade", "--data", data)["types"]}
    assert rows.keys() == {TYPE, "shop:Till", "desk:Till", "desk:Clerk", "name:counter"}
    assert {rows[name]["newest"] for name in ("desk:Till", "desk:Clerk", "name:counter")} == {"desk code"}
    assert (rows["desk:Till"]["since_at_ms"], rows["desk:Till"]["awake"], rows["desk:Till"]["parked_runs"]) == (
        1_000,
        0,
        [],
    )
    for only, found in (("desk:Till", {"desk:Till"}), ("desk", {"desk:Till", "desk:Clerk"}), (TYPE, {TYPE})):
        assert {row["agent_type"] for row in perdure_json("upgrade", only, "--data", data)["types"]} == found


def test_where_nothing_serves_no_host_is_shown_as_if_it_lived(data: Path) -> None:
    told = perdure_json("ps", "--data", data)
    assert (told["hosts"], told["agents"]) == ([], [])
    assert {row["host"] for row in told["live"]} == {None}
    assert "h1" not in perdure("ps", "--data", data).stdout
