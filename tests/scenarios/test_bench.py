from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from perdure import ledger
from perdure.actors import Client
from perdure.ledger import BadRequest, Wanted, page_of, restore
from perdure.ledger.store.duckdb_store import DuckDBStore
from perdure.scenarios.bench import command
from perdure.scenarios.bench.command import measure_apart
from perdure.scenarios.bench.figures import (
    Compared,
    Failed,
    Found,
    Group,
    Measure,
    at_least,
    at_most,
    line,
    report,
)
from perdure.scenarios.bench.growth import MEMBERS, fan_out
from perdure.scenarios.bench.ledger import boot_once, build
from perdure.scenarios.bench.measuring import Bench, percentile
from perdure.scenarios.cast.measured import Parent, Sleepyhead
from perdure.scenarios.testing.laboratory import Laboratory
from tests.scenarios.command import perdure
from tests.tidy import ROOT


def test_a_figure_is_judged_by_its_median() -> None:
    values = [1.0, 2.0, 30.0]
    goals = {at_most(2): True, at_most(1.9): False, at_least(2): True, at_least(2.1): False, None: None}
    assert {goal: Measure("quick", "ms", goal).figure(values)["met"] for goal in goals} == goals


def test_the_report_has_the_shape_that_readers_rely_on() -> None:
    figures = [
        Measure("a", "ms", at_most(5), "plain").figure(Compared([3.0, 1.0, 2.0], 1.23456)),
        Measure("b", "runs/s").figure([12345.678]),
    ]
    failures = [Failed("c", "TimeoutError: nothing came of it")]
    told = json.loads(json.dumps(report(figures, failures)))
    assert set(told) == {"machine", "date", "figures", "failures"}
    assert told["failures"] == [{"group": "c", "cause": "TimeoutError: nothing came of it"}]
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
    missed = Measure("a", "ms", at_most(5), "plain").figure(Compared([7.0], 1.0))
    assert line(missed) == "a: 7 ms (7 to 7); goal ≤ 5 ms, MISSED; plain: 1"


def test_a_workload_fills_in_its_rows_in_order_and_what_they_are_measured_beside(tmp_path: Path) -> None:
    rows = [
        Measure("{count:,} runs", "s", None, "with {few}"),
        Measure("disk", "KB", at_most(5), "elsewhere", 9),
        Measure("lost", ""),
    ]
    group = Group(lambda bench: Found(Compared([1.0, 3.0], 0.5), [4.0], 0, count=bench.size(1_000, 7), few=2), *rows)
    told = group.measure(Bench(tmp_path))
    assert [(each["name"], each["median"], each["met"]) for each in told] == [
        ("1,000 runs", 2, None),
        ("disk", 4, True),
        ("lost", 0, None),
    ]
    assert [each["baseline"] for each in told] == [
        {"name": "with 2", "median": 0.5},
        {"name": "elsewhere", "median": 9},
        None,
    ]
    with pytest.raises(ValueError, match="shorter"):
        Group(group.workload, *rows, Measure("more", "")).measure(Bench(tmp_path))
    with pytest.raises(AssertionError, match=r"lost has the baseline 0\.5, called ''"):
        Group(lambda _bench: Found(Compared([1.0], 0.5)), rows[2]).measure(Bench(tmp_path))


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.5, 3), (0.99, 4), (1.0, 4)])
def test_a_percentile_is_one_of_the_values(share: float, value: float) -> None:
    assert percentile([4, 1, 3, 2], share) == value


def test_a_group_that_does_not_exist_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"only.*fan-out"):
        command.main(only=["awaited", "fanout"], data=tmp_path / "untouched")
    assert not (tmp_path / "untouched").exists()


LEDGER = Measure("ledger", "s", at_most(3)).figure(1.0)
COMMANDS = {
    "awaited": ("print('noise'); print({!r})", None),
    "fan-out": ("raise TimeoutError('nothing came of it')", "TimeoutError: nothing came of it"),
    "detached": ("import os; os.abort()", "its process was ended by SIGABRT"),
    "sleepers": ("print('aside'); raise SystemExit(3)", "its process ended with 3, and without a word"),
}


def test_a_group_that_fails_is_a_failed_row_and_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def toy(group: str, place: Path, *, quick: bool, load: int, bucket: str) -> list[str]:
        return [sys.executable, "-c", COMMANDS[group][0].format(json.dumps([LEDGER]))]

    monkeypatch.setattr(command, "command_for", toy)
    assert command.main(as_json=True, only=list(COMMANDS)) is False
    told = json.loads(capsys.readouterr().out)
    assert told["figures"] == [LEDGER]
    assert {each["group"]: each["cause"] for each in told["failures"]} == {
        group: cause for group, (_, cause) in COMMANDS.items() if cause is not None
    }
    assert command.main(only=["awaited"]) is True
    assert "ledger: 1 s (1 to 1); goal ≤ 3 s, met" in capsys.readouterr().out
    assert command.main(only=["fan-out"]) is False
    assert "fan-out: FAILED, TimeoutError: nothing came of it" in capsys.readouterr().out


def test_a_group_that_hangs_is_ended() -> None:
    hangs = [sys.executable, "-c", "import threading; threading.Event().wait()"]
    assert measure_apart("boot", hangs, 0.5, print) == Failed("boot", "it was not done within 0.5 s")


@pytest.mark.thorough
def test_a_group_is_measured_by_a_command_of_its_own(tmp_path: Path) -> None:
    done = subprocess.run(
        command.command_for("boot", tmp_path, quick=True), cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert [figure["goal"] for figure in json.loads(done.stdout)] == ["≤ 1 s", "≤ 300 MB"]


@pytest.mark.thorough
def test_what_is_measured_of_growth_happens() -> None:
    ended = asyncio.run(fan_out(300))
    measured = [measure(ended, 300) for measure in MEMBERS.values()]
    assert all(costs_s and min(costs_s) > 0 for costs_s in measured)


def test_the_ledger_that_is_booted_holds_what_it_is_said_to_hold(tmp_path: Path) -> None:
    build(tmp_path, retained=50, live=4)
    assert boot_once(tmp_path)["live"] == 4
    store = DuckDBStore(tmp_path)
    view = restore(store.boot())
    assert all(run.is_live and run.progress for run in view.runs.values())
    assert len(store.wanted_runs(Wanted(), 1000)) == 50
    wanted = Wanted(None, None, ["completed"], "", None)
    pages = [page_of(view.runs, store.wanted_runs(wanted, 31), wanted, 30)]
    wanted = wanted._replace(before=pages[0].next)
    pages.append(page_of(view.runs, store.wanted_runs(wanted, 31), wanted, 30))
    assert [len(page.runs) for page in pages] == [30, 20]
    assert [run.run_id for run in pages[0].runs[:2]] == ["retained-0000049", "retained-0000048"]
    (record,) = store.records("runs", ["retained-0000049"])
    assert {row.subject for row in store.facts(record.key)} == {"retained-0000049"}
    store.close()


def test_the_agents_that_are_booted_asleep_have_their_alarms(tmp_path: Path) -> None:
    build(tmp_path, 0, 0, armed=30)
    assert boot_once(tmp_path)["armed"] == 30


def test_the_sleepyhead_of_the_benchmark_says_how_late_each_call_was(tmp_path: Path) -> None:
    file = tmp_path / "late"

    async def story(client: Client) -> None:
        assert await client.call(Sleepyhead, "s", "plan", (1_000_000_000.0, 3, str(file)), {}) == 3
        await asyncio.sleep(5)

    with Laboratory(7) as laboratory:
        laboratory.play(story)
    assert len(file.read_text().split()) == 3


def test_the_parent_of_the_benchmark_gets_what_it_asks_for() -> None:
    told: dict[str, object] = {}

    async def story(client: Client) -> None:
        for method in ("one_by_one", "fan_out", "detach"):
            told[method] = await client.call(Parent, "parent", method, (3,), {})
        told["think"] = await client.call(Parent, "parent", "think", (3, 60, 1), {})

    with Laboratory(7) as laboratory:
        laboratory.play(story)
    assert set(told) == {"one_by_one", "fan_out", "detach", "think"}
    assert told["think"] == pytest.approx([60] * 3, rel=0.05)


def test_a_bucket_is_measured_where_one_is_named_and_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, str]] = []

    def toy(group: str, place: Path, *, quick: bool, load: int, bucket: str) -> list[str]:
        asked.append((group, bucket))
        return [sys.executable, "-c", COMMANDS["awaited"][0].format(json.dumps([LEDGER]))]

    monkeypatch.setattr(command, "command_for", toy)
    url = (tmp_path / "bucket").as_uri()
    assert command.main(data=url + "/") is True
    assert command.main(only=["bucket"], data=url) is True
    assert asked == [("bucket", url)] * 2
    with pytest.raises(
        BadRequest, match=r"only.*'bucket' is measured in a bucket; name one: --data s3://bucket/prefix"
    ):
        command.main(only=["bucket"])
    with pytest.raises(BadRequest, match=r"only.*'fan-out' is not one of bucket"):
        command.main(only=["fan-out"], data=url)
    with pytest.raises(BadRequest, match=r"data.*no bucket that Perdure knows"):
        command.main(data="ftp://somewhere")
    monkeypatch.delattr(ledger, "look_into", raising=False)  # which imports what has it, if nobody has yet
    monkeypatch.setitem(sys.modules, "perdure.ledger.store.bucket_store", None)
    with pytest.raises(BadRequest, match=r"data.*needs `pip install 'perdure\[bucket\]'`"):
        command.main(data=url)
    capsys.readouterr()


def test_the_process_of_a_group_is_told_the_bucket(tmp_path: Path) -> None:
    assert command.command_for("bucket", tmp_path, quick=True, bucket="s3://b/p")[-3:] == ["0", "--quick", "s3://b/p"]
    assert command.command_for("awaited", tmp_path, quick=False)[-2:] == [str(tmp_path), "0"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--data", __file__], "is a file; name a directory, or a bucket"),
        (["--data", "s3://b/p", "--versus", "dbos"], "it goes without a bucket"),
    ],
)
def test_what_cannot_be_measured_so_is_refused(words: list[str], said: str) -> None:
    refused = perdure("bench", *words).exception
    assert isinstance(refused, BadRequest)
    assert said in str(refused)
