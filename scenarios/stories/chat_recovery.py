"""`perdure run chat-recovery`: a process dies at each moment of a turn with tools and sub-agents, or the stream falls silent.

The host of the guide, of a tool or of the sub-agent, or the supervisor is killed while the provider holds a request in the middle of its
answer, or while a tool runs. In the simulated world half of the points are deaths at the kill points of the code that a turn visits.

The client hears exactly one end of each attempt, attaches again, and gets the real end. Every side effect has begun once, or the guide was
told that its outcome is unknown. The answer is whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Final

import typer

from perdure import BadRequest
from perdure.actors import KillPoint
from perdure.scenarios.cast.environment import checked_model
from perdure.scenarios.commands.options import AsJson, Data, World, WorldName
from perdure.scenarios.provider.faults import Fault, FaultKind
from perdure.scenarios.provider.scripted import SeenRequest
from perdure.scenarios.stories.chat_play import ChatScenario, Point, Points, Seed, named, points_max
from perdure.scenarios.stories.engine import perform
from perdure.scenarios.stories.stage import Stage
from perdure.scenarios.testing.laboratory import Laboratory

STALL_MS: Final = 1_500.0
AT_WORK_MS: Final = 1_500.0
TOOLS: Final = ("read_file", "write_file", "word_counter", "shell")
VICTIMS: Final = ("agent", "tool", "supervisor")

Model = Annotated[
    str | None,
    typer.Option(help="A real model by its name in pydantic-ai, such as openai:gpt-5; by default a scripted one."),
]


class ChatRecoveryStory(ChatScenario):
    """A process dies at one moment of each turn, or the model falls silent."""

    name: ClassVar[str] = "chat-recovery"

    def points_of(self, records: Sequence[SeenRequest]) -> list[Point]:
        # The requests of a real model are not seen, so only tools give moments.
        points: list[Point] = []
        for record in records:
            points += _in_the_midst(record, child=record.asks == self.quiz.child_question(0).asks)
        names = {call.name for call in self.quiz.question(0).calls}
        return [*points, *(point for tool in TOOLS if tool in names for point in _at_work(tool))]

    def simulate(self) -> None:
        # Half of the points as under Ray. The others are deaths at kill points, each in its own world.
        deaths = self.points_max - self.points_max // 2
        self.points_max //= 2
        super().simulate()
        if deaths:
            self._die_everywhere(deaths, first=self.points_max + 1)

    def _die_everywhere(self, most: int, first: int) -> None:
        visits = self._play_once(first, 0)
        stride = max(1, visits // most)
        places = range(1 + (self.seed % stride if most < visits else 0), visits + 1, stride)
        for number, place in enumerate(places[:most], first + 1):
            self._play_once(number, place)

    def _play_once(self, number: int, place: int) -> int:
        # Returns the number of visited places.
        visited = 0
        point = Point(label=f"a death at kill point {place}" if place else "nothing dies", group="kill point")
        known: list[Laboratory] = []

        def strikes(process: str, _point: KillPoint, _detail: str) -> bool:
            nonlocal visited
            visited += 1
            if visited == place:
                self.kills[_kind(known[0], process)] += 1
            return visited == place

        async def play(stage: Stage) -> None:
            await self.turn(stage, point, number)

        self.simulate_turns(play, known.append, kill_when=strikes)
        return visited


def _in_the_midst(record: SeenRequest, *, child: bool) -> Iterator[Point]:
    count = len(record.sizes)
    for event in dict.fromkeys((None, 0, 2, count // 2, count - 2)):
        fault = Fault(kind=FaultKind.STALL, event=event)
        place = "before the head" if event is None else f"before event {event}"
        where = f"{place} of {named(record, child=child)}"
        for victim in ("child", "agent", "supervisor") if child else ("agent", "supervisor"):
            yield Point(
                label=f"{_named(victim)} dies {where}",
                group=f"{victim} {'of child' if child else ''}",
                fault=fault,
                results=record.results,
                child=child,
                victim=victim,
            )
        if not child:
            yield Point(label=f"silence {where}", group="stall", fault=fault, results=record.results, stall_ms=STALL_MS)


def _at_work(tool: str) -> Iterator[Point]:
    for victim in VICTIMS:
        yield Point(
            label=f"{_named(victim)} dies while {tool} is at work",
            group=f"{victim} at work",
            victim=victim,
            at_tool=tool,
            paces_ms={tool: AT_WORK_MS},
        )


def _named(victim: str) -> str:
    return "the supervisor" if victim == "supervisor" else f"the {victim}'s host"


def _kind(laboratory: Laboratory, process: str) -> str:
    host = laboratory.hosts.get(process)
    if host is None:
        return "supervisor"
    classes = {agent_id.rpartition(":")[2] for agent_id in host.tenants}
    return "agent" if "Guide" in classes else "child" if classes & {"Summariser", "WordCounter"} else "tool"


def run_chat_recovery(
    points: Points = None,
    seed: Seed = 0,
    world: World = WorldName.RAY,
    model: Model = None,
    data: Data = Path("perdure-data"),
    as_json: AsJson = False,
) -> None:
    """Kill a process at one moment of each turn of a chat agent that has real tools and sub-agents.

    Each turn has its own question about the files of a directory. The host of the agent, of a tool or of a sub-agent, or the supervisor, is
    killed before, while or after the model speaks, or while a tool is at work; or the model falls silent. Every side effect must have
    happened once, each attempt must have told its caller of one end, and the final answer must be whole. In the simulated world a process
    also dies at each place of the code in turn. The exit code is 1 if anything differs.

    Examples:
        perdure run chat-recovery
        perdure run chat-recovery --points 60 --seed 7 --json
        perdure run chat-recovery --world sim --points 500
        perdure run chat-recovery --model openai:gpt-5 --points 5
    """
    if model is not None and world is WorldName.SIM:
        raise BadRequest("model", "a real model cannot be asked in virtual time; use it with --world ray")
    asked = None if model is None else checked_model(model)
    scenario = ChatRecoveryStory(points_max(points, world), seed, asked)
    perform(scenario, world, data, as_json=as_json)
