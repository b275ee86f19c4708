"""The fan-out story in the simulated world: whoever dies, the sum is right and every completion arrives once."""

from __future__ import annotations

import io
from collections import Counter
from typing import Any

import pytest
from rich.console import Console

from perdure.actors import RunFailed
from perdure.scenarios.commands.shown import percentiles
from perdure.scenarios.faults.chaos import MAIL
from perdure.scenarios.faults.strikes import Strike, Victim
from perdure.scenarios.live_view import LiveView, Screen
from perdure.scenarios.stories.by_progress import Due, Scene, left_of
from perdure.scenarios.stories.engine import simulate_in_one_world, simulated
from perdure.scenarios.stories.fan_out import (
    KINDS,
    FanOut,
    FanOutProgress,
    Harvest,
    Order,
    account,
    kills_of,
    pace_for,
    wrong_of,
)
from perdure.scenarios.testing.laboratory import Laboratory
from tests.kit import some

FIELDS = "scenario world seed runs deliveries kills kills_left_out seconds runs_per_second recovery_ms verified".split()


class Audience(Screen):
    """Looks closely; at the picture now and then, since drawing it takes longer than what is drawn."""

    seen = 0

    def show(self, view: LiveView) -> None:
        assert isinstance(view, Scene)
        assert view.ended <= view.requested
        assert f"{view.ended}/{view.requested} ended" in view.line()
        if self.seen % 16 == 0:
            Console(file=io.StringIO()).print(view.picture(24))
        self.seen += 1


class Watched(FanOut):
    """A fan-out whose world is looked at afterwards."""

    def simulate(self) -> None:
        seen: list[Laboratory] = []
        simulate_in_one_world(self, self.play, seen.append)
        self.laboratory = seen[0]


def played(order: Order) -> tuple[dict[str, Any], list[str], Laboratory]:
    scenario = Watched(order, order.pace_s)
    scenario.screen = Audience()
    return simulated(scenario), scenario.wrong, scenario.laboratory


@pytest.mark.parametrize("awaited", [False, True], ids=["detached", "awaited"])
@pytest.mark.parametrize("seed", some(1, range(3)))
def test_with_a_kill_of_every_kind_the_sum_is_that_of_a_plain_loop(seed: int, awaited: bool) -> None:
    order = Order(children=15, kills=3, seed=seed, awaited=awaited, cold_restart=True, pace_s=16)
    told, wrong, laboratory = played(order)
    assert wrong == []
    assert told["verified"]
    assert list(told) == FIELDS
    assert list(told["kills"]) == list(KINDS)
    assert told["kills"] == dict.fromkeys(KINDS, 1)
    assert told["kills_left_out"] == {}
    assert told["runs"] == {"requested": 15, "completed": 15, "error": 0, "aborted": 0, "interrupted": 0}
    assert told["deliveries"]["delivered"] == (0 if awaited else 15)
    assert laboratory.simulation.cluster.restarts >= 2


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("children", "kills", "seed", "awaited"),
    [(1, 3, 0, False), (2, 8, 1, False), (5, 8, 11, False), (3, 5, 2, True), (1, 2, 4, True)],
)
def test_however_few_children_there_are_all_kills_are_made(children: int, kills: int, seed: int, awaited: bool) -> None:
    order = Order(children=children, kills=kills, seed=seed, awaited=awaited)
    order.pace_s = pace_for(order)
    told, wrong, _ = played(order)
    assert wrong == []
    assert (sum(told["kills"].values()), told["kills_left_out"]) == (kills, {})


def test_a_look_that_waited_for_the_supervisors_next_life_holds_up_no_further_look() -> None:
    """It was taken for a heavy look, and the pause after it lasted until the work was done; two kills were left out."""
    order = Order(children=8, kills=3, seed=5, pace_s=6)
    told, wrong, _ = played(order)
    assert wrong == []
    assert told["kills"] == {"child": 1, "parent": 1, "supervisor": 1, "cluster": 0}


def test_every_kill_is_either_made_or_told_to_be_left_out() -> None:
    told, wrong, _ = played(Order(children=3, kills=9, seed=1, pace_s=0))
    assert wrong == []
    assert sum(told["kills"].values()) + sum(told["kills_left_out"].values()) == 9


def test_who_carries_on_makes_the_kills_that_are_left() -> None:
    drawn: Due = [(1, "child"), (4, "parent"), (6, "supervisor"), (8, "child")]
    assert left_of(drawn, []) == drawn
    assert left_of(drawn, ["supervisor", "child"]) == [(6, "parent"), (8, "child")]
    assert left_of(drawn, ["child", "parent", "supervisor", "child"]) == []


def test_a_slow_machine_is_given_more_time_for_each_kill() -> None:
    order = Order(children=100, kills=3)
    assert pace_for(order, 0.5) == pace_for(order) == 6.0
    assert pace_for(order, 20.0) == 30.0
    assert pace_for(Order(children=100), 20.0) == 0.0


def test_the_same_seed_plays_the_same_story() -> None:
    order = Order(children=8, kills=3, seed=5, pace_s=6)
    assert played(order)[2].simulation.digest() == played(order)[2].simulation.digest()


def test_kills_are_spread_over_the_work_and_every_kind_comes_before_any_comes_again() -> None:
    order = Order(children=1000, kills=9, seed=3)
    drawn = kills_of(order)
    assert drawn == kills_of(order) == sorted(drawn, key=lambda each: each[0])
    assert all({kind for _, kind in drawn[start : start + 3]} == {*KINDS[:3]} for start in (0, 3, 6))
    assert drawn[0][0] < 200
    assert 500 < drawn[-1][0] < 700, "what is left of the work is for kills that come late"
    assert kills_of(Order(children=10, cold_restart=True)) == [(5, "cluster")]


def test_a_completion_that_was_delivered_twice_or_lost_is_told() -> None:
    order, none = Order(children=4), dict.fromkeys(MAIL, 0)
    audit = none | {"enqueued": 4, "delivered": 3, "balanced": False}
    end = {"totals": {}, "deliveries": 4, "distinct": 3}
    harvest = Harvest(1.0, audit, end, Counter(completed=4), Counter(child=2))
    mail = account(order, FanOutProgress(before=none), harvest)
    assert (mail["duplicated"], mail["lost"]) == (1, 1)
    wrong = list(wrong_of(order, FanOutProgress(before=none), harvest))
    assert any("delivered twice" in each for each in wrong)
    assert any("lost" in each for each in wrong)
    assert any("does not balance" in each for each in wrong)
    assert any(each.startswith("files:") for each in wrong)
    harvest.end = RunFailed(run_id="census", agent_type="Census", status="error", error="why")
    assert "the census ended error: why" in list(wrong_of(order, FanOutProgress(before=none), harvest))


def test_a_strike_has_recovered_when_all_its_runs_are_in_a_later_attempt_or_ended() -> None:
    def overview(*rows: tuple[str, int, str]) -> dict[str, Any]:
        live = [
            {"run_id": run, "attempt": attempt, "status": status, "host": "h", "parent": "p"}
            for run, attempt, status in rows
        ]
        return {"epoch": 1, "live": live, "agents": []}

    before = overview(("a", 1, "running"), ("b", 1, "running"))
    strike = Strike.of("child", {Victim("h", 1, "box"): "SIGKILL"}, before, 0.0)
    assert not strike.has_recovered(overview(("a", 2, "running"), ("b", 1, "running")), 1.0)
    assert not strike.has_recovered(overview(("a", 2, "running"), ("b", 2, "starting")), 2.0)
    assert strike.left == ["b"]
    assert strike.has_recovered(overview(("a", 2, "running")), 3.0)
    assert strike.took_ms == 3_000


def test_percentiles_of_nothing_are_none() -> None:
    assert percentiles([]) == {"p50": None, "p99": None, "max": None}
    assert percentiles([3.0, 1.0, 2.0]) == {"p50": 2.0, "p99": 3.0, "max": 3.0}
