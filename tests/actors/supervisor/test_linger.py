"""Commits to a bucket, in virtual time: a busy stream of small ones lingers, and whatever else there is takes no longer for that."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from perdure.actors import Client
from perdure.actors.sim_world.weather import Span, Weather
from perdure.policies import Limits
from perdure.scenarios.cast.measured import Instant, Parent
from perdure.scenarios.testing.laboratory import Laboratory, Story

PUT_MS = 15
WAY = Span(PUT_MS / 2, PUT_MS / 2)
CALM = replace(Weather.calm(), commit_ms=Span(0.5, 0.5), bucket_ms=WAY)


class Played(NamedTuple):
    took_s: float
    commits: int


def played(place: Path, story: Story, linger_ms: float = 100) -> Played:
    """What a story took, where the storages are carried."""
    limits = Limits(hosts_max=2, linger_ms=linger_ms)
    with Laboratory(3, CALM, limits, checked=False, carried=place / str(linger_ms)) as laboratory:

        async def measured(client: Client) -> Played:
            await client.run(Instant, 0)
            loop, before = asyncio.get_running_loop(), await client.ask("ps")
            begun_s = loop.time()
            await story(client)
            took_s = loop.time() - begun_s
            after = await client.ask("ps")
            return Played(took_s, after["supervisor"]["commits"] - before["supervisor"]["commits"])

        return laboratory.play(measured)


async def one_by_one(client: Client) -> None:
    for number in range(100):
        await client.run(Instant, number)


async def side_by_side(client: Client) -> None:
    await asyncio.gather(*(client.call(Parent, f"parent {number}", "one_by_one", (80,), {}) for number in range(30)))


async def at_once(client: Client) -> None:
    for number in range(4):
        await client.call(Parent, f"parent {number}", "fan_out", (2_000,), {})


async def busy(client: Client) -> None:
    """Three hundred agents, two hundred steps a second, for seven seconds and a half."""
    await client.call(Parent, "parent", "think", (300, 9, 0), {})


def test_runs_that_are_awaited_one_after_the_other_see_no_linger(tmp_path: Path) -> None:
    lingering, prompt = (played(tmp_path, one_by_one, linger_ms) for linger_ms in (100, 0))
    assert lingering == prompt
    assert lingering.commits >= 200
    assert lingering.took_s > 3, "the stream was busy for long enough"


@pytest.mark.thorough
def test_fan_outs_see_none(tmp_path: Path) -> None:
    lingering, prompt = (played(tmp_path, at_once, linger_ms) for linger_ms in (100, 0))
    assert lingering.took_s < 1.02 * prompt.took_s
    assert lingering.commits <= prompt.commits


@pytest.mark.thorough
def test_agents_that_only_wait_for_their_commits_are_slowed_for_a_second_now_and_then(tmp_path: Path) -> None:
    lingering, prompt = (played(tmp_path, side_by_side, linger_ms) for linger_ms in (100, 0))
    assert prompt.took_s > 3
    assert prompt.took_s + 0.5 < lingering.took_s < prompt.took_s + 2.5


@pytest.mark.thorough
def test_many_agents_that_commit_a_little_each_make_ten_commits_a_second(tmp_path: Path) -> None:
    lingering, prompt = (played(tmp_path, busy, linger_ms) for linger_ms in (100, 0))
    assert prompt.commits / prompt.took_s > 45
    first = prompt.commits / prompt.took_s  # of a second, until it lingers
    assert lingering.commits - first < 10 * lingering.took_s
    assert lingering.took_s < prompt.took_s + 6 * 0.2, "no step waits for longer than two turns"
