"""Test your own agents in the simulated world: kills, lost mail, slow disks, on virtual time, replayed by one seed."""

from __future__ import annotations

from perdure.actors.sim_world.weather import Span, Weather
from perdure.scenarios.swarm.explorer import explore
from perdure.scenarios.swarm.runner import swarm
from perdure.scenarios.testing.laboratory import Laboratory, Story, Violation

__all__ = ["Laboratory", "Span", "Story", "Violation", "Weather", "explore", "swarm"]
