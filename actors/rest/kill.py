"""Killing a process over REST, for whoever wants to watch what recovers: only where the gateway was started with leave for it."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from perdure.actors.gateway.backend import Backend
from perdure.actors.gateway.refusals import Forbidden
from perdure.actors.gateway.security import Scope
from perdure.actors.rest.models import Id
from perdure.actors.rest.table import Asked, Operation, Taken
from perdure.ledger import BadRequest

SUPERVISOR = "supervisor"


class KillAsked(Taken):
    """Which process."""

    process: Annotated[Id, Field(description="`supervisor`, or the id of a host.")]


class Killed(BaseModel):
    """What was done, and what comes next."""

    process: str
    pid: int
    told: str


def killing(backend: Backend) -> list[Operation]:
    """The operation that kills."""

    async def kill_process(asked: Asked) -> object:
        """Kill the supervisor or a host with `SIGKILL`. 403 unless the gateway was started with `--allow-kill`."""
        if backend.striker is None:
            raise Forbidden("this gateway kills nothing; start it with --allow-kill")
        name = asked.body.process
        pid = await _number_of(name)
        how = await backend.striker(name, pid)
        if how is None:
            raise BadRequest("process", f"{name} ended by itself before it could be killed")
        return {"process": name, "pid": pid, "told": f"{name} (process {pid}) was ended by {how}. {_next(name)}"}

    async def _number_of(name: str) -> int:
        told = await backend.ask("ps", 0)
        known = {each["host"]: each["pid"] for each in told["hosts"]} | {SUPERVISOR: told["supervisor"]["pid"]}
        if name not in known:
            raise BadRequest("process", f"{name!r:.80} is neither {SUPERVISOR!r} nor the id of a host that is there")
        return int(known[name])

    return [Operation("POST", "/api/kill", kill_process, Killed, scope=Scope.ADMIN, body=KillAsked)]


def _next(name: str) -> str:
    if name == SUPERVISOR:
        return "Ray starts it again; until then children go on, and nothing new is decided."
    return "The supervisor gives its runs their next attempts on other hosts."
