"""The two worlds in which chat stories play: real processes, sockets and hosts under Ray, or the simulated world."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final
from uuid import uuid4

from perdure.actors import Client, close_models, resolve_model
from perdure.ledger import BadRequest
from perdure.scenarios.provider.process import ProviderProcess
from perdure.scenarios.provider.script import Script
from perdure.scenarios.provider.sim import SimProvider
from perdure.scenarios.stories.chat_cast import MODEL, Quiz, introduced, surroundings
from perdure.scenarios.stories.chat_cast_play import Company, Point, Watcher
from perdure.scenarios.stories.chat_cast_verdict import Tally
from perdure.scenarios.stories.stage import RayStage, SimStage
from perdure.scenarios.stories.workshop import Workshop
from perdure.scenarios.testing.laboratory import Laboratory, Violation

SCRIPTED: Final = "openai-chat:scripted"
SIMULATED: Final = "simulated"
TIMEOUT_MS: Final = 48 * 3_600_000.0

Story = Callable[[Company], Awaitable[None]]


def named_model(name: str) -> str:
    """The name, if such a model can be asked from here. Raises `BadRequest`, which names the variable that is missing."""

    async def look() -> None:
        resolve_model(name)
        await close_models()

    asyncio.run(look())
    return name


def under_ray(
    data: Path, model: str | None, seed: int, watcher: Watcher, story: Story, tally: Tally, *, questions: int
) -> None:
    """Play with a Ray of our own. Without a `model` there is a scripted provider, a process of its own."""
    token = uuid4().hex[:8]
    workshop = Workshop.create(data.resolve() / "workshops" / token, seed)
    quiz = Quiz(workshop, with_shell=True)
    if model is not None:
        with surroundings({**workshop.environment, MODEL: model}):
            _on_stage(data, Company, (quiz, Script(), None, watcher, token, tally), story)
        return
    script = quiz.script(questions)
    with ProviderProcess(script) as provider:
        environment = {**workshop.environment, **provider.environment, MODEL: SCRIPTED}
        with surroundings(environment):
            _on_stage(data, Company, (quiz, script, provider, watcher, token, tally), story)
        counted = provider.counters()
        count(tally, counted.requests, counted.connections, counted.illegal)


def _on_stage(data: Path, company: Callable[..., Company], rest: tuple[Any, ...], story: Story) -> None:
    with RayStage(data, None) as stage:
        if not stage.is_own:
            raise BadRequest(
                "data", f"{data} is served by another process's cluster; stop that one, or give another directory"
            )
        tally: Tally = rest[-1]
        began_s = stage.now_s()
        asyncio.run(_played(company(stage, *rest), story))
        tally.seconds += stage.now_s() - began_s


async def _played(company: Company, story: Story) -> None:
    await story(company)


def count(tally: Tally, requests: int, connections: int, illegal: int) -> None:
    """Add what a provider counted."""
    tally.provider.update(requests=requests, connections=connections, illegal=illegal)


@contextmanager
def simulated_workshop(seed: int) -> Iterator[Quiz]:
    """A workshop on a real disk, which goes when the simulation is over; the tools find it meanwhile."""
    with tempfile.TemporaryDirectory(prefix="perdure-workshop-") as place:
        workshop = Workshop.create(Path(place) / "workshop", seed)
        with surroundings({**workshop.environment, MODEL: SIMULATED}):
            yield Quiz(workshop, with_shell=False)


def in_simulation(
    quiz: Quiz,
    script: Script,
    seed: int,
    watcher: Watcher,
    story: Story,
    tally: Tally,
    told: Callable[[Laboratory], None] = lambda _laboratory: None,
    **simulation: Any,
) -> None:
    """Play in a world of its own, which must then come to rest with every invariant kept. `told` is given it before."""
    provider = SimProvider(script)
    with introduced(SIMULATED, provider.model(SIMULATED)), Laboratory(seed, **simulation) as laboratory:
        told(laboratory)

        async def play(sender: Client) -> None:
            stage = SimStage(laboratory, sender)
            await story(Company(stage, quiz, script, provider, watcher, "sim", tally))
            tally.seconds += stage.now_s()

        try:
            laboratory.run(play, timeout_ms=TIMEOUT_MS)
            laboratory.heal()
            laboratory.settle()
            laboratory.simulation.raise_errors()
        except (Violation, ExceptionGroup) as problem:
            tally.wrong.append(f"the simulated world: {problem}")
    counted = provider.counters()
    count(tally, counted.requests, counted.connections, counted.illegal)


def chosen(points: Sequence[Point], most: int | None, seed: int) -> list[Point]:
    """At most so many points: every group gets one before any gets two. In the order in which they were given."""
    if most is None or most >= len(points):
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
