"""What the supervisor does for those who look after the directory's files: `perdure doctor` and `perdure backup`.

A backup asks again and again that the ledger's snapshot be left as it is (`hold`). At the end it asks for the cut
(`ledger.maintenance.cut`), which is made between two turns. If the backup dies, checkpoints go on after a while. If the supervisor dies,
its next life knows nothing of this, and the backup begins again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

from perdure.actors.link.messages import Fields, Plain
from perdure.actors.link.questions import Keep
from perdure.actors.ports import World
from perdure.actors.supervisor.checkpoints import Checkpoints
from perdure.ledger import BadRequest, CarryingStore, LedgerError, StorageError, Store, View, standing_of
from perdure.ledger.maintenance.cut import STAGE, read_known, stage_cut
from perdure.ledger.storage.agent_storages import stored_below


class BackupService:
    """Of one supervisor life.

    Args:
        storages: the folder of the agents' storages; None in a world without files.
        lost: tells how many ms were lost; silences in them do not count.
        wake: lets the next turn begin.
    """

    def __init__(
        self,
        world: World,
        view: View,
        store: Store,
        checkpoints: Checkpoints,
        storages: Path | None,
        *,
        lost: Callable[[float], object],
        wake: Callable[[], None],
    ) -> None:
        self._world, self._view, self._store, self._checkpoints = world, view, store, checkpoints
        self._storages, self._lost, self._wake = storages, lost, wake
        self._wanted: asyncio.Future[None] | None = None
        self._cut: Callable[[], None] | None = None

    def stored_below(self, agent_id: str) -> int:
        if self._store.carries_storages:
            return sum(each != agent_id for each in cast("CarryingStore", self._store).storages_of(agent_id))
        return 0 if self._storages is None else stored_below(self._storages, agent_id)

    async def answer(self, asked: Keep) -> Plain:
        """Do what was asked for. Raises `BadRequest` for anything else."""
        match asked:
            case Keep("storages", [str(after), int(limit)]):
                return await self._page(after, limit)
            case Keep("hold", []):
                # A later answer differs if the snapshot was not left alone in between.
                return [self._view.epoch, await self._checkpoints.suspend()]
            case Keep("cut", []):
                return await self._staged()
        raise BadRequest("wish", f"{asked.wish!r} is not one that a supervisor knows, or has other arguments")

    async def between_turns(self) -> None:
        """Make the cut, if it is wanted."""
        wanted, cut = self._wanted, self._cut
        self._wanted = self._cut = None
        if wanted is None or cut is None:
            return
        began_s = asyncio.get_running_loop().time()
        try:
            await self._world.threads.commit(cut)
        except (StorageError, OSError) as problem:
            wanted.set_exception(self._failed(problem))
        else:
            wanted.set_result(None)
        self._lost((asyncio.get_running_loop().time() - began_s) * 1000)

    async def _page(self, after: str, limit: int) -> Fields:
        rows = await self._world.threads.archive(partial(self._store.agents, after, limit))
        last = rows[-1].key if len(rows) == limit else None
        known = standing_of(self._view, ((row.key, row.body) for row in rows))
        page = sorted(agent for agent in known if agent > after and (last is None or agent <= last))
        return {"agents": [[agent, *known[agent]] for agent in page], "next": last}

    async def _staged(self) -> list[int] | None:
        if self._storages is None:
            raise BadRequest("data", "there are no files in this world")
        data = self._storages.parent
        try:
            known = await self._world.threads.archive(lambda: read_known(data / STAGE))
        except OSError as problem:
            raise self._failed(problem) from problem
        self._wanted = asyncio.get_running_loop().create_future()
        self._cut = lambda: stage_cut(
            data, known, self._view.seq, [(agent, each.reported) for agent, each in standing_of(self._view, ()).items()]
        )
        self._wake()
        held = self._checkpoints.suspended
        await self._wanted
        # None tells the backup that the snapshot was not held to the end, so the cut does not go with its copy.
        return [self._view.epoch, held] if held is not None and held == self._checkpoints.suspended else None

    def _failed(self, problem: Exception) -> LedgerError:
        return LedgerError(
            str(self._storages), f"the cut of a backup could not be made: {problem}", "make the backup again"
        )
