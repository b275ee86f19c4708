"""Runs over HTTP: what is known of one, and its events from a number on."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from perdure.actors import Agent, RunContext
from perdure.scenarios.testing.laboratory import Laboratory
from tests.gateway.door import Door, events
from tests.gateway.world import visit


class Walker(Agent):
    """Reports each step."""

    async def run(self, input: int, run: RunContext) -> str:
        for step in range(input):
            await self.report_progress(fraction=(step + 1) / input, message=f"step {step}")
            await asyncio.sleep(1)
        return "there"


async def begin(laboratory: Laboratory, steps: int, run_id: str) -> None:
    """Start a run, as anybody in the cluster would."""
    client: Any = laboratory._client  # noqa: SLF001 - the story's own
    await client.start(Walker, steps, run_id=run_id)


def test_a_run_is_shown_and_an_unknown_one_is_not_found() -> None:
    async def story(door: Door, laboratory: Laboratory) -> None:
        await begin(laboratory, 2, "walk")
        found = await door.get("/api/runs/walk")
        assert (found.status, found.json()["run_id"]) == (200, "walk")
        missing = await door.get("/api/runs/nobody")
        assert (missing.status, missing.json()["error"]["type"]) == (404, "UnknownRun")
        unknown = await door.get("/api/runs/nobody/events")
        assert unknown.status == 404

    visit([Walker], story)


def test_events_are_streamed_from_a_number_on_across_the_death_of_the_host() -> None:
    async def story(door: Door, laboratory: Laboratory) -> None:
        await begin(laboratory, 20, "walk")
        async with door.stream("GET", "/api/runs/walk/events") as (head, pieces):
            assert head.status == 200
            assert head.headers["content-type"].startswith("text/event-stream")
            told: list[bytes] = []
            async for piece in pieces:
                told.append(piece)
                if b'"progress"' in piece and len(told) == 3:
                    host = next(iter(laboratory.hosts))
                    laboratory.simulation.kill(host)
        frames = [each for each in events(b"".join(told)) if each]
        numbers = [each["sequence"] for each in frames]
        assert numbers == list(range(len(numbers)))
        assert frames[-1]["event"]["kind"] == "finished"
        again = await door.get("/api/runs/walk/events", headers={"last-event-id": str(numbers[-2])})
        assert [each["sequence"] for each in events(again.body) if each] == [numbers[-1]]

    visit([Walker], story)


def test_a_page_elsewhere_and_a_foreign_host_name_are_refused() -> None:
    async def story(door: Door, laboratory: Laboratory) -> None:
        assert (await door.get("/api/runs/x", headers={"origin": "https://evil.example"})).status == 403
        assert (await door.get("/api/runs/x", headers={"host": "evil.example"})).status == 403
        assert (await door.get("/api/runs/x", headers={"origin": "http://127.0.0.1:8787"})).status == 404

    visit([Walker], story)


def test_the_text_of_an_event_is_its_frame() -> None:
    assert events(b'id: 3\ndata: {"a":1}\n\n: still here\n\ndata: [DONE]\n\n')[0] == json.loads('{"a":1}')
