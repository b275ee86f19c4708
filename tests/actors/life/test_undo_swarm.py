"""Undos under fire: in random weather, and with a death at every so many of the places where one can be."""

from __future__ import annotations

import pytest

from perdure.scenarios.swarm.explorer import die_at, places
from perdure.scenarios.swarm.runner import swarm
from perdure.scenarios.testing.laboratory import QUICK
from tests.actors.trip_story import Desk, trip_story


def test_what_was_booked_is_cancelled_once_and_in_reverse_in_any_weather() -> None:
    for seed in range(6):
        Desk.begin_anew()
        report = swarm(1, seed, story=trip_story)
        assert report.ok, report.failures[0].trace


@pytest.mark.thorough
def test_so_it_is_wherever_somebody_dies() -> None:
    Desk.begin_anew()
    found = places(trip_story, 3, QUICK, None)[::29]
    assert len(found) > 7
    for place in found:
        Desk.begin_anew()
        death = die_at(trip_story, place, 3, QUICK, diaries=False)
        assert not death.problem, f"{place}: {death.problem}\n{death.trace}"
