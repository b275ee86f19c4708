"""Everything that changes, over one connection: told as things stand, once, on from a number, across deaths."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any, NamedTuple

from perdure.scenarios.testing.laboratory import QUICK, Laboratory
from tests.gateway.cast import Walker
from tests.gateway.door import Door
from tests.gateway.test_rest_reading import client_of
from tests.gateway.world import visiting


class Told(NamedTuple):
    """An event of a stream."""

    name: str
    id: str
    data: Any


async def told(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[Told, None]:
    """The events of a stream, as they come."""
    async for piece in pieces:
        for block in piece.decode().split("\n\n"):
            lines = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
            if lines:
                yield Told(lines.get("event", ""), lines.get("id", ""), json.loads(lines["data"]))


async def until_ended(events: AsyncGenerator[Told, None], run_id: str) -> list[Told]:
    """The events until this run has ended."""
    found: list[Told] = []
    async for each in events:
        found.append(each)
        lines = each.data.get("runs", ()) if each.name == "runs" else ()
        if any(line["run_id"] == run_id and line["status"] == "completed" for line in lines):
            return found
    raise AssertionError(f"the stream ended after {found}")


def fractions(found: list[Told], run_id: str) -> list[float]:
    lines = [line for each in found if each.name == "runs" for line in each.data["runs"] if line["run_id"] == run_id]
    return [line["progress"]["fraction"] for line in lines if line["progress"]]


@visiting(Walker)
async def test_a_watcher_is_told_how_things_stand_and_then_each_change(door: Door, laboratory: Laboratory, /) -> None:
    client = await client_of(laboratory)
    await client.start(Walker, 2, run_id="before")
    async with door.stream("GET", "/api/live") as (head, pieces):
        events = told(pieces)
        first = await anext(events)
        assert (head.status, first.name) == (200, "overview")
        assert [each["run_id"] for each in first.data["live"]] == ["before"]
        await client.start(Walker, 5, run_id="walk")
        found = await until_ended(events, "walk")
        assert list(dict.fromkeys(fractions(found, "walk"))) == [0.2, 0.4, 0.6, 0.8, 1.0]
        assert any(each.name == "counts" for each in found)
        numbers = [int(each.id) for each in found if each.id]
        assert numbers == sorted(set(numbers))


@visiting(Walker)
async def test_a_watcher_that_comes_again_is_told_what_changed_meanwhile_and_nothing_else(
    door: Door, laboratory: Laboratory, /
) -> None:
    client = await client_of(laboratory)
    async with door.stream("GET", "/api/live") as (_, pieces):
        events = told(pieces)
        first = await anext(events)
    await client.run(Walker, 2, run_id="meanwhile")
    async with door.stream("GET", "/api/live", headers={"last-event-id": first.id}) as (_, pieces):
        found = await until_ended(told(pieces), "meanwhile")
    assert found[0].name == "runs", "neither an overview nor a reset"
    assert fractions(found, "meanwhile") == [1.0], "its newest state, once"


@visiting(Walker)
async def test_a_number_that_nobody_remembers_is_told_as_a_reset(door: Door, laboratory: Laboratory, /) -> None:
    async with door.stream("GET", "/api/live?after=123456789") as (_, pieces):
        events = told(pieces)
        assert [(await anext(events)).name, (await anext(events)).name] == ["reset", "overview"]


@visiting(Walker)
async def test_the_death_of_the_supervisor_hides_no_change(door: Door, laboratory: Laboratory, /) -> None:
    client = await client_of(laboratory)
    async with door.stream("GET", "/api/live") as (_, pieces):
        events = told(pieces)
        first = await anext(events)
        await client.start(Walker, 4, run_id="walk")
        laboratory.simulation.kill("supervisor")
        found = await until_ended(events, "walk")
    assert fractions(found, "walk")[-1] == 1
    async with door.stream("GET", "/api/live", headers={"last-event-id": first.id}) as (_, pieces):
        events = told(pieces)
        assert [(await anext(events)).name, (await anext(events)).name] == ["reset", "overview"], "by another life"


@visiting(Walker)
async def test_a_cleared_run_is_told_as_gone(door: Door, laboratory: Laboratory, /) -> None:
    client = await client_of(laboratory)
    await client.run(Walker, 1, run_id="walk")
    async with door.stream("GET", "/api/live") as (_, pieces):
        events = told(pieces)
        await anext(events)
        await client.ask("clear", ["walk"])
        gone = [each async for each in _until_gone(events)]
    assert gone[-1].data["gone"] == ["walk"]


@visiting(Walker, limits=replace(QUICK, retained_in_memory=0))
async def test_a_run_that_has_left_memory_is_not_told_as_gone(door: Door, laboratory: Laboratory, /) -> None:
    """It is kept: whoever has not seen it end reads everything again."""
    client = await client_of(laboratory)
    async with door.stream("GET", "/api/live") as (_, pieces):
        first = await anext(told(pieces))
    await client.run(Walker, 1, run_id="walk")
    while "walk" in laboratory.supervisors[-1].view.runs:
        await asyncio.sleep(1)
    async with door.stream("GET", "/api/live", headers={"last-event-id": first.id}) as (_, pieces):
        events = told(pieces)
        assert [(await anext(events)).name, (await anext(events)).name] == ["reset", "overview"]
    assert (await door.get("/api/runs/walk")).json()["status"] == "completed"


async def _until_gone(events: AsyncGenerator[Told, None]) -> AsyncGenerator[Told, None]:
    async for each in events:
        yield each
        if each.name == "runs" and each.data["gone"]:
            return


@visiting(Walker)
async def test_a_run_that_changes_often_costs_its_watchers_a_few_events_a_second(
    door: Door, laboratory: Laboratory, /
) -> None:
    client = await client_of(laboratory)
    async with door.stream("GET", "/api/live") as (_, pieces):
        events = told(pieces)
        await anext(events)
        for number in range(40):
            await client.start(Walker, 1, run_id=f"walk-{number}")
        found = await until_ended(events, "walk-39")
    texts = [each for each in found if each.name == "runs"]
    assert len(texts) < 20, "changes are gathered"
