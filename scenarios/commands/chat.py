"""`perdure run chat-recovery` and `perdure run tool-disconnect`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from perdure.ledger import BadRequest
from perdure.scenarios.commands.options import AsJson, Data, WorldName
from perdure.scenarios.commands.run import tell_end
from perdure.scenarios.stories import logbook
from perdure.scenarios.stories.chat_cast_play import Company, Watcher
from perdure.scenarios.stories.chat_cast_verdict import Tally
from perdure.scenarios.stories.chat_cast_worlds import (
    SCRIPTED,
    in_simulation,
    named_model,
    simulated_workshop,
    under_ray,
)
from perdure.scenarios.stories.chat_recovery import chat_recovery, every_death
from perdure.scenarios.stories.tool_disconnect import tool_disconnect

RAY_POINTS: Final = 12
SIM_POINTS: Final = 80
QUESTIONS: Final = 4  # for turns without a point

Seed = Annotated[int, typer.Option(help="Decides which points are chosen, and what the files contain.")]
Points = Annotated[
    int | None,
    typer.Option(
        min=0, help=f"Number of points at most; by default {RAY_POINTS}, and {SIM_POINTS} in the simulated world."
    ),
]
World = Annotated[WorldName, typer.Option(help="Real processes under Ray, or the simulated world.")]
Model = Annotated[
    str | None,
    typer.Option(help="A real model by its name in pydantic-ai, such as openai:gpt-5; by default a scripted one."),
]


class Words:
    """Says what happens, or nothing with `--json`."""

    def __init__(self, *, silent: bool) -> None:
        self._silent = silent

    def say(self, text: str) -> None:
        """A line."""
        if not self._silent:
            print(text, flush=True)


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
    _perform("chat-recovery", chat_recovery, points, seed, world, model, data, as_json=as_json)


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
    _perform("tool-disconnect", tool_disconnect, points, seed, world, None, data, as_json=as_json)


Story = Callable[[Company, int | None, int], Awaitable[None]]


def _perform(
    name: str,
    story: Story,
    points: int | None,
    seed: int,
    world: WorldName,
    model: str | None,
    data: Path,
    *,
    as_json: bool,
) -> None:
    watcher, tally = Words(silent=as_json), Tally()
    most = points if points is not None else RAY_POINTS if world is WorldName.RAY else SIM_POINTS
    if world is WorldName.SIM:
        if model is not None:
            raise BadRequest("model", "a real model cannot be asked in virtual time; use it with --world ray")
        _simulated(name, story, most, seed, watcher, tally)
    else:

        async def play(company: Company) -> None:
            await story(company, most, seed)

        checked = None if model is None else named_model(model)
        with logbook.playing(data):
            under_ray(data, checked, seed, watcher, play, tally, questions=most + QUESTIONS)
    tell_end(tally.as_object(name, str(world), seed, model or SCRIPTED), tally.wrong, _sentences, as_json=as_json)


def _simulated(name: str, story: Story, most: int, seed: int, watcher: Watcher, tally: Tally) -> None:
    """One world for all points; of the recovery's, half are deaths in worlds of their own."""
    deaths = most - most // 2 if name == "chat-recovery" else 0
    with simulated_workshop(seed) as quiz:
        script = quiz.script(most + QUESTIONS)

        async def play(company: Company) -> None:
            await story(company, most - deaths, seed)

        in_simulation(quiz, script, seed, watcher, play, tally)
        if deaths:
            every_death(quiz, script, seed, watcher, tally, deaths, most - deaths + 1)


def _sentences(told: dict[str, Any]) -> list[str]:
    turns, effects = told["turns"], told["side_effects"]
    killed = ", ".join(f"{count} × {kind}" for kind, count in told["kills"].items() if count) or "nothing"
    said = [
        f"{turns['completed']} of {turns['asked']} turns completed in {told['seconds']:.1f} s, {turns['error']} ended with an error.",
        f"Killed: {killed}. {told['attempts']} attempts, {told['recoveries']} recoveries.",
        f"Side effects: {effects['seen']} of {effects['expected']} happened, {effects['doubled']} twice, {effects['lost']} lost.",
    ]
    if effects["unknown"]:
        said.append(f"Of {effects['unknown']} of them the model was told that nobody knows how they ended.")
    if told["requests"] is not None:
        said.append(f"The provider saw {told['requests']} requests, {told['illegal']} of them illegal.")
    if told["verified"]:
        said.append("Verified: every side effect at most once, every answer whole, every attempt with one end.")
    return said
