"""Schedules and queued items are cancelled by whoever looks after the directory: over REST, and by the command."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from typer.testing import CliRunner

from perdure.actors import Agent, Client, Occurrence, exposed
from perdure.ledger import BadRequest, restore
from perdure.ledger.facts import SupervisorStarted
from perdure.ledger.storage.agent_storages import FileDisk
from perdure.ledger.store.duckdb_store import DuckDBStore
from perdure.policies import Limits
from perdure.scenarios.cli import app
from perdure.scenarios.testing.laboratory import Laboratory
from tests.gateway.door import Door
from tests.gateway.world import gateway
from tests.kit import address
from tests.ledger.directories import recorded


class Planner(Agent):
    """Has schedules with keys and without, and an item that fails again and again. One schedule is declared at each start."""

    async def on_start(self) -> None:
        self.schedule_every(86_400, "remind", "declared", key="declared")

    @exposed
    async def plan(self) -> None:
        """Plan everything."""
        self.schedule(86_400, "remind", "tea", key="tea/time")
        self.schedule(86_400, "remind", "nameless")
        self.queue("fail", None, key="tea/time")

    @exposed(repeatable=True)
    async def planned(self) -> list[str]:
        """What is planned."""
        return sorted([str(each.payload) for each in self.schedules.list()] + ["item" for _ in self.queued.list()])

    @exposed(repeatable=True)
    async def nameless(self) -> str:
        """The id of the schedule without a key."""
        return next(each.schedule_id for each in self.schedules.list() if each.payload == "nameless")

    def remind(self, payload: str, occurrence: Occurrence) -> None:
        """Do nothing."""

    def fail(self, payload: None, occurrence: Occurrence) -> None:
        """Fail each time."""
        raise LookupError("no such thing")


ANN = address(Planner, "ann")
EVERYTHING = ["declared", "item", "nameless", "tea"]


def play(data: Path, story: Callable[[Door, Any], Awaitable[None]]) -> None:
    """Play it in front of a gateway over storages that lie in files, with a planner that has planned everything."""

    async def played(client: Client) -> None:
        served = gateway(client, [Planner], data=data)
        ann: Any = client.agent(Planner, "ann")
        await ann.plan()
        assert await ann.planned() == EVERYTHING
        try:
            await story(Door(served), ann)
        finally:
            await served.backend.close()

    with Laboratory(3) as laboratory:
        laboratory.disk = FileDisk(data / "agents")  # type: ignore[assignment]
        laboratory.play(played, 7_200_000)


def test_a_schedule_is_cancelled_and_an_item_dropped_by_key_or_id_and_what_is_not_there_is_said(tmp_path: Path) -> None:
    async def story(door: Door, ann: Any) -> None:
        async def cancel(name: str, agent: str = ANN) -> tuple[int, str]:
            answer = await door.ask("DELETE", f"/api/agents/{quote(agent, safe='')}/schedules/{quote(name, safe='')}")
            return answer.status, answer.json().get("error", {}).get("message", "")

        assert await cancel("tea/time") == (200, "")
        while await ann.planned() != ["declared", "nameless"]:
            await asyncio.sleep(1)
        assert await cancel(await ann.nameless()) == (200, "")
        while await ann.planned() != ["declared"]:
            await asyncio.sleep(1)
        for name in ("tea/time", "teatime", "remind"):
            status, words = await cancel(name)
            assert (status, f"has no schedule and no queued item {name!r}" in words) == (400, True)
        status, words = await cancel("declared", ANN.replace("ann", "bob"))
        assert (status, "the ledger holds nothing for it" in words) == (404, True)
        assert await cancel("declared") == (200, "")
        while await ann.planned():
            await asyncio.sleep(1)
        await asyncio.sleep(600)
        assert await ann.planned() == ["declared"], "on_start has declared it again"

    play(tmp_path, story)


def test_the_command_tells_the_agent_where_nobody_serves_it(tmp_path: Path) -> None:
    async def story(_door: Door, _ann: Any) -> None:
        await asyncio.sleep(600)

    play(tmp_path, story)
    recorded(tmp_path, SupervisorStarted(1, asdict(Limits())))

    def unschedule(agent: str, name: str) -> Any:
        return CliRunner().invoke(app, ["unschedule", agent, name, "--data", str(tmp_path)])

    for agent, name, words in ((ANN, "tee", "no queued item 'tee'"), (ANN + "s", "tea/time", "is asleep or unknown")):
        with pytest.raises(BadRequest, match=words):
            raise unschedule(agent, name).exception
    assert unschedule(ANN, "tea/time").stdout == f"Agent {ANN} is told to cancel tea/time.\n"
    with closing(DuckDBStore(tmp_path / "ledger", fsync=False)) as store:
        told = [(mail.recipient, mail.handler) for mail in restore(store.boot()).mail.values()]
    assert told == [(ANN, "_perdure_cancel_scheduled")] * 2, "the schedule, and the item of the same key"
