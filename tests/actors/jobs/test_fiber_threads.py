"""Fibers of sync agents: their bodies run on threads, and whatever they ask of their agent they may ask from there."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, ClassVar

from perdure.actors import Agent, FiberContext, exposed
from perdure.ledger import FiberStopped
from tests.actors.one_process import OneProcess, play
from tests.actors.sync_cast import Stuck
from tests.kit import played


class Sync(Agent):
    """Does everything in plain sync code."""

    told: ClassVar[list[Any]] = []  # of this process, for the test

    @exposed
    def start(self, fn_name: str, input: Any) -> dict[str, Any]:
        return asdict(self.start_fiber("job", fn_name, input, fiber_id=f"{fn_name} {input}", wait_for_completion=True))

    def adds(self, fiber: FiberContext, input: list[int]) -> None:
        for place, number in enumerate(input):
            fiber.step(f"add {place}", lambda number=number: self._add(number))
        self.stash(self.state["sum"])

    def _add(self, number: int) -> int:
        self.state["sum"] = self.state.get("sum", 0) + number
        return number

    def waits(self, fiber: FiberContext, input: int) -> None:
        if input:
            inner = self.start_fiber("job", "waits", input - 1, wait_for_completion=True)
            fiber.stash([input, *(inner.snapshot or [])])

    @exposed
    def unmanaged(self) -> int:
        return int(self.run_fiber("job", lambda fiber: fiber.attempt + 1))

    @exposed
    def begin(self) -> str:
        return str(self.start_fiber("job", "stuck", fiber_id="s").status)

    def stuck(self, fiber: FiberContext) -> None:
        fiber.stash("before")
        self.told.append("began")
        Stuck.free.wait(60)
        self.told.append((fiber.is_cancelled, fiber.stash("after")))
        try:
            fiber.step("last", lambda: 1)
        except FiberStopped as stopped:
            self.told.append(stopped.step)

    @exposed
    def cancel(self) -> dict[str, Any]:
        cancelled = self.cancel_fiber("s", "enough")
        told = self.inspect_fiber("s")
        assert told is not None
        return {"cancelled": cancelled, **asdict(told)}


@played(play)
async def test_a_sync_body_steps_and_stashes(world: OneProcess, /) -> None:
    told = await world.client.agent(Sync, "s").start("adds", [1, 2, 3])  # type: ignore[misc]
    assert (told["status"], told["snapshot"]) == ("completed", 6)
    assert await world.client.agent(Sync, "s").unmanaged() == 2  # type: ignore[misc]


@played(lambda story: play(story, threads_max=1, fibers_at_once_max=1))
async def test_sync_bodies_that_wait_for_each_other_need_no_more_threads_than_there_are(world: OneProcess, /) -> None:
    told = await world.client.agent(Sync, "s").start("waits", 5)  # type: ignore[misc]
    assert (told["status"], told["snapshot"]) == ("completed", [5, 4, 3, 2, 1])


def test_a_cancelled_sync_body_is_not_waited_for_and_finds_out() -> None:
    Stuck.free.clear()
    Sync.told.clear()

    async def story(world: OneProcess) -> None:
        agent: Any = world.client.agent(Sync, "s")
        await agent.begin()
        await world.until(lambda: Sync.told == ["began"])
        told = await agent.cancel()
        assert (told["cancelled"], told["status"], told["error"]) == (True, "aborted", "enough")
        assert told["snapshot"] == "before"
        Stuck.free.set()
        await world.until(lambda: len(Sync.told) == 3)
        assert (await agent.cancel())["cancelled"] is False

    play(story)
    assert Sync.told == ["began", (True, False), "last"]
