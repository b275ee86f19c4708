"""Code that takes its cancellation for an error like any other, and goes on: whoever waits for it is answered all the same.

Each kind of author's code has a time limit here, or somebody leaves it. After that it has `teardown_grace_ms`. What begins anew then, since
it has failed, does its work once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, ClassVar, cast

import pytest

from perdure import Agent, Detached, FiberContext, RunContext, exposed, tell
from perdure.ledger import StaleIncarnation, StartTimedOut, StepTimedOut, StorageError
from perdure.policies import Limits
from tests.actors.host.test_code_that_goes_on import try_each
from tests.actors.one_process import SMALL, OneProcess
from tests.actors.one_process import play as play_on_threads
from tests.kit import ROOMY, Stage, address, play

LIMIT_S, GRACE_S = 10.0, Limits().teardown_grace_ms / 1000
GOES_ON_S = 200.0
LIMITS = replace(ROOMY, handler_timeout_ms=10_000, on_start_timeout_ms=10_000)


class Instant(Agent):
    """Ends at once."""

    async def run(self, input: int) -> int:
        return input


class Deaf(Agent):
    """Goes on after its cancellation, the first time, and tries then what an agent may."""

    stands_alone = True
    began_s: ClassVar[list[float]] = []  # of this process
    tried: ClassVar[dict[str, str]] = {}

    async def goes_on(self, *_: object) -> None:
        self.state["count"] = self.state.get("count", 0) + 1
        self.began_s.append(asyncio.get_running_loop().time())
        if len(self.began_s) > 1:
            return
        for _ in range(2):
            with suppress(BaseException):
                await asyncio.sleep(GOES_ON_S)
        await try_each(self.powers(), self.tried)

    def powers(self) -> dict[str, Callable[[], object]]:
        detached = Detached(on_finish="goes_on")
        return {
            "state": lambda: self.state.update(late=1),
            "sql": lambda: self.sql("CREATE TABLE t(x INTEGER)"),
            "schedule": lambda: self.schedule(5, "goes_on", 1),
            "thread": lambda: asyncio.to_thread(self.state.update, late=1),
            "run": lambda: self.run_agent_tool(Instant, 1, run_id="late", detached=detached),
            "call": lambda: self.sub_agent(Deaf, "other").look(),
            "tell": lambda: tell(self.sub_agent(Deaf, "other").goes_on_when_told),
            "cancel": lambda: self.cancel_agent_tool("s"),
        }

    @exposed
    async def goes_on_when_told(self) -> None:
        await self.goes_on()

    @exposed
    async def numbers(self) -> AsyncIterator[int]:
        yield 1
        await self.goes_on()

    @exposed
    async def begin(self) -> None:
        await self.run_agent_tool(Instant, 1, run_id="s", detached=Detached(on_finish="goes_on"))

    @exposed
    def plan(self) -> None:
        self.schedule(1, "goes_on", 1)

    @exposed
    def plan_later(self) -> None:
        self.queue("goes_on", 1)

    @exposed
    def begin_fiber(self) -> None:
        self.start_fiber("f", "in_fiber", fiber_id="f")

    async def in_fiber(self, fiber: FiberContext) -> None:
        with pytest.raises(StepTimedOut):
            await fiber.step("s", self.goes_on, timeout=LIMIT_S)
        self.state["answered"] = 1

    @exposed
    def write(self) -> None:
        self.state["other"] = 1

    @exposed
    async def look(self) -> dict[str, object]:
        return dict(self.state)


class DeafAtFirst(Deaf):
    """Its `on_start` goes on."""

    async def on_start(self) -> None:
        await self.goes_on()


class DeafInside(Deaf):
    """A step of its run goes on, or what undoes one."""

    async def run(self, input: str, run: RunContext) -> None:
        if input == "undo":
            await run.step("book", lambda: 1, undo=self.goes_on)
            raise RuntimeError("in vain")
        await run.step("s", self.goes_on, timeout=LIMIT_S)


async def by_handler(stage: Stage) -> None:
    await stage.call(Deaf, "begin")
    await entered_again()


async def by_tell(stage: Stage) -> None:
    await tell(stage.client.agent(Deaf, "p").goes_on_when_told)
    await entered_again()


async def by_schedule(stage: Stage) -> None:
    await stage.call(Deaf, "plan")
    await entered_again()


async def by_queue(stage: Stage) -> None:
    await stage.call(Deaf, "plan_later")
    await entered_again()


async def by_on_start(stage: Stage) -> None:
    with pytest.raises(StartTimedOut):
        await stage.call(DeafAtFirst, "look")


async def by_step_of_fiber(stage: Stage) -> None:
    await stage.call(Deaf, "begin_fiber")
    while not (await stage.call(Deaf, "look")).get("answered"):
        await asyncio.sleep(0.1)


async def by_step(stage: Stage) -> None:
    result = await stage.client.run(DeafInside, "step", run_id="p")
    assert "StepTimedOut" in str(result.error)


async def by_undo(stage: Stage) -> None:
    result = await stage.client.run(DeafInside, "undo", run_id="p")
    assert result.error == "RuntimeError: in vain"


async def by_stream(stage: Stage) -> None:
    numbers = stage.client.agent(Deaf, "p").numbers()
    await anext(numbers)
    await asyncio.sleep(LIMIT_S)
    await numbers.aclose()


async def entered_again() -> None:
    while len(Deaf.began_s) < 2:
        await asyncio.sleep(0.1)


# Its agent, its name in the log, and how often it has counted: in a transaction it counts once, however often it is called.
KINDS: dict[str, tuple[Callable[[Stage], Awaitable[None]], type[Deaf], str, int]] = {
    "a handler": (by_handler, Deaf, "goes_on", 1),
    "a method that is told": (by_tell, Deaf, "goes_on_when_told", 1),
    "a callback": (by_schedule, Deaf, "goes_on", 1),
    "an item of the queue": (by_queue, Deaf, "goes_on", 1),
    "on_start": (by_on_start, DeafAtFirst, "on_start", 3),
    "a step of a fiber": (by_step_of_fiber, Deaf, "step 's'", 1),
    "a step of a run": (by_step, DeafInside, "step 's'", 1),
    "an undo": (by_undo, DeafInside, "goes_on", 2),
    "a generator": (by_stream, Deaf, "numbers", 1),
}


@pytest.mark.parametrize("kind", KINDS)
def test_code_that_goes_on_after_its_time_holds_nobody_up_and_has_no_powers(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    Deaf.began_s, Deaf.tried = [], {}
    waits, agent_class, name, counts = KINDS[kind]

    async def story(stage: Stage) -> dict[str, object]:
        await waits(stage)
        assert asyncio.get_running_loop().time() - Deaf.began_s[0] < LIMIT_S + GRACE_S + 2
        await stage.call(agent_class, "write")
        await asyncio.sleep(GOES_ON_S + 12)
        assert (stage.status("late"), len(Deaf.tried)) == ("", 8)
        return dict(await stage.call(agent_class, "look"))

    kept = play(story, limits=LIMITS)
    assert set(Deaf.tried.values()) == {"refused"}
    assert kept == {"other": 1, "count": counts} | ({"answered": 1} if waits is by_step_of_fiber else {})
    said = [each.getMessage() for each in caplog.records if "was told to stop and goes on" in each.getMessage()]
    assert len(said) == 1
    assert f":{agent_class.__name__}: {name} was told to stop" in said[0]


def test_of_a_handler_that_goes_on_its_mail_says_so() -> None:
    Deaf.began_s, Deaf.tried = [], {}

    async def story(stage: Stage) -> str:
        await stage.call(Deaf, "begin")
        await stage.until(lambda: any(mail.error for mail in stage.view.mail.values()))
        told = "\n".join(await stage.client.ask("explain", "s"))
        await asyncio.sleep(GOES_ON_S)
        return told

    told = play(story, limits=LIMITS)
    assert "the handler did not return within 10000 ms; goes_on does not let itself be cancelled, and goes on" in told


PLACE: ContextVar[str] = ContextVar("place", default="nowhere")


class Tidy(Agent):
    """Tidies up, and sets a variable of its context."""

    tidied: ClassVar[list[str]] = []
    main: asyncio.Task[Any]

    async def run(self, input: str, run: RunContext) -> str:
        if input == "tidies_up":
            async with asyncio.TaskGroup() as group:
                group.create_task(run.step("s", self.tidies_up, timeout=3_600))
        self.main = cast("asyncio.Task[Any]", asyncio.current_task())
        try:
            await run.step("s", getattr(self, input), timeout=3_600)
        except asyncio.CancelledError:
            return "cancelled"
        return PLACE.get()

    async def tidies_up(self) -> None:
        try:
            await asyncio.sleep(3_000)
        finally:
            await asyncio.sleep(1)
            self.tidied.append("done")

    async def sets(self) -> None:
        PLACE.set("here")

    async def ends(self) -> None:
        # the step is over then, and what waits for it has not gone on
        asyncio.get_running_loop().call_soon(self.main.cancel)


async def test_code_that_tidies_up_when_its_life_ends_is_cancelled_once(stage: Stage) -> None:
    Tidy.tidied = []
    await stage.client.start(Tidy, "tidies_up", run_id="r")
    await stage.until(lambda: stage.status("r") == "running")
    await asyncio.sleep(1)
    await stage.client.ask("cancel", "r", None, "enough")
    await stage.until(lambda: not stage.host_of(address(Tidy, "r")))
    assert Tidy.tidied == ["done"]


async def test_a_cancellation_that_comes_with_the_end_of_such_code_is_not_lost(stage: Stage) -> None:
    assert (await stage.client.run(Tidy, "ends")).output == "cancelled"


async def test_what_code_with_a_time_limit_sets_in_its_context_stands_after_it(stage: Stage) -> None:
    assert (await stage.client.run(Tidy, "sets")).output == "here"


class Unheard(Agent):
    """Hangs in sync code until the test lets it go, the first time, and tries then what an agent may."""

    stands_alone = True
    free = threading.Event()  # of this process; a test makes it anew
    began: ClassVar[list[str]] = []
    tried: ClassVar[dict[str, str]] = {}

    def hangs(self, *_: object) -> None:
        self.began.append("")
        if len(self.began) > 1:
            return
        self.free.wait(60)
        detached = Detached(on_finish="hangs")
        powers: dict[str, Callable[[], object]] = {
            "state": lambda: self.state.update(late=1),
            "schedule": lambda: self.schedule(5, "hangs", 1),
            "run": lambda: self.run_agent_tool(Instant, 1, run_id="late", detached=detached),
            "call": lambda: self.sub_agent(Deaf, "other").look(),
            "cancel": lambda: self.cancel_agent_tool("s"),
        }
        for what, job in powers.items():
            try:
                job()
                self.tried[what] = "done"
            except StaleIncarnation:
                self.tried[what] = "refused"
            except StorageError as problem:
                self.tried[what] = str(problem)

    def run(self, input: int, run: RunContext) -> None:
        run.step("book", lambda: 1, undo=self.hangs)
        raise RuntimeError("in vain")

    @exposed
    def begin(self) -> None:
        self.run_agent_tool(Instant, 1, run_id="s", detached=Detached(on_finish="hangs"))

    @exposed
    def plan(self) -> None:
        self.schedule(0.01, "hangs", 1)

    @exposed
    def begin_fiber(self) -> None:
        self.start_fiber("f", "in_fiber", fiber_id="f")

    def in_fiber(self, fiber: FiberContext) -> None:
        self.hangs()

    @exposed
    def cancel(self) -> None:
        self.cancel_fiber("f")

    @exposed
    async def look(self) -> dict[str, object]:
        return dict(self.state)


class UnheardAtFirst(Unheard):
    """Its `on_start` hangs."""

    def on_start(self) -> None:  # type: ignore[override]
        self.hangs()


async def _again() -> None:
    while len(Unheard.began) < 2:
        await asyncio.sleep(0.01)


async def sync_handler(stage: OneProcess) -> None:
    await stage.client.call(Unheard, "p", "begin", (), {})
    await _again()


async def sync_callback(stage: OneProcess) -> None:
    await stage.client.call(Unheard, "p", "plan", (), {})
    await _again()


async def sync_undo(stage: OneProcess) -> None:
    assert (await stage.client.run(Unheard, 1, run_id="p")).error == "RuntimeError: in vain"


async def sync_on_start(stage: OneProcess) -> None:
    with pytest.raises(StartTimedOut):
        await stage.client.call(UnheardAtFirst, "p", "look", (), {})


async def sync_fiber(stage: OneProcess) -> None:
    await stage.client.call(Unheard, "p", "begin_fiber", (), {})
    await stage.until(lambda: bool(Unheard.began))
    await stage.client.call(Unheard, "p", "cancel", (), {})
    await asyncio.to_thread(Unheard.free.wait, 0.5)  # its grace


@pytest.mark.parametrize("waits", [sync_handler, sync_callback, sync_undo, sync_on_start, sync_fiber])
def test_sync_code_that_goes_on_when_nobody_waits_for_it_has_no_powers(
    waits: Callable[[OneProcess], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    Unheard.free, Unheard.began, Unheard.tried = threading.Event(), [], {}

    async def story(stage: OneProcess) -> dict[str, object]:
        await waits(stage)
        Unheard.free.set()
        await stage.until(lambda: len(Unheard.tried) == 5)
        return dict(await stage.client.call(Unheard, "p", "look", (), {}))

    limits = replace(SMALL, sweep_ms=60_000)  # its host, which is worn, is not replaced meanwhile
    late = {"handler_timeout_ms": 100, "on_start_timeout_ms": 200, "teardown_grace_ms": 100, "retry_first_ms": 10}
    assert play_on_threads(story, limits, **late, checkpoint_idle_ms=60_000) == {}
    assert set(Unheard.tried.values()) == {"refused"}
    told = (
        "in_fiber was told to stop and goes on"
        if waits is sync_fiber
        else "goes on, because a thread cannot be interrupted"
    )
    assert told in caplog.text
