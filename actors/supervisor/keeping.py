"""What the supervisor does for those who look after the directory's files: `perdure doctor` and `perdure backup`."""

from __future__ import annotations

from functools import partial

from perdure.actors.link.keeping import Keep
from perdure.actors.link.messages import Fields, Plain
from perdure.actors.ports import World
from perdure.ledger import BadRequest, Store, View, standing_of


class Keeping:
    """Of one supervisor life."""

    def __init__(self, world: World, view: View, store: Store) -> None:
        self._world, self._view, self._store = world, view, store

    async def answer(self, asked: Keep) -> Plain:
        """Do what was asked for."""
        match asked:
            case Keep("storages", [str(after), int(limit)]):
                return await self._storages(after, limit)
        raise BadRequest("wish", f"{asked.wish!r} is not one that a supervisor knows, or has other arguments")

    async def _storages(self, after: str, limit: int) -> Fields:
        """A page of the agents that the ledger knows of, each with its `Standing`, and where the next page begins."""
        rows = await self._world.threads.archive(partial(self._store.agents, after, limit))
        last = rows[-1].key if len(rows) == limit else None
        known = standing_of(self._view, ((row.key, row.body) for row in rows))
        page = sorted(agent for agent in known if agent > after and (last is None or agent <= last))
        return {"agents": [[agent, *known[agent]] for agent in page], "next": last}
