"""In the simulated world the dead are dead, and what went wrong is told."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
from collections.abc import AsyncIterator
from functools import partial

import pytest

from perdure.actors.ports import Fleet, KillPoint, PoolSpec, Transport, World
from perdure.actors.sim_world.simulation import on_death
from perdure.actors.tasks import Killed
from perdure.ledger import SupervisorUnreachable
from tests.actors.echo import ANSWERS, CALM, Book, after, ask, beat, echo, forever, hosted, questions, supervised, whats


def test_a_dead_process_cannot_touch_the_world_from_its_finally_block() -> None:
    touched: list[str] = []
    fenced: list[bool] = []
    closing: list[str] = []

    async def stubborn(world: World, transport: Transport) -> None:
        on_death(lambda: fenced.append(not closing))

        async def background() -> None:
            while True:
                try:
                    await asyncio.sleep(0.1)
                finally:
                    await asyncio.sleep(0.1)
                    touched.append("background")

        keep = asyncio.create_task(background())
        try:
            await asyncio.sleep(0.5)
            await asyncio.Event().wait()
        finally:
            closing.append("finally")
            for port in (world.clock.now_ms, world.dice.roll, lambda: world.faults.at(KillPoint.MID_RUN)):
                with pytest.raises(Killed):
                    port()
                closing.append("refused")
            keep.cancel()
            asyncio.create_task(background())  # noqa: RUF006
            await transport.exchange(b"from the grave")
            touched.append("world")

    with hosted(stubborn) as simulation:
        simulation.run(after(1_500))
        touched.clear()
        assert simulation.kill("h")
        assert not simulation.kill("h")
        before = simulation.trace
        simulation.run(after(5_000))
    assert closing == ["finally", "refused", "refused", "refused"]
    assert fenced == [True]
    assert touched == []
    assert [event for event in simulation.trace[len(before) :] if event.process == "h"] == []
    assert simulation.kills == {"host": 1}
    simulation.raise_errors()


def test_a_process_killed_at_a_kill_point_unwinds_and_its_mail_on_the_way_still_arrives() -> None:
    lived: list[str] = []

    async def victim(world: World, transport: Transport) -> None:
        letter = asyncio.create_task(transport.exchange(b"last words"))
        await asyncio.sleep(0)
        try:
            world.faults.at(KillPoint.MID_RUN, "here")
        except Exception:
            lived.append("caught")
        lived.append("after")
        await letter

    with hosted(victim, kill_when=lambda _name, _point, detail: detail == "here") as simulation:
        simulation.run(after(2_000))
    assert lived == []
    assert [(crash.process, crash.cause) for crash in simulation.crashes] == [("h", "killed at mid_run here")]
    assert "call 1 arrives" in whats(simulation)
    assert simulation.visits == {("host", KillPoint.MID_RUN): 1}
    simulation.raise_errors()


def test_the_explorer_can_kill_at_every_single_kill_point() -> None:
    with echo(1, CALM) as simulation:
        simulation.run(questions)
    for visit in range(1, simulation.visit_count + 1):
        with echo(1, CALM, kill_at=visit) as explored:
            assert explored.run(questions) == ANSWERS
        assert sum(explored.kills.values()) == 1
        explored.raise_errors()


def test_a_death_is_told_to_the_supervisor_and_dead_hosts_stay_dead() -> None:
    told: list[tuple[str, float]] = []

    async def watch(world: World, fleet: Fleet) -> None:
        await fleet.spawn("h", PoolSpec(num_cpus=1))
        assert await fleet.survivors() == {"h": PoolSpec(num_cpus=1)}
        await asyncio.sleep(2)
        await fleet.kill("h")
        await fleet.kill("h")
        at = asyncio.get_running_loop().time()
        told.append((await fleet.death("h"), asyncio.get_running_loop().time() - at))
        assert await fleet.survivors() == {}
        await asyncio.Event().wait()

    with supervised(watch) as simulation:
        simulation.run(after(5_000))
    assert [reason for reason, _ in told] == ["killed by the supervisor"]
    assert 0.005 <= told[0][1] <= 0.05
    simulation.raise_errors()


def test_a_killed_supervisor_restarts_and_those_who_waited_for_it_hear_that_nothing_is_known() -> None:
    book = Book()
    with echo(1, CALM, book) as simulation:

        async def story(world: World, transport: Transport) -> float:
            await ask(transport, {"ask": "a"})
            simulation.kill("supervisor")
            at = asyncio.get_running_loop().time()
            with pytest.raises(SupervisorUnreachable):
                await transport.exchange(b'{"get": "b"}')
            return asyncio.get_running_loop().time() - at

        assert simulation.run(story) < 0.06
        assert simulation.run(questions) == ANSWERS
    assert simulation.cluster.restarts == 1
    assert book.lives == 2
    simulation.raise_errors()


def test_a_held_exchange_fails_when_the_supervisor_dies() -> None:
    with echo(1, CALM) as simulation:

        async def story(world: World, transport: Transport) -> None:
            held = asyncio.create_task(transport.exchange(b'{"get": "never"}'))
            await asyncio.sleep(1)
            assert not held.done()
            simulation.kill("supervisor")
            with pytest.raises(SupervisorUnreachable, match="the supervisor died"):
                await held

        simulation.run(story)


def test_after_a_power_cut_nothing_lives_until_power_is_back() -> None:
    book = Book()
    with echo(1, CALM, book) as simulation:
        simulation.run(questions)
        simulation.cluster.power_off()
        simulation.run(after(60_000))
        assert simulation.live_hosts() == []
        assert simulation.cluster.restarts == 0
        simulation.cluster.power_on()
        book.rows = dict.fromkeys(book.rows)
        assert simulation.run(questions) == ANSWERS
    assert simulation.cluster.restarts == 1
    simulation.raise_errors()


def test_a_supervisor_that_returns_is_not_restarted() -> None:
    with supervised(lambda _world, _fleet: asyncio.sleep(0.1)) as simulation:
        simulation.run(after(10_000))
    assert (simulation.cluster.restarts, simulation.crashes) == (0, [])


def test_a_hung_host_can_be_killed_and_never_goes_on() -> None:
    beats: list[float] = []
    with hosted(partial(beat, beats)) as simulation:
        simulation.run(after(2_000))
        simulation.hang("h", 5_000)
        simulation.run(after(1_000))
        simulation.kill("h")
        simulation.run(after(10_000))
    assert beats
    assert max(beats) < 2.001
    simulation.raise_errors()


def test_a_killed_client_has_no_result() -> None:
    async def main(world: World, transport: Transport) -> None:
        world.faults.at(KillPoint.MID_RUN)

    with supervised(forever, kill_at=1) as simulation, pytest.raises(Killed):
        simulation.run(main)


def test_an_unexpected_exception_of_a_process_is_an_error_and_a_crash() -> None:
    async def buggy(world: World, transport: Transport) -> None:
        raise ZeroDivisionError

    with hosted(buggy) as simulation:
        simulation.run(after(5_000))
    assert [type(error.error) for error in simulation.errors] == [ZeroDivisionError]
    assert [crash.process for crash in simulation.crashes] == ["h"]
    with pytest.raises(ExceptionGroup, match="seed 1"):
        simulation.raise_errors()


def test_an_exception_declared_harmless_is_no_error() -> None:
    async def buggy(world: World, transport: Transport) -> None:
        raise RuntimeError from ZeroDivisionError()

    with hosted(buggy, harmless=(ZeroDivisionError,)) as simulation:
        simulation.run(after(5_000))
    assert len(simulation.crashes) == 1
    simulation.raise_errors()


def test_a_background_task_that_fails_unheard_is_an_error() -> None:
    async def careless(world: World, transport: Transport) -> None:
        async def fail() -> None:
            raise ZeroDivisionError

        asyncio.create_task(fail())  # noqa: RUF006
        await asyncio.Event().wait()

    with hosted(careless) as simulation:
        simulation.run(after(5_000))
    assert [(error.process, type(error.error)) for error in simulation.errors] == [("h", ZeroDivisionError)]


def test_what_the_client_raises_comes_out_of_run() -> None:
    async def main(world: World, transport: Transport) -> None:
        raise ZeroDivisionError

    with supervised(forever) as simulation, pytest.raises(ZeroDivisionError):
        simulation.run(main)


@pytest.mark.thorough
@pytest.mark.filterwarnings("error")
def test_nothing_is_left_behind_even_by_tasks_that_refuse_to_die(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[str] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            for number in range(1_000):
                await asyncio.sleep(0.01)
                yield number
        finally:
            await asyncio.sleep(1)
            ended.append("generator")

    async def undying(world: World, transport: Transport) -> None:
        suppress = contextlib.suppress

        async def stay() -> None:
            for _ in range(500):  # it refuses often, and not for ever
                with suppress(BaseException):
                    await asyncio.sleep(1)

        keep = [asyncio.create_task(stay()), asyncio.create_task(transport.exchange(b"x"))]
        async for _ in numbers():
            keep += [asyncio.create_task(asyncio.sleep(100))]
        await asyncio.wait(keep)

    unraisable: list[object] = []
    hook, sys.unraisablehook = sys.unraisablehook, unraisable.append
    try:
        for kill_late in (False, True):
            with hosted(undying) as simulation:
                simulation.run(after(3_000))
                if kill_late:
                    simulation.kill("h")
                    simulation.run(after(3_000))
            simulation.raise_errors()
        loop = simulation.loop
        del simulation
        gc.collect()
    finally:
        sys.unraisablehook = hook
    assert loop.is_closed()
    assert asyncio.all_tasks(loop) == set()
    assert ended == []
    assert unraisable == []
    assert caplog.records == []
