"""Whoever waits for a run behind a gateway is told what keeps it back, by a comment in the stream of its events."""

from __future__ import annotations

import logging

import pytest
from pydantic import BaseModel

from perdure.actors import Agent
from perdure.actors.remote.remote_requests import WatchPosition
from perdure.ledger import pack
from perdure.scenarios.testing.laboratory import Laboratory
from tests.gateway.door import Door
from tests.gateway.test_rest_reading import client_of
from tests.gateway.world import visiting


class Months(BaseModel):
    months: int


class Sized(Agent):
    async def run(self, input: Months) -> int:
        return input.months


@visiting(Sized)
async def test_the_stream_of_a_run_that_is_parked_says_so_while_nothing_happens_and_its_record_says_why(
    door: Door, laboratory: Laboratory, /
) -> None:
    client = await client_of(laboratory)
    asked = client.request(Sized, {"months": 2}, "r", wait=False)
    await client.supervisor.begin(asked._replace(input=pack({}), digest="of old code"))
    async with door.stream("GET", "/api/runs/r/events") as (_, pieces):
        told = b""
        async for piece in pieces:
            told += piece
            if b": kept back: run 'r' is parked, and you go on waiting: its stored input does not fit" in piece:
                assert piece.endswith(b"says what can be done\n\n")
                assert "does not fit" in (await door.get("/api/runs/r")).json()["parked"]
                await client.ask("cancel", "r", None, "it is too old")
    assert told.endswith(b"event: end\ndata: {}\n\n")
    assert told.count(b"kept back") == 1
    assert (await door.get("/api/runs/r")).json()["parked"] is None


def test_a_client_elsewhere_prints_such_a_comment_once_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    place, words = WatchPosition(-1), "kept back: run 'r' is parked"
    event = 'id: 0\ndata: {"sequence": 0}\n\n'
    with caplog.at_level(logging.WARNING, "perdure.connect"):
        told = [*place.take(f": still here\n\n: {words}\n\n{event}: {words}"), *place.take(f"\n\n: {words}, too\n\n")]
    assert told == [{"sequence": 0}]
    assert [each.getMessage() for each in caplog.records] == [
        "perdure: run 'r' is parked", "perdure: run 'r' is parked, too",
    ]  # fmt: skip
