"""What keeps a directory well, over REST: its examination, its backups, and its stop.

What asks the supervisor step by step and reads files meanwhile does so in a thread, and hands its questions to the loop.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field

from perdure.actors.gateway.backend import Backend
from perdure.actors.gateway.problems import NotNow
from perdure.actors.gateway.refusals import Forbidden
from perdure.actors.gateway.security import Scope
from perdure.actors.rest.table import ApiRequest, Handlers, Operation, Taken
from perdure.actors.runtime.directory_files import Asking, ServedSteward, served_findings
from perdure.actors.tasks import awaited
from perdure.ledger import LedgerError, bucket_of
from perdure.ledger.maintenance.backup import Backup, BackupSummary, prune
from perdure.ledger.maintenance.target import BackupTarget
from perdure.policies import JsonObject


class DoctorAsked(Taken):
    """How thorough."""

    deep: Annotated[
        bool, Field(description="Open each storage, however many there are; at most 1,000 are opened without it.")
    ] = False


class FindingTold(BaseModel):
    """One thing that was found."""

    severity: Annotated[str, Field(description="`ok`, `warning` or `damage`.")]
    what: str
    advice: str


class Diagnosis(BaseModel):
    """What `perdure doctor` tells of a directory that is served."""

    findings: list[FindingTold]


class BackupAsked(Taken):
    """Which older ones are kept."""

    keep: Annotated[int, Field(ge=0, le=1_000_000, description="So many backups, the newest; 0 keeps all.")] = 0


class BackupTold(BaseModel):
    """A whole backup."""

    name: str
    seq: Annotated[int, Field(description="The last fact in it.")]
    storages: int
    size: Annotated[int, Field(description="Bytes.")]
    copied: Annotated[int, Field(description="Bytes that no earlier backup has.")]
    findings: Annotated[list[str], Field(description="What is wrong with the directory itself.")]
    pruned: Annotated[int, Field(description="Older backups that were deleted.")]


class StopAsked(Taken):
    """How long running work may go on first."""

    timeout_ms: Annotated[int, Field(ge=0, le=3_600_000)] = 30_000


class StopTold(BaseModel):
    """That it is being stopped. What is cut off goes on when the directory is served again."""

    stops: bool


class KeepingHandlers(Handlers):
    """The operations on the directory."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._backing_up: asyncio.Task[JsonObject] | None = None

    @Operation("GET", "/api/doctor", Diagnosis, scope=Scope.OPERATE, query=DoctorAsked)
    async def doctor(self, asked: ApiRequest) -> object:
        """Verify the agents' storages against the ledger. The ledger's own files were verified when the supervisor started."""
        found = await asyncio.to_thread(
            served_findings, await self._asking(), self._backend.data, deep=asked.query.deep
        )
        return {"findings": [{"severity": it.severity, "what": it.what, "advice": it.advice} for it in found]}

    @Operation("POST", "/api/backup", BackupTold, scope=Scope.ADMIN, body=BackupAsked)
    async def back_up(self, asked: ApiRequest) -> object:
        """Back the directory up, to the place that the gateway was started with (`--backups`); 403 without one.

        Only what has changed since the last backup is copied. It is answered when the backup is whole. Who asks while one is being made
        is answered with that one.
        """
        if url := bucket_of(self._backend.data):
            raise Forbidden(f"{url} is a bucket, and what is here is a cache; see `perdure backup --help`")
        place = self._backend.backups
        if not place:
            raise Forbidden("this gateway has no place for backups; start it with --backups PLACE")
        if self._backing_up is None or self._backing_up.done():
            work = partial(_backed_up, self._backend.data, place, await self._asking(), asked.body.keep)
            self._backing_up = awaited(asyncio.to_thread(work))
        return await asyncio.shield(self._backing_up)

    @Operation("POST", "/api/stop", StopTold, scope=Scope.ADMIN, body=StopAsked)
    async def stop(self, asked: ApiRequest) -> object:
        """Stop the supervisor, the hosts and `perdure serve`, as `perdure stop` does; 403 for a gateway that is served in another way."""
        if self._backend.stopper is None:
            raise Forbidden("only `perdure serve` can be stopped in this way; use `perdure stop`")
        self._backend.stopper(asked.body.timeout_ms)
        return {"stops": True}

    async def _asking(self) -> Asking:
        client, loop = await self._backend.client(), asyncio.get_running_loop()
        return lambda *given: asyncio.run_coroutine_threadsafe(client.ask(*given), loop).result()


def _backed_up(data: Path, place: str, ask: Asking, keep: int) -> JsonObject:
    target = BackupTarget(place)
    try:
        made: BackupSummary = Backup(data, target, ServedSteward(ask), lambda _: None).make(time.time_ns() // 1_000_000)
        gone = prune(target, keep)[0] if keep else 0
    except LedgerError as problem:
        raise NotNow(str(problem)) from problem
    return {**made._asdict(), "pruned": gone}
