"""How a chat story is played: one fresh guide and one question for each point, something breaks there, and all sides are compared.

A *point* says what goes wrong and when. The provider breaks by its plan; a process is killed at a moment that is watched for: while a
request is held by the provider in the midst of its answer, or while a tool is at work. So the same points mean the same under Ray, with
real processes and sockets, and in the simulated world.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from perdure.scenarios.provider.faults import Fault, FaultPlan, Rule
from perdure.scenarios.provider.script import Script
from perdure.scenarios.provider.scripted import Counters, Record
from perdure.scenarios.provider.server_process import ServerFailed
from perdure.scenarios.stories.chat_cast import EFFECTS, Guide, Quiz
from perdure.scenarios.stories.chat_cast_turns import Told, ask
from perdure.scenarios.stories.chat_cast_verdict import (
    COMPLETED,
    Ending,
    Tally,
    count_effects,
    seen_results,
    wrong_answer,
    wrong_ends,
    wrong_requests,
)
from perdure.scenarios.stories.stage import Stage, Victim

LOOK_S: Final = 0.02
MOMENT_S: Final = 60.0  # how long a moment may be in coming, and a turn take that is asked then
HOLD_S: Final = 0.15  # after a request came: its first events are on their way
ROWS: Final = 200


class Provider(Protocol):
    """The scripted provider, as a process or in the simulation."""

    def set_plan(self, plan: FaultPlan) -> None:
        """Fail by this plan from now on."""

    def release(self, number: int) -> None:
        """End the stall of a request."""

    def open_door(self) -> None:
        """End the refusal of connections."""

    def counters(self) -> Counters:
        """What it counted."""

    def log(self, since: int = 0) -> list[Record]:
        """The requests with numbers above `since`."""


class Watcher(Protocol):
    """Who is told what happens."""

    def say(self, text: str) -> None:
        """Something happened."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """What goes wrong with one turn.

    Attributes:
        label: in words.
        group: what it is one of many of; of few points that are chosen, every group gets one before any gets two.
        fault: of the provider, for the request of the guide's question with so many `results`, or of the child's if `child`.
        number: the same, for the so-manieth request of the turn; refusals know nothing else.
        times: for how many requests; None for all that fit.
        victim: who is killed: `agent`, `tool`, `child`, `supervisor`, or nobody.
        at_tool: kill while this tool is at work; else while the request is held that `fault` stalls.
        stall_ms: after how much silence the turn gives a stream up.
        ending: how the turn must end.
    """

    label: str
    group: str
    fault: Fault | None = None
    results: int | None = None
    child: bool = False
    number: int | None = None
    times: int | None = 1
    victim: str = ""
    at_tool: str = ""
    stall_ms: float | None = None
    paces_ms: dict[str, float] = field(default_factory=dict)
    ending: Ending = COMPLETED


@dataclass
class Company:
    """All that a story needs. `provider` is None if the model is a real one."""

    stage: Stage
    quiz: Quiz
    script: Script
    provider: Provider | None
    watcher: Watcher
    token: str
    tally: Tally = field(default_factory=Tally)

    async def play(self, point: Point, number: int) -> Told:
        """Ask one question, let it go wrong, and judge what became of it."""
        name = f"guide-{self.token}-{number}"
        since = 0 if self.provider is None else self.provider.counters().requests
        self._prepare(point, number)
        options = {} if point.stall_ms is None else {"chat_stream_stall_timeout_ms": point.stall_ms}
        began_s = self.stage.now_s()
        turn = asyncio.ensure_future(ask(self.stage, name, number, self.quiz.told(number), **options))
        missed = await self._strike(point, name, number, since, turn) if point.victim else ""
        told = await turn
        took_s = self.stage.now_s() - began_s
        self.quiz.workshop.set_pace()
        wrong = [*([missed] if missed else []), *self._wrong(point, told, since)]
        self.tally.points += 1
        self.tally.take(told)
        self.tally.wrong += [f"{point.label}: {each}" for each in wrong]
        self.watcher.say(f"{number:4}  {point.label}: {_in_short(told, wrong)}, {took_s:.1f} s")
        return told

    def _prepare(self, point: Point, number: int) -> None:
        self.quiz.workshop.set_pace(**point.paces_ms)
        if self.provider is None:
            return
        self.provider.open_door()
        if point.fault is None:
            rules: tuple[Rule, ...] = ()
        elif point.number is not None:
            rules = (Rule(fault=point.fault, number=point.number),)
        else:
            question = self.quiz.child_question(number) if point.child else self.quiz.question(number)
            rules = (Rule(fault=point.fault, asks=question.asks, results=point.results, times=point.times),)
        self.provider.set_plan(FaultPlan(rules=rules))

    def _wrong(self, point: Point, told: Told, since: int) -> list[str]:
        wrong = [*wrong_ends(told, point.ending)]
        wrong += count_effects(self.quiz, told, self.tally, is_scripted=self.provider is not None)
        if told.result is None or self.provider is None:
            is_whole = told.result is not None and told.result.ok
            return [*wrong, *(wrong_answer(self.quiz, told, None) if is_whole else ())]
        self.provider.open_door()
        records = self.provider.log(since)
        if point.fault is not None and point.number is None and not any(record.fault for record in records):
            wrong.append("the fault did not happen")
        wrong += wrong_requests(records)
        if told.result.ok:
            seen = seen_results(self.script, records, self.quiz.question(told.number).asks)
            wrong += wrong_answer(self.quiz, told, seen)
        return wrong

    # deaths

    async def _strike(self, point: Point, name: str, number: int, since: int, turn: asyncio.Future[Any]) -> str:
        """Kill the victim when its moment has come. What is wrong if that did not come."""
        until_s = self.stage.now_s() + MOMENT_S
        held = 0
        while self.stage.now_s() < until_s and not turn.done():
            held = held or self._held(point, number, since)
            victim = await self._victim(point, name, number) if held or point.at_tool else None
            if victim is not None:
                kind, process = victim
                self.watcher.say(f"      kill the {kind}'s process {process.pid or process.name}")
                await self.stage.kill(process)
                self.tally.kills[kind] += 1
                self._go_on(held)
                return ""
            await self.stage.sleep(LOOK_S)
        return "its moment did not come"

    def _held(self, point: Point, number: int, since: int) -> int:
        """The number of the request that is held now, or 0."""
        if self.provider is None or point.at_tool:
            return 0
        asks = (self.quiz.child_question(number) if point.child else self.quiz.question(number)).asks
        for record in self.provider.log(since):
            if record.asks == asks and record.fault is not None and record.ended is None:
                return record.number
        return 0

    def _go_on(self, held: int) -> None:
        self.quiz.workshop.set_pace()
        if held and self.provider is not None:
            with contextlib.suppress(KeyError, ServerFailed):  # who was killed has left already
                self.provider.release(held)

    async def _victim(self, point: Point, name: str, number: int) -> tuple[str, Victim] | None:
        """Who is to be killed, if the moment is now."""
        if not point.at_tool:
            await self.stage.sleep(HOLD_S)
        overview = await self.stage.ask("ps", ROWS)
        agent_id = self.stage.agent_id(Guide, name)
        rows = [row for row in overview["live"] if row["parent"] == agent_id and row["status"] == "running"]
        if point.at_tool and not self._is_at_work(point.at_tool, number, rows):
            return None
        if point.victim == "supervisor":
            known = overview["supervisor"]
            return "supervisor", Victim("supervisor", known["pid"], known["node"])
        home = next((host for agent, host, _ in overview["agents"] if agent == agent_id), "")
        host_id = home if point.victim == "agent" else _host_of(point.at_tool, point.victim, rows)
        host = next((each for each in overview["hosts"] if each["host"] == host_id and each["up"]), None)
        if host is None:
            return None
        kind = "agent" if host_id == home else point.victim
        return kind, Victim(host["host"], host["pid"], host["node"])

    def _is_at_work(self, tool: str, number: int, rows: list[dict[str, Any]]) -> bool:
        if tool not in EFFECTS:
            return _host_of(tool, "tool", rows) != ""
        keys = {call.key for call in self.quiz.question(number).calls if call.name == tool}
        return any(effect.key in keys for effect in self.quiz.workshop.effects())


def _host_of(tool: str, victim: str, rows: list[dict[str, Any]]) -> str:
    """The host of the run that executes the tool."""
    wanted = {"word_counter": ":WordCounter", "summariser": ":Summariser"}.get(tool, "ToolRun")
    wanted = ":Summariser" if victim == "child" else wanted
    return next((row["host"] for row in rows if row["agent_type"].endswith(wanted) and row["host"]), "")


def named(record: Record, *, child: bool) -> str:
    """A request of the turn in peace, in words."""
    which = f"request after {record.results} results" if record.results else "first request"
    return f"{'the child' if child else 'the guide'}'s {which}"


def _in_short(told: Told, wrong: list[str]) -> str:
    """One turn in a few words."""
    if wrong:
        return f"WRONG: {wrong[0]}"
    assert told.result is not None
    said = [told.result.status if told.result.ok else f"{told.result.status} ({told.result.reason})"]
    said += [f"{count} × {cause}" for cause, count in told.interruptions.items()]
    silent = told.recoveries - sum(told.interruptions.values())
    said += [f"{silent} recovered in silence"] if silent > 0 else []
    return ", ".join(said)
