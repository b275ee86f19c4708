"""What a soak says about what it measured. The soak itself is played in `tests/cluster`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from perdure.scenarios.stories.soak import size_mb, stood_still
from perdure.scenarios.stories.soak_curves import Sample, curves, grown, growth, told, warmed_up

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
            round(at("descriptors", 1_000, 60.0 * minute)),
            round(at("threads", 10_000, 60.0 * minute)),
            3,
        )
        for minute in range(int(minutes) + 1)
    ]


def test_growth_is_the_slope_of_the_line_as_a_share_of_the_mean_an_hour() -> None:
    at_s = [0.0, 1_800.0, 3_600.0]
    assert growth(at_s, [5.0, 5.0, 5.0]) == 0.0
    assert growth(at_s, [90.0, 100.0, 110.0]) == 0.2
    assert growth(at_s, [110.0, 100.0, 90.0]) == -0.2
    assert growth(at_s[:2], [90.0, 110.0]) is None
    assert growth(at_s, [0.0, 0.0, 0.0]) is None


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
    assert said.startswith(f"{measure} grows by")


def test_a_soak_that_is_too_short_is_told_and_not_judged() -> None:
    short = soaked(20, descriptors=3.0)
    assert grown(short) == []
    assert told(short)["curves"]["descriptors"]["growth"] > 1
    assert len(told(short)["samples"]) == 21
    assert curves([]) == []


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
