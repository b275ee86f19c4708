"""Fibers under fire: in random weather, and with a death at every so many of the places where one can be."""

from __future__ import annotations

import pytest

from perdure.scenarios.swarm.explorer import explore
from perdure.scenarios.swarm.runner import swarm
from tests.actors.fiber_story import fiber_story


def test_fibers_come_to_their_ends_in_any_weather() -> None:
    report = swarm(7, story=fiber_story)
    assert report.ok, report.failures[0].trace
    assert report.kills > 50


@pytest.mark.thorough
@pytest.mark.shows(fibers="W4")
def test_fibers_come_to_their_ends_wherever_somebody_dies() -> None:
    report = explore(fiber_story, seed=5, stride=23)
    assert report.ok, report.failures[0].trace
    assert report.kills >= 7
