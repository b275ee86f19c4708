"""What is changed over REST: runs are started, cancelled, tried again and cleared; agents are deleted and moved on; a directory is
examined, backed up and stopped."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field

from perdure.actors.code.known_types import by_type
from perdure.actors.gateway.backend import Backend
from perdure.actors.gateway.refusals import Forbidden, NotNow, nothing_known
from perdure.actors.gateway.security import Scope
from perdure.actors.rest import models
from perdure.actors.rest.operations import ApiRequest, Handlers, Id, Operation, Taken
from perdure.actors.rest.reading import seen_by
from perdure.actors.runtime.bulk import BulkPass, chosen_by
from perdure.actors.runtime.directory_files import Asking, ServedSteward, served_findings
from perdure.actors.runtime.inspecting import storages_in
from perdure.actors.tasks import awaited
from perdure.ledger import BadRequest, LedgerError, UnknownAgentType, bucket_of, name_of, type_of
from perdure.ledger.maintenance.backup import Backup, BackupSummary, prune
from perdure.ledger.maintenance.target import BackupTarget
from perdure.policies import JsonObject

SUPERVISOR: Final = "supervisor"
WITHIN_S: Final = 10.0
"""After so long a pass through many runs is answered, with where the rest begins."""


class KillAsked(Taken):
    """Which process."""

    process: Annotated[Id, Field(description="`supervisor`, or the id of a host.")]


class KillResult(BaseModel):
    """What was done, and what comes next."""

    process: str
    pid: int
    told: str


class SteeringHandlers(Handlers):
    """The operations on runs, and those of an administrator."""

    @Operation("POST", "/api/runs", models.Started, scope=Scope.OPERATE, body=models.StartAsked)
    async def start_run(self, asked: ApiRequest) -> object:
        """Begin a run. It is durable when this is answered. The same `run_id` with other content is refused. With `after` it begins when
        that has come true; if it never can, the run ends as `error`."""
        client = await self._backend.client()
        wanted: models.StartAsked = asked.body
        if wanted.run_id in (".", ".."):
            raise BadRequest("run_id", f"{wanted.run_id!r} is no name in a path, where it would be taken out")
        kind: type[Any] | None = await self._backend.class_of(wanted.type)
        if kind is None:
            raise UnknownAgentType("type", f"{wanted.type!r:.200} is no class that this gateway serves")
        after = None if wanted.after is None else wanted.after.condition(client.limits.id_max)
        try:
            started = await client.start(
                kind, wanted.input, run_id=wanted.run_id, after=after, losers=wanted.losers, began_by=asked.who.began_by
            )
        except BadRequest as problem:
            raise (type(problem)("type", problem.problem) if problem.field == "agent_class" else problem) from None
        return {"run_id": started.run_id, "status": started.status}

    @Operation("POST", "/api/runs/{run_id}/cancel", models.Standing, scope=Scope.OPERATE, body=models.CancelAsked)
    async def cancel_run(self, asked: ApiRequest) -> object:
        """Cancel a run and what its child waits for. A run that has ended stays as it is. One whose steps are undone first is live until
        they are."""
        run_id = asked.path.run_id
        await self._backend.ask("show", run_id)  # an unknown run is refused
        await self._backend.ask("cancel", run_id, None, asked.body.reason)
        return await self._standing(run_id)

    @Operation("POST", "/api/runs/{run_id}/retry", models.Standing, scope=Scope.OPERATE, body=models.Confirmed)
    async def retry_run(self, asked: ApiRequest) -> object:
        """Try a run again that has failed, was given up or is parked; or a parked mail, by its id."""
        key = asked.path.run_id
        parked = (await self._backend.ask("audit"))["parked_mail"]
        await self._backend.ask("retry", key)
        is_mail = any(each["mail_id"] == key for each in parked)
        return {"run_id": key, "status": "pending"} if is_mail else await self._standing(key)

    @Operation("POST", "/api/runs/{run_id}/events", models.Standing, scope=Scope.OPERATE, body=models.EventAsked)
    async def send_event(self, asked: ApiRequest) -> object:
        """Send an event to a run, which takes it when it waits for it. It is durable when this is answered."""
        run_id, sent = asked.path.run_id, asked.body
        client = await self._backend.client()
        await client.send(run_id, sent.event, sent.value, sent.event_id)
        return await self._standing(run_id)

    @Operation("POST", "/api/runs/{run_id}/pause", models.Standing, scope=Scope.OPERATE, body=models.Confirmed)
    async def pause_run(self, asked: ApiRequest) -> object:
        """Pause a live run: it gives up its place at its next step, until it is resumed."""
        await self._backend.ask("pause", asked.path.run_id, True)
        return await self._standing(asked.path.run_id)

    @Operation("POST", "/api/runs/{run_id}/resume", models.Standing, scope=Scope.OPERATE, body=models.Confirmed)
    async def resume_run(self, asked: ApiRequest) -> object:
        """Let a paused run go on."""
        await self._backend.ask("pause", asked.path.run_id, False)
        return await self._standing(asked.path.run_id)

    async def _standing(self, run_id: str) -> object:
        return {"run_id": run_id, "status": (await self._backend.ask("show", run_id))["status"]}

    @Operation("DELETE", "/api/runs/{run_id}", models.Cleared, scope=Scope.OPERATE)
    async def clear_run(self, asked: ApiRequest) -> object:
        """Forget a run and its child's storage. A live one is cancelled first."""
        run_id = asked.path.run_id
        await self._backend.ask("show", run_id)  # an unknown run is refused
        await self._backend.ask("clear", [run_id])
        return {"cleared": 1}

    @Operation("POST", "/api/runs/bulk", models.BulkTold, scope=Scope.OPERATE, body=models.BulkAsked)
    async def steer_runs(self, asked: ApiRequest) -> object:
        """Cancel, try again or clear many runs, or count them: by names, by filters, or all.

        The runs are gone through in groups, the newest request first, and each is hit once; what is requested meanwhile is left alone. An
        answer comes after ten seconds at the latest. If it has a `next`, ask for the rest with the same filters, and with its `next` as
        `before` and its `began_ms`. What was cut off may be asked for again: runs that are as they are to be are told as `already`.
        """
        which: models.BulkAsked = asked.body
        wanted = chosen_by(which.verb, which.wanted(), everything=which.all)._replace(before=which.before)
        job = BulkPass(which.verb, wanted, reason=which.reason, dry_run=which.dry_run, began_ms=which.began_ms)
        report = await (await self._backend.client()).make_pass(job, WITHIN_S)
        return {**report.told(), "began_ms": job.began_ms}

    @Operation("POST", "/api/asks/{ask_id}/answer", models.AskTold, scope=Scope.CHAT, body=models.AnswerGiven)
    async def answer_ask(self, asked: ApiRequest) -> object:
        """Answer a question that a run asks people. The first answer that fits counts, by whatever way it comes.

        Those may answer whom the question names, and administrators; not whoever began the run, unless the question allows that. Where
        everybody has the same token, or none, all may, and `who` names the one who does.
        """
        given: models.AnswerGiven = asked.body
        client = await self._backend.client()
        told = await client.answer(
            asked.path.ask_id,
            given.value,
            asked.who.answerer(given.who),
            given.channel,
            args=given.args,
            digest=given.digest,
            answer_id=given.answer_id,
        )
        return seen_by(asked.who, told)

    @Operation("GET", "/api/upgrade", models.CodeTold, tells_of_agents=False)
    async def code(self, asked: ApiRequest) -> object:
        """Which code stands where."""
        return {"types": await self._types(None)}

    @Operation("POST", "/api/upgrade", models.CodeTold, scope=Scope.ADMIN, body=models.UpgradeAsked)
    async def upgrade(self, asked: ApiRequest) -> object:
        """Agents that have older code and are at rest leave at once, and wake with the newest."""
        await self._backend.ask("upgrade", asked.body.type, True)
        return {"types": await self._types(asked.body.type)}

    async def _types(self, only: str | None) -> list[dict[str, object]]:
        code_dir = (await self._backend.client()).code_dir
        rows = await self._backend.ask("upgrade", None, False)
        return by_type(rows, code_dir, only) if code_dir is not None else [dict(row) for row in rows]

    @Operation("DELETE", "/api/agents/{agent}", models.Confirmed, scope=Scope.ADMIN)
    async def forget_agent(self, asked: ApiRequest) -> object:
        """Delete an agent with its storage, its sub-agents, its mail and the runs that it requested."""
        agent = asked.path.agent
        if not name_of(agent) or ":" not in type_of(agent):
            raise BadRequest("agent", f"{agent!r:.200} is no address of an agent; one is name@module:Class")
        known = await self._backend.ask("agent", agent)
        if known is None and not await asyncio.to_thread(_has_storage, self._backend.data, agent):
            raise nothing_known(agent)
        await self._backend.ask("forget", agent)
        return {}

    @Operation("POST", "/api/kill", KillResult, scope=Scope.ADMIN, body=KillAsked)
    async def kill_process(self, asked: ApiRequest) -> object:
        """Kill the supervisor or a host with `SIGKILL`. 403 unless the gateway was started with `--allow-kill`."""
        strike = self._backend.striker
        if strike is None:
            raise Forbidden("this gateway kills nothing; start it with --allow-kill")
        name = asked.body.process
        told = await self._backend.ask("ps", 0)
        known = {each["host"]: each["pid"] for each in told["hosts"]} | {SUPERVISOR: told["supervisor"]["pid"]}
        if name not in known:
            raise BadRequest("process", f"{name!r:.80} is neither {SUPERVISOR!r} nor the id of a host that is there")
        pid = int(known[name])
        how = await strike(name, pid)
        if how is None:
            raise BadRequest("process", f"{name} ended by itself before it could be killed")
        then = "The supervisor gives its runs their next attempts on other hosts."
        if name == SUPERVISOR:
            then = "Ray starts it again; until then children go on, and nothing new is decided."
        return {"process": name, "pid": pid, "told": f"{name} (process {pid}) was ended by {how}. {then}"}


def _has_storage(data: Path, agent: str) -> bool:
    with storages_in(data) as source:
        return source.has(agent)


# ---------------------------------------------------------------- upkeep
# What asks the supervisor step by step and reads files meanwhile does so in a thread, and hands its questions to the loop.


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
