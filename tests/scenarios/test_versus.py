"""What `perdure bench --versus` says of two systems, how it talks with the other one, and what it does when that is missing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from perdure.scenarios.bench import command
from perdure.scenarios.bench.command import VERSUS
from perdure.scenarios.bench.figures import Failed, Found, Group, line
from perdure.scenarios.bench.measuring import Bench
from perdure.scenarios.bench.peers import AWAITED, FAN_OUT, PEERS, PeerName, PeerNeeds, PeerProcess, installed
from perdure.scenarios.bench.runs import beside
from tests.scenarios.command import perdure

TOY = """
import asyncio
from perdure.scenarios.bench.peers import answer

async def double(count):
    print("aside")
    return [count * 2.0]

async def die(count):
    raise SystemExit(7)

asyncio.run(answer("Toy 1", {"awaited": double, "fan-out": die}))
"""


def test_a_peer_stands_beside_perdure_and_faster_is_a_shorter_wait_and_a_higher_rate(tmp_path: Path) -> None:
    waits = beside([9.0, 5.0, 4.0], [10.0, 20.0, 8.0], [1.0, 2.0, 3.0])
    rates = beside([9_000.0], [4_500.0], [18_000.0], is_rate=True)
    found = Found(*waits, *rates, peer="Tortoise 1.0", total=50)
    told = Group(lambda _: found, *VERSUS[PeerName.DBOS].rows).measure(Bench(tmp_path))
    assert [line(each) for each in told] == [
        "awaited run, p50: 5 ms (4 to 9); round trip of a plain Ray call: 2",
        "the same on Tortoise 1.0: 10 ms (8 to 20); on Perdure: 5",
        "Perdure is faster than Tortoise 1.0: 2 × (2 to 2)",
        "fan-out of 50 instant children: 9,000 runs/s (9,000 to 9,000); plain Ray calls/s: 18,000",
        "the same on Tortoise 1.0: 4,500 runs/s (4,500 to 4,500); on Perdure: 9,000",
        "Perdure is faster than Tortoise 1.0: 2 × (2 to 2)",
    ]


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
    done = perdure("bench", "--versus", "dbos", "--data", data)
    said = (
        "versus: Tortoise is not installed (the module tortoise_sdk, the program tortoise-server): pip install tortoise"
    )
    assert str(done.exception) == said
    assert not data.exists()
    monkeypatch.setitem(PEERS, PeerName.DBOS, absent._replace(modules=("json",), programs=()))
    assert installed(PeerName.DBOS).title == "Tortoise"


def test_a_peer_is_measured_with_figures_of_its_own_only() -> None:
    done = perdure("bench", "--versus", "dbos", "--only", "boot")
    assert str(done.exception) == "versus: it has figures of its own, so it goes without --only and --load"


def test_a_measurement_that_fails_is_told_with_its_cause(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(PEERS, PeerName.DBOS, PeerNeeds("Tortoise", "no.matter", (), (), ""))
    monkeypatch.setattr(command, "measure_apart", lambda name, *_: Failed(name, "it was slow"))
    assert command.main(as_json=True, versus=PeerName.DBOS) is False
    assert json.loads(capsys.readouterr().out)["failures"] == [{"group": "dbos", "cause": "it was slow"}]
