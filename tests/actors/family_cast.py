"""A family of agents that does what its tests ask of it: an elder, and kids that may have kids of their own."""

from __future__ import annotations

import abc
import asyncio
from collections import Counter
from typing import Any, ClassVar

from perdure.actors import Agent, FiberContext, RunContext, RunInfo, RunResult, exposed
from perdure.ledger import PerdureError, sub_agent_id
from tests.kit import Stage, address


class Kid(Agent):
    """Keeps notes in storage of its own. What it did outside, where no deletion undoes it, is counted here."""

    effects: ClassVar[Counter[str]] = Counter()

    @exposed
    def note(self, word: str) -> list[str]:
        self.effects[f"noted {word}"] += 1
        with self.transaction():
            self.state["notes"] = [*self.state.get("notes", []), word]
            return list(self.state["notes"])

    @exposed
    def notes(self) -> list[str]:
        return list(self.state.get("notes", []))

    @exposed
    async def hang(self) -> None:
        self.effects["hanging"] += 1
        await asyncio.sleep(10_000)

    @exposed
    async def way(self) -> list[str]:
        return [name for _, name in self.path]

    # relatives

    @exposed
    async def below(self, names: list[str], method: str, args: list[Any]) -> Any:
        """Call a method of a descendant, hop by hop."""
        if not names:
            return await self._perdure.call(getattr(self, method), *args)
        return await self.sub_agent(Kid, names[0]).below(names[1:], method, args)

    @exposed
    def kids(self) -> list[str]:
        return [each.name for each in self.sub_agents.list()]

    @exposed
    def drop(self, name: str) -> None:
        self.sub_agents.delete(Kid, name)

    @exposed
    async def abort(self, name: str, reason: str = "enough") -> None:
        await self.sub_agents.abort(Kid, name, reason)

    @exposed
    async def go(self) -> None:
        await self.destroy()

    @exposed
    async def parents_name(self) -> str:
        return str((await self.parent.way())[-1])

    # what lasts

    @exposed
    def plan(self, after_s: float, word: str, key: str | None = None) -> str:
        return self.schedule(after_s, "planned", word, key=key).schedule_id

    @exposed
    def plan_every(self, every_s: float, word: str) -> str:
        return self.schedule_every(every_s, "planned", word).schedule_id

    @exposed
    def plan_cron(self, text: str, word: str) -> str:
        return self.schedule(text, "planned", word).schedule_id

    @exposed
    def unplan(self, schedule_id: str) -> bool:
        return self.schedules.cancel(schedule_id)

    @exposed
    def plans(self) -> list[str]:
        return [each.schedule_id for each in self.schedules.list()]

    def planned(self, payload: Any, occurrence: Any) -> None:
        self.effects[payload] += 1
        self.note(payload)
        if payload == "only once":
            self.schedules.cancel(occurrence.schedule_id)

    async def planned_end(self, payload: Any, occurrence: Any) -> None:
        self.effects[payload] += 1
        await self.destroy()

    @exposed
    def plan_end(self, after_s: float) -> None:
        self.schedule(after_s, "planned_end", "end")

    @exposed
    def line_up(self, *words: str) -> None:
        for word in words:
            self.queue("planned", word)

    @exposed
    def begin(self, steps: int, pause_s: float, fiber_id: str = "f") -> str:
        return str(self.start_fiber("work", "work", [steps, pause_s], fiber_id=fiber_id, retry=9).fiber_id)

    async def work(self, fiber: FiberContext, input: list[float]) -> None:
        steps, pause_s = input
        for number in range(int(steps)):
            fiber.step(f"step {number}", lambda: self.effects.update(["step"]))
            await asyncio.sleep(pause_s)

    @exposed
    def begin_end(self) -> None:
        self.start_fiber("end", "end_in_fiber", fiber_id="end", retry=9)

    async def end_in_fiber(self, fiber: FiberContext, input: Any) -> None:
        self.effects["fiber"] += 1
        await self.destroy()

    @exposed
    def fiber_status(self, fiber_id: str = "f") -> str:
        fiber = self.inspect_fiber(fiber_id)
        return "" if fiber is None else f"{fiber.status}{fiber.error or ''}"

    @exposed
    async def start_run(self, run_id: str, seconds: int = 0) -> None:
        await self.run_agent_tool(Slow, seconds, run_id=run_id, detached=True)

    async def on_agent_tool_finish(self, run: RunInfo, result: RunResult) -> None:
        self.note(f"{run.run_id} {result.status}")

    @exposed
    def tell_kid(self, name: str, *words: str) -> None:
        with self.transaction():
            for word in words:
                self.sub_agent(Kid, name).note.tell(word)  # type: ignore[attr-defined]


class Slow(Agent):
    """Takes its time."""

    async def run(self, input: int, run: RunContext) -> int:
        await asyncio.sleep(input)
        if input == 3:
            raise ValueError("three")
        return input


class Cousin(Kid):
    """Another class of kids, who begin with a run."""

    async def on_start(self) -> None:
        await self.run_agent_tool(Slow, 1, run_id=f"first run of {self.name}", detached=True)


class Elder(Kid):
    """The root of the family."""

    @exposed
    async def cousin(self, name: str, word: str) -> list[str]:
        return list(await self.sub_agent(Cousin, name).note(word))  # type: ignore[misc]

    @exposed
    async def drop_and_note(self, name: str, word: str) -> list[str]:
        """What asks for the name again in the same breath gets a new one."""
        self.sub_agents.delete(Kid, name)
        return list(await self.sub_agent(Kid, name).note(word))  # type: ignore[misc]

    @exposed
    def drop_and_tell(self, name: str, word: str) -> None:
        with self.transaction():
            self.sub_agents.delete(Kid, name)
            self.sub_agent(Kid, name).note.tell(word)  # type: ignore[attr-defined]

    @exposed
    async def use_old_handle(self, name: str) -> list[str]:
        """A handle outlives what it stands for."""
        handle = self.sub_agent(Kid, name)
        self.sub_agents.delete(Kid, name)
        return list(await handle.note("late"))  # type: ignore[misc]

    @exposed
    def described(self, of: str = "") -> list[list[Any]]:
        return [list(each) for each in self.sub_agents.list(self._cousins(of))]

    @exposed
    def has(self, of: str, name: str) -> bool:
        return self.sub_agents.has(self._cousins(of) or Kid, name)

    def _cousins(self, of: str) -> Any:
        """The class of cousins, as a class or by its name."""
        return {"class": Cousin, "text": address(Cousin, "x").rpartition("@")[2]}.get(of)

    @exposed
    async def visit_all(self, names: list[str]) -> None:
        await asyncio.gather(*(self.sub_agent(Kid, name).way() for name in names))

    @exposed
    def drop_all(self, names: list[str]) -> None:
        with self.transaction():
            for name in names:
                self.sub_agents.delete(Kid, name)

    @exposed
    def find(self, what: Any) -> str:
        """Ask for what may be no class of agents; what is wrong is answered in words."""
        wanted = {"text": "Kid", "none": None, "int": int, "abstract": Abstract, "local": _local(), "base": Agent}[what]
        try:
            self.sub_agent(wanted, "x")
        except PerdureError as problem:
            return f"{type(problem).__name__}: {problem}"
        return ""


class Abstract(Kid, abc.ABC):
    """Cannot be made."""

    @abc.abstractmethod
    def missing(self) -> None:
        """Nobody wrote this."""


def _local() -> type[Agent]:
    class Local(Agent):
        """Nobody else can find it."""

    return Local


def kid(*names: str, root: str = "p") -> str:
    """The address of a kid by its way below the elder."""
    agent = address(Elder, root)
    for name in names:
        agent = sub_agent_id(agent, address(Kid, "x").rpartition("@")[2], name)
    return agent


async def ask(stage: Stage, names: list[str], method: str, *args: Any, root: str = "p") -> Any:
    """Call a method of a kid by its way below the elder."""
    return await stage.call(Elder, "below", names, method, list(args), name=root)
