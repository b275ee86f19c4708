"""Fibers, schedules, sub-agents and the children of runs under real kills: what they had done is not done again, and nothing is lost.

What happened is read in a file beside the data directory, where no death undoes it, and where a second time would show.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from perdure.actors import (
    Agent,
    ChatAgent,
    FiberContext,
    FiberRecovery,
    FiberResult,
    Occurrence,
    RunContext,
    Runtime,
    exposed,
)
from perdure.ledger import OutcomeUnknown
from perdure.policies import Limits

pytestmark = pytest.mark.shared_ray

PATIENCE_S = 60.0
LATE_MS_MAX = 30_000  # on a busy machine, of a call after its time, or after the supervisor is back
FOR_EVER_S = 3_600.0


class Noting(Agent):
    """Notes what it does in a file."""

    stands_alone = True

    @exposed
    def take(self, file: str) -> int:
        """Note it there from now on. Returns the process."""
        self.state["file"] = file
        return os.getpid()

    def note(self, *words: object) -> None:
        with Path(self.state["file"]).open("a") as file:
            file.write(" ".join(map(str, words)) + "\n")

    def times(self, words: str) -> int:
        """How many times it was noted."""
        return Path(self.state["file"]).read_text().count(words)


class Notes:
    """What the agents of one test have noted."""

    def __init__(self, file: Path) -> None:
        self.file = str(file)

    def lines(self) -> list[str]:
        file = Path(self.file)
        return file.read_text().splitlines() if file.exists() else []

    def count(self, line: str) -> int:
        return self.lines().count(line)


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    with Runtime(tmp_path_factory.mktemp("jobs"), limits=Limits(idle_ms=1_000)) as opened:
        yield opened


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path / "notes")


def until(look: Callable[[], Any]) -> Any:
    end_s = time.monotonic() + PATIENCE_S
    while not (found := look()):
        assert time.monotonic() < end_s
        time.sleep(0.05)
    return found


def kill_supervisor(runtime: Runtime) -> None:
    """And wait until the next one answers."""
    os.kill(until(lambda: runtime.cluster.processes().get("supervisor")).pid, signal.SIGKILL)
    assert until(lambda: runtime.ps()["supervisor"]["longest_turn_ms"]) < 30_000


def asleep(runtime: Runtime, name: str) -> bool:
    """Whether nobody of that name is awake, nor of a name below it."""
    return not any(agent.startswith(f"{name}@") for agent, *_ in runtime.ps()["agents"])


# fibers


class Smith(Noting):
    """Has fibers that stand still after their second step in the first attempt."""

    behind: ClassVar[list[asyncio.Task[object]]] = []

    @exposed
    async def begin(self, managed: list[str], unmanaged: list[str]) -> None:
        """Begin fibers."""
        for name in managed:
            self.start_fiber(name, self.work, idempotency_key=name, metadata={"of": name})
        for name in unmanaged:
            self.behind.append(asyncio.ensure_future(self.run_fiber(name, self.work)))

    @exposed
    async def begin_below(self, file: str, managed: list[str], unmanaged: list[str]) -> int:
        """Begin fibers of a sub-agent. Returns its process."""
        below: Any = self.sub_agent(Smith, "below")
        process = await below.take(file)
        await below.begin(managed, unmanaged)
        return int(process)

    async def work(self, fiber: FiberContext) -> None:
        self.note(fiber.name, "attempt", fiber.attempt, fiber.snapshot)
        for step in range(3):
            await fiber.step(f"step {step}", partial(self.note, fiber.name, "step", step))
            fiber.stash(step)
            if (step, fiber.attempt) == (1, 1):
                self.note(fiber.name, "rests")
                await asyncio.sleep(FOR_EVER_S)

    async def on_fiber_recovered(self, fiber: FiberRecovery) -> FiberResult | str | None:
        self.note(fiber.name, "hook", fiber.snapshot)
        if fiber.name.startswith("told"):
            return FiberResult("completed", snapshot="by the hook", metadata={"of": "the hook"})
        return "retry" if fiber.name == "entered again" else None

    @exposed(repeatable=True)
    async def end_of(self, name: str) -> list[Any]:
        """The end of one, which is asked for again, and waited for."""
        told = await self.start_fiber(
            name, self.work, idempotency_key=name, metadata={"of": name}, wait_for_completion=True
        )
        return [told.accepted, told.status, told.snapshot, told.metadata, told.attempt]

    @exposed(repeatable=True)
    def left(self) -> int:
        """How many fibers are on record."""
        return len(self.list_fibers())


@pytest.mark.shows(fibers="F53 F54 F55 F56 F57 F58 F59")
def test_fibers_whose_process_is_killed_are_told_to_the_hook_once_and_do_no_step_twice(
    runtime: Runtime, notes: Notes
) -> None:
    """Five of one agent, two with a record and three without; and three of its sub-agent, in another process."""
    smith = runtime.agent(Smith, "smith")
    above, below = ["entered again", "told", "x", "y", "z"], ["told below", "left", "w"]
    processes = {smith.take(notes.file), smith.begin_below(notes.file, below[:2], below[2:])}
    smith.begin(above[:2], above[2:])
    assert len(processes) == 2
    until(lambda: all(notes.count(f"{name} rests") for name in above + below))
    for process in processes:
        os.kill(process, signal.SIGKILL)

    assert smith.end_of("entered again") == [False, "completed", 2, {"of": "entered again"}, 2]
    assert smith.end_of("told") == [False, "completed", "by the hook", {"of": "the hook"}, 1]
    child = runtime.agent(Smith, "below", of=smith)
    assert child.end_of("told below") == [False, "completed", "by the hook", {"of": "the hook"}, 1]
    assert child.end_of("left") == [False, "interrupted", 1, {"of": "left"}, 1]
    until(lambda: all(notes.count(f"{name} hook 1") for name in above + below))
    until(lambda: asleep(runtime, "smith"))
    assert (smith.left(), child.left()) == (2, 2), "of work without a record nothing is left"
    expected = Counter(
        f"{name} {what}" for name in above + below for what in ("attempt 1 None", "step 0", "step 1", "rests", "hook 1")
    )
    expected.update(["entered again attempt 2 1", "entered again step 2"])
    assert Counter(notes.lines()) == expected


# schedules and the queue


class Clock(Noting):
    """Writes down when it was called."""

    @exposed
    def begin(self, delay_s: float) -> None:
        """Be called once, and each second, and for three items of the queue."""
        self.sql("CREATE TABLE fired(what VARCHAR, scheduled_at_ms BIGINT, at_ms BIGINT, missed BIGINT)")
        self.begin_to_sleep(delay_s)
        self.schedule_every(1, self.tick)
        for number in range(3):
            self.queue(self.serve, number)

    @exposed
    def begin_to_sleep(self, delay_s: float) -> None:
        """Be called once."""
        self.sql("CREATE TABLE IF NOT EXISTS fired(what VARCHAR, scheduled_at_ms BIGINT, at_ms BIGINT, missed BIGINT)")
        self.schedule(delay_s, self.ring)

    def ring(self, payload: None, occurrence: Occurrence) -> None:
        self._fired("ring", occurrence)
        self.note("ring", self.name)

    def tick(self, payload: None, occurrence: Occurrence) -> None:
        self._fired("tick", occurrence)
        self.note("tick", os.getpid())

    async def serve(self, payload: int, occurrence: Occurrence) -> None:
        self.note("serves", payload, occurrence.delivery_id)
        if payload == 1 and self.times("serves 1") == 1:
            await asyncio.sleep(FOR_EVER_S)
        self._fired(f"item {payload}", occurrence)

    def _fired(self, what: str, occurrence: Occurrence) -> None:
        values = [what, occurrence.scheduled_at_ms, int(time.time() * 1_000), occurrence.missed]
        self.sql("INSERT INTO fired VALUES ($1, $2, $3, $4)", values)

    @exposed(repeatable=True)
    def fired(self) -> list[tuple[str, int, int, int]]:
        """What it was called for, in order."""
        return self.sql("SELECT * FROM fired")


@pytest.mark.shows(fibers="F50")
def test_schedules_and_the_queue_are_in_time_and_count_once_after_a_kill_of_the_host_and_of_the_supervisor(
    runtime: Runtime, notes: Notes
) -> None:
    """Of an agent that is killed in the midst of an item, and of one that sleeps."""
    clock, sleeper = runtime.agent(Clock, "clock"), runtime.agent(Clock, "sleeper")
    sleeper.take(notes.file)
    sleeper.begin_to_sleep(8)
    process = clock.take(notes.file)
    clock.begin(8)
    until(lambda: notes.count(f"tick {process}") >= 2 and any("serves 1" in line for line in notes.lines()))
    os.kill(process, signal.SIGKILL)
    until(lambda: any(line.startswith("tick ") and line != f"tick {process}" for line in notes.lines()))
    until(lambda: asleep(runtime, "sleeper"))
    kill_supervisor(runtime)
    back_at_ms = time.time() * 1_000
    until(lambda: notes.count("ring clock") and notes.count("ring sleeper"))

    fired = clock.fired()
    rings = [row for row in (*fired, *sleeper.fired()) if row[0] == "ring"]
    assert len(rings) == notes.count("ring clock") + notes.count("ring sleeper") == 2
    for _, scheduled_at_ms, at_ms, _ in rings:
        assert scheduled_at_ms <= at_ms < max(scheduled_at_ms, back_at_ms) + LATE_MS_MAX
    ticks = [row for row in fired if row[0] == "tick"]
    assert len({scheduled_at_ms for _, scheduled_at_ms, *_ in ticks}) == len(ticks)
    assert all(scheduled_at_ms <= at_ms for _, scheduled_at_ms, at_ms, _ in ticks)
    assert ticks[-1][1] - ticks[0][1] == 1_000 * sum(1 + missed for *_, missed in ticks[1:])
    assert [what for what, *_ in fired if what.startswith("item")] == ["item 0", "item 1", "item 2"]
    served = [line for line in notes.lines() if line.startswith("serves")]
    assert [line.split()[1] for line in served] == ["0", "1", "1", "2"]
    assert served[1] == served[2], "the other side sees by the delivery that it is the same item"


# sub-agents


class Clerk(Noting):
    """Answers for ever when it is asked for the first time."""

    @exposed
    async def count(self) -> int:
        """Count, and wait."""
        self.state["n"] = self.state.get("n", 0) + 1
        self.note("counts")
        if self.state["n"] == 1:
            await asyncio.sleep(FOR_EVER_S)
        return int(self.state["n"])

    @exposed(repeatable=True)
    async def look(self) -> int:
        """The same, of an answer that may be given twice."""
        self.note("looks")
        if self.times("looks") == 1:
            await asyncio.sleep(FOR_EVER_S)
        return int(self.state["n"])

    @exposed
    def tell(self) -> None:
        """Begin to work, and tell of it."""
        self.start_fiber("tells", self.telling, retry=True)

    async def telling(self, fiber: FiberContext) -> None:
        await fiber.step("note", partial(self.note, "worked"))
        if not self.state.get("told"):
            with self.transaction():
                self.state["told"] = True
                self.parent.hear.tell(fiber.id)
        self.note("told")
        if fiber.attempt == 1:
            await asyncio.sleep(FOR_EVER_S)


class Chief(Noting):
    """Has a clerk."""

    @exposed
    async def engage(self, file: str) -> list[int]:
        """Have a clerk. Returns the processes of both."""
        return [self.take(file), await self.sub_agent(Clerk, "clerk").take(file)]  # type: ignore[misc]

    @exposed
    async def ask(self, method: str) -> tuple[str, int]:
        """Ask the clerk, and note how that ends. Returns it with the process in which it was heard."""
        try:
            told = str(await getattr(self.sub_agent(Clerk, "clerk"), method)())
        except OutcomeUnknown as unknown:
            told = str(unknown)
        self.note(method, "ended")
        return told, os.getpid()

    @exposed
    def hear(self, what: str) -> None:
        """Hear of the clerk's work."""
        self.note("heard")


def test_a_sub_agent_that_is_killed_while_it_answers_and_works_keeps_its_state_and_each_call_ends_once(
    runtime: Runtime, notes: Notes
) -> None:
    chief = runtime.agent(Chief, "chief")
    above, below = chief.engage(notes.file)
    assert above != below
    chief.ask("tell")

    async def story() -> list[tuple[str, int]]:
        asked: Any = [runtime.agent(Chief, "chief").ask(method) for method in ("count", "look")]
        asking = asyncio.gather(*asked)
        while not {"counts", "looks", "told"} <= set(notes.lines()):
            await asyncio.sleep(0.05)
        os.kill(below, signal.SIGKILL)
        return list(await asking)

    (unknown, asker), (looked, looker) = asyncio.run(story())
    assert "its process was killed" in unknown
    assert looked == "1"
    assert asker == looker == above, "its parent lived on"
    assert chief.ask("count")[0] == "2"
    assert runtime.agent(Clerk, "clerk", of=chief).count() == 3
    until(lambda: asleep(runtime, "chief"))
    expected = {"tell ended": 1, "count ended": 2, "look ended": 1, "counts": 3, "looks": 2}
    assert Counter(notes.lines()) == expected | {"worked": 1, "told": 2, "heard": 1}


# the children of runs


class Talker(ChatAgent):
    """Falls silent in the midst of its first answer."""

    def get_model(self) -> Any:
        from pydantic_ai.models.function import FunctionModel  # noqa: PLC0415 - costs seconds in each host

        return FunctionModel(stream_function=self._speak)

    async def _speak(self, messages: object, _info: object) -> AsyncIterator[str]:
        if "The start." not in str(messages):  # what had been kept of the first answer is continued
            yield "The start. "
        if not self.is_silent():
            self.state["is_silent"] = True
            await asyncio.sleep(FOR_EVER_S)
        yield "The end."

    @exposed(repeatable=True)
    def is_silent(self) -> bool:
        """Whether it fell silent."""
        return bool(self.state.get("is_silent"))

    @exposed(repeatable=True)
    def process(self) -> int:
        """Its process."""
        return os.getpid()


class Digger(Agent):
    """Keeps rows while it runs."""

    async def run(self, input: None, run: RunContext) -> int:
        self.sql("CREATE TABLE IF NOT EXISTS found(what VARCHAR)")
        self.sql("INSERT INTO found VALUES ($1)", [f"attempt {run.attempt}"])
        await asyncio.sleep(FOR_EVER_S if run.attempt == 1 else 2)
        return len(self.rows())

    @exposed(repeatable=True)
    def rows(self) -> list[str]:
        """What it found."""
        return [str(what) for (what,) in self.sql("SELECT * FROM found")]

    @exposed(repeatable=True)
    def process(self) -> int:
        """Its process."""
        return os.getpid()


class Owner(Agent):
    """Has children of both kinds."""

    @exposed
    async def begin(self) -> None:
        """Begin them."""
        await self.run_agent_tool(Digger, None, run_id="digs", detached=True)
        await self.run_agent_tool(Talker, "Speak.", run_id="talks", detached=True)

    @exposed(repeatable=True)
    def family(self) -> list[str]:
        """Those on record as its sub-agents."""
        return [each.name for each in self.sub_agents.list()]


@pytest.mark.thorough
def test_the_children_of_runs_are_reached_through_their_parent_while_they_run_after_a_kill_and_after_the_end(
    runtime: Runtime,
) -> None:
    owner: Any = runtime.agent(Owner, "owner")
    owner.begin()
    digger: Any = runtime.agent(Digger, "digs", of=owner)
    talker: Any = runtime.agent(Talker, "talks", of=owner)
    until(lambda: {runtime.inspect(run_id)["status"] for run_id in ("digs", "talks")} == {"running"})
    until(talker.is_silent)
    assert digger.rows() == ["attempt 1"]
    assert [each["role"] for each in talker.get_messages()][:1] == ["user"]
    for process in {digger.process(), talker.process()}:
        os.kill(process, signal.SIGKILL)
    until(lambda: digger.rows() == ["attempt 1", "attempt 2"])
    until(talker.get_messages)  # its next attempt has begun
    assert talker.get_messages()[0]["parts"] == [{"type": "text", "text": "Speak."}]
    for run_id, output in {"digs": 2, "talks": "The start. The end."}.items():
        ended = until(lambda run_id=run_id: (run := runtime.inspect(run_id))["completed_at_ms"] and run)
        assert (ended["status"], ended["attempt"], ended["output"]) == ("completed", 2, output)
    until(lambda: asleep(runtime, "digs") and asleep(runtime, "talks"))
    kill_supervisor(runtime)
    assert digger.rows() == ["attempt 1", "attempt 2"]
    assert [each["role"] for each in talker.get_messages()] == ["user", "assistant"]
    assert owner.family() == []
