"""`perdure run chat-recovery` and `perdure run tool-disconnect`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from perdure.ledger import BadRequest
from perdure.scenarios.cast.environment import checked_model
from perdure.scenarios.commands.options import AsJson, Data, World, WorldName
from perdure.scenarios.stories.chat_recovery import ChatRecovery
from perdure.scenarios.stories.engine import perform
from perdure.scenarios.stories.tool_disconnect import ToolDisconnect

RAY_POINTS: Final = 12
SIM_POINTS: Final = 80

Seed = Annotated[int, typer.Option(help="Decides which points are chosen, and what the files contain.")]
Points = Annotated[
    int | None,
    typer.Option(
        min=0, help=f"Number of points at most; by default {RAY_POINTS}, and {SIM_POINTS} in the simulated world."
    ),
]
Model = Annotated[
    str | None,
    typer.Option(help="A real model by its name in pydantic-ai, such as openai:gpt-5; by default a scripted one."),
]


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
    scenario = ChatRecovery(_most(points, world), seed, asked)
    perform(scenario, world, data, as_json=as_json)


def run_tool_disconnect(
    points: Points = None,
    seed: Seed = 0,
    world: World = WorldName.RAY,
    data: Data = Path("perdure-data"),
    as_json: AsJson = False,
) -> None:
    """Break the connection to the model at one place of each turn of a chat agent that has real tools and sub-agents.

    Each turn has its own question. Before any event of any request, of the agent or of its sub-agent, the connection is reset, closed,
    ended, cut inside an event, or falls silent; or the provider refuses, is busy, or stays away. Running tools must go on, every side
    effect must happen once, and the final answer must be whole. The exit code is 1 if anything differs.

    Examples:
        perdure run tool-disconnect
        perdure run tool-disconnect --points 60 --seed 7 --json
        perdure run tool-disconnect --world sim --points 1000
    """
    perform(ToolDisconnect(_most(points, world), seed), world, data, as_json=as_json)


def _most(points: int | None, world: WorldName) -> int:
    return points if points is not None else RAY_POINTS if world is WorldName.RAY else SIM_POINTS
