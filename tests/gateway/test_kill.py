"""Killing a process over REST: only with leave, only by those who may, and only what is there."""

from __future__ import annotations

import asyncio
from typing import Any

from perdure.gateway import Principal, Scope, bearer
from perdure.scenarios.testing.laboratory import Laboratory
from tests.gateway.cast import Walker
from tests.gateway.door import Door
from tests.gateway.world import visit


class Struck:
    """Kills hosts of the story's world."""

    def __init__(self) -> None:
        self.laboratory: Laboratory | None = None

    async def __call__(self, name: str, pid: int) -> str | None:
        assert self.laboratory is not None
        self.laboratory.simulation.kill(name)
        return "SIGKILL"


def test_a_host_is_killed_and_its_run_goes_on_elsewhere() -> None:
    striker = Struck()

    async def story(door: Door, laboratory: Laboratory) -> None:
        striker.laboratory = laboratory
        client: Any = laboratory._client  # noqa: SLF001 - the story's own
        await client.start(Walker, 5, run_id="walk")
        await asyncio.sleep(2)
        host = (await door.get("/api/runs/walk")).json()["host"]
        told = await door.post("/api/kill", {"process": host})
        assert told.status == 200
        assert told.json()["told"].startswith(f"{host} (process 0) was ended by SIGKILL. ")
        ended = await client.run(Walker, 5, run_id="walk")
        assert ended.output == "there"
        assert (await door.get("/api/runs/walk")).json()["attempt"] == 2
        missing = await door.post("/api/kill", {"process": "nobody"})
        assert (missing.status, missing.json()["error"]["field"]) == (400, "process")

    visit([Walker], story, gateway_options={"allows_kill": True, "striker": striker})


def test_nobody_kills_without_leave_or_without_the_scope() -> None:
    async def story(door: Door, laboratory: Laboratory) -> None:
        told = await door.post("/api/kill", {"process": "supervisor"}, headers={"authorization": "Bearer all"})
        assert told.status == 403
        served = await door.get("/dashboard/served", headers={"authorization": "Bearer all"})
        assert served.json()["may_kill"] is False

    everything = bearer({"all": Principal("all")})
    visit([Walker], story, gateway_options={"authenticate": everything, "striker": Struck()})

    async def without_scope(door: Door, laboratory: Laboratory) -> None:
        reader = {"authorization": "Bearer read"}
        assert (await door.post("/api/kill", {"process": "supervisor"}, headers=reader)).status == 403
        assert (await door.get("/dashboard/served", headers=reader)).json()["may_kill"] is False

    readers = bearer({"read": Principal("reader", frozenset({Scope.READ}))})
    options = {"authenticate": readers, "allows_kill": True, "striker": Struck()}
    visit([Walker], without_scope, gateway_options=options)
