"""The simulated world repeats itself, and its weather is what it says."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest

from perdure.actors.ports import Fleet, Transport, World
from perdure.actors.sim_world.simulation import DiskFault, Span, Weather
from perdure.ledger import SupervisorUnreachable
from tests.actors.echo import (
    ANSWERS,
    CALM,
    MINUTE_MS,
    after,
    beat,
    digest_of_storm,
    echo,
    forever,
    hosted,
    questions,
    storm,
    supervised,
    whats,
)
from tests.tidy import IMPORT_PATH, ROOT

STORMS = list(range(10, 18))


def test_the_same_seed_gives_the_same_digest_and_another_seed_another() -> None:
    digests = [digest_of_storm(seed) for seed in STORMS]
    assert digests == [digest_of_storm(seed) for seed in STORMS]
    assert len({*digests}) == len(STORMS)


def test_the_digest_does_not_depend_on_the_hash_seed() -> None:
    program = "from tests.actors.echo import *; print([digest_of_storm(seed) for seed in STORMS])"
    program = program.replace("STORMS", repr(STORMS))
    here = [digest_of_storm(seed) for seed in STORMS]
    command, environment = [sys.executable, "-c", program], {"PYTHONHASHSEED": "77", "PYTHONPATH": IMPORT_PATH}
    there = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert there.stdout.strip() == repr(here)


def test_every_question_is_answered_in_any_weather() -> None:
    for seed in range(60):
        with storm(seed) as simulation:
            assert simulation.run(questions, timeout_ms=60 * MINUTE_MS) == ANSWERS, seed
        simulation.raise_errors()


def test_drawn_weather_is_calm_for_some_seeds_and_differs_between_others() -> None:
    drawn = [Weather.drawn(random.Random(seed)) for seed in range(100)]
    assert 3 <= drawn.count(CALM) <= 25
    assert 25 <= sum(weather.lost > 0 for weather in drawn) <= 75
    assert all(weather == Weather.drawn(random.Random(seed)) for seed, weather in enumerate(drawn))


async def count_echoes(world: World, transport: Transport) -> list[int]:
    """Thirty calls at once: the order in which their answers come, -1 for those that were lost."""
    order: list[int] = []

    async def call(n: int) -> None:
        try:
            order.append(int(await transport.exchange(str(n).encode())))
        except SupervisorUnreachable:
            order.append(-1)

    await asyncio.sleep(0.1)
    await asyncio.gather(*(call(n) for n in range(30)))
    return order


def test_lost_mail_is_told_to_the_caller_as_unknown() -> None:
    with supervised(forever, replace(CALM, lost=0.3)) as simulation:
        order = simulation.run(count_echoes)
    assert 3 < order.count(-1) < 27
    lost = [event.what.split()[0] for event in simulation.trace if event.what.endswith("lost")]
    assert set(lost) == {"call", "reply"}


def test_late_mail_is_overtaken() -> None:
    with supervised(forever, replace(CALM, late=0.5)) as simulation:
        order = simulation.run(count_echoes)
    assert sorted(order) == list(range(30))
    assert order != sorted(order)


def test_doubled_mail_is_processed_twice_and_answered_once() -> None:
    with supervised(forever, replace(CALM, doubled=1.0)) as simulation:
        order = simulation.run(count_echoes)
        simulation.run(after(100))
    assert sorted(order) == list(range(30))
    assert whats(simulation).count("arrives again") == 30


def test_a_partitioned_host_is_not_heard_until_the_partition_ends() -> None:
    heard: list[float] = []

    async def chatter(world: World, transport: Transport) -> None:
        while True:
            try:
                await transport.exchange(b"hello")
                heard.append(asyncio.get_running_loop().time())
            except SupervisorUnreachable:
                pass
            await asyncio.sleep(0.1)

    with hosted(chatter) as simulation:
        simulation.run(after(3_000))
        simulation.partition("h", 10_000)
        simulation.run(after(20_000))
    assert [at for at in heard if at < 3.0]
    assert not [at for at in heard if 3.01 < at < 13.0]
    assert [at for at in heard if at > 13.0]


def test_a_hung_host_does_nothing_and_then_goes_on_where_it_was() -> None:
    beats: list[float] = []
    with hosted(partial(beat, beats)) as simulation:
        simulation.run(after(3_000))
        simulation.hang("h", 5_000)
        simulation.run(after(10_000))
    assert not [at for at in beats if 3.0 < at < 8.0]
    assert len([at for at in beats if at >= 8.0]) == pytest.approx(50, abs=2)


def test_a_hung_host_hears_of_a_timeout_when_it_goes_on() -> None:
    heard: list[float] = []

    async def impatient(world: World, transport: Transport) -> None:
        try:
            async with asyncio.timeout(1):
                await asyncio.Event().wait()
        except TimeoutError:
            heard.append(asyncio.get_running_loop().time())

    with hosted(impatient) as simulation:
        simulation.run(after(1_300))
        simulation.hang("h", 5_000)
        simulation.run(after(10_000))
    assert heard == [pytest.approx(6.3)]
    assert [crash.cause for crash in simulation.crashes] == []


def test_healing_ends_hangs_and_partitions_and_all_faults_but_not_death() -> None:
    with echo(1, replace(CALM, lost=0.5, partitioned=0.5, hung=0.5, partition_ms=Span(1e7, 1e8))) as simulation:
        simulation.run(after(60_000))
        simulation.hang("supervisor", 1e8)
        simulation.run(after(60_000))
        dead = simulation.live_hosts()[0]
        simulation.kill(dead)
        simulation.heal()
        at_ms = simulation.now_ms()
        assert simulation.run(questions, timeout_ms=10_000) == ANSWERS
        assert simulation.now_ms() - at_ms < 10_000
        assert dead not in simulation.live_hosts()
    healed = [event.what for event in simulation.trace if event.at_ms > at_ms]
    assert not [what for what in healed if "lost" in what or "hangs" in what]
    simulation.raise_errors()


def test_wall_clocks_jump_both_ways_and_virtual_time_does_not() -> None:
    async def read(world: World, transport: Transport) -> list[int]:
        reads = []
        for _ in range(200):
            await asyncio.sleep(1)
            reads.append(world.clock.now_ms())
        return reads

    with supervised(forever, replace(CALM, clock_jump_every_ms=10_000)) as simulation:
        reads = simulation.run(read)
        assert simulation.now_ms() == pytest.approx(200_000)
    steps = [later - earlier for earlier, later in pairwise(reads)]
    assert min(steps) < 0
    assert max(steps) > 2_000
    assert steps.count(1_000) > 100


def test_a_failing_commit_kills_the_supervisor_with_or_without_its_effect_and_is_no_error() -> None:
    written: list[str] = []

    async def commit(world: World, fleet: Fleet) -> None:
        await world.threads.commit(partial(written.append, "x"))
        await asyncio.Event().wait()

    for fails, fails_late, effect in [(1.0, 0.0, []), (0.0, 1.0, ["x"])]:
        written.clear()
        with supervised(commit, replace(CALM, commit_fails=fails, commit_fails_late=fails_late)) as simulation:
            simulation.run(after(50))
            assert written == effect
            assert isinstance(simulation.crashes[0].error, DiskFault)
            simulation.heal()
            simulation.run(after(5_000))
        assert simulation.cluster.restarts == 1
        assert written == [*effect, "x"]
        simulation.raise_errors()


def test_commits_happen_in_call_order_and_take_time() -> None:
    written: list[int] = []

    async def main(world: World, transport: Transport) -> None:
        await asyncio.gather(*(world.threads.commit(partial(written.append, n)) for n in range(20)))

    with supervised(forever, replace(CALM, commit_slow=0.3)) as simulation:
        simulation.run(main)
        assert simulation.now_ms() > 100
    assert written == list(range(20))


def test_a_spawn_may_be_refused_and_a_host_lives_a_while_after_it_was_asked_for() -> None:
    with echo(1, replace(CALM, spawn_refused=0.5)) as simulation:
        assert simulation.run(questions) == ANSWERS
        assert len(simulation.live_hosts()) == 2
        assert simulation.now_ms() > 100
    simulation.raise_errors()
