"""A story of fibers for the swarm and the explorer: whatever dies, each comes to its end, and what it wrote with its steps stands once."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from perdure.actors import (
    Agent,
    Client,
    Detached,
    FiberContext,
    FiberRecovery,
    FiberResult,
    RunInfo,
    RunResult,
    exposed,
)
from perdure.ledger import HostUnavailable, WorldError
from tests.actors.cast import Doubler

PAYERS, STEPS = 4, 3


class Teller(Agent):
    """Pays in steps, each in one transaction with the row that says so."""

    async def on_start(self) -> None:
        self.sql("CREATE TABLE IF NOT EXISTS paid(fiber VARCHAR, step BIGINT)")

    @exposed(repeatable=True)
    async def begin(self) -> None:
        asked = [
            {"name": "pay", "fn_name": "pay", "input": number, "idempotency_key": f"pay {number}", "retry": 500}
            for number in range(PAYERS)
        ]
        self.fibers.start(asked)
        self.start_fiber("hooked", "linger", fiber_id="hooked")
        self.start_fiber("doomed", "linger", fiber_id="doomed", retry=500)
        self.start_fiber("flaky", "flaky", fiber_id="flaky", retry=500)
        await self.run_agent_tool(
            Doubler, {"n": 1}, run_id=f"{self.name} child", detached=Detached(on_finish="on_child")
        )

    def on_child(self, run: RunInfo, result: RunResult) -> None:
        self.start_fiber("pay", "pay", 99, fiber_id=run.run_id, retry=500)

    async def pay(self, fiber: FiberContext, input: int) -> None:
        for step in range(STEPS):
            with self.transaction():
                fiber.step(f"step {step}", lambda step=step: self._pay(fiber, step))
            fiber.stash(step)
            await asyncio.sleep(0.2)

    def _pay(self, fiber: FiberContext, step: int) -> int:
        self.sql("INSERT INTO paid VALUES ($1, $2)", [fiber.key or fiber.id, step])
        return step

    async def linger(self, fiber: FiberContext) -> None:
        fiber.stash("lingers")
        await asyncio.sleep(2 if fiber.name == "hooked" else 3_600)

    async def flaky(self, fiber: FiberContext) -> None:
        if fiber.attempt % 3:
            raise ValueError("not this time")

    async def on_fiber_recovered(self, fiber: FiberRecovery) -> FiberResult | str | None:
        await asyncio.sleep(0.1)
        return FiberResult("completed", snapshot="recovered") if fiber.name == "hooked" else None

    @exposed(repeatable=True)
    async def unmanaged(self) -> int:
        async def work(fiber: FiberContext) -> int:
            await asyncio.sleep(0.5)
            return 7

        return int(await self.run_fiber("unmanaged", work))

    @exposed(repeatable=True)
    async def stop_the_doomed(self) -> None:
        self.cancel_fiber("doomed", "enough")

    @exposed(repeatable=True)
    async def wait(self) -> dict[str, Any]:
        keys = [self.inspect_fiber_by_key(f"pay {number}") for number in range(PAYERS)]
        ids = [*(each.fiber_id for each in keys if each), "hooked", "doomed", "flaky", f"{self.name} child"]
        while self.inspect_fiber(ids[-1]) is None:
            await asyncio.sleep(0.1)
        told = [await self.fibers.wait(each) for each in ids]
        paid = self.sql("SELECT fiber, count(*), count(DISTINCT step) FROM paid GROUP BY fiber")
        return {
            "ends": [[each.name, each.status] for each in told],
            "paid": sorted(list(row[1:]) for row in paid),
            "open": [each.fiber_id for each in self.list_fibers(["pending", "running"])],
        }


async def _made(call: Any) -> Any:
    """Make a call, again as long as there is no host that it could have reached."""
    while True:
        try:
            return await call()
        except HostUnavailable:
            await asyncio.sleep(1)


async def fiber_story(client: Client) -> None:
    """Ask for everything, then wait for it."""
    agent: Any = client.agent(Teller, "t")
    await _made(agent.begin)
    working = asyncio.ensure_future(agent.unmanaged())
    await _made(agent.stop_the_doomed)
    with suppress(WorldError):
        assert await working == 7
    told = await _made(agent.wait)
    ends = [*[["pay", "completed"]] * PAYERS, ["hooked", "completed"], ["doomed", "aborted"], ["flaky", "completed"]]
    assert told["ends"] == [*ends, ["pay", "completed"]], told
    assert told["paid"] == [[STEPS, STEPS]] * (PAYERS + 1), told
    assert told["open"] == [], told
