"""Agents that plan: they schedule and queue what they are told to, and their callbacks write down that they were called."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import asdict, is_dataclass, replace
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

from perdure.actors import Agent, Detached, Occurrence, RunInfo, RunResult, exposed
from perdure.actors.code.author_call import tried
from perdure.actors.jobs.callback_rows import MadeBy
from tests.actors.cast import Doubler
from tests.kit import Stage


class Planner(Agent):
    """Does what a story says, and keeps notes of every call that was committed."""

    failures = 0  # how often `flaky` and `poison` raise, in this process; a test sets it
    calls = 0  # how often a callback was entered, committed or not

    async def on_start(self) -> None:
        self.sql(
            "CREATE TABLE IF NOT EXISTS notes"
            "(payload VARCHAR, at_ms BIGINT, scheduled_at_ms BIGINT, attempt INT, missed INT, delivery_id VARCHAR)"
        )

    @exposed(repeatable=True)
    async def do(self, method: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        return plain(attrgetter(method)(self)(*map(_moment, args), **kwargs))

    @exposed(repeatable=True)
    async def do_all(self, asked: list[list[Any]], regret: bool = False) -> None:
        with self.transaction():
            for method, args, kwargs in asked:
                attrgetter(method)(self)(*map(_moment, args), **kwargs)
            if regret:
                raise RuntimeError("changed my mind")

    @exposed(repeatable=True)
    def notes(self) -> list[list[Any]]:
        return [list(row) for row in self.sql("SELECT * FROM notes ORDER BY rowid")]

    @exposed(repeatable=True)
    async def busy(self, ms: float) -> None:
        await asyncio.sleep(ms / 1000)

    def _now_ms(self) -> int:
        return self._perdure.now_ms()

    def _write(self, payload: Any, it: Occurrence) -> None:
        row = [str(payload), self._now_ms(), it.scheduled_at_ms, it.attempt, it.missed, it.delivery_id]
        self.sql("INSERT INTO notes VALUES ($1, $2, $3, $4, $5, $6)", row)

    def note(self, payload: Any, it: Occurrence) -> None:
        type(self).calls += 1
        self._write(payload, it)

    def picky(self, payload: Any, it: Occurrence) -> None:
        type(self).calls += 1
        self._write(payload, it)
        if payload == "bad":
            raise RuntimeError("not this one")
        if payload == "cancel":
            self.schedules.cancel("victim")

    async def picky_too(self, payload: Any, it: Occurrence) -> None:
        self.picky(payload, it)
        if payload == "slow":
            await asyncio.sleep(60)

    def named(self, payload: Any, it: Occurrence) -> None:
        self._write(f"{self.name} {payload}", it)

    async def slow(self, payload: Any, it: Occurrence) -> None:
        await asyncio.sleep(payload / 1000)
        self._write(payload, it)

    def flaky(self, payload: Any, it: Occurrence) -> None:
        self._write(payload, it)
        if type(self).failures:
            type(self).failures -= 1
            raise RuntimeError("not yet")

    def poison(self, payload: Any, it: Occurrence) -> None:
        self._write(payload, it)
        raise RuntimeError("never")

    def cancels(self, payload: Any, it: Occurrence) -> None:
        self._write(payload, it)
        self.schedules.cancel(payload)
        self.queued.drop(payload)

    def again(self, payload: int, it: Occurrence) -> None:
        self._write(payload, it)
        if payload:
            self.schedule(1, self.again, payload - 1, key="chain")

    async def counts(self, payload: Any, it: Occurrence) -> None:
        count = self.state.get("count", 0)
        await asyncio.sleep(payload / 1000)
        self.state["count"] = count + 1
        self._write(payload, it)

    def asks(self, payload: Any, it: Occurrence) -> None:
        self.run_agent_tool(Doubler, {"n": payload}, detached=Detached(on_finish="on_double"))
        self._write(payload, it)
        self.queue(self.note, "from a callback")

    def on_double(self, run: RunInfo, result: RunResult) -> None:
        self.state["doubled"] = [*self.state.get("doubled", []), result.output]

    @exposed(repeatable=True)
    def odd_payload(self, method: str, when: list[Any]) -> None:
        attrgetter(method)(self)(*when, "note", object())

    @exposed(repeatable=True)
    def plan_from_a_thread(self, after_s: float) -> None:
        self.schedule(after_s, self.note, "planned by a method")
        self.queue(self.note, "queued by a method")

    @exposed(repeatable=True)
    def kept(self, key: str) -> Any:
        return self.state.get(key)


class Leaver(Planner):
    """Ends itself by a callback, hears of what goes wrong, and stays awake as long as it is told to."""

    troubles: ClassVar[list[str]] = []

    async def leave(self, payload: Any, it: Occurrence) -> None:
        self._write(payload, it)
        await self.destroy()

    async def on_error(self, problem: Exception, doing: str) -> None:
        self.troubles.append(f"{doing}: {problem}")

    @exposed
    async def stay(self, seconds: float, more_s: float, regrets: bool = False) -> None:
        async def vigil(length_s: float) -> None:
            with self.keep_alive():
                await asyncio.sleep(length_s)
                if regrets:
                    raise RuntimeError("enough")

        for each in (seconds, more_s):
            asyncio.get_running_loop().create_task(tried(vigil(each)))


class Blank(Planner):
    """Has no storage before it plans."""

    async def on_start(self) -> None:
        pass

    def count(self, payload: Any, it: Occurrence) -> None:
        self.state["count"] = self.state.get("count", 0) + 1


class Eager(Planner):
    """Plans when it starts, as code does that is deployed again and again."""

    async def on_start(self) -> None:
        await super().on_start()
        self.schedule("*/5 * * * *", "note", "cron")
        self.schedule_every(60, self.note, "interval")


class Declared(Planner):
    """Plans in `on_start` what a test says, which may be something else in the next life; also through a sub-agent, and later."""

    wish: ClassVar[list[tuple[str, list[Any], dict[str, Any]]]] = []
    trouble: ClassVar[list[str]] = []

    async def on_start(self) -> None:
        await super().on_start()
        for method, args, kwargs in self.wish:
            getattr(self, method)(*args, **kwargs)
        if self.trouble:
            raise RuntimeError(self.trouble[0])

    def later(self) -> None:
        async def plan() -> None:
            await asyncio.sleep(1)
            self.schedule_every(7, self.note)

        asyncio.get_running_loop().create_task(tried(plan()))

    def as_before(self) -> None:
        """Make the rows such as code wrote that did not say who had made them."""
        rows = self._perdure.schedules.rows
        with self.transaction():
            for row in rows.in_order():
                rows.write(partial(rows.keep, row=replace(row, made_by=MadeBy.UNKNOWN)))

    def regretted(self) -> None:
        with suppress(RuntimeError), self.transaction():
            self.schedule_every(5, self.note)
            raise RuntimeError("changed my mind")


class Plain(Planner):
    """Plans in a sync `on_start`, which runs on a thread, and has a sub-agent plan while it is in its own."""

    interval_s = 200.0  # in this process; a test sets it

    def on_start(self) -> None:  # type: ignore[override]
        self.schedule_every(type(self).interval_s, self.note)
        self.sub_agent(Patient, "below").do("schedule_every", [type(self).interval_s, "note"], {})

    @exposed(repeatable=True)
    async def do_below(self) -> Any:
        return await self.sub_agent(Patient, "below").do("schedules.list", [], {})


class Sluggish(Planner):
    """Takes its time to come up."""

    starting_s = 0.0  # in this process; a test sets it

    async def on_start(self) -> None:
        await asyncio.sleep(type(self).starting_s)
        await super().on_start()


class Patient(Planner):
    """Says for its whole class how often a callback is tried."""

    callback_retry = {"attempts_max": 5, "first_ms": 10, "most_ms": 20}  # noqa: RUF012 - a class attribute that nobody changes


class Note(NamedTuple):
    """What a callback wrote down."""

    payload: str
    at_ms: int
    scheduled_at_ms: int
    attempt: int
    missed: int
    delivery_id: str


def plain(value: Any) -> Any:
    """Values of ours as plain data."""
    if isinstance(value, list):
        return [plain(each) for each in value]
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _moment(argument: Any) -> Any:
    """Instants travel as text."""
    if isinstance(argument, str) and argument.startswith("at "):
        return datetime.fromisoformat(argument.removeprefix("at "))
    return argument


async def do(
    stage: Stage, method: str, *args: Any, kind: type[Planner] = Planner, name: str = "p", **kwargs: Any
) -> Any:
    """Have a planner call one of its methods."""
    return await stage.call(kind, "do", method, list(args), kwargs, name=name)


async def notes(stage: Stage, kind: type[Planner] = Planner, name: str = "p") -> list[Note]:
    """What its callbacks wrote down."""
    return [Note(*row) for row in await stage.call(kind, "notes", name=name)]


async def payloads(stage: Stage, kind: type[Planner] = Planner) -> list[str]:
    """For which payloads."""
    return [note.payload for note in await notes(stage, kind)]
