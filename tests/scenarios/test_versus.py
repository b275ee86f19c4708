"""What `perdure bench --versus` says of two systems, how it talks with the other one, and what it does when that is missing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from perdure.cli import app
from perdure.scenarios.bench import runner
from perdure.scenarios.bench.figures import Contest, Failed, line, report, show
from perdure.scenarios.versus import peers
from perdure.scenarios.versus.conversation import AWAITED, FAN_OUT, PeerProcess
from perdure.scenarios.versus.peers import PEERS, PeerName, PeerNeeds

AWAITED_RUN = Contest("awaited", "ms", "Tortoise 1.0", [9.0, 5.0, 4.0], [10.0, 20.0, 8.0], [1.0, 2.0, 3.0])
BATCH = Contest("fan-out", "runs/s", "Tortoise 1.0", [9_000.0], [4_500.0], [3_000.0])
TOY = """
import asyncio
from perdure.scenarios.versus.conversation import answer

async def double(count):
    print("aside")
    return [count * 2.0]

async def die(count):
    raise SystemExit(7)

asyncio.run(answer("Toy 1", {"awaited": double, "fan-out": die}))
"""


def test_faster_is_a_shorter_wait_and_a_higher_rate_by_the_medians() -> None:
    assert AWAITED_RUN.times_as_fast == 2.0
    assert BATCH.times_as_fast == 2.0


def test_each_side_is_told_with_its_spread_and_its_ratio_to_plain_ray() -> None:
    assert json.loads(json.dumps(AWAITED_RUN.to_plain())) == {
        "name": "awaited",
        "unit": "ms",
        "peer_name": "Tortoise 1.0",
        "perdure": {"min": 4.0, "median": 5.0, "max": 9.0, "to_plain_ray": 2.5},
        "peer": {"min": 8.0, "median": 10.0, "max": 20.0, "to_plain_ray": 5.0},
        "plain_ray": {"min": 1.0, "median": 2.0, "max": 3.0, "to_plain_ray": 1.0},
        "times_as_fast": 2.0,
    }


def test_a_measure_is_one_line_and_the_machine_and_the_date_stand_above(capsys: pytest.CaptureFixture[str]) -> None:
    assert line(BATCH.to_plain()) == (
        "fan-out (runs/s): Perdure 9,000 (9,000 to 9,000), 3 × plain Ray; Tortoise 1.0 4,500 (4,500 to 4,500), 1.5 × plain Ray; "
        "plain Ray calls 3,000 (3,000 to 3,000); Perdure is 2 × as fast"
    )
    told = report([BATCH.to_plain()], [Failed("dbos", "it ended")])
    show(told)
    first, second, third = capsys.readouterr().out.splitlines()
    assert told["date"] in first
    assert second == line(BATCH.to_plain())
    assert third == "dbos: FAILED, it ended"


def test_a_peer_answers_what_it_is_asked_and_what_it_prints_besides_is_not_heard() -> None:
    with PeerProcess([sys.executable, "-c", TOY]) as peer:
        assert peer.version == "Toy 1"
        assert peer.ask(AWAITED, 21) == [42.0]
        assert peer.ask(AWAITED, 1) == [2.0]


def test_a_peer_that_dies_is_told_with_its_exit_code() -> None:
    with (
        PeerProcess([sys.executable, "-c", TOY]) as peer,
        pytest.raises(RuntimeError, match="the peer's process ended with 7"),
    ):
        peer.ask(FAN_OUT, 1)
    with pytest.raises(RuntimeError, match="ended with 3"), PeerProcess([sys.executable, "-c", "raise SystemExit(3)"]):
        pass


def test_a_peer_that_is_not_installed_is_refused_with_how_to_install_it_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    absent = PeerNeeds("Tortoise", "no.matter", ("json", "tortoise_sdk"), ("tortoise-server",), "pip install tortoise")
    monkeypatch.setitem(PEERS, PeerName.DBOS, absent)
    data = tmp_path / "untouched"
    done = CliRunner().invoke(app, ["bench", "--versus", "dbos", "--data", str(data)])
    said = (
        "versus: Tortoise is not installed (the module tortoise_sdk, the program tortoise-server): pip install tortoise"
    )
    assert str(done.exception) == said
    assert not data.exists()
    monkeypatch.setitem(PEERS, PeerName.DBOS, absent._replace(modules=("json",), programs=()))
    assert peers.installed(PeerName.DBOS).title == "Tortoise"


def test_a_peer_is_measured_with_figures_of_its_own_only() -> None:
    done = CliRunner().invoke(app, ["bench", "--versus", "dbos", "--only", "boot"])
    assert str(done.exception) == "versus: it has figures of its own, so it goes without --only and --load"


def test_a_measurement_that_fails_is_told_with_its_cause(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(PEERS, PeerName.DBOS, PeerNeeds("Tortoise", "no.matter", (), (), ""))
    monkeypatch.setattr(runner, "measure_apart", lambda name, *_: Failed(name, "it was slow"))
    assert runner.main(as_json=True, versus=PeerName.DBOS) is False
    assert json.loads(capsys.readouterr().out)["failures"] == [{"group": "dbos", "cause": "it was slow"}]
