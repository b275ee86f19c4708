"""Agents with fibers. What they did outside, where no death undoes it, is counted here."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import asdict
from typing import Any, ClassVar

from perdure.actors import (
    Agent,
    ChatAgent,
    Detached,
    FiberContext,
    FiberInspection,
    FiberRecovery,
    FiberResult,
    FiberRetry,
    RunContext,
    RunInfo,
    RunResult,
    exposed,
)
from perdure.ledger import FiberStopped
from tests.actors.cast import Doubler, Number


class Jobs(Agent):
    """Has bodies of many habits, and no hook."""

    stands_alone = True

    effects: ClassVar[Counter[str]] = Counter()  # of this process
    seen: ClassVar[list[Any]] = []

    # bodies

    async def quick(self, fiber: FiberContext, input: Any) -> None:
        self.effects["quick"] += 1
        fiber.stash({"input": input})

    async def slow(self, fiber: FiberContext, input: Any) -> None:
        """Three steps, each a while long."""
        for number in range(3):
            await fiber.step(f"step {number}", lambda number=number: self._step(fiber, number))
            fiber.stash({"done": number})
            await asyncio.sleep(1)

    async def _step(self, fiber: FiberContext, number: int) -> int:
        self.effects[f"{fiber.name} {number}"] += 1
        return number

    async def forever(self, fiber: FiberContext) -> None:
        self.effects["forever"] += 1
        self.stash("here")
        await asyncio.sleep(1_000)
        self.effects["forever ended"] += 1

    async def stubborn(self, fiber: FiberContext) -> None:
        """Goes on although it is cancelled, and tries to have the last word."""
        fiber.stash("before")
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            self.seen.append(("cancelled", fiber.is_cancelled))
        await asyncio.sleep(5)
        self.seen.append(("stashed", fiber.stash("after")))
        with suppress(FiberStopped):
            fiber.step("late", lambda: self.effects.update(["late step"]))

    async def failing(self, fiber: FiberContext, input: str) -> None:
        self.effects["failing"] += 1
        raise ValueError(input)

    async def flaky(self, fiber: FiberContext, input: int) -> None:
        """Fails so many times."""
        self.effects["flaky"] += 1
        if fiber.attempt <= input:
            raise ValueError(f"attempt {fiber.attempt}")

    async def hesitant(self, fiber: FiberContext) -> None:
        """Rolls back a transaction with a step and a stash in it, and does it again."""
        fiber.stash(self._hesitate(fiber))

    def _hesitate(self, run: Any) -> list[Any]:
        seen = []
        for fails in (True, False):
            with suppress(ValueError), self.transaction():
                for _ in range(2):
                    run.step("note", self._note)
                run.stash("in it")
                if fails:
                    raise ValueError("not yet")
            seen.append([self.state.get("notes", 0), run.snapshot if isinstance(run, FiberContext) else run.stashed])
        return seen

    def _note(self) -> None:
        self.state["notes"] = self.state.get("notes", 0) + 1

    async def haunted(self, fiber: FiberContext) -> None:
        """Its first attempt fails, and leaves somebody behind who speaks during the second one."""
        if fiber.attempt == 1:
            self.going.append(asyncio.create_task(self._speak_late(fiber)))
            raise ValueError("once more")
        fiber.stash("mine")
        await asyncio.sleep(5)

    async def _speak_late(self, fiber: FiberContext) -> None:
        await asyncio.sleep(3)
        self.seen.append(fiber.stash("theirs"))
        try:
            await fiber.step("late", lambda: self._step(fiber, 0))
        except FiberStopped as stopped:
            self.seen.append(stopped.step)

    async def waits(self, fiber: FiberContext, input: str) -> None:
        told = await self.start_fiber("inner", "slow", fiber_id=input, wait_for_completion=True)
        fiber.stash(told.status)

    async def doubles(self, fiber: FiberContext, input: Number) -> None:
        fiber.stash(input.n * 2)

    @exposed
    async def double(self, given: Any, timeout_ms: float) -> FiberInspection:
        told: FiberInspection = await self.start_fiber(
            "double", self.doubles, given, wait_for_completion=True, timeout_ms=timeout_ms
        )
        return told

    async def decides(self, fiber: FiberContext, input: str) -> FiberResult:
        return FiberResult(input, error="as I said", snapshot=1, metadata={"by": "itself"})  # type: ignore[arg-type]

    # calls

    @exposed(repeatable=True)
    async def start(self, fn_name: str, input: Any = None, options: dict[str, Any] | None = None) -> dict[str, Any]:
        asked = dict(options or {})
        if isinstance(asked.get("retry"), dict):
            asked["retry"] = FiberRetry(**asked["retry"])
        return asdict(await self.start_fiber(asked.pop("name", fn_name), fn_name, input, **asked))

    @exposed(repeatable=True)
    async def start_many(self, count: int, fn_name: str) -> int:
        told = self.fibers.start(
            [{"name": "many", "fn_name": fn_name, "idempotency_key": f"k{n}"} for n in range(count)]
        )
        return sum(each.accepted for each in told)

    @exposed(repeatable=True)
    async def inspect(self, fiber_id: str) -> dict[str, Any] | None:
        told = self.inspect_fiber(fiber_id)
        return None if told is None else asdict(told)

    @exposed(repeatable=True)
    async def inspect_key(self, key: str) -> dict[str, Any] | None:
        told = self.inspect_fiber_by_key(key)
        return None if told is None else asdict(told)

    @exposed(repeatable=True)
    async def wait(self, fiber_id: str, timeout_ms: float | None = None) -> dict[str, Any]:
        return asdict(await self.fibers.wait(fiber_id, timeout_ms))

    @exposed
    async def cancel(self, fiber_id: str, reason: str | None = None) -> bool:
        return self.cancel_fiber(fiber_id, reason)

    @exposed
    async def cancel_key(self, key: str) -> bool:
        return self.cancel_fiber_by_key(key, "by key")

    @exposed
    async def resolve(self, fiber_id: str, status: str, snapshot: Any = None) -> bool:
        return self.resolve_fiber(fiber_id, FiberResult(status, snapshot=snapshot))  # type: ignore[arg-type]

    @exposed(repeatable=True)
    async def listed(self, options: dict[str, Any]) -> list[Any]:
        page = self.list_fibers(**options)
        return [[each.fiber_id for each in page], page.cursor]

    @exposed
    async def delete(self, options: dict[str, Any]) -> int:
        return self.delete_fibers(**options)

    @exposed
    async def run_one(self, fn_name: str) -> Any:
        return await self.run_fiber("unmanaged", getattr(self, fn_name))

    @exposed
    async def in_transaction(self, fiber_id: str, *, fails: bool) -> str:
        with self.transaction():
            self.state["asked"] = fiber_id
            told = self.start_fiber("joined", "quick", fiber_id=fiber_id)
            if fails:
                raise ValueError("rolled back")
        return str(told.status)

    @exposed
    async def waits_inside(self, what: str) -> None:
        with self.transaction():
            if what == "start":
                await self.start_fiber("n", "quick", wait_for_completion=True)
            elif what == "wait":
                await self.fibers.wait("f")
            else:
                await self.run_fiber("n", self.work)

    @exposed
    async def follow(self, failures: int) -> None:
        type(self).failures = failures
        await self.run_agent_tool(Doubler, {"n": 1}, detached=Detached(on_finish="on_double"))

    failures: ClassVar[int] = 0

    async def on_double(self, run: RunInfo, result: RunResult) -> None:
        self.effects["handled"] += 1
        await self.start_fiber("after it", "quick", run.run_id)
        if type(self).failures:
            type(self).failures -= 1
            raise ValueError("not yet")

    @exposed
    async def copy_to(self, name: str) -> None:
        self.state["whose"] = "mine"
        await self.storage.fork(name)

    @exposed
    async def kept_state(self) -> Any:
        return self.state["whose"]

    @exposed(repeatable=True)
    async def rows(self) -> dict[str, int]:
        """How many documents of ours there are, by kind."""
        records = self._perdure.storage.records()
        kinds = ("fiber", "fiber_open", "fiber_key", "fiber_input", "fiber_stash", "fiber_step")
        return {kind: len(records.keys(kind)) for kind in kinds if records.keys(kind)}

    @exposed
    async def forget_about(self, count: int, silent: int = 0) -> None:
        for body in [self.work] * count + [self.rest] * silent:
            self.going.append(asyncio.create_task(self.run_fiber("unmanaged", body)))

    going: ClassVar[list[Any]] = []

    @exposed
    async def stash_in_two(self) -> list[Any]:
        async def say(fiber: FiberContext, word: str) -> Any:
            self.stash("?")
            await asyncio.sleep(0.1)
            self.stash(word)
            await asyncio.sleep(0.1)
            return fiber.snapshot

        both = (self.run_fiber(word, lambda fiber, word=word: say(fiber, word)) for word in ("a", "b"))
        told = await asyncio.gather(*both)
        return list(told)

    @exposed
    async def look_again(self) -> None:
        """As if it woke in the middle of its life."""
        self._perdure.fibers.woken()

    @exposed
    async def lose_the_last_word(self) -> str:
        def end(fiber: FiberContext) -> str:
            self._perdure.storage.close()
            return "worked"

        return str(await self.run_fiber("unmanaged", end))

    @exposed
    async def stash_outside(self) -> None:
        self.stash(1)

    async def run(self, input: Any, run: RunContext) -> Any:
        if input == "hesitate":
            return self._hesitate(run)
        if input == "begin":
            await self.start_fiber("own", "quick", 1)
            await asyncio.sleep(5)
            return run.attempt
        await self.start_fiber("slow", "slow", fiber_id="own", retry=True)
        await asyncio.sleep(3_600)
        return None

    # unmanaged work

    async def work(self, fiber: FiberContext) -> str:
        for number in range(3):
            fiber.stash(number)
            self.effects["work"] += 1
            await asyncio.sleep(1)
        return "worked"

    async def rest(self, fiber: FiberContext) -> str:
        await asyncio.sleep(3)
        return "rested"

    async def broken(self, fiber: FiberContext) -> None:
        raise ValueError("broken")


class Recovering(Jobs):
    """Has a hook, which does what the test says: a result, an exception, or a nap before it."""

    verdicts: ClassVar[list[Any]] = []  # of this process; the last one stays
    asked: ClassVar[list[dict[str, Any]]] = []
    nap_s: ClassVar[float] = 0

    async def on_fiber_recovered(self, fiber: FiberRecovery) -> FiberResult | str | None:
        self.asked.append(
            {
                "id": fiber.id,
                "name": fiber.name,
                "key": fiber.key,
                "metadata": fiber.metadata,
                "snapshot": fiber.snapshot,
                "attempt": fiber.attempt,
                "recoveries": fiber.recoveries,
                "managed": fiber.is_managed,
                "created_at_ms": fiber.created_at_ms,
                "reason": fiber.reason,
                "at_s": asyncio.get_running_loop().time(),
            }
        )
        verdict = self.verdicts.pop(0) if len(self.verdicts) > 1 else self.verdicts[0] if self.verdicts else None
        if self.nap_s:
            await asyncio.sleep(self.nap_s)
        if isinstance(verdict, Exception):
            raise verdict
        return verdict  # type: ignore[no-any-return]

    async def own_hook(self, fiber: FiberRecovery) -> FiberResult:
        return FiberResult("completed", snapshot={"after": fiber.snapshot})

    async def hands_on(self, fiber: FiberRecovery) -> None:
        with self.transaction():
            self.resolve_fiber(fiber.id, FiberResult("completed", snapshot="handed on"))
            self.start_fiber("continued", "quick", fiber_id=f"{fiber.id}, continued")
        await asyncio.sleep(1)


class Slowly(Jobs):
    """Comes up slowly, and has a hook that hangs for the fibers that say so."""

    start_s: ClassVar[float] = 0  # of this process; a test sets it
    hung: ClassVar[Counter[str]] = Counter()

    start_failures: ClassVar[int] = 0
    on_start_fiber: ClassVar[str] = ""

    async def on_start(self) -> None:
        await asyncio.sleep(self.start_s)
        if self.start_failures:
            type(self).start_failures -= 1
            raise ValueError("not today")
        if self.on_start_fiber:
            self.start_fiber("early", "quick", fiber_id=self.on_start_fiber)
            await asyncio.sleep(1)
            self.effects["quick"] *= 100  # it must not have begun
        self.seen.append("up")

    async def on_fiber_recovered(self, fiber: FiberRecovery) -> FiberResult:
        self.seen.append("asked")
        said = fiber.metadata or {}
        while said.get("hangs"):
            self.hung[fiber.id] += 1
            try:
                await asyncio.sleep(3_600)
            except asyncio.CancelledError:
                self.effects["hook cancelled"] += 1
                if not said["stubborn"]:
                    raise
                await asyncio.sleep(100)
                break
        return FiberResult("completed")


class Chatty(ChatAgent):
    """A chat agent has fibers like any other."""

    model = "test"
    asked: ClassVar[list[Any]] = []  # of this process

    @exposed
    async def work(self) -> Any:
        async def work(fiber: FiberContext) -> str:
            for step in ("one", "two"):
                self.stash(step)
                self.asked.append(fiber.snapshot)
                await asyncio.sleep(1)
            return "worked"

        return await self.run_fiber("unmanaged", work)

    @exposed(repeatable=True)
    async def rows(self) -> int:
        """How many documents of fibers there are."""
        return sum(len(self._perdure.storage.records().keys(kind)) for kind in ("fiber", "fiber_open", "fiber_stash"))

    @exposed
    async def begin(self) -> None:
        self.start_fiber("job", "forever", fiber_id="f")

    async def forever(self, fiber: FiberContext) -> None:
        self.stash("here")
        await asyncio.sleep(3_600)

    async def on_fiber_recovered(self, fiber: FiberRecovery) -> FiberResult:
        self.asked.append((fiber.name, fiber.snapshot))
        return FiberResult("completed")

    @exposed(repeatable=True)
    async def wait(self) -> str:
        return str((await self.fibers.wait("f")).status)
