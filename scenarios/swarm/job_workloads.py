"""Fibers, schedules, queues and sub-agents under the fire of the swarm: desks whose jobs must end as they should, and heads of families
who tell their members what each must hear once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any, Final

from perdure.actors import Agent, exposed, tell
from perdure.scenarios.stories.jobs_agents import JobDesk, draw_jobs
from perdure.scenarios.stories.jobs_checks import differences
from perdure.scenarios.swarm.play_context import PlayContext, persist

LOOKS_MAX: Final = 600
SPREAD_S: Final = 6.0


async def desks(context: PlayContext) -> None:
    """Jobs of every kind, accepted again and again."""
    die = context.die
    for number in range(die.randint(1, 2)):
        desk, jobs = f"{context.tag}desk-{number}", draw_jobs(die.randint(4, 14), die.randrange(1_000_000), SPREAD_S)
        for _ in range(2):
            await persist(context, _asking(context, JobDesk, desk, "accept", jobs))
        cancelled = [job.key for job in jobs if job.kind == "cancelled"]
        await persist(context, _asking(context, JobDesk, desk, "cancel", cancelled))
        if context.patient:
            await _until(context, _asking(context, JobDesk, desk, "progress"), lambda told: told.left == 0)
            report = await persist(context, _asking(context, JobDesk, desk, "report"))
            for wrong in differences(jobs, report) if report is not None else ():
                context.expect(False, f"{desk}: {wrong}")


def _asking(context: PlayContext, agent_class: type[Agent], name: str, method: str, *args: Any) -> Callable[[], Any]:
    return partial(context.client.call, agent_class, name, method, args, {})


async def _until(context: PlayContext, ask: Callable[[], Any], fits: Callable[[Any], bool]) -> None:
    told: Any = None
    for _ in range(LOOKS_MAX):
        told = await persist(context, ask)
        if told is None or fits(told):
            return
        await asyncio.sleep(1)
    context.expect(False, f"it never came to an end: {told}")


class Member(Agent):
    """Writes down what it hears."""

    async def on_start(self) -> None:
        """Before anything is heard."""
        self.sql("CREATE TABLE IF NOT EXISTS heard (word VARCHAR)")

    @exposed
    def hear(self, word: str) -> None:
        """One more line."""
        self.sql("INSERT INTO heard VALUES ($1)", [word])

    @exposed(repeatable=True)
    def heard(self) -> list[str]:
        """All lines."""
        return [word for (word,) in self.sql("SELECT word FROM heard")]


class Head(Agent):
    """Tells the members of its family each word once, however often it is asked to."""

    @exposed(repeatable=True)
    def spread(self, words: list[str], names: list[str]) -> None:
        """The words that are new go to each of these members, with this transaction."""
        with self.transaction():
            self.sql("CREATE TABLE IF NOT EXISTS spread (word VARCHAR PRIMARY KEY)")
            known = {word for (word,) in self.sql("SELECT word FROM spread")}
            fresh = [word for word in words if word not in known]
            self.sql("INSERT INTO spread SELECT unnest($1)", [fresh])
            for word, name in product(fresh, names):
                tell(self.sub_agent(Member, name).hear, word)

    @exposed(repeatable=True)
    async def heard(self, name: str) -> list[str]:
        """What a member has heard."""
        member: Any = self.sub_agent(Member, name)
        return list(await member.heard())

    @exposed(repeatable=True)
    def drop(self, name: str) -> None:
        """Delete a member."""
        self.sub_agents.delete(Member, name)


async def families(context: PlayContext) -> None:
    """Words are spread in a family; each member hears each once. One of them is deleted in the end, and begins anew."""
    die = context.die
    head, words = f"{context.tag}head", [f"word {number}" for number in range(die.randint(1, 6))]
    names = [f"member {number}" for number in range(die.randint(1, 3))]
    for first in range(len(words)):
        await persist(context, _asking(context, Head, head, "spread", words[first : first + 2], names))
    if not context.patient:
        return
    for name in names:
        await _until(context, _asking(context, Head, head, "heard", name), lambda heard: len(heard) >= len(words))
        heard = await persist(context, _asking(context, Head, head, "heard", name))
        context.expect(sorted(heard or ()) == sorted(words), f"{name} of {head} heard {heard}, and not {words}")
    await persist(context, _asking(context, Head, head, "drop", names[0]))
    heard = await persist(context, _asking(context, Head, head, "heard", names[0]))
    context.expect(heard == [], f"{names[0]} of {head} was deleted, and has heard {heard}")
