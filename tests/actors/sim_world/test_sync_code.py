"""Sync code in the simulated world: it waits as it does on Ray, on a thread that takes turns with the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from perdure.actors import Agent, Client, FiberContext, Retries, RunContext, RunFailed, exposed
from perdure.actors.sim_world import process as sim_process
from perdure.scenarios.swarm.explorer import explore
from perdure.scenarios.swarm.runner import swarm
from perdure.scenarios.testing.laboratory import Laboratory
from tests.actors.sync_cast import Family, Leaf, Tree

PAUSE_S = 3.0


class Marks(Agent):
    """Keeps marks, each once."""

    @exposed(repeatable=True)
    def put(self, mark: str) -> int:
        with self.transaction():
            self.state[mark] = True
        return len(self.state)

    @exposed(repeatable=True)
    def seen(self) -> list[str]:
        return sorted(self.state)


class Gate(Agent):
    """Takes a place, asks, and leaves the place again when the answer is no."""

    def run(self, input: float, run: RunContext) -> str:
        run.step("reserve", partial(self.mark, "reserved"), undo=partial(self.mark, "released"))
        if not run.ask("Go on?", to="ops", expires=input, otherwise=False):
            raise PermissionError("refused")
        return "done"

    def mark(self, what: str, *_: object) -> int:
        return int(self.agent(Marks, "marks").put(what))  # type: ignore[call-overload]


class Waiter(Agent):
    """Waits in every way that sync code has."""

    def run(self, input: int, run: RunContext) -> list[object]:
        kept: Any = self.agent(Marks, "marks")
        found: list[Any] = [run.step("first", lambda: kept.put(run.run_id))]
        found.append(run.step("flaky", self._flaky, retry=Retries(attempts_max=9, first_ms=PAUSE_S * 1000)))
        run.sleep(PAUSE_S)
        found.append(run.wait_for("go"))
        asked: Any = [(Leaf, number) for number in range(input)]
        found.append(self.run_agent_tool(Tree, [2, 1]).output)
        found.append(len(self.run_agent_tools(asked)))
        found.append(sum(result.output for result in self.as_completed(asked)))
        found.append(len(self.first_ok(1, asked)))
        return found

    def _flaky(self) -> str:  # fails once in each life of its process
        self.tries = getattr(self, "tries", 0) + 1
        if self.tries < 2:
            raise OSError("not yet")
        return "at last"


class Errand(Agent):
    """Has a fiber that is sync code, and methods that wait."""

    @exposed
    def begin(self) -> str:
        done: Any = self.run_fiber("errand", self._errand)
        return str(done)

    def _errand(self, fiber: FiberContext) -> str:
        fiber.sleep(PAUSE_S)
        return "slept"

    @exposed
    async def on_a_thread(self) -> int:
        return await asyncio.to_thread(lambda: self.run_agent_tool(Leaf, 1).output)

    @exposed
    def pieces(self) -> Iterator[int]:
        for number in range(3):
            yield number + self.run_agent_tool(Leaf, number).output


class Clever(Agent):
    """Waits where nobody sees to it."""

    def run(self, input: str) -> int:
        ways: dict[str, Callable[[], Any]] = {"pool": self._in_a_pool, "loop": lambda: asyncio.run(self._ask())}
        return int(ways[input]())

    def _in_a_pool(self) -> int:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(lambda: self.run_agent_tool(Leaf, 1).output).result()

    async def _ask(self) -> int:
        return (await self.run_agent_tool(Leaf, 1)).output


class Dying(Agent):
    """Does what must have no effect as it dies."""

    tried: ClassVar[list[str]] = []

    def run(self, input: str, run: RunContext) -> str:
        try:
            run.sleep(PAUSE_S)
        finally:
            if not self.tried:
                for deed in (lambda: self.state.update(late=True), lambda: self.run_agent_tool(Leaf, 1)):
                    try:
                        deed()
                    except BaseException as refused:
                        self.tried.append(type(refused).__name__)
        return str(self.state.get("late"))


class Stubborn(Agent):
    """Does not let itself be ended."""

    def run(self, input: str, run: RunContext) -> None:
        while True:
            try:
                run.wait_for("never")
            except BaseException:  # noqa: S112 - bad code is the point
                continue


def simulated_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name == "perdure-simulated"]


async def waiters(client: Client) -> None:
    begun = await client.start(Waiter, 3, run_id="w")
    await client.send("w", "go", "now", event_id="e")
    result = await begun.result()
    assert result.output == [1, "at last", "now", 4, 3, 3, 1], result
    assert await client.agent(Marks, "marks").seen() == ["w"]


def test_sync_code_waits_in_virtual_time_and_a_seed_determines_everything() -> None:
    digests = set()
    for _ in range(2):
        with Laboratory(7) as laboratory:
            laboratory.play(waiters)
            assert laboratory.simulation.now_ms() > PAUSE_S * 1000
            laboratory.settle()
            digests.add(laboratory.simulation.digest())
    assert len(digests) == 1
    assert not simulated_threads()


def test_a_sync_run_asks_and_an_answer_that_never_comes_undoes_its_steps() -> None:
    with Laboratory(1) as laboratory:
        refused = laboratory.run(Gate, 100.0, run_id="g")
        assert (refused.status, "refused" in refused.error) == ("error", True)
        assert laboratory.agent(Marks, "marks").seen() == ["released", "reserved"]
        laboratory.settle()


def test_what_sync_methods_fibers_generators_and_threads_of_async_code_wait_for_comes() -> None:
    async def story(client: Client) -> None:
        errand, family = client.agent(Errand, "e"), client.agent(Family, "f")
        assert await errand.begin() == "slept"
        assert await errand.on_a_thread() == 1
        assert [each async for each in errand.pieces()] == [1, 2, 3]
        assert await asyncio.gather(family.gather(3), client.agent(Family, "g").gather(2)) == [[1, 1, 1], [1, 1]]

    with Laboratory(1) as laboratory:
        laboratory.play(story)
        laboratory.settle()


@pytest.mark.thorough
def test_sync_code_survives_bad_weather_and_a_death_at_every_place() -> None:
    report = swarm(6, story=waiters)
    assert report.ok, report.failures
    assert report.kills
    deaths = explore(waiters, stride=3)
    assert deaths.ok, deaths.failures
    assert not simulated_threads()


def test_what_sync_code_of_a_dead_process_tries_takes_no_effect() -> None:
    Dying.tried.clear()

    async def story(client: Client) -> str:
        begun = await client.start(Dying, "", run_id="d")
        await asyncio.sleep(PAUSE_S / 2)
        host = next(name for name, each in laboratory.hosts.items() if each.tenants)
        laboratory.simulation.kill(host)
        return str((await begun.result()).output)

    with Laboratory(1) as laboratory:
        assert laboratory.play(story) == "None"
        laboratory.settle()
    assert len(Dying.tried) == 2


@pytest.mark.parametrize("way", ["pool", "loop"])
def test_a_thread_or_a_loop_that_sync_code_begins_is_refused_to_wait_instead_of_for_ever(way: str) -> None:
    with Laboratory(1) as laboratory, pytest.raises(RunFailed, match="test this on Ray"):
        laboratory.run(Clever, way).output  # noqa: B018


def test_sync_code_that_does_not_end_by_its_death_is_told_of() -> None:
    async def story(client: Client) -> None:
        await client.start(Stubborn, "", run_id="s")
        await asyncio.sleep(PAUSE_S)

    with Laboratory(1) as laboratory:
        laboratory.play(story)
    assert "sync code goes on after its death" in str(laboratory.simulation.errors)


class Waits(Agent):
    """Waits for what only other code of the laboratory could set."""

    @exposed
    def in_vain(self) -> bool:
        return threading.Event().wait(0.5)


def test_sync_code_that_keeps_the_laboratory_for_long_is_named_with_its_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sim_process, "LOOKS_TILL_TOLD", 2)
    with Laboratory(seed=1) as laboratory:
        assert laboratory.agent(Waits, "w").in_vain() is False
    line = next(
        number for number, each in enumerate(Path(__file__).read_text().splitlines(), 1) if ".wait(0.5)" in each
    )
    told = capsys.readouterr().err
    assert told.startswith(f"perdure: {__file__}:{line}, in Waits.in_vain, has been at work for ten seconds")
    assert told.count("perdure:") == 1
