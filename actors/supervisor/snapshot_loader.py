"""What a turn of the supervisor needs of the snapshot: runs that memory has let go of, mails that were posted in an earlier life, and what
sleeping agents had reported."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, cast

from perdure.actors.link.messages import Ask, Call, ClientHello, HostHello, Message, Wait
from perdure.actors.link.questions import deleted_with, requested_by, runs_named
from perdure.actors.ports import World
from perdure.actors.supervisor.sessions import Arrived
from perdure.ledger import (
    Chunk,
    Ended,
    Milestone,
    Progress,
    Record,
    Request,
    Run,
    Send,
    Store,
    Tell,
    Took,
    Unstarted,
    Up,
    View,
    Waiting,
    activation_from,
    name_of,
    named_on_the_way,
    run_from,
)
from perdure.policies import condition_from, runs_of

FAMILY_MAX: Final = 100_000
_OF_ONE_RUN: Final = frozenset({Up, Progress, Milestone, Chunk, Ended, Unstarted, Waiting, Took})


class SnapshotLoader:
    """What one life of the supervisor brings back.

    Attributes:
        has_snapshot: whether there is a snapshot.
        has_archive: whether it has runs that are not in memory.
        posted: which mails of this turn were posted before.
    """

    def __init__(self, world: World, view: View, store: Store, *, has_snapshot: bool) -> None:
        self._world, self._view, self._store = world, view, store
        self.has_archive = self.has_snapshot = has_snapshot
        self.posted: set[str] = set()

    # Bring runs that are no longer in memory back, if a message speaks of them.
    async def recall(self, arrived: list[Arrived]) -> None:
        await self._recall_tells(arrived)
        if not self.has_archive:
            return
        named = list(dict.fromkeys(key for each in arrived for key in _runs_of(each.message)))
        if keys := [key for key in named if key not in self._view.runs]:
            await self._recall_runs(keys)
        await self.recall_sources(run for key in named if (run := self._view.runs.get(key)) is not None)
        await self._recall_ways(arrived)
        asked = [message.question for _, _, message in arrived if isinstance(message, Ask)]
        agents = [agent for each in asked for agent in deleted_with(self._view, each)]
        while agents:  # with a run, and with an agent, goes what they and their families asked for, in memory or not
            found = await self._world.threads.commit(partial(requested_by, self._store, agents, FAMILY_MAX))
            agents = [self._view.runs[key].child for key in self.remember(found)]

    # While a commit takes long, and what reads for a turn stands behind it: bring back these runs, with their large outputs if they ended.
    async def recall_meanwhile(self, keys: Iterable[str]) -> dict[tuple[str, str], bytes]:
        read, runs, store = self._world.threads.read, self._view.runs, self._store
        if missing := store.known_among(key for key in keys if key not in runs):
            records = await read(partial(store.records, "runs", missing))
            self.remember([each for each in records if each.key not in runs])
        found: dict[tuple[str, str], bytes] = {}
        for part in [(key, "output") for key in keys if key in runs and runs[key].large_output]:
            body: bytes | None = await read(partial(store.payload, *part))
            found[part] = body or b""
        return found

    async def _recall_runs(self, keys: Iterable[str]) -> bool:
        # New ids are not looked for on the disk.
        kept = self._store.known_among(keys)
        if kept:
            self.remember(await self._world.threads.commit(lambda: self._store.records("runs", kept)))
        return any(key in self._view.runs for key in kept)

    # Bring back the runs for which these wait, or whose results they are given.
    async def recall_sources(self, runs: Iterable[Run]) -> None:
        sources = dict.fromkeys(source for run in runs if "after" in run.options for source in run.sources)
        if missing := [key for key in sources if key not in self._view.runs]:
            await self._recall_runs(missing)

    async def _recall_ways(self, arrived: list[Arrived]) -> None:
        ways: list[str] = []
        for _port, _number, message in arrived:
            match message:
                case Ask(_, Call(agent, standalone=standalone)) if standalone:
                    ways.append(agent)
                case Ask(_, Tell(recipient=agent, standalone=standalone)) if standalone:
                    ways.append(agent)
        while ways:
            named = {name: None for agent in ways for name in named_on_the_way(self._view.runs, agent)}
            if not await self._recall_runs(name for name in named if name not in self._view.runs):
                return

    async def _recall_tells(self, arrived: list[Arrived]) -> None:
        # A mail that was first told to an earlier life, or by one, may have been posted already.
        self.posted.clear()
        for told in [each.message.question for each in arrived if isinstance(each.message, Ask)]:
            if not isinstance(told, Tell | Send) or told.epoch == self._view.epoch:
                continue
            if await self._world.threads.commit(partial(self._store.facts, told.mail_id, limit=1)):
                self.posted.add(told.mail_id)

    def remember(self, records: list[Record]) -> list[str]:
        for record in records:
            if record.body:
                self._view.recall(run_from(record))
        return [record.key for record in records]

    # Learn from the snapshot what agents had reported before they slept.
    async def look_up_reports(self, keys: Iterable[str]) -> None:
        known = ((key, self._view.agents.get(key)) for key in keys)
        unknown = {key: found for key, found in known if found is not None and found.reported is None}
        asked = [key for key in unknown if not self._view.is_begun_anew(key)] if self.has_snapshot else []
        if asked := self._store.known_among(asked):
            records = await self._world.threads.commit(partial(self._store.records, "agents", asked))
            for record in records:
                kept, activation = activation_from(record), unknown[record.key]
                activation.reported, activation.called = kept.reported or 0, activation.called or kept.called
        for activation in unknown.values():
            activation.reported = activation.reported or 0


# The runs that a message speaks of. They are brought back into memory before it is taken in.
def _runs_of(message: Message) -> Sequence[str]:
    if isinstance(message, Request):
        after = message.options.get("after")
        return [message.run_id, *(runs_of(condition_from(after)) if after is not None else ())]
    if type(message) in _OF_ONE_RUN:
        return [cast("Up", message).run_id]
    match message:
        case ClientHello(waits) | HostHello(waits=waits) | Wait(waits):
            return waits
        case Ask(_, Call(agent_id=agent, again=True)):
            return [name_of(agent)]  # was it a child, when did it live?
        case Ask(_, question):
            return runs_named(question)
    return ()
