from __future__ import annotations

import json
from pathlib import Path

import pytest

from actors import Client
from ledger import BadRequest, restore
from ledger.duckdb_store import DuckDBStore
from scenarios import bench
from scenarios.bench_agents import Parent
from scenarios.bench_ledger import boot_once, build
from scenarios.bench_report import Baseline, Bench, Figure, at_least, at_most, line, percentile, report
from scenarios.simulation import Laboratory


def test_a_figure_is_judged_by_its_median() -> None:
    values = [1.0, 2.0, 30.0]
    assert Figure("quick", "ms", values, at_most(2)).met is True
    assert Figure("quick", "ms", values, at_most(1.9)).met is False
    assert Figure("many", "runs/s", values, at_least(2)).met is True
    assert Figure("many", "runs/s", values, at_least(2.1)).met is False
    assert Figure("whatever", "", values).met is None


def test_the_report_has_the_shape_that_readers_rely_on() -> None:
    figures = [
        Figure("a", "ms", [3.0, 1.0, 2.0], at_most(5), Baseline("plain", 1.23456)),
        Figure("b", "runs/s", [12345.678]),
    ]
    told = json.loads(json.dumps(report(figures)))
    assert set(told) == {"machine", "date", "figures"}
    assert set(told["machine"]) == {"cores", "memory_gb", "cpu", "python", "ray", "duckdb"}
    assert told["figures"] == [
        {
            "name": "a",
            "unit": "ms",
            "min": 1.0,
            "median": 2.0,
            "max": 3.0,
            "goal": "≤ 5 ms",
            "baseline": {"name": "plain", "median": 1.235},
            "met": True,
        },
        {
            "name": "b",
            "unit": "runs/s",
            "min": 12350.0,
            "median": 12350.0,
            "max": 12350.0,
            "goal": None,
            "baseline": None,
            "met": None,
        },
    ]


def test_a_missed_goal_is_said_in_the_plain_line() -> None:
    missed = Figure("a", "ms", [7.0], at_most(5), Baseline("plain", 1.0)).to_plain()
    assert line(missed) == "a: 7 ms (7 to 7); goal ≤ 5 ms, MISSED; plain: 1"


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.5, 3), (0.99, 4), (1.0, 4)])
def test_a_percentile_is_one_of_the_values(share: float, value: float) -> None:
    assert percentile([4, 1, 3, 2], share) == value


def test_a_group_that_does_not_exist_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"only.*fan-out"):
        bench.main(only="fanout", data=tmp_path / "untouched")
    assert not (tmp_path / "untouched").exists()


def test_every_group_is_asked_and_told_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def toy(name: str, given: Bench) -> list[Figure]:
        return [Figure(name, "s", [float(given.size(10, 2))], at_most(3))]

    monkeypatch.setattr(bench, "FIGURES", {name: lambda given, name=name: toy(name, given) for name in ("one", "two")})
    bench.main(as_json=True, quick=True, data=tmp_path)
    told = json.loads(capsys.readouterr().out)
    assert [(figure["name"], figure["median"], figure["met"]) for figure in told["figures"]] == [
        ("one", 2.0, True),
        ("two", 2.0, True),
    ]
    bench.main(only="two", data=tmp_path)
    assert "two: 10 s (10 to 10); goal ≤ 3 s, MISSED" in capsys.readouterr().out


def test_the_ledger_that_is_booted_holds_what_it_is_said_to_hold(tmp_path: Path) -> None:
    build(tmp_path, retained=50, live=4)
    assert boot_once(tmp_path)["live"] == 4
    store = DuckDBStore(tmp_path)
    view = restore(store.boot())
    assert all(run.is_live and run.progress for run in view.runs.values())
    assert len(store.ended_runs(None, None, None, 1000)) == 50
    (record,) = store.records("runs", ["retained-0000049"])
    assert {row.subject for row in store.facts(record.key)} == {"retained-0000049"}
    store.close()


def test_the_parent_of_the_benchmark_gets_what_it_asks_for() -> None:
    told: dict[str, object] = {}

    async def story(client: Client) -> None:
        for method in ("one_by_one", "fan_out", "detach"):
            told[method] = await client.call(Parent, "parent", method, (3,), {})

    with Laboratory(7) as laboratory:
        laboratory.run(story)
    assert set(told) == {"one_by_one", "fan_out", "detach"}
