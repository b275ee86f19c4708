"""What a soak says about what it measured. The soak itself is played in `tests/cluster`."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from perdure.actors import Agent, Client
from perdure.scenarios.faults.machine import full_disk, stood_still
from perdure.scenarios.stories.soak import (
    DISK_WORDS,
    GROWTH_MAX,
    Sample,
    Soak,
    curves,
    failures,
    grown,
    growth,
    open_rows,
    size_mb,
    warmed_up,
    write_shop,
    wrong_after_upgrade,
    wrong_beside,
)
from perdure.scenarios.stories.stage import SimStage
from perdure.scenarios.testing.laboratory import Laboratory

HOUR_S = 3_600.0


def soaked(minutes: float, **growing: float) -> list[Sample]:
    """A sample a minute. 100 runs come with each. `growing` says by which share of its first value a measure grows in an hour."""

    def at(name: str, value: float, at_s: float) -> float:
        return value * (1 + growing.get(name, 0.0) * at_s / HOUR_S)

    return [
        Sample(
            60.0 * minute,
            100 * (minute + 1),
            0.1 * (minute + 1) * at("memory_mb", 1.0, 60.0 * minute),
            0.5 * (minute + 1),
            processes * round(at("descriptors", 1_000, 60.0 * minute)),
            processes * round(at("threads", 10_000, 60.0 * minute)),
            processes,
        )
        for minute in range(int(minutes) + 1)
        for processes in [round(at("processes", 4 + 3 * (minute % 3), 60.0 * minute))]
    ]


def test_growth_is_the_slope_of_the_line_as_a_share_of_the_mean_an_hour() -> None:
    at_s = [0.0, 1_800.0, 3_600.0]
    assert growth(at_s, [5.0, 5.0, 5.0]) == (0.0, 0.0)
    assert growth(at_s, [90.0, 100.0, 110.0]) == (0.2, 0.2)
    assert growth(at_s, [110.0, 100.0, 90.0]) == (-0.2, -0.2)
    assert growth(at_s[:2], [90.0, 110.0]) == ()
    assert growth(at_s, [0.0, 0.0, 0.0]) == ()


def test_the_first_third_is_the_warm_up() -> None:
    assert [each.at_s for each in warmed_up(soaked(6))] == [120.0, 180.0, 240.0, 300.0, 360.0]
    assert warmed_up([]) == []


def test_what_keeps_more_runs_may_hold_more_but_not_more_for_each() -> None:
    assert grown(soaked(90)) == []
    (said,) = grown(soaked(90, memory_mb=0.05))
    assert said.startswith("memory_mb_per_1000_retained grows by 4.")
    assert "at most 2%" in said


@pytest.mark.parametrize("measure", ["descriptors", "threads"])
def test_descriptors_and_threads_may_not_grow(measure: str) -> None:
    assert grown(soaked(90, **{measure: 0.01})) == []
    (said,) = grown(soaked(90, **{measure: 0.1}))
    assert said.startswith(f"{measure}_per_process grows by")


def test_processes_come_and_go_with_the_legs_and_none_may_stay() -> None:
    assert grown(soaked(90, processes=0.3)) == []
    (said,) = grown(soaked(90, processes=4.0))
    assert said == "there were never fewer than 20 processes in the later half, and 12 in the earlier one"


def test_what_scatters_is_judged_only_beyond_what_chance_explains() -> None:
    at_s = [60.0 * minute for minute in range(60)]
    swaying = [100.0 + (-40 if minute % 7 < 3 else 40) for minute in range(60)]
    likely, sure = growth(at_s, swaying)
    assert sure < 0 < GROWTH_MAX < likely
    likely, sure = growth(at_s, [value + 2 * minute for minute, value in enumerate(swaying)])
    assert GROWTH_MAX < sure < likely


def test_a_soak_that_is_too_short_is_told_and_not_judged() -> None:
    short = soaked(20, descriptors=3.0)
    assert grown(short) == []
    assert (curves(short)["descriptors_per_process"].growth or 0) > 1
    assert curves([]) == {}


def test_the_size_of_a_directory_is_what_its_files_take(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "file").write_bytes(b"x" * 3 * 2**20)
    assert 3.0 <= size_mb(tmp_path) < 3.1


def test_processes_stand_still_meanwhile_and_go_on_whatever_happens_and_the_dead_are_passed_over() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    running = subprocess.Popen([sys.executable, "-c", "print(input())"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def stand_still() -> None:
        with stood_still([ended.pid, running.pid]):
            while psutil.Process(running.pid).status() != psutil.STATUS_STOPPED:
                pass
            raise KeyboardInterrupt

    try:
        with pytest.raises(KeyboardInterrupt):
            stand_still()
        assert running.communicate(b"on\n") == (b"on\n", None)
    finally:
        running.kill()
        running.wait()


def begun(release: int, rung: int | None = None) -> dict[str, Any]:
    """What the program of this release says when it begins."""
    return {"till": [release, rung or 3 * release - 2, [[each, each + 1] for each in range(1, release)]]}


def ended(release: int, rung: int | None = None, **had: int) -> dict[str, Any]:
    """What the program of the next release says at its end."""
    book = [[each, each + 1] for each in range(1, release + 1)]
    return {"till": [release + 1, rung or 3 * release, book], "old": release, "new": release + 1, **had}


@pytest.mark.parametrize("release", [1, 2, 7])
def test_a_change_of_code_is_right_if_the_till_moved_on_once_and_the_run_kept_its_code(release: int) -> None:
    assert wrong_after_upgrade(release, begun(release), ended(release)) == []


def test_what_is_wrong_after_a_change_of_code_is_told() -> None:
    assert wrong_after_upgrade(2, begun(2), ended(2, old=3)) == [
        "a run that was asked for before the change had 3, not 2"
    ]
    assert wrong_after_upgrade(2, begun(2), ended(2, new=2)) == [
        "a run that was asked for after the change had 2, not 3"
    ]
    assert wrong_after_upgrade(2, begun(2, rung=5), ended(2)) == [
        "the till before the change had [2, 5, [[1, 2]]], not [2, 4, [[1, 2]]]"
    ]
    twice = ended(1)
    twice["till"][2] *= 2
    assert wrong_after_upgrade(1, begun(1), twice) == [
        "the till after the change had [2, 3, [[1, 2], [1, 2]]], not [2, 3, [[1, 2]]]"
    ]


def test_the_shop_of_a_release_counts_in_its_storage_and_its_errand_waits_for_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, back = write_shop(tmp_path / "shop", 1), tmp_path / "back"
    spec = importlib.util.spec_from_file_location("soak_shop", program)
    assert spec is not None
    assert spec.loader is not None
    shop = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "soak_shop", shop)
    spec.loader.exec_module(shop)
    told: list[object] = []

    async def story(client: Client) -> None:
        running = asyncio.ensure_future(client.run(shop.Errand, str(back), run_id="errand"))
        told.extend([await client.agent(shop.Till, "till").ring() for _ in range(2)])
        assert not running.done()
        back.touch()
        told.append((await running).output)

    with Laboratory(5) as laboratory:
        laboratory.play(story)
    assert told == [[1, 1, []], [1, 2, []], 1]


class Roomless(Agent):
    """Finds no room, or fails otherwise, or does not fail."""

    async def run(self, input: str) -> str:
        if input:
            raise RuntimeError(input)
        return input


def test_runs_may_fail_for_the_reason_that_the_leg_gives_them_only_and_each_end_is_told_once() -> None:
    rows: list[dict[str, Any]] = []

    async def story(client: Client) -> None:
        for number, problem in enumerate(("", "No space left on device", "it is late")):
            await client.run(Roomless, problem, run_id=f"run-{number}")
        rows.extend(await client.ask("list", None, None, None, 10))

    with Laboratory(5) as laboratory:
        laboratory.play(story)
    failed = failures(rows)
    assert failed.keys() == {"run-1", "run-2"}
    told_once = {"deliveries": 3, "distinct": 3}
    assert wrong_beside(DISK_WORDS, failed, told_once, 3, 3) == [f"run-2: {failed['run-2']}"]
    del failed["run-2"]
    assert wrong_beside(DISK_WORDS, failed, told_once, 3, 3) == []
    assert wrong_beside(DISK_WORDS, failed, {"deliveries": 4, "distinct": 3}, 3, 3) == [
        "4 ends of 3 runs were told, 3 are known, 3 were asked for"
    ]


class Endless(Agent):
    """Does not end."""

    async def run(self, input: None) -> None:
        await asyncio.sleep(HOUR_S)


class WithData(SimStage):
    """A simulated world, with a directory for what stories write beside it."""

    def __init__(self, laboratory: Laboratory, client: Client, data: Path) -> None:
        super().__init__(laboratory, client)
        self.data = data


class OneKind(Soak):
    """Legs of one kind only, in the simulated world."""

    def __init__(self, kind: str, data: Path, seed: int) -> None:
        super().__init__(10.0, seed)
        self._kinds["endless"] = self._endless
        self._order_of_kinds = itertools.repeat(kind)
        self._data, self._shift = data, data / "clock"

    async def leg(self, stage: SimStage) -> None:
        await self._leg(stage)  # type: ignore[arg-type]

    async def _endless(self, stage: Any, number: int) -> None:
        self._begin(stage.run(Endless, None, f"endless-{number}"))
        await stage.run(Endless, None, "awaited")


def test_a_leg_that_does_not_end_is_given_up_and_what_it_waited_for_is_told(tmp_path: Path) -> None:
    soak = OneKind("endless", tmp_path, 1)

    async def story(client: Client) -> None:
        await soak.leg(WithData(laboratory, client, tmp_path))

    with Laboratory(5) as laboratory:
        laboratory.play(story, timeout_ms=2_000_000)
    (said,) = soak.wrong
    assert said.startswith("leg 1, endless: not over after 900 s; it waited for: ")
    assert "awaited is running, in attempt 1, on host " in said
    assert "endless-1 is running" in said


def test_what_lies_open_in_storages_is_named_with_its_state() -> None:
    common = {"agent": "d@m:Desk", "attempt": 2, "error": "no"}
    fiber = {"fiber_id": "f", "status": "running", "is_settled": False, **common}
    assert open_rows("fibers", [fiber, {**fiber, "is_settled": True}]) == [
        "f of d@m:Desk is running, in attempt 2, last error: no"
    ]
    item = {"id": "i", "status": "retrying", **common}
    assert open_rows("schedules", [item, {**item, "status": "parked"}]) == [
        "i of d@m:Desk is retrying, in attempt 2, last error: no"
    ]
    turn = {"request_id": "t", "status": "parked", "is_settled": False, **common, "error": None}
    assert open_rows("turns", [turn]) == ["t of d@m:Desk is parked, in attempt 2"]


@pytest.mark.thorough
def test_in_a_leg_of_clocks_queues_schedules_fibers_and_children_come_to_the_end_that_they_should(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = 1
    soak, jumps = OneKind("clock", tmp_path, seed), [0]

    async def story(client: Client) -> None:
        def jump(_file: Path, to_ms: int) -> None:
            laboratory.simulation.set_clocks(to_ms - jumps[-1])
            jumps.append(to_ms)

        monkeypatch.setattr("perdure.scenarios.stories.soak.shift_clocks", jump)
        await soak.leg(WithData(laboratory, client, tmp_path))

    with Laboratory(seed) as laboratory:
        laboratory.play(story)
    assert soak.wrong == []
    assert min(jumps) < 0 == jumps[-1]


def test_a_disk_is_full_until_the_ballast_is_gone_whatever_happens(tmp_path: Path) -> None:
    ballast = tmp_path / "ballast"
    ballast.symlink_to("/dev/full")

    def fill() -> None:
        with full_disk(ballast):
            assert ballast.is_symlink()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill()
    assert not ballast.is_symlink()
