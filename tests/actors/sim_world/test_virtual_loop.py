"""The virtual loop waits for nothing, and says so when there is nothing to wait for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import anyio
import anyio.to_thread
import pytest

from perdure.actors.ports import Transport, World
from perdure.actors.sim_world.simulation import Deadlock, Overdue, Runaway
from tests.actors.echo import CALM, after, echo, forever, supervised


def test_a_deadlock_is_found_at_once_and_says_who_waits_where() -> None:
    with supervised(forever) as simulation, pytest.raises(Deadlock) as caught:
        simulation.run(forever)
    assert any("client: " in line and "in wait" in line for line in caught.value.pending)
    assert any("supervisor: " in line for line in caught.value.pending)


def test_a_run_that_takes_too_long_is_overdue() -> None:
    with supervised(forever) as simulation, pytest.raises(Overdue):
        simulation.run(after(10_000), timeout_ms=5_000)


def test_spinning_without_letting_time_pass_is_a_runaway() -> None:
    async def spin(world: World, transport: Transport) -> None:
        while True:
            await asyncio.to_thread(len, "x")

    with supervised(forever, steps_max=1_000) as simulation, pytest.raises(Runaway):
        simulation.run(spin)


def test_threads_of_authors_run_inline() -> None:
    async def main(world: World, transport: Transport) -> tuple[int, str]:
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)
        return await asyncio.to_thread(len, "four"), await world.threads.run(lambda: "beside")

    with supervised(forever) as simulation:
        assert simulation.run(main) == (4, "beside")


ASKED: dict[str, Callable[[], Awaitable[object]]] = {
    "a connection": lambda: asyncio.open_connection("127.0.0.1", 1),
    "a connection of anyio": lambda: anyio.connect_tcp("127.0.0.1", 1),
    "a server": lambda: asyncio.start_server(lambda *_: None, "127.0.0.1", 0),
    "a process": lambda: asyncio.create_subprocess_exec("true"),
    "a shell": lambda: asyncio.create_subprocess_shell("true"),
}


@pytest.mark.parametrize("what", ASKED)
def test_what_there_is_not_is_refused_in_words(what: str) -> None:
    async def main(world: World, transport: Transport) -> str:
        with pytest.raises((NotImplementedError, ExceptionGroup)) as raised:
            await ASKED[what]()
        return str(getattr(raised.value, "exceptions", [raised.value])[0])

    with supervised(forever) as simulation:
        assert "neither sockets nor processes" in simulation.run(main)


def test_so_do_threads_of_anyio_which_libraries_use() -> None:
    """Time would fly while they work."""

    async def main(world: World, transport: Transport) -> float:
        begun_ms = world.clock.now_ms()
        with pytest.raises(ZeroDivisionError):
            await anyio.to_thread.run_sync(lambda: 1 // 0)
        limited = anyio.CapacityLimiter(1)
        assert await anyio.to_thread.run_sync(len, "four", limiter=limited, abandon_on_cancel=True) == 4
        return world.clock.now_ms() - begun_ms

    with supervised(forever) as simulation:
        assert simulation.run(main) == 0
    assert not [each for each in threading.enumerate() if each.name == "AnyIO worker thread"]


def test_on_any_other_loop_they_are_anyio_s_own() -> None:
    assert asyncio.run(anyio.to_thread.run_sync(lambda: threading.current_thread().name)) == "AnyIO worker thread"


def test_the_check_after_a_step_can_end_the_run() -> None:
    calls: list[float] = []

    def check() -> None:
        calls.append(simulation.now_ms())
        assert simulation.now_ms() < 1_000, "an invariant"

    with echo(1, CALM, after_step=check, step_stride=3) as simulation, pytest.raises(AssertionError, match="invariant"):
        simulation.run(after(5_000))
    assert len(calls) > 3
    assert calls[-2] < 1_000 <= calls[-1]
