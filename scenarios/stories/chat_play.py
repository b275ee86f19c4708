"""How a chat scenario is played: a new guide and a question for each point, where something breaks.

A *point* says what breaks and when. The provider fails by its plan. A process is killed while the provider holds a request in the middle of
its answer, or while a tool runs. So a point means the same under Ray and in the simulated world.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Annotated, Any, ClassVar, Final
from uuid import uuid4

import typer

from perdure.scenarios.cast.environment import MODEL, SCRIPTED, SIMULATED, with_environment
from perdure.scenarios.cast.guide import EFFECTS, Guide, Quiz
from perdure.scenarios.cast.outside import simulated
from perdure.scenarios.cast.workspace import Workspace
from perdure.scenarios.commands.options import WorldName
from perdure.scenarios.commands.shown import in_words
from perdure.scenarios.faults.strikes import Victim, home_of, hosts_in, supervisor_in
from perdure.scenarios.provider.faults import Fault, FaultPlan, Rule
from perdure.scenarios.provider.script import Script, ScriptedQuestion
from perdure.scenarios.provider.scripted import Counters, SeenRequest
from perdure.scenarios.provider.server import SocketProvider
from perdure.scenarios.provider.sim import SimProvider
from perdure.scenarios.stories.chat_checks import (
    COMPLETED,
    AskedQuestion,
    Ending,
    ask,
    count_effects,
    seen_results,
    wrong_answer,
    wrong_ends,
    wrong_requests,
)
from perdure.scenarios.stories.engine import Play, Scenario, simulate_in_one_world
from perdure.scenarios.stories.stage import Stage
from perdure.scenarios.testing.laboratory import Laboratory

RAY_POINTS: Final = 12
SIM_POINTS: Final = 80

Seed = Annotated[int, typer.Option(help="Decides which points are chosen, and what the files contain.")]
Points = Annotated[
    int | None,
    typer.Option(
        min=0, help=f"Number of points at most; by default {RAY_POINTS}, and {SIM_POINTS} in the simulated world."
    ),
]
LOOK_S: Final = 0.02
MOMENT_S: Final = 60.0  # the longest wait for a moment
HOLD_S: Final = 0.15  # after a request: its first events are on their way
ROWS: Final = 200
QUESTIONS: Final = 4  # for turns without a point
KILLS: Final = ("agent", "tool", "child", "supervisor")
CAUSES: Final = ("stall", "process_lost")
COUNTED: Final = ("requests", "connections", "illegal")
EFFECTS_TOLD: Final = ("expected", "seen", "doubled", "lost", "unknown")


@dataclass(frozen=True, kw_only=True)
class Point:
    """What goes wrong with one turn.

    Attributes:
        label: in words.
        group: every group gets a point before any gets two.
        fault: of the provider, for the guide's request after this number of `results`, or the child's if `child`.
        number: the request of the turn that is refused.
        times: the number of requests; None for all that match.
        victim: the process to kill: `agent`, `tool`, `child`, `supervisor`, or none.
        at_tool: kill while this tool runs; else while `fault` stalls the request.
        stall_ms: the silence after which the turn gives a stream up.
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


PEACE: Final = Point(label="nothing breaks", group="peace")


class ChatScenario(Scenario):
    """A turn without a fault, then one for each chosen point. Without a `model` it is scripted; the script answers others `also`."""

    needs_own_cluster: ClassVar[bool] = True
    goes_on: ClassVar[bool] = True
    quiz: Quiz
    script: Script
    provider: SocketProvider | SimProvider | None

    def __init__(self, points: int, seed: int, model: str | None = None, also: Sequence[ScriptedQuestion] = ()) -> None:
        super().__init__(seed)
        self.points_max, self._model, self._also = points, model, also
        self._token = uuid4().hex[:8]
        self._points = self._attempts = self._recoveries = 0
        self._turns, self._interruptions = Counter[str](), Counter[str]()
        self._provider_counts, self._effects = Counter[str](), Counter[str]()

    @abstractmethod
    def points_of(self, records: Sequence[SeenRequest]) -> list[Point]:
        """All points, by the requests of the turn without a fault."""

    # the worlds

    @contextlib.contextmanager
    def surroundings(self, data: Path | None) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if data is None:  # the workspace goes when the simulation is over
                place = (
                    Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="perdure-workspace-"))) / "workspace"
                )
            else:
                place = data.resolve() / "workspaces" / self._token
            workspace = Workspace.create(place, self.seed)
            self.quiz = Quiz(workspace, with_shell=data is not None)
            own = self.quiz.script(self.points_max + QUESTIONS).questions
            self.script = Script() if self._model else Script(questions=(*own, *self._also))
            self.provider = None
            values = {MODEL: SIMULATED if data is None else self._model or SCRIPTED, **workspace.environment}
            if data is not None and not self._model:
                self.provider = process = stack.enter_context(SocketProvider(self.script))
                values |= process.environment
            stack.enter_context(with_environment(values))
            yield

    def simulate(self) -> None:
        self.simulate_turns(self.play)

    def simulate_turns(self, play: Play, *begun: Callable[[Laboratory], None], **simulation: Any) -> None:
        with simulated(self.script) as outside:
            self.provider = outside.provider
            simulate_in_one_world(self, play, *begun, **simulation)
        self._count(outside.provider.counters())

    async def play(self, stage: Stage) -> None:
        await self.turn(stage, PEACE, 0)
        points = self.points_of([] if self.provider is None else self.provider.log())
        for number, point in enumerate(chosen(points, self.points_max, self.seed), 1):
            await self.turn(stage, point, number)
        if isinstance(self.provider, SocketProvider):
            self._count(self.provider.counters())

    def _count(self, counters: Counters) -> None:
        self._provider_counts.update({key: getattr(counters, key) for key in COUNTED})

    # one turn

    async def turn(self, stage: Stage, point: Point, number: int) -> AskedQuestion:
        name = f"guide-{self._token if stage.world == 'ray' else 'sim'}-{number}"
        since = 0 if self.provider is None else self.provider.counters().requests
        self._prepare(point, number)
        options = {} if point.stall_ms is None else {"chat_stream_stall_timeout_ms": point.stall_ms}
        began_s = stage.now_s()
        turn = asyncio.ensure_future(ask(stage, name, number, self.quiz.told(number), **options))
        missed = await self._strike(stage, point, name, number, since, turn) if point.victim else ""
        told = await turn
        took_s = stage.now_s() - began_s
        self.quiz.workspace.set_pace()
        wrong = [*([missed] if missed else []), *self._wrong(point, told, since)]
        self._points += 1
        self._turns.update(["asked", told.result.status if told.result else "lost"])
        self._attempts += 1 + sum(event["type"] == "data-attempt" for event in told.events)
        self._interruptions += told.interruptions
        self._recoveries += told.recoveries
        self.wrong += [f"{point.label}: {each}" for each in wrong]
        self.screen.say(f"{number:4}  {point.label}: {_in_short(told, wrong)}, {took_s:.1f} s")
        return told

    def _prepare(self, point: Point, number: int) -> None:
        self.quiz.workspace.set_pace(**point.paces_ms)
        if self.provider is None:
            return
        self.provider.open_door()
        if point.fault is None:
            rules: tuple[Rule, ...] = ()
        elif point.number is not None:
            rules = (Rule(fault=point.fault, number=point.number),)
        else:
            asks = self._asks(point, number)
            rules = (Rule(fault=point.fault, asks=asks, results=point.results, times=point.times),)
        self.provider.set_plan(FaultPlan(rules=rules))

    def _asks(self, point: Point, number: int) -> str:
        return (self.quiz.child_question(number) if point.child else self.quiz.question(number)).asks

    def _wrong(self, point: Point, told: AskedQuestion, since: int) -> list[str]:
        wrong = [*wrong_ends(told, point.ending)]
        wrong += count_effects(self.quiz, told, self._effects, is_scripted=self.provider is not None)
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

    async def _strike(
        self, stage: Stage, point: Point, name: str, number: int, since: int, turn: asyncio.Future[Any]
    ) -> str:
        # Returns a problem if the moment did not come.
        held = 0

        async def has_struck() -> bool:
            nonlocal held
            held = held or self._held(point, number, since)
            found = await self._victim(stage, point, name, number) if held or point.at_tool else None
            if found is not None:
                await self.kill(stage, *found)
                self._go_on(held)
            return found is not None or turn.done()

        before = self.kills.total()
        await stage.until(has_struck, MOMENT_S, LOOK_S)
        return "" if self.kills.total() > before else "its moment did not come"

    def _held(self, point: Point, number: int, since: int) -> int:
        if self.provider is None or point.at_tool:
            return 0
        asks = self._asks(point, number)
        for record in self.provider.log(since):
            if record.asks == asks and record.fault is not None and record.ended is None:
                return record.number
        return 0

    def _go_on(self, held: int) -> None:
        self.quiz.workspace.set_pace()
        if held and self.provider is not None:
            with contextlib.suppress(KeyError):  # a client that was killed has left already
                self.provider.release(held)

    async def _victim(self, stage: Stage, point: Point, name: str, number: int) -> tuple[str, Victim] | None:
        # None if the moment has not come.
        if not point.at_tool:
            await asyncio.sleep(HOLD_S)
        overview = await stage.ask("ps", ROWS)
        agent_id = stage.agent_id(Guide, name)
        rows = [row for row in overview["live"] if row["parent"] == agent_id and row["status"] == "running"]
        if point.at_tool and not self._is_at_work(point.at_tool, number, rows):
            return None
        if point.victim == "supervisor":
            return "supervisor", supervisor_in(overview)
        home = home_of(overview, agent_id)
        host_id = home if point.victim == "agent" else _host_of(point.at_tool, point.victim, rows)
        host = hosts_in(overview).get(host_id)
        return None if host is None else ("agent" if host_id == home else point.victim, host)

    def _is_at_work(self, tool: str, number: int, rows: list[dict[str, Any]]) -> bool:
        if tool not in EFFECTS:
            return _host_of(tool, "tool", rows) != ""
        keys = {call.key for call in self.quiz.question(number).calls if call.name == tool}
        return not keys.isdisjoint(self.quiz.workspace.effects())

    # the end

    def figures(self) -> dict[str, Any]:
        counts = self._provider_counts if self._model is None else None  # a real provider tells none: they are null
        return {
            "model": self._model or SCRIPTED,
            "turns": {key: self._turns[key] for key in ("asked", "completed", "error")},
            "points": self._points,
            "attempts": self._attempts,
            "interruptions": {cause: self._interruptions[cause] for cause in CAUSES},
            "recoveries": self._recoveries,
            **{key: None if counts is None else counts[key] for key in COUNTED},
            "side_effects": {key: self._effects[key] for key in EFFECTS_TOLD},
            "kills": {kind: self.kills[kind] for kind in KILLS},
            "seconds": round(self.seconds, 3),
        }

    def sentences(self, told: dict[str, Any]) -> list[str]:
        turns, effects = told["turns"], told["side_effects"]
        said = [
            f"{turns['completed']} of {turns['asked']} turns completed in {told['seconds']:.1f} s, {turns['error']} ended with an error.",
            f"Killed: {in_words(told['kills'])}. {told['attempts']} attempts, {told['recoveries']} recoveries.",
            f"Side effects: {effects['seen']} of {effects['expected']} happened, {effects['doubled']} twice, {effects['lost']} lost.",
        ]
        if effects["unknown"]:
            said.append(f"Of {effects['unknown']} of them the model was told that their outcome is unknown.")
        if told["requests"] is not None:
            said.append(f"The provider saw {told['requests']} requests, {told['illegal']} of them illegal.")
        if told["verified"]:
            said.append("Verified: every side effect at most once, every answer whole, every attempt with one end.")
        return said


def _host_of(tool: str, victim: str, rows: list[dict[str, Any]]) -> str:
    wanted = {"word_counter": ":WordCounter", "summariser": ":Summariser"}.get(tool, "ToolRun")
    wanted = ":Summariser" if victim == "child" else wanted
    return next((row["host"] for row in rows if row["agent_type"].endswith(wanted) and row["host"]), "")


def named(record: SeenRequest, *, child: bool) -> str:
    which = f"request after {record.results} results" if record.results else "first request"
    return f"{'the child' if child else 'the guide'}'s {which}"


def chosen(points: Sequence[Point], most: int, seed: int) -> list[Point]:
    """At most `most` points, in their order. Every group gets one before any gets two."""
    if most >= len(points):
        return list(points)
    die = Random(f"{seed} points")
    groups: dict[str, list[int]] = {}
    for index, point in enumerate(points):
        groups.setdefault(point.group, []).append(index)
    for group in groups.values():
        die.shuffle(group)
    taken: list[int] = []
    while len(taken) < most:
        taken += [group.pop() for group in groups.values() if group]
    return [points[index] for index in sorted(taken[:most])]


def _in_short(told: AskedQuestion, wrong: list[str]) -> str:
    if wrong:
        return f"WRONG: {wrong[0]}"
    assert told.result is not None
    said = [told.result.status if told.result.ok else f"{told.result.status} ({told.result.reason})"]
    said += [f"{count} × {cause}" for cause, count in told.interruptions.items()]
    silent = told.recoveries - sum(told.interruptions.values())
    said += [f"{silent} recovered in silence"] if silent > 0 else []
    return ", ".join(said)


def points_max(points: int | None, world: WorldName) -> int:
    # Real processes take longer.
    return points if points is not None else RAY_POINTS if world is WorldName.RAY else SIM_POINTS
